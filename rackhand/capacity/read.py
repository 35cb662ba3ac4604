"""Single values out of a launch's flags. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

from rackhand.capacity.errors import FlagsRefused, NotCovered

FlagValue: TypeAlias = bool | int | float | str | None
"""One flag's value; the key is its long name, with or without the leading dashes, `-` and `_` alike."""
Flags: TypeAlias = Mapping[str, FlagValue]

SHORT = {
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "pp": "pp-size",
    "pipeline-parallel-size": "pp-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "mamba-radix-cache-strategy": "mamba-scheduler-strategy",
    "enable-gdn-replayssm-spec": "enable-linear-replayssm-spec",
    "cuda-graph-max-bs-decode": "cuda-graph-max-bs",
}
"""Names that mean the same to sizing, whatever the release calls them."""


def dashed(flags: Flags) -> dict[str, FlagValue]:
    """The flags under one spelling: dashes, no leading ones, one name for one thing."""
    plain = {name.lstrip("-").replace("_", "-"): value for name, value in flags.items()}
    return {SHORT.get(name, name): value for name, value in plain.items()}


def whole(flags: Flags, name: str, *, least: int = 1) -> int | None:
    """A whole number of at least `least`, or None where the flag is unset. FlagsRefused otherwise."""
    value = flags.get(name)
    if value is None:
        return None
    try:
        if isinstance(value, bool | float):
            raise ValueError(value)
        number = int(value)
    except (ValueError, OverflowError) as wrong:
        raise FlagsRefused(f"--{name} {value!r} is not a whole number") from wrong
    if number < least:
        raise FlagsRefused(f"--{name} {value!r} is less than {least}")
    return number


def fraction_of(flags: Flags, name: str, *, most: float = float("inf")) -> float | None:
    """A number above 0 and up to `most`, or None where the flag is unset. FlagsRefused otherwise."""
    value = flags.get(name)
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise ValueError(value)
        number = float(value)
    except ValueError as wrong:
        raise FlagsRefused(f"--{name} {value!r} is not a number") from wrong
    if not 0 < number <= most:
        limit = "" if most == float("inf") else f" and at most {most:g}"
        raise FlagsRefused(f"--{name} {value!r} has to be above 0{limit}")
    return number


def choice(flags: Flags, name: str, known: Collection[str], default: str) -> str:
    """One of `known`. NotCovered otherwise."""
    value = flags.get(name)
    if value is None:
        return default
    if value not in known:
        raise NotCovered(f"--{name} {value!r}: the memory model knows {', '.join(known)}")
    return str(value)
