"""Files into a container in one stream, through `receive`; by `pct push` for hosts that ask for it."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rackhand.agent import Session
from rackhand.bundle import ManagedFile
from rackhand.contract import from_json, to_json
from rackhand.contract.files import FASTER, MODULES, Incoming, ReceiveReply, ReceiveRequest, Wheels
from rackhand.errors import PreconditionError, RemoteError, TransportError
from rackhand.inventory import Host, ProxmoxLxc
from rackhand.pins import Pins
from rackhand.plan.deploy import LocalUpload, SendFiles
from rackhand.transport.staging import staged
from rackhand.transport.via import Via
from rackhand.wheels import fetch_wheels

CHUNK = 1 << 20
PUSH_LIMIT_S = 3600.0
Progress = Callable[[str], None]


Source = tuple[Incoming, bytes | Path]
"""A file of the stream, and its bytes or where they are."""


def send(session: Session, host: Host, action: SendFiles, say: Progress) -> ReceiveReply:
    """All of `action`, or nothing. Raises what Session.call raises; PreconditionError for a local file that is gone."""
    files = [_source(file) for file in action.files]
    for upload in action.uploads:
        say(f"reading {upload.src}")
        files.append((incoming_upload(upload), upload.src))
    wheels = _wheels(action.venv, host, say) if action.venv else []
    manifest = [_source(action.manifest)] if action.manifest else []
    request = ReceiveRequest(
        home=host.home,
        workspace=host.workspace,
        files=tuple(head for head, _ in files),
        manifest=manifest[0][0] if manifest else None,
        remove=action.remove,
        wheels=Wheels(action.venv.digest, "python3", tuple(head for head, _ in wheels), (*MODULES, *FASTER))
        if action.venv
        else None,
    )
    sources = [*files, *wheels, *manifest]
    say(f"{action}: {sum(head.size for head, _ in sources) / 1e6:.1f} MB")
    if host.put == "push" and isinstance(host.road, ProxmoxLxc) and isinstance(session.transport, Via):
        return _push(session, host, request, sources, say)
    return _receive(session, host, request, _body(sources), say)


def _source(file: ManagedFile) -> Source:
    return Incoming(file.path, len(file.content), file.sha256, file.mode), file.content


def _wheels(pins: Pins, host: Host, say: Progress) -> list[Source]:
    say("fetching the wheels of the Python environment")
    paths = fetch_wheels(pins, host.where)
    return [(Incoming(path.name, path.stat().st_size, digest(path), 0o644), path) for path in paths]


def digest(path: Path) -> str:
    with _local(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def incoming_upload(upload: LocalUpload) -> Incoming:
    sha256 = upload.sha256 or digest(upload.src)
    return Incoming(upload.dest, upload.size, sha256, 0o644, upload.mtime_ns)


def _body(sources: Iterable[Source]) -> Iterator[bytes]:
    """The bytes in order; never more of a file than was announced, and an error when there is less."""
    for head, source in sources:
        if isinstance(source, bytes):
            yield source
            continue
        left = head.size
        with _local(source), source.open("rb") as file:
            while left and (chunk := file.read(min(left, CHUNK))):
                left -= len(chunk)
                yield chunk
        if left:
            raise PreconditionError(
                "the file became shorter while it was read", where=str(source), hint="./inv deploy again"
            )


@contextlib.contextmanager
def _local(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PreconditionError(f"can't read it: {error.strerror}", where=str(path)) from error


def _receive(
    session: Session, host: Host, request: ReceiveRequest, body: Iterable[bytes], say: Progress
) -> ReceiveReply:
    reply = None
    options: dict[str, Any] = {"python": host.python, "body": body, "deadline_s": None}
    for event in session.call("receive", to_json(request), **options):
        if event.get("event") == "progress":
            say(f"{event.get('size', 0) / 1e6:.0f} MB arrived")
        elif event.get("event") == "received":
            reply = from_json(ReceiveReply, event)
    if reply is None:
        raise TransportError("receive gave no answer", where=session.where)
    return reply


def _push(
    session: Session, host: Host, request: ReceiveRequest, sources: Sequence[Source], say: Progress
) -> ReceiveReply:
    """A private file on the Proxmox host, `pct push`, then `receive` from the file that it made inside.

    push exits 0 when it fails: only the checks inside say whether it came through.
    """
    road = session.transport
    if not isinstance(road, Via):
        raise PreconditionError("put: push is for containers", where=session.where, hint="use put: stream")
    outer = road.inner
    inside = f"{request.workspace.rstrip('/')}/.rackhand-push-{secrets.token_hex(8)}"
    with staged(outer, _body(sources), sum(head.size for head, _ in sources)) as path:
        vmid = host.road.vmid if isinstance(host.road, ProxmoxLxc) else 0
        argv = ("pct", "push", str(vmid), path, inside, "--perms", "0600")
        pushed = outer.exec(argv, deadline_s=PUSH_LIMIT_S)
        said = pushed.stderr.decode(errors="replace").strip()
        if pushed.status:
            road.checked(pushed)
            raise _push_failed(said or f"status {pushed.status}", road.where)
        try:
            return _receive(session, host, replace(request, staged=inside), (), say)
        except RemoteError as error:
            raise _push_failed(said or error.what, road.where) from error


def _push_failed(said: str, where: str) -> RemoteError:
    hint = "the old files are untouched; put: stream does without pct push"
    return RemoteError(f"pct push failed: {said.splitlines()[-1]}", where=where, hint=hint, detail=said)
