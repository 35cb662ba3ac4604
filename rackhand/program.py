"""What Invoke leaves out: the exit codes of errors.py, clean ends on signals, and no traceback for the operator.

`main` is what ./inv runs; `verb` makes a task whose exit codes are the same under plain `invoke`.
"""

from __future__ import annotations

import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import invoke.program
import invoke.tasks
from invoke.exceptions import Exit, ParseError
from invoke.parser import Parser, ParseResult
from invoke.parser.argument import Argument
from invoke.parser.context import to_flag
from invoke.tasks import Task

ROOT = Path(__file__).resolve().parent.parent
USAGE = 2
Verb = Task[Callable[..., None]]


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came: whatever cleans up on Ctrl-C cleans up on these too. `signum` is the signal's number."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class WrongUsage(Exit):
    """Invoke's ParseError as an exit with 2. The message is the string form, which is what Invoke prints."""

    def __init__(self, message: str, _context: object = None) -> None:
        super().__init__(code=USAGE)
        self.text = f"{message.rstrip('!')}; ./inv --list shows the tasks, ./inv --help TASK its flags"

    def __str__(self) -> str:
        return self.text


class StrictParser(Parser):
    """Invoke ends with 1, or a traceback, where its own parsing fails; here that is WrongUsage."""

    def parse_argv(self, argv: list[str]) -> ParseResult:
        try:
            return super().parse_argv(argv)
        except (ParseError, ValueError) as error:
            raise WrongUsage(str(error)) from None


class NamedArgument(Argument):
    """Invoke shows its own object in messages, and of a number that can't be read only Python's words."""

    def __repr__(self) -> str:
        return to_flag(self.name or "")

    def set_value(self, value: Any, cast: bool = True) -> None:  # noqa: FBT001, FBT002  Invoke's own signature
        try:
            super().set_value(value, cast)
        except ValueError:
            raise ParseError(f"{self!r} {value!r} is no {'whole ' if self.kind is int else ''}number") from None


def adopt_house_rules() -> None:
    """Make the running Invoke program, ./inv's or plain `invoke`, end wrong usage with 2 and cache bytecode."""
    vars(invoke.program).update(Parser=StrictParser, ParseError=WrongUsage)
    vars(invoke.tasks)["Argument"] = NamedArgument
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))


def verb(
    *,
    help: Mapping[str, str],  # noqa: A002
    name: str | None = None,
    iterable: Sequence[str] = (),
) -> Callable[[Callable[..., int]], Verb]:
    """Make a task of a function that returns its exit code; `name` where the function can't have the task's.

    `help` may hold more flags than the function has, so that verbs share one table.
    """

    def decorate(function: Callable[..., int]) -> Verb:
        @functools.wraps(function)
        def guarded(*args: object, **flags: object) -> None:
            with clean_end(verbose=bool(flags.get("verbose"))):
                code = function(*args, **flags)
                sys.stdout.flush()
            if code:
                raise Exit(code=code)

        flags = inspect.signature(function).parameters
        mine = {name: text for name, text in help.items() if name in flags}
        return Task(guarded, name=name, help=mine, iterable=list(iterable), auto_shortflags=False)

    return decorate


@contextmanager
def clean_end(*, verbose: bool) -> Iterator[None]:
    """Turn what ends the block early into Exit with the code of errors.py; a bug keeps its traceback."""
    before = {number: signal.signal(number, _terminate) for number in (signal.SIGTERM, signal.SIGHUP)}
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt as end:
        raise Exit("interrupted", code=128 + getattr(end, "signum", signal.SIGINT)) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Exit(code=128 + signal.SIGPIPE) from None
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if not isinstance(code, int):
            raise
        raise Exit(_told(error, verbose=verbose), code=code) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def hold_signals() -> Iterator[None]:
    """For cleaning up: Ctrl-C, SIGTERM and SIGHUP do nothing until the block has ended.

    They are blocked for the programs that the block starts, and have no effect in this one's other threads either.
    """
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = {number: signal.signal(number, lambda *_: None) for number in held}
    signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(signum: int, _frame: FrameType | None) -> None:
    raise Terminated(signum)


def _told(error: Exception, *, verbose: bool) -> str:
    detail = str(getattr(error, "detail", "")).strip()
    if not detail:
        return str(error)
    return f"{error}\n{detail}" if verbose else f"{error}\n(--verbose shows more)"


def main(argv: Sequence[str]) -> None:
    """Run the tasks of this checkout, wherever the caller stands; without arguments, list them."""
    adopt_house_rules()
    program = invoke.program.Program(name="inv", binary="inv", binary_names=["inv"])
    program.run(["inv", "--search-root", str(ROOT), *(argv or ["--list"])])
