"""The whole inventory: hosts, jobs, baselines, defaults, and what they say of each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rackhand.inventory import Fleet, Host, ProxmoxLxc
from rackhand.load.hosts import API, ENV, FILE, HOST, NAME, SSH, read_host
from rackhand.load.job_options import QUALITY
from rackhand.load.jobs import BASELINE, JOB, check_jobs, read_baseline, read_job
from rackhand.load.nodes import Scalar, Table, Value
from rackhand.load.sections import SECRET, Context, Key, WrongError, as_table, read_section
from rackhand.load.servers import SERVER

T = TypeVar("T")
_NOTHING = Table({}, 1, "")


def _table(value: Value, _: Context) -> Table:
    return as_table(value)


DEFAULTS: Mapping[str, Key] = {"hosts": Key(_table), "servers": Key(_table), "jobs": Key(_table)}
FLEET: Mapping[str, Key] = {
    "hosts": Key(_table, required=True),
    "jobs": Key(_table),
    "baselines": Key(_table),
    "defaults": Key(_table),
}
SECTIONS: Mapping[str, Mapping[str, Key]] = {
    "inventory": FLEET,
    "host": HOST,
    "ssh": SSH,
    "api": API,
    "env": ENV,
    "file": FILE,
    "server": SERVER,
    "job": JOB,
    "quality": QUALITY,
    "baseline": BASELINE,
    "defaults": DEFAULTS,
    "secret": SECRET,
}
"""Every key that the loader knows, by the mapping it stands in."""


def read_fleet(root: Value, path: Path, ctx: Context) -> Fleet | None:
    """The fleet, good only if no mistake was noted; None when the text is no mapping at all."""
    try:
        table = as_table(root)
    except WrongError as error:
        ctx.wrong(root, error.what, error.hint)
        return None
    known = {key: entry for key, entry in table.entries.items() if not key.startswith("x-")}
    top = read_section(Table(known, 1, ""), FLEET, ctx)
    if "hosts" in top and not top["hosts"].entries:
        ctx.wrong(top["hosts"], "there is no host", "add one: NAME: {type: proxmox-lxc, ssh: DESTINATION, vmid: 200}")
    defaults = _read_defaults(top.get("defaults", _NOTHING), ctx)
    hosts = _each(top.get("hosts", _NOTHING), ctx, lambda name, value: read_host(name, value, ctx, defaults))
    _check_machines(hosts, ctx)
    every = [host for host, _ in hosts]
    jobs = _each(
        top.get("jobs", _NOTHING), ctx, lambda name, value: read_job(name, value, ctx, defaults["jobs"], every)
    )
    check_jobs(jobs, every, ctx)
    baselines = _each(top.get("baselines", _NOTHING), ctx, lambda name, value: read_baseline(name, value, ctx))
    return Fleet(path, tuple(every), tuple(job for job, _ in jobs), tuple(baselines))


def _read_defaults(table: Table, ctx: Context) -> Mapping[str, Table]:
    """The three sections that lend their values. They are read once here, so that one nobody uses is checked too."""
    found = read_section(table, DEFAULTS, ctx)
    lent: dict[str, Table] = {}
    for name, keys in (("hosts", HOST), ("servers", SERVER), ("jobs", JOB)):
        section = found.get(name, _NOTHING)
        read_section(section, keys, ctx, partial=True)
        known = {key: entry for key, entry in section.entries.items() if key in keys}
        lent[name] = Table(known, section.line, section.name)
    return lent


def _each(table: Table, ctx: Context, read: Callable[[str, Value], T]) -> list[T]:
    found: list[T] = []
    for name, entry in table.entries.items():
        try:
            NAME(Scalar(name, entry.line, entry.value.name), ctx)
        except WrongError as error:
            ctx.wrong(entry.value, error.what, error.hint, line=entry.line)
        try:
            found.append(read(name, entry.value))
        except WrongError as error:
            ctx.wrong(entry.value, error.what, error.hint, line=entry.line)
    return found


def _check_machines(hosts: Sequence[tuple[Host, Table]], ctx: Context) -> None:
    """One container is one host: two names for it would fight over the same servers."""
    taken: dict[object, tuple[str, int]] = {}
    for host, table in hosts:
        ssh = host.road.ssh
        if not ssh.destination:
            continue
        vmid = host.road.vmid if isinstance(host.road, ProxmoxLxc) else None
        name, line = taken.setdefault((ssh.destination, ssh.config, vmid), (host.name, table.line))
        if name != host.name:
            ctx.wrong(table, f"is the same machine as {name}", f"that stands in line {line}")
