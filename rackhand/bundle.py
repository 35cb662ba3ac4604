"""The files that belong in a container: the zipapp, rendered scripts, the user's files. Pure; no secret is in them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rackhand import payload
from rackhand.contract import to_json
from rackhand.contract.files import MANIFEST, Manifest, ManifestEntry, Owner
from rackhand.errors import PreconditionError
from rackhand.facts import GpuFacts
from rackhand.inventory import FileSpec, Host
from rackhand.scripts import interpreter, serve_scripts
from rackhand.template import render_file, render_script


@dataclass(frozen=True)
class ManagedFile:
    """A file as it should be: absolute path in the container, permission bits, bytes."""

    path: str
    mode: int
    content: bytes

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def own_paths(host: Host) -> tuple[str, ...]:
    """Paths to look at before the GPUs are known; the others stand in the manifest once they were written."""
    return (f"{host.home}/remote.pyz", f"{host.home}/env.sh", *(file.dest for file in host.files))


def render_bundle(host: Host, gpus: Sequence[GpuFacts], sources: Mapping[Path, bytes]) -> tuple[ManagedFile, ...]:
    """Every managed file but the manifest, by path. `sources` are the bytes of the user's files.

    PreconditionError when a user's template is wrong or two files want the same place.
    """
    scripts = serve_scripts(host, gpus)
    files = [
        ManagedFile(f"{host.home}/remote.pyz", 0o644, payload.build().data),
        ManagedFile(f"{host.home}/env.sh", 0o644, render_env(host).encode()),
        *(ManagedFile(path, 0o755, text.encode()) for path, text in scripts.items()),
        *(ManagedFile(file.dest, file.mode, _content(host, file, sources[file.src])) for file in host.files),
    ]
    paths = [file.path for file in files]
    if twice := sorted({path for path in paths if paths.count(path) > 1} | {*paths} & {f"{host.home}/{MANIFEST}"}):
        what = f"{twice[0]} is wanted twice"
        raise PreconditionError(what, where=host.where, hint="mend dest: that place is taken")
    return tuple(sorted(files, key=lambda file: file.path))


def render_env(host: Host) -> str:
    """env.sh: the source, then the variables that are no secrets."""
    plain = [(name, value) for name, value in sorted(host.env.variables.items()) if isinstance(value, str)]
    return render_script("env.sh.j2", {"source": host.env.source, "variables": plain})


def manifest_of(files: Sequence[ManagedFile], venv: str | None, owner: Owner | None = None) -> Manifest:
    return Manifest({file.path: ManifestEntry(file.sha256, file.mode) for file in files}, venv, owner=owner)


def manifest_file(host: Host, manifest: Manifest) -> ManagedFile:
    text = json.dumps(to_json(manifest), indent=1, sort_keys=True) + "\n"
    return ManagedFile(f"{host.home}/{MANIFEST}", 0o644, text.encode())


def _content(host: Host, file: FileSpec, source: bytes) -> bytes:
    if not file.template:
        return source
    try:
        text = source.decode()
    except UnicodeDecodeError as error:
        hint = "leave out template: true for a file that isn't text"
        raise PreconditionError("a template must be UTF-8", where=str(file.src), hint=hint) from error
    values = {
        "host": host.name,
        "workspace": host.workspace,
        "home": host.home,
        "python": interpreter(host),
        "variables": {name: value for name, value in host.env.variables.items() if isinstance(value, str)},
    }
    return render_file(text, values, str(file.src)).encode()
