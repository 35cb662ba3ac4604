"""The verb `observe`: one look at everything that a plan needs. Changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from rackhand.contract import from_json, to_json
from rackhand.contract.files import (
    MANIFEST,
    TEXT_LIMIT,
    CommandState,
    Environment,
    FileState,
    Interpreter,
    ObserveReply,
    ObserveRequest,
    Platform,
    Upload,
    Workspace,
)
from remote.cli import Emit
from remote.each_gpu import rows_of_each
from remote.output.state import observe_state
from remote.serving.state import observe_servers

COMMAND_LIMIT_S = 30.0
"""For all commands together: they run side by side."""
_ENV = 'set -a; . "$1" >/dev/null || exit; printf "\\0%s\\0%s" "$CUDA_HOME" "$LD_LIBRARY_PATH"'
_IMPORTS = (
    "import importlib,json,sys\n"
    "found={}\n"
    "for name in sys.argv[1:]:\n"
    " try: found[name]=str(getattr(importlib.import_module(name),'__version__',''))\n"
    " except Exception: found[name]=None\n"
    "print('\\0'+json.dumps([sys.version.split()[0],found]))"
)


def call(request: Any, emit: Emit, body: BinaryIO) -> None:  # noqa: ARG001  every verb is called alike
    emit({"event": "observed", **to_json(observe(from_json(ObserveRequest, request)))})


def observe(request: ObserveRequest) -> ObserveReply:
    python = request.python or f"{request.home}/venv/bin/python"
    imports = _start((python, "-c", _IMPORTS, *request.modules)) if request.modules else None
    source = _start(("/bin/bash", "-c", _ENV, "source", request.source)) if request.source else None
    commands = {name: _start(argv) for name, argv in request.commands.items()}
    manifest = read_text(Path(request.home, MANIFEST))
    return ObserveReply(
        platform=_platform(),
        workspace=_workspace(Path(request.workspace), Path(request.home)),
        manifest=manifest,
        files=_files(request, manifest),
        interpreter=_interpreter(python, imports, request),
        environment=_environment(request.source, source),
        commands={name: _complete(request.commands[name], _end(started)) for name, started in commands.items()},
        servers=observe_servers(request.home) if request.servers else None,
        jobs=tuple(observe_state(Path(output)) for output in request.outputs),
    )


def digest(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            sha.update(chunk)
    return sha.hexdigest()


def read_text(path: Path) -> str | None:
    """A small text file's text; None when it is missing, unreadable or not text."""
    try:
        return path.read_bytes().decode() if path.stat().st_size <= 1 << 20 else None
    except (OSError, UnicodeDecodeError):
        return None


def _platform() -> Platform:
    libc = " ".join(platform.libc_ver()).strip() or ("musl" if list(Path("/lib").glob("ld-musl-*")) else "")
    return Platform(
        platform.python_version(), sys.executable, platform.machine(), libc, platform.python_implementation().lower()
    )


def _workspace(path: Path, home: Path) -> Workspace:
    if not path.is_dir():
        return Workspace(exists=False)
    flags = os.statvfs(path)
    problem = None
    if flags.f_flag & os.ST_RDONLY:
        problem = "Read-only file system"
    elif not os.access(path, os.W_OK | os.X_OK):
        problem = "Permission denied"
    under_home = os.statvfs(home) if home.is_dir() else flags
    return Workspace(
        exists=True,
        free_bytes=flags.f_bavail * flags.f_frsize,
        problem=problem,
        noexec=bool(under_home.f_flag & os.ST_NOEXEC),
    )


def _files(request: ObserveRequest, manifest: str | None) -> dict[str, FileState]:
    wanted = dict.fromkeys((*_listed(manifest), *request.files))
    states = {path: _file(Path(path), with_text=request.texts) for path in wanted}
    states |= {path: _upload(Path(path), expected) for path, expected in request.uploads.items()}
    return {path: state for path, state in states.items() if state is not None}


def _listed(manifest: str | None) -> tuple[str, ...]:
    try:
        data = json.loads(manifest or "{}")
        return tuple(data.get("files", ()))
    except (ValueError, AttributeError, TypeError):
        return ()


def _file(path: Path, *, with_text: bool) -> FileState | None:
    if not path.is_file():
        return None
    about = path.stat()
    try:
        sha256 = digest(path)
    except OSError:
        return FileState("unreadable", about.st_mode & 0o7777, about.st_size, about.st_mtime_ns)
    text = read_text(path) if with_text and about.st_size <= TEXT_LIMIT else None
    return FileState(sha256, about.st_mode & 0o7777, about.st_size, about.st_mtime_ns, text)


def _upload(path: Path, expected: Upload) -> FileState | None:
    if not path.is_file():
        return None
    about = path.stat()
    same_size, same_time = about.st_size == expected.size, about.st_mtime_ns == expected.mtime_ns
    sha256 = digest(path) if same_size and not same_time else ""
    return FileState(sha256, about.st_mode & 0o7777, about.st_size, about.st_mtime_ns)


class _Started(NamedTuple):
    process: subprocess.Popen[bytes]
    out: BinaryIO
    err: BinaryIO
    at: float


def _start(argv: tuple[str, ...]) -> _Started | None:
    """Output goes to unnamed files: nothing blocks on a full pipe while others are waited for."""
    out, err = tempfile.TemporaryFile(dir="/dev/shm"), tempfile.TemporaryFile(dir="/dev/shm")  # noqa: SIM115
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    except OSError:
        return None
    return _Started(process, out, err, time.monotonic())


def _end(started: _Started | None) -> CommandState:
    if started is None:
        return CommandState(None, "", "no such program")
    process, out, err, at = started
    try:
        status: int | None = process.wait(max(0.0, at + COMMAND_LIMIT_S - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        status = None
    texts = []
    for file in (out, err):
        file.seek(0)
        texts.append(file.read(1 << 20).decode(errors="replace"))
        file.close()
    if status is None:
        texts[1] += f"\nno answer in {COMMAND_LIMIT_S:.0f} s"
    return CommandState(status, *texts)


def _complete(argv: tuple[str, ...], done: CommandState) -> CommandState:
    if argv[0] != "nvidia-smi" or done.status is None:
        return done
    return CommandState(done.status, rows_of_each(argv, done.stdout), done.stderr)


def _interpreter(python: str, started: _Started | None, request: ObserveRequest) -> Interpreter:
    venv = None if request.python else _venv_digest(Path(request.home, "venv"))
    if not request.modules:
        return Interpreter(python, found=Path(python).exists(), venv=venv)
    done = _end(started)
    if done.status != 0 or "\0" not in done.stdout:
        return Interpreter(python, found=False, venv=venv)
    _, modules = json.loads(done.stdout.rpartition("\0")[2])
    return Interpreter(python, found=True, modules=modules, venv=venv)


def _venv_digest(link: Path) -> str | None:
    """The environment is a link to a directory that is named for what it was made from."""
    try:
        return str(link.readlink()).rpartition("-")[2]
    except OSError:
        return None


def _environment(source: str | None, started: _Started | None) -> Environment:
    if source is None:
        return Environment()
    if not Path(source).is_file():
        return Environment(problem=f"no script {source}")
    done = _end(started)
    if done.status != 0 or done.stdout.count("\0") < 2:
        last = done.stderr.strip().splitlines()[-1:] or [f"status {done.status}"]
        return Environment(problem=f"{source} failed: {last[0]}")
    _, cuda, paths = done.stdout.rsplit("\0", 2)
    return Environment(cuda or None, len([path for path in paths.split(":") if path]))
