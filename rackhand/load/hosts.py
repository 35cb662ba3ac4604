"""`hosts:` of an inventory."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rackhand.arguments import looks_secret
from rackhand.inventory import Api, Env, FileSpec, Host, PlainSsh, ProxmoxLxc, Road, SecretRef, ServerSpec, Ssh
from rackhand.load.nodes import Items, Scalar, Table, Value
from rackhand.load.sections import (
    VARIABLE,
    Context,
    Key,
    WrongError,
    as_items,
    as_table,
    container_path,
    is_meant,
    local_path,
    matching,
    mode,
    number,
    one_of,
    read_section,
    scalar,
    secret,
    truth,
    whole,
    with_defaults,
)
from rackhand.load.servers import check_servers, read_gpus, read_servers

NAME = matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name", "use letters, digits, . _ and -")
_DESTINATION = matching(
    r"(?:[A-Za-z0-9_.][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9_.-]*",
    "user@host or an ssh_config alias",
    "a port belongs into ssh_config",
)


SSH: Mapping[str, Key] = {
    "destination": Key(_DESTINATION, required=True),
    "config": Key(local_path),
    "host_keys": Key(one_of("strict", "accept-new")),
    "connect_timeout_s": Key(number(0, 600, above=True)),
}


def read_ssh(value: Value, ctx: Context) -> Ssh:
    if isinstance(value, Scalar):
        return Ssh(_DESTINATION(value, ctx))
    return Ssh(**{"destination": "", **read_section(as_table(value), SSH, ctx)})


_FULL_ID = r"[^\s!@:/]+@[A-Za-z][A-Za-z0-9._-]*![A-Za-z][A-Za-z0-9._-]*"
API: Mapping[str, Key] = {
    "url": Key(
        matching(r"https://[^/\s?#@]+/?", "https://HOST:PORT", "such as https://pve1.example:8006", shown=False)
    ),
    "token_id": Key(
        matching(_FULL_ID, "a token's id", "such as root@pam!rackhand, without =VALUE", shown=False), required=True
    ),
    "token": Key(secret, required=True),
    "ca": Key(local_path),
    "fingerprint": Key(
        matching(
            r"(?:[0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2}", "a SHA-256 fingerprint", "32 pairs of hex digits with : between"
        )
    ),
}


def read_api(value: Value, ctx: Context) -> Api:
    table = as_table(value)
    found = read_section(table, API, ctx)
    if "ca" in table.entries and "fingerprint" in table.entries:
        ctx.wrong(table, "ca and fingerprint exclude each other", "keep one", line=table.line_of("fingerprint"))
    return Api(**{"token_id": "", "token": SecretRef(), **found})


_RESERVED = {
    "CUDA_VISIBLE_DEVICES": "set gpus: each server is bound to its GPU by UUID",
    "SGLANG_LOGGING_CONFIG_PATH": "it would hide the log lines that rackhand reads",
}


def read_variables(value: Value, ctx: Context) -> Mapping[str, str | SecretRef]:
    variables: dict[str, str | SecretRef] = {}
    for name, entry in as_table(value).entries.items():
        if not VARIABLE.fullmatch(name):
            ctx.wrong(entry.value, "is no name of a variable", "use letters, digits and _", line=entry.line)
            continue
        if name in _RESERVED or name.startswith("RACKHAND_"):
            ctx.wrong(entry.value, "is rackhand's own", _RESERVED.get(name, "choose another name"), line=entry.line)
        try:
            variables[name] = _variable(name, entry.value, ctx)
        except WrongError as error:
            ctx.wrong(entry.value, error.what, error.hint)
    return variables


def _variable(name: str, value: Value, ctx: Context) -> str | SecretRef:
    if isinstance(value, Table):
        return secret(value, ctx)
    words = scalar(value, "a value")
    if words and looks_secret(name, words):
        raise WrongError("looks like a secret in clear text", "write {env: NAME} or {command: [...]}")
    return words


ENV: Mapping[str, Key] = {"source": Key(container_path), "variables": Key(read_variables)}


def read_env(value: Value, ctx: Context) -> Env:
    return Env(**read_section(as_table(value), ENV, ctx))


FILE: Mapping[str, Key] = {
    "src": Key(local_path, required=True),
    "dest": Key(container_path, required=True),
    "mode": Key(mode),
    "template": Key(truth),
}


def read_files(value: Value, ctx: Context) -> tuple[FileSpec, ...]:
    files: list[FileSpec] = []
    taken: dict[str, int] = {}
    for item in as_items(value).values:
        try:
            table = as_table(item)
        except WrongError as error:
            ctx.wrong(item, error.what, error.hint)
            continue
        found = read_section(table, FILE, ctx)
        if "src" in found and not found["src"].is_file():
            what = "is not a plain file" if found["src"].exists() else "is not there"
            ctx.wrong(
                table.entries["src"].value,
                f"{found['src']} {what}",
                "relative paths start at the inventory's directory",
            )
        if "dest" in found and (line := taken.setdefault(found["dest"], table.line_of("dest"))) != table.line_of(
            "dest"
        ):
            ctx.wrong(
                table.entries["dest"].value,
                f"{found['dest']} is the dest of another file too",
                f"that stands in line {line}",
            )
        if found.keys() >= {"src", "dest"}:
            files.append(FileSpec(**found))
    return tuple(files)


def _kept(value: Value, _: Context) -> Value:
    """`servers` is read after the rest of its host."""
    return value


_PROXMOX_ONLY = frozenset({"vmid", "node", "api"})
HOST: Mapping[str, Key] = {
    "type": Key(one_of("proxmox-lxc", "ssh"), required=True),
    "ssh": Key(read_ssh, required=True),
    "ssh_config": Key(local_path),
    "vmid": Key(whole(100, 999_999_999)),
    "node": Key(matching(r"[A-Za-z0-9][A-Za-z0-9.-]*", "a node's name")),
    "api": Key(read_api),
    "workspace": Key(container_path),
    "gpus": Key(read_gpus),
    "python": Key(container_path),
    "env": Key(read_env),
    "files": Key(read_files),
    "servers": Key(_kept),
    "put": Key(one_of("stream", "push")),
}
_OF_THE_ROAD = _PROXMOX_ONLY | {"type", "ssh", "ssh_config", "servers"}


def read_host(name: str, value: Value, ctx: Context, defaults: Mapping[str, Table]) -> tuple[Host, Table]:
    """The host and its merged mapping. Placeholders stand where a mistake was noted."""
    table = as_table(value)
    kind = table.entries.get("type") or defaults["hosts"].entries.get("type")
    plain_ssh = kind is not None and isinstance(kind.value, Scalar) and kind.value.text == "ssh"
    table = with_defaults(table, defaults["hosts"], without=_PROXMOX_ONLY if plain_ssh else frozenset())
    found = read_section(table, HOST, ctx)
    road = _road(found, table, ctx, plain_ssh=plain_ssh)
    specs, tables = _servers(found, ctx, defaults["servers"])
    rest = {key: one for key, one in found.items() if key not in _OF_THE_ROAD}
    host = Host(name=name, road=road, servers=specs, **rest)
    check_servers(host, tables, ctx)
    _check_dests(host, table, ctx)
    return host, table


def _servers(
    found: Mapping[str, Any], ctx: Context, defaults: Table
) -> tuple[tuple[ServerSpec, ...], dict[int, Table]]:
    if "servers" not in found:
        return (), {}
    try:
        return read_servers(found["servers"], ctx, defaults, found.get("python"))
    except WrongError as error:
        ctx.wrong(found["servers"], error.what, error.hint)
        return (), {}


def _road(found: Mapping[str, Any], table: Table, ctx: Context, *, plain_ssh: bool) -> Road:
    ssh: Ssh = found.get("ssh", Ssh(""))
    if "ssh_config" in found:
        if ssh.config is not None:
            ctx.wrong(table.entries["ssh_config"].value, "ssh.config says it already", "keep one")
        ssh = replace(ssh, config=found["ssh_config"])
    if not plain_ssh:
        if not is_meant("vmid", table, HOST) and found.get("type") == "proxmox-lxc":
            ctx.wrong(table, "vmid is missing", "add the container's number: vmid: 200")
        return ProxmoxLxc(ssh, found.get("vmid", 0), found.get("api"), found.get("node"))
    for key in sorted(_PROXMOX_ONLY & table.entries.keys()):
        ctx.wrong(table.entries[key].value, "only for type: proxmox-lxc", "remove it", line=table.line_of(key))
    if found.get("put") == "push":
        ctx.wrong(table.entries["put"].value, "push needs pct, so type: proxmox-lxc", "use put: stream")
    return PlainSsh(ssh)


def _check_dests(host: Host, table: Table, ctx: Context) -> None:
    """`home` is written by deploy alone."""
    files = table.entries["files"].value if "files" in table.entries else None
    for item in files.values if isinstance(files, Items) else ():
        dest = item.entries.get("dest") if isinstance(item, Table) else None
        if (
            dest
            and isinstance(dest.value, Scalar)
            and f"{posixpath.normpath(dest.value.text)}/".startswith(f"{host.home}/")
        ):
            ctx.wrong(dest.value, f"{dest.value.text} is in rackhand's own directory", "choose another dest")
