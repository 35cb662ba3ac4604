"""Which charts a page has, as data: the drawing side knows none of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Lines = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Chart:
    """`lines` are names of the host's series and labels; `dashed` names one of them. `factor` makes the unit of the
    data's."""

    id: str
    title: str
    says: str
    unit: str
    lines: Mapping[str, str]
    dashed: str = ""
    factor: int = 1


CHARTS = (
    Chart(
        "running",
        "Running against cap",
        "requests that a server runs and may run at once, means over the live servers",
        "requests",
        {"running": "running", "cap": "cap"},
        dashed="cap",
    ),
    Chart(
        "memory",
        "KV against mamba",
        "used shares of the token pool and of the state pool, means over the live servers",
        "%",
        {"kv_usage": "KV", "mamba_usage": "mamba"},
        factor=100,
    ),
    Chart("queue", "Queue", "requests that wait in the servers, in all", "requests", {"queue": "queue"}),
    Chart("power", "Power", "of all GPUs together", "W", {"power_w": "power"}),
    Chart(
        "completions",
        "Completions",
        "prompts finished and failed, the runs before included",
        "prompts",
        {"completed": "completed", "failed": "failed"},
        dashed="failed",
    ),
)


def charts_of(gpus: Sequence[int], host: Lines) -> list[dict[str, Any]]:
    """Each chart: id, title, says (what is drawn), unit, factor (data to unit), stacked, lines (label, path in the
    data, dashed). A line without a single known value is left out, and so is a chart without lines."""
    per_gpu = [_line(f"GPU {gpu}", ("gpu", str(gpu), "tok_s")) for gpu in gpus]
    throughput = Chart("throughput", "Throughput", "decoded by the servers, the GPUs on top of each other", "tok/s", {})
    found = [_chart(throughput, per_gpu if _is_known(host["tok_s"]) else [], stacked=True)]
    for chart in CHARTS:
        known = [(name, label) for name, label in chart.lines.items() if _is_known(host[name])]
        lines = [_line(label, ("host", name), dashed=name == chart.dashed) for name, label in known]
        found.append(_chart(chart, lines, stacked=False))
    return [chart for chart in found if chart["lines"]]


def _chart(chart: Chart, lines: list[dict[str, Any]], *, stacked: bool) -> dict[str, Any]:
    named = {"id": chart.id, "title": chart.title, "says": chart.says, "unit": chart.unit, "factor": chart.factor}
    return {**named, "stacked": stacked, "lines": lines}


def _line(label: str, path: tuple[str, ...], *, dashed: bool = False) -> dict[str, Any]:
    return {"label": label, "path": list(path), "dashed": dashed}


def _is_known(line: Sequence[float | None]) -> bool:
    return any(value is not None for value in line)
