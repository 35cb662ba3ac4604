"""What the output holds at the end, read from its files: was anything lost, is anything there twice?"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

DONE = ".done_indices"


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """`lost`: counted as finished at some time, or due, without a record. `twice`: indices with two records."""

    records: int
    lost: tuple[int, ...]
    twice: tuple[int, ...]

    @property
    def nothing_lost(self) -> bool:
        return not self.lost

    @property
    def nothing_twice(self) -> bool:
        return not self.twice


def done_indices(output: Path) -> set[int]:
    """The indices that the output counts as finished; a torn last line isn't one."""
    try:
        text = (output / DONE).read_text()
    except FileNotFoundError:
        return set()
    return {int(line) for line in text.split("\n")[:-1] if line}


def check_ledger(output: Path, *, due: set[int]) -> LedgerCheck:
    """Holds the records of all shards against `.done_indices` and against `due`, which must have records as well."""
    found: Counter[int] = Counter()
    for shard in sorted(output.glob("completions-*.jsonl")):
        with shard.open(encoding="utf-8") as lines:
            found.update(json.loads(line)["index"] for line in lines)
    lost = sorted((done_indices(output) | due) - set(found))
    twice = sorted(index for index, times in found.items() if times > 1)
    return LedgerCheck(sum(found.values()), tuple(lost), tuple(twice))
