"""Request and answer bodies of the OpenAI-style endpoints and of /generate, with 0.5.11's shapes and errors."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from .words import Answer, prompt_tokens

TEMPLATE_TOKENS = 9
IM_END_TOKEN = 248046
SOURCE = "/opt/sglang/lib/python3.11/site-packages/sglang/srt/entrypoints/http_server.py"


class BadRequestError(Exception):
    """A request that is answered 400; carries the body."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(body.get("message"))
        self.body = body


class Ask(NamedTuple):
    """What a request asks for, whatever its endpoint."""

    kind: str
    model: str
    prompt: str
    prompt_tokens: int
    max_tokens: int | None
    seed: int
    stream: bool
    include_usage: bool
    thinking: bool
    endless: bool
    tools: tuple[str, ...]


def error_body(message: str, kind: str = "BadRequestError", code: int = 400) -> dict[str, Any]:
    """The flat error object of these endpoints."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def parse_json(raw: bytes, path: str) -> dict[str, Any]:
    """The decoded body. BadRequestError with the validation text where it isn't an object."""
    try:
        found = json.loads(raw)
    except ValueError:
        detail = {"type": "json_invalid", "loc": ("body", 1), "msg": "JSON decode error", "input": {}}
        raise BadRequestError(_validation(detail | {"ctx": {"error": "unexpected character"}}, path)) from None
    if not isinstance(found, dict):
        detail = {"type": "model_attributes_type", "loc": ("body",), "msg": "Input should be a valid dictionary"}
        raise BadRequestError(_validation(detail, path))
    return found


def parse_chat(body: dict[str, Any], default_model: str) -> Ask:
    """/v1/chat/completions."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        detail = {"type": "missing", "loc": ("body", "messages"), "msg": "Field required", "input": body}
        raise BadRequestError(_validation(detail, "/v1/chat/completions"))
    if not messages:
        raise BadRequestError(error_body("Messages cannot be empty."))
    texts = [f"{m.get('role')}: {_content(m)}" for m in messages if isinstance(m, dict)]
    template = body.get("chat_template_kwargs") or {}
    options = body.get("stream_options") or {}
    tools = tuple(t["function"]["name"] for t in body.get("tools") or () if isinstance(t.get("function"), dict))
    text = "\n".join(texts)
    tokens = sum(prompt_tokens(t) + 5 for t in texts) + TEMPLATE_TOKENS + 40 * len(tools)
    return Ask(
        kind="chat",
        model=str(body.get("model") or default_model),
        prompt=text,
        prompt_tokens=tokens,
        max_tokens=_max_tokens(body.get("max_completion_tokens") or body.get("max_tokens")),
        seed=int(body.get("seed") or 0),
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
        thinking=bool(template.get("enable_thinking", True)),
        endless=bool(body.get("ignore_eos")),
        tools=tools,
    )


def parse_completion(body: dict[str, Any], default_model: str) -> Ask:
    """/v1/completions; max_tokens is 16 by default."""
    prompt = body.get("prompt")
    if prompt is None:
        detail = {"type": "missing", "loc": ("body", "prompt"), "msg": "Field required", "input": body}
        raise BadRequestError(_validation(detail, "/v1/completions"))
    options = body.get("stream_options") or {}
    text = prompt if isinstance(prompt, str) else json.dumps(prompt)
    return Ask(
        kind="text",
        model=str(body.get("model") or default_model),
        prompt=text,
        prompt_tokens=prompt_tokens(text),
        max_tokens=_max_tokens(body.get("max_tokens", 16)),
        seed=int(body.get("seed") or 0),
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
        thinking=False,
        endless=bool(body.get("ignore_eos")),
        tools=(),
    )


def parse_generate(body: dict[str, Any], default_model: str) -> Ask:
    """/generate; max_new_tokens is 128 by default."""
    sampling = body.get("sampling_params") or {}
    ids = body.get("input_ids")
    text = body.get("text")
    if text is None and ids is None:
        raise BadRequestError({"error": {"message": "Either text, input_ids or input_embeds should be provided."}})
    prompt = text if isinstance(text, str) else json.dumps(ids if text is None else text)
    return Ask(
        kind="generate",
        model=default_model,
        prompt=prompt,
        prompt_tokens=len(ids) if isinstance(ids, list) else prompt_tokens(prompt),
        max_tokens=_max_tokens(sampling.get("max_new_tokens", 128)),
        seed=0,
        stream=bool(body.get("stream")),
        include_usage=False,
        thinking=False,
        endless=bool(sampling.get("ignore_eos")),
        tools=(),
    )


def check_length(ask: Ask, context_len: int) -> int:
    """The tokens that may be made. BadRequestError when prompt and asked tokens pass the context length."""
    if ask.prompt_tokens >= context_len:
        raise BadRequestError(
            error_body(
                f"The input ({ask.prompt_tokens} tokens) is longer than the "
                f"model's context length ({context_len} tokens)."
            )
        )
    if ask.max_tokens is not None and ask.prompt_tokens + ask.max_tokens > context_len:
        raise BadRequestError(
            error_body(
                f"Requested token count exceeds the model's maximum context length of {context_len} tokens. "
                f"You requested a total of {ask.prompt_tokens + ask.max_tokens} tokens: {ask.prompt_tokens} tokens "
                f"from the input messages and {ask.max_tokens} tokens for the completion. Please reduce the number "
                "of tokens in the input messages or the completion to fit within the limit."
            )
        )
    return context_len - ask.prompt_tokens if ask.max_tokens is None else ask.max_tokens


def usage(ask: Ask, answer: Answer, cached: int | None, made: int | None = None) -> dict[str, Any]:
    """The usage object; `cached` is None without --enable-cache-report."""
    tokens = answer.tokens if made is None else made
    return {
        "prompt_tokens": ask.prompt_tokens,
        "total_tokens": ask.prompt_tokens + tokens,
        "completion_tokens": tokens,
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
        "reasoning_tokens": min(answer.reasoning_tokens, tokens),
    }


def new_id() -> str:
    """A request id."""
    return uuid.uuid4().hex


def finish(answer: Answer, *, called: bool = False) -> dict[str, Any]:
    """finish_reason and matched_stop of a choice."""
    if called:
        return {"finish_reason": "tool_calls", "matched_stop": None}
    if answer.ended:
        return {"finish_reason": "stop", "matched_stop": IM_END_TOKEN}
    return {"finish_reason": "length", "matched_stop": None}


def texts(answer: Answer, *, parsed: bool) -> tuple[str | None, str | None]:
    """(reasoning_content, content): apart with --reasoning-parser, else in one text with its closing tag."""
    if not answer.reasoning_tokens:
        return None, answer.content
    if parsed:
        return answer.reasoning, answer.content or None
    closed = answer.tokens > answer.reasoning_tokens or answer.ended
    return None, f"{answer.reasoning}\n</think>\n\n{answer.content}" if closed else answer.reasoning


def chat_body(ask: Ask, rid: str, answer: Answer, cached: int | None, *, parsed: bool, tool: bool) -> dict[str, Any]:
    """A whole chat completion."""
    reasoning, content = texts(answer, parsed=parsed)
    calls = None
    if tool and ask.tools and answer.ended:
        call = {"name": ask.tools[0], "arguments": json.dumps({"text": answer.content[:40]})}
        calls = [{"id": f"call_{rid[:24]}", "index": 0, "type": "function", "function": call}]
        content = None
    message = {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": calls}
    choice = {"index": 0, "message": message, "logprobs": None, **finish(answer, called=bool(calls))}
    return {
        "id": rid,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": ask.model,
        "choices": [choice],
        "usage": usage(ask, answer, cached),
        "metadata": {"weight_version": "default"},
    }


def text_body(ask: Ask, rid: str, answer: Answer, cached: int | None) -> dict[str, Any]:
    """A whole text completion."""
    choice = {"index": 0, "text": answer.content, "logprobs": None, **finish(answer)}
    return {
        "id": rid,
        "object": "text_completion",
        "created": int(time.time()),
        "model": ask.model,
        "choices": [choice],
        "usage": usage(ask, answer, cached),
        "metadata": {"weight_version": "default"},
    }


def generate_body(ask: Ask, rid: str, answer: Answer, cached: int, latency_s: float) -> dict[str, Any]:
    """A whole /generate answer."""
    reason: dict[str, Any] = {"type": "stop", "matched": IM_END_TOKEN}
    if not answer.ended:
        reason = {"type": "length", "length": answer.tokens}
    meta = {
        "id": rid,
        "finish_reason": reason,
        "prompt_tokens": ask.prompt_tokens,
        "weight_version": "default",
        "total_retractions": 0,
        "completion_tokens": answer.tokens,
        "cached_tokens": cached,
        "e2e_latency": latency_s,
    }
    return {"text": answer.content, "output_ids": [], "meta_info": meta}


def chat_chunks(ask: Ask, rid: str, answer: Answer, *, parsed: bool) -> Iterator[dict[str, Any]]:
    """The chunks of a streamed chat completion, one token each; the last has the finish reason."""
    base = {"id": rid, "object": "chat.completion.chunk", "created": int(time.time()), "model": ask.model}
    reasoning, content = texts(answer, parsed=parsed)
    nothing = {"finish_reason": None, "matched_stop": None}
    delta: dict[str, Any] = {"reasoning_content": None, "role": "assistant", "content": ""}
    yield {**base, "choices": [{"index": 0, "delta": delta, "logprobs": None, **nothing}]}
    for key, text in (("reasoning_content", reasoning), ("content", content)):
        for word in (text or "").split(" ") if text else ():
            delta = {"reasoning_content": None, key: f"{word} "}
            yield {**base, "choices": [{"index": 0, "delta": delta, "logprobs": None, **nothing}]}
    last = {"index": 0, "delta": {"reasoning_content": None}, "logprobs": None, **finish(answer)}
    yield {**base, "choices": [last]}


def _max_tokens(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or value < 1:
        raise BadRequestError(error_body(f"max_new_tokens must be at least 1, got {value}."))
    return value


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or message.get("tool_calls") or "")


def _validation(detail: dict[str, Any], path: str) -> dict[str, Any]:
    text = f'1 validation error:\n  {detail}\n\n  File "{SOURCE}", line 1473\n    POST {path} [{detail}]'
    return error_body(text, "Bad Request")
