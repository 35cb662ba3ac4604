"""How a server and the generator are run in the container: command lines, paths, what the templates need. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from rackhand.command import Argv
from rackhand.contract.servers import argv_digest, secrets_dir
from rackhand.engines import Launch, engine
from rackhand.errors import UsageError
from rackhand.inventory import Host, Job, SecretRef, Server

API_KEY = "RACKHAND_API_KEY"
SECRETS_FILE = "secrets.env"


def interpreter(host: Host) -> str:
    """What runs rackhand's own part in the container: the inventory's python, else the one that deploy makes."""
    return host.python or f"{host.home}/venv/bin/python"


def log_file(host: Host, server: Server) -> str:
    return f"{(server.spec.log_dir or host.log_dir).rstrip('/')}/sglang_gpu{server.gpu}.log"


def script_file(host: Host, gpu: int) -> str:
    """The script that deploy writes for a GPU."""
    return f"{host.home}/serve-gpu{gpu}.sh"


def config_file(host: Host, server: Server) -> str | None:
    """The engine's config with the API key, on the container's tmpfs; None without a key."""
    return f"{secrets_dir(host.home)}/{server.spec.engine}.yaml" if server.spec.api_key else None


def server_argv(host: Host, server: Server, *, version: str | None = None, known: frozenset[str] | None = None) -> Argv:
    """The server's command line in the words of its version: the inventory's, the observed one, or its known flags."""
    kind = engine(server.spec.engine)
    args = kind.translate(server.args, version=version or server.spec.version, known=known)
    spec = server.spec
    return kind.launch_argv(
        Launch(spec.python, spec.model, server.port, server.nccl_port, args, config_file(host, server))
    )


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
        "secrets_file": f"{secrets_dir(host.home)}/{SECRETS_FILE}",
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
        "secrets_file": f"{secrets_dir(host.home)}/{SECRETS_FILE}",
        "log": f"{host.workspace.rstrip('/')}/generation.log",
        "argv": list(argv),
    }


def secret_refs(host: Host) -> Mapping[str, SecretRef]:
    """Every secret that the container needs, by variable name. UsageError when servers have different API keys."""
    refs = {name: value for name, value in host.env.variables.items() if isinstance(value, SecretRef)}
    keys = list({spec.api_key for spec in host.servers if spec.api_key is not None})
    if len(keys) > 1:
        raise UsageError("servers of one host have different API keys", where=host.where, hint="use one for all")
    return {**refs, API_KEY: keys[0]} if keys else refs


def render_secrets(host: Host, values: Mapping[str, str]) -> dict[str, str]:
    """The files of the tmpfs, by name: a shell file with every secret, and each engine's config with the API key."""
    if not values:
        return {}
    files = {SECRETS_FILE: "".join(f"{name}={shlex.quote(value)}\n" for name, value in sorted(values.items()))}
    for spec in host.servers:
        if spec.api_key is not None and API_KEY in values:
            files[f"{spec.engine}.yaml"] = engine(spec.engine).render_config(values[API_KEY])
    return files
