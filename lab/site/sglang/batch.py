"""What the scheduler works on: its limits, its requests, its counters, and the lines it logs."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import NamedTuple


class Limits(NamedTuple):
    """What the memory model and the flags allow."""

    running: int
    slots: int
    held_per_request: int
    kv_tokens: int
    prefill_tokens: int
    log_interval: int
    graph_batch: int
    queued: int | None
    accept_length: float
    draft_tokens: int


class QueueFullError(Exception):
    """The waiting queue is at --max-queued-requests."""


@dataclasses.dataclass(eq=False)
class Request:
    """One request in the queue or in the running batch."""

    prompt_tokens: int
    tokens: int
    max_new_tokens: int
    done: asyncio.Future[bool]
    cached_tokens: int = 0
    arrived: float = 0.0
    admitted: float = 0.0
    step: float = 0.0
    produced: int = 0
    """Tokens from before a retraction."""

    @property
    def fresh_tokens(self) -> int:
        """Tokens that its prefill computes."""
        return self.prompt_tokens + self.produced - self.cached_tokens


@dataclasses.dataclass
class Totals:
    """Counters for /metrics."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: float = 0.0
    finished_tokens: int = 0
    requests: int = 0
    aborted: int = 0
    retracted: int = 0
    prefill_compute: int = 0
    decode_passes: float = 0.0


class Usage(NamedTuple):
    """The pools at one moment."""

    used_tokens: int
    slots_held: int
    queued: int


def prefill_line(limits: Limits, usage: Usage, batch: list[Request], *, running: int, pending: int, rate: float) -> str:
    """The line of one prefill batch; `running` counts the requests before it."""
    fresh = sum(r.fresh_tokens for r in batch)
    cached = sum(r.cached_tokens for r in batch)
    return (
        f"Prefill batch, #new-seq: {len(batch)}, #new-token: {fresh}, #cached-token: {cached}, "
        f"full token usage: {usage.used_tokens / limits.kv_tokens:.2f}, "
        f"mamba usage: {usage.slots_held / limits.slots:.2f}, #running-req: {running}, "
        f"#queue-req: {usage.queued}, #pending-token: {pending}, cuda graph: False, "
        f"input throughput (token/s): {rate:.2f}"
    )


def decode_line(limits: Limits, usage: Usage, running: int, gen_throughput: float) -> str:
    """The line of every --decode-log-interval decode steps."""
    speculation = ""
    if limits.draft_tokens:
        rate = (limits.accept_length - 1) / (limits.draft_tokens - 1)
        speculation = f"accept len: {limits.accept_length:.2f}, accept rate: {rate:.2f}, "
    return (
        f"Decode batch, #running-req: {running}, #full token: {usage.used_tokens}, "
        f"full token usage: {usage.used_tokens / limits.kv_tokens:.2f}, mamba num: {usage.slots_held}, "
        f"mamba usage: {usage.slots_held / limits.slots:.2f}, {speculation}"
        f"cuda graph: {running <= limits.graph_batch}, "
        f"gen throughput (token/s): {gen_throughput:.2f}, #queue-req: {usage.queued}"
    )


def retraction_line(count: int, tokens_gained: int, slots_gained: int, ratio: float) -> str:
    """The warning when running requests were given back to the queue."""
    return (
        f"KV cache pool is full. Retract requests. #retracted_reqs: {count}, #new_tokens_gained: {tokens_gained}, "
        f"#mamba_num_gained: {slots_gained}, #new_token_ratio: {ratio / 2:.4f} -> {ratio:.4f}"
    )
