"""The first choice of a chat completion, in the shapes that servers and proxies give it. Pure.

What can't be kept is named in `flaw`, with what was read beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Flaw = tuple[Literal["empty", "shape", "large"], str]
"""Why an answer can't be kept, and the words for it."""

_TEXT_PARTS = frozenset({None, "text", "output_text"})
_THOUGHT_PARTS = {"thinking": "thinking", "reasoning": "reasoning"}


@dataclass(frozen=True, slots=True)
class Choice:
    text: str = ""
    thought: str = ""
    tool_calls: list[dict[str, Any]] | None = None
    finish_reason: str | None = None
    flaw: Flaw | None = None


def read_choices(choices: list[Any]) -> Choice:
    """A choice without a message may be one of the older completions endpoint."""
    if not choices:
        return Choice(flaw=("empty", "choices is an empty list"))
    choice = choices[0]
    if not isinstance(choice, dict):
        return Choice(flaw=("shape", f"choices hold {_kind(choice)}"))
    message = choice.get("message")
    if message is None:
        message = {"content": choice.get("text")}
    if not isinstance(message, dict):
        return Choice(flaw=("shape", f"message is {_kind(message)}"))
    flaws: list[str] = []
    text, thought = _read_text(message.get("content"), "content", flaws)
    said = message.get("reasoning_content") or message.get("reasoning")
    if said:
        thought = "".join(_read_text(said, "reasoning", flaws)) or thought
    calls = _read_calls(message, flaws)
    finish = _read_finish(choice.get("finish_reason"), flaws)
    flaw: Flaw | None = ("shape", "; ".join(flaws)) if flaws else None
    refusal = message.get("refusal")
    if not flaw and not text and not calls and refusal and isinstance(refusal, str):
        flaw = ("empty", f"no text; the model refuses: {refusal[:200]}")
    return Choice(text, thought, calls, finish, flaw)


def _read_text(value: object, where: str, flaws: list[str]) -> tuple[str, str]:
    """A text, or a list of parts: what is said, and what is thought."""
    if isinstance(value, str):
        return value, ""
    if value is None:
        return "", ""
    if not isinstance(value, list):
        flaws.append(f"{where} is {_kind(value)}")
        return "", ""
    said: list[str] = []
    thoughts: list[str] = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        kind = kind if isinstance(kind, str | None) else _kind(kind)
        if isinstance(part, str):
            said.append(part)
        elif not isinstance(part, dict):
            flaws.append(f"{where} has a part that is {_kind(part)}")
        elif kind in _TEXT_PARTS and isinstance(part.get("text"), str):
            said.append(part["text"])
        elif kind in _THOUGHT_PARTS and where == "content":
            thought = part.get(_THOUGHT_PARTS[kind]) or part.get("text")
            thoughts += _read_text(thought, f"a {kind} part", flaws)
        else:
            flaws.append(f"{where} has a part of type {str(kind)[:40]}, which is no text")
    return "".join(said), "".join(thoughts)


def _read_calls(message: dict[str, Any], flaws: list[str]) -> list[dict[str, Any]] | None:
    calls = message.get("tool_calls") or None
    if calls is None and isinstance(message.get("function_call"), dict):
        # The form before tools.
        return [{"type": "function", "function": message["function_call"]}]
    if calls is None or (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        return calls
    flaws.append(f"tool_calls is {_kind(calls)}" if not isinstance(calls, list) else "tool_calls hold what is no call")
    return None


def _read_finish(finish: object, flaws: list[str]) -> str | None:
    """SGLang's own form is an object with a type."""
    if isinstance(finish, dict):
        finish = finish.get("type")
    if isinstance(finish, str | None):
        return finish
    flaws.append(f"finish_reason is {_kind(finish)}")
    return None


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return "a text"
    return "null" if value is None else "true or false" if isinstance(value, bool) else "a number"
