"""The PVE API over HTTPS, as far as the product needs it: version, resources, containers, power as tasks.

Run as a daemon by lab.host. Tokens only: root@pam!rackhand may do everything; root@pam!noacl is privilege-separated and
has no ACL. Errors stand in the reason phrase, as on a real host. Power verbs act on the lab's real containers.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import ssl
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qs, unquote, urlsplit

from lab import container, pve
from lab.api_tasks import NoTask, Task, Tasks
from lab.api_values import ApiError, check_values, unfit
from lab.place import API_PORT, NO_ACL_TOKEN_ID, NODE, TOKEN_ID, LabOptions, Place, read_place
from lab.pve import PveError

GIB = 1 << 30
UNAUTHORIZED_S = 3.0
"""Every 401 comes so late."""
PRIVILEGES = {"GET": "VM.Audit", "POST": "VM.PowerMgmt"}


class Request(NamedTuple):
    """What a route sees. `words` are the path's variable parts, `user` is the token's full name."""

    place: Place
    lab: LabOptions
    tasks: Tasks
    words: tuple[str, ...]
    values: dict[str, str]
    user: str

    @property
    def vmid(self) -> int:
        return int(self.words[1])


def _version(_: Request) -> Any:
    return {"version": "8.4.1", "release": "8.4", "repoid": "2a5fa54a8503f96d"}


def _nodes(_: Request) -> Any:
    return [{"node": NODE, "status": "online", "type": "node", "id": f"node/{NODE}", "level": "", "maxcpu": 64}]


def _resources(request: Request) -> Any:
    kind = request.values.get("type", "")
    if kind not in ("", "vm", "node", "storage", "sdn"):
        raise unfit({"type": f"value '{kind}' does not have a value in the enumeration 'vm, storage, node, sdn'"})
    nodes = [{"id": f"node/{NODE}", "type": "node", "node": NODE, "status": "online"}]
    guests = [
        {"id": f"lxc/{vmid}", "type": "lxc", "node": NODE, "template": 0, **_guest(request.place, vmid)}
        for vmid in pve.vmids(request.place)
        if request.user == TOKEN_ID
    ]
    return (nodes if kind in ("", "node") else []) + (guests if kind in ("", "vm") else [])


def _containers(request: Request) -> Any:
    return [_in_list(request.place, vmid) for vmid in pve.vmids(request.place)]


def _current(request: Request) -> Any:
    pid = container.init_pid(request.place, request.vmid)
    return {"ha": {"managed": 0}, **_in_list(request.place, request.vmid), **({"pid": pid} if pid else {})}


def _in_list(place: Place, vmid: int) -> dict[str, Any]:
    """A guest as its node shows it; the cluster's resources say maxcpu instead of cpus."""
    found = {"type": "lxc", **_guest(place, vmid)}
    found["cpus"] = found.pop("maxcpu")
    return found


def _guest(place: Place, vmid: int) -> dict[str, Any]:
    conf = dict(pve.read_conf(place, vmid))
    pid = container.init_pid(place, vmid)
    found = {
        "vmid": vmid,
        "name": conf["hostname"],
        "status": "running" if pid else "stopped",
        "uptime": _uptime_s(pid) if pid else 0,
        "maxcpu": int(conf["cores"]),
        "maxmem": int(conf["memory"]) << 20,
        "maxdisk": 400 * GIB,
        "cpu": 0,
        "mem": 0,
        "disk": 0,
    }
    return {**found, "lock": conf["lock"]} if "lock" in conf else found


def _uptime_s(pid: int) -> int:
    try:
        return int(time.time() - Path(f"/proc/{pid}").stat().st_ctime)
    except FileNotFoundError:
        return 0


def _config(request: Request) -> Any:
    pairs = pve.read_conf(request.place, request.vmid)
    plain = {key: int(value) if value.isdigit() else value for key, value in pairs if not key.startswith("lxc.")}
    raw = [[key, value] for key, value in pairs if key.startswith("lxc.")]
    digest = hashlib.sha1(request.place.conf(request.vmid).read_bytes()).hexdigest()  # noqa: S324
    return {**plain, "lxc": raw, "digest": digest}


def _start(request: Request) -> Any:
    place, vmid = request.place, request.vmid
    pve.check_can_start(place, vmid)
    return request.tasks.start("vzstart", vmid, request.user, lambda: pve.start(place, vmid, request.lab))


def _stop(request: Request) -> Any:
    place, vmid = request.place, request.vmid
    pve.check_can_stop(place, vmid)
    return request.tasks.start("vzstop", vmid, request.user, lambda: pve.stop(place, vmid))


def _shutdown(request: Request) -> Any:
    place, vmid = request.place, request.vmid
    timeout_s, force = float(request.values.get("timeout", "60")), request.values.get("forceStop", "0") == "1"
    pve.check_can_stop(place, vmid)
    work = lambda: pve.shutdown(place, vmid, timeout_s=timeout_s, force=force)  # noqa: E731
    return request.tasks.start("vzshutdown", vmid, request.user, work)


def _reboot(request: Request) -> Any:
    place, vmid = request.place, request.vmid
    if not container.is_running(place, vmid):
        raise PveError(f"VM {vmid} not running")
    return request.tasks.start("vzreboot", vmid, request.user, lambda: pve.reboot(place, vmid, request.lab))


def _task_status(request: Request) -> Any:
    return _task(request).status()


def _task_log(request: Request) -> Any:
    return _task(request).lines()


def _task(request: Request) -> Task:
    try:
        return request.tasks.get(request.words[1])
    except NoTask as error:
        raise unfit({"upid": str(error)}) from None


GUEST = r"/nodes/([^/]+)/lxc/([^/]+)"
ROUTES: tuple[tuple[str, str, Callable[[Request], Any], dict[str, str]], ...] = (
    ("GET", r"/version", _version, {}),
    ("GET", r"/nodes", _nodes, {}),
    ("GET", r"/cluster/resources", _resources, {"type": "string"}),
    ("GET", r"/nodes/([^/]+)/lxc", _containers, {}),
    ("GET", GUEST + "/status/current", _current, {}),
    ("GET", GUEST + "/config", _config, {"current": "boolean", "snapshot": "string"}),
    ("POST", GUEST + "/status/start", _start, {"debug": "boolean", "skiplock": "boolean"}),
    ("POST", GUEST + "/status/stop", _stop, {"overrule-shutdown": "boolean", "skiplock": "boolean"}),
    ("POST", GUEST + "/status/shutdown", _shutdown, {"forceStop": "boolean", "timeout": "integer"}),
    ("POST", GUEST + "/status/reboot", _reboot, {"timeout": "integer"}),
    ("GET", r"/nodes/([^/]+)/tasks/([^/]+)/status", _task_status, {}),
    (
        "GET",
        r"/nodes/([^/]+)/tasks/([^/]+)/log",
        _task_log,
        {"start": "integer", "limit": "integer", "download": "boolean"},
    ),
)
"""Method, path, what it does, and its parameters beside those of the path."""


class Server(ThreadingHTTPServer):
    """Hands each connection to a thread before TLS begins, so that a silent client blocks nobody."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, state: Path) -> None:
        self.place, self.lab = read_place(state)
        self.tasks = Tasks()
        self.tokens = {
            TOKEN_ID: self.place.token.read_text().strip(),
            NO_ACL_TOKEN_ID: self.place.no_acl_token.read_text().strip(),
        }
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(self.place.state / "pve-ssl.pem", self.place.state / "pve-ssl.key")
        super().__init__((self.place.address, API_PORT), Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(30)
        try:
            with self.tls.wrap_socket(request, server_side=True) as secure:
                super().finish_request(cast("socket.socket", secure), client_address)
        except OSError as error:
            sys.stderr.write(f"{client_address[0]}: {error}\n")


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "pve-api-daemon/3.0"
    sys_version = ""
    server: Server

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length).decode()
        try:
            self._send(200, "OK", {"data": self._route(body)})
        except ApiError as error:
            if error.status == 401:
                time.sleep(UNAUTHORIZED_S)
                return self._send(401, error.reason, None)
            found: dict[str, Any] = {"data": None, "message": f"{error.reason}\n"}
            self._send(error.status, error.reason, {**found, "errors": error.errors} if error.errors else found)
        except PveError as error:
            self._send(500, str(error), {"data": None, "message": f"{error}\n"})

    def _route(self, body: str) -> Any:
        url = urlsplit(self.path)
        user = self._user()
        path = url.path.removeprefix("/api2/json")
        for method, pattern, route, parameters in ROUTES:
            match = re.fullmatch(pattern, path)
            if not match or method != self.command:
                continue
            words = tuple(unquote(word) for word in match.groups())
            values = {name: found[-1] for name, found in parse_qs(body or url.query, keep_blank_values=True).items()}
            _check_node(words)
            check_values(words[1] if pattern.startswith(GUEST) else None, values, parameters)
            _check_privilege(user, method, words, pattern)
            return route(Request(self.server.place, self.server.lab, self.server.tasks, words, values, user))
        raise ApiError(501, f"Method '{self.command} {path}' not implemented")

    def _user(self) -> str:
        kind, _, credential = self.headers.get("Authorization", "").partition("=")
        if kind != "PVEAPIToken":
            raise ApiError(401, "No ticket")
        name, _, value = credential.partition("=")
        if name not in self.server.tokens:
            raise ApiError(401, f"no such token '{name.partition('!')[2]}' for user '{name.partition('!')[0]}'")
        if value != self.server.tokens[name]:
            raise ApiError(401, "invalid token value!")
        return name

    def _send(self, status: int, reason: str, answer: dict[str, Any] | None) -> None:
        data = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status, " ".join(reason.split()))
        self.send_header("Content-Type", "application/json;charset=UTF-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base class's name
        """The log has no need of each request."""


def _check_node(words: tuple[str, ...]) -> None:
    if words and words[0] != NODE:
        raise ApiError(500, f"hostname lookup '{words[0]}' failed - failed to get address info for: {words[0]}")


def _check_privilege(user: str, method: str, words: tuple[str, ...], pattern: str) -> None:
    if pattern.startswith(GUEST) and user != TOKEN_ID:
        raise ApiError(403, f"Permission check failed (/vms/{words[1]}, {PRIVILEGES[method]})")


def main(state: str) -> None:
    Server(Path(state)).serve_forever(poll_interval=60)
