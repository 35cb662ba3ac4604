"""What a completion must be to be kept: the checks, their options, and the share at which a job stops by itself. Pure.

The same checks run on an answer as it comes in, and on finished records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from remote.generator.repetition import find_run, repetition
from remote.generator.reply import Reply, texts_of_calls
from remote.generator.script import SCRIPTS, script_share

Reason = Literal[
    "empty", "thinking", "short", "repetition", "must", "must_not", "script", "length", "shape", "large", "encoding"
]
"""empty: no text, no tool call. thinking: it never ended, or there was none where some is required. short: fewer
tokens than min_tokens. repetition: it says the same again and again. must, must_not: a pattern. script: too few letters
of it. length: cut by max_tokens. shape: no chat completion's. large: longer than it may be. encoding: U+FFFD stands for
what is no character, counted only."""

_ADVICE = {
    "empty": "nothing came: look at the chat template and max_tokens",
    "thinking": "give max_tokens more room for thinking, or set require_thinking to false",
    "short": "if answers are rightly that short, set min_tokens to a smaller number: {{min_tokens: 1}}",
    "repetition": "change the sampling, or, if such answers are right, set max_repetition above {max_repetition:g}",
    "length": "give max_tokens more room, or set reject_length to false",
    "shape": "ask that server by hand: what it answers is no chat completion",
    "large": "set max_tokens in the sampling, or allow more with max_answer_mib",
    "must": "change the sampling, or the pattern in must",
    "must_not": "change the sampling, or the pattern in must_not",
    "script": "change the sampling, or set script or script_share below {script_share:g}",
}
CUT_ON_PURPOSE = 0.5
"""From this share of answers cut by the length limit on, the limit is what was wanted."""
MENDED = "U+FFFD stands for what is no character"
_HOW = "options stand in the job's quality in the inventory, or in --quality JSON"


@dataclass(frozen=True)
class Fault:
    """Why a completion isn't good. `rejects`: it is kept apart, else only counted."""

    reason: Reason
    detail: str
    rejects: bool = True


@dataclass(frozen=True)
class Quality:
    """`min_tokens` counts thinking too. `max_repetition` bounds `repetition`, and the times
    of a `Run` by its weight. Of a completion's letters at least
    `script_share` must be of one of the `script`s, if any.
    `retries`: further tries of a bad answer, each with a new seed. Of the first `limit_first` prompts of a run at most
    `limit_share` may be rejected, else the job stops. `max_answer_mib`: an answer's JSON; None: from max_tokens."""

    min_tokens: int = 8
    max_repetition: float = 12.0
    reject_length: bool = False
    require_thinking: bool = False
    must: tuple[re.Pattern[str], ...] = ()
    must_not: tuple[re.Pattern[str], ...] = ()
    script: tuple[str, ...] = ()
    script_share: float = 0.6
    retries: int = 1
    limit_share: float = 0.2
    limit_first: int = 500
    max_answer_mib: float | None = None

    def find_fault(self, reply: Reply) -> Fault | None:
        """The first fault; None for a good completion. One that calls a tool may be short."""
        if reply.flaw is not None:
            return Fault(*reply.flaw)
        if reply.empty:
            return Fault("thinking" if reply.reasoning else "empty", _empty_words(reply))
        if self.require_thinking and not (reply.reasoning or "").strip():
            return Fault("thinking", "no thinking, or it has no end mark")
        for where, text in _texts(reply):
            if said := self._says_again(text):
                return Fault("repetition", f"{where}: {said}" if where else said)
        if reply.finish_reason == "length":
            what = "cut by the length limit" + ("" if has_answer(reply) else " while thinking")
            return Fault("length", what, rejects=self.reject_length)
        if not reply.tool_calls and (tokens := token_count(reply)) < self.min_tokens:
            return Fault("short", f"{tokens} tokens, fewer than {self.min_tokens}")
        if fault := self._pattern_fault(reply):
            return fault
        return Fault("encoding", MENDED, rejects=False) if reply.mended else None

    def _says_again(self, text: str) -> str:
        if (ratio := repetition(text)) > self.max_repetition:
            return f"its end repeats itself {ratio:.0f} times"
        run = find_run(text)
        if run is None or run.times <= self.max_repetition * run.weight:
            return ""
        return f"{run.piece[:40]!r} stands there {run.times} times in a row, more than half of it"

    def _pattern_fault(self, reply: Reply) -> Fault | None:
        if reply.tool_calls and not reply.completion.strip():
            return None
        for pattern in self.must:
            if not pattern.search(reply.completion):
                return Fault("must", f"nothing matches {pattern.pattern!r}")
        for pattern in self.must_not:
            if found := pattern.search(reply.completion):
                return Fault("must_not", f"{found[0][:80]!r} matches {pattern.pattern!r}")
        share = script_share(reply.completion, self.script) if self.script else None
        if share is not None and share < self.script_share:
            return Fault("script", f"{share:.0%} of its letters are {', '.join(self.script)}")
        return None

    def within(self, max_tokens: int) -> Quality:
        """For answers that can't have more tokens: where all would be short, none is."""
        return self if max_tokens >= self.min_tokens else replace(self, min_tokens=0)

    def is_cut_on_purpose(self, cut: int, of: int) -> bool:
        """Whether max_tokens was asked so low that answers are meant to be cut: no single one tells, their share does.
        Of answers, `cut` by the length limit among the `of` that came. One cut while thinking isn't among
        them: it holds no answer, which nobody means."""
        return not self.reject_length and cut > 0 and cut >= CUT_ON_PURPOSE * of

    def advice(self, reason: str) -> str:
        """What to change when many completions are rejected for this."""
        return _ADVICE[reason].format(max_repetition=self.max_repetition, script_share=self.script_share)


def has_answer(reply: Reply) -> bool:
    """Text or a tool call, besides any thinking."""
    return bool(reply.completion.strip() or reply.tool_calls)


DEFAULT = Quality()
OFF = Quality(min_tokens=0, max_repetition=float("inf"), limit_share=1.0)
"""Only empty completions are rejected, and no share stops the job."""


def _texts(reply: Reply) -> Iterator[tuple[str, str]]:
    """Where and what: the completion, the thinking, the texts in the arguments of tool calls."""
    yield "", reply.completion
    yield "", reply.reasoning or ""
    for text in texts_of_calls(reply.tool_calls) if reply.tool_calls else ():
        yield "a tool call", text


def token_count(reply: Reply) -> int:
    """Output tokens as the server counted them, else words."""
    return reply.output_tokens or len(f"{reply.reasoning or ''} {reply.completion}".split())


def _empty_words(reply: Reply) -> str:
    if reply.reasoning:
        return "the thinking has no end and no answer follows"
    return "nothing in it can be read" if reply.completion.strip() else "no text and no tool call"


def parse_quality(text: str) -> Quality:
    """`default`, `off`, a JSON object, or a file that holds one. ValueError says what is wrong."""
    if text in ("default", "off"):
        return DEFAULT if text == "default" else OFF
    where = "quality"
    if not text.lstrip().startswith("{"):
        where = text
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{where}: {getattr(error, 'strerror', None) or error}; write default, off or a JSON file"
            ) from None
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON: {error}; YAML can be read in the inventory only") from None
    return quality_of(options, where)


def quality_of(options: object, where: str = "quality") -> Quality:
    """The options over the defaults. ValueError names the option that is wrong."""
    if not isinstance(options, dict):
        raise ValueError(f"{where}: a JSON object was expected")
    unknown = sorted(set(options) - set(_READ))
    if unknown:
        raise ValueError(f"{where}: no option {', '.join(unknown)}; there are {', '.join(_READ)}")
    values = {}
    for name, value in options.items():
        values[name] = _read(name, value, where)
    return Quality(**values)


def _read(name: str, value: object, where: str) -> Any:
    try:
        return _READ[name](value)
    except (ValueError, re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{where}: {name}: {error}") from None


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no whole number from 0")
    return value


def _number(low: float, high: float) -> Callable[[object], float]:
    def read(value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"{value!r} is no number from {low:g} to {high:g}")
        return float(value)

    return read


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _patterns(value: object) -> tuple[re.Pattern[str], ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("a pattern, or a list of them, was expected")
    return tuple(re.compile(text) for text in texts)


def _scripts(value: object) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and name in SCRIPTS for name in names):
        raise ValueError(f"a script, or a list of them, was expected; there are {', '.join(SCRIPTS)}")
    return tuple(names)


_READ: dict[str, Callable[[object], Any]] = {
    "min_tokens": _whole,
    "max_repetition": _number(1, 1e6),
    "reject_length": _flag,
    "require_thinking": _flag,
    "must": _patterns,
    "must_not": _patterns,
    "script": _scripts,
    "script_share": _number(0, 1),
    "retries": _whole,
    "limit_share": _number(0, 1),
    "limit_first": _whole,
    "max_answer_mib": _number(1, 4096),
}


@dataclass
class Gate:
    """Watches the first prompts of a run. `note` gives the words to stop with when too many were rejected."""

    quality: Quality
    judged: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def note(self, fault: Fault | None) -> str | None:
        limit = self.quality.limit_first
        if self.judged >= limit:
            return None
        self.judged += 1
        if fault is None or not fault.rejects:
            return None
        self.reasons[fault.reason] = self.reasons.get(fault.reason, 0) + 1
        rejected = sum(self.reasons.values())
        if rejected <= self.quality.limit_share * limit:
            return None
        ordered = sorted(self.reasons.items(), key=lambda item: -item[1])
        counts = ", ".join(f"{count} {reason}" for reason, count in ordered)
        return (
            f"{rejected} of the first {self.judged} prompts were rejected ({counts}), more than"
            f" {self.quality.limit_share:.0%} of {limit}; the last: {fault.detail}. They stand in rejected.jsonl:"
            f" put the servers right; {self.quality.advice(ordered[0][0])} ({_HOW}). Then ./inv resume --retry-rejected"
        )
