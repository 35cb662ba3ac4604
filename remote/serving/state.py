"""What is true of the servers now: own ones, strays, baselines, wishes. Reads only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from rackhand.contract import from_json
from rackhand.contract.servers import (
    ACTIVE,
    Load,
    OwnServer,
    Process,
    ServerRecord,
    ServersState,
    Stray,
    secrets_dir,
)
from rackhand.engines import Engine, engine
from remote import processes
from remote.serving.ask import ask, read_api_key
from remote.serving.gpu_memory import Baselines, observe_gpus
from remote.serving.journal import read_json
from remote.serving.turns import observe_turns
from remote.serving.wishes import read_wishes

LOAD_TIMEOUT_S = 3.0


def observe_servers(home: str, *, engine_name: str = "sglang") -> ServersState:
    """Everything in one look; a server that doesn't answer within LOAD_TIMEOUT_S has no load."""
    base, kind = Path(home), engine(engine_name)
    wishes = read_wishes(base)
    own = [_own(record, wish_of(wishes, record.port)) for record in read_records(base)]
    if own:
        key = read_api_key(Path(secrets_dir(home)))
        with ThreadPoolExecutor(len(own)) as pool:
            loads = list(pool.map(lambda server: observe_load(kind, server, key), own))
        own = [replace(s, load=load) for s, load in zip(own, loads, strict=True)]
    ours = {p.pid for server in own for p in server.living}
    return ServersState(
        own=tuple(own),
        strays=find_strays(kind, ours),
        baseline_mib=Baselines(base).read(),
        wishes=wishes,
        turns=observe_turns(base),
    )


def read_records(home: Path) -> tuple[ServerRecord, ...]:
    found = (read_record(path) for path in (home / "run").glob("gpu*.json"))
    return tuple(sorted((record for record in found if record is not None), key=lambda record: record.gpu))


def read_record(path: Path) -> ServerRecord | None:
    try:
        return from_json(ServerRecord, read_json(path))
    except ValueError:
        return None


def living_of(record: ServerRecord) -> tuple[Process, ...]:
    """The main process, first, and every process it ever started that lives; empty when all are gone."""
    main = Process(record.pid, record.start_ticks)
    known = {p for p in record.children if processes.lives(p)}
    if not processes.lives(main):
        return tuple(sorted(known, key=lambda p: p.pid))
    known |= set(processes.descendants(main.pid))
    return (main, *sorted(known, key=lambda p: p.pid))


def find_strays(kind: Engine, ours: set[int]) -> tuple[Stray, ...]:
    """Main processes that aren't ours, and children without such a parent (left over under PID 1)."""
    found = {pid: words for pid in processes.pids() if kind.is_server(words := processes.cmdline(pid))}
    foreign = {pid: words for pid, words in found.items() if pid not in ours and pid != os.getpid()}
    uuids = {str(gpu.index): gpu.uuid for gpu in observe_gpus()} if foreign else {}
    strays = []
    for pid, words in sorted(foreign.items()):
        process, main = processes.identify(pid), kind.is_main(words)
        if process is None or (not main and _has_foreign_parent(pid, foreign)):
            continue
        seen = (processes.environment(pid, "CUDA_VISIBLE_DEVICES") or "").split(",")[0]
        strays.append(
            Stray(
                process,
                command=" ".join(_without_keys(words))[:200],
                gpu_uuid=seen if seen.startswith("GPU-") else uuids.get(seen or _base_gpu(words)),
                port=_number_after(words, "--port") if main else None,
                orphan=not main,
            )
        )
    return tuple(strays)


def observe_load(kind: Engine, server: OwnServer, key: str | None) -> Load | None:
    if not server.alive:
        return None
    url = f"http://127.0.0.1:{server.record.port}"
    for path in kind.load_paths:
        answer = ask(url, path, timeout_s=LOAD_TIMEOUT_S, key=key)
        if answer.status == 200 and (load := kind.parse_load(path, answer.text)) is not None:
            return load
        if answer.status == 0:
            return None
    return None


def _own(record: ServerRecord, wish: str) -> OwnServer:
    living = living_of(record)
    alive = any(p.pid == record.pid for p in living)
    return OwnServer(record, alive, living, cause="" if alive else cause_of(record, wish))


def cause_of(record: ServerRecord, wish: str) -> str:
    """Why a server that is gone ended; "" when it was asked to.

    A container that stops asks everything in it to end: that is told from a stop by hand by the wish, which is still
    active, and by the container's start, which came later.
    """
    started = processes.container_started()
    if wish == ACTIVE and started is not None and started > (record.ended or record.started):
        return "it ended with the container, which was stopped while it ran"
    if record.asked:
        return ""
    if record.cause or record.exit_status is not None:
        return record.cause or f"it ended with status {record.exit_status}"
    return "it and its supervisor were killed"


def wish_of(wishes: Mapping[str, str], port: int) -> str:
    """A server that nobody named is wanted."""
    return wishes.get(f"http://127.0.0.1:{port}", ACTIVE)


def _has_foreign_parent(pid: int, foreign: dict[int, tuple[str, ...]]) -> bool:
    above = processes.parent(pid)
    while above is not None and above > 1:
        if above in foreign:
            return True
        above = processes.parent(above)
    return False


def _base_gpu(words: tuple[str, ...]) -> str:
    return str(_number_after(words, "--base-gpu-id") or 0)


def _number_after(words: tuple[str, ...], flag: str) -> int | None:
    for word, following in zip(words, (*words[1:], ""), strict=True):
        if word == flag and following.isdigit():
            return int(following)
        if word.startswith(f"{flag}=") and word.partition("=")[2].isdigit():
            return int(word.partition("=")[2])
    return None


def _without_keys(words: tuple[str, ...]) -> list[str]:
    """A server that someone started by hand may carry its API key in its argv."""
    out, hide = [], False
    for word in words:
        name = word.partition("=")[0]
        keyed = name in ("--api-key", "--admin-api-key")
        out.append("<secret>" if hide else f"{name}=<secret>" if keyed and "=" in word else word)
        hide = keyed and "=" not in word
    return out
