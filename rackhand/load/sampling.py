"""`sampling:` of a job: names, types and ranges as SGLang's chat completions take them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from rackhand.load.nodes import Scalar, Table, Value
from rackhand.load.sections import Context, as_table, plain

NOT_SAMPLING = {
    "model": "set the job's model",
    "messages": "they come from the prompts file",
    "prompt": "they come from the prompts file",
    "tools": "they come from the prompts file",
    "stream": "requests are not streamed",
    "n": "one completion for each prompt",
}
MOST = 10_000_000
"""More tokens than any model's context."""


def _whole(least: int, most: int, *, also: int | None = None) -> tuple[Callable[[Any], bool], str]:
    def fits(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and (least <= value <= most or value == also)

    other = "" if also is None else f", or {also}"
    return fits, f"a whole number from {least} to {most}{other}"


def _number(least: float, most: float, *, above: bool = False) -> tuple[Callable[[Any], bool], str]:
    def fits(value: Any) -> bool:
        real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return real and least <= value <= most and not (above and value == least)

    return fits, f"a number {'above' if above else 'from'} {least:g} {'and at most' if above else 'to'} {most:g}"


def _is_words(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_stops(value: Any) -> bool:
    return _is_words(value) or (isinstance(value, list) and all(_is_words(word) for word in value))


def _is_token_ids(value: Any) -> bool:
    fits = _whole(0, MOST)[0]
    return isinstance(value, list) and bool(value) and all(fits(one) for one in value)


def _is_bias(value: Any) -> bool:
    fits = _number(-100, 100)[0]
    return isinstance(value, dict) and all(key.isascii() and key.isdigit() and fits(one) for key, one in value.items())


_TRUTH = (lambda value: isinstance(value, bool)), "true or false"
_TEXT = _is_words, "text; quote it if it looks like a number"
_MAPPING = (lambda value: isinstance(value, dict)), "a mapping"
SAMPLING: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": _number(0, 2),
    "top_p": _number(0, 1, above=True),
    "top_k": _whole(1, MOST, also=-1),
    "min_p": _number(0, 1),
    "max_tokens": _whole(1, MOST),
    "max_completion_tokens": _whole(1, MOST),
    "min_tokens": _whole(0, MOST),
    "stop": (_is_stops, "text, or a list of texts; quote what looks like a number"),
    "stop_token_ids": (_is_token_ids, "a list of token ids"),
    "stop_regex": (_is_stops, "text, or a list of texts"),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repetition_penalty": _number(0, 2, above=True),
    "seed": _whole(-(2**63), 2**63 - 1),
    "logprobs": _TRUTH,
    "top_logprobs": _whole(0, 20),
    "ignore_eos": _TRUTH,
    "skip_special_tokens": _TRUTH,
    "no_stop_trim": _TRUTH,
    "chat_template_kwargs": _MAPPING,
    "separate_reasoning": _TRUTH,
    "stream_reasoning": _TRUTH,
    "response_format": _MAPPING,
    "regex": _TEXT,
    "ebnf": _TEXT,
    "logit_bias": (_is_bias, "a mapping of token ids to numbers from -100 to 100"),
    "reasoning_effort": _TEXT,
    "tool_choice": ((lambda value: _is_words(value) or isinstance(value, dict)), "text or a mapping"),
    "parallel_tool_calls": _TRUTH,
}
"""Name → whether a value fits, and what would."""


def read_sampling(value: Value, ctx: Context) -> Mapping[str, object]:
    """What goes into each request. A name that nearly is a known one is taken for a slip; others are passed on."""
    table = as_table(value)
    found = {key: plain(entry.value) for key, entry in table.entries.items()}
    for key, entry in table.entries.items():
        if key in NOT_SAMPLING:
            ctx.wrong(entry.value, "has no place in sampling", NOT_SAMPLING[key], line=entry.line)
        elif key in SAMPLING:
            fits, wanted = SAMPLING[key]
            if not fits(found[key]) and not _is_default(entry.value):
                ctx.wrong(entry.value, f"{_shown(entry.value)} can't be", f"write {wanted}", line=entry.line)
        elif near := get_close_matches(key, SAMPLING, n=1, cutoff=0.85):
            ctx.wrong(entry.value, "unknown key", f"did you mean {near[0]}?", line=entry.line)
    _check_lengths(table, found, ctx)
    return found


def _is_default(value: Value) -> bool:
    """`null` or `~`, written out: the server's own default, as in its API."""
    return isinstance(value, Scalar) and value.null and value.text != ""


def _check_lengths(table: Table, found: Mapping[str, Any], ctx: Context) -> None:
    least, most = found.get("min_tokens"), found.get("max_completion_tokens", found.get("max_tokens"))
    if isinstance(least, int) and isinstance(most, int) and least > most > 0:
        line = table.line_of("min_tokens")
        ctx.wrong(table.entries["min_tokens"].value, f"{least} is more than the {most} allowed", "lower it", line=line)


def _shown(value: Value) -> str:
    if not isinstance(value, Scalar):
        return "a mapping" if isinstance(value, Table) else "this list"
    if value.null:
        return "nothing"
    return value.text if value.plain else f'"{value.text}" in quotes'
