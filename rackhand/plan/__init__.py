"""What to do, from what is wanted and what was observed. Pure."""

from __future__ import annotations

from rackhand.plan.deploy import SendFiles, StartContainer
from rackhand.plan.job import ChangeJob, StartJob, StopJob
from rackhand.plan.servers import ServeGpus

Action = StartContainer | SendFiles | ServeGpus | StartJob | StopJob | ChangeJob
"""One step on one host; apply.py has one arm for each."""

__all__ = ["Action", "ChangeJob", "SendFiles", "ServeGpus", "StartContainer", "StartJob", "StopJob"]
