"""The ledger when the power goes: what was acknowledged stands, once, whatever of the rest is on disk."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from remote.output.ledger import Batch, Ledger
from remote.output.recovery import open_ledger
from tests.remote.power import Disk, PowerLossError
from tests.remote.rig import listed, records

SEEDS = st.integers(0, 1 << 30)
INDICES = st.lists(st.integers(0, 400), max_size=8, unique=True)


def _line(index: int, size: int) -> tuple[int, bytes]:
    record = {"index": index, "messages": [], "completion": f"echo:{index} " + "x" * size}
    return index, json.dumps(record, separators=(",", ":")).encode() + b"\n"


class PowerLoss(RuleBasedStateMachine):
    """`stored` and `rejected` were acknowledged, `maybe` were on their way when the power went."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(os.environ.get("TMPDIR", "/tmp")) / f"rackhand-power-{os.getpid()}-{id(self)}"
        self.lives = 0
        self.disk = Disk(self._new_folder())
        self.disk.__enter__()
        self.stored: set[int] = set()
        self.rejected: set[int] = set()
        self.ledger = self._open()

    def _new_folder(self) -> Path:
        self.lives += 1
        folder = self.base / f"life-{self.lives}"
        folder.mkdir(parents=True)
        return folder

    def _open(self) -> Ledger:
        return open_ledger(self.disk.folder, lambda text: None, shard_bytes=12_000)

    def teardown(self) -> None:
        self.ledger.close()
        self.disk.__exit__()
        shutil.rmtree(self.base)

    @rule(indices=INDICES, bad=st.lists(st.integers(401, 450), max_size=2, unique=True), size=st.integers(0, 3000))
    def commit(self, indices: list[int], bad: list[int], size: int) -> None:
        fresh = set(bad) - self.rejected
        self.ledger.commit(self._batch(indices, sorted(fresh), size))
        self.stored |= set(indices)
        self.rejected |= fresh

    @rule()
    def close_shard(self) -> None:
        self.ledger.close_shard()

    @rule(seed=SEEDS)
    def lose_power_between_commits(self, seed: int) -> None:
        self._die(seed, set())

    @rule(indices=INDICES, size=st.integers(0, 3000), after=st.integers(0, 14), again=st.integers(0, 20), seed=SEEDS)
    def lose_power_in_a_commit_and_while_recovering(
        self, indices: list[int], size: int, after: int, again: int, seed: int
    ) -> None:
        self.disk.fail_after = after
        try:
            self.ledger.commit(self._batch(indices, [], size))
            self.ledger.close_shard()
        except PowerLossError:
            pass
        else:
            self.stored |= set(indices)
        self._die(seed, set(indices), again)

    def _batch(self, indices: list[int], bad: list[int], size: int) -> Batch:
        return Batch(records=[_line(i, size) for i in indices], rejected=[_line(i, 0) for i in bad])

    def _die(self, seed: int, maybe: set[int], again: int | None = None) -> None:
        dice = random.Random(seed)  # noqa: S311
        self.disk.lose_power(self._new_folder(), dice)
        self.ledger.close()
        self.disk.fail_after = again
        try:
            self.ledger = self._open()
        except PowerLossError:
            self.disk.lose_power(self._new_folder(), dice)
            self.ledger = self._open()
        self.disk.fail_after = None
        survived = set(self.ledger.done)
        assert survived <= self.stored | self.rejected | maybe
        self.stored |= survived & maybe

    @invariant()
    def what_was_acknowledged_stands_once(self) -> None:
        indices = [record["index"] for record in records(self.disk.folder)]
        assert sorted(indices) == sorted(self.stored)
        assert set(self.ledger.done) == self.stored | self.rejected
        names = listed(self.disk.folder) if (self.disk.folder / ".done_indices").exists() else []
        assert sorted(names) == sorted(self.stored | self.rejected)


TestPowerLoss = PowerLoss.TestCase
TestPowerLoss.settings = settings(
    max_examples=40, stateful_step_count=12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize("after", range(12))
def test_a_commit_of_big_records_is_cut_off_anywhere_and_only_whole_ones_stand(after: int) -> None:
    for seed in range(6):
        machine = PowerLoss()
        try:
            machine.commit([1, 2], [401], 3000)
            machine.lose_power_in_a_commit_and_while_recovering([5, 6, 7], 3000, after, 2 * seed, seed)
            machine.what_was_acknowledged_stands_once()
            machine.commit([1, 5, 6, 7, 8], [402], 100)
            machine.what_was_acknowledged_stands_once()
        finally:
            machine.teardown()
