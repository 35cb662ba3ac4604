"""SGLang's command line by version: what `--help` says, renamed flags, mistakes found before anything is stopped."""

from __future__ import annotations

import difflib
import math
import re

from rackhand.contract.servers import FlagFacts
from rackhand.engines import FlagMistake, Flags, Launch

RENAMED = (
    ("mamba-scheduler-strategy", "mamba-radix-cache-strategy", (0, 5, 14)),
    ("cuda-graph-max-bs", "cuda-graph-max-bs-decode", (0, 5, 14)),
    ("cuda-graph-bs", "cuda-graph-bs-decode", (0, 5, 14)),
    ("enable-gdn-replayssm-spec", "enable-linear-replayssm-spec", (0, 5, 17)),
)
"""Old name, new name, the first release that knows the new one (release notes aside: read in argument tables)."""

NUMBERS = frozenset(
    {"chunked-prefill-size", "context-length", "cuda-graph-max-bs", "cuda-graph-max-bs-decode", "dist-timeout"}
    | {"mamba-full-memory-ratio", "max-mamba-cache-size", "max-prefill-tokens", "max-queued-requests"}
    | {"max-running-requests", "max-total-tokens", "mem-fraction-static", "num-continuous-decode-steps", "page-size"}
    | {"prefill-max-requests", "random-seed", "schedule-conservativeness", "speculative-eagle-topk"}
    | {"speculative-num-draft-tokens", "speculative-num-steps", "stream-interval", "watchdog-timeout"}
)
"""Flags whose value is one number in every release; `--help` doesn't tell types."""

RANGES = {
    "mem-fraction-static": (0.0, 1.0),
    "mamba-full-memory-ratio": (0.0, math.inf),
    "schedule-conservativeness": (0.0, math.inf),
    **dict.fromkeys(("max-running-requests", "max-total-tokens", "context-length", "page-size"), (0.0, math.inf)),
    **dict.fromkeys(("max-prefill-tokens", "max-queued-requests", "stream-interval"), (0.0, math.inf)),
    **dict.fromkeys(("cuda-graph-max-bs", "cuda-graph-max-bs-decode", "max-mamba-cache-size"), (0.0, math.inf)),
}
"""Above the first and at most the second; no release takes another value."""


def launch_argv(launch: Launch) -> tuple[str, ...]:
    """Metrics are switched on unless the inventory says `enable-metrics: false`."""
    argv = [launch.python, "-m", "sglang.launch_server", "--model-path", launch.model, "--host", "127.0.0.1"]
    argv += ["--port", str(launch.port), "--nccl-port", str(launch.nccl_port)]
    for name, value in {"enable-metrics": True, **launch.args}.items():
        if value is False:
            continue
        argv.append(f"--{name}")
        if value is not True:
            argv += [str(word) for word in (value if isinstance(value, tuple) else (value,))]
    if launch.config is not None:
        argv += ["--config", launch.config]
    return tuple(argv)


def parse_version(text: str | None) -> tuple[int, ...] | None:
    """(0, 5, 11) from 0.5.11 or 0.5.11.post2; None when it does not begin like a release."""
    found = re.match(r"\d+(?:\.\d+)+", (text or "").strip())
    return tuple(int(part) for part in found[0].split(".")) if found else None


def parse_help(text: str) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Option lines are indented by two blanks; help text follows after two more, or on lines of its own."""
    options: dict[str, tuple[str, ...]] = {}
    bare: list[str] = []
    for line in text.splitlines():
        if not re.match(r"  -", line):
            continue
        head = re.split(r"\s{2,}", line.strip(), maxsplit=1)[0]
        parts = [part.partition(" ") for part in re.split(r", (?=-)", head)]
        metavar = parts[-1][2]
        choices = re.match(r"\{([^}]*)\}", metavar)
        for name, _, _ in parts:
            if not name.startswith("--"):
                continue
            options[name[2:]] = tuple(choices[1].split(",")) if choices else ()
            if not metavar:
                bare.append(name[2:])
    return options, tuple(bare)


def translate(args: Flags, *, version: str | None, known: frozenset[str] | None = None) -> Flags:
    release = parse_version(version)
    out = {name.lstrip("-").replace("_", "-"): value for name, value in args.items()}
    for old, new, since in RENAMED:
        wanted = _spelling(old, new, known, None if release is None else release >= since)
        other = old if wanted == new else new
        if wanted is not None and other in out:
            out = {(wanted if name == other else name): value for name, value in out.items()}
    return out


def check_flags(args: Flags, facts: FlagFacts) -> tuple[FlagMistake, ...]:
    """`args` as `translate` gives them."""
    mistakes = [_mistake(name, value, facts) for name, value in args.items()]
    return tuple(mistake for mistake in mistakes if mistake is not None)


def _spelling(old: str, new: str, known: frozenset[str] | None, is_new: bool | None) -> str | None:  # noqa: FBT001
    if known:
        return new if new in known else old if old in known else None
    return None if is_new is None else new if is_new else old


def _mistake(name: str, value: object, facts: FlagFacts) -> FlagMistake | None:
    flag = f"--{name}"
    if value is False:
        return None
    if name not in facts.options:
        return FlagMistake(flag, f"SGLang {facts.version} has no flag {flag}", _nearest(name, list(facts.options)))
    if name in facts.bare:
        return None if value is True else FlagMistake(flag, f"{flag} takes no value", "write true or false")
    if value is True:
        return FlagMistake(flag, f"{flag} needs a value", f"write {name}=VALUE")
    if name in NUMBERS and not _is_number(value):
        return FlagMistake(flag, f"{flag} takes a number, not {value!r}")
    least, most = RANGES.get(name, (-math.inf, math.inf))
    if name in RANGES and not least < float(value) <= most:  # type: ignore[arg-type]
        bound = "" if most == math.inf else f" and at most {most:g}"
        return FlagMistake(flag, f"{flag} takes a number above {least:g}{bound}, not {value!r}")
    choices = facts.options[name]
    wrong = [str(v) for v in (value if isinstance(value, tuple) else (value,)) if choices and str(v) not in choices]
    if wrong:
        hint = _nearest(wrong[0], list(choices), dashes="") or f"one of {', '.join(choices)}"
        return FlagMistake(flag, f"{flag} does not take {wrong[0]!r}", hint)
    return None


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, (str, int, float)) and math.isfinite(float(value))
    except ValueError:
        return False


def _nearest(name: str, names: list[str], *, dashes: str = "--") -> str:
    renamed = {old: new for old, new, _ in RENAMED} | {new: old for old, new, _ in RENAMED}
    if renamed.get(name) in names:
        return f"did you mean {dashes}{renamed[name]}"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {dashes}{close[0]}" if close else ""
