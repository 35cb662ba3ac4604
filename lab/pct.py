"""pct as Proxmox VE 8.4 and 9 have it, the bad habits too: exec, push, pull, list, status, config and the power verbs.

Each call appends one line to STATE/pct-calls.jsonl: {"verb", "argv", "started", "seconds"}; `seconds` is null for exec,
which becomes lxc-attach. Runs without the site packages: a call has to be cheap where no delay is asked for.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lab import container, pve
from lab.place import LabOptions, Place, read_place
from lab.pve import PveError


class Verb(NamedTuple):
    """Positional arguments, `*` for all that are left, and options with their kind."""

    run: Callable[[Call], None]
    usage: str
    positional: tuple[str, ...] = ("vmid",)
    options: dict[str, str] = {}  # noqa: RUF012 -- never changed


class Call(NamedTuple):
    """One call, parsed. `rest` is what follows the positional arguments (exec's command)."""

    place: Place
    lab: LabOptions
    vmid: int
    values: dict[str, str]
    rest: list[str]
    locale: str


class UsageError(PveError):
    """Shown with the verb's usage."""


def main(state: str, lc_ctype: str, argv: list[str]) -> int:
    """`lc_ctype` is the caller's: Python puts one of its own into the environment where there is none."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if not lc_ctype:
        os.environ.pop("LC_CTYPE", None)
    place, options = read_place(Path(state))
    started = time.time()
    time.sleep(options.pct_delay_s)
    name = argv[0] if argv else ""
    if name == "exec":
        _record(place, argv, started, seconds=None)
    try:
        _run(place, options, argv, lc_ctype)
        code = 0
    except UsageError as error:
        code = error.code
        sys.stderr.write(
            f"{error}\n{VERBS[name].usage if name in VERBS else 'USAGE: pct <COMMAND> [ARGS] [OPTIONS]'}\n"
        )
    except PveError as error:
        code = error.code
        sys.stderr.write(f"{error}\n")
    if name != "exec":
        _record(place, argv, started, seconds=time.time() - started)
    sys.stdout.flush()
    return code


def _run(place: Place, options: LabOptions, argv: list[str], lc_ctype: str) -> None:
    if not argv:
        raise UsageError("ERROR: no command specified")
    verb = VERBS.get(argv[0])
    if verb is None:
        raise UsageError(f"ERROR: unknown command 'pct {argv[0]}'")
    values, rest = parse(verb, argv[1:])
    locale = os.environ.get("LC_ALL") or lc_ctype or os.environ.get("LANG", "")
    verb.run(Call(place, options, int(values.get("vmid", 0)), values, rest, locale))


def parse(verb: Verb, words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Options anywhere before `--`, as Getopt::Long takes them; an unknown one is fatal, also a command's own."""
    values, plain = _options(verb, words)
    for name in verb.positional:
        if name == "*":
            return _checked(verb, values), plain
        if not plain:
            raise UsageError("400 not enough arguments")
        values[name] = plain.pop(0)
    if plain:
        raise UsageError("400 too many arguments")
    return _checked(verb, values), []


def _options(verb: Verb, words: list[str]) -> tuple[dict[str, str], list[str]]:
    values: dict[str, str] = {}
    plain: list[str] = []
    faults: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            plain += left
            break
        if not word.startswith("-") or word == "-":
            plain.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if name not in verb.options:
            faults.append(f"Unknown option: {name.lower()}")
        elif equals or left:
            values[name] = value if equals else left.pop(0)
        else:
            faults.append(f"Option {name} requires an argument")
    if faults:
        raise UsageError("\n".join([*faults, "400 unable to parse option"]))
    return values, plain


def _checked(verb: Verb, values: dict[str, str]) -> dict[str, str]:
    kinds = {"vmid": "vmid", **verb.options}
    for name, value in values.items():
        kind = kinds.get(name, "string")
        fault = pve.vmid_fault(value) if kind == "vmid" else _misfit(kind, value)
        if fault:
            raise UsageError(f"400 Parameter verification failed.\n{name}: {fault}")
    return values


def _misfit(kind: str, value: str) -> str:
    fits = {
        "integer": value.isdecimal(),
        "boolean": value.lower() in ("0", "1", "on", "off", "yes", "no", "true", "false"),
    }
    return "" if fits.get(kind, True) else f"type check ('{kind}') failed - got '{value}'"


def _record(place: Place, argv: list[str], started: float, *, seconds: float | None) -> None:
    call = {"verb": argv[0] if argv else "", "argv": argv, "started": started, "seconds": seconds}
    handle = os.open(place.pct_calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, (json.dumps(call) + "\n").encode())
    os.close(handle)


def _exec(call: Call) -> None:
    pve.read_conf(call.place, call.vmid)
    if not container.is_running(call.place, call.vmid):
        raise PveError(f"container '{call.vmid}' not running!")
    if not call.rest:
        raise PveError("missing command")
    keep_env = call.values.get("keep-env", "1").lower() in ("1", "on", "yes", "true")
    words = [os.fsencode(word) for word in call.rest]
    if "utf" not in call.locale.lower():
        words = [as_ascii_host(word) for word in words]
    os.environ["PATH"] = "/sbin:/bin:/usr/sbin:/usr/bin"
    os.environ["HOME"] = "/root"
    os.environ["TERM"] = "linux"
    argv = [os.fsencode(word) for word in container.attach_argv(call.place, call.vmid, keep_env=keep_env)]
    os.execvp(argv[0], argv + words)  # noqa: S606


def as_ascii_host(word: bytes) -> bytes:
    """What a host without a UTF-8 locale makes of an argument: U+FFFD for every byte that isn't ASCII."""
    return b"".join(bytes([byte]) if byte < 0x80 else "\ufffd".encode() for byte in word)


def _push(call: Call) -> None:
    from lab.pct_copy import push

    push(call.place, call.vmid, call.values["file"], call.values["destination"], call.values)


def _pull(call: Call) -> None:
    from lab.pct_copy import pull

    pull(call.place, call.vmid, call.values["path"], call.values["destination"], call.values)


def _list(call: Call) -> None:
    line = "{:<10} {:<10} {:<12} {:<20}"
    found = pve.vmids(call.place)
    rows = [line.format("VMID", "Status", "Lock", "Name")] if found else []
    for vmid in found:
        conf = dict(pve.read_conf(call.place, vmid))
        rows.append(line.format(vmid, _state(call.place, vmid), conf.get("lock", ""), conf.get("hostname", "")))
    sys.stdout.write("".join(f"{row}\n" for row in rows))


def _state(place: Place, vmid: int) -> str:
    return "running" if container.is_running(place, vmid) else "stopped"


def _status(call: Call) -> None:
    pve.read_conf(call.place, call.vmid)
    sys.stdout.write(f"status: {_state(call.place, call.vmid)}\n")


def _config(call: Call) -> None:
    sys.stdout.write("".join(f"{key}: {value}\n" for key, value in pve.read_conf(call.place, call.vmid)))


def _start(call: Call) -> None:
    _warn(pve.start(call.place, call.vmid, call.lab))


def _warn(warnings: tuple[str, ...]) -> None:
    """What a task that ends well says of them; the exit status stays 0."""
    for text in warnings:
        sys.stderr.write(f"WARN: {text}\n")
    if warnings:
        sys.stderr.write(f"Task finished with {len(warnings)} warning(s)!\n")


def _stop(call: Call) -> None:
    pve.stop(call.place, call.vmid)


def _shutdown(call: Call) -> None:
    force = call.values.get("forceStop", "0") not in ("0", "no", "off", "false")
    pve.shutdown(call.place, call.vmid, timeout_s=float(call.values.get("timeout", 60)), force=force)


def _reboot(call: Call) -> None:
    _warn(pve.reboot(call.place, call.vmid, call.lab, timeout_s=float(call.values.get("timeout", 60))))


COPY = {"perms": "string", "user": "string", "group": "string"}
VERBS = {
    "exec": Verb(_exec, "pct exec <vmid> [<extra-args>] [OPTIONS]", ("vmid", "*"), {"keep-env": "boolean"}),
    "push": Verb(_push, "pct push <vmid> <file> <destination> [OPTIONS]", ("vmid", "file", "destination"), COPY),
    "pull": Verb(_pull, "pct pull <vmid> <path> <destination> [OPTIONS]", ("vmid", "path", "destination"), COPY),
    "list": Verb(_list, "pct list", ()),
    "status": Verb(_status, "pct status <vmid> [OPTIONS]"),
    "config": Verb(_config, "pct config <vmid> [OPTIONS]"),
    "start": Verb(_start, "pct start <vmid> [OPTIONS]"),
    "stop": Verb(_stop, "pct stop <vmid> [OPTIONS]"),
    "shutdown": Verb(
        _shutdown, "pct shutdown <vmid> [OPTIONS]", ("vmid",), {"timeout": "integer", "forceStop": "boolean"}
    ),
    "reboot": Verb(_reboot, "pct reboot <vmid> [OPTIONS]", ("vmid",), {"timeout": "integer"}),
}
