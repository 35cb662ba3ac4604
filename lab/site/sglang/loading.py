"""From the command line to sized pools: the lines of a start in their order, the GPU memory taken step by step."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple, NoReturn

from lab.faults import faults_of
from lab.gpu import state
from rackhand.capacity import (
    QWEN3_6_27B,
    QWEN3_6_27B_FP8,
    QWEN3_6_27B_NVFP4,
    Capacity,
    DoesNotFit,
    Gpu,
    ModelShape,
    predict,
)

from . import __version__
from .batch import Limits
from .children import Child, put_memory, start_children
from .lines import Log, raw
from .server_args import ServerArgs, settle, sizing_flags

GRAPH_GIB = 1.62
MTP_ACCEPT_LENGTH = 3.2
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/opt/sglang/lib/python3.11/site-packages/sglang/srt/managers/scheduler.py", line 3900, '
    "in run_scheduler_process\n    scheduler = Scheduler(\n"
)
CRASHES = {
    "cuda_oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.13 GiB. GPU 0 has a total capacity "
    "of {total:.2f} GiB of which {free:.2f} GiB is free.",
    "sm120": "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 106496, "
    "Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
    "no_memory": "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
    "Current value: mem_fraction_static={fraction}",
}


class Loaded(NamedTuple):
    """A server whose pools stand."""

    capacity: Capacity
    limits: Limits
    context_len: int
    model: ModelShape
    weights_gib: float
    free_gib: float


class Loader:
    """One start, in the foreground: it sleeps, so signals keep their default action."""

    def __init__(self, args: ServerArgs, directory: Path, lines: Log) -> None:
        self.args = args
        self.directory = directory
        self.gpu = choose_gpu(state.read_gpus(directory), args.base_gpu_id)
        self.options = state.read_options(directory)
        self.faults = faults_of(directory, self.gpu.number)
        self.model = choose_model(args.model_path)
        self.lines = lines
        self.children: list[Child] = []
        self._taken_mib = 0

    def load(self) -> Loaded:
        """Everything up to the ready line. Ends the process where the real one would fail."""
        args, lines = self.args, self.lines
        sm = self.gpu.kind.compute_capability
        smallest = min(g.kind.memory_total_mib for g in state.read_gpus(self.directory))
        settle(args, Gpu(name="", memory_mib=smallest, free_gib=0, compute_capability=sm), self.model, lines)
        lines.info(f"server_args={args!r}")
        lines.info("Using default HuggingFace chat template with detected content format: openai")
        self.children = start_children(self.directory, self.gpu.uuid, orphan="orphan" in self.faults)
        signal.signal(signal.SIGQUIT, lambda *_: self._child_failed())
        lines.info("Init torch distributed begin.")
        self._pause(0.1)
        before = self._free_gib()
        self._take_mib(self.gpu.kind.context_mib)
        free_gib = self._free_gib()
        lines.info(f"Init torch distributed ends. elapsed=0.31 s, mem usage={before - free_gib:.2f} GB")
        self._load_weights(free_gib, self.model.weights_gib, "Qwen3_5ForConditionalGeneration")
        capacity = self._make_pools(Gpu(name="", memory_mib=smallest, free_gib=free_gib, compute_capability=sm))
        self._capture()
        context_len = args.context_length or self.model.context_len
        lines.info(
            f"max_total_num_tokens={capacity.kv_tokens}, chunked_prefill_size={args.chunked_prefill_size}, "
            f"max_prefill_tokens={args.max_prefill_tokens}, max_running_requests={capacity.max_running_requests}, "
            f"context_len={context_len}, available_gpu_mem={self._free_gib():.2f} GB"
        )
        return Loaded(capacity, self._limits(capacity), context_len, self.model, self.model.weights_gib, free_gib)

    def _load_weights(self, free_gib: float, weights_gib: float, architecture: str) -> None:
        self.lines.info(f"Load weight begin. avail mem={self._free_gib():.2f} GB")
        if weights_gib > free_gib or self.faults.get("crash_at_start", {}).get("kind", "") == "cuda_oom":
            self._pause(0.2)
            self._crash("cuda_oom")
        if self.faults.get("crash_at_start", {}).get("kind") == "killed":
            self._die_in_load()
        shards = 11
        for shard in range(shards + 1):
            done = "█" * (shard * 10 // shards)
            raw(
                f"\rLoading safetensors checkpoint shards: {100 * shard // shards:3d}% Completed |{done:10}| "
                f"{shard}/{shards} [00:{shard // 2:02d}<00:{(shards - shard) // 2:02d},  2.31it/s]"
            )
            self._pause(0.5 / (shards + 1))
        raw("\n")
        self._pause(float(self.faults.get("slow_start", {}).get("seconds", 0.0)), scaled=False)
        before = self._free_gib()
        self._take_mib(round(weights_gib * 1024))
        after = self._free_gib()
        self.lines.info(
            f"Load weight end. elapsed={self.options['load_seconds'] / 2:.2f} s, type={architecture}, "
            f"avail mem={after:.2f} GB, mem usage={before - after:.2f} GB."
        )

    def _make_pools(self, gpu: Gpu) -> Capacity:
        args = self.args
        self.lines.info(
            f"Using KV cache dtype: torch.{'bfloat16' if args.kv_cache_dtype == 'auto' else 'float8_e4m3fn'}"
        )
        self._pause(0.1)
        if self.faults.get("crash_at_start", {}).get("kind") == "no_memory":
            self._crash("no_memory")
        try:
            capacity = predict(self.model, gpu, __version__, sizing_flags(args))
        except DoesNotFit:
            self._crash("no_memory")
        self._take_mib(round(capacity.pools_gib * 1024))
        line = (
            f"Mamba Cache is allocated. max_mamba_cache_size: {capacity.slots}, "
            f"conv_state size: {capacity.conv_gib:.2f}GB, ssm_state size: {capacity.ssm_gib:.2f}GB "
        )
        if args.speculative_algorithm:
            line += (
                f"intermediate_ssm_state_cache size: {capacity.intermediate_ssm_gib:.2f}GB "
                f"intermediate_conv_window_cache size: {capacity.intermediate_conv_gib:.2f}GB "
            )
        self.lines.info(line)
        self._kv_line(capacity.kv_tokens, capacity.kv_each_gib)
        self.lines.info(f"Memory pool end. avail mem={self._free_gib():.2f} GB")
        return capacity

    def _kv_line(self, tokens: int, each_gib: float) -> None:
        self.lines.info(
            f"KV Cache is allocated. #tokens: {tokens}, K size: {each_gib:.2f} GB, V size: {each_gib:.2f} GB"
        )

    def _capture(self) -> None:
        if self.faults.get("crash_at_start", {}).get("kind") == "sm120":
            self._crash("sm120")
        if self.args.disable_cuda_graph:
            return
        before = self._free_gib()
        self.lines.info(f"Capture cuda graph begin. This can take up to several minutes. avail mem={before:.2f} GB")
        sizes = [s for s in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if s <= self.args.cuda_graph_max_bs][::-1]
        self.lines.info(f"Capture cuda graph bs {sizes[::-1]}")
        for done, size in enumerate(sizes):
            share = 100 * done // len(sizes)
            raw(
                f"\rCapturing batches (bs={size} avail_mem={before:.2f} GB): {share:3d}%|"
                f"{'█' * (share // 10):10}| {done}/{len(sizes)} [00:{done:02d}<00:{len(sizes) - done:02d},  1.71it/s]"
            )
            self._pause(0.3 / len(sizes))
        raw("\n")
        self._take_mib(round(GRAPH_GIB * 1024))
        after = self._free_gib()
        self.lines.info(
            f"Capture cuda graph end. Time elapsed: {self.options['load_seconds'] * 0.3:.2f} s. "
            f"mem usage={before - after:.2f} GB. avail mem={after:.2f} GB."
        )
        if self.args.speculative_algorithm:
            self._take_mib(round(self.model.draft_gib * 1024))

    def _limits(self, capacity: Capacity) -> Limits:
        speculation = bool(self.args.speculative_algorithm)
        return Limits(
            running=capacity.max_running_requests,
            slots=capacity.slots,
            held_per_request=max(1, capacity.slots_per_request - 1),
            kv_tokens=capacity.kv_tokens,
            prefill_tokens=min(self.args.max_prefill_tokens, self.args.chunked_prefill_size),
            log_interval=self.args.decode_log_interval,
            graph_batch=0 if self.args.disable_cuda_graph else self.args.cuda_graph_max_bs,
            queued=self.args.max_queued_requests,
            accept_length=MTP_ACCEPT_LENGTH if speculation else 1.0,
            draft_tokens=self.args.speculative_num_draft_tokens if speculation else 0,
        )

    def _pause(self, share: float, *, scaled: bool = True) -> None:
        time.sleep(share * (self.options["load_seconds"] if scaled else 1.0))

    def _free_gib(self) -> float:
        return state.observe_free_mib(self.directory, self.gpu) / 1024

    def _take_mib(self, mib: int) -> None:
        self._taken_mib += mib
        put_memory(self.children[0], self._taken_mib)

    def _crash(self, kind: str) -> NoReturn:
        text = CRASHES[kind].format(
            total=self.gpu.kind.memory_total_mib / 1024, free=self._free_gib(), fraction=self.args.mem_fraction_static
        )
        self.lines.error(f"Scheduler hit an exception: {TRACEBACK}{text}\n")
        self._child_failed()

    def _die_in_load(self) -> NoReturn:
        os.kill(self.children[0].pid, signal.SIGKILL)
        kill_children(self.children)
        text = (
            "Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common "
            "cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check."
        )
        raw(f"Traceback (most recent call last):\nRuntimeError: {text}\n")
        sys.exit(1)

    def _child_failed(self) -> NoReturn:
        self.lines.error("Received sigquit from a child process. It usually means the child failed.")
        kill_tree(self.children)


def choose_gpu(gpus: list[state.Gpu], base_gpu_id: int) -> state.Gpu:
    """The GPU that CUDA_VISIBLE_DEVICES (UUIDs or indices) and --base-gpu-id name. SystemExit 1 where there is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = gpus
    if visible is not None:
        names = [name.strip() for name in visible.split(",") if name.strip()]
        chosen = [g for name in names for g in gpus if g.uuid == name or str(g.number) == name]
    if base_gpu_id >= len(chosen):
        raw(
            "Traceback (most recent call last):\nRuntimeError: CUDA error: invalid device ordinal\n"
            if chosen
            else "Traceback (most recent call last):\nRuntimeError: No CUDA GPUs are available\n"
        )
        sys.exit(1)
    return chosen[base_gpu_id]


def choose_model(path: str) -> ModelShape:
    """The shape for a model path: every path is Qwen3.6-27B, in the precision that its name tells."""
    name = path.upper()
    if "FP8" in name:
        return QWEN3_6_27B_FP8
    return QWEN3_6_27B_NVFP4 if "FP4" in name else QWEN3_6_27B


def kill_children(children: list[Child]) -> None:
    """SIGKILL to each child that is left."""
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)


def kill_tree(children: list[Child]) -> NoReturn:
    """As 0.5.11 ends itself: SIGKILL to its children, then to itself, so that the exit status is 137."""
    kill_children(children)
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit(137)
