from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from rackhand.contract.watch import GpuSample, HostSample, JobSample, Sample
from rackhand.errors import RackhandError, UsageError
from rackhand.inventory import Fleet, Host, Job, PlainSsh, Ssh
from rackhand.recording import Happening, Recording, recording_file, recordings_dir
from rackhand.render.screen import JsonScreen
from rackhand.render.text import TextScreen
from rackhand.workflows.history import (
    Told,
    detach,
    history,
    parse_since,
    remove_history,
    tell_history,
    write_csv,
    write_jsonl,
)
from rackhand.workflows.record import AGAIN_S, Recorder, open_recording
from rackhand.workflows.track import AWAY_S

GPU = GpuSample(
    0, state="running", running=32, cap=37, queue=0, kv_usage=0.21, mamba_usage=0.61, tok_s=670.5,
    tok_s_source="counter", power_w=520.0, throttle=("power_cap", "x"), graph=True, slots=185, still_s=0.5,
    pid=7, flags={"mem-fraction-static": "0.88"},
)  # fmt: skip
HOST = Host("rtx", PlainSsh(Ssh("rtx")))
FLEET = Fleet(Path("/i/mine.yaml"), (HOST,), (Job("expansion", "rtx", "/out", "/prompts"),))


def sample(at: float, *, pid: int = 1, sent: int = 32, flags: str = "0.88", state: str = "running") -> Sample:
    done = int(at * 2)
    progress = {"status": "running", "completed": done, "total_output_tokens": 2000 * done, "eta_hours": 107.0}
    progress |= {"pid": pid, "servers": {"http://127.0.0.1:30000": {"limit": sent, "in_flight": sent}}}
    gpus = tuple(replace(GPU, gpu=n, flags={"mem-fraction-static": flags}, state=state) for n in range(2))
    return Sample(at, int(at), gpus, (JobSample("expansion", "/out", progress),), host=HostSample(cpu_pct=12.5))


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
    made = Recording(tmp_path / "deep" / "j.sqlite")
    yield made
    made.close()


def test_a_sample_comes_back_as_it_was_and_a_repeat_is_not_kept(recording: Recording) -> None:
    run = recording.put_run("rtx", 100.0, {"0": {"a": "1"}}, 32.0, 1)
    assert recording.put_sample("rtx", sample(100.0), run)
    assert not recording.put_sample("rtx", sample(100.0), run)
    assert recording.put_sample("rtx", sample(102.0), None)
    (first,) = recording.samples(run=run)
    assert first.gpus[0] == replace(GPU, flags={}, lines=())
    assert first.host.cpu_pct == 12.5
    assert first.jobs[0].progress == {
        "status": "running", "completed": 200, "total_output_tokens": 400_000, "eta_hours": 107.0, "pid": 1,
        "sent_per_server": 32,
    }  # fmt: skip
    assert [s.time for s in recording.samples(since=101.0)] == [102.0]
    (kept,) = recording.runs()
    assert (kept.began, kept.ended, kept.samples, kept.flags, kept.sent) == (100.0, 100.0, 1, {"0": {"a": "1"}}, 32.0)


def test_the_file_is_in_wal_mode_has_a_version_and_one_writer(recording: Recording) -> None:
    with closing(sqlite3.connect(recording.path)) as file:
        assert file.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert file.execute("PRAGMA user_version").fetchone() == (3,)
    assert recording.take_pen()
    other = Recording(recording.path)
    assert not other.take_pen()
    other.close()


def test_a_file_of_format_1_is_brought_up_and_keeps_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    with closing(Recording(path)) as made:
        run = made.put_run("rtx", 100.0, {"0": {"a": "1"}}, 32.0, 1)
        made.put_sample("rtx", sample(100.0), run)
    with closing(sqlite3.connect(path)) as file:
        file.executescript(
            "ALTER TABLE run DROP COLUMN inventory; ALTER TABLE sample DROP COLUMN rebuilt;"
            "ALTER TABLE gpu DROP COLUMN cause; PRAGMA user_version = 1"
        )
    with closing(Recording(path)) as again:
        assert again.put_sample("rtx", replace(sample(102.0), rebuilt=True), run)
        assert [(s.time, s.rebuilt) for s in again.samples()] == [(100.0, False), (102.0, True)]
        assert {gpu.cause for s in again.samples() for gpu in s.gpus} == {""}
        assert [(run.samples, run.inventory) for run in again.runs()] == [(2, {})]
        assert again._file.execute("PRAGMA user_version").fetchone() == (3,)


def test_a_newer_file_and_one_that_is_no_database_are_errors_of_one_line(tmp_path: Path) -> None:
    newer, torn = tmp_path / "newer.sqlite", tmp_path / "torn.sqlite"
    with closing(sqlite3.connect(newer)) as file:
        file.execute("PRAGMA user_version = 9")
    torn.write_bytes(b"no database at all, but long enough to look like one" * 50)
    with pytest.raises(RackhandError, match="has format 9, this rackhand knows 3"):
        Recording(newer)
    with pytest.raises(RackhandError, match="can't be opened"):
        Recording(torn)


def test_old_samples_are_thinned_to_one_a_minute_and_very_old_ones_go(recording: Recording) -> None:
    day = 86400.0
    times = [0.0, 170 * day, 170 * day + 10, 170 * day + 70, 190 * day, 190 * day + 2]
    for at in times:
        recording.put_sample("rtx", sample(at), None)
        recording.put_event(Happening(at, "rtx", None, "run", "x", {}))
    recording.prune(190 * day + 2)
    assert [s.time for s in recording.samples()] == [170 * day, 170 * day + 70, 190 * day, 190 * day + 2]
    assert all(len(s.gpus) == 2 for s in recording.samples())
    assert len(recording.events()) == 5


def test_files_stand_in_the_state_home_one_folder_an_inventory(tmp_path: Path) -> None:
    one = recordings_dir({"XDG_STATE_HOME": "/s", "HOME": "/h"}, tmp_path / "a/lab.yaml")
    two = recordings_dir({"XDG_STATE_HOME": "/s", "HOME": "/h"}, tmp_path / "b/lab.yaml")
    assert one.parent == Path("/s/rackhand")
    assert one.name.startswith("lab-")
    assert one != two
    assert recordings_dir({"HOME": "/h"}, tmp_path / "a/lab.yaml").parent == Path("/h/.local/state/rackhand")
    assert recording_file(one, "a/b c").name == "a_b_c.sqlite"


def recorded(tmp_path: Path, samples: list[Sample], said: list[str]) -> dict[str, str]:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    with Recorder(FLEET, environ, say=lambda _, text: said.append(text), interval_s=2) as recorder:
        for one in samples:
            recorder.take(HOST, one)
    return environ


def test_a_run_ends_when_flags_or_the_generator_change_and_a_gap_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    run_a = [sample(1000.0 + 2 * n) for n in range(20)]
    down = [sample(1040.0 + 2 * n, state="loading") for n in range(5)]
    run_b = [sample(1050.0 + 2 * n, pid=2, sent=64, flags="0.90") for n in range(5)]
    again = [sample(1160.0 + 2 * n, pid=2, sent=64, flags="0.90") for n in range(5)]
    environ = recorded(tmp_path, [*run_a, *down, *run_b], said)
    recorded(tmp_path, [*run_b, *again], said)
    told = history(FLEET, environ, "expansion")
    assert [(run.id, run.began, run.ended, run.sent) for run in told.runs] == [
        (1, 1000.0, 1038.0, 32.0),
        (2, 1050.0, 1168.0, 64.0),
    ]
    kinds = [event.kind for event in told.events]
    assert kinds.count("run") == 2
    assert kinds.count("gap") == 1
    assert kinds.count("state") == 4
    assert next(e.text for e in told.events if e.kind == "verdict").startswith("client-bound")
    none = history(FLEET, environ, "expansion", since="1970-01-02", export=str(tmp_path / "none.csv"))
    assert (none.events, none.exported) == ((), f"wrote {tmp_path / 'none.csv'}: 0 samples")
    assert said == []


def test_a_restart_of_the_container_and_a_reboot_are_told_apart_with_what_became_of_the_servers(
    tmp_path: Path,
) -> None:
    def booted(at: float, boot: str, state: str = "running", cause: str = "", machine: float = 9.0) -> Sample:
        one = sample(at, state=state)
        gpus = tuple(replace(gpu, cause=cause) for gpu in one.gpus)
        return replace(one, gpus=gpus, host=replace(one.host, boot=boot, started=at - 1, machine_started=machine))

    gone = "it ended with the container, which was stopped while it ran"
    samples = [
        booted(100.0, "a/7"),
        booted(102.0, "a/7"),
        booted(104.0, "a/900", "dead", gone),
        booted(106.0, "a/900", "stopped"),
        booted(208.0, "b/7", "stopped", machine=150.0),
    ]
    recorded(tmp_path, samples, [])
    told = history(FLEET, {"XDG_STATE_HOME": str(tmp_path)}, "expansion")
    texts = [(event.kind, event.text.partition("; up since")[0]) for event in told.events]
    assert ("container", "the container was stopped and started again") in texts
    assert ("state", f"running -> dead: {gone}") in texts
    assert ("state", "dead -> stopped") in texts
    assert ("container", "the machine was rebooted") in texts
    assert [kind for kind, _ in texts].count("container") == 2


def rebuilt(at: float, state: str = "running") -> Sample:
    gpus = tuple(GpuSample(n, state=state, running=32, tok_s=670.0, tok_s_source="log") for n in range(2))  # type: ignore[arg-type]
    return Sample(at, -1, gpus, rebuilt=True)


def test_rebuilt_samples_between_two_of_a_run_are_of_that_run_and_are_told_once(tmp_path: Path) -> None:
    cut = [rebuilt(1040.0 + 2 * n, "unknown" if n == 3 else "running") for n in range(20)]
    environ = recorded(tmp_path, [*(sample(1000.0 + 2 * n) for n in range(20)), *cut, *cut, sample(1081.0)], [])
    told = history(FLEET, environ, "expansion")
    assert [(run.began, run.ended, run.samples) for run in told.runs] == [(1000.0, 1081.0, 41)]
    assert [event.text for event in told.events if event.kind not in ("run", "verdict")] == [
        "20 samples of 41 s rebuilt from the servers' logs"
    ]
    assert told.runs[0].inventory["job"]["name"] == "expansion"


def test_after_a_restart_the_recording_goes_on_where_its_history_ends(tmp_path: Path) -> None:
    environ = recorded(tmp_path, [sample(1000.0), sample(1002.0)], [])
    with Recorder(FLEET, environ, say=lambda *_: None, interval_s=2) as recorder:
        assert recorder.newest(HOST) == 1002.0
        for one in (rebuilt(1000.0), rebuilt(1004.0), rebuilt(1006.0), sample(1007.0, pid=2)):
            recorder.take(HOST, one)
    told = history(FLEET, environ, "expansion")
    assert [(run.began, run.ended, run.samples) for run in told.runs] == [(1000.0, 1002.0, 2), (1007.0, 1007.0, 1)]
    with Recorder(FLEET, {"XDG_STATE_HOME": str(tmp_path / "b")}, say=lambda *_: None, interval_s=2) as recorder:
        assert recorder.newest(HOST) is None


def test_what_happens_to_several_gpus_in_a_second_is_one_line_and_every_event_an_object() -> None:
    went = [Happening(1000.0 + g / 10, "rtx", g, "state", "running -> dead", {}) for g in (0, 1, 2, 5)]
    events = [*went[:2], Happening(1000.1, "rtx", 4, "state", "running -> loading", {}), *went[2:]]
    events += [replace(went[0], time=1001.0), Happening(1001.0, "rtx", None, "gap", "nothing seen for 9 s", {})]
    text, objects = io.StringIO(), io.StringIO()
    tell_history(TextScreen(text), Told((), tuple(events)))
    tell_history(JsonScreen(quiet := io.StringIO()), Told((), ()))
    assert json.loads(quiet.getvalue())["text"] == "neither runs nor events of that time are kept"
    tell_history(JsonScreen(objects), Told((), tuple(events)))
    assert [line.partition(" rtx ")[2] for line in text.getvalue().splitlines()] == [
        "GPU 0-2,5 state: running -> dead",
        "GPU 4 state: running -> loading",
        "GPU 0 state: running -> dead",
        "gap: nothing seen for 9 s",
    ]
    assert [json.loads(line)["gpu"] for line in objects.getvalue().splitlines()] == [0, 1, 4, 2, 5, 0, None]


def test_a_second_writer_leaves_the_history_to_the_first(tmp_path: Path) -> None:
    said: list[str] = []
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    with Recorder(FLEET, environ, say=lambda *_: None, interval_s=2) as first:
        first.take(HOST, sample(1.0))
        recorded(tmp_path, [sample(2.0), sample(3.0)], said)
    assert said == ["the history of expansion is being written by another record or tail-metrics"]
    assert history(FLEET, environ, "expansion").runs[0].samples == 1


def test_a_place_that_can_not_be_written_is_said_once_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "rackhand").touch()
    said: list[str] = []
    recorded(tmp_path, [sample(1.0), sample(2.0)], said)
    assert len(said) == 1
    assert "the history of expansion isn't written" in said[0]
    with pytest.raises(RackhandError, match="no history can be kept here"):
        detach(FLEET, {"XDG_STATE_HOME": str(tmp_path)}, ("false",))


def test_a_history_that_could_not_be_written_is_written_again_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, said = [0.0], list[str]()
    monkeypatch.setattr("rackhand.workflows.record.monotonic", lambda: now[0])
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    with (
        Recorder(FLEET, environ, say=lambda *_: None, interval_s=2) as other,
        Recorder(FLEET, environ, say=lambda _, text: said.append(text), interval_s=2) as recorder,
    ):
        other.take(HOST, sample(1.0))
        recorder.take(HOST, sample(2.0))
        other.close()
        recorder.take(HOST, sample(3.0))
        for now[0] in (AGAIN_S, 2 * AGAIN_S):
            recorder.take(HOST, sample(now[0]))
    assert said == [
        "the history of expansion is being written by another record or tail-metrics",
        "the history of expansion is written now",
    ]
    with closing(open_recording(FLEET, environ, "expansion")) as kept:
        assert [one.time for one in kept.samples()] == [1.0, AGAIN_S, 2 * AGAIN_S]


def test_a_server_between_its_stop_and_its_start_makes_no_run_and_one_that_stays_away_does(tmp_path: Path) -> None:
    def without_one(at: float) -> Sample:
        whole = sample(at)
        gone = replace(whole.gpus[0], state="stopped", flags={}, cap=None)
        return replace(whole, gpus=(gone, *whole.gpus[1:]))

    before = [sample(1000.0 + 2 * n) for n in range(20)]
    restarting = [without_one(1040.0 + 2 * n) for n in range(5)]
    after = [sample(1050.0 + 2 * n, flags="0.90") for n in range(50)]
    crashed = [without_one(1150.0 + 2 * n) for n in range(40)]
    environ = recorded(tmp_path, [*before, *restarting, *after, *crashed], [])
    told = history(FLEET, environ, "expansion")
    assert [run.began for run in told.runs] == [1000.0, 1050.0, 1150.0 + AWAY_S]
    (compared,) = [event for event in told.events if event.kind == "comparison"]
    assert compared.text.startswith("run 2 against run 1: tok/s per GPU")


def test_the_ramp_of_the_first_minute_is_no_run_of_its_own(tmp_path: Path) -> None:
    def coming_up(at: float) -> Sample:
        """Caps come to be known one after another, requests climb."""
        whole, n = sample(at), int(at - 1000)
        gpus = tuple(replace(gpu, running=1 + n, cap=37 if gpu.gpu == 0 or n > 10 else None) for gpu in whole.gpus)
        return replace(whole, gpus=gpus)

    ramp = [coming_up(1000.0 + 2 * n) for n in range(15)]
    after = [sample(1030.0 + 2 * n) for n in range(50)]
    other = [sample(1130.0 + 2 * n, flags="0.90") for n in range(50)]
    told = history(FLEET, recorded(tmp_path, [*ramp, *after, *other], []), "expansion")
    assert [(run.began, set(run.flags)) for run in told.runs] == [(1000.0, {"0", "1"}), (1130.0, {"0", "1"})]
    (compared,) = [event for event in told.events if event.kind == "comparison"]
    assert compared.data["runs"] == [told.runs[0].id, told.runs[1].id]


def test_a_steady_run_of_less_than_a_minute_and_another_generator_are_runs_of_their_own(tmp_path: Path) -> None:
    steady = [sample(1000.0 + 2 * n) for n in range(20)]
    other = [sample(1040.0 + 2 * n, flags="0.90") for n in range(5)]
    again = [sample(1050.0 + 2 * n, flags="0.90", pid=2) for n in range(20)]
    told = history(FLEET, recorded(tmp_path, [*steady, *other, *again], []), "expansion")
    assert [run.began for run in told.runs] == [1000.0, 1040.0, 1050.0]


def test_a_clock_that_is_set_back_is_said_and_loses_no_sample(tmp_path: Path) -> None:
    times = [5000.0, 5002.0, 1000.0, 1002.0]
    rebuilt = [replace(sample(900.0), rebuilt=True)]
    environ = recorded(tmp_path, [*(sample(at) for at in times), *rebuilt], [])
    with closing(open_recording(FLEET, environ, "expansion")) as kept:
        assert [one.time for one in kept.samples()] == sorted(times)
        assert [e.text for e in kept.events() if e.kind in ("clock", "gap")] == [
            "the container's clock went back by 4002 s"
        ]


def test_samples_are_exported_as_csv_and_json_lines(recording: Recording) -> None:
    recording.put_sample("rtx", sample(100.0), None)
    recording.put_event(Happening(101.0, "rtx", 0, "state", "running -> dead", {}))
    table, lines = io.StringIO(), io.StringIO()
    write_csv(table, recording)
    write_jsonl(lines, recording)
    rows = list(csv.DictReader(io.StringIO(table.getvalue())))
    assert [(r["time"], r["gpu"], r["tok_s"], r["throttle"], r["job_completed"]) for r in rows] == [
        ("100.0", "0", "670.5", "power_cap x", "200"),
        ("100.0", "1", "670.5", "power_cap x", "200"),
    ]
    first, last = (json.loads(line) for line in lines.getvalue().splitlines())
    assert (first["event"], first["gpus"][1]["running"]) == ("sample", 32)
    assert (last["event"], last["text"]) == ("happening", "running -> dead")


@pytest.mark.parametrize(("text", "seconds"), [("12h", 43200), ("30m", 1800), ("2d", 172800), ("1.5h", 5400)])
def test_an_age_counts_back_from_now(text: str, seconds: float) -> None:
    assert parse_since(text, 1e9) == 1e9 - seconds


def test_what_is_no_time_and_no_history_are_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no time"):
        parse_since("yesterday", 1e9)
    with pytest.raises(RackhandError, match="no history of expansion yet"):
        history(FLEET, {"XDG_STATE_HOME": str(tmp_path)}, "expansion")


def test_the_history_tells_when_a_generator_started_and_how_it_ended(tmp_path: Path) -> None:
    def at(time: float, pid: int, status: str) -> Sample:
        one = sample(time, pid=pid)
        (job,) = one.jobs
        return replace(one, jobs=(replace(job, progress={**(job.progress or {}), "status": status}),))

    said: list[str] = []
    steps = [(1, "running"), (1, "stopped"), (1, "stopped"), (2, "running"), (2, "running"), (2, "done"), (2, "done")]
    environ = recorded(tmp_path, [at(1000.0 + 5 * n, *step) for n, step in enumerate(steps)], said)
    told = history(FLEET, environ, "expansion")
    jobs = [(event.time, event.text) for event in told.events if event.kind == "job"]
    assert jobs == [
        (1005.0, "expansion: stopped"),
        (1015.0, "expansion: generator started"),
        (1025.0, "expansion: done"),
    ]
    assert [event.time for event in told.events] == sorted(event.time for event in told.events)


def test_a_removed_history_is_gone_and_another_inventory_keeps_its_own(tmp_path: Path) -> None:
    environ = recorded(tmp_path, [sample(1000.0)], [])
    other = recordings_dir(environ, tmp_path / "other.yaml")
    other.mkdir(parents=True)
    mine = recordings_dir(environ, FLEET.path)
    assert mine.is_dir()
    remove_history(environ, FLEET.path)
    remove_history(environ, FLEET.path)
    assert (mine.exists(), other.exists()) == (False, True)
