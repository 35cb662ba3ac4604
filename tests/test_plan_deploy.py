from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackhand.bundle import ManagedFile, manifest_of, render_bundle
from rackhand.contract.files import (
    Environment,
    FileState,
    Interpreter,
    ManifestEntry,
    Platform,
    Workspace,
)
from rackhand.errors import PreconditionError
from rackhand.facts import Facts, GpuFacts, parse_manifest
from rackhand.inventory import Env, FileSpec, Host, ProxmoxLxc, ServerSpec, Ssh
from rackhand.pins import pins_for
from rackhand.plan.deploy import LocalUpload, SendFiles, check_workspace, diff_of, plan_deploy

CASES = yaml.safe_load((Path(__file__).parent / "plans/deploy.yaml").read_text())
PLATFORM = Platform("3.11.2", "/usr/bin/python3", "x86_64", "glibc 2.36")
DIGEST = pins_for(PLATFORM, "h").digest
HOST = Host("pve1", ProxmoxLxc(Ssh("pve1"), 200), workspace="/w", python="/opt/py", env=Env(source="/root/env.sh"))
FILES = (ManagedFile("/w/b", 0o644, b"b\n"), ManagedFile("/w/rackhand/a.sh", 0o755, b"a\n"))
MODULES = {"aiohttp": "3", "orjson": "3", "uvloop": "1"}


def host_of(case: dict[str, Any]) -> Host:
    change = case.get("host", {})
    host = replace(HOST, python=change.get("python", HOST.python))
    if "source" in change:
        host = replace(host, env=Env(source=change["source"]))
    return replace(host, servers=(ServerSpec("model"),)) if change.get("servers") else host


def facts_of(case: dict[str, Any], host: Host) -> Facts:
    seen = case.get("observed", {})
    files = {file.path: FileState(file.sha256, file.mode, len(file.content), 0) for file in FILES}
    for path, change in seen.get("files", {}).items():
        base = files.pop(path, FileState("", 0o644, 0, 0))
        if change is not None:
            files[path] = replace(base, **change)
    manifest = manifest_of(FILES, None if host.python else DIGEST)
    more = {path: ManifestEntry(**entry) for path, entry in (seen.get("manifest") or {}).items()}
    modules = seen.get("modules", MODULES)
    return Facts(
        where=host.where,
        platform=PLATFORM,
        workspace=Workspace(**seen.get("workspace", {"exists": True})),
        interpreter=Interpreter(
            host.python or "venv/python",
            found=modules is not None,
            modules=modules or {},
            venv=seen.get("venv", "").replace("DIGEST", DIGEST) or None,
        ),
        environment=Environment(**seen.get("environment", {})),
        manifest=None if "manifest" in seen and not more else replace(manifest, files={**manifest.files, **more}),
        files=files,
        gpus=(GpuFacts(0, "GPU-0", "x", 1, 0),) * seen.get("gpus", 1),
        gpus_problem="nvidia-smi lists no GPU",
    )


@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_what_the_facts_lack(name: str) -> None:
    case = CASES[name]
    host = host_of(case)
    uploads = [LocalUpload(Path("/here"), dest, **known) for dest, known in case.get("uploads", {}).items()]
    if "error" in case:
        with pytest.raises(PreconditionError) as caught:
            plan_deploy(host, facts_of(case, host), FILES, uploads)
        assert str(caught.value) == case["error"]
        return
    actions = plan_deploy(host, facts_of(case, host), FILES, uploads)
    wanted = case["plan"]
    if wanted is None:
        assert actions == ()
        return
    (action,) = actions
    assert sorted(file.path for file in action.files) == sorted(wanted.get("files", []))
    assert [upload.dest for upload in action.uploads] == wanted.get("uploads", [])
    assert list(action.remove) == wanted.get("remove", [])
    assert list(action.left_alone) == wanted.get("left_alone", [])
    assert (action.venv is not None) == wanted.get("venv", False)
    assert str(action) == wanted["text"].replace("DIGEST", DIGEST)
    assert action.manifest is not None
    assert parse_manifest(action.manifest.content.decode()) == manifest_of(FILES, None if host.python else DIGEST)


@pytest.mark.parametrize(("length", "too_long"), [(88, 0), (89, 1), (200, 112)])
def test_a_workspace_whose_tmux_socket_would_be_too_long_is_refused(length: int, too_long: int) -> None:
    host = replace(HOST, workspace="/" + "w" * (length - 1))
    if not too_long:
        check_workspace(host, facts_of({}, HOST))
        return
    with pytest.raises(PreconditionError, match=rf"tmux by {too_long} bytes?; give a shorter hosts.pve1.workspace"):
        check_workspace(host, facts_of({"observed": {"workspace": {"exists": False}}}, HOST))


def test_a_diff_shows_text_and_only_names_what_is_not_text() -> None:
    seen = {
        "/w/t": FileState("old", 0o644, 4, 0, text="one\ntwo\n"),
        "/w/big": FileState("old", 0o644, 4, 0, text=None),
    }
    facts = replace(facts_of({}, HOST), files=seen)
    files = (
        ManagedFile("/w/t", 0o755, b"one\n2\n"),
        ManagedFile("/w/new", 0o644, b"new\n"),
        ManagedFile("/w/zip", 0o644, b"\xff\x00"),
        ManagedFile("/w/big", 0o644, b"big\n"),
    )
    assert diff_of(SendFiles(files, remove=("/w/gone",)), facts).splitlines() == [
        "change /w/t (6 bytes, mode 0644 -> 0755)",
        "--- /w/t",
        "+++ /w/t",
        "@@ -1,2 +1,2 @@",
        " one",
        "-two",
        "+2",
        "new /w/new (4 bytes)",
        "--- /dev/null",
        "+++ /w/new",
        "@@ -0,0 +1 @@",
        "+new",
        "new /w/zip (2 bytes)",
        "change /w/big (4 bytes)",
        "remove /w/gone",
    ]


def test_a_bundle_holds_scripts_for_every_server_and_the_users_files() -> None:
    src = Path("/here/conf.j2")
    host = replace(HOST, servers=(ServerSpec("model"),), files=(FileSpec(src, "/w/conf", 0o600, template=True),))
    gpus = [GpuFacts(index, f"GPU-{index}", "x", 1, 0) for index in (0, 1)]
    files = {file.path: file for file in render_bundle(host, gpus, {src: b"{{ host }} {{ python }}"})}
    home = "/w/rackhand"
    scripts = {f"{home}/serve-gpu0.sh", f"{home}/serve-gpu1.sh"}
    assert set(files) == {f"{home}/remote.pyz", f"{home}/env.sh", "/w/conf"} | scripts
    assert files["/w/conf"].content == b"pve1 /opt/py"
    assert {files[path].mode for path in scripts} == {0o755}


@pytest.mark.parametrize("dest", ["/w/rackhand/env.sh", "/w/rackhand/manifest.json"])
def test_a_users_file_cannot_take_the_place_of_one_of_ours(dest: str) -> None:
    src = Path("/here/x")
    with pytest.raises(PreconditionError, match="is wanted twice"):
        render_bundle(replace(HOST, files=(FileSpec(src, dest),)), [], {src: b""})


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"files": {"a": 1}}', "{"])
def test_a_manifest_that_cannot_be_read_is_none(text: str | None) -> None:
    assert parse_manifest(text) is None


def test_scripts_of_equal_servers_are_shown_once_and_an_unequal_one_by_itself() -> None:
    specs = (
        ServerSpec("m", version="0.5.11", args={"mem-fraction-static": 0.85}, gpus=(0, 1, 2, 3, 5)),
        ServerSpec("m", version="0.5.11", args={"mem-fraction-static": 0.9}, gpus=(4,)),
    )
    host = replace(HOST, servers=specs, gpus=(0, 1, 2, 3, 4, 5))
    gpus = [GpuFacts(gpu, f"GPU-{gpu}", "x", 1000, 0) for gpu in range(6)]
    files = [file for file in render_bundle(host, gpus, {}) if "serve-gpu" in file.path]
    facts = facts_of({}, HOST)
    text = diff_of(SendFiles(tuple(files)), facts)
    assert text.count("--mem-fraction-static") == 2
    assert "the same for GPU 1-3,5, apart from number, ports, log, session and digest" in text
    shown = [line.split()[1] for line in text.splitlines() if line.startswith("new ")]
    assert shown == [f"/w/rackhand/serve-gpu{gpu}.sh" for gpu in (0, 4)]
