"""Host, facts and server → the launch that `capacity` predicts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rackhand.capacity.gpus import CONTEXT_MIB, kind_of
from rackhand.capacity.outlook import Launch
from rackhand.capacity.rate import Lengths
from rackhand.capacity.read import FlagValue
from rackhand.capacity.shapes import Gpu, ModelShape
from rackhand.contract.servers import MEMORY_TOLERANCE_MIB
from rackhand.facts import Facts, GpuFacts
from rackhand.inventory import Host

DEFAULT_LENGTHS = Lengths(prompt=105, output=2068)
"""Mean prompt and output tokens where no job says its own: a thinking model's answers to mixed prompts."""


def plain_flags(args: Mapping[str, Any]) -> dict[str, FlagValue]:
    """Flags with one value; False leaves a flag out, a list of words sizes nothing."""
    return {name: value for name, value in args.items() if value is not False and not isinstance(value, tuple)}


def launch_of(host: Host, gpu: Gpu, model: ModelShape, *, version: str, args: Mapping[str, Any]) -> Launch:
    """`args` are the server's, with this call's overrides."""
    plain = {name: value for name, value in host.env.variables.items() if isinstance(value, str)}
    return Launch(model=model, gpu=gpu, kind=kind_of(gpu.name), version=version, flags=plain_flags(args), environ=plain)


def seen_gpu(facts: Facts, gpu: GpuFacts) -> Gpu:
    """The GPU as SGLang will find it: what a server of ours uses there counts as free, what others use doesn't."""
    kind = kind_of(gpu.name)
    total = gpu.memory_total_mib or (kind.memory_mib if kind else 0)
    overhead = kind.memory_mib - kind.idle_free_gib * 1024 if kind else CONTEXT_MIB
    totals = [g.memory_total_mib for g in facts.gpus if g.memory_total_mib]
    return Gpu(
        name=gpu.name,
        memory_mib=min(totals, default=total),
        free_gib=max(0.0, total - overhead - foreign_mib(facts, gpu)) / 1024,
        compute_capability=kind.compute_capability if kind else "",
    )


def foreign_mib(facts: Facts, gpu: GpuFacts) -> int:
    """MiB in use on a GPU by somebody else: above its idle baseline, where no server of ours runs."""
    state = facts.servers
    if any(own.alive and own.record.gpu == gpu.index for own in state.own):
        return 0
    used = (gpu.memory_used_mib or 0) - state.baseline_mib.get(gpu.uuid, 0)
    return used if used > MEMORY_TOLERANCE_MIB else 0


def lengths_of(facts: Facts | None) -> tuple[Lengths, str]:
    """The mean tokens of the job that has finished most prompts there, and where they are from."""
    best = max(_progress(facts), key=lambda done: done[0], default=None)
    if best is None:
        return DEFAULT_LENGTHS, "assumed: no job has finished a prompt there; set --lengths"
    completed, prompt, output, where = best
    return Lengths(prompt=prompt, output=output), f"{completed:,} answers in {where}"


def _progress(facts: Facts | None) -> Iterable[tuple[int, float, float, str]]:
    for job in facts.jobs if facts else ():
        done = job.progress
        if done is not None and done.completed and done.avg_output_tokens:
            yield done.completed, done.total_input_tokens / done.completed, done.avg_output_tokens, job.output
