"""How simulated servers end and fail: signals, leftovers, memory, faults."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from lab import faults
from lab.gpu import state
from tests.sim.conftest import Start, alive, await_true, free_port

pytestmark = pytest.mark.lab

FLAGS = ("--mem-fraction-static", "0.9")


def used_gib(directory: Path, number: int) -> float:
    gpu = state.read_gpus(directory)[number]
    return (state.observe_used_mib(directory, gpu) - gpu.kind.memory_idle_mib) / 1024


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--mamba-radix-cache-strategy", "no_buffer"], "error: unrecognized arguments: --mamba-radix-cache-strategy"),
        (["--mem-fraction-static", "much"], "argument --mem-fraction-static: invalid float value: 'much'"),
        (["--mamba-scheduler-strategy", "extra_buffer_lazy"], "invalid choice: 'extra_buffer_lazy'"),
        (["--max", "3"], "error: ambiguous option: --max could match"),
    ],
)
def test_a_flag_that_0_5_11_does_not_know_ends_the_start_with_2(start: Start, flags: list[str], text: str) -> None:
    server = start(*flags)
    assert server.process.wait(30) == 2
    assert text in server.text()


def test_flags_that_it_refuses_end_with_a_traceback(start: Start) -> None:
    server = start("--mamba-scheduler-strategy", "extra_buffer", "--disable-radix-cache")
    assert server.process.wait(30) == 1
    assert "mamba extra_buffer is not compatible with --disable-radix-cache" in server.text()


def test_a_flag_may_be_shortened_as_argparse_allows(start: Start) -> None:
    server = start("--mem-frac", "0.9", "--max-run", "7").await_ready()
    assert "max_running_requests=7," in server.lines("max_total_num_tokens")[0]


def test_sigterm_drains_without_limit_and_ends_with_137(start: Start) -> None:
    server = start(*FLAGS).await_ready()
    answers: list[int] = []
    asking = threading.Thread(
        target=lambda: answers.append(server.chat("hi", max_tokens=40, ignore_eos=True).status_code)
    )
    asking.start()
    await_true("the request to run", lambda: server.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1)
    server.process.send_signal(signal.SIGTERM)
    server.await_log("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
    assert server.get("/health").status_code == 503
    assert server.chat("still accepted", max_tokens=1).status_code == 200
    asking.join()
    assert answers == [200]
    assert server.process.wait(30) == -signal.SIGKILL
    assert "Gracefully exiting... Remaining number of requests 1." in server.text()


def test_sigterm_while_loading_ends_at_once_with_its_children(start: Start, gpus: Path) -> None:
    faults.set_fault(gpus, 0, "slow_start", seconds=30)
    server = start(*FLAGS)
    server.await_log("Load weight begin")
    children = server.children()
    assert sorted(children) == ["detokenizer", "scheduler"]
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == -signal.SIGTERM
    await_true("the children to end", lambda: not any(alive(pid) for pid in children.values()))


@pytest.mark.parametrize(
    ("number", "to_group", "status", "text"),
    [
        (signal.SIGINT, False, 0, "Application shutdown complete."),
        (signal.SIGINT, True, 0, "INFO:     Shutting down"),
        (signal.SIGHUP, True, -signal.SIGHUP, "The server is fired up and ready to roll!"),
        (signal.SIGQUIT, False, -signal.SIGKILL, "SIGQUIT received. signum=None, frame=None."),
    ],
    ids=["interrupt of the main process", "Ctrl-C", "hang-up", "quit"],
)
def test_other_signals_end_it_as_they_end_the_real_one(
    start: Start, number: signal.Signals, to_group: bool, status: int, text: str
) -> None:
    server = start(*FLAGS).await_ready()
    children = server.children()
    (os.killpg if to_group else os.kill)(server.process.pid, number)
    assert server.process.wait(30) == status
    assert text in server.text()
    await_true("the children to end", lambda: not any(alive(pid) for pid in children.values()))


def test_sigkill_takes_the_scheduler_along_and_the_memory_comes_back(start: Start, gpus: Path) -> None:
    server = start(*FLAGS).await_ready()
    scheduler = server.children()["scheduler"]
    assert used_gib(gpus, 0) == pytest.approx(94.14 * 0.9 + 1.6 + 0.8, abs=0.6)
    server.end()
    assert used_gib(gpus, 0) > 80
    await_true("the memory to come back", lambda: used_gib(gpus, 0) == 0)
    assert not alive(scheduler)


def test_a_scheduler_that_dies_takes_the_server_down(start: Start) -> None:
    server = start(*FLAGS).await_ready()
    scheduler = server.children()["scheduler"]
    os.kill(scheduler, signal.SIGABRT)
    assert server.process.wait(30) == -signal.SIGKILL
    assert f"Subprocess scheduler_0 (pid={scheduler}) crashed with exit code -6. Triggering SIGQUIT" in server.text()
    assert "SIGQUIT received. signum=None, frame=None. It usually means one child failed." in server.text()


def test_an_orphan_outlives_its_server_and_keeps_the_memory(start: Start, gpus: Path) -> None:
    faults.set_fault(gpus, 0, "orphan")
    server = start(*FLAGS).await_ready()
    scheduler = server.children()["scheduler"]
    server.end()
    try:
        command = Path(f"/proc/{scheduler}/cmdline").read_text()
        assert command.startswith("sglang::scheduler")
        assert used_gib(gpus, 0) > 80
        successor = start(*FLAGS)
        assert successor.process.wait(30) == -signal.SIGKILL
        assert "torch.OutOfMemoryError: CUDA out of memory." in successor.text()
    finally:
        os.kill(scheduler, signal.SIGKILL)


def test_memory_held_by_another_process_shrinks_the_pools_silently(start: Start, gpus: Path) -> None:
    state.put_claim(gpus, state.read_gpus(gpus)[0].uuid, 20 * 1024)
    try:
        server = start(*FLAGS).await_ready()
        assert "max_running_requests=42," in server.lines("max_total_num_tokens")[0]
    finally:
        state.put_claim(gpus, "GPU-none", 0)


def test_a_taken_port_shows_only_after_the_whole_load(start: Start) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        server = start(*FLAGS, port=port)
        assert server.process.wait(30) == 1
    text = server.text()
    error = (
        f"ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', {port}): address already in use"
    )
    assert text.index("max_total_num_tokens") < text.index(error)


def test_a_taken_nccl_port_fails_early(start: Start) -> None:
    port = str(free_port())
    start(*FLAGS, "--nccl-port", port, gpu=0).await_ready()
    second = start(*FLAGS, "--nccl-port", port, gpu=1)
    assert second.process.wait(30) == -signal.SIGKILL
    assert "EADDRINUSE" in second.text()


@pytest.mark.parametrize(
    ("kind", "text", "status"),
    [
        ("cuda_oom", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", -9),
        ("sm120", "out of resource: shared memory, Required: 106496, Hardware limit: 101376", -9),
        ("no_memory", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", -9),
        ("killed", "Rank 0 scheduler died during initialization (exit code: -9)", 1),
    ],
)
def test_a_crash_at_start_shows_its_cause_first(start: Start, gpus: Path, kind: str, text: str, status: int) -> None:
    faults.set_fault(gpus, 0, "crash_at_start", kind=kind)
    server = start(*FLAGS)
    assert server.process.wait(30) == status
    assert text in server.text()
    echo = "Received sigquit from a child process."
    assert status == 1 or server.text().index(text) < server.text().index(echo)


def test_faults_take_effect_on_a_running_server(start: Start, gpus: Path) -> None:
    server = start(*FLAGS).await_ready()
    faults.set_fault(gpus, 0, "http_500", share=1.0)
    assert server.chat("hi", max_tokens=1).status_code == 500
    faults.set_fault(gpus, 0, "http_500", share=0.0)
    assert server.chat("hi", max_tokens=1).status_code == 200
    faults.set_fault(gpus, 0, "hang")
    stuck = threading.Thread(target=lambda: server.chat("stuck", max_tokens=2))
    stuck.start()
    await_true("the request to wait", lambda: server.get("/v1/loads").json()["loads"][0]["num_total_reqs"] == 1)
    assert server.get("/health").status_code == 200
    assert server.get("/v1/loads").json()["loads"][0]["num_total_reqs"] == 1
    faults.clear_faults(gpus, 0)
    stuck.join(20)
    assert not stuck.is_alive()
    faults.set_fault(gpus, 0, "crash_under_load", after=1)
    with pytest.raises(Exception, match="disconnected"):
        server.chat("crash", max_tokens=1)
    assert server.process.wait(30) == -signal.SIGKILL
    assert "Scheduler hit an exception: Traceback (most recent call last):" in server.text()
