"""A watch's event stream → samples, taken up again when the road breaks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Literal

from rackhand.agent import Event, Session
from rackhand.contract import from_json, to_json
from rackhand.contract.watch import NOTE, Sample, WatchRequest
from rackhand.errors import (
    AuthError,
    HostKeyError,
    NotRunningError,
    PreconditionError,
    RackhandError,
    RemoteError,
    StoppedError,
    TransportError,
)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
LASTING = (AuthError, NotRunningError)
"""What no short waiting mends."""
BREAKS = (TransportError, PreconditionError, RemoteError)
"""After a road has stood all of these pass by themselves: while a machine boots its logins are refused, its containers
unknown and its disks not there."""

Patience = Literal["cuts", "all", "start"]
"""What is waited out: a cut connection; whatever ends a watch that has stood; also one that doesn't stand at first."""

Note = Callable[[float, str, str], None]
"""What happened to the road: the container's Unix seconds as far as known, `connection` or `container`, words."""


def follow_samples(
    session: Session,
    request: WatchRequest,
    *,
    python: str | None,
    say: Callable[[str], None],
    stop: threading.Event,
    note: Note = lambda _time, _kind, _text: None,
    patience: Patience = "cuts",
) -> Generator[Sample, None, None]:
    """Samples as they come, until `stop` is set; exactly one with `request.once`.

    A road that never stood raises at once, unless it is waited for like one that stood and broke: again and again,
    after growing pauses that `say` tells of. `patience` says for what; a changed host key always raises. `stop` ends
    the far process in a second. With a past asked for, samples rebuilt from the logs come first, and after a break
    those of the time between: in order of time, none of them twice.
    """
    stood, last = False, request.since
    wait = _Wait(say, note)
    while not stop.is_set():
        try:
            road = _follow_once(session, _asking(request, last, again=stood), python=python, say=say, stop=stop)
            with contextlib.closing(road) as samples:
                for sample in samples:
                    if stop.is_set():
                        return
                    wait.end(sample.time)
                    stood, last = True, sample.time
                    yield sample
                    if request.once:
                        return
        except BREAKS as error:
            if not stop.is_set() and (request.once or not _passes(error, stood=stood, patience=patience)):
                raise
            kind, why = ("container", error.what) if isinstance(error, StoppedError) else ("connection", "")
            why = why or f"connection lost: {error.what}"
        else:
            kind, why = "connection", "connection lost: the watch ended by itself"
        if stop.is_set() or request.once:
            return
        stop.wait(wait.begin(kind, why))


def _passes(error: RackhandError, *, stood: bool, patience: Patience) -> bool:
    if isinstance(error, HostKeyError):
        return False
    if stood:
        return patience != "cuts" or (isinstance(error, TransportError) and not isinstance(error, LASTING))
    return patience == "start" and isinstance(error, TransportError) and not isinstance(error, AuthError)


class _Wait:
    """The pauses of one break after the other, and what is said of them: each reason once, each longer pause."""

    def __init__(self, say: Callable[[str], None], note: Note) -> None:
        self._say, self._note = say, note
        self._pause_s = FIRST_PAUSE_S
        self._said: tuple[str, float] | None = None
        self._why = ""
        self._began = 0.0
        self._seen: tuple[float, float] | None = None

    def begin(self, kind: str, why: str) -> float:
        """Seconds to wait before the next try."""
        pause_s = self._pause_s
        self._began = self._began or time.monotonic()
        if (why, pause_s) != self._said:
            often = "every" if pause_s >= LONGEST_PAUSE_S else "in"
            self._say(f"{why}, retrying {often} {pause_s:.0f} s")
        if why != self._why:
            self._note(self._container_time(), kind, why)
        self._said, self._why = (why, pause_s), why
        self._pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
        return pause_s

    def end(self, sample_time: float) -> None:
        """A sample came."""
        if self._why:
            text = f"connection back after {time.monotonic() - self._began:.0f} s"
            self._say(text)
            self._note(self._container_time(), "connection", text)
        self._pause_s, self._said, self._why, self._began = FIRST_PAUSE_S, None, "", 0.0
        self._seen = (sample_time, time.monotonic())

    def _container_time(self) -> float:
        """Its clock went on meanwhile; this machine's stands in for one that was never seen."""
        return time.time() if self._seen is None else self._seen[0] + time.monotonic() - self._seen[1]


def _asking(request: WatchRequest, last: float | None, *, again: bool) -> WatchRequest:
    """After a break the past is what came since the last sample."""
    wants_past = request.past_s > 0 or request.since is not None
    return replace(request, past_s=0.0, since=last) if again and wants_past else request


def _follow_once(
    session: Session,
    request: WatchRequest,
    *,
    python: str | None,
    say: Callable[[str], None],
    stop: threading.Event,
) -> Generator[Sample, None, None]:
    ended = threading.Event()
    held = not request.once
    events = session.call(
        "watch",
        to_json(replace(request, until_eof=held)),
        python=python,
        body=_held_open(stop, ended) if held else (),
        deadline_s=60.0 if request.once else None,
        silence_s=max(30.0, 5 * request.interval_s),
    )
    with contextlib.closing(events):
        try:
            for event in events:
                if event.get("event") == "sample":
                    yield _sample(event, session.where)
                elif event.get("event") == NOTE:
                    say(str(event.get("text")))
        finally:
            ended.set()


def _held_open(stop: threading.Event, ended: threading.Event) -> Iterator[bytes]:
    """Keeps the far stdin open: the watch ends when it closes."""
    while not stop.is_set() and not ended.wait(0.2):
        yield b""


def _sample(event: Event, where: str) -> Sample:
    try:
        return from_json(Sample, event)
    except ValueError as error:
        raise TransportError("a sample of another shape", where=where, detail=str(error)) from error
