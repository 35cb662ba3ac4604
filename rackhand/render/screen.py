"""Everything the operator sees: progress, reports, comparisons, live metrics. One screen a verb.

TextScreen writes for people: in colour on a terminal (NO_COLOR is obeyed), plain otherwise. JsonScreen writes one
object a line, each with an `event`. Both may be used from several threads.
"""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from rackhand.advised import all_as_typed
from rackhand.contract import to_json
from rackhand.contract.watch import Sample
from rackhand.inventory import Baseline, Host
from rackhand.losses import losses_of
from rackhand.report import Comparison, Report
from rackhand.steady import course_of, total_of
from rackhand.trail import Trail


class Screen(Protocol):
    def say(self, where: str, text: str) -> None:
        """Progress, as it happens."""

    def show(self, host: Host, sample: Sample) -> None:
        """One sample of one host."""

    def report(self, report: Report) -> None: ...

    def compare(self, comparison: Comparison) -> None: ...

    def lines(self, event: str, fields: Mapping[str, Any], lines: Sequence[str]) -> None:
        """Lines for people; for programs one object with `fields`."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def screen(*, json: bool = False, verbose: bool = False, baselines: Sequence[Baseline] = ()) -> Screen:
    """The screen of a verb on stdout. `baselines` are what show compares token rates with."""
    _never_fail_on(sys.stdout)
    if json:
        return JsonScreen(sys.stdout, baselines=baselines)
    from rackhand.render.text import TextScreen

    return TextScreen(sys.stdout, verbose=verbose, baselines=baselines)


class JsonScreen:
    def __init__(self, out: TextIO, *, baselines: Sequence[Baseline] = ()) -> None:
        self._out, self._baselines, self._lock = out, baselines, threading.Lock()
        self._trails: dict[str, Trail] = {}

    def say(self, where: str, text: str) -> None:
        self._write("progress", {"where": where, "text": text})

    def show(self, host: Host, sample: Sample) -> None:
        trail = self._trails.setdefault(host.where, Trail())
        trail.take(sample)
        rate = total_of(sample, "tok_s")
        shares = {
            b.name: {"share": None if rate is None else round(rate / b.tok_s, 4), "expected": b.expected_share}
            for b in self._baselines
        }
        totals = {name: total_of(sample, name) for name in ("running", "cap", "queue", "tok_s")}
        fields = {"where": host.where, **to_json(sample), "total": totals, "baselines": shares}
        for job in fields["jobs"]:
            eta = trail.eta(job["name"])
            job |= {"eta_s": eta.eta_s, "eta_low_s": eta.low_s, "eta_high_s": eta.high_s, "eta_why": eta.why}
        samples = trail.samples
        self._write("sample", {**fields, "course": course_of(samples), "losses": losses_of(samples).as_json()})

    def report(self, report: Report) -> None:
        self._write("report", report.as_json())

    def compare(self, comparison: Comparison) -> None:
        rows = {label: dict(zip(comparison.phases, cells, strict=True)) for label, cells in comparison.rows}
        self._write("comparison", {"title": comparison.title, "rows": rows, "notes": list(comparison.notes)})

    def lines(self, event: str, fields: Mapping[str, Any], lines: Sequence[str]) -> None:  # noqa: ARG002
        self._write(event, fields)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._out.flush()

    def _write(self, event: str, fields: Mapping[str, Any]) -> None:
        line = json.dumps(all_as_typed({**fields, "event": event}), ensure_ascii=False)
        with self._lock:
            self._out.write(line + "\n")
            self._out.flush()


def _never_fail_on(out: TextIO) -> None:
    """A terminal that can't show a character gets a `?`."""
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="replace")
