"""Why a server ended, from its log. A crash prints several signs: the first one is the cause, the rest is echo."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator

from rackhand.engines import Cause

_PREFIX = re.compile(r"^(?:\(\w+ pid=[^)]*\) )?\[\d{4}-\d\d-\d\d [\d:.]+(?: [A-Z_]+\d+)*\] ")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_CRASHED = re.compile(r"Subprocess ([a-z]+)\w* \(pid=\d+\) crashed with exit code (-?\d+)")
_TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Resources|Failure|Timeout)\b|^[\w.]+: \S")

_LOWER = "lower mem-fraction-static"
_KNOWN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), hint)
    for pattern, hint in (
        (r"error: unrecognized arguments: ", "this SGLang does not know the flag: see its --help"),
        (r"error: ambiguous option: ", "write the flag's full name of this version"),
        (r"error: argument --\S+: ", "mend the value in servers.args or --set"),
        (r"error: the following arguments are required", "mend servers.args"),
        (
            r"Not enough GPU memory for hybrid|state cache is too small",
            "raise mem-fraction-static, or mamba-ssm-dtype bfloat16",
        ),
        (r"Not enough memory\. Please try to increase --mem-fraction-static", "raise mem-fraction-static"),
        (r"Loaded weights leave no GPU memory for the KV cache", "raise mem-fraction-static"),
        (r"Not enough space for mamba|Can not alloc mamba cache", "lower max-running-requests or raise the slots"),
        (r"Capture cuda graph failed|CUDA out of memory|OutOfMemoryError", f"{_LOWER}, or free the GPU first"),
        (r"(?:Prefill|Decode) out of memory|alloc_req_slots runs out of memory", "lower max-running-requests"),
        (r"Out of memory even after retracting all other requests", "raise mem-fraction-static or shorten requests"),
        (r"memory capacity is unbalanced", "another process holds memory of one GPU: rackhand status"),
        (r"address already in use|EADDRINUSE|Errno 98", "another process has the port: change servers.port"),
        (r"out of resource: shared memory", "choose another attention backend for this GPU"),
        (r"no kernel image is available", "this build has no kernels for this GPU"),
        (r"atchdog timeout \(self\.watchdog_timeout=\d+", "raise watchdog-timeout if it was still compiling"),
        (r"scheduler (?:died during initialization|is dead).*(?:-9|137)", "killed: probably out of host memory"),
        (r"Initialization failed\. warmup error", "see the lines before it"),
        (r"ModuleNotFoundError|ImportError: ", "mend servers.python: its environment is incomplete"),
        (
            r"FileNotFoundError: |is not a local folder and is not a valid model|Can't load the configuration",
            "check servers.model",
        ),
    )
)
_ECHO = re.compile(
    r"Received sigquit from a child|SIGQUIT received|Subprocess \w+ \(pid=\d+\) crashed|Triggering SIGQUIT"
    r"|Ignore import error when loading"
)


def clean(line: str) -> str:
    """Without ANSI colours, without what a progress bar overwrote, without SGLang's prefix."""
    return _PREFIX.sub("", _ANSI.sub("", line.rstrip("\n").rstrip("\r").rpartition("\r")[2]))


def find_cause(lines: Iterable[str], exit_status: int | None = None) -> Cause:
    """The first sign in the log; without one, what the exit status says. `exit_status` is negative for a signal."""
    cleaned = iter([clean(line) for line in lines])
    crashed: Cause | None = None
    for line in cleaned:
        if found := _CRASHED.search(line):
            crashed = crashed or _ended(f"the {found[1]}", int(found[2]))
            if int(found[2]) == -signal.SIGKILL:
                return crashed  # it wrote nothing of its own: whatever follows is the others' echo
        if _ECHO.search(line):
            continue
        if _TRACEBACK in line:
            return _from_traceback(cleaned)
        hint = _hint(line)
        if hint is not None:
            return Cause(line.strip(), hint)
    return crashed or _from_status(exit_status)


def _from_traceback(lines: Iterator[str]) -> Cause:
    """The exception line ends a traceback: the first one that isn't indented and isn't a blank."""
    last = ""
    for line in lines:
        if not line.strip():
            continue
        last = line.strip()
        if not line.startswith((" ", "\t")) and _EXCEPTION.match(line):
            break
    return Cause(last or "a traceback without its last line", _hint(last) or "")


def _hint(line: str) -> str | None:
    for pattern, hint in _KNOWN:
        if pattern.search(line):
            return hint
    return None


def _from_status(status: int | None) -> Cause:
    if status is None:
        return Cause("it ended; its log names no cause")
    code = 128 - status if status > 128 else status
    if code < 0:
        return _ended("the server", code)
    return Cause(f"exit status {status}; its log names no cause")


def _ended(who: str, code: int) -> Cause:
    """`code` as Python has it: negative for a signal."""
    if code >= 0:
        return Cause(f"{who} ended with status {code}")
    if code == -signal.SIGKILL:
        return Cause(f"{who} was killed (signal 9)", "out of host memory? See dmesg on the host", is_kill=True)
    try:
        return Cause(f"{who} was ended by {signal.Signals(-code).name} (signal {-code})")
    except ValueError:
        return Cause(f"{who} was ended by signal {-code}")
