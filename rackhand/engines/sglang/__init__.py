"""SGLang: flags by version, log lines, trouble signs, endpoints."""

from __future__ import annotations

from rackhand.engines.sglang.event import Event as Event
from rackhand.engines.sglang.log import parse_line as parse_line
from rackhand.engines.sglang.log import read_line as read_line
