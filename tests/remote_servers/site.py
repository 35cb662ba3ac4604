"""A container's insides as plain processes: simulated GPUs and SGLang, nvidia-smi in the PATH, a home directory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lab.gpu import state as gpu_state
from rackhand import payload
from rackhand.contract import to_json
from rackhand.contract.servers import API_KEY, ServersState, secrets_dir
from rackhand.inventory import Env, Host, PlainSsh, SecretRef, Server, ServerSpec, Ssh
from rackhand.scripts import script_file, serve_values, server_argv
from rackhand.secret_files import render_secrets
from rackhand.template import render_script
from remote import processes
from remote.serving.state import observe_servers
from tests.spoken import NONCE, asked, heard

ROOT = Path(__file__).resolve().parents[2]
LAB_DIR = "RACKHAND_LAB_DIR"
SMALL = {"mamba-ssm-dtype": "bfloat16", "mem-fraction-static": 0.85, "mamba-scheduler-strategy": "extra_buffer"}


class Site:
    """Two GPUs at `base`; `environment` is that of a process inside."""

    def __init__(self, base: Path, *, load_seconds: float = 0.3) -> None:
        self.base, self.lab = base, base / "lab"
        self.lab.mkdir(parents=True)
        gpu_state.write(self.lab, 2, "rtx-pro-6000", load_seconds=load_seconds, release_seconds=0.3, mean_tokens=20)
        self.uuids = [gpu.uuid for gpu in gpu_state.read_gpus(self.lab)]
        self.bin = base / "bin"
        self._put_nvidia_smi()
        self.environment = {
            **os.environ,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            LAB_DIR: str(self.lab),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'lab/site'}",
        }
        ports = free_ports(4)
        self.specs = tuple(
            ServerSpec(
                model="/models/Qwen3.6-27B",
                version="0.5.11",
                python=sys.executable,
                args=SMALL,
                gpus=(gpu,),
                port=ports[gpu],
                nccl_port=ports[2 + gpu],
                ready_timeout_s=40.0,
                stop_timeout_s=15.0,
                api_key=SecretRef(env="KEY"),
            )
            for gpu in (0, 1)
        )
        self.host = Host("site", PlainSsh(Ssh("site")), str(base), python=sys.executable, env=Env(), servers=self.specs)
        self.home = Path(self.host.home)
        self.home.mkdir()
        self.secrets = render_secrets(self.host, {API_KEY: "hunter2-hunter2"})
        self._deploy()

    def server(self, gpu: int, **args: Any) -> Server:
        return Server("site", gpu, self.specs[gpu], {**SMALL, **args})

    def call(self, verb: str, request: object) -> subprocess.Popen[bytes]:
        """The verb as the control side runs it, its request sent."""
        process = subprocess.Popen(
            [sys.executable, "-m", "remote", "session", NONCE, "python3"],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        process.stdin.write(asked(verb, to_json(request), "python3"))
        process.stdin.close()
        return process

    def events(self, verb: str, request: object) -> list[dict[str, Any]]:
        with self.call(verb, request) as process:
            assert process.stdout is not None
            return [event for event in map(heard, process.stdout) if event is not None]

    def observe(self) -> ServersState:
        """Without the server processes of others on this machine: there is no container around us."""
        with self.inside():
            state = observe_servers(str(self.home))
        ours = tuple(s for s in state.strays if processes.environment(s.process.pid, LAB_DIR) == str(self.lab))
        return dataclasses.replace(state, strays=ours)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        before = dict(os.environ)
        os.environ.update(self.environment)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def close(self) -> None:
        """Ends every process that was started under this home."""
        subprocess.run(["tmux", "-S", f"{self.home}/tmux.sock", "kill-server"], capture_output=True, check=False)
        for pid in processes.pids():
            if processes.environment(pid, LAB_DIR) == str(self.lab) and pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        secrets = Path(secrets_dir(str(self.home)))
        for file in secrets.glob("*") if secrets.exists() else ():
            file.unlink()
        if secrets.exists():
            secrets.rmdir()

    def _deploy(self) -> None:
        (self.home / "remote.pyz").write_bytes(payload.build().data)
        (self.home / "env.sh").write_text(
            "".join(
                f"export {name}={shlex.quote(self.environment[name])}\n" for name in ("PATH", LAB_DIR, "PYTHONPATH")
            )
        )
        for gpu in (0, 1):
            server = self.server(gpu)
            values = serve_values(self.host, server, server_argv(self.host, server))
            Path(script_file(self.host, gpu)).write_text(render_script("serve.sh.j2", values))

    def _put_nvidia_smi(self) -> None:
        self.bin.mkdir()
        program = self.bin / "nvidia-smi"
        root, python = shlex.quote(str(ROOT)), shlex.quote(sys.executable)
        program.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {python} -m lab.gpu.nvidia_smi "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()


def await_true(check: Callable[[], object], what: str, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
