"""The shell scripts that start servers, by their absolute path in the container. Pure.

The generator's script depends on what is running and done: resume writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rackhand.facts import GpuFacts
from rackhand.inventory import Host, servers_of
from rackhand.serving import script_file, serve_values, server_argv
from rackhand.template import render_script


def serve_scripts(host: Host, gpus: Sequence[GpuFacts]) -> Mapping[str, str]:
    """{home}/serve-gpuN.sh for every server of the host. Raises what servers_of raises."""
    servers = servers_of(host, [gpu.index for gpu in gpus])
    scripts = {}
    for server in servers:
        values = serve_values(host, server, server_argv(host, server))
        scripts[script_file(host, server.gpu)] = render_script("serve.sh.j2", values)
    return scripts
