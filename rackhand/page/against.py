"""The newest run against the one before it, by compare.py. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rackhand.arguments import gpu_ranges
from rackhand.compare import Line, changed_gpus, compare
from rackhand.contract.watch import Sample
from rackhand.page.runs import steady_of, within_run
from rackhand.recording import Run

NAMES: Mapping[str, str] = {
    "running per GPU": "running",
    "tok/s per GPU": "tok_s_per_gpu",
    "tok/s per GPU p10": "tok_s_p10",
    "tok/s per GPU p90": "tok_s_p90",
    "tok/s in all": "tok_s_total",
    "completions/s": "completions_s",
    "output tokens each": "output_tokens",
    "GPU util %": "util_pct",
    "power W": "power_w",
    "tokens per joule": "tokens_per_joule",
}
"""compare.py's names → a run's figures."""


def against(
    samples: Sequence[Sample], runs: Sequence[Mapping[str, Any]], recorded: Sequence[Run] = ()
) -> dict[str, Any] | None:
    """Names of both runs, `seconds` of the equal steady windows, and by figure: ratio, low, high, differs. None
    without two runs; `seconds` is 0, and there are no figures, when one was never steady. `recorded` tells the flags by
    GPU: where only some have changed, `split` names those and the others, the figures a GPU are of those that changed,
    and `tok_s_others` and `tok_s_beyond` tell of the others, and of one change over the other."""
    if len(runs) < 2:
        return None
    before, after = runs[-2:]
    names = {"before": before["name"], "after": after["name"]}
    if not (before["steady"] and after["steady"]):
        return {**names, "seconds": 0, "figures": {}}
    flags = {run.id: run.flags for run in recorded}
    changed = changed_gpus(*(flags.get(run["number"], {}) for run in (before, after)))
    windows = (steady_of(within_run(samples, run["from"], run["to"])) for run in (before, after))
    found = compare(*windows, changed=changed)
    lines = {NAMES[line.name]: _plain(line) for line in found.lines if line.name in NAMES}
    plain = {**names, "seconds": round(found.seconds), "figures": lines}
    if (split := found.split) is None:
        return plain
    lines |= {NAMES[line.name]: _plain(line) for line in split.changed_lines}
    others = {NAMES[line.name]: _plain(line) for line in split.other_lines}
    lines |= {"tok_s_others": others["tok_s_per_gpu"], "tok_s_beyond": _plain(split.beyond)}
    return {**plain, "split": {"changed": gpu_ranges(split.changed), "others": gpu_ranges(split.others)}}


def _plain(line: Line) -> dict[str, Any]:
    numbers = {"ratio": line.ratio, "low": line.low, "high": line.high}
    return {name: None if value is None else round(value, 4) for name, value in numbers.items()} | {
        "differs": line.differs
    }
