"""A job's history → one HTML file: what was run, how it went, what limited it. Pure.

`page_data` turns a Run into plain JSON, `render_page` turns that into the file, which holds the same JSON: every
number that the page shows stands in it. uPlot draws the charts; the page asks for nothing from anywhere.
"""

from __future__ import annotations

from rackhand.page.data import page_data
from rackhand.page.document import render_page
from rackhand.page.run import Mark, Run, Stretch

__all__ = ["Mark", "Run", "Stretch", "page_data", "render_page"]
