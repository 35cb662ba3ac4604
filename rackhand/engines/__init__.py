"""Inference engines under one Protocol, and the table of them. Pure, standard library only; travels in the zipapp."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rackhand.contract.servers import FlagFacts, Load
from rackhand.engines.seen import Event, Reading

Flags = Mapping[str, "str | int | float | bool | tuple[str | int | float, ...]"]
"""Flag names (dashes, without the leading two) and values: True is a bare flag, False leaves it out."""


@dataclass(frozen=True)
class Launch:
    """What a server's command line is made of. `config` is a file with the engine's secrets, in its own format."""

    python: str
    model: str
    port: int
    nccl_port: int
    args: Flags
    config: str | None = None


@dataclass(frozen=True)
class FlagMistake:
    """One flag that the installed version would refuse."""

    flag: str
    what: str
    hint: str = ""


@dataclass(frozen=True)
class Cause:
    """Why a server ended: the log's own words, and what to do. `is_kill`: somebody's SIGKILL."""

    text: str
    hint: str = ""
    is_kill: bool = False


@dataclass(frozen=True)
class Generation:
    """One answer to the probe. `trouble` says why it does not count as a real generation; empty when it does."""

    text: str
    tokens: int
    trouble: str = ""


class Engine(Protocol):
    """Everything that differs between engines. No method reaches out."""

    name: str
    health_path: str
    load_paths: tuple[str, ...]
    generation_path: str
    watch_paths: tuple[str, ...]

    def launch_argv(self, launch: Launch) -> tuple[str, ...]: ...

    def render_config(self, api_key: str) -> str:
        """The text of the file that holds the engine's secrets."""
        ...

    def help_argv(self, python: str) -> tuple[str, ...]: ...

    def version_argv(self, python: str) -> tuple[str, ...]: ...

    def parse_help(self, text: str) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
        """All long options with their choices, and those that take no value."""
        ...

    def translate(self, args: Flags, *, version: str | None, known: frozenset[str] | None = None) -> Flags:
        """The same wishes in the words of `version`; what is `known` wins over the version table."""
        ...

    def check_flags(self, args: Flags, facts: FlagFacts) -> tuple[FlagMistake, ...]: ...

    def find_cause(self, lines: Iterable[str], exit_status: int | None = None) -> Cause: ...

    def parse_stage(self, line: str) -> str | None:
        """What a starting server is doing, from one log line; None when the line does not say."""
        ...

    def parse_log_capacity(self, lines: Iterable[str]) -> Load | None: ...

    def parse_load(self, path: str, text: str) -> Load | None:
        """The answer of one of `load_paths`; None when it does not hold the figures."""
        ...

    def read_line(self, text: str) -> tuple[Event | None, int]:
        """What one line of the log says, and how many parts of it have a known shape and can't be read."""
        ...

    def parse_reading(self, path: str, body: bytes) -> Reading | None:
        """The answer of one of `watch_paths`; None when it isn't one. Of two answers, the later path's figures win,
        except for counts."""
        ...

    def generation_request(self) -> dict[str, object]: ...

    def parse_generation(self, text: str) -> Generation: ...

    def parse_tuning(self, cmdline: Sequence[str]) -> dict[str, str]:
        """The flags of a command line that decide capacity and speed; secrets are none of them."""
        ...

    def is_server(self, cmdline: tuple[str, ...]) -> bool:
        """True for a main process and for its children, whoever started them."""
        ...

    def is_main(self, cmdline: tuple[str, ...]) -> bool: ...


def engine(name: str) -> Engine:
    """The engine of the inventory's `engine`. Raises KeyError for one that isn't in the table."""
    from rackhand.engines.sglang import SGLANG

    table: dict[str, Engine] = {"sglang": SGLANG}
    return table[name]
