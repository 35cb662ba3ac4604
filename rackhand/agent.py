"""Verbs of the zipapp, asked of one process in a container over any road: requests in, marked events out."""

from __future__ import annotations

import json
import queue
import secrets
import threading
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from rackhand import payload
from rackhand.command import Completed
from rackhand.contract import wire
from rackhand.errors import DeadlineError, RackhandError, TransportError
from rackhand.transport import Limits, Transport
from rackhand.unanswered import Noise, explain_deadline, explain_end, explain_failure

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HEARTBEAT_S = 60.0
"""Verbs that take long emit at least one event in half this time."""
READY_S = 60.0
"""From the start of a command to the first line of ours, on a busy machine."""
LET_GO_S = 3.0
"""How long a request whose events nobody wants any more may take to end by itself."""

Event = dict[str, Any]
_Parts = queue.SimpleQueue[Iterable[bytes] | None]


class Session:
    """All that is asked of one container, by one thread: one process there, so one `pct exec`, whatever is asked.

    The first call starts it. One that broke is forgotten: the error is raised, and the next call starts another.
    `noise` is what others said on its stdout.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.noise = Noise()
        self._limits = Limits()
        self._far: _Far | None = None

    @property
    def where(self) -> str:
        return self.transport.where

    def call(
        self,
        verb: str,
        request: object,
        *,
        python: str | None = None,
        body: Iterable[bytes] = (),
        deadline_s: float | None = 120.0,
        silence_s: float = HEARTBEAT_S,
    ) -> Generator[Event, None, None]:
        """Events of one request as they come, without the sentinel. Closed early, it ends the request's body, which
        ends a verb that listens to it.

        Raises RemoteError when the verb failed, PreconditionError when the interpreter is missing, TransportError when
        the road broke or no sentinel came; after RemoteError the session stays as it is. `request` is plain JSON and
        may hold secrets: it travels on stdin.
        """
        name = python or "python3"
        sending = _Sending(wire.ask(verb, request, name), body)
        ended: Event | None = None
        try:
            far = self._far or self._start(verb, name, min(deadline_s or READY_S, READY_S))
            self._limits.renew(deadline_s, silence_s)
            far.parts.put(sending.frames())
            while ended is None:
                event = self._next_event(far, verb, name)
                if event.get("event") == wire.END:
                    ended = event
                else:
                    yield event
        finally:
            sending.answered.set()
            if ended is None and not self._is_let_go():
                self._forget()
        if sending.error is not None:
            raise sending.error
        if ended["error"]:
            raise explain_failure(ended["error"], verb, name, self.where)

    def call_once(self, verb: str, request: object, **options: Any) -> Event:
        """The only event of a request that has exactly one."""
        events = list(self.call(verb, request, **options))
        if len(events) != 1:
            raise TransportError(f"{verb} gave {len(events)} answers instead of one", where=self.where)
        return events[0]

    def close(self) -> None:
        """The far process ends with its stdin."""
        self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, verb: str, python: str, limit_s: float) -> _Far:
        """Nothing is sent before the far side has said that it reads: else some start-up file might be what does."""
        app = payload.build()
        nonce, parts = secrets.token_hex(8), _Parts()
        env = ("/usr/bin/env", "-i", f"PATH={PATH}", "LANG=C.UTF-8")
        argv = (*env, python, "-c", wire.BOOT, str(len(app.data)), nonce, python)
        self._limits = Limits(limit_s, limit_s)
        far = self._far = _Far(nonce, parts, self.transport.stream(argv, stdin=_pour(parts), limits=self._limits))
        try:
            while self._next_event(far, verb, python).get("event") != wire.READY:
                pass
        except DeadlineError as error:
            if not self._limits.has_begun:
                raise
            raise explain_deadline(error, self.transport, self.noise) from None
        parts.put((app.data,))
        far.has_begun = True
        return far

    def _next_event(self, far: _Far, verb: str, python: str) -> Event:
        while True:
            try:
                line = next(far.lines)
            except StopIteration as stop:
                road = None if far.has_begun else self.transport
                raise explain_end(stop.value, verb, python, self.where, road=road, noise=self.noise) from None
            noise, text = wire.hear(far.nonce, line)
            self.noise.note(noise)
            if text is None:
                continue
            event = _decode(text, self.where)
            if event.get("event") != wire.IDLE:
                return event

    def _is_let_go(self) -> bool:
        """Whether a request that is given up has ended, so that another can follow."""
        far = self._far
        if far is None or not far.has_begun:
            return False
        self._limits.renew(LET_GO_S, LET_GO_S)
        try:
            while self._next_event(far, "", "").get("event") != wire.END:
                pass
        except RackhandError:
            return False
        return True

    def _forget(self) -> None:
        far, self._far = self._far, None
        if far is not None:
            far.parts.put(None)
            far.lines.close()


@dataclass
class _Far:
    """The process over there. `has_begun`: it has said that it reads."""

    nonce: str
    parts: _Parts
    lines: Generator[bytes, None, Completed]
    has_begun: bool = False


class _Sending:
    """One request and its body, read from its source in the thread that feeds stdin. `answered` ends it early;
    `error` is what the source raised."""

    def __init__(self, head: bytes, body: Iterable[bytes]) -> None:
        self.answered = threading.Event()
        self.error: Exception | None = None
        self._head, self._body = head, body

    def frames(self) -> Iterator[bytes]:
        yield self._head
        try:
            for chunk in self._body:
                if self.answered.is_set():
                    break
                if chunk:
                    yield wire.frame(chunk)
            else:
                yield wire.END_OF_BODY
                return
        except Exception as error:  # noqa: BLE001  whatever the source of a body raises belongs to the caller
            self.error = error
        yield wire.BODY_CUT


def _pour(parts: _Parts) -> Iterator[bytes]:
    while (part := parts.get()) is not None:
        yield from part


def _decode(text: bytes, where: str) -> Event:
    hint = "something else writes into its output: does a start-up file there leave a process behind?"
    try:
        event = json.loads(text)
    except ValueError as error:
        raise TransportError("a garbled answer", where=where, hint=hint, detail=repr(text[:200])) from error
    if not isinstance(event, dict):
        raise TransportError("a garbled answer", where=where, hint=hint, detail=repr(text[:200]))
    return event
