"""Secrets: where they come from, and that they show nowhere.

A `Secret` prints as ***; its value is had by `reveal()` alone. It can't be pickled or turned into JSON by accident.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import shlex
import signal
import subprocess
import urllib.parse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from rackhand.errors import PreconditionError
from rackhand.inventory import SecretRef

MASK = "***"
COMMAND_DEADLINE_S = 30.0
_MOST_BYTES = 64 * 1024


class Secret:
    """One line of text that no repr, format, log or pickle shows. Compared in constant time."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash(self._value)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret can't be pickled")


def resolve(
    ref: SecretRef, environ: Mapping[str, str], *, where: str = "", deadline_s: float = COMMAND_DEADLINE_S
) -> Secret:
    """Read the environment variable, or run the command (no shell, no stdin) in the inventory's directory.

    The secret is the output without its newline at the end: one line of UTF-8. PreconditionError otherwise, with
    `where` in front; it never holds what the command printed.
    """
    try:
        return _resolve(ref, environ, deadline_s)
    except PreconditionError as error:
        error.where = where
        raise


def _resolve(ref: SecretRef, environ: Mapping[str, str], deadline_s: float) -> Secret:
    if ref.env is not None:
        value = environ.get(ref.env, "")
        if not value:
            raise PreconditionError(f"environment variable {ref.env} is not set", hint=f"export {ref.env}=...")
        return _secret(value, f"environment variable {ref.env}")
    argv = ref.command or ()
    shown = shlex.join(argv[:1])
    return _secret(_output_of(argv, ref.cwd, environ, deadline_s, shown), f"the output of {shown}")


def _output_of(
    argv: tuple[str, ...], cwd: Path | None, environ: Mapping[str, str], deadline_s: float, shown: str
) -> str:
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no such command"
        raise PreconditionError(
            f"secret command {shown} can't be run: {reason}", hint="correct command: in the inventory"
        ) from None
    try:
        output, _ = process.communicate(timeout=deadline_s)
    except BaseException as error:
        _kill(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise PreconditionError(
                f"secret command {shown} gave nothing in {deadline_s:g} s", hint="does it ask for a password?"
            ) from None
        raise
    if process.returncode != 0:
        raise PreconditionError(
            f"secret command {shown} ended with status {process.returncode}", hint="run it by hand to see why"
        )
    try:
        return output[: _MOST_BYTES + 1].decode()
    except UnicodeDecodeError:
        raise PreconditionError(f"the output of {shown} is not UTF-8", hint="a secret is one line of text") from None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The command leads its own process group: what it started goes with it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _secret(text: str, source: str) -> Secret:
    value = text.rstrip("\r\n")
    if not value.strip():
        raise PreconditionError(f"{source} is empty", hint="a secret is one line of text")
    if len(value) > _MOST_BYTES or any(ord(letter) < 32 or ord(letter) == 127 for letter in value):
        raise PreconditionError(f"{source} is not one line of printable text", hint="a secret is one line of text")
    return Secret(value)


def mask(text: str, secrets: Iterable[Secret]) -> str:
    """The text with every known secret blanked, also as JSON, a URL or a shell word would spell it."""
    spellings: set[str] = set()
    for secret in secrets:
        value = secret.reveal()
        quoted = {
            json.dumps(value)[1:-1],
            urllib.parse.quote(value, safe=""),
            value.replace("'", "'\"'\"'"),
            value.replace("'", "''"),
        }
        spellings |= {value, *quoted}
    for spelling in sorted(spellings - {""}, key=len, reverse=True):
        text = text.replace(spelling, MASK)
    return text
