"""How servers and the generator are run in the container: command lines, paths, and the scripts that start them. Pure.

The generator's script depends on what is running and done: resume writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rackhand.command import Argv
from rackhand.contract.job import EXIT_FILE
from rackhand.contract.servers import argv_digest
from rackhand.engines import Launch, engine
from rackhand.facts import GpuFacts
from rackhand.inventory import Host, Job, Server, listed_gpus, servers_of
from rackhand.secret_files import config_file, secrets_file
from rackhand.template import render_script


def interpreter(host: Host) -> str:
    """What runs rackhand's own part in the container: the inventory's python, else the one that deploy makes."""
    return host.python or f"{host.home}/venv/bin/python"


def log_file(host: Host, server: Server) -> str:
    return f"{(server.spec.log_dir or host.log_dir).rstrip('/')}/sglang_gpu{server.gpu}.log"


def script_file(host: Host, gpu: int) -> str:
    """The script that deploy writes for a GPU."""
    return f"{host.home}/serve-gpu{gpu}.sh"


def server_argv(host: Host, server: Server, *, version: str | None = None, known: frozenset[str] | None = None) -> Argv:
    """The server's command line in the words of its version: the inventory's, the observed one, or its known flags."""
    kind = engine(server.spec.engine)
    args = kind.translate(server.args, version=version or server.spec.version, known=known)
    spec = server.spec
    return kind.launch_argv(
        Launch(spec.python, spec.model, server.port, server.nccl_port, args, config_file(host, server))
    )


def serve_scripts(host: Host, gpus: Sequence[GpuFacts]) -> Mapping[str, str]:
    """{home}/serve-gpuN.sh for every server of the host, by path, also of a GPU that can't be seen now. UsageError
    when two servers would share a port."""
    scripts = {}
    for server in servers_of(host, {*(gpu.index for gpu in gpus), *listed_gpus(host)}):
        values = serve_values(host, server, server_argv(host, server))
        scripts[script_file(host, server.gpu)] = render_script("serve.sh.j2", values)
    return scripts


def serve_values(host: Host, server: Server, argv: Argv) -> Mapping[str, Any]:
    """What templates/serve.sh.j2 needs."""
    log = log_file(host, server)
    supervise = [interpreter(host), f"{host.home}/remote.pyz", "supervise", "--gpu", str(server.gpu)]
    supervise += ["--home", host.home, "--port", str(server.port), "--session", server.session]
    supervise += ["--digest", argv_digest(argv), "--log", log]
    return {
        "gpu": server.gpu,
        "log": log,
        "log_dir": log.rpartition("/")[0],
        "env_file": f"{host.home}/env.sh",
        "secrets_file": secrets_file(host),
        "supervise": supervise,
        "argv": list(argv),
    }


def generate_values(host: Host, job: Job, argv: Argv) -> Mapping[str, Any]:
    """What templates/generate.sh.j2 needs."""
    return {
        "job": job.name,
        "session": job.session,
        "workspace": host.workspace,
        "env_file": f"{host.home}/env.sh",
        "secrets_file": secrets_file(host),
        "log": f"{host.workspace.rstrip('/')}/generation.log",
        "output": job.output.rstrip("/"),
        "exit_file": f"{job.output.rstrip('/')}/{EXIT_FILE}",
        "argv": list(argv),
    }
