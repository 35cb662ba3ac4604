"""How the two sides of a session speak: frames on stdin, marked lines on stdout. See the package for the protocol."""

from __future__ import annotations

import json
from typing import Any

READY, END, IDLE = "ready", "end", "idle"
HEAD_BYTES = 9
MOST_BYTES = 0xFFFFFFFE
"""Of one frame."""
END_OF_BODY = b"00000000\n"
BODY_CUT = b"ffffffff\n"
"""Instead of END_OF_BODY: what would follow isn't sent any more."""

BOOT = (
    "import os,sys;n=int(sys.argv[1]);f=os.memfd_create('rackhand',0)\n"
    'os.write(1,b\'\\x1e%s {"event":"ready"}\\n\'%os.fsencode(sys.argv[2]))\n'
    "while n>0:\n"
    " b=os.read(0,min(n,65536))\n"
    " if not b:sys.exit('rackhand: input ended early')\n"
    " n-=len(b);os.write(f,b)\n"
    "os.execv(sys.executable,[sys.executable,'-B','/proc/self/fd/%d'%f,'session',*sys.argv[2:]])"
)
"""Runs the zipapp from stdin. ASCII only: pct replaces other characters. Unbuffered reads: the rest is the session's.

It holds no control character either: a shell that shows this command line shows no marked line."""


def frame(data: bytes) -> bytes:
    """`data`, which isn't empty, behind its length: 8 hexadecimal digits and a newline."""
    return b"%08x\n%b" % (len(data), data)


def frame_size(head: bytes) -> int | None:
    """What the head of a frame announces: bytes, 0 for the end of a body, None where it was cut. ValueError when it
    is no head."""
    if len(head) != HEAD_BYTES or head[-1:] != b"\n":
        raise ValueError(f"no frame begins with {head!r}")
    return None if head == BODY_CUT else int(head[:-1], 16)


def ask(verb: str, request: object, python: str) -> bytes:
    """The frame that begins a request. Its body follows: any frames, then END_OF_BODY or BODY_CUT."""
    return frame(json.dumps({"verb": verb, "python": python, "request": request}).encode())


def tell(nonce: str, event: dict[str, Any]) -> bytes:
    """One line of stdout. JSON holds no control character, so that a mark never stands in an event."""
    return b"\x1e%b %b\n" % (nonce.encode(), json.dumps(event).encode())


def end(nonce: str, error: Any = None) -> bytes:
    """The sentinel: a request's last line. `error` is a Failure as JSON."""
    return tell(nonce, {"event": END, "error": error})


def hear(nonce: str, line: bytes) -> tuple[bytes, bytes | None]:
    """What stands in a line before our event, and the event's JSON; None when it has none. A line that was cut may
    stand before a whole one."""
    noise, found, event = line.rpartition(b"\x1e%b " % nonce.encode())
    return (noise, event) if found else (line, None)
