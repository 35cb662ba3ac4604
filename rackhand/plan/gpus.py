"""Which GPUs can be used, and what is said of those that can't. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from rackhand.arguments import NO_VALUES, FlagValue
from rackhand.errors import PreconditionError, UsageError
from rackhand.facts import Facts, GpuFacts
from rackhand.inventory import Host, Server, expand, listed_gpus, servers_of


def usable_servers(
    host: Host,
    facts: Facts,
    *,
    gpus: Collection[int] | None = None,
    overrides: Mapping[str, FlagValue] = NO_VALUES,
) -> tuple[Server, ...]:
    """servers_of, each on a GPU that nvidia-smi can read.

    PreconditionError names those that it can't, and the command for the others: a server that is stopped on such a GPU
    may not come back. With `gpus` the others don't matter.
    """
    if not facts.gpus:
        raise PreconditionError(facts.gpus_problem, where=host.where, hint="nothing was stopped; look at the driver")
    faults = {gpu.index: gpu.fault for gpu in facts.gpus if gpu.fault}
    seen = [gpu.index for gpu in facts.gpus]
    hint = _without(host, [gpu for gpu in seen if gpu not in faults])
    try:
        servers = servers_of(host, seen, gpus=gpus, overrides=overrides)
    except (PreconditionError, UsageError) as error:
        if not facts.gpus_lost:
            raise
        what = f"{error.what}; nvidia-smi says: {facts.gpus_lost[0]}"
        raise PreconditionError(what, where=host.where, hint=hint) from error
    if bad := [server.gpu for server in servers if server.gpu in faults]:
        what = "; ".join(f"GPU {gpu} can't be used: {faults[gpu]}" for gpu in bad)
        raise PreconditionError(what, where=host.where, hint=hint)
    if gpus is None and facts.gpus_lost and is_open_ended(host):
        raise PreconditionError(f"a GPU can't be read: {facts.gpus_lost[0]}", where=host.where, hint=hint)
    return servers


def check_listed(host: Host, facts: Facts) -> None:
    """Raises what servers_of raises, unless nvidia-smi itself says that it can't read every GPU."""
    if facts.gpus and not facts.gpus_lost:
        servers_of(host, [gpu.index for gpu in facts.gpus])


def known_gpus(host: Host, facts: Facts) -> tuple[GpuFacts, ...]:
    """Those that are seen, and those that have a script from an earlier deploy while nvidia-smi can't read them all:
    a GPU that fell off the bus is no change of what is wanted."""
    seen = {gpu.index for gpu in facts.gpus}
    files = facts.manifest.files if facts.manifest and facts.gpus_lost else {}
    found = (re.fullmatch(rf"{re.escape(host.home)}/serve-gpu([0-9]{{1,4}})\.sh", path) for path in files)
    lost = sorted({int(match[1]) for match in found if match} - seen)
    return (*facts.gpus, *(GpuFacts(gpu, "", "", None, None, fault="not shown") for gpu in lost))


def unread_lines(facts: Facts, servers: Sequence[Server]) -> tuple[str, ...]:
    """What a restart can't check, in words."""
    wanted = {server.gpu for server in servers}
    return tuple(
        f"GPU {gpu.index}: nvidia-smi says {gpu.unread} instead of its memory: a leftover there won't be noticed"
        for gpu in facts.gpus
        if gpu.unread and not gpu.fault and gpu.index in wanted
    )


def gpus_words(facts: Facts) -> str:
    """What is wrong with the GPUs of a host as a whole; "" when all can be read."""
    return "; ".join((facts.gpus_problem, *facts.gpus_lost, *facts.gpus_notes)).strip("; ")


def is_open_ended(host: Host) -> bool:
    """Whether a server belongs on every GPU that is found."""
    return host.gpus is None and any(spec.gpus is None for spec in host.servers)


def possible_gpus(host: Host, facts: Facts) -> tuple[int, ...]:
    """Every GPU on which a server of ours may answer, whatever nvidia-smi shows just now."""
    records = (own.record.gpu for own in facts.servers.own)
    return tuple(sorted({*(gpu.index for gpu in facts.gpus), *listed_gpus(host), *records}))


def _without(host: Host, readable: Sequence[int]) -> str:
    good = [server.gpu for server in expand(host, readable) if server.gpu in readable]
    if not good:
        return "nothing was stopped; look at the driver"
    numbers = ",".join(map(str, good))
    return f"nothing was stopped; restart-servers --hosts {host.name} --gpus {numbers} restarts the others"
