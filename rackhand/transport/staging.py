"""A private temporary file on the far side of a road, for another program there such as `pct push`.

It comes through a shell's stdin and not by SFTP: the login shell starts sftp-server, and whatever a start-up file
prints would go into its protocol. The shell that made the file waits, and removes it when its input ends: also when the
road is cut or this program is killed.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
from collections.abc import Generator, Iterable, Iterator

from rackhand.command import Completed
from rackhand.errors import DeadlineError, PreconditionError, TransportError
from rackhand.transport import Transport

HOLD = (
    'umask 077; set -C; : >"$0" || exit 1; trap \'trap "" HUP INT TERM; rm -f "$0"\' EXIT; '
    'trap "exit 1" HUP INT TERM; '
    'head -c "$1" >>"$0" && [ "$(wc -c <"$0")" -eq "$1" ] && echo "$2" || exit 1; cat >/dev/null'
)
NO_ROOM = "is /tmp there full or read-only? put: stream needs no room there"


@contextlib.contextmanager
def staged(road: Transport, data: Iterable[bytes], size: int) -> Iterator[str]:
    """The path of a file with mode 0600 that holds the `size` bytes of `data`; removed at the end of the context.

    PreconditionError when it can't be written there, TransportError when the road broke.
    """
    path = f"/tmp/rackhand-stage-{secrets.token_hex(12)}"  # noqa: S108  noclobber: never somebody else's file
    nonce, done = secrets.token_hex(8), threading.Event()

    def sent() -> Iterator[bytes]:
        yield from data
        done.wait()

    try:
        argv = ("/bin/sh", "-c", HOLD, path, str(size), nonce)
        with contextlib.closing(road.stream(argv, stdin=sent())) as lines:
            _await(lines, nonce.encode(), path, road.where)
            try:
                yield path
            finally:
                done.set()
                with contextlib.suppress(TransportError):
                    _end(lines)
    finally:
        done.set()


def _await(lines: Generator[bytes, None, Completed], nonce: bytes, path: str, where: str) -> None:
    """Skips what start-up files print, with a newline at its end or without."""
    try:
        while not next(lines).endswith(nonce):
            pass
    except StopIteration as stop:
        raise _unwritten(stop.value, path, where) from None
    except DeadlineError as error:
        error.hint = "is the machine overloaded, or does a start-up file of the shell there read its input?"
        raise


def _unwritten(done: Completed, path: str, where: str) -> PreconditionError | TransportError:
    said = done.stderr.decode(errors="replace").strip()
    reason = re.search(r"No space left on device|Disk quota exceeded|Read-only file system|Permission denied", said)
    if reason:
        return PreconditionError(f"can't write {path}: {reason.group()}", where=where, hint=NO_ROOM, detail=said)
    last = said.splitlines()[-1] if said else f"status {done.status}"
    return TransportError(f"can't write {path}: {last}", where=where, hint=NO_ROOM, detail=said)


def _end(lines: Generator[bytes, None, Completed]) -> None:
    for _ in lines:
        pass
