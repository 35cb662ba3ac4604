"""A ProxyCommand as a socket. paramiko's own spins when the command ends, and leaves its process unreaped."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile


class Proxy:
    """The command runs with one end of `socket`'s pair as stdin and stdout."""

    def __init__(self, command: str) -> None:
        self.socket, far = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the process
        argv = ("/bin/sh", "-c", f"exec {command}")
        with far:
            self._process = subprocess.Popen(
                argv, stdin=far.fileno(), stdout=far.fileno(), stderr=self._stderr, start_new_session=True
            )

    def said(self) -> str:
        """What the command wrote on stderr, such as an inner ssh's reason."""
        if self._stderr.closed:
            return ""
        self._stderr.seek(0)
        return self._stderr.read(8192).decode(errors="replace").strip()

    def close(self) -> None:
        self.socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._stderr.close()
