"""Call verb `verify`: reads a whole output and tells whether its records are good and its ledger is right.

Writes nothing. While a generator works on it, what it appends meanwhile may be missing from one file or another; the
answer says that it runs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from rackhand.contract import from_json, to_json
from rackhand.contract.checks import NAMED, ShardCheck, Verified, VerifyRequest
from rackhand.contract.job import DONE_FILE, FAILURES_FILE, JOB_FILE, MANIFEST_FILE, REJECTED_FILE
from remote import fastjson
from remote.cli import Emit, VerbError
from remote.generator.feeding import Feeding
from remote.generator.quality import Quality, has_answer, parse_quality
from remote.generator.reply import Reply
from remote.heartbeat import Beat
from remote.output.done_file import IMPORTED_FILE, observe_done
from remote.output.index_set import MAX_INDEX, IndexSet
from remote.output.job_file import RefusedError, observe_job, observe_lock
from remote.output.jsonl import observe_indices
from remote.output.shards import Closed, is_compressed, observe_manifest, observe_shards, shard_number
from remote.output.state import observe_state
from remote.output.uploads_file import UPLOADED_FILE, observe_uploads
from remote.output.zstd_frames import observe_frames
from remote.packages import MissingPackageError

_UNANSWERED = "length, without an answer"
"""Counted apart while records are read: told as length in the end."""
_EXAMPLES = 5


def call(data: Any, emit: Emit, _body: BinaryIO) -> None:
    request = from_json(VerifyRequest, data)
    output = Path(request.output)
    if not output.is_dir():
        raise VerbError("missing", f"no output {output}", "./inv resume it first")
    try:
        quality = parse_quality(request.quality)
        others = (other for other in request.job_outputs if other != request.output and Path(other, JOB_FILE).exists())
        emit(to_json(replace(verify(output, quality, emit), others=tuple(others))))
    except ValueError as error:
        raise VerbError("usage", str(error)) from None
    except (MissingPackageError, RefusedError) as error:
        raise VerbError("missing", str(error)) from None


def verify(output: Path, quality: Quality, emit: Emit | None = None) -> Verified:
    """RefusedError when job.json can't be read."""
    job = observe_job(output)
    check = _Check(quality.within(Feeding(job.sampling).max_tokens) if job else quality, emit)
    manifest = observe_manifest(output / MANIFEST_FILE)
    first = job.first_shard if job else 0
    own = {number: path for number, path in observe_shards(output).items() if number >= first}
    for number, path in own.items():
        check.shard(path, manifest.get(path.name), is_last=number == max(own))
    away = [name for name in manifest if shard_number(name) >= first and shard_number(name) not in own]
    gone = [name for name in away if name not in observe_uploads(output)]
    notes = [f"{name}: in the manifest but not here" for name in gone]
    rejected = observe_indices(output / REJECTED_FILE)
    imported = observe_done(output / IMPORTED_FILE).indices
    elsewhere = IndexSet([*imported, *observe_done(output / UPLOADED_FILE).indices])
    listed = observe_done(output / DONE_FILE)
    if listed.duplicates or listed.bad_lines or listed.torn:
        notes.append(f"{DONE_FILE}: {listed.duplicates} twice, {listed.bad_lines} unreadable, {listed.torn} bytes torn")
    notes += _disagreement(check.seen, rejected, elsewhere, listed.indices, unread=bool(gone))
    cut = check.take_cut_on_purpose()
    unread = observe_state(output).progress
    return Verified(
        output=str(output),
        records=len(check.seen),
        listed=len(listed.indices),
        rejected=dict(_reasons(output / REJECTED_FILE)),
        failed=len(observe_indices(output / FAILURES_FILE)),
        imported=len(imported),
        mean_tokens=round(check.tokens / len(check.seen), 1) if len(check.seen) else 0.0,
        finish_reasons=dict(check.finish_reasons),
        faults=dict(check.faults),
        examples={reason: tuple(where) for reason, where in check.examples.items()},
        shards=tuple(check.shards),
        problems=tuple([problem for shard in check.shards for problem in shard.problems] + notes),
        running=observe_lock(output),
        cut_on_purpose=cut,
        bad_lines=unread.bad_lines if unread else 0,
        bad_line_numbers=tuple(unread.bad_line_numbers) if unread else (),
    )


def _disagreement(
    seen: IndexSet, rejected: IndexSet, elsewhere: IndexSet, listed: IndexSet, *, unread: bool
) -> list[str]:
    unlisted = [index for part in (seen, rejected) for index in part if index not in listed]
    unstored = [i for i in listed if not (i in seen or i in rejected or i in elsewhere)] if not unread else []
    both = [index for index in rejected if index in seen]
    return [
        f"{what}: {len(found)}, the first {', '.join(map(str, found[:NAMED]))}"
        for what, found in (
            (f"finished but not in {DONE_FILE}", unlisted),
            (f"in {DONE_FILE} without a record", unstored),
            (f"in a shard and in {REJECTED_FILE}", both),
        )
        if found
    ]


class _Check:
    def __init__(self, quality: Quality, emit: Emit | None) -> None:
        self.seen = IndexSet()
        self.tokens = 0
        self.finish_reasons: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.shards: list[ShardCheck] = []
        self._quality = quality
        self._beat = Beat(emit, "")

    def shard(self, path: Path, closed: Closed | None, *, is_last: bool) -> None:
        size = path.stat().st_size
        problems = []
        twice = bad = count = 0
        for number, line in enumerate(_lines(path)):
            index = self._record(line, f"{path.name}:{number + 1}")
            if index is None:
                bad += 1
            elif not self.seen.add(index):
                twice += 1
            else:
                count += 1
        if twice:
            problems.append(f"{path.name}: {twice} indices that stand elsewhere too")
        if bad:
            problems.append(f"{path.name}: {bad} lines that are no whole record")
        state = "open"
        if closed is not None:
            wrong = self._against_manifest(path, closed, count + twice)
            state = "closed" if not wrong else "differs"
            problems += wrong
        elif not is_last:
            problems.append(f"{path.name}: not in the manifest; the next start closes it")
            state = "unclosed"
        self.shards.append(ShardCheck(path.name, count, size, state, tuple(problems)))

    def _against_manifest(self, path: Path, closed: Closed, count: int) -> list[str]:
        problems = []
        size = path.stat().st_size
        if size != closed.size:
            problems.append(f"{path.name}: {size} bytes, the manifest says {closed.size}")
        elif self._sha256(path) != closed.sha256:
            problems.append(f"{path.name}: its sha256 isn't the manifest's")
        if count != closed.count:
            problems.append(f"{path.name}: {count} records, the manifest says {closed.count}")
        return problems

    def _record(self, line: bytes, where: str) -> int | None:
        self._beat(where)
        try:
            record = fastjson.loads(line) if line.endswith(b"}\n") else None
            index = record["index"] if isinstance(record, dict) else None
            reply = _reply_of(record) if isinstance(record, dict) else None
        except (ValueError, KeyError):
            return None
        if not isinstance(index, int) or not 0 <= index <= MAX_INDEX or reply is None:
            return None
        self.tokens += reply.output_tokens
        self.finish_reasons[reply.finish_reason or "none"] += 1
        fault = self._quality.find_fault(reply)
        if fault is not None:
            reason = _UNANSWERED if fault.reason == "length" and not has_answer(reply) else fault.reason
            self.faults[reason] += 1
            examples = self.examples.setdefault(reason, [])
            if len(examples) < _EXAMPLES:
                examples.append(f"{where}: {fault.detail}")
        return index

    def take_cut_on_purpose(self) -> int:
        """How many records the length limit was meant to cut; those are faults no more. What was cut before its answer
        began stays one, whatever its share."""
        cut = 0
        if self._quality.is_cut_on_purpose(self.faults["length"], len(self.seen)):
            self.examples.pop("length", None)
            cut = self.faults.pop("length")
        if unanswered := self.faults.pop(_UNANSWERED, 0):
            self.faults["length"] += unanswered
            examples = [*self.examples.pop(_UNANSWERED), *self.examples.get("length", [])]
            self.examples["length"] = examples[:_EXAMPLES]
        return cut

    def _sha256(self, path: Path) -> str:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                self._beat(f"{path.name}, its sha256")
        return digest.hexdigest()


def _lines(path: Path) -> Iterator[bytes]:
    if is_compressed(path):
        for piece in observe_frames(path):
            yield from [b""] if piece.data is None else (line + b"\n" for line in piece.data.split(b"\n")[:-1])
        return
    with path.open("rb") as file:
        yield from file


def _reply_of(record: dict[str, Any]) -> Reply | None:
    completion, usage = record["completion"], record.get("usage")
    if not isinstance(completion, str):
        return None
    return Reply(
        completion,
        record.get("reasoning"),
        record.get("tool_calls"),
        record.get("finish_reason"),
        usage if isinstance(usage, dict) else None,
        record.get("model"),
    )


def _reasons(path: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    if not path.exists():
        return found
    with path.open("rb") as file:
        for line in file:
            found[_reason(line)] += 1
    return found


def _reason(line: bytes) -> str:
    try:
        return str(fastjson.loads(line).get("reason") or "empty")
    except (ValueError, AttributeError):
        return "unreadable"
