"""`servers:` of a host: one specification or a list, each for some GPUs or all."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rackhand.arguments import FlagValue, flag_name, misplaced, scalar_value
from rackhand.clashes import clashes
from rackhand.inventory import Host, Server, ServerSpec
from rackhand.load.nodes import Entry, Items, Scalar, Table, Value
from rackhand.load.sections import (
    Context,
    Key,
    WrongError,
    as_items,
    as_table,
    container_path,
    number,
    one_of,
    plain,
    read_section,
    scalar,
    secret,
    text,
    whole,
    with_defaults,
)

UNLISTED_GPUS = range(8)
"""The GPUs that a host without `gpus` is checked for; the real ones are known when it has been asked."""


def read_gpus(value: Value, _: Context) -> tuple[int, ...] | None:
    """`all` (None) or a list of GPU indices."""
    if isinstance(value, Scalar) and value.text == "all":
        return None
    items = as_items(value).values if not isinstance(value, Scalar) else ()
    words = [scalar(item, "a GPU index") for item in items]
    if not words or not all(word.isascii() and word.isdigit() and len(word) <= 3 for word in words):
        raise WrongError("expected all or a list of GPU indices", "write all or [0, 1]")
    indices = tuple(sorted(set(map(int, words))))
    if len(indices) != len(words):
        raise WrongError("names a GPU twice", "list each GPU once")
    return indices


def session_name(value: Value, ctx: Context) -> str:
    """A name that tmux keeps as it is and that can't be read as a target or an option."""
    name = text(value, ctx)
    if "." in name or ":" in name:
        raise WrongError(f"{name!r}: tmux changes . and : in a session's name", "use - or _")
    if name.startswith("="):
        raise WrongError(f"{name!r}: tmux reads a leading = as 'exactly this name'", "leave out the =")
    if not all(letter.isascii() and (letter.isalnum() or letter in "_-") for letter in name) or name[0] == "-":
        raise WrongError(f"{name!r} is no session name", "use letters, digits, - and _")
    return name


def read_args(value: Value, ctx: Context) -> Mapping[str, FlagValue]:
    """Flags by name without dashes in front; those that rackhand sets itself are refused."""
    flags: dict[str, FlagValue] = {}
    for key, entry in as_table(value).entries.items():
        _read_flag(flags, key, entry, ctx)
    return flags


def _read_flag(flags: dict[str, FlagValue], key: str, entry: Entry, ctx: Context) -> None:
    try:
        flag = flag_name(key)
        found = _flag_value(entry.value)
    except (ValueError, WrongError) as error:
        hint = error.hint if isinstance(error, WrongError) else "write the flag's name"
        ctx.wrong(entry.value, str(error), hint, line=entry.line)
        return
    if wrong := misplaced(flag, found):
        ctx.wrong(entry.value, *wrong, line=entry.line)
    elif flag in flags:
        ctx.wrong(entry.value, f"--{flag} is there twice", "one spelling is enough", line=entry.line)
    flags.setdefault(flag, found)


def _flag_value(value: Value) -> FlagValue:
    if isinstance(value, Table):
        return json.dumps(plain(value))
    if isinstance(value, Items):
        words = [scalar(item, "one word") for item in value.values]
        if not words:
            raise WrongError("an empty list is no flag value", "leave the flag out")
        found = ((word, scalar_value(word)) for word in words)
        return tuple(word if isinstance(one, bool) else one for word, one in found)
    word = scalar(value, "a value")
    return scalar_value(word) if value.plain else word


PORT = whole(1, 65535)
BASE = whole(1024, 64535)
SERVER: Mapping[str, Key] = {
    "model": Key(text, required=True),
    "engine": Key(one_of("sglang")),
    "version": Key(text),
    "python": Key(text),
    "args": Key(read_args),
    "gpus": Key(read_gpus),
    "port": Key(PORT),
    "port_base": Key(BASE),
    "nccl_port": Key(PORT),
    "nccl_port_base": Key(BASE),
    "session_prefix": Key(session_name),
    "log_dir": Key(container_path),
    "api_key": Key(secret),
    "ready_timeout_s": Key(number(0, 86_400, above=True)),
    "stop_timeout_s": Key(number(0, 86_400, above=True)),
}


def read_servers(
    value: Value, ctx: Context, defaults: Table, python: str | None
) -> tuple[tuple[ServerSpec, ...], dict[int, Table]]:
    """The specs, and the mapping each came from by the spec's id()."""
    nothing = isinstance(value, Scalar) and value.null
    parts = () if nothing else value.values if isinstance(value, Items) else (as_table(value),)
    specs: list[ServerSpec] = []
    tables: dict[int, Table] = {}
    for part in parts:
        try:
            table = with_defaults(as_table(part), defaults)
        except WrongError as error:
            ctx.wrong(part, error.what, error.hint)
            continue
        found = {"model": "", **({"python": python} if python else {}), **read_section(table, SERVER, ctx)}
        spec = ServerSpec(**found)
        _check_single(spec, table, ctx)
        specs.append(spec)
        tables[id(spec)] = table
    return tuple(specs), tables


def _check_single(spec: ServerSpec, table: Table, ctx: Context) -> None:
    for key, base in (("port", "port_base"), ("nccl_port", "nccl_port_base")):
        if key in table.entries and (spec.gpus is None or len(spec.gpus) != 1):
            ctx.wrong(
                table.entries[key].value,
                "one port can't serve several GPUs",
                f"write {base}: each GPU gets {base} + its index, or list a single GPU in gpus",
                line=table.line_of(key),
            )


def check_servers(host: Host, tables: Mapping[int, Table], ctx: Context) -> None:
    """GPUs, ports and sessions that two servers would share, and one API key for a host."""
    for spec in host.servers:
        table = tables[id(spec)]
        if host.gpus is not None and (outside := sorted({*(spec.gpus or ())} - {*host.gpus})):
            listed = ", ".join(map(str, outside))
            ctx.wrong(table, f"GPU {listed} is not among the host's gpus", "correct either", line=table.line_of("gpus"))
        if spec.api_key != host.servers[0].api_key:
            ctx.wrong(
                table, "api_key differs from the host's other servers", "one key for all", line=table.line_of("api_key")
            )
    seen: set[tuple[str, int, str, int]] = set()
    for clash in clashes(_assumed(host)):
        table, other = tables[id(clash.server.spec)], tables[id(clash.other.spec)]
        if (pair := (clash.key, id(table), clash.other_key, id(other))) in seen:
            continue
        seen.add(pair)
        hint = "set them apart" if other is table else f"the other stands in line {other.line_of(clash.other_key)}"
        ctx.wrong(table, str(clash), hint, line=table.line_of(clash.key))


def _assumed(host: Host) -> list[Server]:
    """Each spec over its GPUs, in the order of the file; without those whose single port is a mistake already."""
    every = UNLISTED_GPUS if host.gpus is None else host.gpus
    sound = [s for s in host.servers if (s.port is None and s.nccl_port is None) or (s.gpus and len(s.gpus) == 1)]
    return [Server(host.name, gpu, spec, spec.args) for spec in sound for gpu in spec.gpus or every]
