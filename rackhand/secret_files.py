"""What stands on the container's tmpfs: which secrets a host needs, where they lie, and the files' text. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from rackhand.contract.servers import API_KEY, SECRETS_FILE, secrets_dir
from rackhand.engines import engine
from rackhand.errors import UsageError
from rackhand.inventory import Host, SecretRef, Server, ServerSpec


def secrets_file(host: Host) -> str:
    """KEY='value' lines, sourced by the scripts."""
    return f"{secrets_dir(host.home)}/{SECRETS_FILE}"


def config_file(host: Host, server: Server) -> str | None:
    """The engine's config with the API key, on the container's tmpfs; None without a key."""
    return f"{secrets_dir(host.home)}/{_config_name(server.spec)}" if server.spec.api_key else None


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
            files[_config_name(spec)] = engine(spec.engine).render_config(values[API_KEY])
    return files


def _config_name(spec: ServerSpec) -> str:
    return f"{spec.engine}.yaml"
