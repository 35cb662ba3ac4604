"""What Invoke leaves out: the exit codes of errors.py, clean ends on signals, and no traceback for the operator.

`main` is what ./inv and the installed command run; `verb` makes a task whose exit codes are the same under plain
`invoke`.
"""

from __future__ import annotations

import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from types import FrameType
from typing import Any, get_args, get_origin

import invoke.collection
import invoke.program
import invoke.tasks
import tomllib
from invoke.exceptions import Exit
from invoke.parser.parser import ParseMachine
from invoke.tasks import Task

from rackhand.advised import as_typed, use_inventory
from rackhand.completion import complete, print_script
from rackhand.errors import RackhandError
from rackhand.place import IN_CHECKOUT, SHARE
from rackhand.words_given import (
    VALUE_NAMES,
    HelpfulContext,
    NamedArgument,
    StrictParser,
    WrongUsage,
    check_given,
    complete_context,
    print_error,
)


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came: whatever cleans up on Ctrl-C cleans up on these too. `signum` is the signal's number."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def adopt_house_rules() -> None:
    """Make the running Invoke program, ./inv's or plain `invoke`, end wrong usage with 2 and cache bytecode."""
    vars(invoke.program).update(Parser=StrictParser, ParseError=WrongUsage)
    vars(invoke.program).update(complete=complete, print_completion_script=print_script)
    vars(invoke.tasks)["Argument"] = NamedArgument
    vars(invoke.collection)["ParserContext"] = HelpfulContext
    ParseMachine.complete_context = complete_context  # type: ignore[method-assign]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))


class Verb(Task[Callable[..., None]]):
    """A task whose flags have the kinds that its annotations say: `float | None` is a number that may be left out."""

    def __init__(self, body: Callable[..., None], *, values: Mapping[str, str], **named: Any) -> None:
        super().__init__(body, auto_shortflags=False, **named)
        self.value_names = {**VALUE_NAMES, **values}

    def arg_opts(self, name: str, default: Any, taken_names: set[str]) -> dict[str, Any]:
        opts = super().arg_opts(name, default, taken_names)
        kind = _kind_of(inspect.signature(self.body, eval_str=True).parameters[name].annotation)
        if kind in (int, float):
            opts["kind"] = kind
        return opts | {"value_name": self.value_names.get(name, ""), "may_lack": default is None}


def _kind_of(annotation: Any) -> Any:
    """`float | None` → float, `list[str] | None` → list."""
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)] if get_args(annotation) else []
    kind = kinds[0] if kinds and get_origin(annotation) is not list else annotation
    return get_origin(kind) or kind


def verb(
    *,
    help: Mapping[str, str],  # noqa: A002
    name: str | None = None,
    words: tuple[str, ...] = (),
    values: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., int]], Verb]:
    """Make a task of a function that returns its exit code; `name` where the function can't have the task's.

    `help` may hold more flags than the function has, so that verbs share one table. A flag that isn't given should be
    None: an empty value is refused before the function is called. `words` are arguments without a flag's name;
    `values` names values for the help where VALUE_NAMES has another word.
    """

    def decorate(function: Callable[..., int]) -> Verb:
        signature = inspect.signature(function)
        default = signature.parameters["inventory"].default if "inventory" in signature.parameters else None

        @functools.wraps(function)
        def guarded(*args: object, **flags: object) -> None:
            given = signature.bind(*args, **flags).arguments
            with clean_end(verbose=bool(given.get("verbose")), as_json=given.get("json") is True):
                check_given(given)
                inventory = given.get("inventory")
                use_inventory(inventory if isinstance(inventory, str) and inventory != default else None)
                code = function(*args, **flags)
                sys.stdout.flush()
            if code:
                raise Exit(code=code)

        guarded.__doc__ = as_typed(function.__doc__ or "")
        mine = {name: as_typed(text) for name, text in help.items() if name in signature.parameters}
        lists = [name for name, flag in signature.parameters.items() if "list[" in str(flag.annotation)]
        return Verb(guarded, values=values or {}, name=name, help=mine, iterable=lists, positional=list(words))

    return decorate


@contextmanager
def clean_end(*, verbose: bool, as_json: bool = False) -> Iterator[None]:
    """Turn what ends the block early into Exit with the code of errors.py; a bug keeps its traceback.

    With `as_json` the error is an object on stdout as well.
    """
    before = {number: signal.signal(number, _terminate) for number in (signal.SIGTERM, signal.SIGHUP)}
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt as end:
        status = 128 + int(getattr(end, "signum", signal.SIGINT))
        if as_json:
            print_error(RackhandError("interrupted"), status)
        raise Exit("interrupted", code=status) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Exit(code=128 + signal.SIGPIPE) from None
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if not isinstance(code, int):
            raise
        if as_json:
            print_error(error, code)
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
    said, detail = as_typed(str(error)), str(getattr(error, "detail", "")).strip()
    if not detail:
        return said
    return f"{said}\n{detail}" if verbose else f"{said}\n(--verbose shows more)"


def rackhand_version() -> str:
    """That of pyproject.toml beside this code, or of the installed package."""
    try:
        with (SHARE / "pyproject.toml").open("rb") as file:
            return str(tomllib.load(file)["project"]["version"])
    except OSError:
        pass
    try:
        return version("rackhand")
    except PackageNotFoundError:
        return "unknown"


def main(argv: Sequence[str]) -> None:
    """Run the tasks that stand here, wherever the caller stands; without arguments, list them."""
    adopt_house_rules()
    name = "inv" if IN_CHECKOUT else "rackhand"
    program = invoke.program.Program(name="rackhand", version=rackhand_version(), binary=name, binary_names=[name])
    program.run([name, "--search-root", str(SHARE), *(argv or ["--list"])])
