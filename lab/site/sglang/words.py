"""What the simulated model says: lengths and words that follow from the prompt alone, so that a run can be repeated."""

from __future__ import annotations

import hashlib
import random
from typing import NamedTuple

WORDS = (
    "the model reads a prompt and answers with words that look like language so the test can count them while every "
    "server keeps its own pace first we note what is given then we compare two cases and see which one holds for all "
    "numbers in a list of values therefore sum of both parts equals whole if step by step reasoning stays short it "
    "helps but when result needs proof more detail follows here code returns value after loop ends because index "
    "starts at zero function takes argument checks type writes output file data line table row key"
)
WORD_LIST = WORDS.split()


class Answer(NamedTuple):
    """One completion: tokens in all, those of them that are reasoning, whether the model ended by itself, the texts."""

    tokens: int
    reasoning_tokens: int
    ended: bool
    reasoning: str
    content: str


class Lengths(NamedTuple):
    """How long completions are, tokens: log-normal of that sigma, or from a quarter to seven quarters of the mean,
    evenly spread, where sigma is 0."""

    mean_tokens: float
    sigma: float = 0.0

    def draw(self, dice: random.Random) -> int:
        """The length of one completion."""
        if self.sigma:
            return max(1, round(self.mean_tokens * dice.lognormvariate(-(self.sigma**2) / 2, self.sigma)))
        return max(1, round(self.mean_tokens * dice.uniform(0.25, 1.75)))


def prompt_tokens(text: str) -> int:
    """Tokens of a text: about four characters each."""
    return max(1, (len(text) + 3) // 4)


def make_answer(prompt: str, *, seed: int, lengths: Lengths, max_tokens: int, thinking: bool, endless: bool) -> Answer:
    """The answer to a prompt; `endless` (ignore_eos) always uses all of `max_tokens`."""
    digest = hashlib.blake2b(prompt.encode(), digest_size=8, key=str(seed).encode()).digest()
    dice = random.Random(digest)  # noqa: S311 - the same prompt gives the same words
    natural = lengths.draw(dice)
    tokens = max_tokens if endless else min(natural, max_tokens)
    words = dice.choices(WORD_LIST, k=min(tokens, 20_000))
    thought = min(tokens, round(natural * 0.6)) if thinking else 0
    return Answer(
        tokens=tokens,
        reasoning_tokens=thought,
        ended=not endless and natural <= max_tokens,
        reasoning=_sentence(words[:thought]),
        content=_sentence(words[thought:]),
    )


def _sentence(words: list[str]) -> str:
    return " ".join(words).capitalize() + "." if words else ""
