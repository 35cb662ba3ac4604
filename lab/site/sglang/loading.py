"""From the command line to sized pools: the lines of a start in their order, the GPU memory taken step by step."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from pathlib import Path
from typing import NamedTuple

from lab.faults import faults_of
from lab.gpu import state
from rackhand.capacity import Capacity, DoesNotFit, Gpu, ModelShape, predict

from . import __version__
from .batch import Limits
from .children import Child, put_memory, start_children
from .choice import choose_gpu, choose_model
from .failures import child_failed_in_load, crash, die_in_load
from .lines import Log, raw
from .server_args import ServerArgs, settle, sizing_flags

GRAPH_GIB = 1.62
GRAPH_BATCHES = (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
SHARDS = 11
MTP_ACCEPT_LENGTH = 3.2
DRAFT_LAYERS = 1
"""The MTP draft has one full-attention layer."""


class Loaded(NamedTuple):
    """A server whose pools stand."""

    capacity: Capacity
    limits: Limits
    context_len: int
    model: ModelShape


class Loader:
    """One start, in the foreground: it sleeps, so signals keep their default action."""

    def __init__(self, args: ServerArgs, directory: Path, lines: Log) -> None:
        gpus = state.read_gpus(directory)
        self.args = args
        self.directory = directory
        self.lines = lines
        self.gpu = choose_gpu(gpus, args.base_gpu_id)
        self.model = choose_model(args.model_path)
        self.children: list[Child] = []
        # SGLang asks nvidia-smi for the smallest GPU of the machine, whatever CUDA_VISIBLE_DEVICES says.
        self._smallest_mib = min(g.kind.memory_total_mib for g in gpus)
        self._load_s = float(state.read_options(directory)["load_seconds"])
        self._faults = faults_of(directory, self.gpu.number)
        self._crash_kind = self._faults.get("crash_at_start", {}).get("kind")
        self._taken_mib = 0
        self._nccl: socket.socket | None = None

    def load(self) -> Loaded:
        """Everything up to the ready line. Ends the process where the real one would fail."""
        args = self.args
        settle(args, self._gpu(free_gib=0), self.model, self.lines)
        self.lines.info(f"server_args={args!r}")
        self.lines.info("Using default HuggingFace chat template with detected content format: openai")
        self.children = start_children(self.directory, self.gpu.uuid, orphan="orphan" in self._faults)
        signal.signal(signal.SIGQUIT, lambda *_: child_failed_in_load(self.lines, self.children))
        free_gib = self._join_group()
        self._load_weights(self.model.weights_gib, "Qwen3_5ForConditionalGeneration", share=0.5)
        capacity = self._make_pools(free_gib)
        self._capture()
        if args.speculative_algorithm:
            self._load_draft(capacity)
        context_len = args.context_length or self.model.context_len
        self.lines.info(
            f"max_total_num_tokens={capacity.kv_tokens}, chunked_prefill_size={args.chunked_prefill_size}, "
            f"max_prefill_tokens={args.max_prefill_tokens}, max_running_requests={capacity.max_running_requests}, "
            f"context_len={context_len}, available_gpu_mem={self._free_gib():.2f} GB"
        )
        return Loaded(capacity, self._limits(capacity), context_len, self.model)

    def _gpu(self, *, free_gib: float) -> Gpu:
        return Gpu(
            name=self.gpu.kind.name,
            memory_mib=self._smallest_mib,
            free_gib=free_gib,
            compute_capability=self.gpu.kind.compute_capability,
        )

    def _join_group(self) -> float:
        """The process group and the CUDA context; free GiB after them."""
        self.lines.info("Init torch distributed begin.")
        self._pause(0.1)
        if self.args.nccl_port is not None:
            self._nccl = socket.socket()
            try:
                self._nccl.bind(("127.0.0.1", self.args.nccl_port))
                self._nccl.listen(1)
            except OSError:
                crash("nccl_port", self.lines, self.children, port=self.args.nccl_port)
        before = self._free_gib()
        self._take(self.gpu.kind.context_mib / 1024)
        free_gib = self._free_gib()
        used_gib = before - free_gib
        self.lines.info(f"Init torch distributed ends. elapsed={self._load_s * 0.1:.2f} s, mem usage={used_gib:.2f} GB")
        return free_gib

    def _load_weights(self, weights_gib: float, architecture: str, *, share: float) -> None:
        before = self._free_gib()
        self.lines.info(f"Load weight begin. avail mem={before:.2f} GB")
        if self._crash_kind == "killed":
            die_in_load(self.children)
        if self._crash_kind == "cuda_oom" or weights_gib > before:
            self._pause(share / 2)
            total_gib = self.gpu.kind.memory_total_mib / 1024
            crash("cuda_oom", self.lines, self.children, total_gib=total_gib, free_gib=self._free_gib())
        for shard in range(SHARDS + 1):
            bar = f"|{'█' * (shard * 10 // SHARDS):10}| {shard}/{SHARDS} [00:0{shard // 2}<00:0{(SHARDS - shard) // 2}"
            raw(f"\rLoading safetensors checkpoint shards: {100 * shard // SHARDS:3}% Completed {bar},  2.31it/s]")
            self._pause(share / (SHARDS + 1))
        raw("\n")
        time.sleep(float(self._faults.get("slow_start", {}).get("seconds", 0.0)))
        self._take(weights_gib)
        after = self._free_gib()
        self.lines.info(
            f"Load weight end. elapsed={self._load_s * share:.2f} s, type={architecture}, "
            f"avail mem={after:.2f} GB, mem usage={before - after:.2f} GB."
        )

    def _make_pools(self, free_gib: float) -> Capacity:
        fp8 = str(self.args.kv_cache_dtype).startswith("fp8")
        self.lines.info(f"Using KV cache dtype: torch.{'float8_e4m3fn' if fp8 else 'bfloat16'}")
        self._pause(0.1)
        capacity = None
        with contextlib.suppress(DoesNotFit):
            capacity = predict(self.model, self._gpu(free_gib=free_gib), __version__, sizing_flags(self.args))
        if capacity is None or self._crash_kind == "no_memory":
            crash("no_memory", self.lines, self.children, fraction=self.args.mem_fraction_static)
        self._take(capacity.pools_gib)
        line = (
            f"Mamba Cache is allocated. max_mamba_cache_size: {capacity.slots}, "
            f"conv_state size: {capacity.conv_gib:.2f}GB, ssm_state size: {capacity.ssm_gib:.2f}GB "
        )
        if self.args.speculative_algorithm:
            line += (
                f"intermediate_ssm_state_cache size: {capacity.intermediate_ssm_gib:.2f}GB "
                f"intermediate_conv_window_cache size: {capacity.intermediate_conv_gib:.2f}GB "
            )
        self.lines.info(line)
        self._write_kv_lines(capacity.kv_tokens, capacity.kv_each_gib)
        return capacity

    def _write_kv_lines(self, tokens: int, each_gib: float) -> None:
        sizes = f"K size: {each_gib:.2f} GB, V size: {each_gib:.2f} GB"
        self.lines.info(f"KV Cache is allocated. #tokens: {tokens}, {sizes}")
        self.lines.info(f"Memory pool end. avail mem={self._free_gib():.2f} GB")

    def _capture(self) -> None:
        if self._crash_kind == "sm120":
            crash("sm120", self.lines, self.children)
        if self.args.disable_cuda_graph:
            return
        before = self._free_gib()
        self.lines.info(f"Capture cuda graph begin. This can take up to several minutes. avail mem={before:.2f} GB")
        sizes = [size for size in GRAPH_BATCHES if size <= self.args.cuda_graph_max_bs]
        self.lines.info(f"Capture cuda graph bs {sizes[::-1]}")
        for done, size in enumerate(sizes):
            bar = f"{100 * done // len(sizes):3}%|{'█' * (10 * done // len(sizes)):10}| {done}/{len(sizes)}"
            raw(f"\rCapturing batches (bs={size} avail_mem={before:.2f} GB): {bar} [00:0{done}<00:05,  1.71it/s]")
            self._pause(0.3 / len(sizes))
        raw("\n")
        self._take(GRAPH_GIB)
        after = self._free_gib()
        self.lines.info(
            f"Capture cuda graph end. Time elapsed: {self._load_s * 0.3:.2f} s. "
            f"mem usage={before - after:.2f} GB. avail mem={after:.2f} GB."
        )

    def _load_draft(self, capacity: Capacity) -> None:
        """The MTP draft: in 0.5.11 it comes after the pools and lives in what the static fraction leaves."""
        self._load_weights(self.model.draft_gib, "Qwen3_5ForCausalLMMTP", share=0.05)
        each_gib = capacity.kv_each_gib * DRAFT_LAYERS / self.model.full_layers
        self._take(2 * each_gib)
        self._write_kv_lines(capacity.kv_tokens, each_gib)

    def _limits(self, capacity: Capacity) -> Limits:
        args = self.args
        speculation = bool(args.speculative_algorithm)
        accept_length = float(self._faults.get("poor_drafts", {}).get("accept_len", MTP_ACCEPT_LENGTH))
        return Limits(
            running=capacity.max_running_requests,
            slots=capacity.slots,
            held_per_request=max(1, capacity.slots_per_request - 1),
            kv_tokens=capacity.kv_tokens,
            prefill_tokens=min(args.max_prefill_tokens, args.chunked_prefill_size),
            log_interval=args.decode_log_interval,
            graph_batch=0 if args.disable_cuda_graph else args.cuda_graph_max_bs,
            queued=args.max_queued_requests,
            accept_length=min(accept_length, args.speculative_num_draft_tokens) if speculation else 1.0,
            draft_tokens=args.speculative_num_draft_tokens if speculation else 0,
        )

    def _pause(self, share: float) -> None:
        time.sleep(share * self._load_s)

    def _free_gib(self) -> float:
        return state.observe_free_mib(self.directory, self.gpu) / 1024

    def _take(self, gib: float) -> None:
        self._taken_mib += round(gib * 1024)
        put_memory(self.children[0], self._taken_mib)
