"""The start-up, shutdown and trouble lines of SGLang 0.4.10 to 0.5.23, as data.

A line is a message without its `[time tags]` prefix. START_UP lines are known by how they begin; TROUBLE may stand
anywhere in a message, since tracebacks and errors of torch, triton and argparse have prefixes of their own.
"""

from __future__ import annotations

import re

from rackhand.engines.seen import Kind

START_UP: tuple[tuple[str, Kind, str], ...] = (
    ("server_args=", "lifecycle", "server_args"),
    ("Init torch distributed begin", "lifecycle", "init_begin"),
    ("Init torch distributed ends", "memory", "init_end"),
    ("Init parallel begin", "lifecycle", "init_begin"),
    ("Init parallel ends", "lifecycle", "init_end"),
    ("Memory baseline taken", "memory", "baseline"),
    ("Load weight begin", "memory", "weights_begin"),
    ("Load weight end", "memory", "weights_end"),
    ("Committed real weights", "memory", "weights_end"),
    ("Using KV cache dtype", "lifecycle", "kv_dtype"),
    ("Mamba Cache is allocated", "memory", "mamba_pool"),
    ("GDN ReplaySSM ring buffers allocated", "memory", "replayssm_pool"),
    ("KV Cache is allocated", "memory", "kv_pool"),
    ("KV Cache VA upper bound", "memory", "kv_pool"),
    ("Memory pool end", "memory", "pools_end"),
    ("Max running requests is reset to", "memory", "cap_by_speculation"),
    ("max_running_requests was reduced from the requested", "memory", "cap_by_kv"),
    ("max_running_requests is capped to", "memory", "cap_by_state"),
    ("Capturing batches", "lifecycle", "capture_progress"),
    ("Capture", "memory", "capture"),
    ("Loading safetensors checkpoint shards", "lifecycle", "load_progress"),
    ("Loading pt checkpoint shards", "lifecycle", "load_progress"),
    ("Multi-thread loading shards", "lifecycle", "load_progress"),
    ("Entering DeepGEMM JIT", "lifecycle", "jit"),
    ("Try DeepGEMM JIT", "lifecycle", "jit"),
    ("Running FlashInfer autotune", "lifecycle", "jit"),
    ("FlashInfer autotune completed", "lifecycle", "jit"),
    ("Loading JIT ops", "lifecycle", "jit"),
    ("Engine startup timings", "lifecycle", "startup_timings"),
    ("The server is fired up and ready to roll!", "lifecycle", "fired_up"),
    ("SIGTERM received", "lifecycle", "sigterm"),
    ("Gracefully exiting", "lifecycle", "draining"),
    ("kill_process_tree called", "lifecycle", "exiting"),
    ("Cache flushed successfully", "lifecycle", "flushed"),
    ("Cache not flushed", "lifecycle", "not_flushed"),
    ("INFO:     Started server process", "lifecycle", "uvicorn"),
    ("INFO:     Waiting for application", "lifecycle", "uvicorn"),
    ("INFO:     Application startup complete", "lifecycle", "uvicorn"),
    ("INFO:     Application shutdown complete", "lifecycle", "uvicorn"),
    ("INFO:     Uvicorn running on", "lifecycle", "listening"),
    ("INFO:     Shutting down", "lifecycle", "exiting"),
    ("INFO:     Finished server process", "lifecycle", "exiting"),
    ("KV cache pool is full. Retract requests", "retraction", ""),
)
"""(start of the message, kind, sign). Of two that fit, the first counts."""

START_UP_RE = re.compile("|".join(f"({re.escape(start)})" for start, _, _ in START_UP))
"""Group n stands for START_UP[n - 1]."""

TROUBLE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("watchdog", ("atchdog timeout (",)),
    ("exception", ("hit an exception: ",)),
    ("child_failed", ("Received sigquit from a child process", "SIGQUIT received.")),
    ("child_crashed", (" crashed with exit code ",)),
    ("died_in_load", ("scheduler died during initialization", "scheduler is dead")),
    ("kv_does_not_fit", ("Not enough memory. Please try to increase --mem-fraction-static",)),
    ("weights_leave_nothing", ("Loaded weights leave no GPU memory",)),
    ("state_does_not_fit", ("Not enough GPU memory for hybrid", "state cache is too small to serve any requests")),
    ("state_slots_exhausted", ("Not enough space for mamba", "Can not alloc mamba cache")),
    ("capture_failed", ("graph failed",)),
    ("cuda_oom", ("CUDA out of memory", "OutOfMemoryError")),
    (
        "allocator",
        (
            "Prefill out of memory",
            "Decode out of memory",
            "alloc_req_slots runs out of memory",
            "Out of memory even after retracting",
        ),
    ),
    ("gpus_unbalanced", ("The memory capacity is unbalanced",)),
    ("health_check_failed", ("Health check failed",)),
    ("warm_up_failed", ("Initialization failed. warmup error",)),
    ("port_in_use", ("address already in use", "EADDRINUSE")),
    (
        "bad_flag",
        (
            "error: unrecognized arguments",
            "error: ambiguous option",
            "error: argument ",
            "error: the following arguments",
        ),
    ),
    ("kernel_unsupported", ("out of resource: shared memory", "no kernel image is available")),
    ("schedulers_hang", ("Schedulers still alive",)),
    ("traceback", ("Traceback (most recent call last)",)),
)
"""(sign, what stands somewhere in the message). Of two that fit, the first counts."""

ANY_ERROR_RE = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception): ")
"""An exception of any other kind, at the start of a message: sign `error`."""

NO_TROUBLE = ("Ignore import error", "Testing retraction", "INFO:     ")
"""Messages that begin so are none, whatever else they say: access lines hold URLs that users chose."""
