"""How prompts are asked, and the bytes that go out and to disk. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from remote import fastjson
from remote.generator.prompt_queue import Item
from remote.generator.quality import DEFAULT, Fault, Quality
from remote.generator.reply import Reply, TroubleError
from remote.output.ledger import utc_now

_DEFAULT_MAX_TOKENS = 32768
MAX_ANSWER_BYTES = 64 << 20
_LEAST_ANSWER_BYTES = 1 << 20
_BYTES_PER_TOKEN = 1024
"""A token has 4 bytes, in JSON's escapes some dozens, and at most 128 (a run of blanks)."""

_MORE_PER_TOKEN = ("logprobs", "top_logprobs", "prompt_logprobs", "return_", "echo")
"""Names of sampling options, or how they begin, that make an answer longer by far than its tokens."""


class HopelessError(Exception):
    """The run can't succeed: one line that says why and what next."""


@dataclass(frozen=True)
class Feeding:
    """`sampling` goes into every request as it is; `timeout_floor_s` is the shortest deadline of a request."""

    sampling: dict[str, Any]
    model: str | None = None
    attempts: int = 5
    timeout_floor_s: float = 120.0
    quality: Quality = DEFAULT

    @cached_property
    def max_tokens(self) -> int:
        return self._asked_tokens or _DEFAULT_MAX_TOKENS

    @cached_property
    def _asked_tokens(self) -> int:
        """0: the sampling doesn't say."""
        for key in ("max_completion_tokens", "max_tokens"):
            value = self.sampling.get(key)
            if isinstance(value, int) and value > 0:
                return value
        return 0

    @cached_property
    def max_answer_bytes(self) -> int:
        """Of one answer's JSON, decompressed. What `quality` sets, else from max_tokens, 1 to 64 MiB."""
        if self.quality.max_answer_mib is not None:
            return int(self.quality.max_answer_mib * (1 << 20))
        tokens = self._asked_tokens
        if not tokens or any(value for name, value in self.sampling.items() if name.startswith(_MORE_PER_TOKEN)):
            return MAX_ANSWER_BYTES
        return min(MAX_ANSWER_BYTES, max(_LEAST_ANSWER_BYTES, tokens * _BYTES_PER_TOKEN))

    def body(self, item: Item, model: str | None) -> bytes:
        """The request; `model` is what the server calls its own. After a bad answer it has a seed of its own."""
        prompt = item.prompt
        body = {"model": self.model or model or "default", "messages": prompt.messages, **self.sampling}
        if prompt.continues:
            body["continue_final_message"] = True
        if prompt.tools:
            body["tools"] = prompt.tools
        if item.bad_answers:
            seed = self.sampling.get("seed")
            body["seed"] = (seed if isinstance(seed, int) else prompt.index) + item.bad_answers
        body["stream"] = False
        return fastjson.dumps(body)


def record_line(server: str, item: Item, reply: Reply, latency_s: float, fault: Fault | None = None) -> bytes:
    """A contract.job.Record as one line; one that is rejected has `reason` and `detail` too."""
    record = {
        "index": item.prompt.index,
        "id": item.prompt.id,
        "messages": item.prompt.messages,
        "completion": reply.completion,
        "reasoning": reply.reasoning,
        "tool_calls": reply.tool_calls,
        "finish_reason": reply.finish_reason,
        "usage": reply.usage,
        "model": reply.model,
        "server": server,
        "attempts": item.sent,
        "latency_s": round(latency_s, 4),
        "created": utc_now(),
    }
    if item.prompt.extra is not None:
        record["extra"] = item.prompt.extra
    if fault is not None and fault.rejects:
        record |= {"reason": fault.reason, "detail": fault.detail}
    return fastjson.dumps(record) + b"\n"


def failure_line(server: str, item: Item, trouble: TroubleError) -> bytes:
    """One line of failures.jsonl."""
    failure = {
        "index": item.prompt.index,
        "id": item.prompt.id,
        "kind": trouble.kind,
        "reason": trouble.message,
        "server": server,
        "attempts": item.sent,
        "created": utc_now(),
    }
    return fastjson.dumps(failure) + b"\n"
