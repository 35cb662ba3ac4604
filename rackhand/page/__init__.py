"""A job's history → one HTML file: what was run, how it went, what limited it. Pure.

`page_data` turns what was Recorded into plain JSON, `render_page` turns that into the file, which holds the same JSON:
every number that the page shows stands in it. uPlot draws the charts; the page asks for nothing from anywhere.
"""

from __future__ import annotations

from rackhand.page.data import page_data
from rackhand.page.document import render_page
from rackhand.page.recorded import Mark, Recorded

__all__ = ["Mark", "Recorded", "page_data", "render_page"]
