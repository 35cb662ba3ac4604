"""The screen for people."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rackhand.contract.watch import Sample
from rackhand.inventory import Baseline, Host
from rackhand.place import COMMAND
from rackhand.render.lines import comparison_lines, fitting, report_lines
from rackhand.render.sparks import ASCII, BLOCKS
from rackhand.render.trends import WIDE, below, beside
from rackhand.render.watch_table import COLUMNS, LEAST_WANTED, View, view_of
from rackhand.render.words import plain
from rackhand.report import Comparison, Report
from rackhand.trail import Trail

PIPE_WIDTH = 1000
"""Wide enough that nothing is wrapped or cut where no terminal is."""


class TextScreen:
    """On a terminal samples are drawn over the last ones; elsewhere each is printed below the last. Those rebuilt
    of the past are only remembered."""

    def __init__(
        self, out: TextIO, *, verbose: bool = False, baselines: Sequence[Baseline] = (), width: int | None = None
    ) -> None:
        self._verbose, self._baselines = verbose, baselines
        self._console = Console(file=out, highlight=False, markup=False, emoji=False, soft_wrap=False, width=width)
        self._width = self._console.width
        is_dumb = self._console.is_dumb_terminal
        self._ramp = BLOCKS if not is_dumb and can_show(BLOCKS, self._console.encoding) else ASCII
        if width is None and not self._console.is_terminal:
            self._console = Console(file=out, highlight=False, markup=False, emoji=False, width=PIPE_WIDTH)
        self._fit = self._width if width is not None or self._console.is_terminal else PIPE_WIDTH
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._trails: dict[str, Trail] = {}
        self._views: dict[str, View] = {}

    def say(self, where: str, text: str) -> None:
        line = Text.assemble((plain(where), "cyan"), ": ", plain(text)) if where else Text(plain(text))
        self._print(line)

    def show(self, host: Host, sample: Sample) -> None:
        with self._lock:
            trail = self._trails.setdefault(host.where, Trail())
            trail.take(sample)
            if sample.rebuilt:
                return
            self._views[host.where] = view_of(host.where, trail, self._baselines)
            if self._console.is_terminal and not self._console.is_dumb_terminal:
                self._draw_live()
            else:
                self._print(draw_view(self._views[host.where], self._width, self._ramp, fit=self._fit, dated=True))

    def report(self, report: Report) -> None:
        self._end_live()
        for line in report_lines(report, verbose=self._verbose):
            self._print(Text(plain(line), style=style_of(line)))

    def compare(self, comparison: Comparison) -> None:
        for line in comparison_lines(comparison, self._fit):
            self._print(Text(plain(line)))

    def lines(self, event: str, fields: Mapping[str, Any], lines: Sequence[str]) -> None:  # noqa: ARG002
        self._end_live()
        for line in lines:
            self._print(Text(plain(line)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_live()

    def _draw_live(self) -> None:
        group = self._drawn(self._width)
        if self._width < WIDE and len(self._console.render_lines(group, pad=False)) > self._console.height:
            group = self._drawn(0)
        if self._live is None:
            self._live = Live(group, console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        self._live.update(group, refresh=True)

    def _drawn(self, width: int) -> Group:
        """All hosts, with the sparklines for so many columns."""
        return Group(*(draw_view(view, width, self._ramp, fit=self._fit) for _, view in sorted(self._views.items())))

    def _end_live(self) -> None:
        with self._lock:
            live, self._live = self._live, None
            if live is not None:
                live.stop()

    def _print(self, what: RenderableType) -> None:
        with self._lock:
            self._console.print(what)


def picture_of(where: str, trail: Trail, baselines: Sequence[Baseline], *, width: int = 120) -> str:
    """What tail-metrics shows, as an SVG that asks for nothing from anywhere."""
    console = Console(file=io.StringIO(), record=True, width=width, force_terminal=True, color_system="truecolor")
    console.print(draw_view(view_of(where, trail, baselines), width, BLOCKS))
    svg = console.export_svg(title=f"{COMMAND} tail-metrics", unique_id="tail")
    return re.sub(r"@font-face {.*?}\s*", "", svg, flags=re.DOTALL)


def draw_view(view: View, width: int, ramp: str, *, fit: int = PIPE_WIDTH, dated: bool = False) -> RenderableType:
    """One host's table with its title, sparklines for a screen of `width` columns, and the lines below. Of the table
    those columns that `fit` columns hold."""
    when = time.strftime("%Y-%m-%d %H:%M:%S" if dated else "%H:%M:%S", time.localtime(view.time))
    title = Text.assemble((plain(view.where), "bold cyan"), f"  {when}")
    lines = [Text(plain(line)) for line in view.lines]
    if not view.rows:
        return Group(title, Text("no GPU to be seen"), *lines)
    names, sparks = beside(view.trends, width, ramp)
    if names:
        title.append(f"  sparklines: tok/s, KV, mamba, {view.trends.span}", "dim")
    under = [Text(line, "dim" if at == 0 else "cyan") for at, line in enumerate(below(view.trends, width, ramp))]
    return Group(title, _table(view, names, sparks, fit), *under, *lines)


def _table(view: View, names: Sequence[str], sparks: Sequence[Sequence[str]], fit: int) -> Table:
    """80 columns hold it without sparklines; on fewer the least wanted columns are left out, and no number is cut."""
    grid = (COLUMNS, view.totals, *(cells for _, cells in view.rows))
    widths = [max(len(line[at]) for line in grid) for at in range(len(COLUMNS))]
    kept = fitting(widths, fit, drop=LEAST_WANTED, gap=1) if not names else list(range(len(COLUMNS)))
    table = Table(box=None, padding=(0, 1, 0, 0), show_footer=True, pad_edge=False)
    for at in kept:
        table.add_column(
            COLUMNS[at],
            view.totals[at],
            justify="left" if at <= 1 else "right",
            header_style="dim",
            footer_style="bold",
            no_wrap=True,
        )
    for name in names:
        table.add_column(name, header_style="dim", style="cyan", no_wrap=True)
    for (style, cells), drawn in zip(view.rows, sparks, strict=True):
        shown = [Text(cells[at], style=style) if at == 1 else cells[at] for at in kept]
        table.add_row(*shown, *drawn)
    return table


def can_show(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True


def style_of(line: str) -> str:
    """Failures and the lines of a diff stand out."""
    if ": FAILED: " in line:
        return "bold red"
    if not line.startswith("    "):
        return ""
    text = line[4:]
    if text.startswith(("--- ", "+++ ")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(text[:1], "dim")
