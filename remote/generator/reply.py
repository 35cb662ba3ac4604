"""What a server's HTTP answer means: a Reply, or a Trouble that says whose fault it is. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from remote import fastjson
from remote.generator.choice import Flaw, read_choices
from remote.generator.retry_after import read_retry_after
from remote.redirects import words_of_redirect

Kind = Literal[
    "connect",
    "timeout",
    "cut",
    "busy",
    "server_error",
    "bad_body",
    "aborted",
    "refused",
    "not_found",
    "moved",
    "prompt",
]
"""connect: no connection. cut: the connection ended early. busy: 429, 503. server_error: other 5xx. bad_body: a 200
that is no completion. aborted: finish_reason abort. refused: 401, 403. not_found: 404, 405. moved: a redirect. prompt:
the prompt's own fault, 400, 413, 422."""

_PROMPT_STATUSES = frozenset({400, 413, 422})
_MOST_TOKENS = 1 << 32
"""A count beyond is no count; it would spoil every mean."""
_VISIBLE = re.compile(r"[^\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\ufffd]")
_NO_HEADERS: Mapping[str, str] = {}
_END = "</think>"
_START = "<think>"
_NO_MODEL = re.compile(r"(?i)\bmodel\b.*(not exist|not found|not (served|available|loaded))|(invalid|unknown) model")
"""As vLLM (404), OpenAI (404) and LiteLLM (400) say it."""


class TroubleError(Exception):
    """A request without a completion. Every kind but `prompt` is the server's fault and worth another server.
    `retry_after_s`: the server asks for so long a pause."""

    def __init__(self, kind: Kind, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.kind = kind
        self.message = message[:500]

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Reply:
    """A completion. `reasoning` is what the model thought, split off; `usage` as the server counted it. `flaw`: why it
    can't be kept. `mended`: U+FFFD stands in it for what is no character."""

    completion: str
    reasoning: str | None
    tool_calls: list[dict[str, Any]] | None
    finish_reason: str | None
    usage: dict[str, Any] | None
    model: str | None
    flaw: Flaw | None = None
    mended: bool = False

    @property
    def empty(self) -> bool:
        """Nothing to keep: no text that can be read and no tool call. Thinking alone counts when the length limit cut
        it."""
        if self.tool_calls or _VISIBLE.search(self.completion):
            return False
        return self.finish_reason != "length" or not _VISIBLE.search(self.reasoning or "")

    @property
    def output_tokens(self) -> int:
        return self._count("completion_tokens")

    @property
    def input_tokens(self) -> int:
        return self._count("prompt_tokens")

    def _count(self, key: str) -> int:
        value = (self.usage or {}).get(key)
        return value if type(value) is int and 0 <= value < _MOST_TOKENS else 0


def parse_reply(status: int, body: bytes, headers: Mapping[str, str] = _NO_HEADERS, now: float = 0.0) -> Reply:
    """Raises TroubleError for everything that isn't an answer. An answer that can't be kept is a Reply with a flaw: it
    is the model's or the prompt's doing, and no other server's answer need be better. `now` is Unix time."""
    if status != 200:
        raise _trouble(status, body, headers, now)
    try:
        data, mended = fastjson.loads_answer(body)
    except fastjson.DeepError:
        return flawed(("shape", "an answer nested too deeply"))
    except ValueError:
        raise TroubleError("bad_body", f"a 200 that isn't JSON: {_excerpt(body)}") from None
    if not isinstance(data, dict) or data.get("object") == "error" or data.get("error"):
        raise TroubleError("bad_body", f"a 200 with an error: {_message(data) or _excerpt(body)}")
    if not isinstance(data.get("choices"), list):
        raise TroubleError("bad_body", f"a 200 without choices: {_excerpt(body)}")
    choice = read_choices(data["choices"])
    if choice.finish_reason == "abort":
        why = _message(data["choices"][0]) or _message(data["choices"][0]["finish_reason"])
        raise TroubleError("aborted", f"finish_reason abort: {why or 'the server gave no reason'}")
    completion, reasoning = (choice.text, choice.thought) if choice.thought else split_thinking(choice.text)
    usage, model = data.get("usage"), data.get("model")
    return Reply(
        completion=completion,
        reasoning=reasoning,
        tool_calls=choice.tool_calls,
        finish_reason=choice.finish_reason,
        usage=usage if isinstance(usage, dict) else None,
        model=model if isinstance(model, str) else None,
        flaw=choice.flaw,
        mended=mended,
    )


def flawed(flaw: Flaw) -> Reply:
    """An answer of which nothing was read."""
    return Reply("", None, None, None, None, None, flaw)


def split_thinking(content: str) -> tuple[str, str | None]:
    """Completion and reasoning. Some chat templates open the <think> in the prompt: the text has only its end then."""
    head, end, tail = content.partition(_END)
    if end:
        return tail.lstrip("\n"), head.strip().removeprefix(_START).strip("\n")
    if content.lstrip().startswith(_START):
        return "", content.lstrip().removeprefix(_START).lstrip("\n")
    return content, None


def texts_of_calls(calls: object) -> Iterator[str]:
    """Of each tool call its name, and the texts in its arguments as one; arguments that aren't JSON as they are."""
    for call in _dicts(calls):
        for called in _dicts([call.get("function"), call.get("custom")]):
            yield str(called.get("name") or "")
            yield "".join(_leaves(_read_arguments(called.get("arguments") or called.get("input"))))


def _leaves(value: object) -> Iterator[str]:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | dict):
            waiting += reversed(value if isinstance(value, list) else list(value.values()))


def _dicts(values: object) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _read_arguments(value: object) -> object:
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return fastjson.loads(value.encode("utf-8", "replace"))
    except ValueError:
        return value


def names_no_model(trouble: TroubleError, model: str | None) -> bool:
    """Whether a refusal says that the server has no model of the name it was sent: not the prompt's fault then."""
    if trouble.kind not in ("prompt", "not_found") or not model:
        return False
    return model in trouble.message and bool(_NO_MODEL.search(trouble.message))


def _trouble(status: int, body: bytes, headers: Mapping[str, str], now: float) -> TroubleError:
    if 300 <= status < 400:
        return TroubleError("moved", words_of_redirect(status, headers.get("Location", "")))
    try:
        message = _message(fastjson.loads(body))
    except ValueError:
        message = ""
    text = f"HTTP {status}: {message or _excerpt(body) or 'no body'}"
    if status in _PROMPT_STATUSES:
        return TroubleError("prompt", text)
    if status in (401, 403):
        return TroubleError("refused", text)
    if status in (404, 405):
        return TroubleError("not_found", text)
    wait_s = read_retry_after(headers, now) if status == 429 or status >= 500 else None
    text += "" if wait_s is None else f" (Retry-After: {wait_s:.0f} s)"
    return TroubleError("busy" if status in (429, 503) else "server_error", text, wait_s)


def _message(data: object) -> str:
    """The message of an error body: SGLang's flat one, or OpenAI's nested one."""
    if not isinstance(data, dict):
        return ""
    inner = data.get("error")
    for said in (inner.get("message") if isinstance(inner, dict) else None, data.get("message"), inner):
        if isinstance(said, str) and said:
            return said
    return ""


def _excerpt(body: bytes) -> str:
    return body[:160].decode("utf-8", "replace").replace("\n", " ")
