"""Diagnoses, comparisons of runs and what a history holds, as lines of text."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rackhand.advised import as_typed
from rackhand.arguments import gpu_ranges
from rackhand.compare import BEYOND, LEAST_BLOCKS, Line, RunComparison
from rackhand.contract.watch import Sample
from rackhand.diagnose import Diagnosis, Verdict
from rackhand.inventory import Baseline
from rackhand.place import COMMAND
from rackhand.recording import Happening, Run
from rackhand.render.words import UNKNOWN, duration, number
from rackhand.report import Comparison

DIGITS: Mapping[str, int] = {
    "running per GPU": 1,
    "completions/s": 2,
    "tokens per joule": 2,
    "KV usage": 2,
    "mamba usage": 2,
    BEYOND: 2,
    "ETA h": 1,
}
TOLD_AFTER_A_CHANGE = (
    "running per GPU",
    "tok/s per GPU",
    BEYOND,
    "tok/s in all",
    "completions/s",
    "output tokens each",
)
NEGLIGIBLE = 0.01
"""A difference that is no chance and yet not worth a word."""
TOO_EARLY = "too early to say what limits the run"
NOTHING = "nothing stands out: no rule finds a limit"


def with_commands(found: Diagnosis, *, gpus: int, where: str = "", job: str = "") -> Diagnosis:
    """Advice as it can be typed: for the host at `where`, the GPUs that it is about, and the job that is at work there.
    `gpus` is how many there are."""
    host = where.partition("/")[0]
    verdicts = []
    for verdict in found.verdicts:
        some = "" if not verdict.gpus or len(verdict.gpus) == gpus else f" --gpus {','.join(map(str, verdict.gpus))}"
        advice = tuple(
            replace(
                a, do=as_typed(re.sub(r"^--set ", f"./inv restart-servers{some} --set ", a.do), hosts=host, job=job)
            )
            for a in verdict.advice
        )
        verdicts.append(replace(verdict, advice=advice))
    return replace(found, verdicts=tuple(verdicts))


def job_at_work(sample: Sample) -> str:
    """The job that advice is about: one that runs, else the first; "" without one."""
    running = [
        job.name for job in sample.jobs if (job.progress or {}).get("status") in ("running", "draining", "paused")
    ]
    return next(iter([*running, *(job.name for job in sample.jobs)]), "")


def verdict_line(found: Diagnosis, *, gpus: int, where: str = "", job: str = "") -> str:
    """One line for a live table: what limits, what comes next, what to try; "" before anything can be said."""
    found = with_commands(found, gpus=gpus, where=where, job=job)
    if not found.now:
        return f"verdict: {NOTHING}" if found.course == "steady" else ""
    parts = [f"{v.name}{_on(v, gpus)}: {v.says}" for v in found.now[:2]]
    later = [v.name for v in found.verdicts if v.stage == "next"]
    tail = [f"next {later[0]}"] if later else []
    tail.append(f"try {found.now[0].advice[0].do}" if found.now[0].advice else f"{COMMAND} diagnose says more")
    return "verdict: " + "; ".join([*parts, *tail])


def diagnosis_lines(found: Diagnosis, *, gpus: int, where: str = "", job: str = "") -> list[str]:
    """Every verdict with its evidence, what to try, the effect and the cost."""
    found = with_commands(found, gpus=gpus, where=where, job=job)
    lines = [f"the run is {found.course}; {found.samples} samples over {found.seconds:.0f} s"]
    if not found.verdicts:
        return [*lines, TOO_EARLY if found.course in ("unknown", "ramping", "draining") else NOTHING]
    for verdict in found.verdicts:
        lines += _verdict_lines(verdict, gpus)
    return lines


def _verdict_lines(verdict: Verdict, gpus: int) -> Iterator[str]:
    when = "NOW " if verdict.stage == "now" else "NEXT"
    yield f"{when} {verdict.name}{_on(verdict, gpus)} ({verdict.confidence} confidence): {verdict.says}"
    yield from (f"     seen: {line}" for line in verdict.evidence)
    yield from (f"     log: {line}" for line in verdict.lines)
    for at, advice in enumerate(verdict.advice):
        effect = f" -> {advice.effect}" if advice.effect else ""
        yield f"     {'try' if at == 0 else 'or'}: {advice.do}{effect}; costs: {advice.cost}"


def _on(verdict: Verdict, gpus: int) -> str:
    if not verdict.gpus or len(verdict.gpus) == gpus:
        return ""
    return f" on GPU {','.join(map(str, verdict.gpus))}"


def comparison_of(
    found: RunComparison, names: tuple[str, str], *, changed: Sequence[str] = (), baselines: Sequence[Baseline] = ()
) -> Comparison:
    """The table: both runs, B / A with its interval, and a word on it."""
    rows: list[tuple[str, tuple[str, ...]]] = [(name, _cells(line)) for name, line in _told_lines(found)]
    total = found.line("tok/s in all")
    for baseline in baselines:
        shares = tuple(f"{100 * v / baseline.tok_s:.1f} %" if v else UNKNOWN for v in (total.a, total.b))
        expected = "" if baseline.expected_share is None else f"{100 * baseline.expected_share:g} % expected"
        rows.append((f"share of {baseline.name}", (*shares, "", expected)))
    notes = [f"equal steady windows of {found.seconds:.0f} s, {found.blocks} blocks of 10 s each"]
    if found.blocks < LEAST_BLOCKS:
        notes.append("too little steady time to tell a difference from chance")
    notes += [f"changed: {', '.join(changed)}"] if changed else ["no flag and no concurrency changed"]
    return Comparison("runs compared", (*names, "B / A (95 %)", ""), tuple(rows), tuple(notes))


def _cells(line: Line) -> tuple[str, str, str, str]:
    digits = DIGITS.get(line.name, 0)
    ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
    if line.low is not None and line.high is not None:
        ratio += f" [{line.low:.2f}, {line.high:.2f}]"
    return number(line.a, digits), number(line.b, digits), ratio, _word(line)


def _word(line: Line) -> str:
    if line.differs is None or line.ratio is None:
        return ""
    if not line.differs:
        return "no difference"
    if abs(line.ratio - 1) < NEGLIGIBLE:
        return f"within {NEGLIGIBLE:.0%}"
    return "more" if line.ratio > 1 else "less"


def before_after_facts(found: RunComparison) -> dict[str, str]:
    """The lines of a comparison that tell whether a change helped: `31.8 -> 63.8, x2.01 [2.00, 2.02] more`."""
    cells = {name: _cells(line) for name, line in _told_lines(found) if line.name in TOLD_AFTER_A_CHANGE}
    return {
        name: f"{a} -> {b}, x{ratio} {word}".rstrip() if ratio else f"{a} -> {b}"
        for name, (a, b, ratio, word) in cells.items()
    }


def _told_lines(found: RunComparison) -> Iterator[tuple[str, Line]]:
    """With their names. A mean over GPUs that changed and GPUs that didn't tells of neither: each has its own lines."""
    split = found.split
    if split is None:
        yield from ((line.name, line) for line in found.lines)
        return
    for changed, other in zip(split.changed_lines, split.other_lines, strict=True):
        name = changed.name.removesuffix(" per GPU")
        yield f"{name}, GPU {gpu_ranges(split.changed)} changed", changed
        yield f"{name}, GPU {gpu_ranges(split.others)} as before", other
    yield split.beyond.name, split.beyond
    apart = {line.name for line in split.changed_lines}
    yield from ((line.name, line) for line in found.lines if line.name not in apart)


def changed_flags(a: Run, b: Run) -> list[str]:
    """`flag: old -> new` for what differs on any GPU, and what the generator sends."""
    found = []
    names = sorted({name for run in (a, b) for flags in run.flags.values() for name in flags})
    for name in names:
        old, new = ({flags.get(name, "-") for flags in run.flags.values()} for run in (a, b))
        if old != new:
            found.append(f"{name}: {'/'.join(sorted(old)) or '-'} -> {'/'.join(sorted(new)) or '-'}")
    if a.sent != b.sent:
        found.append(f"sent per server: {number(a.sent)} -> {number(b.sent)}")
    return found


def compared_line(found: RunComparison, a: Run, b: Run) -> str:
    """One line for a live table and a log."""
    line = found.line("tok/s per GPU")
    if line.ratio is None:
        return f"run {b.id} against run {a.id}: nothing to compare, one of them was never steady"
    on = rest = ""
    if (split := found.split) is not None:
        line, other = (
            next(one for one in lines if one.name == line.name) for lines in (split.changed_lines, split.other_lines)
        )
        on = f", GPU {gpu_ranges(split.changed)}"
        rest = "" if other.ratio is None else f"; GPU {gpu_ranges(split.others)}, unchanged: x{other.ratio:.2f}"
    what = _cells(line)
    told = f"run {b.id} against run {a.id}: tok/s per GPU{on} {what[1]} against {what[0]}, x{what[2]} {what[3]}"
    return told.rstrip() + rest


def run_lines(runs: Sequence[Run]) -> Iterator[str]:
    for at, run in enumerate(runs):
        changed = changed_flags(runs[at - 1], run) if at else []
        told = f"; {', '.join(changed)}" if changed else ""
        sent = "" if run.sent is None else f", {run.sent:.0f} sent per server"
        hours = duration((run.ended - run.began) / 3600)
        yield f"run {run.id} on {run.host}: {when(run.began)}, {hours}, {run.samples} samples{sent}{told}"


def event_lines(events: Sequence[Happening]) -> list[tuple[str, ...]]:
    """The lines of each. What happens to several GPUs in the same second is one line, at the first of them."""
    keys = [(int(event.time), event.host, event.kind, event.text) for event in events]
    gpus: dict[tuple[int, str, str, str], list[int]] = {}
    for key, event in zip(keys, events, strict=True):
        gpus.setdefault(key, []).extend(() if event.gpu is None else (event.gpu,))
    lines: list[tuple[str, ...]] = []
    for key, event in zip(keys, events, strict=True):
        found = gpus.pop(key, None)
        on = f" GPU {gpu_ranges(sorted(set(found)))}" if found else ""
        line = f"{when(event.time)} {event.host}{on} {event.kind}: {event.text}"
        lines.append(() if found is None else (line,))
    return lines


def when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def event_json(event: Happening) -> str:
    fields = {"time": event.time, "where": event.host, "gpu": event.gpu, "kind": event.kind, "text": event.text}
    return json.dumps({**fields, "data": dict(event.data), "event": "happening"}, ensure_ascii=False)
