"""Commands inside advice, as the operator can type them. Pure but for the inventory in use.

Messages are written for a checkout with the default inventory: `./inv stop --job X`. What is shown has the command that
stands here, and the inventory, host and job that it is about.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from rackhand.place import COMMAND

TAKES: Mapping[str, frozenset[str]] = {
    verb: frozenset(flags.split())
    for verb, flags in {
        "deploy": "inventory hosts",
        "restart-servers": "inventory hosts",
        "status": "inventory hosts",
        "resume": "inventory job",
        "stop": "inventory hosts job",
        "tail-metrics": "inventory hosts",
        "capacity": "inventory hosts",
        "diagnose": "inventory hosts",
        "record": "inventory hosts",
        "history": "inventory job",
        "report": "inventory job",
        "compare": "inventory job",
        "verify": "inventory job",
        "prompts.check": "inventory job",
    }.items()
}
"""Which of the flags that choose what a command is about each verb has."""
_ADVISED = re.compile(
    rf"(?<![\w/.])(?:\./inv|{re.escape(COMMAND)}) (?P<verb>[a-z]+(?:[.-][a-z]+)*)"
    rf"(?P<rest>(?: (?!\./inv |{re.escape(COMMAND)} )[^\s;,()]+)*)"
)
_context: dict[str, str] = {}


def use_inventory(name: str | None) -> None:
    """What is advised from now on is for this inventory; None: the default, which needs no flag."""
    _context.clear()
    if name is not None:
        _context["inventory"] = name


def as_typed(text: str, **about: str) -> str:
    """`text` with each advised command made whole: `about` holds hosts and job, where they are known.

    A flag that stands there already is left alone; --hosts isn't added where --job stands.
    """
    if COMMAND not in text and "./inv" not in text:
        return text

    def whole(found: re.Match[str]) -> str:
        verb, rest = found["verb"], found["rest"]
        given = {name: value for name, value in {**_context, **about}.items() if value and name in TAKES.get(verb, ())}
        if "job" in given or "--job" in rest:
            given.pop("hosts", None)
        more = [f" --{name} {shlex.quote(value)}" for name, value in given.items() if f"--{name}" not in rest]
        return f"{COMMAND} {verb}{''.join(more)}{rest}"

    return _ADVISED.sub(whole, text).replace("./inv ", f"{COMMAND} ")


def all_as_typed(value: object) -> object:
    """The same for every text inside plain JSON."""
    if isinstance(value, str):
        return as_typed(value)
    if isinstance(value, dict):
        return {key: all_as_typed(one) for key, one in value.items()}
    return [all_as_typed(one) for one in value] if isinstance(value, list | tuple) else value
