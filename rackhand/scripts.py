"""The shell scripts that start servers and generator, by their absolute path in the container. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rackhand.facts import GpuFacts
from rackhand.inventory import Host, Job


def serve_scripts(host: Host, gpus: Sequence[GpuFacts]) -> Mapping[str, str]:  # noqa: ARG001
    """{home}/serve-gpuN.sh for every server of the host."""
    return {}


def generate_scripts(host: Host, jobs: Sequence[Job]) -> Mapping[str, str]:  # noqa: ARG001
    """{home}/generate-JOB.sh for every job on the host."""
    return {}
