"""The demo's three phases: what is set, what the field report says of it, what was measured, and the table of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rackhand.arguments import FlagValue
from rackhand.diagnose import Verdict
from rackhand.report import Comparison

GPUS = 8
TOLERANCE = 0.10
"""How far running requests and token rates may be from the report's."""


LABELS = {
    "sent": "sent per server",
    "running_of_cap": "running / cap per GPU",
    "rate_per_gpu": "tok/s per GPU",
    "rate_in_all": "tok/s in all",
    "completions": "completions/s",
    "kv": "KV usage",
    "mamba": "mamba usage",
    "share": "share of the B200 machine",
    "completed": "completed",
}
"""Row of the table → its label. Measured.cells has a text for each, Reported for those that the report gives."""


@dataclass(frozen=True, slots=True)
class Reported:
    """The field report's figures, as numbers for the bars and in its words; tok/s are the servers'."""

    running: int
    tok_s_per_gpu: float
    tok_s_total: float
    running_of_cap: str
    rate_per_gpu: str
    rate_in_all: str
    completions: str
    kv: str
    mamba: str
    share: str


@dataclass(frozen=True, slots=True)
class Phase:
    """`settings` are restart-servers' --set; none: the inventory's. `reported` None: the report has no such run.
    `diagnosis`: stage and name of each verdict that there must be, and words of it; no other may be there."""

    name: str
    concurrency: int | Literal["auto"]
    settings: Mapping[str, FlagValue]
    reported: Reported | None
    diagnosis: tuple[tuple[Literal["now", "next"], str, str], ...]


PHASES = (
    Phase(
        name="before",
        concurrency=32,
        settings={},
        reported=Reported(32, 670, 5360, "32 / 37", "650-680", "5,360", "1.7", "0.20-0.21", "0.61", "15.6 %"),
        diagnosis=(
            ("now", "client-bound", "5 slots per GPU stand empty"),
            ("next", "state-bound", "cap 37 = 187 state slots // 5"),
        ),
    ),
    Phase(
        name="after",
        concurrency=64,
        settings={
            "mamba-scheduler-strategy": "no_buffer",
            "mem-fraction-static": 0.90,
            "max-running-requests": 128,
            "chunked-prefill-size": 8192,
        },
        reported=Reported(64, 1175, 9400, "64 / 72", "1,155-1,196", "9,400", "2.9", "0.36-0.49", "0.59", "37.6 %"),
        diagnosis=(
            ("now", "client-bound", "8 slots per GPU stand empty"),
            ("next", "state-bound", "cap 72 = 218 state slots // 3"),
        ),
    ),
    Phase(
        name="auto",
        concurrency="auto",
        settings={},
        reported=None,
        diagnosis=(("now", "state-bound", "cap 72 = 218 state slots // 3"),),
    ),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One phase once it has settled: means over GPUs and over the window. Usages are shares of 1; None is unknown."""

    phase: Phase
    cap_per_gpu: float
    running_per_gpu: float
    tok_s_per_gpu: float
    tok_s_total: float
    completions_per_s: float | None
    kv_usage: float | None
    mamba_usage: float | None
    completed: int
    settled: bool
    verdicts: tuple[Verdict, ...]

    def missed(self) -> list[str]:
        """The bars that this phase misses, each as a line; empty when it meets them."""
        return [*self._missed_figures(), *self._missed_diagnosis()]

    def told(self) -> list[str]:
        """A line for each verdict."""
        lines = ("; ".join((f"{v.stage.upper()} {v.name}: {v.says}", *v.evidence[:1])) for v in self.verdicts)
        return [f"{self.phase.name}: {line}" for line in lines]

    def _missed_diagnosis(self) -> list[str]:
        wanted, told = self.phase.diagnosis, self.told()
        found = [(verdict.stage, verdict.name) for verdict in self.verdicts]
        whole = all(any(words in line for line in told) for _, _, words in wanted)
        if whole and found == [(stage, name) for stage, name, _ in wanted]:
            return []
        names = ", ".join(f"{name} ({stage}: {words})" for stage, name, words in wanted)
        return [f"{self.phase.name}: the diagnosis isn't {names}, but: {' | '.join(told) or 'nothing'}"]

    def _missed_figures(self) -> list[str]:
        reported = self.phase.reported
        if reported is None:
            return []
        pairs = (
            ("running per GPU", self.running_per_gpu, float(reported.running)),
            ("tok/s per GPU", self.tok_s_per_gpu, reported.tok_s_per_gpu),
            ("tok/s in all", self.tok_s_total, reported.tok_s_total),
        )
        return [
            f"{self.phase.name}: {label} {found:,.0f} is not within {TOLERANCE:.0%} of the report's {wanted:,.0f}"
            for label, found, wanted in pairs
            if abs(found - wanted) > TOLERANCE * wanted
        ]

    def cells(self, baseline_tok_s: float) -> dict[str, str]:
        return {
            "sent": str(self.phase.concurrency),
            "running_of_cap": f"{self.running_per_gpu:.1f} / {self.cap_per_gpu:.0f}",
            "rate_per_gpu": f"{self.tok_s_per_gpu:,.0f}",
            "rate_in_all": f"{self.tok_s_total:,.0f}",
            "completions": _number(self.completions_per_s, 1),
            "kv": _number(self.kv_usage, 2),
            "mamba": _number(self.mamba_usage, 2),
            "share": f"{100 * self.tok_s_total / baseline_tok_s:.1f} %",
            "completed": f"{self.completed:,}",
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.phase.name,
            "cap_per_gpu": self.cap_per_gpu,
            "running_per_gpu": round(self.running_per_gpu, 2),
            "tok_s_per_gpu": round(self.tok_s_per_gpu, 1),
            "tok_s_total": round(self.tok_s_total, 1),
            "completed": self.completed,
            "diagnosis": self.told(),
        }


NOTES = (
    "in brackets: the field report. Running, tok/s per GPU and in all are held to within 10 % of it (before, after).",
    "tok/s is what the servers say while decoding; the report's client saw 3,900 (before) and 7,714 (after).",
    "the report's 15.6 % is its client's share, 37.6 % its servers'; here both are the servers'.",
    "completions here have about {mean_tokens:.0f} tokens, the report's about 2,660, so that the run fits in minutes:",
    "hence more completions/s, and fewer KV tokens in use.",
)


def compare(measured: Sequence[Measured], *, baseline_tok_s: float, mean_tokens: float) -> Comparison:
    """The table: one column a phase, the report's figures in brackets. `baseline_tok_s` is the B200 machine's rate."""
    columns = [(one.cells(baseline_tok_s), one.phase.reported) for one in measured]
    table = []
    for key, label in LABELS.items():
        told = [(cells[key], getattr(reported, key, None)) for cells, reported in columns]
        table.append((label, tuple(f"{cell} ({report})" if report else cell for cell, report in told)))
    notes = tuple(note.format(mean_tokens=mean_tokens) for note in NOTES)
    names = tuple(one.phase.name for one in measured)
    return Comparison("8 x RTX PRO 6000, simulated; SGLang 0.5.11, simulated", names, tuple(table), notes)


def _number(value: float | None, digits: int) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"
