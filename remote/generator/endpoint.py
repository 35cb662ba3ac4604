"""What the feeder asks of a server: a completion, its load, its health. The answers' parsers; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from remote.generator.reply import Reply


@dataclass(frozen=True, slots=True)
class Load:
    """What a server says of itself. None: it doesn't say. `used_tokens` moves while it decodes."""

    capacity: int | None
    running: int | None = None
    queue: int | None = None
    used_tokens: int | None = None


class Client(Protocol):
    async def complete(self, server: str, body: bytes, timeout_s: float) -> Reply:
        """Raises TroubleError. Cancelling it closes the connection, which makes the server abort the request."""
        ...

    async def observe_load(self, server: str) -> Load | None:
        """None when no answer comes; a Load of Nones when the server doesn't know the question."""
        ...

    async def observe_health(self, server: str) -> bool: ...

    async def observe_model(self, server: str) -> str | None: ...


def parse_loads(data: Any) -> Load:
    """/v1/loads, 0.5.8 and later: one entry a DP rank, added up."""
    try:
        ranks = data["loads"]
        return Load(
            capacity=_sum(ranks, "max_running_requests"),
            running=_sum(ranks, "num_running_reqs"),
            queue=_sum(ranks, "num_waiting_reqs"),
            used_tokens=_sum(ranks, "num_used_tokens"),
        )
    except (KeyError, TypeError, AttributeError):
        return Load(None)


def parse_server_info(data: Any, loads: Load) -> Load:
    """The effective cap from /server_info; its top-level max_running_requests is only what was asked for."""
    try:
        capacity = _sum(data["internal_states"], "effective_max_running_requests_per_dp")
    except (KeyError, TypeError, AttributeError):
        return loads
    return Load(capacity, loads.running, loads.queue, loads.used_tokens)


def _sum(ranks: Any, key: str) -> int | None:
    values = [rank.get(key) for rank in ranks]
    return sum(values) if values and all(isinstance(v, int) for v in values) else None
