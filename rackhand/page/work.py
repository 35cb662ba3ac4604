"""What came of the job, over all runs of its generator that were recorded: finish reasons, lengths, failures. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rackhand.contract.job import bad_lines_of
from rackhand.contract.watch import Sample
from rackhand.outcomes import ALL

NO_LENGTHS = "no lengths of outputs in this recording: the generator that wrote progress.json doesn't count them"


def work_of(samples: Sequence[Sample]) -> dict[str, Any]:
    """Totals of the last progress.json of every generator process. `lengths` is None where no generator counted them;
    a class is named by the most tokens in it."""
    runs = _last_progress_of_runs(samples)
    servers = [server for run in runs for server in _servers(run).values()]
    reasons = _added(server.get("finish_reasons") for server in servers)
    lengths = _added(server.get("output_lengths") for server in servers)
    latest = runs[-1] if runs else {}
    return {
        "generators": len(runs),
        "progress": {name: latest.get(name) for name in ("total", "status", "eta_hours", "rate_per_sec", "message")},
        "completed": _whole(latest, "completed") if runs else None,
        "failures": {
            "failed prompts": _whole(latest, "failed"),
            "rejected prompts": _sum(runs, "rejected"),
            "lines that could not be read": latest.get("bad_lines", 0),
            "requests asked again": _sum(runs, "retries"),
            "failed requests": sum(server.get("failures", 0) for server in servers),
            "empty completions": sum(server.get("empty", 0) for server in servers),
        },
        "unread": bad_lines_of(latest),
        "errors": [_error(url, server) for url, server in sorted(_servers(latest).items()) if server.get("last_error")],
        "finish_reasons": [{"reason": reason, "count": count} for reason, count in reasons.most_common()],
        "lengths": _classes(lengths) if lengths else None,
        "lengths_missing": "" if lengths else NO_LENGTHS,
    }


def _last_progress_of_runs(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    runs: dict[tuple[str, object], dict[str, Any]] = {}
    for sample in samples:
        for job in sample.jobs:
            if job.progress is not None:
                key = (job.output, job.progress.get("pid"))
                runs.pop(key, None)
                runs[key] = job.progress
    return list(runs.values())


def _error(url: str, server: dict[str, Any]) -> str:
    return str(server["last_error"]) if url == ALL else f"{url}: {server['last_error']}"


def _classes(lengths: Counter[str]) -> dict[str, list[int]]:
    """Every class from the shortest to the longest found, those without a completion too."""
    found = {int(most): count for most, count in lengths.items()}
    most, classes = min(found), [min(found)]
    while most < max(found):
        most = max(1, 2 * most)
        classes.append(most)
    return {"most_tokens": classes, "completions": [found.get(most, 0) for most in classes]}


def _servers(progress: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return progress.get("servers") or {}


def _whole(progress: dict[str, Any], counter: str) -> int:
    """With what runs before this one had."""
    return int(progress.get(counter, 0)) + int(progress.get(f"{counter}_before", 0))


def _sum(runs: Sequence[dict[str, Any]], counter: str) -> int:
    return sum(int(run.get(counter, 0)) for run in runs)


def _added(several: Any) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in several:
        total.update(one or {})
    return total
