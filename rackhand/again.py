"""The command line that does again what was left undone, as an operator would type it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rackhand.arguments import FlagValue, gpu_ranges
from rackhand.contract.servers import WAITING, OpenTurn
from rackhand.inventory import Fleet, Host

GPUS = "{gpus}"


def restart_words(
    fleet: Fleet,
    host: Host,
    overrides: Mapping[str, FlagValue],
    *,
    timeout_s: float | None = None,
    at_once: int = 0,
    adopt: bool = False,
    compare: bool = True,
) -> str:
    """`./inv restart-servers ... --gpus {gpus}` with every flag of the one that is under way."""
    words = ["./inv", "restart-servers", "--hosts", host.name, "--gpus", GPUS]
    for flag, value in overrides.items():
        words += ["--set", f"{flag}={_value(value)}"]
    words += ["--timeout", f"{timeout_s:g}"] if timeout_s is not None else []
    words += ["--at-once", str(at_once)] if at_once else []
    words += ["--adopt"] if adopt else []
    words += [] if compare else ["--no-compare"]
    return _joined([*words, *_inventory(fleet)])


def stop_words(fleet: Fleet, host: Host) -> str:
    return _joined(["./inv", "stop", "--hosts", host.name, "--servers", *_inventory(fleet)])


def fill_gpus(redo: str, gpus: Sequence[int]) -> str:
    return redo.replace(GPUS, gpu_ranges(sorted(gpus)), 1)


def open_turns(turns: Sequence[OpenTurn]) -> Mapping[str, str]:
    """What a restart or a stop left undone, or is still at: GPUs of the same state and command on one line."""
    groups: dict[tuple[str, str], list[int]] = {}
    for turn in turns:
        groups.setdefault(_turn_words(turn), []).append(turn.gpu)
    return {
        f"undone on GPU {gpu_ranges(sorted(gpus))}": f"{state}; run: {fill_gpus(redo, gpus)}" if redo else state
        for (state, redo), gpus in groups.items()
    }


def _turn_words(turn: OpenTurn) -> tuple[str, str]:
    if turn.working:
        return f"a restart or stop is at work: {turn.step}", ""
    if turn.step == WAITING:
        return "a restart or stop was interrupted before it began", turn.redo
    return f"a restart or stop broke off while {turn.step}: {turn.cause or 'its process was killed'}", turn.redo


def _joined(words: Sequence[str]) -> str:
    return " ".join(word if word == GPUS else shlex.quote(word) for word in words)


def _inventory(fleet: Fleet) -> tuple[str, str]:
    """Those of a folder inventory/ go by their names."""
    path = fleet.path
    return "--inventory", path.stem if path.parent.name == "inventory" else str(path.absolute())


def _value(value: FlagValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
