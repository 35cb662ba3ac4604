"""Dispatch: `python remote.pyz VERB ...` from a script or a person, `call NONCE VERB` from the control side.

Every verb lives in a module of its own. A command verb has `main(argv) -> int`; a call verb has
`call(request, emit, body)`: `request` is decoded JSON, `emit` writes one event, `body` reads the rest of stdin.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from rackhand.contract import Failure, end

COMMANDS = {
    "generate": "remote.generate",
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
    if argv[:1] == ["call"] and len(argv) == 3:
        return _call(argv[1], argv[2])
    if argv[:1] and argv[0] in COMMANDS:
        command: Callable[[list[str]], int] = importlib.import_module(COMMANDS[argv[0]]).main
        return command(argv[1:])
    sys.stderr.write(f"usage: python remote.pyz {{{','.join(COMMANDS)}}} ...\n")
    return 2


def _call(nonce: str, verb: str) -> int:
    def emit(event: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()

    body = os.fdopen(0, "rb", closefd=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failure: Failure | None = None
    try:
        if verb not in CALLS:
            raise VerbError("usage", f"no verb {verb}")
        request = json.loads(body.readline())
        importlib.import_module(CALLS[verb]).call(request, emit, body)
    except VerbError as error:
        failure = error.failure
    except KeyboardInterrupt:
        failure = Failure("interrupted", "interrupted")
    except BrokenPipeError:
        return 1
    except OSError as error:
        failure = Failure("os_error", f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))
    except subprocess.TimeoutExpired as error:
        program = error.cmd if isinstance(error.cmd, str) else str(error.cmd[0])
        failure = Failure(
            "failed", f"{program} did not end within {error.timeout:.0f} s", "is the container overloaded?"
        )
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(end(nonce, failure) + "\n")
        sys.stdout.flush()
    return 0 if failure is None else 1
