"""The command line as Invoke parses it, where it is less kind than an operator needs: exit 2 for what can't be read,
the nearest verb or flag for a slip, names of values and defaults in the help, positional words that may be left out."""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from invoke.exceptions import Exit, ParseError
from invoke.parser import Parser, ParseResult
from invoke.parser.argument import Argument
from invoke.parser.context import ParserContext as InvokeContext
from invoke.parser.context import to_flag
from invoke.parser.parser import ParseMachine

from rackhand.advised import as_typed
from rackhand.errors import InventoryError, UsageError
from rackhand.place import COMMAND, IN_CHECKOUT

USAGE = 2
FEW = 4
VALUE_NAMES: Mapping[str, str] = {
    "inventory": "NAME",
    "hosts": "NAMES",
    "set": "FLAG=VALUE",
    "timeout": "SECONDS",
    "at_once": "N",
    "job": "NAME",
    "file": "FILE",
    "concurrency": "N|auto",
    "server": "NAME",
    "what_if": "FLAG=VALUES",
    "gpu": "NAME",
    "gpu_free_gib": "GIB",
    "model_config": "PATH",
    "weights_gib": "GIB",
    "draft_gib": "GIB",
    "engine_version": "VERSION",
    "lengths": "PROMPT,OUTPUT",
    "interval": "SECONDS",
    "seconds": "SECONDS",
    "since": "TIME",
    "output": "PATH",
    "export": "FILE",
    "run_a": "RUN",
    "run_b": "RUN",
    "gpus": "NUMBERS",
    "json": "FILE",
    "only": "WORDS",
    "args": "WORDS",
    "kind": "MODEL",
    "pct_delay": "SECONDS",
    "page": "FILE",
}
"""What stands behind a flag in the help, for every flag that takes a value."""
_CHECKOUT_ONLY = re.compile(r"demo|test|(lab|dev|docs)(\..*)?")
_KINDS = {int: "N", float: "NUMBER"}


class WrongUsage(Exit):
    """Invoke's ParseError as an exit with 2. The message is the string form, which is what Invoke prints."""

    def __init__(self, message: str, context: object = None) -> None:
        super().__init__(code=USAGE)
        self.text = f"{message.rstrip('!')}; {_way_on(message, context)}"

    def __str__(self) -> str:
        return self.text


class StrictParser(Parser):
    """Invoke ends with 1, or a traceback, where its own parsing fails; here that is WrongUsage."""

    verbs: ClassVar[Collection[str]] = ()

    def __init__(self, contexts: Iterable[InvokeContext] = (), *args: Any, **named: Any) -> None:
        super().__init__(contexts, *args, **named)
        StrictParser.verbs = tuple(self.contexts)

    def parse_argv(self, argv: list[str]) -> ParseResult:
        try:
            return super().parse_argv(argv)
        except (ParseError, ValueError) as error:
            wrong = WrongUsage(str(error), getattr(error, "context", None))
            if "--json" in argv:
                print_error(UsageError(str(wrong)))
            raise wrong from None


class NamedArgument(Argument):
    """Invoke shows its own object in messages, and of a number that can't be read only Python's words."""

    def __init__(self, *args: Any, value_name: str = "", may_lack: bool = False, **named: Any) -> None:
        super().__init__(*args, **named)
        self.may_lack = may_lack
        self.value_name = value_name or _KINDS.get(self.kind, "TEXT")

    def __repr__(self) -> str:
        return to_flag(self.name or "")

    def set_value(self, value: Any, cast: bool = True) -> None:  # noqa: FBT001, FBT002  Invoke's own signature
        try:
            super().set_value(value, cast)
        except ValueError:
            raise ParseError(f"{self!r} {value!r} is no {'whole ' if self.kind is int else ''}number") from None


class HelpfulContext(InvokeContext):
    """Invoke's help knows STRING and INT only, and no default."""

    def help_for(self, flag: str) -> tuple[str, str]:
        spec, text = super().help_for(flag)
        arg = self.flags[flag]
        if not isinstance(arg, NamedArgument):
            return spec, text
        if arg.takes_value:
            spec = f"{flag}={arg.value_name}"
        shown = (
            arg.default if isinstance(arg.default, str | int | float) and not isinstance(arg.default, bool) else None
        )
        return spec, text if shown is None else f"{text} (default: {shown})"


def complete_context(self: ParseMachine) -> None:
    """For ParseMachine's own, which calls every positional word without a value missing: those whose default is None
    may be left out."""
    context = self.context
    if any(not getattr(arg, "may_lack", False) for arg in context.missing_positional_args):
        _complete_context(self)
    elif context not in self.result:
        self.result.append(context)


_complete_context = ParseMachine.complete_context


def check_given(given: Mapping[str, object]) -> None:
    """UsageError for a value that is there and empty: an unset shell variable must never mean 'all'.

    `given` are a verb's arguments by name; what wasn't given is None or its default.
    """
    for name, value in given.items():
        for word in value if isinstance(value, list | tuple) else (value,):
            if isinstance(word, str) and not word.replace(",", " ").strip():
                what = f"{to_flag(name.replace('_', '-'))} is empty"
                raise UsageError(what, hint="leave it out, or give a value; is a shell variable unset?")


def print_error(error: BaseException, code: int = USAGE) -> None:
    """One object on stdout: what --json shows of a verb that ended before its report."""
    fields: dict[str, Any] = {"event": "error", "exit_code": code, "kind": type(error).__name__}
    fields |= {name: as_typed(str(getattr(error, name, ""))) for name in ("where", "what", "hint")}
    fields["what"] = fields["what"] or str(error)
    if isinstance(error, InventoryError):
        fields["mistakes"] = [{"file": m.file, "line": m.line, "what": m.what, "hint": m.hint} for m in error.mistakes]
    sys.stdout.write(json.dumps(fields, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def alike(word: str, known: Collection[str]) -> tuple[str, ...]:
    """The nearest name; else those that begin with the word, or have the same parts in another order, when few do."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    near = [name for name in known if len(word) > 2 and name.startswith(word)]
    near = near or [name for name in known if _parts(name) == _parts(word)]
    return tuple(close) or (tuple(sorted(near)) if len(near) <= FEW else ())


def _parts(name: str) -> list[str]:
    return sorted(re.split(r"[-._]", name))


def _way_on(message: str, context: object) -> str:
    found = re.match(r"No idea what '(.+)' is", message)
    word = found[1] if found else ""
    verb = context.name if isinstance(context, InvokeContext) else None
    if word.startswith("-") and verb and isinstance(context, InvokeContext):
        meant = _meant(alike(word, [*context.flags, *context.inverse_flags]))
        return f"{meant}{COMMAND} --help {verb} shows its flags, {COMMAND} --list the tasks"
    if not IN_CHECKOUT and _CHECKOUT_ONLY.fullmatch(word):
        return f"it works in a checkout of rackhand's source, as ./inv {word}"
    if word and verb and isinstance(context, InvokeContext) and "--inventory" in context.flags:
        return f"a value stands behind its flag, as in --inventory {word}; {COMMAND} --help {verb} shows the flags"
    meant = _meant(alike(word, StrictParser.verbs)) if word else ""
    return f"{meant}{COMMAND} --list shows the tasks, {COMMAND} --help TASK its flags"


def _meant(near: Sequence[str]) -> str:
    return f"did you mean {' or '.join(near)}? " if near else ""
