"""Which files a container lacks. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rackhand.arguments import gpu_ranges
from rackhand.bundle import ManagedFile, manifest_file, manifest_of
from rackhand.contract.files import FASTER, MODULES, FileState, Manifest, Owner
from rackhand.errors import PreconditionError
from rackhand.facts import Facts
from rackhand.inventory import Host
from rackhand.pins import Pins, pins_for
from rackhand.tmux import SOCKET_BYTES, socket_path


@dataclass(frozen=True, slots=True)
class StartContainer:
    """A stopped container; found by the first call's failure, since nothing can be observed in it."""

    vmid: int

    def __str__(self) -> str:
        return f"start container {self.vmid}"


@dataclass(frozen=True, slots=True)
class LocalUpload:
    """A local file that belongs at `dest`. `sha256` None: not yet worked out."""

    src: Path
    dest: str
    size: int
    mtime_ns: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class SendFiles:
    """Everything that one stream changes. `left_alone` are files of the old manifest that somebody changed by hand
    and nothing wants any more; `venv` is an environment to make."""

    files: tuple[ManagedFile, ...] = ()
    uploads: tuple[LocalUpload, ...] = ()
    remove: tuple[str, ...] = ()
    left_alone: tuple[str, ...] = ()
    venv: Pins | None = None
    manifest: ManagedFile | None = None

    def __str__(self) -> str:
        parts = [_count(len(self.files) + len(self.uploads), "file") if self.files or self.uploads else ""]
        parts += [f"Python environment {self.venv.digest}" if self.venv else ""]
        sent = " and ".join(part for part in parts if part)
        removed = f"remove {_count(len(self.remove), 'file')}" if self.remove else ""
        return ", ".join(part for part in (f"send {sent}" if sent else "", removed) if part) or "write the manifest"


def plan_deploy(
    host: Host,
    facts: Facts,
    files: Sequence[ManagedFile],
    uploads: Sequence[LocalUpload] = (),
    *,
    owner: Owner | None = None,
) -> tuple[SendFiles, ...]:
    """Empty when everything stands as it should; that the same files are `owner`'s now is a change, who of theirs sent
    them isn't. PreconditionError when the container can't take or use the files."""
    check_workspace(host, facts)
    _check_source(host, facts, files)
    _check_gpus(host, facts)
    venv = _plan_venv(host, facts)
    manifest = manifest_of(files, None if host.python else pins_for(facts.platform, host.where).digest, owner)
    changed = tuple(file for file in files if not _same(file, facts.files.get(file.path)))
    old = facts.manifest.files if facts.manifest else {}
    stale = [path for path in old if path not in manifest.files and path in facts.files]
    own = tuple(sorted(path for path in stale if facts.files[path].sha256 == old[path].sha256))
    waiting = tuple(upload for upload in uploads if needs_upload(upload, facts.files.get(upload.dest)))
    is_changed = other_owner(facts, owner) is not None or _unowned(facts.manifest) != _unowned(manifest)
    if not (changed or waiting or venv or is_changed):
        return ()
    return (
        SendFiles(
            files=changed,
            uploads=waiting,
            remove=own,
            left_alone=tuple(sorted(set(stale) - set(own))),
            venv=venv,
            manifest=manifest_file(host, manifest),
        ),
    )


def other_owner(facts: Facts, owner: Owner | None) -> Owner | None:
    """Who else deployed here, if it was somebody else."""
    there = facts.manifest.owner if facts.manifest else None
    return there if there is not None and owner is not None and there.is_other_than(owner) else None


def _unowned(manifest: Manifest | None) -> Manifest | None:
    return None if manifest is None else replace(manifest, owner=None)


def needs_upload(upload: LocalUpload, there: FileState | None) -> bool:
    """By size and time of change first; by sha256 where only the time differs."""
    if there is None or there.size != upload.size:
        return True
    return there.mtime_ns != upload.mtime_ns and (not there.sha256 or there.sha256 != upload.sha256)


def check_workspace(host: Host, facts: Facts) -> None:
    at = f"hosts.{host.name}.workspace"
    too_long = len(socket_path(host.home).encode()) - SOCKET_BYTES
    if too_long > 0:
        what = f"{socket_path(host.home)} is too long for a socket of tmux by {_count(too_long, 'byte')}"
        hint = f"give a shorter {at}; a link or a bind mount that leads to this one will do"
        raise PreconditionError(what, where=host.where, hint=hint)
    if not facts.workspace.exists:
        hint = f"make it there (it should be on a big disk), or mend {at}"
        raise PreconditionError(f"no directory {host.workspace}", where=host.where, hint=hint)
    if facts.workspace.problem:
        hint = f"mount it read-write, mend the mount's idmap, or mend {at}"
        raise PreconditionError(f"{host.workspace}: {facts.workspace.problem}", where=host.where, hint=hint)


def diff_of(action: SendFiles, facts: Facts) -> str:
    """Unified diffs of text files, one line for each other one; servers' scripts that differ by their GPU only are
    shown once. The caller masks secrets."""
    parts = _diffs(action.files, facts)
    parts += [f"upload {upload.src} -> {upload.dest} ({upload.size} bytes)\n" for upload in action.uploads]
    parts += [f"remove {path}\n" for path in action.remove]
    parts += [f"left alone, changed by hand: {path}\n" for path in action.left_alone]
    parts += [f"make a Python environment {action.venv.digest}\n"] if action.venv else []
    return "".join(parts)


def _diffs(files: Sequence[ManagedFile], facts: Facts) -> list[str]:
    alike: dict[str, list[tuple[str, int | None]]] = {}
    for file in files:
        diff, gpu = _diff(file, facts.files.get(file.path)), _gpu_of(file)
        alike.setdefault(diff if gpu is None else _without_gpu(diff, file, gpu), []).append((diff, gpu))
    parts = []
    for (diff, _), *others in alike.values():
        gpus = [gpu for _, gpu in others if gpu is not None]
        parts.append(diff)
        apart = "apart from number, ports, log, session and digest"
        parts += [f"the same for GPU {gpu_ranges(gpus)}, {apart}\n"] if gpus else []
    return parts


def _gpu_of(file: ManagedFile) -> int | None:
    """The GPU of a server's script, see `scripts.script_file`."""
    found = re.search(r"/serve-gpu(\d+)\.sh$", file.path)
    return int(found[1]) if found else None


def _without_gpu(diff: str, file: ManagedFile, gpu: int) -> str:
    """The diff with what is a GPU's own left out: equal for servers that are."""
    text = file.content.decode(errors="replace")
    own = {found[1] for found in re.finditer(r"--(?:nccl-)?port(?: \\\n)?\s+(\d+)", text)}
    diff = re.sub(rf"(gpu|GPU |--gpu |--id=){gpu}\b", r"\1N", diff)
    diff = re.sub(r"--digest [0-9a-f]{16}|\(\d+ bytes", "", diff)
    return re.sub(rf"\b(?:{'|'.join(own)})\b", "PORT", diff) if own else diff


def _diff(file: ManagedFile, there: FileState | None) -> str:
    mode = "" if there is None or there.mode == file.mode else f", mode {there.mode:04o} -> {file.mode:04o}"
    head = f"{'new' if there is None else 'change'} {file.path} ({len(file.content)} bytes{mode})\n"
    try:
        new = file.content.decode()
    except UnicodeDecodeError:
        return head
    old = "" if there is None else there.text
    if old is None or "\0" in new:
        return head
    names = ("/dev/null" if there is None else file.path, file.path)
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), *names, lineterm="")
    return head + "".join(f"{line}\n" for line in lines)


def _same(file: ManagedFile, there: FileState | None) -> bool:
    return there is not None and (there.sha256, there.mode) == (file.sha256, file.mode)


def _plan_venv(host: Host, facts: Facts) -> Pins | None:
    missing = [name for name in MODULES if facts.interpreter.modules.get(name) is None]
    if host.python is None and facts.workspace.noexec:
        hint = (
            f"remount it with exec, or set hosts.{host.name}.python to an interpreter elsewhere that has "
            f"{' and '.join(MODULES)}"
        )
        raise PreconditionError(
            f"{host.workspace} is mounted noexec: a Python environment can't run there", where=host.where, hint=hint
        )
    if host.python is None:
        pins = pins_for(facts.platform, host.where)
        wanted = [name for name in (*MODULES, *FASTER) if facts.interpreter.modules.get(name) is None]
        return pins if wanted or facts.interpreter.venv != pins.digest else None
    at = f"hosts.{host.name}.python"
    if not facts.interpreter.found:
        inside = facts.workspace.noexec and host.python.startswith(f"{host.workspace.rstrip('/')}/")
        why = f": {host.workspace} is mounted noexec" if inside else ""
        raise PreconditionError(f"{host.python} doesn't run{why}", where=host.where, hint=f"mend {at}")
    if missing:
        hint = f"{host.python} -m pip install {' '.join(missing)}, or leave out {at}: deploy then makes an environment"
        what = f"{host.python} can't import {', '.join(missing)}"
        raise PreconditionError(what, where=host.where, hint=hint)
    return None


def _check_source(host: Host, facts: Facts, files: Sequence[ManagedFile]) -> None:
    """A script that this deploy brings itself is looked at after it."""
    if facts.environment.problem and host.env.source not in {file.path for file in files}:
        hint = f"mend hosts.{host.name}.env.source"
        raise PreconditionError(facts.environment.problem, where=host.where, hint=hint)


def _check_gpus(host: Host, facts: Facts) -> None:
    if host.servers and not facts.gpus:
        hint = "are the GPU's devices handed to the container, and does its driver library fit the host's?"
        raise PreconditionError(facts.gpus_problem, where=host.where, hint=hint)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
