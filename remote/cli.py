"""Dispatch: `python remote.pyz VERB ...` from a script or a person, `session ...` from the control side.

Every verb lives in a module of its own. A command verb has `main(argv) -> int`; a call verb has
`call(request, emit, body)`: `request` is decoded JSON, `emit` writes one event, `body` reads what the control side
sends with the request, to its end.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from rackhand.contract import Failure

COMMANDS = {
    "generate": "remote.generate",
    "session": "remote.session",
    "supervise": "remote.serving.supervise",
}
CALLS = {
    "observe": "remote.observe",
    "receive": "remote.receive",
    "servers": "remote.servers",
    "probe": "remote.serving.probe",
    "job": "remote.job",
    "watch": "remote.watch",
    "prompts": "remote.check_prompts",
    "verify": "remote.verify",
}

Emit = Callable[[dict[str, Any]], None]


class VerbError(Exception):
    """A verb's own failure, said to the control side as a `Failure`."""

    def __init__(self, kind: str, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.failure = Failure(kind, what, hint)


def main(argv: list[str]) -> int:
    if argv[:1] and argv[0] in COMMANDS:
        command: Callable[[list[str]], int] = importlib.import_module(COMMANDS[argv[0]]).main
        return command(argv[1:])
    sys.stderr.write(f"usage: python remote.pyz {{{','.join(COMMANDS)}}} ...\n")
    return 2
