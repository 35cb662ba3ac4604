"""A watch's event stream → samples, taken up again when the road breaks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace

from rackhand.agent import Event, Session
from rackhand.contract import from_json, to_json
from rackhand.contract.watch import NOTE, Sample, WatchRequest
from rackhand.errors import AuthError, HostKeyError, NotRunningError, TransportError

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
LASTING = (AuthError, HostKeyError, NotRunningError)
"""What no waiting mends."""


def follow_samples(
    session: Session,
    request: WatchRequest,
    *,
    python: str | None,
    say: Callable[[str], None],
    stop: threading.Event,
) -> Generator[Sample, None, None]:
    """Samples as they come, until `stop` is set; exactly one with `request.once`.

    A road that never stood raises at once. One that stood and broke is taken up again, after pauses that `say` tells
    of; what only a person can mend (a key, a stopped container ...) raises. `stop` ends the far process in a second.
    With a past asked for, samples rebuilt from the logs come first, and after a break those of the time between: in
    order of time, none of them twice.
    """
    stood, pause_s, last = False, FIRST_PAUSE_S, request.since
    while not stop.is_set():
        try:
            road = _follow_once(session, _asking(request, last, again=stood), python=python, say=say, stop=stop)
            with contextlib.closing(road) as samples:
                for sample in samples:
                    if stop.is_set():
                        return
                    if stood and pause_s > FIRST_PAUSE_S:
                        say("the road is back")
                    stood, pause_s, last = True, FIRST_PAUSE_S, sample.time
                    yield sample
                    if request.once:
                        return
        except TransportError as error:
            if isinstance(error, LASTING) or ((not stood or request.once) and not stop.is_set()):
                raise
            why = f"the road broke: {error.what}"
        else:
            why = "the watch ended by itself"
        if stop.is_set() or request.once:
            return
        say(f"{why}; again in {pause_s:.0f} s")
        stop.wait(pause_s)
        pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)


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
