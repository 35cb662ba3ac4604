"""Kills, signals, locks, control.json, full disks: what a run survives, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import signal
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rackhand.contract.run import ChangeRun
from remote import generate, job
from remote.cli import VerbError
from remote.generate import main
from remote.generator import judge
from remote.generator.feeder import Feeder
from remote.generator.feeding import Feeding, HopelessError
from remote.generator.prompt_queue import Item
from remote.generator.run_loop import RunLoop
from remote.generator.server import Server
from remote.generator.tally import Tally
from remote.output.job_file import observe_prompts_digest
from remote.output.ledger import Ledger
from remote.prompts.offsets import OFFSETS_FILE, KnownPrompts, observe_known
from remote.serving import wishes as serving_wishes
from tests.remote.rig import Rig, listed, nothing_lost_nothing_twice, records, varied, wait_until, write_prompts


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("kills", "count"), [(5, 1_500), pytest.param(200, 60_000, marks=pytest.mark.slow)])
def test_kills_in_a_row_lose_nothing_and_ask_little_twice(tmp_path: Path, kills: int, count: int) -> None:
    seed = secrets.randbelow(1 << 30)
    dice = random.Random(seed)  # noqa: S311
    prompts = write_prompts(tmp_path, count)
    with Rig(tmp_path, "--lat", "50", ports=2) as rig:
        for kill in range(kills):
            process = rig.start(prompts, "--shard-bytes", "200000")
            rig.wait_for_progress(process)
            time.sleep(dice.random() * 0.2)
            process.kill()
            process.wait()
            if kill % max(1, kills // 20):
                continue
            indices = [record["index"] for record in _whole_records(rig.output)]
            assert len(indices) == len(set(indices)), f"kill {kill}, seed {seed}"
            assert set(listed_whole(rig.output)) <= set(indices), f"kill {kill}, seed {seed}"
        assert rig.finished() < count, "the kills came too late"
        assert rig.generate(prompts, "--shard-bytes", "200000", seconds=600) == 0
        assert rig.requests() - count <= kills * (2 * 16 + 16 * 2 * 10)
    nothing_lost_nothing_twice(rig.output, count)


def _whole_records(output: Path) -> list[dict]:
    found = []
    for shard in output.glob("completions-*.jsonl"):
        found += [json.loads(line) for line in shard.read_bytes().split(b"\n")[:-1]]
    return found


def listed_whole(output: Path) -> list[int]:
    return [int(line) for line in (output / ".done_indices").read_bytes().split(b"\n")[:-1]]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_requests_in_flight_finish_and_the_next_run_goes_on(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    prompts = write_prompts(tmp_path, 150)
    with Rig(tmp_path, "--lat", "300", ports=2) as rig:
        process = rig.start(prompts)
        wait_until(lambda: rig.finished() > 0, "the first completions")
        process.send_signal(number)
        assert rig.end(process) == code
        assert rig.progress()["status"] == "stopped"
        assert rig.requests() == len(records(rig.output)) == len(listed(rig.output))
        assert rig.generate(prompts) == 0
        assert rig.requests() == 150
    nothing_lost_nothing_twice(rig.output, 150)


def test_a_second_signal_gives_requests_in_flight_back_at_once(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 100)
    with Rig(tmp_path, "--bad", "1:hang", ports=2) as rig:
        process = rig.start(prompts, "--timeout-floor", "600")
        wait_until(lambda: rig.finished() > 0 and rig.stats(1)["requests"] > 0, "a request that hangs")
        process.send_signal(signal.SIGINT)
        wait_until(lambda: rig.progress().get("status") == "draining", "the drain")
        process.send_signal(signal.SIGINT)
        assert rig.end(process) == 130
        rig.set_fault(1, None)
        assert rig.generate(prompts) == 0
    nothing_lost_nothing_twice(rig.output, 100)


def test_what_is_in_flight_after_the_drain_timeout_is_given_back(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 100)
    with Rig(tmp_path, "--bad", "0:hang", ports=1) as rig:
        process = rig.start(prompts, "--drain-timeout", "0.2")
        wait_until(lambda: rig.stats(0)["requests"] > 0, "a request that hangs")
        process.send_signal(signal.SIGTERM)
        assert rig.end(process) == 143
        assert rig.progress()["completed"] == 0


def test_a_second_generator_is_refused_and_names_the_first(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 100)
    with Rig(tmp_path, "--lat", "100", "--slots", "2", ports=1) as rig:
        first = rig.start(prompts)
        wait_until(lambda: rig.finished() > 0, "the first completions")
        second = subprocess.run(rig.argv(prompts), capture_output=True, text=True, cwd=Path(__file__).parents[2])
        assert second.returncode == 4
        assert f"pid {first.pid}" in second.stdout
        assert rig.end(first) == 0
    nothing_lost_nothing_twice(rig.output, 100)


def test_changed_prompts_sampling_or_shards_are_refused_by_name(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 20)
    with Rig(tmp_path, ports=1) as rig:
        assert rig.generate(prompts, "--sampling", '{"temperature": 0.5, "max_tokens": 9}') == 0
        assert rig.generate(prompts, "--sampling", '{"max_tokens": 9, "temperature": 0.5}') == 0
        assert rig.generate(prompts, "--sampling", '{"temperature": 0.7, "max_tokens": 9}') == 4
        assert "the sampling changed: temperature" in rig.log
        assert rig.generate(prompts, "--sampling", '{"temperature": 0.5, "max_tokens": 9}', "--shard", "0/2") == 4
        assert "one in 1 shards" in rig.log
        assert rig.generate(prompts, "--new") == 4
        prompts.write_text(prompts.read_text().replace("prompt 7", "prompt 8"))
        assert rig.generate(prompts, "--sampling", '{"temperature": 0.5, "max_tokens": 9}') == 4
        assert "the prompts changed" in rig.log
        assert rig.generate(tmp_path / "nowhere.jsonl") == 4
        assert rig.requests() == 20
    nothing_lost_nothing_twice(rig.output, 20)


def test_finished_indices_of_somebody_else_are_imported_and_never_asked_again(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 100)
    with Rig(tmp_path, "--remember", ports=1) as rig:
        rig.output.mkdir()
        (rig.output / ".done_indices").write_bytes(b"90\r\n5\n\n3\n5\nx\n-4\n17\n4")
        (rig.output / "completions-00003.jsonl").write_text('{"theirs": 1}\n')
        (rig.output / "failures.jsonl").write_text('{"index": 50}\n')
        assert rig.generate(prompts) == 0
        assert rig.stats(0)["prompts"] == rig.requests() == 96
        assert "4 finished indices imported" in rig.log
        assert rig.generate(prompts) == 0
        assert rig.requests() == 96
    assert (rig.output / "completions-00003.jsonl").read_text() == '{"theirs": 1}\n'
    ours = [json.loads(line)["index"] for line in (rig.output / "completions-00004.jsonl").read_text().splitlines()]
    assert sorted(ours) == sorted(set(range(100)) - {90, 5, 3, 17})
    assert sorted(listed(rig.output)) == list(range(100))


def test_the_concurrency_of_a_run_at_work_is_changed_by_control_json(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 20_000)
    home = tmp_path / "home"
    with Rig(tmp_path, "--lat", "200", ports=2) as rig:
        process = rig.start(prompts, "--control", str(home / "control.json"), "--concurrency", "4")
        wait_until(lambda: rig.progress().get("concurrency") == "4", "the generator says what it was told")
        wishes = serving_wishes.Wishes(home)
        wishes.put(rig.url(0), "active")
        for wanted, limits in (("24", {24}), ("1", {1}), ("24", {24})):
            result = job.change(home, ChangeRun(str(rig.output), wanted))
            assert result.outcome == "changed"
            assert {server["limit"] for server in rig.progress()["servers"].values()} == limits
        wait_until(lambda: rig.progress()["in_flight"] == 48, "every slot of both servers is used")
        assert job.change(home, ChangeRun(str(rig.output), "24")).outcome == "running"
        assert job.change(home, ChangeRun(str(rig.output), "auto")).outcome == "changed"
        assert json.loads((home / "control.json").read_text())["servers"] == {rig.url(0): "active"}
        process.kill()
        process.wait()
        assert job.change(home, ChangeRun(str(rig.output), "8")).outcome == "idle"


def test_a_generator_that_does_not_take_a_change_is_said_and_nothing_stays_wished(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 20_000)
    with Rig(tmp_path, "--lat", "200", ports=1) as rig:
        rig.start(prompts, "--concurrency", "4")
        wait_until(lambda: rig.progress().get("concurrency") == "4", "it runs")
        with pytest.raises(VerbError, match=r"did not take it in 1 s"):
            job.change(tmp_path / "home", ChangeRun(str(rig.output), "8", timeout_s=1.0))
    assert json.loads((tmp_path / "home/control.json").read_text())["concurrency"] == {}


def test_control_json_drains_and_stops_servers_and_brings_them_back(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 3000)
    control = tmp_path / "control.json"

    def wish(*states: str) -> None:
        names = {rig.url(port) + ("/v1" if port else ""): state for port, state in enumerate(states)}
        whole = tmp_path / "control.tmp"
        whole.write_text(json.dumps({"servers": names}))
        whole.replace(control)

    def states() -> list[str]:
        servers = rig.progress().get("servers", {})
        return [servers[rig.url(port)]["state"] for port in range(2)] if servers else []

    with Rig(tmp_path, "--lat", "100", ports=2) as rig:
        wish("draining", "active")
        process = rig.start(prompts, "--control", str(control), "--concurrency", "4")
        wait_until(lambda: rig.stats(1)["requests"] > 8, "work on the active server")
        assert rig.stats(0)["requests"] == 0
        wish("draining", "stopped")
        wait_until(lambda: rig.progress().get("status") == "paused", "the pause")
        assert states() == ["draining", "stopped"]
        wait_until(lambda: rig.stats(1)["running"] == 0, "requests taken back")
        stopped_at = rig.stats(1)["requests"]
        control.write_text("{ torn")
        wish("active", "stopped")
        wait_until(lambda: rig.stats(0)["requests"] > 8, "work on the other server")
        assert rig.stats(1)["requests"] == stopped_at
        control.unlink()
        wait_until(lambda: rig.stats(1)["requests"] > stopped_at, "work on both servers")
        process.send_signal(signal.SIGINT)
        assert rig.end(process) == 130
        prompts_done = len(records(rig.output))
        assert 0 < prompts_done < 3000
        assert all(len({record["index"]}) == 1 for record in records(rig.output))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs")
def test_a_full_disk_pauses_the_run_and_it_goes_on_when_there_is_room(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 1200, lambda i: f"prompt {i} " + varied(1000))
    with Rig(tmp_path, "--body", "1000", ports=2) as rig:
        rig.output.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", rig.output], check=True)
        try:
            process = rig.start(prompts)
            wait_until(lambda: rig.progress().get("status") == "paused", "a full disk")
            safe = listed_whole(rig.output)
            subprocess.run(["mount", "-o", "remount,size=64m", rig.output], check=True)
            assert rig.end(process) == 0
            assert "No space left on device" in rig.log
            found = nothing_lost_nothing_twice(rig.output, 1200)
            assert set(safe) <= {record["index"] for record in found}
        finally:
            rig.kill_generators()
            subprocess.run(["umount", rig.output], check=True)


def test_a_shard_of_the_prompts_takes_only_its_own_rows_and_auto_fills_the_servers(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 400)
    with Rig(tmp_path, "--lat", "30", "--slots", "12", ports=2) as rig:
        assert rig.generate(prompts, "--shard", "1/2", "--concurrency", "auto") == 0
        assert [rig.stats(port)["max_running"] for port in range(2)] == [12, 12]
    nothing_lost_nothing_twice(rig.output, range(1, 400, 2))
    servers = rig.progress()["servers"].values()
    assert {(server["capacity"], server["limit"]) for server in servers} == {(12, 14)}
    assert rig.progress()["total"] == 400


def test_a_limit_ends_the_run_early_and_the_next_one_goes_on(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 90)
    with Rig(tmp_path, ports=1) as rig:
        assert rig.generate(prompts, "--limit", "40") == 0
        nothing_lost_nothing_twice(rig.output, 40)
        assert rig.generate(prompts) == 0
    nothing_lost_nothing_twice(rig.output, 90)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--concurrency", "0"), "no whole number above 0"),
        (("--sampling", "[1]"), "a JSON object was expected"),
        (("--sampling", '{"stream": true}'), "stream can't be set here"),
        (("--shard", "2/2"), "no I/N"),
        (("--server", "127.0.0.1:30000"), "no URL"),
        (("--server", "http://me:secret@127.0.0.1:1"), "argument --server: a URL with a user"),
        (("--limit", "\N{SUPERSCRIPT TWO}"), "no whole number above 0"),
        (("--drain-timeout", "nan"), "no number of seconds"),
        (("--shard-seconds", "-1"), "no number of seconds"),
        (("--sampling", "[" * 99_999), "not JSON"),
        (("--quality", '{"must": "a{99999999999}"}'), "must: "),
        (("--quality", '{"script": [{}]}'), "script: a script, or a list of them"),
        (("--prompt", "x"), "unrecognized arguments"),
    ],
)
def test_a_wrong_flag_ends_with_status_2_and_says_what_is_wrong(
    tmp_path: Path, options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--prompts", "p", "--output", str(tmp_path / "out"), "--server", "http://a:1", *options])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert "secret" not in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", ["cut", "grown", "gone"])
def test_prompts_that_change_while_they_are_read_are_an_error_and_not_an_early_end(tmp_path: Path, change: str) -> None:
    prompts = write_prompts(tmp_path, 3)
    known = observe_known(prompts, tmp_path, observe_prompts_digest(prompts), (0, 1))

    async def run() -> None:
        if change == "gone":
            prompts.unlink()
        else:
            prompts.write_bytes(prompts.read_bytes()[:9] if change == "cut" else prompts.read_bytes() + b"{}")

    known.count_rows()
    feeder = SimpleNamespace(run=run, clock=time.monotonic, servers=[], status=lambda: ("running", ""))
    loop = RunLoop(cast("Feeder", feeder), Tally(0.0), tmp_path, known, None, 0.0)
    said = nullcontext() if change == "gone" else pytest.raises(HopelessError, match=r"prompts.jsonl changed while")
    with said:
        asyncio.run(loop.run())
    assert (tmp_path / OFFSETS_FILE).exists() == (change == "gone")


def test_an_api_key_that_no_header_can_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RACKHAND_API_KEY", "sec\nret")
    prompts = write_prompts(tmp_path, 1)
    assert main(["--prompts", str(prompts), "--output", str(tmp_path / "out"), "--server", "http://a:1"]) == 4
    said = "".join(capsys.readouterr())
    assert "RACKHAND_API_KEY holds a line break" in said
    assert "sec" not in said


@pytest.mark.parametrize("written", ["request", "record"])
@pytest.mark.parametrize("error", [MemoryError("no room"), RecursionError("too deep"), TypeError("odd")])
def test_an_error_of_one_row_fails_that_row_and_ends_no_run(
    tmp_path: Path, error: Exception, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = write_prompts(tmp_path, 300)
    owner, name = (Feeding, "body") if written == "request" else (judge, "record_line")
    whole = getattr(owner, name)

    def fail(first: Any, item: Item, *others: Any) -> bytes:
        if item.prompt.index == 200:
            raise error
        line: bytes = whole(first, item, *others)
        return line

    with Rig(tmp_path, ports=1) as rig:
        monkeypatch.setattr(owner, name, fail)
        assert rig.generate(prompts) == 3
        assert (rig.progress()["status"], rig.progress()["failed"]) == ("done", 1)
        nothing_lost_nothing_twice(rig.output, set(range(300)) - {200})
        (failure,) = map(json.loads, (rig.output / "failures.jsonl").read_text().splitlines())
        assert (failure["index"], failure["reason"]) == (200, f"{type(error).__name__}: {error}")
        monkeypatch.undo()
        assert rig.generate(prompts, "--retry-failed") == 0
    nothing_lost_nothing_twice(rig.output, 300)


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (Ledger, "commit", ValueError("an odd batch")),
        (Ledger, "close", RuntimeError("not to be closed")),
        (Feeder, "_tick", ZeroDivisionError("an odd load")),
        (RunLoop, "put_progress", TypeError("an odd count")),
        (generate, "put_card", OSError(5, "an odd disk")),
        (generate, "open_ledger", KeyError("an odd line")),
        (generate, "observe_known", RecursionError("an odd file")),
        (generate, "PromptReader", MemoryError("an odd row")),
    ],
)
def test_a_run_that_an_error_ends_says_so_in_progress_json_and_loses_nothing(
    tmp_path: Path, owner: Any, name: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    prompts = write_prompts(tmp_path, 30)
    with Rig(tmp_path, ports=1) as rig:
        monkeypatch.setattr(owner, name, fail)
        assert rig.generate(prompts) in (1, 4)
        progress = rig.progress()
        assert (progress["status"], str(error.args[-1]) in progress["message"]) == ("failed", True), progress
        monkeypatch.undo()
        assert rig.generate(prompts) == 0
    nothing_lost_nothing_twice(rig.output, 30)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(RunLoop, "_obey"), (RunLoop, "_report_once"), (KnownPrompts, "count_rows"), (Server, "note_load")],
)
def test_what_only_looks_at_a_run_ends_none(
    tmp_path: Path, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("an odd figure")

    monkeypatch.setattr(owner, name, fail)
    prompts = write_prompts(tmp_path, 30)
    with Rig(tmp_path, ports=1) as rig:
        assert rig.generate(prompts, "--control", str(tmp_path / "control.json")) == 0
        assert "ZeroDivisionError: an odd figure" in rig.log
        assert rig.progress()["status"] == "done"
    nothing_lost_nothing_twice(rig.output, 30)
