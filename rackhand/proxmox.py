"""The PVE API: a token, a verified certificate, tasks awaited. The only importer of proxmoxer."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import proxmoxer
import requests
from requests.adapters import HTTPAdapter

from rackhand.errors import AuthError, DeadlineError, PreconditionError, RackhandError, RemoteError, UnreachableError
from rackhand.inventory import Api, ProxmoxLxc
from rackhand.secrets import Secret
from rackhand.transport.ssh_config import resolve

TIMEOUT_S = 10
ATTEMPTS = 3
ASKED_AGAIN_WITHIN_S = 5.0
"""A question is asked again only while so little time is lost: an API that is stuck is waited for once."""
POLL_S = 0.3
NO_NODE = re.compile(r"hostname lookup '([^']+)' failed|no such cluster node '([^']+)'")
"""PVE asks its resolver for a node that it doesn't know."""

logging.getLogger("proxmoxer").setLevel(logging.WARNING)
"""At INFO it logs the data of requests."""


class Node:
    """One Proxmox host's API. Nothing is asked before the first method; UnreachableError when nothing answers."""

    def __init__(self, road: ProxmoxLxc, token: Secret, *, where: str, limit_s: float = 120.0) -> None:
        if road.api is None:
            raise PreconditionError("no API in the inventory", where=where, hint="add api: with token_id and token")
        self._road, self._api_spec, self._where, self._limit_s = road, road.api, where, limit_s
        self._url = _url(road, where)
        self._client = _client(road.api, self._url, token, where)

    def version(self) -> str:
        return str(self._get("version", self._client.version.get)["release"])

    def start(self, vmid: int) -> None:
        """Starts the container and awaits the task. RemoteError with the task's own words when it failed."""
        node = self._road.node or self._node_of(vmid)
        place = self._client.nodes(node).lxc(vmid).status
        if self._get(f"status of {vmid}", place.current.get, vmid).get("status") == "running":
            return
        with self._explained(f"start of {vmid}", vmid):
            upid = place.start.post()
        self._await(node, str(_data(upid, self._url, self._where)), vmid)

    def _node_of(self, vmid: int) -> str:
        guests = self._get("cluster/resources", lambda: self._client.cluster.resources.get(type="vm"), vmid)
        for guest in guests:
            if guest.get("vmid") == vmid:
                return str(guest["node"])
        hint = f"mend vmid, or give {self._api_spec.token_id} VM.Audit on /vms/{vmid}"
        raise PreconditionError(f"the API shows no container {vmid}", where=self._where, hint=hint)

    def _await(self, node: str, upid: str, vmid: int) -> None:
        end = time.monotonic() + self._limit_s
        while time.monotonic() < end:
            status = self._get("the task", self._client.nodes(node).tasks(upid).status.get, vmid)
            ended = status.get("exitstatus")
            if ended is not None:
                if ended == "OK" or str(ended).startswith("WARNINGS:"):
                    return
                if "does not exist" in str(ended):
                    raise _no_container(vmid, self._where, str(ended))
                if "is locked" in str(ended) or "got timeout" in str(ended):
                    hint = f"wait for what holds it (a backup, a snapshot); if nothing does any more: pct unlock {vmid}"
                    raise PreconditionError(f"{vmid} was not started: {ended}", where=self._where, hint=hint)
                hint = f"its log: pvesh get nodes/{node}/tasks/{upid}/log"
                raise RemoteError(f"the start of {vmid} failed: {ended}", where=self._where, hint=hint)
            time.sleep(POLL_S)
        raise DeadlineError(f"{vmid} not started within {self._limit_s:.0f} s", where=self._where, hint="is it locked?")

    def _get(self, what: str, ask: Callable[[], Any], vmid: int | None = None) -> Any:
        begin = time.monotonic()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self._explained(what, vmid):
                    return _data(ask(), self._url, self._where)
            except UnreachableError:  # noqa: PERF203
                if attempt == ATTEMPTS or time.monotonic() - begin > ASKED_AGAIN_WITHIN_S:
                    raise
                time.sleep(0.5 * attempt)
        raise UnreachableError(f"no answer to {what}", where=self._where)

    @contextlib.contextmanager
    def _explained(self, what: str, vmid: int | None) -> Iterator[None]:
        try:
            yield
        except proxmoxer.ResourceException as error:
            raise _why(error, what, vmid, self._api_spec, self._where) from error
        except requests.exceptions.SSLError as error:
            raise _why_tls(error, self._api_spec, self._url, self._where) from error
        except requests.exceptions.Timeout as error:
            hint = f"is pveproxy stuck? On the host, `pct start {self._road.vmid}` does without it"
            raise UnreachableError(f"{self._url} gave no answer to {what}", where=self._where, hint=hint) from error
        except (requests.exceptions.RequestException, proxmoxer.AuthenticationError) as error:
            hint = "is pveproxy running, and the port open from here?"
            raise UnreachableError(f"no API at {self._url}", where=self._where, hint=hint, detail=str(error)) from error


class _Pinned(HTTPAdapter):
    """Trusts the certificate with this SHA-256 fingerprint and no other, whoever signed it."""

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        options.update(assert_fingerprint=self._fingerprint, assert_hostname=False)
        super().init_poolmanager(*args, **options)

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:  # noqa: ARG002  requests' own signature
        """urllib3 checks the fingerprint instead of the chain."""
        conn.cert_reqs = "CERT_NONE"
        conn.assert_fingerprint = self._fingerprint


def _client(api: Api, url: str, token: Secret, where: str) -> Any:
    parts = urlsplit(url)
    user, separator, name = api.token_id.partition("!")
    if not separator:
        raise PreconditionError("token_id is user@realm!name", where=where, hint=f"not {api.token_id}")
    options = {
        "user": user,
        "token_name": name,
        "token_value": token.reveal(),
        "port": parts.port or 8006,
        "timeout": TIMEOUT_S,
        "verify_ssl": str(api.ca) if api.ca else True,
    }
    client = proxmoxer.ProxmoxAPI(parts.hostname, **options)
    if api.fingerprint:
        client._store["session"].mount("https://", _Pinned(api.fingerprint))  # noqa: SLF001
    return client


def _url(road: ProxmoxLxc, where: str) -> str:
    if road.api is not None and road.api.url:
        return road.api.url.rstrip("/")
    host = resolve(road.ssh, where).host
    return f"https://{f'[{host}]' if ':' in host else host}:8006"


def _data(answer: Any, url: str, where: str) -> Any:
    """proxmoxer hands an answer that isn't JSON back as data: a proxy's login page comes with status 200."""
    if isinstance(answer, dict) and isinstance(answer.get("errors"), bytes):
        page = "an HTML page" if b"<html" in answer["errors"][:2000].lower() else "something that isn't JSON"
        hint = "is a proxy's login page in between?"
        raise RemoteError(f"{url} answered with {page}", where=where, hint=hint, detail=repr(answer["errors"][:300]))
    return answer


def _no_container(vmid: int, where: str, said: str) -> PreconditionError:
    hint = "mend vmid in the inventory, and node if it is set there"
    return PreconditionError(f"no container {vmid}", where=where, hint=hint, detail=said)


def _why(error: proxmoxer.ResourceException, what: str, vmid: int | None, api: Api, where: str) -> RackhandError:
    said = f"{error.status_code} {error.status_message}: {str(error.content).strip()}"
    if error.status_code == 401:
        hint = "is the token still there, and its secret the right one?"
        return AuthError(f"the API refused {api.token_id}", where=where, hint=hint, detail=said)
    if error.status_code == 403:
        path = "/vms" if vmid is None else f"/vms/{vmid}"
        hint = f"give it VM.Audit and VM.PowerMgmt on {path} (a privilege-separated token needs an ACL of its own)"
        return PreconditionError(f"{api.token_id} may not ask for {what}", where=where, hint=hint, detail=said)
    if error.status_code >= 500 and (node := NO_NODE.search(said)):
        hint = "mend node in the inventory, or leave it out: the API finds it by the vmid"
        return PreconditionError(f"no node {node[1] or node[2]} in this cluster", where=where, hint=hint, detail=said)
    if error.status_code >= 500 and vmid is not None and "does not exist" in said:
        return _no_container(vmid, where, said)
    if error.status_code in (502, 503, 504, 595, 596, 599):
        return UnreachableError(f"the node doesn't answer: {said}", where=where, hint="is it up and in the cluster?")
    return RemoteError(f"{what}: {said}", where=where, detail=str(error.errors or ""))


def _why_tls(error: Exception, api: Api, url: str, where: str) -> PreconditionError:
    text = str(error)
    at = f"{url}'s certificate"
    pin = "pin it: api.fingerprint, from `pvenode cert info` on the host"
    if "Fingerprints did not match" in text:
        what = f"{at} has another fingerprint than {api.fingerprint}"
        hint = "compare with `pvenode cert info` on the host; was the certificate renewed, or is somebody in between?"
    elif "key usage" in text:
        what, hint = f"{at}: this Python's strict X.509 checks refuse PVE's own CA", pin
    else:
        reason = re.search(r"certificate verify failed: ([^(\"']+)", text)
        what = f"{at} can't be verified{': ' + reason.group(1).strip() if reason else ''}"
        hint = f"set api.ca to /etc/pve/pve-root-ca.pem of the host, or {pin}"
    return PreconditionError(what, where=where, hint=hint, detail=text)
