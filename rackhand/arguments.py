"""Server flags as an operator writes them: their names, their values, and those that rackhand sets itself. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from rackhand.errors import UsageError

FlagValue = str | int | float | bool | tuple[str | int | float, ...]
"""A server flag's value. True is a bare flag, False leaves it out, a tuple repeats the words after the flag."""

NO_VALUES: Mapping[str, FlagValue] = MappingProxyType({})

MANAGED_FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "port": "set port or port_base",
        "nccl-port": "set nccl_port or nccl_port_base",
        "host": "servers listen on 127.0.0.1 only",
        "api-key": "set api_key: {env: NAME} or {command: [...]}",
        "config": "rackhand writes that file itself, for the API key",
        "base-gpu-id": "set gpus: each server is bound to its GPU by UUID",
        "gpu-id-step": "set gpus: each server is bound to its GPU by UUID",
        "model-path": "set model",
        "model": "set model, the key beside args",
    }
)
"""Flag (without dashes) to the place where its value belongs."""

_ONE_GPU_FLAGS = frozenset(
    {"tp", "tp-size", "tensor-parallel-size", "dp", "dp-size", "data-parallel-size", "pp", "pp-size"}
    | {"pipeline-parallel-size", "nnodes"}
)
_FLAG = re.compile(r"[A-Za-z][A-Za-z0-9-]*", re.ASCII)
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})", re.ASCII)
_FLOAT = re.compile(
    r"[-+]?([0-9]{1,20}\.[0-9]{0,20}|\.[0-9]{1,20}|[0-9]{1,20}(?=[eE]))([eE][-+]?[0-9]{1,3})?", re.ASCII
)
_TRUE = frozenset({"true", "yes", "on"})
_FALSE = frozenset({"false", "no", "off"})
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|SECRET_?KEY|SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE)$", re.IGNORECASE
)
_SECRET_VALUE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}|xox[bp]-[A-Za-z0-9-]{20,})"
)


def flag_name(text: str) -> str:
    """`mem_fraction_static` and `--mem-fraction-static` → `mem-fraction-static`. ValueError if it can't be a flag."""
    name = text.strip().lstrip("-").replace("_", "-")
    if not _FLAG.fullmatch(name):
        raise ValueError(f"{text!r} is no flag name")
    return name


def scalar_value(text: str) -> str | int | float | bool:
    """What a word stands for: yes/no/on/off/true/false, decimal integers, decimal fractions, else the text."""
    low = text.lower()
    if low in _TRUE or low in _FALSE:
        return low in _TRUE
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


def looks_secret(name: str, value: str = "") -> bool:
    """Whether a variable or flag of this name, or this value, is a secret that has no place in clear text."""
    return bool(_SECRET_NAME.search(name.replace("-", "_")) or _SECRET_VALUE.search(value))


def misplaced(flag: str, value: FlagValue) -> tuple[str, str] | None:
    """Why a flag can't stand among the args, and what to do; None when it can. `flag` is a `flag_name` result."""
    if flag in MANAGED_FLAGS:
        return f"--{flag} is set by rackhand", MANAGED_FLAGS[flag]
    if flag in _ONE_GPU_FLAGS and value not in (1, "1", False):
        return f"--{flag} spreads one server over several GPUs", "rackhand runs one server on each GPU"
    if looks_secret(flag, " ".join(map(str, value)) if isinstance(value, tuple) else str(value)):
        return f"--{flag} would show a secret on the command line", "only api_key has a safe way to a server"
    return None


def parse_overrides(words: Iterable[str]) -> Mapping[str, FlagValue]:
    """`["mem-fraction-static=0.9", "cuda-graph-bs=[1, 2]", "enable-metrics=true"]` → flags. UsageError names the word.

    `false` leaves a flag out; a list in brackets becomes several words.
    """
    flags: dict[str, FlagValue] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not text.strip():
            lacks = "value" if equals else "'='"
            raise UsageError(f"--set {word!r} has no {lacks}", hint="write --set FLAG=VALUE, FLAG=true for a bare flag")
        try:
            flag = flag_name(name)
        except ValueError as error:
            raise UsageError(f"--set: {error}", hint="write --set FLAG=VALUE") from None
        if flag in flags:
            raise UsageError(f"--set {flag} is given twice")
        value = _override_value(text.strip())
        if wrong := misplaced(flag, value):
            raise UsageError(f"--set: {wrong[0]}", hint=wrong[1])
        flags[flag] = value
    return MappingProxyType(flags)


def _override_value(text: str) -> FlagValue:
    if text.startswith("[") and text.endswith("]"):
        words = (word.strip() for word in text[1:-1].split(","))
        values = ((word, scalar_value(word)) for word in words if word)
        return tuple(word if isinstance(value, bool) else value for word, value in values)
    return scalar_value(text)


def checked_seconds(value: float | None, flag: str) -> float | None:
    """None where nothing is asked. UsageError for what is no length of time."""
    if value is not None and not 0 < value < math.inf:
        raise UsageError(f"--{flag} {value:g} is no number of seconds above 0")
    return value


def checked_count(value: int | None, flag: str) -> int | None:
    """None where nothing is asked. UsageError for what is no number of things."""
    if value is not None and value < 1:
        raise UsageError(f"--{flag} {value} is no number above 0")
    return value


def parse_gpus(text: str | None) -> tuple[int, ...] | None:
    """`--gpus 0,2-4` → (0, 2, 3, 4); None means all. UsageError otherwise."""
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,3})(?:-([0-9]{1,3}))?\s*", part, re.ASCII)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(f"--gpus {text!r} is no list of GPU numbers", hint="write --gpus 0,1 or 0-3")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


def gpu_ranges(gpus: Sequence[int]) -> str:
    """`0-3,6`."""
    parts: list[list[int]] = []
    for gpu in gpus:
        if parts and gpu == parts[-1][-1] + 1:
            parts[-1].append(gpu)
        else:
            parts.append([gpu])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
