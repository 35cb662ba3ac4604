"""What restart-servers tells of a job at work: samples as the host would give them, the real history between."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from rackhand.contract.watch import Sample
from rackhand.errors import RackhandError, TransportError
from rackhand.workflows.before_after import BeforeAfter
from rackhand.workflows.fleet import Task
from tests.test_recording import FLEET, HOST, sample


@pytest.fixture(autouse=True)
def _own_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


class Script:
    """The samples of one watch after another; counts what was taken."""

    def __init__(self, *watches: list[Sample] | Exception) -> None:
        self.watches, self.taken = list(watches), 0

    def __call__(self, _task: Task) -> Generator[Sample, None, None]:
        watch = self.watches.pop(0)
        if isinstance(watch, Exception):
            raise watch
        for one in watch:
            self.taken += 1
            yield one


def steady(begin: float, seconds: float, *, flags: str, tok_s: float = 670.0) -> list[Sample]:
    found = [sample(begin + at, flags=flags) for at in range(0, int(seconds), 2)]
    return [replace(one, gpus=tuple(replace(gpu, tok_s=tok_s) for gpu in one.gpus)) for one in found]


def seen(script: Script) -> tuple[BeforeAfter, list[str]]:
    said: list[str] = []
    task = Task(HOST, None, lambda _, text: said.append(text))  # type: ignore[arg-type]
    return BeforeAfter(FLEET, task, "expansion", script), said


def test_a_restart_with_other_flags_tells_what_it_brought() -> None:
    loading = [sample(1060.0 + at, flags="0.9", state="loading") for at in range(0, 30, 2)]
    after = [*loading, *steady(1090.0, 300.0, flags="0.9", tok_s=1180.0)]
    script = Script(steady(1000.0, 60.0, flags="0.88"), after)
    watched, said = seen(script)
    watched.watch_before()
    assert script.taken == 24
    facts = watched.watch_after()
    assert facts["tok/s per GPU"].startswith("670 -> 1,180, x1.76 ")
    assert facts["running per GPU"].endswith("no difference")
    assert script.taken < 24 + len(after)
    assert any("x1.76" in line for line in said)


def test_a_restart_that_changed_nothing_says_so_and_does_not_wait() -> None:
    script = Script(steady(1000.0, 60.0, flags="0.88"), steady(1060.0, 300.0, flags="0.88"))
    watched, _ = seen(script)
    watched.watch_before()
    assert watched.watch_after() == {"compared": "no: flags and caps are as before"}
    assert script.taken < 24 + 15


def test_a_job_that_was_not_at_work_a_run_never_steady_and_a_broken_road_are_said() -> None:
    watched, _ = seen(Script([sample(1000.0 + at, state="loading") for at in range(0, 60, 2)]))
    watched.watch_before()
    assert "wasn't seen at work" in watched.watch_after()["compared"]

    watched, _ = seen(Script(steady(1100.0, 60.0, flags="0.88")))
    watched.watch_before()
    watched, _ = seen(Script([sample(1200.0 + at, state="loading") for at in range(0, 90, 2)]))
    watched.watch_before()
    assert "wasn't seen at work" in watched.watch_after()["compared"], "a run of before is not this one"

    restless = [
        replace(one, gpus=tuple(replace(gpu, tok_s=100.0 + 200 * (n % 20)) for gpu in one.gpus))
        for n, one in enumerate(steady(2100.0, 700.0, flags="0.9")[::3])
    ]
    watched, _ = seen(Script(steady(2000.0, 60.0, flags="0.88"), restless))
    watched.watch_before()
    assert watched.watch_after()["compared"].startswith("not yet: ")

    watched, _ = seen(Script(steady(3000.0, 60.0, flags="0.88"), TransportError("the road broke", where="rtx")))
    watched.watch_before()
    assert watched.watch_after() == {"compared": "no: rtx: the road broke"}


def test_a_restart_of_a_server_that_was_killed_is_compared_with_the_run_of_the_others() -> None:
    """GPU 0 died before the restart, GPU 1 was at work."""

    def with_another(one: Sample, *, dead: bool) -> Sample:
        gone = {"state": "dead", "cause": "the scheduler was killed (signal 9)", "cap": None, "running": None}
        first = replace(one.gpus[0], **(gone | {"tok_s": None} if dead else {}))  # type: ignore[arg-type]
        return replace(one, gpus=(first, replace(one.gpus[0], gpu=first.gpu + 1)))

    before = [with_another(one, dead=True) for one in steady(1000.0, 60.0, flags="0.88")]
    after = [with_another(one, dead=False) for one in steady(1060.0, 300.0, flags="0.88")]
    watched, _ = seen(Script(before, after))
    watched.watch_before()
    assert watched.before is not None
    assert "wasn't seen at work" not in str(watched.watch_after())

    nobody = [replace(one, gpus=with_another(one, dead=True).gpus[:1]) for one in steady(3000.0, 60.0, flags="0.88")]
    watched, _ = seen(Script(nobody))
    watched.watch_before()
    assert "wasn't seen at work" in watched.watch_after()["compared"]


def test_a_history_that_is_written_by_another_process_is_not_waited_for_before(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(steady(1000.0, 60.0, flags="0.88"))
    watched, _ = seen(script)
    watched.watch_before()
    monkeypatch.setattr("rackhand.workflows.before_after.time.time", lambda: 1050.0)
    again, said = seen(Script())
    again.watch_before()
    assert again.before is not None
    assert watched.before is not None
    assert again.before.id == watched.before.id
    assert said == []


def test_an_interrupt_before_the_stop_keeps_the_restart_from_beginning() -> None:
    watched, _ = seen(Script(steady(1000.0, 20.0, flags="0.88")))
    watched.task.stopping.set()
    with pytest.raises(RackhandError, match="interrupted"):
        watched.watch_before()


def test_after_a_restart_of_some_gpus_those_are_compared_with_the_unchanged_ones() -> None:
    def some(begin: float, seconds: float) -> list[Sample]:
        found = steady(begin, seconds, flags="0.88", tok_s=700.0)
        return [
            replace(one, gpus=(replace(one.gpus[0], tok_s=1400.0, flags={"a": "new"}), *one.gpus[1:])) for one in found
        ]

    watched, said = seen(Script(steady(1000.0, 60.0, flags="0.88", tok_s=1000.0), some(1090.0, 300.0)))
    watched.watch_before()
    facts = watched.watch_after()
    assert facts["tok/s, GPU 0 changed"].startswith("1,000 -> 1,400, x1.40 ")
    assert facts["tok/s, GPU 1 as before"].startswith("1,000 -> 700, x0.70 ")
    assert facts["tok/s, changed over unchanged"].startswith("0.70 -> 1.40, x2.00 [2.00, 2.00] more")
    assert facts["tok/s in all"].startswith("2,000 -> 2,100, x1.05 ")
    assert "tok/s per GPU" not in facts
    assert any("tok/s per GPU, GPU 0 1,400 against 1,000, x1.40" in line for line in said)
    assert any("GPU 1, unchanged: x0.70" in line for line in said)


def test_a_restart_while_the_job_ramps_up_has_nothing_to_be_compared_with() -> None:
    rising = [
        replace(one, gpus=tuple(replace(gpu, running=1 + n, tok_s=20.0 * n) for gpu in one.gpus))
        for n, one in enumerate(steady(1000.0, 50.0, flags="0.88"))
    ]
    watched, _ = seen(Script(rising, steady(1052.0, 300.0, flags="0.9")))
    watched.watch_before()
    assert watched.watch_after() == {"compared": "no: the job was still ramping up before the restart"}
