"""The screen for people."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rackhand.contract.watch import Sample
from rackhand.errors import RackhandError
from rackhand.inventory import Baseline, Host
from rackhand.render.lines import comparison_lines, report_lines
from rackhand.render.screen import Rows, unified
from rackhand.render.watch_table import COLUMNS, View, view_of
from rackhand.render.words import plain
from rackhand.report import Comparison, Report
from rackhand.steady import WINDOW_S

PIPE_WIDTH = 1000
"""Wide enough that nothing is wrapped or cut where no terminal is."""


class TextScreen:
    """On a terminal samples are drawn over the last ones; elsewhere each is printed below the last."""

    def __init__(
        self, out: TextIO, *, verbose: bool = False, baselines: Sequence[Baseline] = (), width: int | None = None
    ) -> None:
        self._verbose, self._baselines = verbose, baselines
        self._console = Console(file=out, highlight=False, markup=False, emoji=False, soft_wrap=False, width=width)
        if width is None and not self._console.is_terminal:
            self._console = Console(file=out, highlight=False, markup=False, emoji=False, width=PIPE_WIDTH)
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._samples: dict[str, deque[Sample]] = {}
        self._views: dict[str, View] = {}

    def say(self, where: str, text: str) -> None:
        line = Text.assemble((plain(where), "cyan"), ": ", plain(text)) if where else Text(plain(text))
        self._print(line)

    def show(self, host: Host, sample: Sample) -> None:
        with self._lock:
            samples = self._samples.setdefault(host.where, deque(maxlen=512))
            samples.append(sample)
            while samples[0].time < sample.time - 2 * WINDOW_S:
                samples.popleft()
            self._views[host.where] = view_of(host.where, tuple(samples), self._baselines)
            if self._console.is_terminal and not self._console.is_dumb_terminal:
                self._draw_live()
            else:
                self._print(draw_view(self._views[host.where], dated=True))

    def report(self, report: Report) -> None:
        self._end_live()
        for line in report_lines(report, verbose=self._verbose):
            self._print(Text(plain(line), style=style_of(line)))

    def table(self, title: str, columns: Sequence[str], rows: Rows) -> None:
        self._print(draw_table(title, columns, rows))

    def compare(self, comparison: Comparison) -> None:
        for line in comparison_lines(comparison):
            self._print(Text(plain(line)))

    def lines(self, event: str, fields: Mapping[str, Any], lines: Sequence[str]) -> None:  # noqa: ARG002
        self._end_live()
        for line in lines:
            self._print(Text(plain(line)))

    def diff(self, name: str, before: str, after: str) -> None:
        self._print(draw_diff(unified(name, before, after)))

    def error(self, error: RackhandError) -> None:
        self._end_live()
        self._print(Text(plain(str(error)), style="red"))
        if error.detail.strip():
            hidden = plain(error.detail.rstrip()) if self._verbose else "(--verbose shows more)"
            self._print(Text(hidden, style="dim"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_live()

    def _draw_live(self) -> None:
        group = Group(*(draw_view(view) for _, view in sorted(self._views.items())))
        if self._live is None:
            self._live = Live(group, console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        self._live.update(group, refresh=True)

    def _end_live(self) -> None:
        with self._lock:
            live, self._live = self._live, None
            if live is not None:
                live.stop()

    def _print(self, what: RenderableType) -> None:
        with self._lock:
            self._console.print(what)


def draw_view(view: View, *, dated: bool = False) -> RenderableType:
    """One host's table with its title and the lines below. 80 columns hold all of it."""
    when = time.strftime("%Y-%m-%d %H:%M:%S" if dated else "%H:%M:%S", time.localtime(view.time))
    table = Table(box=None, padding=(0, 1, 0, 0), show_footer=bool(view.rows), pad_edge=False)
    for at, name in enumerate(COLUMNS):
        left = at <= 1
        table.add_column(
            name,
            view.totals[at],
            justify="left" if left else "right",
            header_style="dim",
            footer_style="bold",
            no_wrap=True,
        )
    for style, cells in view.rows:
        first, state, *rest = cells
        table.add_row(first, Text(state, style=style), *rest)
    title = Text.assemble((plain(view.where), "bold cyan"), f"  {when}")
    lines = [Text(plain(line)) for line in view.lines]
    if not view.rows:
        return Group(title, Text("no GPU to be seen"), *lines)
    return Group(title, table, *lines)


def draw_table(title: str, columns: Sequence[str], rows: Rows) -> RenderableType:
    table = Table(title=plain(title) or None, title_justify="left", box=box.SIMPLE, pad_edge=False)
    for name in columns:
        table.add_column(plain(name))
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    return table


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


def draw_diff(lines: Sequence[str]) -> RenderableType:
    return Text("\n").join(Text(plain(line), style=style_of(f"    {line}")) for line in lines)
