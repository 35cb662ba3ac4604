from __future__ import annotations

import os
import signal
import threading
from typing import Literal

import pytest

from rackhand.errors import PreconditionError, RackhandError, TransportError, UnreachableError, UsageError
from rackhand.inventory import Host, PlainSsh, ProxmoxLxc, Ssh
from rackhand.report import Outcome, Report, Row
from rackhand.transport.local import Local
from rackhand.transport.via import Via
from rackhand.workflows.fleet import Roads, Task, run

HOSTS = tuple(Host(name, PlainSsh(Ssh(name))) for name in ("a", "b", "c"))


class LocalRoads(Roads):
    def __init__(self) -> None:
        super().__init__()
        self.roads: list[Local] = []

    def open(self, host: Host) -> Local:
        self.roads.append(Local(host.name))
        return self.roads[-1]

    def close(self) -> None:
        for road in self.roads:
            road.close()


def quiet(where: str, text: str) -> None:
    pass


def test_one_hosts_failure_leaves_the_others_going() -> None:
    def work(task: Task) -> None:
        task.add("first")
        if task.host.name == "b":
            raise UnreachableError("gone", where="b")
        task.facts["seen"] = task.transport.exec(("echo", task.host.name)).stdout.decode().strip()

    report = run("try", HOSTS, work, say=quiet, roads=LocalRoads())
    assert [row.where for row in report.rows] == ["a", "b", "c"]
    assert [row.facts.get("seen") for row in report.rows] == ["a", None, "c"]
    assert report.rows[1].outcomes == (Outcome("first"),)
    assert report.exit_code == 3


@pytest.mark.parametrize("count", [3, 48])
def test_all_hosts_work_side_by_side(count: int) -> None:
    barrier, hosts = threading.Barrier(count), [Host(f"h{i}", PlainSsh(Ssh(f"h{i}"))) for i in range(count)]
    report = run("try", hosts, lambda task: barrier.wait(30) and None, say=quiet, roads=LocalRoads())
    assert report.exit_code == 0


class Stop(KeyboardInterrupt):
    signum = signal.SIGTERM


def test_an_interrupt_closes_the_roads_and_says_who_had_finished() -> None:
    def on_signal(*_: object) -> None:
        raise Stop

    started, finished = threading.Barrier(2), threading.Event()

    def work(task: Task) -> None:
        if task.host.name == "a":
            task.add("all")
            finished.set()
        elif task.host.name == "b":
            started.wait(30)
            task.transport.exec(("sleep", "100"))
            raise TransportError("ended")
        else:
            started.wait(30)
            finished.wait(30)
            os.kill(os.getpid(), signal.SIGUSR1)
            task.transport.exec(("sleep", "100"))
            raise TransportError("ended")

    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        report = run("try", HOSTS, work, say=quiet, roads=LocalRoads())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert report.exit_code == 143
    assert [row.interrupted for row in report.rows] == [False, True, True]


ERRORS: dict[str, RackhandError | None] = {
    "ok": None,
    "failed": TransportError("x"),
    "precondition": PreconditionError("x"),
    "usage": UsageError("x"),
}


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ("ok ok", 0),
        ("failed", 1),
        ("failed failed", 1),
        ("precondition", 4),
        ("precondition precondition", 4),
        ("precondition failed", 1),
        ("usage", 2),
        ("ok failed", 3),
        ("ok precondition", 3),
        ("failed+done", 3),
        ("precondition+done", 3),
        ("ok+partfailed", 3),
        ("", 0),
    ],
)
def test_the_exit_code_follows_from_the_rows(rows: str, code: int) -> None:
    def row(word: str) -> Row:
        kind, _, more = word.partition("+")
        outcomes = {"": (), "done": (Outcome("d"),), "partfailed": (Outcome("d"), Outcome("f", "failed"))}[more]
        return Row("h", outcomes, error=ERRORS[kind])

    report = Report("v", tuple(row(word) for word in rows.split()))
    assert report.exit_code == code
    assert report.as_json()["exit_code"] == code


def test_json_holds_no_detail_that_only_verbose_shows() -> None:
    report = Report("v", (Row("h", error=TransportError("what", hint="next", detail="secret inner text")),))
    assert "inner text" not in str(report.as_json())
    assert report.as_json()["hosts"][0]["error"] == {"kind": "TransportError", "what": "what", "hint": "next"}


@pytest.mark.parametrize(("put", "share"), [("stream", 4), ("push", 2)])
def test_containers_of_one_machine_share_its_connection_until_its_channels_could_run_out(
    put: Literal["stream", "push"], share: int
) -> None:
    roads = Roads()
    opened = [roads.open(Host(f"h{i}", ProxmoxLxc(Ssh("pve"), 200 + i), put=put)) for i in range(share + 1)]
    inner = [road.inner for road in opened if isinstance(road, Via)]
    assert len({id(connection) for connection in inner[:share]}) == 1
    assert inner[share] is not inner[0]
    assert [road.where for road in opened[:2]] == ["h0/ct200", "h1/ct201"]
    roads.close()
