from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Generator
from itertools import islice
from pathlib import Path

import pytest

from rackhand import follow
from rackhand.agent import Session
from rackhand.command import Argv, Completed
from rackhand.contract import from_json, wire
from rackhand.contract.watch import Sample, WatchRequest
from rackhand.errors import (
    AuthError,
    DeadlineError,
    HostKeyError,
    NotRunningError,
    PreconditionError,
    RackhandError,
    RemoteError,
    StoppedError,
    TransportError,
    UnreachableError,
)
from rackhand.follow import follow_samples
from rackhand.transport import Limits, Stdin
from rackhand.transport.local import Local


class Scripted:
    """A road that plays what each call brings: samples by number, then an error or a clean end."""

    where = "pve1/ct200"

    def __init__(self, *calls: tuple[int, RackhandError | None]) -> None:
        self._calls = list(calls)
        self.requests: list[WatchRequest] = []
        self.time = 100.0

    def exec(self, argv: Argv, *, stdin: Stdin = b"", deadline_s: float = 60.0) -> Completed:
        raise NotImplementedError

    def stream(
        self, argv: Argv, *, stdin: Stdin = b"", limits: Limits | None = None
    ) -> Generator[bytes, None, Completed]:
        nonce = argv[-2]
        yield wire.tell(nonce, {"event": wire.READY})
        assert not isinstance(stdin, bytes)
        _, request = islice(stdin, 2)
        self.requests.append(from_json(WatchRequest, json.loads(request[wire.HEAD_BYTES :])["request"]))
        count, error = self._calls.pop(0)
        yield wire.tell(nonce, {"event": "note", "text": f"call {len(self.requests)}"})
        for seq in range(count):
            self.time += 1
            yield wire.tell(nonce, {"event": "sample", "time": self.time, "seq": seq})
        if error is not None:
            raise error
        yield wire.end(nonce)
        return Completed(argv, 0, b"", b"", 0.0)

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "FIRST_PAUSE_S", 0.01)


def followed(road: Scripted, wanted: int, request: WatchRequest | None = None) -> tuple[list[int], list[str]]:
    said: list[str] = []
    stop = threading.Event()
    seqs = []
    for sample in follow_samples(Session(road), request or WatchRequest("/h"), python=None, say=said.append, stop=stop):
        seqs.append(sample.seq)
        if len(seqs) == wanted:
            stop.set()
    return seqs, said


def test_a_road_that_breaks_is_taken_up_again_and_both_are_said() -> None:
    cut = UnreachableError("the connection was cut", where="pve1")
    seqs, said = followed(Scripted((3, cut), (0, cut), (2, None), (9, None)), 5)
    assert seqs == [0, 1, 2, 0, 1]
    assert said[0] == "call 1", "a note is for people"
    assert said[1].startswith("connection lost: the connection was cut, retrying in ")
    assert said[3].startswith("connection lost")
    assert said[5].startswith("connection back after ")


def test_after_a_break_the_past_since_the_last_sample_is_asked_for_where_a_past_was_wanted() -> None:
    cut = UnreachableError("the connection was cut")
    calls = ((3, cut), (0, cut), (2, None), (9, None))
    for request, wanted in (
        (WatchRequest("/h"), [(0.0, None)] * 3),
        (WatchRequest("/h", past_s=600.0), [(600.0, None), (0.0, 103.0), (0.0, 103.0)]),
        (WatchRequest("/h", past_s=600.0, since=7.0), [(600.0, 7.0), (0.0, 103.0), (0.0, 103.0)]),
    ):
        road = Scripted(*calls)
        followed(road, 5, request)
        assert [(asked.past_s, asked.since) for asked in road.requests] == wanted


def test_a_road_that_never_stood_raises_at_once() -> None:
    with pytest.raises(TransportError, match="no route"):
        followed(Scripted((0, UnreachableError("no route"))), 1)


STOPPED = StoppedError("the container is stopped")


@pytest.mark.parametrize(
    "error",
    [
        STOPPED,
        NotRunningError("watch was killed"),
        AuthError("refused while the machine boots"),
        PreconditionError("no container 200 here"),
        RemoteError("Input/output error"),
        DeadlineError("no sign of life"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_reboot_brings_is_waited_out_and_noted(error: RackhandError) -> None:
    noted: list[tuple[str, str]] = []
    road = Scripted((2, UnreachableError("cut")), (0, error), (0, error), (1, None))
    samples = follow_samples(
        Session(road),
        WatchRequest("/h"),
        python=None,
        say=lambda _: None,
        stop=threading.Event(),
        note=lambda _time, kind, text: noted.append((kind, text)),
        patience="all",
    )
    assert [sample.seq for sample in islice(samples, 3)] == [0, 1, 0]
    kind = "container" if error is STOPPED else "connection"
    why = error.what if error is STOPPED else f"connection lost: {error.what}"
    assert noted[:2] == [("connection", "connection lost: cut"), (kind, why)]
    assert noted[2][1].startswith("connection back after ")
    assert len(noted) == 3, "each reason once"


@pytest.mark.parametrize("error", [STOPPED, AuthError("refused"), RemoteError("no")], ids=["stopped", "key", "failed"])
def test_a_watch_with_an_end_waits_out_cuts_only(error: RackhandError) -> None:
    """diagnose and restart-servers: nobody is told for hours that they wait."""
    with pytest.raises(type(error)):
        followed(Scripted((1, UnreachableError("cut")), (1, None), (0, error)), 5)


def test_a_changed_host_key_is_never_waited_out() -> None:
    with pytest.raises(HostKeyError):
        followed(Scripted((1, UnreachableError("cut")), (0, HostKeyError("CHANGED"))), 5)


@pytest.mark.parametrize("error", [UnreachableError("no route"), STOPPED], ids=["down", "stopped"])
def test_a_patient_follower_waits_for_a_road_that_never_stood(error: RackhandError) -> None:
    road = Scripted((0, error), (1, None))
    say: Callable[[str], None] = lambda _: None  # noqa: E731
    follow = follow_samples(
        Session(road), WatchRequest("/h"), python=None, say=say, stop=threading.Event(), patience="start"
    )
    assert next(follow).seq == 0
    refused = follow_samples(
        Session(Scripted((0, AuthError("refused")))),
        WatchRequest("/h"),
        python=None,
        say=say,
        stop=threading.Event(),
        patience="start",
    )
    with pytest.raises(AuthError):
        next(refused)


def test_pauses_grow_to_a_limit_and_each_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "FIRST_PAUSE_S", 1.0)
    said: list[str] = []
    wait = follow._Wait(said.append, lambda *_: None)
    pauses = [wait.begin("connection", "connection lost: cut") for _ in range(9)]
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30, 30]
    assert said[2] == "connection lost: cut, retrying in 4 s"
    assert said[5:] == ["connection lost: cut, retrying every 30 s"]


def test_once_takes_one_sample_and_does_not_try_again() -> None:
    road = Scripted((3, None))
    request = WatchRequest("/h", once=True)
    found = list(follow_samples(Session(road), request, python=None, say=print, stop=threading.Event()))
    assert [sample.seq for sample in found] == [0]


def test_a_sample_of_another_shape_is_an_error_with_a_name() -> None:
    class Odd(Scripted):
        def stream(self, argv: Argv, **_: object) -> Generator[bytes, None, Completed]:  # type: ignore[override]
            yield wire.tell(argv[-2], {"event": wire.READY})
            yield wire.tell(argv[-2], {"event": "sample", "time": "noon"})
            return Completed(argv, 0, b"", b"", 0.0)

    with pytest.raises(TransportError, match="another shape"):
        followed(Odd(), 1)


def test_over_a_real_road_the_far_process_ends_when_the_follower_stops(tmp_path: Path) -> None:
    stop = threading.Event()
    (tmp_path / "bin").mkdir()
    seen: list[Sample] = []
    road = Local()
    session = Session(road)
    say: Callable[[str], None] = pytest.fail
    request = WatchRequest(str(tmp_path), interval_s=0.05)
    for sample in follow_samples(session, request, python=sys.executable, say=say, stop=stop):
        seen.append(sample)
        if len(seen) == 3:
            stop.set()
    assert [sample.seq for sample in seen] == [0, 1, 2]
    session.close()
    assert not road._running
