"""What known_hosts files hold for a name. `ssh-keygen -F` says which lines count: it reads them as ssh does."""

from __future__ import annotations

import base64
import contextlib
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Marker = Literal["", "CA", "REVOKED"]
FOUND = re.compile(rb"# Host .* found: line (\d+) ?(CA|REVOKED)?\s*")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line that holds for the name: `source` is where it stands, `key` the public key as on the wire."""

    marker: Marker
    kind: str
    key: bytes
    source: str


def entries_of(name: str, files: Iterable[Path]) -> tuple[Entry, ...]:
    """As with ssh, a file that can't be read is empty, and a line that can't be read is left out."""
    found: list[Entry] = []
    for file in files:
        with contextlib.suppress(OSError):
            found += entries_in(name, file.read_bytes(), str(file))
    return tuple(found)


def entries_in(name: str, text: bytes, source: str) -> tuple[Entry, ...]:
    """The lines of `text` that hold for `name`: patterns, negation and hashed names as ssh takes them."""
    argv = ("ssh-keygen", "-l", "-F", name, "-f", "/dev/stdin")
    done = subprocess.run(argv, input=text, capture_output=True, timeout=30, check=False)
    lines = text.split(b"\n")
    found = (FOUND.fullmatch(line) for line in done.stdout.splitlines())
    return tuple(_entry(lines[int(match[1]) - 1], match, source) for match in found if match)


def _entry(line: bytes, match: re.Match[bytes], source: str) -> Entry:
    """ssh-keygen has checked the line's form and its key."""
    words = line.split()
    kind, key = words[2:4] if match[2] else words[1:3]
    marker: Marker = "CA" if match[2] == b"CA" else "REVOKED" if match[2] else ""
    return Entry(marker, kind.decode(), base64.b64decode(key), f"{source}:{int(match[1])}")
