"""What to do, from what is wanted and what was observed. Pure."""

from __future__ import annotations

from rackhand.plan.deploy import SendFiles, StartContainer

Action = StartContainer | SendFiles
"""One step on one host; apply.py has one arm for each."""

__all__ = ["Action", "SendFiles", "StartContainer"]
