"""Rows of a prompts file: what each means, and reading them in order without keeping them.

A row's index is the number of newline bytes before it; lines end with \\n only.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from remote import fastjson

_BOM = b"\xef\xbb\xbf"
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


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row that can be asked. `id` is the row's own, of any JSON type, None when it has none."""

    index: int
    id: Any
    messages: list[dict[str, Any]]
    tools: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class BadRow:
    """One row that can't be asked. People are told line index + 1."""

    index: int
    reason: str


Row = Prompt | BadRow


def parse_row(index: int, line: bytes) -> Row | None:
    """The row in `line`, None when the line is blank."""
    text = line.removeprefix(_BOM) if index == 0 else line
    text = text.strip()
    if not text:
        return None
    try:
        row = fastjson.loads(text)
    except ValueError as error:
        return BadRow(index, _undecodable(text) or f"not JSON: {error}"[:200])
    if not isinstance(row, dict):
        return BadRow(index, f"a JSON object was expected, not {type(row).__name__}")
    try:
        messages = _parse_messages(row)
        return Prompt(index, row.get("id"), messages, _parse_tools(row.get("tools")))
    except ValueError as error:
        return BadRow(index, str(error))


def _undecodable(text: bytes) -> str:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}"
    return ""


def _parse_messages(row: dict[str, Any]) -> list[dict[str, Any]]:
    for key, parse in (("messages", _chat), ("conversations", _sharegpt), ("prompt", _prompt)):
        value = row.get(key)
        if value is not None:
            messages = parse(key, value)
            while messages and messages[-1]["role"] == "assistant":
                messages.pop()
            if not messages:
                raise ValueError(f"{key} asks nothing: no turn before the assistant's")
            if not str(messages[-1].get("content") or "").strip():
                raise ValueError(f"{key}: the last turn is empty")
            return messages
    raise ValueError("none of prompt, messages, conversations")


def _prompt(key: str, value: object) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return _chat(key, value)
    if not isinstance(value, str):
        raise ValueError(f"{key} is {type(value).__name__}, not text")
    if not value.strip():
        raise ValueError(f"{key} is empty")
    return [{"role": "user", "content": value}]


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


def _turns(key: str, value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(turn, dict) for turn in value):
        raise ValueError(f"{key} is not a list of turns")
    return value


def _parse_tools(value: object) -> list[Any] | None:
    """A list, or the JSON text of one as the Hermes sets have it; empty is none."""
    if isinstance(value, str) and value.strip():
        try:
            value = fastjson.loads(value.encode())
        except ValueError as error:
            raise ValueError(f"tools: not JSON: {error}"[:200]) from None
    if not value:
        return None
    if not isinstance(value, list):
        raise ValueError("tools is not a list")
    return [
        tool if not isinstance(tool, dict) or "type" in tool else {"type": "function", "function": tool}
        for tool in value
    ]


def open_prompts(path: Path) -> BinaryIO:
    """Plain or .gz."""
    return cast("BinaryIO", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


class PromptReader:
    """Reads a prompts file once, in order. Blocking; used from one thread at a time."""

    def __init__(self, path: Path, *, wanted: Callable[[int], bool]) -> None:
        self._file = open_prompts(path)
        self._index = 0
        self._wanted = wanted
        self.ended = False

    def read(self, *, rows: int, size: int) -> list[Row]:
        """The next wanted rows: at most `rows`, and about `size` bytes of lines. Fewer only at the end."""
        found: list[Row] = []
        taken = 0
        while len(found) < rows and taken < size:
            line = self._file.readline()
            if not line:
                self.ended = True
                break
            index, self._index = self._index, self._index + 1
            if self._wanted(index):
                row = parse_row(index, line)
                if row is not None:
                    found.append(row)
                    taken += len(line)
        return found

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class RowCount:
    """Rows that aren't blank: all, and those of this shard."""

    total: int
    mine: int


def count_rows(path: Path, *, shard: int = 0, shards: int = 1) -> RowCount:
    with open_prompts(path) as file:
        total = mine = at = 0
        rest = b""
        while block := file.read(4 << 20):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                lines, rows, own = _count_block(whole, at, shard, shards)
                at, total, mine = at + lines, total + rows, mine + own
        if rest.strip():
            total, mine = total + 1, mine + (at % shards == shard)
    return RowCount(total, mine)


def _count_block(block: bytes, first: int, shard: int, shards: int) -> tuple[int, int, int]:
    """Lines, rows and own rows of a block of lines whose last newline is cut off."""
    lines: Iterator[bytes] | list[bytes] = block.split(b"\n")
    total = mine = count = 0
    for count, line in enumerate(lines, 1):
        if line and not line.isspace():
            total += 1
            mine += (first + count - 1) % shards == shard
    return count, total, mine
