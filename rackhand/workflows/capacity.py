"""capacity: what SGLang will do with the inventory's servers, or with a model that isn't in one. Changes nothing."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rackhand.arguments import MANAGED_FLAGS, flag_name, looks_secret, scalar_value
from rackhand.capacity.errors import UnknownModel
from rackhand.capacity.flag_names import IN_BOTH, ONLY_0_5_11, ONLY_0_5_23
from rackhand.capacity.forecast import MOST_TRIALS, Forecast, foresee
from rackhand.capacity.gpus import CONTEXT_MIB, KINDS, GpuKind, kind_of
from rackhand.capacity.outlook import Launch
from rackhand.capacity.rate import Lengths
from rackhand.capacity.read import SHORT, FlagValue
from rackhand.capacity.shapes import Gpu, ModelShape
from rackhand.errors import PreconditionError, UsageError, nearest
from rackhand.facts import Facts
from rackhand.inventory import Fleet, Host, ServerSpec, expand, servers_of
from rackhand.launch import DEFAULT_LENGTHS, launch_of, lengths_of, plain_flags, seen_gpu
from rackhand.model_files import ModelFiles, model_files_argv, parse_model_files, shape_of
from rackhand.observe import observe
from rackhand.plan.gpus import check_listed, possible_gpus
from rackhand.report import Report
from rackhand.workflows import fleet as hosts_at_work
from rackhand.workflows.fleet import Roads, Say, Task

ALIKE = 0.015
KNOWN_FLAGS = IN_BOTH | ONLY_0_5_11 | ONLY_0_5_23 | SHORT.keys() | set(SHORT.values())
"""Of every release that was read."""


@dataclass(frozen=True, slots=True)
class Question:
    """What the operator asked. `gpu` None: the hosts' own GPUs; GiB are measured values that win over what is found."""

    server: str | None = None
    sets: Mapping[str, FlagValue] = field(default_factory=dict)
    what_if: Mapping[str, tuple[FlagValue, ...]] = field(default_factory=dict)
    kind: GpuKind | None = None
    gpu_free_gib: float | None = None
    files: ModelFiles | None = None
    model: str = ""
    weights_gib: float | None = None
    draft_gib: float | None = None
    version: str | None = None
    lengths: Lengths | None = None


def parse_question(**given: Any) -> Question:
    """The command line as a question: `sets`, `what_if` (lists of words), `gpu`, `model_config`, `lengths` (texts) and
    the fields of Question by their names; None means "not given". UsageError says which word is wrong.
    """
    found = {name: value for name, value in given.items() if value is not None}
    for name in ("gpu_free_gib", "weights_gib", "draft_gib"):
        if name in found and not 0 < found[name] < 100_000:
            raise UsageError(f"--{name.replace('_', '-')} {found[name]} can't be", hint="write GiB, e.g. 94.14")
    if "sets" in found:
        found["sets"] = {name: values[0] for name, values in _pairs(found["sets"], "--set").items()}
    if "what_if" in found:
        found["what_if"] = _pairs(found["what_if"], "--what-if", several=True)
        tried = math.prod(map(len, found["what_if"].values()))
        if tried > MOST_TRIALS:
            raise UsageError(f"--what-if: {tried:,} combinations", hint=f"try at most {MOST_TRIALS} at once")
    if "gpu" in found:
        found["kind"] = _kind(found.pop("gpu"))
    if "lengths" in found:
        found["lengths"] = _lengths(found["lengths"])
    if "model_config" in found:
        path = Path(found.pop("model_config"))
        found |= {"files": _read_config(path), "model": _model_name(path)}
    return Question(**found)


def forecast_file(question: Question) -> Forecast:
    """Without an inventory. UsageError for what is missing."""
    if question.files is None:
        raise UsageError("no model", hint="give --model-config FILE, or --inventory NAME")
    if question.version is None:
        raise UsageError("no --engine-version", hint="write --engine-version 0.5.11")
    gpu, kind = _named_gpu(question)
    model = _shape(question.model, question.files, question)
    launch = Launch(model=model, gpu=gpu, kind=kind, version=question.version, flags=plain_flags(question.sets))
    return _foresee(question.model, launch, question, facts=None)


def forecast_fleet(
    fleet: Fleet, hosts: Sequence[Host], question: Question, *, say: Say, roads: Roads | None = None
) -> tuple[list[Forecast], Report]:
    """One forecast for each kind of server: same host, specification and GPU. With a GPU given no host is asked."""
    if question.kind is not None or question.gpu_free_gib is not None:
        found = [f for host in hosts for f in _named_forecasts(host, question)]
        if question.server is not None and not found:
            raise UsageError(f"no server {question.server!r}", where=str(fleet.path), hint=_server_names(hosts))
        return found, Report("capacity", ())
    forecasts: dict[str, list[Forecast]] = {}
    wanted = [host for host in hosts if _may_be_of(host, question.server)]
    if not wanted:
        raise UsageError(f"no server {question.server!r}", where=str(fleet.path), hint=_server_names(hosts))

    def work(task: Task) -> None:
        jobs = [job.output for job in fleet.jobs_on(task.host)]
        forecasts[task.host.name] = _seen_forecasts(task, jobs, question)

    report = hosts_at_work.run("capacity", wanted, work, say=say, roads=roads)
    found = [f for host in wanted for f in forecasts.get(host.name, [])]
    if question.server is not None and not found and not report.exit_code:
        raise UsageError(f"no server {question.server!r}", where=str(fleet.path), hint=_server_names(hosts))
    return found, report


def _seen_forecasts(task: Task, outputs: list[str], question: Question) -> list[Forecast]:
    host = task.host
    models = {spec.model: f"model {number}" for number, spec in enumerate(host.servers)}
    task.say("looking at GPUs, servers and models")
    facts = observe(
        task.session,
        host,
        commands={name: model_files_argv(model) for model, name in models.items()},
        servers=True,
        outputs=outputs,
    )
    if not facts.gpus:
        raise PreconditionError(facts.gpus_problem, where=host.where, hint="look at the driver, or give --gpu NAME")
    check_listed(host, facts)
    gpus = {gpu.index: seen for gpu in facts.gpus if not gpu.fault and (seen := seen_gpu(facts, gpu)).memory_mib}
    task.facts.update(_unread(facts, gpus))
    if not gpus:
        what = "; ".join(f"{name} {text}" for name, text in task.facts.items())
        raise PreconditionError(what, where=host.where, hint="look at the driver, or give --gpu NAME")
    groups: dict[tuple[int, str, int], tuple[list[int], Launch]] = {}
    for server in servers_of(host, possible_gpus(host, facts)):
        if server.gpu not in gpus or not _is_named(question.server, host, server.gpu, server.session):
            continue
        gpu = gpus[server.gpu]
        files = question.files or parse_model_files(facts.commands.get(models[server.spec.model]))
        launch = _launch(host, server.spec, gpu, files, question)
        key = (id(server.spec), gpu.name, round(gpu.free_gib * 4))
        groups.setdefault(key, ([], launch))[0].append(server.gpu)
    return [
        _foresee(f"{host.where} GPU {_spans(indices)}", launch, question, facts=facts)
        for indices, launch in groups.values()
    ]


def _unread(facts: Facts, sized: Mapping[int, Gpu]) -> dict[str, str]:
    """What stands in the place of a forecast, or below it."""
    found = {}
    for gpu in facts.gpus:
        if gpu.index not in sized:
            found[f"GPU {gpu.index}"] = f"unknown: nvidia-smi says {gpu.fault or gpu.unread}"
        elif gpu.unread:
            found[f"GPU {gpu.index}"] = f"memory unknown ({gpu.unread}), taken as unused"
    return found | ({"GPUs": "; ".join(facts.gpus_lost)} if facts.gpus_lost else {})


def _named_forecasts(host: Host, question: Question) -> list[Forecast]:
    (gpu, kind), found = _named_gpu(question), []
    for spec in host.servers:
        servers = [server for server in expand(host, range(8)) if server.spec is spec]
        indices = [s.gpu for s in servers if _is_named(question.server, host, s.gpu, s.session)]
        if indices:
            launch = replace(_launch(host, spec, gpu, question.files, question), kind=kind)
            found.append(_foresee(f"{host.where} {spec.model}", launch, question, facts=None))
    return found


def _launch(host: Host, spec: ServerSpec, gpu: Gpu, files: ModelFiles | None, question: Question) -> Launch:
    if spec.engine != "sglang":
        raise PreconditionError(f"capacity knows sglang, not {spec.engine}", where=host.where)
    version = question.version or spec.version
    if version is None:
        hint = f"set hosts.{host.name}.servers.version, or give --engine-version"
        raise PreconditionError("no version of SGLang in the inventory", where=host.where, hint=hint)
    model = _shape(spec.model, files, question, where=host.where)
    return launch_of(host, gpu, model, version=version, args={**spec.args, **question.sets})


def _shape(name: str, files: ModelFiles | None, question: Question, where: str = "") -> ModelShape:
    try:
        return shape_of(name, files, weights_gib=question.weights_gib, draft_gib=question.draft_gib)
    except UnknownModel as error:
        raise UsageError(str(error), where=where) from None


def _foresee(where: str, launch: Launch, question: Question, *, facts: Facts | None) -> Forecast:
    lengths, source = (question.lengths, "as given") if question.lengths else lengths_of(facts)
    totals = tuple(gpu.memory_total_mib or 0 for gpu in facts.gpus) if facts else ()
    return foresee(where, launch, lengths=lengths, lengths_from=source, what_if=question.what_if, gpu_totals_mib=totals)


def _named_gpu(question: Question) -> tuple[Gpu, GpuKind | None]:
    """Of --gpu and --gpu-free-gib; by free memory alone the first kind with about as much of it, and it is said."""
    if question.kind is not None:
        return question.kind.gpu(question.gpu_free_gib), question.kind
    free_gib = question.gpu_free_gib
    if free_gib is None:
        raise UsageError("no GPU", hint=f"give --gpu-free-gib, or --gpu: {', '.join(k.key for k in KINDS)}")
    alike = next((kind for kind in KINDS if abs(kind.idle_free_gib / free_gib - 1) < ALIKE), None)
    if alike is not None:
        return replace(alike.gpu(free_gib), name=f"{alike.key} (by its memory)"), alike
    name = f"a GPU with {free_gib:g} GiB free"
    return Gpu(
        name=name, memory_mib=round(free_gib * 1024) + CONTEXT_MIB, free_gib=free_gib, compute_capability=""
    ), None


def _kind(name: str) -> GpuKind:
    kind = kind_of(name)
    if kind is None:
        raise UsageError(f"no GPU {name!r} in the table", hint=nearest(name, [k.key for k in KINDS]))
    return kind


def _pairs(words: Sequence[str], option: str, *, several: bool = False) -> dict[str, tuple[FlagValue, ...]]:
    found: dict[str, tuple[FlagValue, ...]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        try:
            flag = flag_name(name)
        except ValueError as error:
            raise UsageError(f"{option}: {error}", hint=f"write {option} FLAG=VALUE") from None
        if flag in MANAGED_FLAGS or looks_secret(flag, text):
            raise UsageError(f"{option}: --{flag} has no place here", hint="it changes no size, and may be a secret")
        if flag not in KNOWN_FLAGS:
            what = f"{option}: SGLang has no flag --{flag}"
            close = get_close_matches(flag, KNOWN_FLAGS, n=1)
            raise UsageError(what, hint=f"did you mean {close[0]}?" if close else "names are those of its --help")
        if flag in found and not several:
            raise UsageError(f"{option} {flag} is given twice")
        values = [value.strip() for value in (text.split(",") if several else (text,))]
        if not equals or not all(values):
            raise UsageError(f"{option} {word!r} has no value", hint=f"write {option} FLAG=VALUE")
        found[flag] = (*found.get(flag, ()), *(scalar_value(value) for value in values))
    return found


def _lengths(text: str) -> Lengths:
    match = re.fullmatch(r"\s*(\d{1,7})\s*,\s*(\d{1,7})\s*", text, re.ASCII)
    if not match or not int(match[2]):
        raise UsageError(f"--lengths {text!r} isn't PROMPT,OUTPUT", hint="write mean tokens, e.g. --lengths 500,2000")
    return replace(DEFAULT_LENGTHS, prompt=float(match[1]), output=float(match[2]))


def _read_config(path: Path) -> ModelFiles:
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        sizes = [shard.stat().st_size for shard in file.parent.glob("*.safetensors")]
    except OSError as error:
        raise UsageError(f"can't be read: {error.strerror}", where=str(file), hint="correct --model-config") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"is no JSON: {error}", where=str(file), hint="give the model's config.json") from None
    if not isinstance(config, dict):
        raise UsageError("holds no JSON object", where=str(file), hint="give the model's config.json")
    return ModelFiles(config, sum(sizes) / 2**30)


def _model_name(path: Path) -> str:
    return path.resolve().parent.name if path.name == "config.json" else path.stem


def _may_be_of(host: Host, name: str | None) -> bool:
    return any(_is_named(name, host, s.gpu, s.session) for s in expand(host, range(64)))


def _is_named(name: str | None, host: Host, gpu: int, session: str) -> bool:
    names = (host.name, host.where, session, f"{host.name}/{gpu}", f"{host.name}/gpu{gpu}", f"{host.name}/{session}")
    return name is None or name in names


def _server_names(hosts: Sequence[Host]) -> str:
    return f"name a host, host/GPU or session, e.g. {', '.join(f'{host.name}, {host.name}/0' for host in hosts[:2])}"


def _spans(indices: Sequence[int]) -> str:
    """0-3, 5 for 0, 1, 2, 3, 5."""
    found: list[list[int]] = []
    for index in sorted(indices):
        if found and found[-1][-1] == index - 1:
            found[-1].append(index)
        else:
            found.append([index])
    return ", ".join(str(s[0]) if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in found)
