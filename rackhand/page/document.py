"""The page's data → one HTML text that needs nothing else. Pure but for reading its own assets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from rackhand.page.data import shown_runs
from rackhand.place import COMMAND

ASSETS = Path(__file__).resolve().parent / "assets"
UNKNOWN = "\u2013"


def render_page(data: Mapping[str, Any]) -> str:
    """The whole file. The same data gives the same text."""
    return _template().render(data=data, runs=shown_runs(data), embedded=embedded(data), command=COMMAND)


def embedded(data: Mapping[str, Any]) -> Markup:
    """JSON that can stand in a script element, whatever its texts hold."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)  # noqa: S704


def figure(value: float | None, digits: int = 0) -> str:
    """`1,234.5`; a dash for what is unknown."""
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def moment(time: float | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Unix seconds as UTC."""
    return UNKNOWN if time is None else datetime.fromtimestamp(time, UTC).strftime(form)


def lasting(seconds: float | None) -> str:
    """`2 h 05 min`, `3 min 20 s`."""
    if seconds is None:
        return UNKNOWN
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"


def yaml_like(value: object, depth: int = 0) -> str:
    """Nested plain values as indented lines, for people."""
    pad = "  " * depth
    if isinstance(value, Mapping):
        lines = (f"{pad}{key}:{_below(one, depth)}" for key, one in value.items())
    elif isinstance(value, list | tuple):
        lines = (f"{pad}-{_below(one, depth)}" for one in value)
    else:
        return f"{pad}{value}"
    return "\n".join(lines)


def _below(value: object, depth: int) -> str:
    if isinstance(value, Mapping | list | tuple):
        simple = isinstance(value, list | tuple) and not any(isinstance(one, Mapping | list | tuple) for one in value)
        return f" {', '.join(map(str, value))}" if simple else "\n" + yaml_like(value, depth + 1)
    return f" {value}"


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(figure=figure, moment=moment, lasting=lasting, yaml_like=yaml_like)
    environment.globals.update(asset=_asset)
    return environment.get_template("page.html.j2")


def _asset(name: str) -> Markup:
    """A style sheet or script of ours, as it stands."""
    return Markup((ASSETS / name).read_text(encoding="utf-8"))  # noqa: S704
