"""A job's files, as both sides see them: job.json, progress.json, control.json, the record, and what `observe` finds.

Pure, standard library only, Python 3.10. The formats are set in docs/generator.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal

VERSION = "0.1.0"
"""The generator's version, written to job.json; the same as the distribution's."""

WHOLE_BYTES = 64 << 20
_SAMPLE_BYTES = 64 << 10
_SAMPLES = 64

FORMAT = 1
"""Of job.json. A generator refuses a higher one."""

Status = Literal["running", "draining", "paused", "done", "stopped", "failed", "killed", "suspended", "starting"]
"""The last three aren't written by a generator: they are what is found of one that can't write any more, or not yet."""
AT_WORK = ("running", "draining", "paused")
OVER = ("done", "stopped", "failed", "killed")
Wish = Literal["active", "draining", "stopped", "starting"]
WISHES: tuple[Wish, ...] = ("active", "draining", "stopped", "starting")
"""starting: not yet to be used, as draining, of a server that comes up."""

JOB_FILE = "job.json"
PROGRESS_FILE = "progress.json"
DONE_FILE = ".done_indices"
LOCK_FILE = ".lock"
EXIT_FILE = ".exit_status"
"""The exit status of the last generator, by the script that ran it."""
MANIFEST_FILE = "manifest.jsonl"
FAILURES_FILE = "failures.jsonl"
REJECTED_FILE = "rejected.jsonl"
UPLOADS_FILE = "uploads.jsonl"

PROMPT_SHAPES = ("messages", "conversations", "prompt", "instruction")
"""Of a row, in the order in which they are looked for."""
PROMPT_COLUMNS = (*PROMPT_SHAPES, "input", "system", "tools", "id")
"""What a job's `columns` can map to the file's own names."""
BAD_LINES_NAMED = 20
"""So many lines that can't be read are named by number; the others are counted."""
_NAMED_IN_A_LINE = 5
OBJECT_STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "file")
"""Schemes of `object_store`."""


@dataclass(frozen=True)
class PromptsDigest:
    """What a prompts file is known by. `whole`: the sha256 is of all its bytes, else of its size and sampled blocks."""

    size: int
    sha256: str
    whole: bool


@dataclass(frozen=True)
class JobFile:
    """job.json: what an output was made from. `created` is UTC, ISO 8601.

    `first_shard` is the number of the first shard that is the generator's own; `imported` counts the indices taken
    from a `.done_indices` that was there before the job; `reading` is how rows were read, where not the default.
    """

    format: int
    generator: str
    created: str
    prompts: str
    prompts_digest: PromptsDigest
    sampling: dict[str, Any]
    sampling_sha256: str
    shard: int = 0
    shards: int = 1
    first_shard: int = 0
    imported: int = 0
    model: str | None = None
    reading: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerProgress:
    """One server's share of this run. `state`: active, open (its breaker), draining, stopped, starting.

    `limit` is how many requests it may hold, `capacity` its effective max running requests, `running` and `queue`
    what it said last; None where it didn't say. `tokens_per_s` is output tokens over the last 5 minutes.
    `output_lengths` counts completions by length_class, as text.
    """

    state: str
    in_flight: int = 0
    limit: int = 0
    capacity: int | None = None
    running: int | None = None
    queue: int | None = None
    completed: int = 0
    failures: int = 0
    empty: int = 0
    output_tokens: int = 0
    avg_output_tokens: float = 0.0
    avg_latency_s: float = 0.0
    tokens_per_s: float = 0.0
    finish_reasons: dict[str, int] = field(default_factory=dict)
    quality: dict[str, int] = field(default_factory=dict)
    output_lengths: dict[str, int] = field(default_factory=dict)
    last_error: str | None = None


@dataclass(frozen=True)
class Progress:
    """progress.json. `total` None: the rows aren't counted yet; `eta_hours` None: no rate yet; `left` are prompts of
    this shard that are still to be answered.

    `completed`, `failed`, `rejected`, tokens and `elapsed_hours` are this run's; `failed` holds `rejected`;
    `quality` counts its prompts by fault, those that are only counted (length) too; a server's counts its answers.
    `input` counts what is odd about the lines that were read, by kind; `bad_lines` are left out, `bad_line_numbers` are
    the first BAD_LINES_NAMED of them.
    `s3_uploaded` shards and `s3_bytes` stand verified in the object store, of the whole job; `uploads_left` are closed
    shards that don't yet. `updated` is UTC, ISO 8601; `message` says why a job is paused, stopped or failed.
    `concurrency` is what a server may hold now, as asked: a number or auto; "" in older ones.
    `pid` and `start_ticks` (field 22 of /proc/PID/stat) are the generator's; `oom_kills` is what the kernel has counted
    in its container so far, None: unknown.
    """

    total: int | None
    completed: int
    failed: int
    rate_per_sec: float
    eta_hours: float | None
    total_input_tokens: int
    total_output_tokens: int
    avg_output_tokens: float
    elapsed_hours: float
    s3_uploaded: int
    s3_bytes: int
    status: str
    completed_before: int = 0
    failed_before: int = 0
    in_flight: int = 0
    rejected: int = 0
    quality: dict[str, int] = field(default_factory=dict)
    bad_lines: int = 0
    bad_line_numbers: list[int] = field(default_factory=list)
    input: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    uploads_left: int = 0
    upload_trouble: str = ""
    tokens_per_s: float = 0.0
    pid: int = 0
    updated: str = ""
    message: str = ""
    servers: dict[str, ServerProgress] = field(default_factory=dict)
    left: int | None = None
    start_ticks: int = 0
    oom_kills: int | None = None
    concurrency: str = ""


@dataclass(frozen=True)
class Control:
    """control.json: the wish for each server, by root URL (no /v1), and requests in flight per server for each output:
    a number or auto, as text. A server that isn't named is active; an output that isn't keeps its --concurrency."""

    servers: dict[str, str] = field(default_factory=dict)
    concurrency: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """One line of a shard, keys in this order. `index` is the number of newline bytes before the row."""

    index: int
    id: Any
    messages: list[dict[str, Any]]
    completion: str
    reasoning: str | None
    tool_calls: list[dict[str, Any]] | None
    finish_reason: str | None
    usage: dict[str, Any] | None
    model: str | None
    server: str
    attempts: int
    latency_s: float
    created: str


@dataclass(frozen=True)
class JobState:
    """What is found at a job's output. `pid`: the generator that holds the lock, None when none does.

    `finished` counts the indices in `.done_indices`; a torn last line isn't one. `job` None: no job.json, so the
    output is new or somebody else's. `problem` says what couldn't be read.
    """

    output: str
    exists: bool = False
    pid: int | None = None
    finished: int = 0
    job: JobFile | None = None
    progress: Progress | None = None
    problem: str = ""


def digest_prompts(file: BinaryIO, size: int) -> PromptsDigest:
    """Up to 64 MiB by all bytes, beyond by size and 64 blocks from first to last: no full read of a big file."""
    whole = size <= WHOLE_BYTES
    digest = hashlib.sha256() if whole else hashlib.sha256(b"%d\n" % size)
    if whole:
        while block := file.read(1 << 20):
            digest.update(block)
    else:
        for i in range(_SAMPLES):
            file.seek((size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return PromptsDigest(size, digest.hexdigest(), whole=whole)


def length_class(tokens: int) -> int:
    """The most tokens of a completion's class: 0, or the next power of two; so 5 to 8 tokens are class 8."""
    return 1 << (tokens - 1).bit_length() if tokens > 0 else 0


def root_url(url: str) -> str:
    """The server's root: no slash and no /v1 at the end. Servers are known by it in all files."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def sampling_sha256(sampling: dict[str, Any]) -> str:
    """The digest of sampling options; the order of keys doesn't matter."""
    return hashlib.sha256(json.dumps(sampling, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def bad_lines_words(count: int, numbers: Sequence[int]) -> str:
    """`3 lines could not be read (lines 3, 17, 20)`; the first few by number. Empty when there is none."""
    if not count:
        return ""
    named = ", ".join(map(str, numbers[:_NAMED_IN_A_LINE]))
    more = " ..." if count > len(numbers[:_NAMED_IN_A_LINE]) else ""
    one = count == 1
    where = f" (line{'' if one else 's'} {named}{more})" if named else ""
    return f"{count} line{'' if one else 's'} could not be read{where}"


def bad_lines_of(fields: Mapping[str, Any]) -> str:
    """`bad_lines_words` of a progress.json, whoever wrote it."""
    numbers = fields.get("bad_line_numbers")
    named = [n for n in numbers if isinstance(n, int)] if isinstance(numbers, list | tuple) else []
    return bad_lines_words(whole_of(fields, "bad_lines") or 0, named)


def whole_of(fields: Mapping[str, Any], name: str) -> int | None:
    """A whole number of a progress.json, whoever wrote it; None when there is none of that name."""
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def real_of(fields: Mapping[str, Any], name: str) -> float | None:
    """A number of a progress.json, whoever wrote it; None when there is none of that name."""
    value = fields.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def plan_refusals(job: JobFile, digest: PromptsDigest, sampling: dict[str, Any], shards: int) -> list[str]:
    """Why this output can't be resumed with these prompts, sampling and shard count; empty when it can."""
    problems = []
    if job.format > FORMAT:
        problems.append(f"{JOB_FILE} has format {job.format}, this generator knows {FORMAT}")
    if job.prompts_digest != digest:
        problems.append(f"the prompts changed: {job.prompts_digest.size} bytes then, {digest.size} bytes now")
    if job.sampling_sha256 != sampling_sha256(sampling):
        names = sorted(k for k in {*job.sampling, *sampling} if job.sampling.get(k) != sampling.get(k))
        problems.append(f"the sampling changed: {', '.join(names)}")
    if job.shards != shards:
        problems.append(f"the output is of one in {job.shards} shards, asked is one in {shards}")
    return problems
