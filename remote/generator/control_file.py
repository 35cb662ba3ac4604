"""control.json: the wish for each server and the concurrency of each output, read again when it changes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from rackhand.contract import from_json
from rackhand.contract.job import WISHES, Control, Wish, root_url


@dataclass(frozen=True)
class Wanted:
    """`servers` by root URL; `concurrency` by output, None is auto."""

    servers: dict[str, Wish] = field(default_factory=dict)
    concurrency: dict[str, int | None] = field(default_factory=dict)


class ControlFile:
    """A missing file wishes all servers active. One that can't be read changes nothing, and is said once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self.problem: str | None = None

    def observe(self) -> Wanted | None:
        """The wishes, None when nothing changed since the last call."""
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen == self._seen:
                return None
            text = self._path.read_bytes()
        except FileNotFoundError:
            changed, self._seen = self._seen is not None, None
            return Wanted() if changed else None
        except OSError as error:
            self.problem = f"{self._path}: {error.strerror}"
            return None
        self._seen = seen
        try:
            wishes = parse_control(text)
        except ValueError as error:
            self.problem = f"{self._path}: {error}"
            return None
        self.problem = None
        return wishes


def parse_control(text: bytes) -> Wanted:
    """Raises ValueError that names what is wrong."""
    try:
        control = from_json(Control, json.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    wishes: dict[str, Wish] = {}
    for url, word in control.servers.items():
        wish = next((known for known in WISHES if known == word), None)
        if wish is None:
            raise ValueError(f"{url}: {word!r} is none of {', '.join(WISHES)}")
        wishes[root_url(url)] = wish
    return Wanted(wishes, {output: _concurrency(output, word) for output, word in control.concurrency.items()})


def _concurrency(output: str, word: str) -> int | None:
    if word != "auto" and not (word.isascii() and word.isdigit() and int(word) > 0):
        raise ValueError(f"{output}: concurrency {word!r} is neither auto nor a number above 0")
    return None if word == "auto" else int(word)
