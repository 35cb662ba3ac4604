"""One verb of the zipapp, run inside the container over any road: request in, events out, the sentinel checked."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from rackhand import payload
from rackhand.command import Argv, Completed
from rackhand.contract import BOOT, END
from rackhand.errors import NotRunningError, PreconditionError, RackhandError, RemoteError, TransportError
from rackhand.transport import Transport

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HEARTBEAT_S = 60.0
"""Verbs that take long emit at least one event in half this time."""

Event = dict[str, Any]


def call(
    transport: Transport,
    verb: str,
    request: object,
    *,
    python: str | None = None,
    body: Iterable[bytes] = (),
    deadline_s: float | None = 120.0,
    silence_s: float = HEARTBEAT_S,
) -> Iterator[Event]:
    """Events of one call as they come, without the sentinel.

    Raises RemoteError when the verb failed, PreconditionError when the interpreter is missing, TransportError when
    the road broke or no sentinel came. `request` is plain JSON and may hold secrets: it travels on stdin.
    """
    app = payload.build()
    nonce = secrets.token_hex(8)
    argv = _argv(python or "python3", len(app.data), nonce, verb)
    stdin = chain((app.data, json.dumps(request).encode() + b"\n"), body)
    lines = transport.stream(argv, stdin=stdin, deadline_s=deadline_s, silence_s=silence_s)
    with contextlib.closing(lines):
        while True:
            try:
                line = next(lines)
            except StopIteration as stop:
                raise _no_answer(verb, python, transport.where, stop.value) from None
            event = _decode(line, transport.where)
            if event is None:
                continue
            if event.get("event") == END and event.get("nonce") == nonce:
                _raise_failure(event.get("error"), transport.where)
                return
            yield event


def call_once(transport: Transport, verb: str, request: object, **options: Any) -> Event:
    """The only event of a call that has exactly one."""
    events = list(call(transport, verb, request, **options))
    if len(events) != 1:
        raise TransportError(f"{verb} gave {len(events)} answers instead of one", where=transport.where)
    return events[0]


def _argv(python: str, size: int, nonce: str, verb: str) -> Argv:
    env = ("/usr/bin/env", "-i", f"PATH={PATH}", "LANG=C.UTF-8")
    return (*env, python, "-c", BOOT, str(size), nonce, verb)


def _decode(line: bytes, where: str) -> Event | None:
    if not line.startswith(b"{"):
        return None
    try:
        event = json.loads(line)
    except ValueError as error:
        raise TransportError("a garbled answer", where=where, detail=repr(line[:200])) from error
    return event if isinstance(event, dict) else None


def _no_answer(verb: str, python: str | None, where: str, done: Completed | None) -> RackhandError:
    """Why a command ended without a sentinel: told by its stderr, since a hop's own statuses mean little."""
    said = "" if done is None else done.stderr.decode(errors="replace").strip()
    host, last = where.partition("/")[0], said.splitlines()[-1:] or [""]
    name, setting = python or "python3", f"hosts.{host}.python"
    if done is not None and done.status == 137:
        hint = "was the container stopped, or out of memory? nothing half-written stays: run it again"
        return NotRunningError(f"{verb} was killed", where=where, hint=hint, detail=said)
    if re.search(r"^/usr/bin/env: .*: (No such file|Not a directory)", said, re.MULTILINE):
        return PreconditionError(f"no {name}", where=where, hint=f"set {setting} or install it", detail=said)
    if re.search(r"^/usr/bin/env: .*: Permission denied", said, re.MULTILINE):
        return PreconditionError(f"{name} can't be run", where=where, hint=f"mend {setting}", detail=said)
    if "memfd_create" in said or "rackhand needs Python" in said:
        hint = f"set {setting} to a newer one"
        return PreconditionError(f"{name} is older than Python 3.10", where=where, hint=hint, detail=said)
    status = "" if done is None else f" (status {done.status})"
    return TransportError(f"{verb} ended without an answer{status}", where=where, hint=last[0], detail=said)


def _raise_failure(error: Any, where: str) -> None:
    if not error:
        return
    kind, what, hint = error.get("kind", "failed"), error.get("what", "failed"), error.get("hint", "")
    if kind in ("missing", "usage", "busy", "disk_full", "read_only"):
        raise PreconditionError(what, where=where, hint=hint)
    raise RemoteError(what, kind=kind, where=where, hint=hint)
