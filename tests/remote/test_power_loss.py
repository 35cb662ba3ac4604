"""The ledger when the power goes, a kill comes or the disk fails, at any writing call: what was acknowledged stands,
once, whatever of the rest is on disk, and every file is clean after the next start."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from remote.generator.quality import OFF
from remote.output.append_file import AppendFile
from remote.output.done_file import import_foreign
from remote.output.jsonl import record_index, repair_lines
from remote.output.ledger import Batch, Ledger
from remote.output.recovery import open_ledger
from remote.output.shards import observe_manifest, observe_sha256
from remote.output.upload import Uploader
from remote.verify import verify
from tests.remote.power import Disk, PowerLossError
from tests.remote.rig import listed


@dataclass(frozen=True)
class Fault:
    """What happens at the writing call number `after`; `kind` is power, kill, or an errno."""

    kind: str | int
    after: int
    share: float
    seed: int


FAULTS = st.builds(
    Fault,
    kind=st.sampled_from(["power", "power", "kill", errno.ENOSPC, errno.EIO]),
    after=st.integers(0, 14),
    share=st.floats(0, 1),
    seed=st.integers(0, 1 << 30),
)
FAULT = st.none() | FAULTS
INDICES = st.lists(st.integers(0, 60), max_size=6, unique=True)


@dataclass
class Model:
    """What was acknowledged, as plain sets; `maybe_*` was on its way when the writer was gone."""

    stored: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    imported: set[int] = field(default_factory=set)
    maybe_stored: set[int] = field(default_factory=set)
    maybe_rejected: set[int] = field(default_factory=set)
    maybe_failed: set[int] = field(default_factory=set)
    maybe_released: set[str] = field(default_factory=set)

    @property
    def done(self) -> set[int]:
        return self.stored | self.rejected | self.imported

    def settle(self, done: set[int], failed: set[int]) -> None:
        """What a start found decides about what was on its way."""
        if "rejected" in self.maybe_released and not self.rejected & done:
            self.rejected = set()
        if "failed" in self.maybe_released and not self.failed & failed:
            self.failed = set()
        assert self.done <= done <= self.done | self.maybe_stored | self.maybe_rejected
        assert self.failed <= failed <= self.failed | self.maybe_failed
        self.stored |= done & self.maybe_stored
        self.rejected |= done & self.maybe_rejected
        self.failed = failed
        self.maybe_stored, self.maybe_rejected, self.maybe_failed = set(), set(), set()
        self.maybe_released = set()


class Store:
    """An object store that always takes what it gets."""

    url = "dir"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put(self, path: Path, size: int, sha256: str) -> None:
        data = path.read_bytes()
        assert (len(data), observe_sha256(path).hexdigest()) == (size, sha256)
        assert self.objects.setdefault(path.name, data) == data


class CrashingLedger(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.base = Path(os.environ.get("TMPDIR", "/tmp")) / f"rackhand-power-{os.getpid()}-{id(self)}"
        self.lives = 0
        self.model = Model()
        self.store = Store()
        self.disk = Disk(self._new_folder())
        self.disk.__enter__()
        self.ledger: Ledger | None = None

    def _new_folder(self) -> Path:
        self.lives += 1
        folder = self.base / f"life-{self.lives}"
        folder.mkdir(parents=True)
        return folder

    @initialize(foreign=st.lists(st.integers(0, 60), max_size=4), compress=st.booleans())
    def begin(self, foreign: list[int], compress: bool) -> None:
        if foreign:
            text = "".join(f"{index}\n" for index in [*foreign, foreign[0]]) + "6"
            (self.disk.folder / ".done_indices").write_text(text)
            import_foreign(self.disk.folder)
            self.disk.start_from_here()
            self.model.imported = set(foreign)
        self._open(compress=compress)

    def _open(self, *, compress: bool, said: list[str] | None = None, **retry: bool) -> None:
        say = (said if said is not None else []).append
        self.ledger = open_ledger(self.disk.folder, say, shard_bytes=6000, compress=compress, **retry)
        self.uploader = Uploader(self.disk.folder, self.store, say, delete_local=True)  # type: ignore[arg-type]
        self.compress = compress

    def teardown(self) -> None:
        try:
            if self.ledger is not None:
                self.ledger.close()
                assert verify(self.disk.folder, OFF).problems == ()
        finally:
            self.disk.__exit__()
            shutil.rmtree(self.base)

    @rule(records=INDICES, bad=INDICES, refused=INDICES, size=st.integers(0, 1500), fault=FAULT)
    def commit(self, records: list[int], bad: list[int], refused: list[int], size: int, fault: Fault | None) -> None:
        model = self.model
        gone = model.rejected | model.failed
        bad = [index for index in bad[:2] if index not in model.done | gone and index not in records]
        refused = [index for index in refused[:2] if index not in model.done | gone and index not in [*records, *bad]]
        records = [index for index in records if index not in gone]
        batch = Batch(
            records=[_line(index, size) for index in [*records, *records[:1]]],
            rejected=[_line(index, size) for index in bad],
            failures=[_line(index, 0) for index in refused],
        )
        model.maybe_stored = set(records) - model.done
        model.maybe_rejected, model.maybe_failed = set(bad), set(refused)
        assert self.ledger is not None
        if self._do(lambda: self.ledger.commit(batch), fault):  # type: ignore[union-attr]
            assert not batch
            model.settle(set(self.ledger.done), set(self.ledger.failed))

    @rule(fault=FAULT)
    def close_shard(self, fault: Fault | None) -> None:
        self._do(self.ledger.close_shard, fault)  # type: ignore[union-attr]

    @rule(fault=FAULT)
    def upload(self, fault: Fault | None) -> None:
        """The first closed shard that waits goes to the store, and its file here is removed."""
        for entry in self.uploader._look()[:1]:
            self._do(lambda: self.uploader._send(entry), fault)  # noqa: B023

    @rule(fault=FAULT, compress=st.booleans())
    def resume(self, fault: Fault | None, compress: bool) -> None:
        self._close()
        said: list[str] = []
        if self._do(lambda: self._open(compress=compress, said=said), fault):
            assert said == []

    @rule(fault=FAULT, rejected=st.booleans(), failed=st.booleans())
    def resume_and_retry(self, fault: Fault | None, rejected: bool, failed: bool) -> None:
        self._close()
        self.model.maybe_released = {name for name, one in (("rejected", rejected), ("failed", failed)) if one}
        retry = {"retry_rejected": rejected, "retry_failed": failed}
        if self._do(lambda: self._open(compress=self.compress, **retry), fault):
            self.model.rejected = set() if rejected else self.model.rejected
            self.model.failed = set() if failed else self.model.failed
            self.model.maybe_released = set()

    @rule()
    def lose_the_list(self) -> None:
        self._close()
        (self.disk.folder / ".done_indices").unlink(missing_ok=True)
        self._open(compress=self.compress)

    @rule(fault=FAULTS)
    def lose_power_between_calls(self, fault: Fault) -> None:
        self._die("power", fault)

    def _close(self) -> None:
        if self.ledger is not None:
            self.ledger.close()
        self.ledger = None

    def _do(self, work: Callable[[], None], fault: Fault | None) -> bool:
        """Whether it was done; a disk that failed once is asked again, and after a crash the ledger is opened anew."""
        if fault is None:
            work()
            return True
        self.disk.fail_after, self.disk.share = fault.after, fault.share
        self.disk.errno = fault.kind if isinstance(fault.kind, int) else None
        try:
            work()
        except OSError as error:
            if error.errno != fault.kind:
                raise
            work()
        except PowerLossError:
            self._die(str(fault.kind), fault)
            return False
        finally:
            self.disk.fail_after = self.disk.errno = None
        return True

    def _die(self, kind: str, fault: Fault) -> None:
        """The writer is gone; a second crash comes while the next one recovers, and a third start succeeds."""
        dice = random.Random(fault.seed)  # noqa: S311
        self._lose(kind, dice)
        self.disk.fail_after, self.disk.share = dice.randrange(24), fault.share
        try:
            self._open(compress=self.compress)
        except PowerLossError:
            self._lose(dice.choice(("power", "kill")), dice)
            self._open(compress=self.compress)
        self.disk.fail_after = None
        assert self.ledger is not None
        self.model.settle(set(self.ledger.done), set(self.ledger.failed))

    def _lose(self, kind: str, dice: random.Random) -> None:
        old, self.ledger = self.ledger, None
        if kind == "power":
            self.disk.lose_power(self._new_folder(), dice)
        self.disk.fail_after = None
        if old is not None:
            for file in (old._done_file, old._manifest, old._rejected, old._failures, old._shard and old._shard.file):
                if file:
                    file.close()
        self.uploader._uploads.close()
        found = [index for path in self._shards() for index in _indices_before_the_tear(path)]
        assert self.model.stored <= {*found, *self._uploaded()}

    def _shards(self) -> Iterable[Path]:
        return self.disk.folder.glob("completions-*")

    def _uploaded(self) -> list[int]:
        return [index for name, data in self.store.objects.items() for index in _whole_lines(name, data)[0]]

    @invariant()
    def what_was_acknowledged_stands_once(self) -> None:
        if self.ledger is None:
            return
        found = self._uploaded()
        for path in self._shards():
            indices, torn = _whole_lines(path.name, path.read_bytes())
            assert not torn
            found += indices if path.name not in self.store.objects else []
        assert sorted(found) == sorted(self.model.stored)
        assert set(self.ledger.done) == self.model.done
        assert set(self.ledger.failed) == self.model.failed
        names = listed(self.disk.folder) if (self.disk.folder / ".done_indices").exists() else []
        assert sorted(names) == sorted(self.model.done)

    @invariant()
    def every_file_is_clean(self) -> None:
        folder = self.disk.folder
        for name, wanted in (("rejected.jsonl", self.model.rejected), ("failures.jsonl", self.model.failed)):
            assert sorted(row["index"] for row in _rows(folder / name)) == sorted(wanted)
        for name in ("manifest.jsonl", "uploads.jsonl"):
            assert all(row["shard"] for row in _rows(folder / name))
        for name, entry in observe_manifest(folder / "manifest.jsonl").items():
            path = folder / name
            if path.exists():
                count = len(_whole_lines(name, path.read_bytes())[0])
                assert (entry.count, entry.size) == (count, path.stat().st_size)
                assert entry.sha256 == observe_sha256(path).hexdigest()
            else:
                assert name in self.store.objects


def _line(index: int, size: int) -> tuple[int, bytes]:
    words = random.Random(index).randbytes(size // 2).hex()  # noqa: S311
    record = {"index": index, "messages": [], "completion": f"echo:{index} {words}"}
    return index, json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def _whole_lines(name: str, data: bytes) -> tuple[list[int], bool]:
    """Indices up to the first thing that isn't whole, as `cat` or `zstd -dc` see them, and whether there is one."""
    torn = False
    if name.endswith(".zst"):
        data, torn = _decompressed(data)
    *lines, rest = data.split(b"\n")
    indices = [record_index(line + b"\n", whole=True) for line in lines]
    good = [index for index in takewhile(lambda index: index is not None, indices) if index is not None]
    return good, torn or rest != b"" or len(good) < len(indices)


def _decompressed(data: bytes) -> tuple[bytes, bool]:
    whole = b""
    while data:
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            block = frame.decompress(data)
        except zstandard.ZstdError:
            return whole, True
        if not frame.eof:
            return whole, True
        whole, data = whole + block, frame.unused_data
    return whole, False


def _indices_before_the_tear(path: Path) -> list[int]:
    return _whole_lines(path.name, path.read_bytes())[0]


def _lives(count: int) -> settings:
    return settings(
        max_examples=count, stateful_step_count=12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )


class CrashingLedgerForLong(CrashingLedger):
    """The same, for many more lives."""


TestCrashingLedger = CrashingLedger.TestCase
TestCrashingLedger.settings = _lives(12)
TestCrashingLedgerForLong = CrashingLedgerForLong.TestCase
TestCrashingLedgerForLong.settings = _lives(200)
for mark in (pytest.mark.slow, pytest.mark.timeout(1200)):
    mark(TestCrashingLedgerForLong)


def test_lines_whose_sectors_got_lost_are_taken_out_of_a_file_and_the_others_stay(tmp_path: Path) -> None:
    base = tmp_path / "0"
    base.mkdir()
    with Disk(base) as disk:
        for seed in range(60):
            path = disk.folder / "rejected.jsonl"
            file = AppendFile(path)
            file.append(_line(1, 700)[1], sync=True)
            disk.fail_after = 1
            with pytest.raises(PowerLossError):
                file.append(b"".join(_line(index, 700)[1] for index in (2, 3, 4)), sync=True)
            disk.lose_power(_folder(tmp_path / f"{seed + 1}"), random.Random(seed))  # noqa: S311
            file.close()
            path = disk.folder / "rejected.jsonl"
            size = path.stat().st_size
            assert repair_lines(path) == size - path.stat().st_size
            found = [row["index"] for row in _rows(path)]
            assert found[0] == 1
            assert found == sorted(set(found))
            path.unlink()
            disk.start_from_here()


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("kind", ["power", "kill"])
def test_a_commit_is_cut_off_at_each_call_and_only_whole_lines_stand_then_and_later(kind: str, compress: bool) -> None:
    for after in range(26):
        machine = CrashingLedger()
        try:
            machine.begin([], compress)
            machine.commit([1, 2], [41], [42], 1500, None)
            machine.commit([5, 6, 7], [43, 44], [45, 46], 1500, Fault(kind, after, 0.5, after))
            machine.lose_power_between_calls(Fault("power", 0, 0, after))
            machine.commit([1, 5, 6, 7, 8], [47], [], 100, None)
            machine.what_was_acknowledged_stands_once()
            machine.every_file_is_clean()
        finally:
            machine.teardown()
