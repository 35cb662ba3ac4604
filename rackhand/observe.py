"""Transport to Facts by the verb `observe`, and to the flags of an engine by `probe`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rackhand.agent import Session
from rackhand.command import Argv
from rackhand.contract import from_json, to_json
from rackhand.contract.files import FASTER, MODULES, ObserveReply, ObserveRequest, Upload
from rackhand.contract.servers import FlagFacts, ProbeRequest
from rackhand.errors import TransportError
from rackhand.facts import GPU_QUERY, Facts, parse_facts, with_known
from rackhand.inventory import Host

DEADLINE_S = 120.0
HASH_BYTES_S = 100e6
"""At the least, where an upload has to be read again to be known."""


def observe(
    session: Session,
    host: Host,
    *,
    files: Collection[str] = (),
    texts: bool = False,
    uploads: Mapping[str, Upload] | None = None,
    commands: Mapping[str, Argv] | None = None,
    servers: bool = False,
    outputs: Sequence[str] = (),
    known: Facts | None = None,
) -> Facts:
    """One look at `host`: `files` are looked at (`texts`: small ones whole), as are `servers` and jobs' `outputs`.

    Raises what Session.call raises. The GPUs and the interpreter's modules are always asked for, which takes a second:
    unless they are `known` from a look just before, and nothing has been done to them since.
    """
    request = ObserveRequest(
        home=host.home,
        workspace=host.workspace,
        files=tuple(files),
        texts=texts,
        uploads=dict(uploads or {}),
        source=host.env.source,
        python=host.python,
        modules=() if known else (*MODULES, *FASTER),
        commands={**({} if known else {"gpus": GPU_QUERY}), **(commands or {})},
        servers=servers,
        outputs=tuple(outputs),
    )
    limit_s = DEADLINE_S + sum(upload.size for upload in (uploads or {}).values()) / HASH_BYTES_S
    options: dict[str, Any] = {"python": host.python, "deadline_s": limit_s, "silence_s": limit_s}
    answer = session.call_once("observe", to_json(request), **options)
    try:
        facts = parse_facts(host.where, from_json(ObserveReply, answer))
    except ValueError as error:
        raise TransportError("an answer of another shape", where=host.where, detail=str(error)) from error
    return with_known(facts, known) if known else facts


def observe_flags(session: Session, host: Host, pythons: Sequence[str]) -> dict[str, FlagFacts]:
    """The flags that the engine of each interpreter knows, by interpreter."""
    request = ProbeRequest(host.home, pythons=tuple(pythons), env_script=f"{host.home}/env.sh")
    events = session.call("probe", to_json(request), python=host.python, deadline_s=600.0)
    found = [from_json(FlagFacts, event) for event in events if event.get("event") == "flags"]
    return {facts.python: facts for facts in found}
