from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

from rackhand import payload
from rackhand.contract import Failure, from_json, to_json, wire
from tests.spoken import NONCE, asked, heard


@dataclass(frozen=True)
class _Inner:
    gpu: int
    share: float | None = None


@dataclass(frozen=True)
class _Outer:
    name: str
    inner: tuple[_Inner, ...]
    by_gpu: dict[int, str]


def test_a_value_survives_the_way_to_json_and_back() -> None:
    value = _Outer("a", (_Inner(0, 0.5), _Inner(1)), {0: "x"})
    assert from_json(_Outer, json.loads(json.dumps(to_json(value)))) == value


def test_unknown_keys_are_ignored() -> None:
    assert from_json(_Inner, {"gpu": 3, "new": 1}) == _Inner(3)


@pytest.mark.parametrize(
    ("data", "at"),
    [
        ({"name": "a", "inner": [{"gpu": "0"}], "by_gpu": {}}, "_Outer.inner[0].gpu"),
        ({"name": "a", "inner": [{"gpu": True}], "by_gpu": {}}, "_Outer.inner[0].gpu"),
        ({"inner": [], "by_gpu": {}}, "_Outer.name is missing"),
        ({"name": "a", "inner": {}, "by_gpu": {}}, "_Outer.inner"),
        ([], "_Outer"),
    ],
)
def test_a_wrong_shape_is_named(data: object, at: str) -> None:
    with pytest.raises(ValueError, match=at.replace("[", r"\[").replace("]", r"\]")):
        from_json(_Outer, data)


def test_the_boot_line_runs_a_verb_from_memory_and_ends_with_the_sentinel() -> None:
    app = payload.build().data
    argv = [sys.executable, "-c", wire.BOOT, str(len(app)), NONCE, "python3"]
    done = subprocess.run(argv, input=app + 2 * asked("no-such-verb", {}, "python3"), capture_output=True)
    first, *ends = done.stdout.splitlines()
    assert first == b'\x1en0 {"event":"ready"}'
    assert [from_json(Failure, (heard(line) or {})["error"]) for line in ends] == [
        Failure("usage", "no verb no-such-verb")
    ] * 2
    assert done.returncode == 0
    assert done.stderr == b""


def test_the_boot_line_is_ascii_since_pct_replaces_other_characters_and_holds_no_mark() -> None:
    assert wire.BOOT.isascii()
    assert "\x1e" not in wire.BOOT


def test_the_zipapp_is_the_same_bytes_every_time_and_within_its_budget() -> None:
    first = payload.build()
    payload.build.cache_clear()
    assert payload.build() == first
    assert len(first.data) <= payload.SIZE_BUDGET
