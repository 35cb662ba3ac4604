"""Figures as words. None is `?` everywhere: unknown is never zero."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rackhand.advised import as_typed
from rackhand.contract.job import OVER, bad_lines_of, real_of, whole_of
from rackhand.eta import Eta
from rackhand.losses import Losses

UNKNOWN = "?"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """Text from afar without control characters, which could drive the terminal; new lines and tabs stay. Commands
    in it are made whole."""
    return as_typed(_CONTROL.sub("\ufffd", text))


def number(value: float | None, digits: int = 0) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def percent(share: float | None) -> str:
    """A share from 0 to 1."""
    return UNKNOWN if share is None else f"{100 * share:.0f}%"


def of(part: float | None, whole: float | None) -> str:
    return f"{number(part)}/{number(whole)}"


def gib(used_mib: int | None, total_mib: int | None) -> str:
    """`83.2/95.6`, in GiB."""
    used = None if used_mib is None else used_mib / 1024
    total = None if total_mib is None else total_mib / 1024
    return f"{number(used, 1)}/{number(total, 1)}"


def duration(hours: float | None) -> str:
    if hours is None:
        return "unknown"
    if hours < 1 / 30:
        return f"{hours * 3600:.0f} s"
    if hours < 2:
        return f"{hours * 60:.0f} min"
    return f"{hours:,.1f} h"


def eta_words(eta: Eta) -> str:
    """`ETA 61 h (55-70 h)`, or what it waits for."""
    if eta.eta_s is None or eta.low_s is None or eta.high_s is None:
        return f"ETA unknown ({eta.why})" if eta.why else "ETA unknown"
    unit, name = (3600, "h") if eta.high_s >= 7200 else (60, "min") if eta.high_s >= 120 else (1, "s")
    times = [value / unit for value in (eta.eta_s, eta.low_s, eta.high_s)]
    middle, low, high = (number(value, int(unit > 1 and times[2] < 10)) for value in times)
    return f"ETA {middle} {name} ({low}-{high} {name})"


def losses_words(losses: Losses) -> str:
    """Where the tokens stay, from what is possible to what the client gets; "" while no server decodes."""
    if losses.server_tok_s is None or not losses.server_tok_s:
        return ""
    words = f"tok/s: at most {number(losses.possible_tok_s)}"
    for value, name in (
        (losses.prefill_tok_s, "prefill"),
        (losses.queue_tok_s, "queue"),
        (losses.idle_slots_tok_s, "idle slots"),
    ):
        words += _less(value, name)
    words += f" = {number(losses.server_tok_s)} at the servers"
    if losses.client_tok_s is None:
        return words
    for value, name in (
        (losses.in_flight_tok_s, "still in flight"),
        (losses.thrown_away_tok_s, "thrown away"),
        (losses.rest_tok_s, "rest"),
    ):
        words += _less(value, name)
    return f"{words} = {number(losses.client_tok_s)} at the client"


def _less(value: float | None, name: str) -> str:
    if value is None:
        return f" - {UNKNOWN} {name}"
    return f" {'-' if value > -0.5 else '+'} {number(abs(value))} {name}"


def job_words(progress: Mapping[str, Any] | None, age_s: float | None, eta: Eta) -> str:
    """One line on a job from its progress.json; the rate is the generator's own, and of a run that goes on."""
    if progress is None:
        return "not started, or its progress.json can't be read"
    if progress.get("status") == "starting":
        return f"starting (pid {progress.get('pid')})"
    done = whole_of(progress, "completed")
    before = whole_of(progress, "completed_before") or 0
    total = whole_of(progress, "total")
    finished = None if done is None else done + before
    parts = [f"{plain(str(progress.get('status', UNKNOWN)))}: {number(finished)} of {number(total)} done"]
    if finished is not None and total:
        parts[0] += f" ({100 * finished / total:.1f} %)"
    is_over = progress.get("status") in OVER
    if not is_over:
        parts.append(f"{number(real_of(progress, 'rate_per_sec'), 1)}/s")
    rate = real_of(progress, "tokens_per_s")
    if rate and not is_over:
        parts.append(f"{number(rate)} tok/s at the client")
    parts.append(f"{number(whole_of(progress, 'failed'))} failed")
    if progress.get("status") in ("running", "draining"):
        parts.append(eta_words(eta))
        if age_s is not None and age_s > 60:
            parts.append(f"last written {duration(age_s / 3600)} ago")
    if unread := bad_lines_of(progress):
        parts.append(unread)
    if progress.get("message"):
        parts.append(plain(str(progress["message"])))
    return ", ".join(parts)
