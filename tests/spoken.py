"""A session's own words, for tests that speak to its process without rackhand.agent."""

from __future__ import annotations

import json
from typing import Any

from rackhand.contract import wire

NONCE = "n0"


def asked(verb: str, request: object, python: str, *body: bytes, ended: bool = True) -> bytes:
    """One request as it goes to stdin, with its body; `ended` False leaves the body open."""
    frames = b"".join(wire.frame(piece) for piece in body)
    return wire.ask(verb, request, python) + frames + (wire.END_OF_BODY if ended else b"")


def heard(line: bytes) -> dict[str, Any] | None:
    """The event of a line; None when it has none. Being ready and being idle are none."""
    text = wire.hear(NONCE, line.rstrip(b"\n"))[1]
    event = None if text is None else json.loads(text)
    return None if event is None or event["event"] in (wire.READY, wire.IDLE) else event
