"""Samples → what limits the run, with evidence and the change to try. Pure.

Every GPU's figures (figures.py) are asked against every rule (rules.py, limits.py), which are data. GPUs with the
same verdict and nearly the same cap share one. docs/diagnose.md lists figures, rules and thresholds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from rackhand.contract.watch import Sample
from rackhand.diagnose.figures import (
    LEAST_SAMPLES,
    gpu_figures,
    gpu_words,
    host_figures,
    host_words,
    mean_figures,
    projected,
)
from rackhand.diagnose.limits import CAPS, FEEDING, MEMORY, STEPS
from rackhand.diagnose.rule import Rule, holds, is_there, render_words
from rackhand.diagnose.rules import BROKEN, HARDWARE
from rackhand.steady import Course, course_of, last_seconds

WINDOW_S = 30.0
RULES: tuple[Rule, ...] = (*BROKEN, *HARDWARE, *MEMORY, *STEPS, *FEEDING, *CAPS)
FED_TOO_LITTLE = frozenset({"client-bound", "client-slow"})
LINES = 3
ALIKE = 1.1
NO_TEXTS: Mapping[str, str] = MappingProxyType({})

Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to try, the effect to expect, what it costs."""

    do: str
    effect: str
    cost: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """`stage` now: this limits the run; next: this will when the `now` is mended. `gpus` is empty when it is the whole
    host's. `evidence` are figures over the window, `lines` the log's own of one of these GPUs. The first of `advice`
    is the one to try first."""

    name: str
    stage: Literal["now", "next"]
    gpus: tuple[int, ...]
    says: str
    evidence: tuple[str, ...]
    lines: tuple[str, ...]
    confidence: Confidence
    advice: tuple[Advice, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `samples` of one host over `seconds` show. No verdict: nothing that a rule knows limits it, or, with an
    unknown course, it is too early to say."""

    course: Course
    seconds: float
    samples: int
    verdicts: tuple[Verdict, ...]

    @property
    def now(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.stage == "now")


def diagnose(samples: Sequence[Sample], *, window_s: float = WINDOW_S) -> Diagnosis:
    """Of the last `window_s` seconds of one host's samples, which are in order of time."""
    window = last_seconds(samples, window_s)
    gpus = gpu_figures(window)
    figures = host_figures(window, gpus)
    of_host = [rule for rule in RULES if rule.scope == "host" and holds(rule.when, figures)]
    met = {gpu: _met(own, of_host) for gpu, own in gpus.items()}
    alike = _alike(window)
    verdicts: list[Verdict] = []
    for rule in RULES:
        if rule in of_host:
            verdicts.append(_verdict(rule, "now", (), figures, (), texts=host_words(window)))
            continue
        for hit in alike:
            if those := tuple(gpu for gpu in hit if rule.name in met[gpu]):
                figures_of = mean_figures([gpus[gpu] for gpu in those])
                lines = _lines(window, those)
                verdicts.append(_verdict(rule, "now", those, figures_of, lines, texts=gpu_words(window, those)))
    underfed = {gpu: projected(gpus[gpu]) for gpu in gpus if FED_TOO_LITTLE & met[gpu]}
    verdicts += _next(underfed, alike)
    seconds = window[-1].time - window[0].time if window else 0.0
    return Diagnosis(course_of(samples, window_s=window_s), seconds, len(window), tuple(verdicts))


def _met(figures: Mapping[str, float], of_host: Sequence[Rule] = ()) -> frozenset[str]:
    """The GPU rules that hold, without those that one of the host's or an earlier one hides."""
    met: list[Rule] = []
    for rule in RULES:
        if rule.scope != "gpu" or any({rule.name, "*"} & other.hides for other in (*of_host, *met)):
            continue
        if is_there(rule.needs, figures) and holds(rule.when, figures):
            met.append(rule)
    return frozenset(rule.name for rule in met)


def _alike(window: Sequence[Sample]) -> list[tuple[int, ...]]:
    """GPUs by cap, each group's at most ALIKE times its least, unknown ones apart: a mean over unlike servers is the
    cap of none."""
    gpus = sorted(window[-1].gpus, key=lambda gpu: gpu.cap or 0) if window else []
    found: list[list[int]] = []
    least = 0
    for gpu in gpus:
        cap = gpu.cap or 0
        if not found or cap > ALIKE * least:
            found.append([])
            least = cap
        found[-1].append(gpu.gpu)
    return sorted(tuple(sorted(group)) for group in found)


def _next(underfed: Mapping[int, Mapping[str, float]], alike: Sequence[tuple[int, ...]]) -> Iterator[Verdict]:
    """The limit that each underfed GPU meets first when it gets more requests."""
    met = {gpu: _met(figures) for gpu, figures in underfed.items()}
    for rule in RULES:
        for hit in alike if rule.is_limit else ():
            if those := tuple(gpu for gpu in hit if gpu in underfed and rule.name in met[gpu]):
                yield _verdict(rule, "next", those, mean_figures([underfed[gpu] for gpu in those]), ())


def _verdict(
    rule: Rule,
    stage: Literal["now", "next"],
    gpus: tuple[int, ...],
    figures: Mapping[str, float],
    lines: tuple[str, ...],
    *,
    texts: Mapping[str, str] = NO_TEXTS,
) -> Verdict:
    words: dict[str, float | str] = {**figures, **texts, "gpus": ",".join(map(str, gpus))}
    evidence: list[str] = []
    for line in rule.evidence:
        text = render_words(line, words)
        if text is not None and not any(text in other for other in evidence):
            evidence.append(text)
    return Verdict(
        name=rule.name,
        stage=stage,
        gpus=gpus,
        says=render_words(rule.says, words) or rule.name,
        evidence=tuple(evidence),
        lines=lines,
        confidence=_confidence(rule, figures),
        advice=tuple(_advice(rule, figures, words)),
    )


def _advice(rule: Rule, figures: Mapping[str, float], words: Mapping[str, float | str]) -> Iterator[Advice]:
    """Those whose needs are there, whose condition holds and whose figures are known; one that is about a flag nobody
    knows is kept."""
    for change in rule.changes:
        if not is_there(change.needs, figures):
            continue
        unknown = all(condition.figure not in figures for group in change.when for condition in group)
        do = render_words(change.do, words)
        if do is not None and (holds(change.when, figures) or unknown):
            yield Advice(do, render_words(change.effect, words) or "", change.cost)


def _confidence(rule: Rule, figures: Mapping[str, float]) -> Confidence:
    if figures.get("samples", 0) < LEAST_SAMPLES:
        return "low"
    return "high" if holds(rule.sure, figures) else "medium"


def _lines(window: Sequence[Sample], gpus: Sequence[int]) -> tuple[str, ...]:
    first = next((gpu for gpu in window[-1].gpus if gpu.gpu in gpus and gpu.lines), None)
    return first.lines[:LINES] if first else ()
