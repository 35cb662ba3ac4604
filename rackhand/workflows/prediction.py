"""After a start: what was predicted against what the servers say, told in the report and kept in the history."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from rackhand.arguments import gpu_ranges
from rackhand.capacity.compare import Difference, Effective, compare_effective
from rackhand.capacity.errors import CapacityError, DoesNotFit, FlagsRefused, NotCovered
from rackhand.capacity.outlook import Launch, look_ahead
from rackhand.capacity.shapes import known_model
from rackhand.errors import PreconditionError, RackhandError
from rackhand.facts import Facts
from rackhand.inventory import Server
from rackhand.launch import DEFAULT_LENGTHS, launch_of, seen_gpu
from rackhand.model_files import ModelFiles, model_files_argv, parse_model_files, shape_of
from rackhand.observe import observe
from rackhand.place import COMMAND
from rackhand.predictions import Compared, history_path, put_compared
from rackhand.workflows.fleet import Task


def compare_started(task: Task, facts: Facts, servers: Sequence[Server], versions: Mapping[str, str]) -> None:
    """Compare the servers that run now with their predictions. `versions` of SGLang by interpreter.

    Never fails a start: what can't be predicted or kept is told, and the servers stay as they are.
    """
    try:
        started = _started(task, facts, servers, versions)
        rows = [_compare(task, facts, one) for one in started]
    except (CapacityError, RackhandError) as error:
        task.facts["prediction"] = f"none: {error}"
        return
    if not rows:
        return
    task.facts["capacity"] = _summary(rows)
    try:
        put_compared(history_path(os.environ), rows)
    except RackhandError as error:
        task.facts["history"] = str(error)


def check_possible(
    task: Task, facts: Facts, servers: Sequence[Server], versions: Mapping[str, str], *, adopt: bool
) -> None:
    """PreconditionError where it is known that SGLang would not start with these flags, before anything is stopped.

    With `adopt` what others use on a GPU of `servers` is given back first. What can't be predicted stops nothing.
    """
    problems: dict[str, list[int]] = {}
    with suppress(RackhandError):
        files = _model_files(task, servers)
        for server in servers:
            if problem := _problem(task, facts, server, files, versions, adopt=adopt):
                problems.setdefault(problem, []).append(server.gpu)
    if problems:
        told = "; ".join(f"GPU {gpu_ranges(gpus)}: {problem}" for problem, gpus in problems.items())
        hint = f"nothing was stopped; {COMMAND} capacity with the same --set shows what fits"
        raise PreconditionError(f"SGLang would not start: {told}", where=task.host.where, hint=hint)


def _problem(
    task: Task,
    facts: Facts,
    server: Server,
    files: Mapping[str, ModelFiles | None],
    versions: Mapping[str, str],
    *,
    adopt: bool,
) -> str:
    gpu = next(gpu for gpu in facts.gpus if gpu.index == server.gpu)
    seen = seen_gpu(facts, dataclasses.replace(gpu, memory_used_mib=None) if adopt else gpu)
    if not seen.memory_mib:
        return ""
    version = versions.get(server.spec.python) or server.spec.version or ""
    try:
        model = shape_of(server.spec.model, files.get(server.spec.model))
        look_ahead(launch_of(task.host, seen, model, version=version, args=server.args), DEFAULT_LENGTHS)
    except NotCovered:
        return ""
    except (DoesNotFit, FlagsRefused) as error:
        return str(error)
    except CapacityError:
        return ""
    return ""


@dataclasses.dataclass(frozen=True, slots=True)
class _Started:
    server: Server
    said: Effective
    files: ModelFiles | None
    version: str


def _started(task: Task, facts: Facts, servers: Sequence[Server], versions: Mapping[str, str]) -> list[_Started]:
    loads = {own.record.gpu: own.load for own in facts.servers.own if own.alive and own.load is not None}
    found = {gpu: load.capacity for gpu, load in loads.items() if load.capacity is not None}
    seen = {gpu.index for gpu in facts.gpus}
    running = [server for server in servers if server.gpu in found and server.gpu in seen]
    files = _model_files(task, running)
    return [
        _Started(
            server,
            Effective(
                max_running_requests=found[server.gpu].max_running,
                kv_tokens=found[server.gpu].kv_tokens,
                slots=found[server.gpu].mamba_slots,
            ),
            files.get(server.spec.model),
            versions.get(server.spec.python) or server.spec.version or "",
        )
        for server in running
    ]


def _model_files(task: Task, servers: Sequence[Server]) -> dict[str, ModelFiles | None]:
    """Asks the container only for models that aren't known by name."""
    unknown = sorted({server.spec.model for server in servers if known_model(server.spec.model) is None})
    if not unknown:
        return {}
    commands = {f"model {number}": model_files_argv(model) for number, model in enumerate(unknown)}
    facts = observe(task.session, task.host, commands=commands)
    return {model: parse_model_files(facts.commands.get(f"model {number}")) for number, model in enumerate(unknown)}


def _compare(task: Task, facts: Facts, one: _Started) -> Compared:
    server = one.server
    gpu = next(gpu for gpu in facts.gpus if gpu.index == server.gpu)
    model = shape_of(server.spec.model, one.files)
    launch = launch_of(task.host, seen_gpu(facts, gpu), model, version=one.version, args=server.args)
    outlook = look_ahead(launch, DEFAULT_LENGTHS)
    differences = compare_effective(outlook.capacity, one.said)
    if differences:
        task.facts[f"GPU {server.gpu} differs"] = _told(differences)
    return Compared(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        host=task.host.where,
        gpu=server.gpu,
        differs=bool(differences),
        inputs=_inputs(launch),
        predicted=outlook.as_json(),
        effective=dataclasses.asdict(one.said),
    )


def _inputs(launch: Launch) -> dict[str, object]:
    return {
        "model": dataclasses.asdict(launch.model),
        "gpu": dataclasses.asdict(launch.gpu),
        "version": launch.version,
        "flags": dict(launch.flags),
    }


def _told(differences: Sequence[Difference]) -> str:
    return "; ".join(map(str, differences))


def _summary(rows: Sequence[Compared]) -> str:
    off = sum(row.differs for row in rows)
    return "as predicted" if not off else f"{off} of {len(rows)} servers differ by more than 3 % from the prediction"
