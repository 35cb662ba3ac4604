"""Call verb `probe`: one real generation from each server, and the flags that the installed engine knows."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, BinaryIO

from rackhand.contract import from_json, to_json
from rackhand.contract.servers import Capacity, FlagFacts, Heartbeat, Load, Probe, ProbeRequest, secrets_dir
from rackhand.engines import Engine, engine
from remote.serving.ask import ask, read_api_key
from remote.serving.journal import read_json, replace_json

HEARTBEAT_S = 5.0
HELP_TIMEOUT_S = 180.0
"""SGLang imports torch before it prints its help: half a minute on a cold disk."""
_MARKER = "rackhand-environment-ends-here"


def call(data: Any, emit: Callable[[dict[str, Any]], None], _body: BinaryIO) -> None:
    """Events: one `flags` for each interpreter, one `probe` for each URL, in the order they are known."""
    request = from_json(ProbeRequest, data)
    kind, key = engine(request.engine), read_api_key(Path(secrets_dir(request.home)))
    pool = ThreadPoolExecutor(max(1, len(request.urls) + len(request.pythons)))
    jobs: set[Future[Probe | FlagFacts]] = {pool.submit(observe_flags, kind, p, request) for p in request.pythons}
    jobs |= {pool.submit(observe_server, kind, url, key, request.timeout_s) for url in request.urls}
    try:
        while jobs:
            done, jobs = wait(jobs, timeout=HEARTBEAT_S, return_when="FIRST_COMPLETED")
            for job in done:
                emit(to_json(job.result()))
            if not done:
                emit(to_json(Heartbeat(f"{len(jobs)} answers")))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def observe_server(kind: Engine, url: str, key: str | None, timeout_s: float) -> Probe:
    """Healthy means: it generated tokens just now. A health endpoint's 200 alone proves nothing."""
    began = time.monotonic()
    answer = ask(url, kind.generation_path, timeout_s=timeout_s, key=key, body=kind.generation_request())
    seconds = round(time.monotonic() - began, 2)
    if answer.status != 200:
        what = answer.text if answer.status == 0 or answer.moved else f"HTTP {answer.status}: {answer.text[:200]}"
        return Probe(url, healthy=False, seconds=seconds, text=what)
    generation = kind.parse_generation(answer.text)
    if generation.trouble:
        return Probe(url, healthy=False, seconds=seconds, text=generation.trouble)
    return Probe(url, healthy=True, seconds=seconds, load=observe_capacity(kind, url, key))


def observe_capacity(kind: Engine, url: str, key: str | None) -> Load | None:
    """From the first endpoint that tells; figures that one leaves out are taken from the next."""
    best: Load | None = None
    for path in kind.load_paths:
        answer = ask(url, path, timeout_s=10.0, key=key)
        load = kind.parse_load(path, answer.text) if answer.status == 200 else None
        best = merge_loads(best, load)
        if best is not None and best.capacity is not None and best.capacity.mamba_slots is not None:
            break
    return best


def merge_loads(first: Load | None, second: Load | None) -> Load | None:
    """`first`, with what it lacks of its capacity from `second`."""
    if first is None or second is None:
        return first or second
    a, b = first.capacity, second.capacity
    if a is None or b is None:
        return Load(first.running, first.queued, a or b)
    slots = b.mamba_slots if a.mamba_slots is None else a.mamba_slots
    tokens = b.kv_tokens if a.kv_tokens is None else a.kv_tokens
    return Load(first.running, first.queued, Capacity(a.max_running, tokens, slots, a.source))


def observe_flags(kind: Engine, python: str, request: ProbeRequest) -> FlagFacts:
    """From run/flags-HASH.json when the installed version is the one it was made for, else from --help."""
    environment = source_environment(request.env_script)
    version, problem = _run(kind.version_argv(python), environment, 60.0)
    version = version.strip().splitlines()[-1] if version.strip() else ""
    if problem or not version:
        return FlagFacts(python, version, error=problem or f"{python} knows no {kind.name}")
    name = hashlib.sha256(python.encode()).hexdigest()[:8]
    path = Path(request.home) / "run" / f"flags-{name}.json"
    cached = _cached(path, python, version)
    if cached is not None:
        return cached
    text, problem = _run(kind.help_argv(python), environment, HELP_TIMEOUT_S)
    options, bare = kind.parse_help(text)
    if problem or not options:
        return FlagFacts(python, version, error=problem or f"{kind.name} {version} prints no options")
    facts = FlagFacts(python, version, options, bare)
    replace_json(path, facts)
    return facts


def source_environment(script: str) -> dict[str, str]:
    """The environment after sourcing `script`; this process's own when there is none or it fails."""
    if not script or not Path(script).exists():
        return dict(os.environ)
    shell = f'. "$1" >/dev/null 2>&1; printf "%s\\0" "{_MARKER}"; env -0'
    argv = ("/bin/bash", "-c", shell, "bash", script)
    try:
        done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return dict(os.environ)
    _, _, listed = done.stdout.partition(_MARKER.encode() + b"\0")
    pairs = (entry.decode("utf-8", "surrogateescape").partition("=") for entry in listed.split(b"\0") if entry)
    return {name: value for name, _, value in pairs} or dict(os.environ)


def _cached(path: Path, python: str, version: str) -> FlagFacts | None:
    try:
        facts = from_json(FlagFacts, read_json(path))
    except ValueError:
        return None
    return facts if (facts.python, facts.version) == (python, version) and facts.options else None


def _run(argv: tuple[str, ...], environment: dict[str, str], timeout_s: float) -> tuple[str, str]:
    """Standard output, and what went wrong (empty when nothing did)."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environment,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return "", f"{' '.join(argv[:3])}: no end within {timeout_s:.0f} s"
    except OSError as error:
        return "", f"{argv[0]}: {error.strerror}"
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return done.stdout, f"{' '.join(argv[:3])}: exit {done.returncode}: {last[:300]}"
    return done.stdout, ""
