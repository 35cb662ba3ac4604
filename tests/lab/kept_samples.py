"""Samples of a lab run as data for the quick tests: tests/diagnose/lab."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rackhand.contract import to_json
from rackhand.contract.watch import Sample

Told = list[tuple[str, str, tuple[int, ...]]]
"""Name, stage and GPUs of each verdict."""


def keep_samples(path: Path, samples: Sequence[Sample], wanted: Told, *, window_s: float) -> None:
    """As tests/diagnose/lab has them: what stays the same on a GPU stands once, in `gpus`."""
    rows = [_short(sample) for sample in samples]
    gpus = [_constant([row["gpus"][at] for row in rows]) for at in range(len(rows[0]["gpus"]))]
    for row in rows:
        row["gpus"] = [
            {name: value for name, value in gpu.items() if name not in gpus[at]} for at, gpu in enumerate(row["gpus"])
        ]
    case = {"window_s": window_s, "expect": wanted, "gpus": gpus, "samples": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, separators=(",", ":")) for row in case.pop("samples")]
    path.write_text(f'{json.dumps(case)[:-1]}, "samples": [\n{f",{chr(10)}".join(lines)}\n]}}\n')


def _constant(gpus: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = gpus[0]
    return {name: value for name, value in first.items() if all(gpu.get(name) == value for gpu in gpus)}


def _short(sample: Sample) -> dict[str, Any]:
    """Without what is empty and what no rule reads."""
    row: dict[str, Any] = _told_only({**to_json(sample), "watcher": None})
    for job in row.get("jobs", ()):
        progress = job.get("progress", {})
        servers = {url: {"limit": s.get("limit")} for url, s in progress.get("servers", {}).items()}
        job["progress"] = _told_only(
            {name: progress.get(name) for name in ("status", "message")} | {"servers": servers}
        )
    return row


def _told_only(value: Any) -> Any:
    if isinstance(value, dict):
        told_of = {name: _told_only(one) for name, one in value.items()}
        return {name: one for name, one in told_of.items() if one not in (None, "", [], {})}
    return [_told_only(one) for one in value] if isinstance(value, list | tuple) else value
