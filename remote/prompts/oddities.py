"""What is odd about the lines of a prompts file, and how it is counted: the same for whoever reads one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

from remote.prompts.kinds import BOM

BadKind = Literal["not_utf8", "nul", "not_json", "deep", "shape", "empty", "error"]
LONG_BYTES = 10 << 20
_WORDS = {
    "bom": "begins with a byte order mark, which is skipped",
    "blank": "blank lines: {}",
    "crlf": "lines that end with CRLF, which is fine: {}",
    "long": f"lines of more than {LONG_BYTES >> 20} MiB: {{}}",
    "unended": "the last line has no newline: is the file whole?",
    "not_utf8": "lines that are not UTF-8: {}",
    "nul": "lines that hold raw NUL bytes: {}",
    "not_json": "lines that are not JSON: {}",
    "deep": "rows that are nested too deeply: {}",
    "shape": "rows of no known shape: {}",
    "empty": "rows that ask nothing: {}",
    "error": "rows that could not be handled: {}",
}
"""The kinds, in order. Those from `not_utf8` on are of bad lines, each of which has one."""


class Oddities(Counter[str]):
    """Counts by kind; a kind that didn't come up isn't there."""

    def note_line(self, index: int, line: bytes, kind: str | None) -> None:
        """A line with its newline. `kind`: what it turned out to be, blank or bad; None for one that can be asked."""
        if line.endswith(b"\r\n"):
            self["crlf"] += 1
        elif not line.endswith(b"\n"):
            self["unended"] += 1
        if index == 0 and line.startswith(BOM):
            self["bom"] += 1
        if len(line) > LONG_BYTES:
            self["long"] += 1
        self.note_kind(kind)

    def note_kind(self, kind: str | None) -> None:
        if kind is not None:
            self[kind] += 1


def words_of(oddities: Mapping[str, int]) -> list[str]:
    """For people, a note for each kind that came up."""
    return [words.format(oddities[kind]) for kind, words in _WORDS.items() if oddities.get(kind)]
