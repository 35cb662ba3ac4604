"""What a row of a prompts file asks, by its shape: messages, conversations, prompt, instruction. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rackhand.contract.job import PROMPT_COLUMNS, PROMPT_SHAPES
from remote import fastjson

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "tool_response": "tool",
    "function_response": "tool",
    "observation": "tool",
}


@dataclass(frozen=True)
class Reading:
    """How rows are read. `columns`: the file's own names for some of PROMPT_COLUMNS; `keep`: columns that go
    into the record; `last_assistant`: a turn of the assistant's at the end is dropped, or continued."""

    columns: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    last_assistant: Literal["drop", "continue"] = "drop"

    def column(self, name: str) -> str:
        return self.columns.get(name, name)

    @property
    def asked(self) -> tuple[str, ...]:
        """Columns whose values go into the request."""
        return tuple(self.column(name) for name in PROMPT_COLUMNS if name != "id")

    @property
    def used(self) -> tuple[str, ...]:
        """Every column that is looked at."""
        return tuple(dict.fromkeys((*(self.column(name) for name in PROMPT_COLUMNS), *self.keep)))

    def as_json(self) -> dict[str, Any]:
        """For job.json: what isn't the default."""
        own: dict[str, Any] = {"columns": dict(self.columns), "keep": list(self.keep)}
        if self.last_assistant != "drop":
            own["last_assistant"] = self.last_assistant
        return {name: value for name, value in own.items() if value}


PLAIN = Reading()


def reading_of(columns: Mapping[str, str], last_assistant: str, keep: tuple[str, ...] = ()) -> Reading:
    """Of a request of the control side."""
    return Reading(columns, keep, "continue" if last_assistant == "continue" else "drop")


@dataclass(frozen=True, slots=True)
class Asked:
    """`shape` names the column it came from; `continues`: the last turn is the assistant's, to be continued."""

    shape: str
    messages: list[dict[str, Any]]
    tools: list[Any] | None
    continues: bool


class EmptyPromptError(ValueError):
    """A row of a known shape that asks nothing."""


def parse_asked(row: Mapping[str, Any], reading: Reading = PLAIN) -> Asked:
    """ValueError says what is wrong with the row."""
    for shape in PROMPT_SHAPES:
        key = reading.column(shape)
        value = row.get(key)
        if value is None:
            continue
        if shape == "instruction":
            messages = _instruction(key, value, row.get(reading.column("input")))
        else:
            messages = _PARSERS[shape](key, value)
        messages = _with_system(messages, row.get(reading.column("system")))
        continues = _settle_end(key, messages, reading)
        return Asked(shape, messages, parse_tools(row.get(reading.column("tools"))), continues)
    keys = ", ".join(row)[:80] or "none"
    raise ValueError(f"none of {', '.join(reading.column(shape) for shape in PROMPT_SHAPES)}; its keys: {keys}")


def _settle_end(key: str, messages: list[dict[str, Any]], reading: Reading) -> bool:
    """Drops the assistant's turns at the end, or keeps one to be continued."""
    last = messages[-1] if messages else {}
    text = last.get("content") if last.get("role") == "assistant" and not last.get("tool_calls") else None
    if reading.last_assistant == "continue" and isinstance(text, str) and text.strip() and len(messages) > 1:
        return True
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages or messages[-1]["role"] == "system":
        raise EmptyPromptError(f"{key} asks nothing: no turn before the assistant's")
    if not str(messages[-1].get("content") or "").strip():
        raise EmptyPromptError(f"{key}: the last turn is empty")
    return False


def _with_system(messages: list[dict[str, Any]], system: object) -> list[dict[str, Any]]:
    if not isinstance(system, str) or not system.strip() or (messages and messages[0]["role"] == "system"):
        return messages
    return [{"role": "system", "content": system}, *messages]


def _prompt(key: str, value: object) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return _chat(key, value)
    if not isinstance(value, str):
        raise ValueError(f"{key} is {type(value).__name__}, not text")
    if not value.strip():
        raise EmptyPromptError(f"{key} is empty")
    return [{"role": "user", "content": value}]


def _instruction(key: str, value: object, more: object) -> list[dict[str, Any]]:
    """Alpaca's: the input, when there is one, stands below the instruction. `output` is the answer to be made."""
    if more is not None and not isinstance(more, str):
        raise ValueError(f"input is {type(more).__name__}, not text")
    (turn,) = _prompt(key, value) if isinstance(value, str) else _prompt(key, {})
    if more and more.strip():
        turn["content"] = f"{turn['content']}\n\n{more}"
    return [turn]


def _chat(key: str, value: object) -> list[dict[str, Any]]:
    messages = []
    for message in _turns(key, value):
        if not isinstance(message.get("role"), str):
            raise ValueError(f"{key}: a turn without a role")
        if message.get("content") is None and not message.get("tool_calls"):
            raise ValueError(f"{key}: a turn without content")
        messages.append(message)
    return messages


def _sharegpt(key: str, value: object) -> list[dict[str, Any]]:
    messages = []
    for turn in _turns(key, value):
        if "from" not in turn and "role" in turn:
            return _chat(key, value)
        role, text = _ROLES.get(str(turn.get("from"))), turn.get("value")
        if role is None:
            raise ValueError(f"{key}: a turn from {turn.get('from')!r}")
        if not isinstance(text, str):
            raise ValueError(f"{key}: a turn without a value")
        messages.append({"role": role, "content": text})
    return messages


_PARSERS = {"messages": _chat, "conversations": _sharegpt, "prompt": _prompt}


def _turns(key: str, value: object) -> list[dict[str, Any]]:
    """A list, or the JSON text of one as some sets have it."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = fastjson.loads(value.encode())
        except ValueError as error:
            raise ValueError(f"{key}: not JSON: {error}"[:200]) from None
    if not isinstance(value, list) or not all(isinstance(turn, dict) for turn in value):
        raise ValueError(f"{key} is not a list of turns")
    return value


def parse_tools(value: object) -> list[Any] | None:
    """A list, or the JSON text of one as the Hermes sets have it; empty is none."""
    if isinstance(value, str) and value.strip():
        try:
            value = fastjson.loads(value.encode())
        except ValueError as error:
            raise ValueError(f"tools: not JSON: {error}"[:200]) from None
    if not value or value == " ":
        return None
    if not isinstance(value, list):
        raise ValueError("tools is not a list")
    return [
        tool if not isinstance(tool, dict) or "type" in tool else {"type": "function", "function": tool}
        for tool in value
    ]
