"""The verbs `prompts` and `verify`: what a prompts file holds, and whether a finished output is right."""

from __future__ import annotations

from dataclasses import dataclass, field

NAMED = 20
"""Lines, duplicates and indices that are named; the others are counted."""


@dataclass(frozen=True)
class PromptsRequest:
    """`columns`, `keep`, `last_assistant`: how the job reads its rows."""

    path: str
    columns: dict[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    last_assistant: str = "drop"


@dataclass(frozen=True)
class NamedLine:
    """`line` counts from 1; in Parquet it is the row."""

    line: int
    what: str


@dataclass(frozen=True)
class PromptsCheck:
    """Event `prompts`. `rows` aren't blank; `shapes` counts those that can be asked.

    Of `bad_lines` `empty` ask nothing. `duplicates` ask what an earlier row asked (messages and tools); None: too
    many rows to say. `input` counts what is odd, by kind, as progress.json does. `chars`: least, p50, p90, p99, most
    and mean of the characters of a row's messages, p to three digits.
    """

    path: str
    bytes: int
    lines: int
    blank: int
    rows: int
    shapes: dict[str, int]
    with_tools: int
    with_system: int
    bad_lines: int
    empty: int
    bad: tuple[NamedLine, ...]
    duplicates: int | None
    duplicated: tuple[NamedLine, ...]
    chars: dict[str, float]
    notes: tuple[str, ...] = ()
    input: dict[str, int] = field(default_factory=dict)
    event: str = "prompts"


@dataclass(frozen=True)
class VerifyRequest:
    """`quality`: as the generator takes it: default, off, a JSON object, or a file in the container. `job_outputs`:
    where the job may have outputs, this one among them."""

    output: str
    quality: str = "default"
    job_outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class ShardCheck:
    """One shard. `state`: closed (its manifest line is true), open (the last one), or what is wrong with it."""

    shard: str
    records: int
    size: int
    state: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verified:
    """Event `verified`. `faults` counts stored records by quality fault, `examples` names lines of shards.

    `problems` are of the ledger: indices twice, digests, torn records, `.done_indices` and shards that disagree.
    `mean_tokens` of the output; `rejected` and `failed` are counted in their files. `others` are the job's other
    outputs that are there; nothing in them was read. `cut_on_purpose` records were cut by a max_tokens meant to
    cut, by their share; they are no fault. `bad_lines` of the prompts could not be read by the last run of the
    generator; `bad_line_numbers` are the first of them.
    """

    output: str
    records: int
    listed: int
    rejected: dict[str, int]
    failed: int
    imported: int
    mean_tokens: float
    finish_reasons: dict[str, int]
    faults: dict[str, int]
    examples: dict[str, tuple[str, ...]]
    shards: tuple[ShardCheck, ...]
    problems: tuple[str, ...]
    running: int | None = None
    others: tuple[str, ...] = ()
    cut_on_purpose: int = 0
    bad_lines: int = 0
    bad_line_numbers: tuple[int, ...] = ()
    event: str = "verified"
