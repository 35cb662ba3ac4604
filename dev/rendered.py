"""Every shell script that the shipped inventories would send, on disk for shellcheck."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dev.programs import ROOT
from rackhand.bundle import render_bundle
from rackhand.facts import GpuFacts
from rackhand.inventory import Fleet, servers_of
from rackhand.load import load
from rackhand.plan.job import generate_argv
from rackhand.scripts import generate_values
from rackhand.template import render_script

SECRETS = ("RACKHAND_PVE_TOKEN", "RACKHAND_SGLANG_KEY")
GPUS = 8


def render_scripts(folder: Path) -> tuple[str, ...]:
    """Write them to `folder`; returns their paths."""
    written = []
    for inventory in sorted((ROOT / "inventory").glob("*.yaml")):
        for name, text in _scripts(load(inventory, dict.fromkeys(SECRETS, "secret"))):
            path = folder / f"{inventory.stem}-{name}"
            path.write_bytes(text)
            written.append(str(path))
    return tuple(written)


def _scripts(fleet: Fleet) -> Iterator[tuple[str, bytes]]:
    gpus = [GpuFacts(index, f"GPU-{index}", "any", 97887, 4) for index in range(GPUS)]
    for host in fleet.hosts:
        sources = {file.src: file.src.read_bytes() for file in host.files}
        for file in render_bundle(host, gpus, sources):
            if file.path.endswith(".sh"):
                yield f"{host.name}-{Path(file.path).name}", file.content
    for job in fleet.jobs:
        host = fleet.host(job.host)
        argv = generate_argv(host, job, servers_of(host, [gpu.index for gpu in gpus]))
        yield f"generate-{job.name}.sh", render_script("generate.sh.j2", generate_values(host, job, argv)).encode()
