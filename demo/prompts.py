"""The demo's prompts: a few thousand rows, the same ones at every run, in the three shapes that rows may have."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROWS = 2800
SEED = 20260
SUBJECTS = ("a linked list", "the area of a triangle", "a bank transfer", "tomorrow's weather", "a sorted array")
ASKS = ("Explain {}.", "Write a function about {}.", "Find the mistake in this note on {}.", "Give three uses of {}.")
SYSTEM = "You are careful and brief."


def rows(count: int) -> Iterator[dict[str, Any]]:
    """`count` rows: prompt, messages and conversations in turn."""
    chance = random.Random(SEED)  # noqa: S311
    for number in range(count):
        ask = f"{chance.choice(ASKS).format(chance.choice(SUBJECTS))} Case {number}."
        yield {"id": f"demo-{number}", **_shaped(number % 3, ask)}


def _shaped(shape: int, ask: str) -> dict[str, Any]:
    if shape == 0:
        return {"prompt": ask}
    if shape == 1:
        return {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ask}]}
    return {"conversations": [{"from": "system", "value": SYSTEM}, {"from": "human", "value": ask}]}


def ensure_prompts(state: Path, count: int = ROWS) -> Path:
    """The file that inventory/lab.yaml uploads, written when it isn't there."""
    path = state / "prompts.jsonl"
    if not path.exists():
        write_prompts(path, count)
    return path


def write_prompts(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows(count))
