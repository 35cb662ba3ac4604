"""How a start or a run fails: the texts that the real one prints, and how the processes end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import NoReturn

from .children import Child
from .lines import Log, raw

TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/opt/sglang/lib/python3.11/site-packages/sglang/srt/managers/scheduler.py", line 3900, '
    "in run_scheduler_process\n    scheduler = Scheduler(\n"
)
CRASHES = {
    "cuda_oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.13 GiB. GPU 0 has a total capacity "
    "of {total_gib:.2f} GiB of which {free_gib:.2f} GiB is free.",
    "sm120": "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 106496, "
    "Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
    "no_memory": "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
    "Current value: mem_fraction_static={fraction}",
    "nccl_port": "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
    "address. port: {port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    "under_load": "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
}


def crash(kind: str, lines: Log, children: list[Child], **facts: float) -> NoReturn:
    """The scheduler raises while it loads, and everything ends (137)."""
    lines.error(f"Scheduler hit an exception: {TRACEBACK}{CRASHES[kind].format(**facts)}\n")
    child_failed_in_load(lines, children)


def child_failed_in_load(lines: Log, children: list[Child]) -> NoReturn:
    """The main process hears of a failed child before its own event loop runs."""
    lines.error("Received sigquit from a child process. It usually means the child failed.")
    kill_tree(children)


def die_in_load(children: list[Child]) -> NoReturn:
    """The scheduler is killed from outside while it loads, as by the host's OOM killer."""
    os.kill(children[0].pid, signal.SIGKILL)
    raw(
        "Traceback (most recent call last):\nRuntimeError: Rank 0 scheduler died during initialization "
        "(exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. "
        "Run `dmesg -T | grep -i oom` to check.\n"
    )
    sys.exit(1)


def refuse(problem: Exception) -> int:
    """A start that Python ends with a traceback: the text, and its exit status 1."""
    raw(f"Traceback (most recent call last):\n{type(problem).__name__}: {problem}\n")
    return 1


def kill_children(children: list[Child]) -> None:
    """SIGKILL to the scheduler; the detokenizer sees that and ends by itself."""
    for child in children[:1]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)


def kill_tree(children: list[Child]) -> NoReturn:
    """As 0.5.11 ends itself: SIGKILL to its children, then to itself, so that the exit status is 137."""
    kill_children(children)
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit(137)
