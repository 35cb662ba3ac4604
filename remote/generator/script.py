"""How much of a text is written in some script, by Unicode's names of its letters. Pure.

It tells scripts apart, not languages: English and German are both Latin. Digits, marks, signs and code's brackets
aren't letters and don't count.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Collection
from functools import lru_cache

SCRIPTS = (
    "arabic", "armenian", "bengali", "cyrillic", "devanagari", "ethiopic", "georgian", "greek", "gujarati", "han",
    "hangul", "hebrew", "hiragana", "kannada", "katakana", "khmer", "lao", "latin", "malayalam", "myanmar", "sinhala",
    "tamil", "telugu", "thai", "tibetan",
)  # fmt: skip
_FEWEST_LETTERS = 20
_MOST_CHARACTERS = 20_000


@lru_cache(maxsize=1 << 14)
def script_of(letter: str) -> str:
    """One of SCRIPTS or another word of Unicode's; empty for what is no letter."""
    if not letter.isalpha():
        return ""
    first = unicodedata.name(letter, "").replace("-", " ").partition(" ")[0].lower()
    return "han" if first == "cjk" else "latin" if first == "fullwidth" else first


def script_share(text: str, scripts: Collection[str]) -> float | None:
    """The share of its letters that are of those scripts; None when it has too few to say."""
    letters: Counter[str] = Counter()
    for character, count in Counter(text[:_MOST_CHARACTERS]).items():
        letters[script_of(character)] += count
    del letters[""]
    total = sum(letters.values())
    return sum(letters[name] for name in scripts) / total if total >= _FEWEST_LETTERS else None
