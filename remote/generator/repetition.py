"""Does a text say the same again and again: its end, and the most of a short one. Pure."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

_TAIL_BYTES = 4096
_WINDOW_BYTES = 32768
_SHORTEST_LOOP_BYTES = 400
_PIECE_BYTES = 16
_BACK_BYTES = (0, 37, 83, 151)

_SHORT_CHARS = 4096
_FEWEST_CHARS = 8
_BLANKS = (" ", "\n", "\t", "\r", "\u3000")
_HEAD_CHARS = 4

_NO_WORDS = 0.6
_LETTER = 2.0
_DIGITS = 3.0


@dataclass(frozen=True)
class Run:
    """A piece that stands `times` in a row. `weight`: times `max_repetition`, how many times are right for its kind."""

    piece: str
    times: int
    weight: float


def repetition(text: str) -> float:
    """How often a text's end repeats itself: how many times smaller zlib makes its last 4 KiB, or how many times in a
    row the last piece stands in its last 32 KiB, whichever is more. 1 for texts of less than 400 bytes and those that
    say nothing again at their end. Prose has 2 to 3, code up to 6, a sentence said over and over 20 and more."""
    data = text[-_WINDOW_BYTES:].encode("utf-8", "replace")[-_WINDOW_BYTES:]
    if len(data) < _SHORTEST_LOOP_BYTES:
        return 1.0
    tail = data[-_TAIL_BYTES:]
    ratio = len(tail) / len(zlib.compress(tail, 1)) if _says_again(tail) else 1.0
    return max(ratio, _times_in_a_row(data))


def _says_again(tail: bytes) -> bool:
    """Whether one of four pieces near the end stands before it too: so it is in every loop, also in one that counts,
    and hardly ever in prose. A tenth of what zlib costs."""
    for back in _BACK_BYTES:
        end = len(tail) - back
        if tail.rfind(tail[end - _PIECE_BYTES : end], 0, end - _PIECE_BYTES) >= 0:
            return True
    return False


def _times_in_a_row(data: bytes) -> int:
    """How many times the shortest piece that the end repeats stands there without a gap; a line of dashes is too short
    to count."""
    last = data[-2 * _PIECE_BYTES :]
    before = data.rfind(last, 0, len(data) - 1)
    if before < 0:
        return 1
    length = len(data) - len(last) - before
    piece, times = data[-length:], 1
    while data[-(times + 1) * length : -times * length] == piece:
        times += 1
    return times if times * length >= _TAIL_BYTES // 2 else 1


def find_run(text: str) -> Run | None:
    """The piece that fills more than half of a text of up to 4,096 characters, in a row, without its blanks and line
    ends. None where there is none, and for fewer than 8 characters."""
    if len(text) > _SHORT_CHARS:
        return None
    said = text
    for blank in _BLANKS:
        # Three times as fast as split and join.
        said = said.replace(blank, "")
    half, quarter = len(said) // 2, len(said) // 4
    if len(said) < _FEWEST_CHARS:
        return None
    # What fills more than half holds the quarter before the middle whole, or the one behind it.
    for begin in (half - quarter, half):
        period = _period(said[begin : begin + quarter])
        if not period:
            continue
        left = right = begin + period
        while right < len(said) and said[right] == said[right - period]:
            right += 1
        while left > period and said[left - 1 - period] == said[left - 1]:
            left -= 1
        left -= period
        if 2 * (right - left) > len(said):
            piece = said[left : left + period]
            return Run(piece, (right - left) // period, _weight(piece, said))
    return None


def _period(text: str) -> int:
    """Of the shortest piece that the whole text repeats, at least twice; 0 without one."""
    head = text[: max(1, min(_HEAD_CHARS, len(text) // 2))]
    period = text.find(head, 1)
    while 0 < period <= len(text) // 2:
        if text.startswith(text[:-period], period):
            return period
        period = text.find(head, period + 1)
    return 0


def _weight(piece: str, said: str) -> float:
    """Numbers have many equal digits by right (0.3333333333333333, a word of 32 bits), sequences and cries many equal
    letters. A model whose logits are broken says its token 0, which most often is a sign."""
    letters = sum(char.isalpha() for char in piece)
    if letters:
        return _LETTER if len(piece) == 1 else 1.0
    if any(char.isalnum() for char in piece):
        return _DIGITS
    return 1.0 if any(char.isalnum() for char in said) else _NO_WORDS
