"""Reading one mapping by a table of keys: every wrong key, type and gap becomes a mistake with its line."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from rackhand.arguments import looks_secret, scalar_value
from rackhand.errors import nearest
from rackhand.inventory import SecretRef
from rackhand.load.nodes import Entry, Items, Mistakes, Scalar, Table, Value

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Context:
    """What reading needs beside the value: where relative paths start, which variables are set, whether those of
    secrets must be, and the mistakes."""

    base: Path
    environ: Mapping[str, str]
    mistakes: Mistakes
    needs_secrets: bool = True

    def wrong(self, value: Value, what: str, hint: str = "", *, line: int | None = None) -> None:
        self.mistakes.add(value.line if line is None else line, f"{value.name or 'inventory'}: {what}", hint)


class WrongError(Exception):
    """A value that can't be used; caught by `read_section`, which names it and goes on."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


Read = Callable[[Value, Context], Any]


@dataclass(frozen=True, slots=True)
class Key:
    read: Read
    required: bool = False


def read_section(table: Table, keys: Mapping[str, Key], ctx: Context, *, partial: bool = False) -> dict[str, Any]:
    """The values that could be read. `partial` asks for no required keys: the section only lends its values."""
    found: dict[str, Any] = {}
    for name, entry in table.entries.items():
        if name not in keys:
            hint = nearest(name, list(keys))
            ctx.wrong(entry.value, "unknown key", hint, line=entry.line)
            continue
        try:
            found[name] = keys[name].read(entry.value, ctx)
        except WrongError as error:
            ctx.wrong(entry.value, error.what, error.hint)
    for name, key in keys.items():
        if key.required and not partial and not is_meant(name, table, keys):
            ctx.wrong(table, f"{name} is missing", f"add {name}:")
    return found


def is_meant(name: str, table: Table, keys: Mapping[str, Key]) -> bool:
    """Whether the key is there, or an unknown key that most likely is a slip for it."""
    unknown = table.entries.keys() - keys.keys()
    return name in table.entries or any(get_close_matches(key, keys, n=1) == [name] for key in unknown)


def as_table(value: Value) -> Table:
    """A mapping; nothing at all is an empty one."""
    if isinstance(value, Table):
        return value
    if isinstance(value, Scalar) and value.null:
        return Table({}, value.line, value.name)
    raise WrongError(f"expected a mapping, not {_kind(value)}", "write key: value lines below it")


def as_items(value: Value) -> Items:
    if isinstance(value, Items):
        return value
    if isinstance(value, Scalar) and value.null:
        return Items((), value.line, value.name)
    raise WrongError(f"expected a list, not {_kind(value)}", "write [a, b] or lines that begin with -")


def with_defaults(table: Table, defaults: Table, *, without: frozenset[str] = frozenset()) -> Table:
    """The table, with the keys it lacks from `defaults`: one level, a key's whole value or none of it."""
    lent: dict[str, Entry] = {key: entry for key, entry in defaults.entries.items() if key not in without}
    return replace(table, entries={**lent, **table.entries})


def _kind(value: Value) -> str:
    if isinstance(value, Table):
        return "a mapping"
    if isinstance(value, Items):
        return "a list"
    return "nothing" if value.null else "a single value"


def scalar(value: Value, wanted: str) -> str:
    if not isinstance(value, Scalar) or value.null:
        raise WrongError(
            f"expected {wanted}, not {_kind(value)}", "" if isinstance(value, Scalar) else "write one value"
        )
    return value.text


def text(value: Value, _: Context) -> str:
    """One line of text, as it was written: a version 0.10 stays 0.10."""
    words = scalar(value, "text")
    if not words.strip() or not words.isprintable():
        raise WrongError("expected one line of text", "quote it if it holds blanks at its ends")
    return words


def matching(pattern: str, wanted: str, hint: str = "", *, shown: bool = True) -> Read:
    """One line of text of that form. Without `shown`, a wrong one is not repeated: it may hold a secret."""
    compiled = re.compile(pattern, re.ASCII)

    def read(value: Value, ctx: Context) -> str:
        words = text(value, ctx)
        if not compiled.fullmatch(words):
            raise WrongError(f"{words!r} is not {wanted}" if shown else f"expected {wanted}", hint)
        return words

    return read


def one_of(*words: str) -> Read:
    def read(value: Value, ctx: Context) -> str:
        word = text(value, ctx)
        if word not in words:
            raise WrongError(f"{word!r} is not one of {', '.join(words)}", nearest(word, words))
        return word

    return read


def whole(least: int, most: int) -> Read:
    """A whole number; "30000" in quotes is one too."""

    def read(value: Value, _: Context) -> int:
        words = scalar(value, "a whole number")
        if not re.fullmatch(r"[0-9]{1,18}", words, re.ASCII):
            raise WrongError(f"{words!r} is not a whole number", f"write one from {least} to {most}")
        if not least <= int(words) <= most:
            raise WrongError(f"{words} is out of range", f"write one from {least} to {most}")
        return int(words)

    return read


def number(least: float, most: float, *, above: bool = False) -> Read:
    """A decimal number from `least` (or above it) to `most`."""

    def read(value: Value, _: Context) -> float:
        words = scalar(value, "a number")
        if not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,15})?", words, re.ASCII):
            raise WrongError(f"{words!r} is not a number", f"write one from {least:g} to {most:g}")
        found = float(words)
        if found > most or found < least or (above and found == least):
            raise WrongError(f"{words} is out of range", f"write one from {least:g} to {most:g}")
        return found

    return read


def plain(value: Value) -> Any:
    """The value as JSON has it: numbers, true and false only where they stand without quotes."""
    if isinstance(value, Table):
        return {key: plain(entry.value) for key, entry in value.entries.items()}
    if isinstance(value, Items):
        return [plain(item) for item in value.values]
    if value.null:
        return None
    return scalar_value(value.text) if value.plain else value.text


def truth(value: Value, _: Context) -> bool:
    words = scalar(value, "true or false").lower()
    if words not in ("true", "yes", "on", "false", "no", "off"):
        raise WrongError(f"{words!r} is neither true nor false", "write true or false")
    return words in ("true", "yes", "on")


def mode(value: Value, _: Context) -> int:
    """Permission bits, always octal: 644, 0644, "0o644"."""
    words = scalar(value, "a file mode").removeprefix("0o")
    if not re.fullmatch(r"0?[0-7]{3}", words, re.ASCII):
        raise WrongError(f"{words!r} is not a file mode", "write three octal digits, such as 755")
    return int(words, 8)


def local_path(value: Value, ctx: Context) -> Path:
    """A path on this machine; a relative one starts at the inventory's directory. It need not be there."""
    words = text(value, ctx)
    try:
        path = Path(words).expanduser()
    except RuntimeError:
        raise WrongError(f"{words!r} names no home directory", "write the path out") from None
    return Path(os.path.normpath(ctx.base / path))


def container_path(value: Value, ctx: Context) -> str:
    """An absolute path in the container, without . and .. in it."""
    words = text(value, ctx)
    parts = words.split("/")[1:]
    if not words.startswith("/") or any(part in (".", "..") for part in parts):
        raise WrongError(f"{words!r} is not an absolute path", "write the path in the container from / on, without ..")
    return "/" + "/".join(part for part in parts if part)


def secret(value: Value, ctx: Context) -> SecretRef:
    """{env: NAME} or {command: [word, ...] | text}. A variable must be set where secrets are needed; a command runs at
    its first use."""
    if not isinstance(value, Table):
        raise WrongError("a secret can't stand in the inventory", "write {env: NAME} or {command: [...]}")
    found = read_section(value, SECRET, ctx)
    if len(value.entries.keys() & SECRET.keys()) != 1:
        raise WrongError("needs either env or command", "write {env: NAME} or {command: [...]}")
    if ctx.needs_secrets and "env" in found and not ctx.environ.get(found["env"]):
        raise WrongError(f"environment variable {found['env']} is not set", f"export {found['env']}=...")
    return SecretRef(env=found.get("env"), command=found.get("command"), cwd=ctx.base if "command" in found else None)


def _words(value: Value, ctx: Context) -> tuple[str, ...]:
    if isinstance(value, Items):
        words = [scalar(item, "a word") for item in value.values]
    else:
        try:
            words = shlex.split(text(value, ctx))
        except ValueError as error:
            raise WrongError(f"can't be split into words: {error}", "write a list of words") from None
    if not words or not words[0]:
        raise WrongError("holds no command", "write a list of words")
    return tuple(words)


def _variable(value: Value, _: Context) -> str:
    """The name is not shown when it may be the secret itself, put in the wrong place."""
    words = scalar(value, "the name of an environment variable")
    if not VARIABLE.fullmatch(words) or looks_secret("", words):
        raise WrongError(
            "expected the name of an environment variable", "letters, digits and _, never the secret itself"
        )
    return words


VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
SECRET = {"env": Key(_variable), "command": Key(_words)}
