"""The lab as a whole: it comes up, looks like a fresh machine, and goes without a trace, whatever happened to it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import cgroups, container, host, sshd, trouble
from lab.place import LabError, LabOptions, place_of
from tests.lab.conftest import CHECKOUT, QUICK, VMID, Lab

pytestmark = pytest.mark.lab

UP = """import sys; from pathlib import Path; from lab import host
host.up(Path(sys.argv[1]), state=Path(sys.argv[2]))"""


def traces(state: Path) -> dict[str, set[str]]:
    """Everything on this machine that could belong to a lab."""
    place = place_of(CHECKOUT, state)
    names = {place.cgroup, str(state)}
    processes = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            texts = [(folder / name).read_text() for name in ("cmdline", "cgroup", "mountinfo")]
            texts.append(str((folder / "cwd").readlink()))
        except OSError:
            continue
        if int(folder.name) != os.getpid() and any(name in text for name in names for text in texts):
            processes.add(f"{folder.name} {texts[0]}")
    listing = {"processes": processes, "mounts": set(Path("/proc/self/mounts").read_text().splitlines())}
    listing["links"] = {path.name for path in Path("/sys/class/net").iterdir()}
    listing["groups"] = {str(path) for top in cgroups.hierarchies() for path in top.glob("*") if path.name in names}
    listing["run"] = {
        str(path) for top in ("/run/sshd", "/run/lxc") for path in Path(top).rglob("*") if _names(path, names)
    }
    listing["files"] = {str(path) for path in state.parent.glob(f"{state.name}*")}
    return listing


def _names(path: Path, names: set[str]) -> bool:
    return any(name.strip("/") in str(path) for name in names)


def test_down_leaves_nothing_behind(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    state = tmp_path / "state"
    before = traces(state)
    lab = make_lab()
    script = "tmux -S /tmp/t new-session -d sleep 500; setsid sleep 500 >/dev/null 2>&1 &"
    left_running = lab.pct("exec", str(VMID), "--", "sh", "-c", script)
    assert left_running.code == 0
    during = traces(state)
    assert all(during[kind] > before[kind] for kind in ("processes", "groups", "run", "files")), during
    host.down(CHECKOUT, state=state)
    assert traces(state) == before


def test_a_second_up_leaves_a_running_lab_alone(lab: Lab) -> None:
    before = container.init_pid(lab.place, VMID), sshd.listener(lab.place)
    host.up(CHECKOUT, lab.options, state=lab.place.state)
    assert (container.init_pid(lab.place, VMID), sshd.listener(lab.place)) == before
    assert host.status(CHECKOUT, state=lab.place.state).is_up


def test_up_starts_what_ended(lab: Lab) -> None:
    trouble.stop_container(lab.place, VMID)
    trouble.stop_sshd(lab.place)
    broken = host.status(CHECKOUT, state=lab.place.state)
    assert (broken.sshd, broken.containers, broken.is_up) == (False, {VMID: False}, False)
    host.up(CHECKOUT, lab.options, state=lab.place.state)
    assert lab.ssh(f"pct exec {VMID} -- hostname").out == f"gpu{VMID}\n"


def test_a_running_lab_with_other_options_is_not_replaced(lab: Lab) -> None:
    with pytest.raises(LabError, match="other options; take it down first") as caught:
        host.up(CHECKOUT, QUICK._replace(gpus=7), state=lab.place.state)
    assert caught.value.exit_code == 4
    assert host.status(CHECKOUT, state=lab.place.state).is_up


@pytest.mark.usefixtures("root_only")
@pytest.mark.parametrize("seen", ["bin", "lab.json", "host's group"])
def test_after_a_killed_up_both_down_and_up_work(tmp_path: Path, seen: str) -> None:
    state = tmp_path / "state"
    before = traces(state)
    name = place_of(CHECKOUT, state).cgroup
    marks = [top / name / "host" for top in cgroups.hierarchies()] if seen == "host's group" else [state / seen]
    run = subprocess.Popen([sys.executable, "-c", UP, str(CHECKOUT), str(state)], cwd=CHECKOUT)
    while run.poll() is None and not any(mark.exists() for mark in marks):
        time.sleep(0.001)
    run.send_signal(signal.SIGKILL)
    run.wait()
    try:
        if seen != "bin":
            assert host.status(CHECKOUT, state=host.up(CHECKOUT, state=state).state).is_up
    finally:
        host.down(CHECKOUT, state=state)
    assert traces(state) == before


def test_it_works_in_a_path_with_blanks_beside_another_lab(
    lab: Lab, make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    root = tmp_path / "a check out"
    for name in ("lab", "rackhand"):
        shutil.copytree(CHECKOUT / name, root / name)
    other = make_lab(root=root, name="a check out/.lab")
    assert other.place.address != lab.place.address
    assert other.ssh(f"pct exec {VMID} -- nvidia-smi -L").out.count("GPU-") == QUICK.gpus
    assert other.ssh("hostname", alias="gpu-ssh").out == f"gpu{VMID}\n"
    assert other.pct("push", str(VMID), "/etc/hostname", "/workspace/a").err == ""
    assert (other.workspace / "a").exists() and not (lab.workspace / "a").exists()


@pytest.mark.usefixtures("root_only")
def test_a_path_that_an_overlay_cannot_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="overlay's path can't hold :"):
        host.up(CHECKOUT, state=tmp_path / "a:b")
    assert not list(tmp_path.iterdir())


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="needs root") as caught:
        host.up(CHECKOUT, state=tmp_path / "state")
    assert caught.value.exit_code == 4


@pytest.mark.usefixtures("root_only")
def test_missing_packages_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host, "missing_packages", lambda: ("lxc", "tmux"))
    with pytest.raises(LabError, match="apt-get install -y lxc tmux"):
        host.up(CHECKOUT, state=tmp_path / "state")


@pytest.mark.usefixtures("root_only")
def test_down_of_nothing_is_fine(tmp_path: Path) -> None:
    host.down(CHECKOUT, state=tmp_path / "state")
    assert not host.status(CHECKOUT, state=tmp_path / "state").is_there
    assert not list(tmp_path.iterdir())


FRESH = [
    ("hostname", f"gpu{VMID}\n"),
    ("ls /home /root/.ssh; ls -d /workspace", "/home:\n\n/root/.ssh:\n/workspace\n"),
    ("find /tmp -type f -not -path CHECKOUT'/*'", ""),
    ("cd / && ls run", "rackhand-lab\n"),
    ("touch CHECKOUT/x 2>&1 || true", "touch: cannot touch 'CHECKOUT/x': Read-only file system\n"),
    ("ls -A CHECKOUT/.lab 2>&1 | grep -v 'No such file' || true", ""),
    ("df --output=fstype /dev/shm /run | tail -n +2", "tmpfs\ntmpfs\n"),
    ("ip -o link | grep -vc 'lo: .*UP'; ip -o link | grep -c 'lo: .*UP'", "0\n1\n"),
    ("/opt/sglang/bin/python -c 'import aiohttp, orjson, uvloop; print(1)'", "1\n"),
    ("/opt/sglang/bin/python -c 'import sys; print(sys.prefix)'", "/opt/sglang\n"),
    (
        ". /root/sglang_env.sh >/dev/null; echo $LD_LIBRARY_PATH | tr : '\\n' | wc -l; ls -d $CUDA_HOME/bin",
        "9\nCUDA/bin\n",
    ),
    ("cd /tmp; /opt/sglang/bin/python -m sglang.launch_server --no-such-flag 2>/dev/null; echo $?", "2\n"),
    ("nvidia-smi -L | wc -l", f"{QUICK.gpus}\n"),
    ("ls -1 /proc/1/root >/dev/null && cat /proc/1/comm", "rackhand-lab-in\n"),
]


def test_the_container_is_a_fresh_gpu_machine(lab: Lab) -> None:
    cuda = f"/opt/sglang/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages/nvidia/cu13"
    for command, expected in FRESH:
        answer = lab.in_container("/bin/bash", "-c", command.replace("CHECKOUT", shlex.quote(str(CHECKOUT))))
        wanted = expected.replace("CHECKOUT", str(CHECKOUT)).replace("CUDA", cuda)
        assert answer.out == wanted, (command, answer.err)


def test_no_mount_of_the_lab_is_seen_on_the_host(lab: Lab) -> None:
    assert str(lab.place.state) not in Path("/proc/self/mounts").read_text()


def test_the_disk_can_be_small_and_full(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(QUICK._replace(disk_mib=1))
    pushed = lab.pct("push", str(VMID), "/dev/stdin", "/workspace/big", stdin=os.urandom(3 << 20))
    assert pushed == (0, "", "")
    assert int(lab.in_container("stat", "-c", "%s", "/workspace/big").out) == 1 << 20
    assert lab.in_container("sh", "-c", "echo >/workspace/more").code == 1


def test_a_lab_can_have_several_containers(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(LabOptions(gpus=1, more_vmids=(201,)))
    assert [line.split()[0] for line in lab.pct("list").out.splitlines()] == ["VMID", "200", "201"]
    assert lab.pct("exec", "201", "--", "hostname").out == "gpu201\n"


def test_sftp_goes_to_the_host_and_plain_ssh_into_the_container(lab: Lab, tmp_path: Path) -> None:
    batch = tmp_path / "batch"
    batch.write_text(f"put /etc/os-release {tmp_path}/on-host\n")
    sftp = ["sftp", "-F", str(lab.ssh_config), "-b", str(batch)]
    assert lab.run(*sftp, "pve-lab").code == 0
    assert (tmp_path / "on-host").exists()
    batch.write_text("put /etc/os-release /workspace/inside\n")
    assert lab.run(*sftp, "gpu-ssh").code == 0
    assert (lab.workspace / "inside").exists()


def test_a_frozen_host_answers_nothing_and_then_goes_on(lab: Lab) -> None:
    with trouble.frozen_sshd(lab.place), pytest.raises(subprocess.TimeoutExpired):
        lab.ssh("true", timeout_s=1)
    assert lab.ssh("echo there").out == "there\n"


def test_a_cut_connection_leaves_its_command_running(lab: Lab) -> None:
    argv = ["ssh", "-F", str(lab.ssh_config), "pve-lab", f"pct exec {VMID} -- sh -c 'echo on; exec sleep 321'"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as client:
        assert client.stdout is not None and client.stdout.readline() == b"on\n"
        trouble.cut_ssh(lab.place)
        assert client.wait(timeout=10) == 255
    assert lab.in_container("pkill", "-x", "-f", "sleep 321").code == 0


def test_a_changed_host_key_is_noticed_until_it_is_restored(lab: Lab) -> None:
    trouble.change_host_key(lab.place)
    refused = lab.ssh("true")
    assert refused.code == 255 and "HOST IDENTIFICATION HAS CHANGED" in refused.err
    trouble.restore_host_key(lab.place)
    assert lab.ssh("true").code == 0


def test_the_workspace_can_refuse_writes_from_the_start_or_later(lab: Lab, make_lab: Callable[..., Lab]) -> None:
    touch = ("touch", "/workspace/new")
    refusing = make_lab(QUICK._replace(read_only_workspace=True))
    assert "Read-only file system" in refusing.in_container(*touch).err
    trouble.set_workspace_access(lab.place, VMID, read_only=True)
    assert "Read-only file system" in lab.in_container(*touch).err
    trouble.set_workspace_access(lab.place, VMID, read_only=False)
    assert lab.in_container(*touch).code == 0
