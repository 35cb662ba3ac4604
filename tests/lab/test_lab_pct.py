"""The lab's pct against what was measured on Proxmox VE 8.4 and 9."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import container, pve, trouble
from lab.pve import LOCK_TIMEOUT_S, PveError
from tests.lab.conftest import QUICK, VMID, Lab

pytestmark = pytest.mark.lab

CT = str(VMID)
EXEC_USAGE = "pct exec <vmid> [<extra-args>] [OPTIONS]\n"
NO_CONF = "Configuration file 'nodes/pve-lab/lxc/999.conf' does not exist\n"
UNFIT_VMID = "Parameter verification failed.\nvmid: invalid format - value does not look like a valid VM ID\n"
LIST = """\
VMID       Status     Lock         Name                \n\
200        running                 gpu200              \n\
"""

# words, exit status, stdout, stderr (None: not compared)
SEMANTICS: dict[str, tuple[list[str], int, str, str | None]] = {
    "argv is passed whole": (["exec", CT, "--", "printf", "[%s]", "a b", "$HOME", ";", ""], 0, "[a b][$HOME][;][]", ""),
    "the command's status": (["exec", CT, "--", "sh", "-c", "exit 7"], 7, "", ""),
    "no such command": (["exec", CT, "--", "nosuch"], 127, "", None),
    "not executable": (["exec", CT, "--", "/etc/passwd"], 126, "", None),
    "ended by a signal": (["exec", CT, "--", "sh", "-c", "kill -TERM $$"], 143, "", ""),
    "no dashes, no options": (["exec", CT, "echo", "hi"], 0, "hi\n", ""),
    "no dashes: options are eaten": (
        ["exec", CT, "ls", "-l"],
        255,
        "",
        f"Unknown option: l\n400 unable to parse option\n{EXEC_USAGE}",
    ),
    "no command": (["exec", CT, "--"], 255, "", "missing command\n"),
    "no vmid": (["exec"], 255, "", f"400 not enough arguments\n{EXEC_USAGE}"),
    "a vmid that is no number": (
        ["exec", "gpu", "--", "true"],
        255,
        "",
        f"400 Parameter verification failed.\nvmid: type check ('integer') failed - got 'gpu'\n{EXEC_USAGE}",
    ),
    "exec: no such container": (["exec", "999", "--", "true"], 2, "", NO_CONF),
    "status: no such container": (["status", "999"], 2, "", NO_CONF),
    "unknown verb": (["frobnicate"], 255, "", None),
    "status": (["status", CT], 0, "status: running\n", ""),
    "list": (["list"], 0, LIST, ""),
    "start of a running one": (["start", CT], 255, "", "CT 200 already running\n"),
    "start: no such container": (["start", "999"], 255, "", NO_CONF),
    "stop: no such container": (["stop", "999"], 255, "", "CT 999 not running\n"),
    "shutdown: no such container": (["shutdown", "999"], 255, "", "CT 999 not running\n"),
    "reboot: no such container": (["reboot", "999"], 255, "", "VM 999 not running\n"),
    "a vmid below 100": (["status", "99"], 255, "", f"400 {UNFIT_VMID}pct status <vmid> [OPTIONS]\n"),
    "a vmid with a leading zero": (["exec", "0722", "--", "true"], 255, "", f"400 {UNFIT_VMID}{EXEC_USAGE}"),
    "a vmid of ten digits": (["stop", "1000000000"], 255, "", f"400 {UNFIT_VMID}pct stop <vmid> [OPTIONS]\n"),
    "TERM is linux": (["exec", CT, "--", "printenv", "TERM"], 0, "linux\n", ""),
    "push: no source": (
        ["push", CT, "/nosuch", "/workspace/a"],
        0,
        "",
        "failed to open /nosuch for reading\n",
    ),
    "push: no directory": (
        ["push", CT, "/etc/hostname", "/workspace/no/a"],
        0,
        "",
        "failed to create file: /workspace/no/a: No such file or directory\n",
    ),
    "push: unknown user": (
        ["push", CT, "/etc/hostname", "/workspace/a", "--user", "nemo"],
        0,
        "",
        "failed to get uid for: nemo\n",
    ),
    "push: bad mode": (["push", CT, "/etc/hostname", "/workspace/a", "--perms", "9"], 0, "", "invalid mode: '9'\n"),
    "push: no such container": (
        ["push", "999", "/etc/hostname", "/a"],
        255,
        "",
        "can only push files to a running CT\n",
    ),
    "pull: no such container": (["pull", "999", "/a", "/tmp/a"], 255, "", "can only pull files from a running VM\n"),
    "push: no target": (
        ["push", CT, "/etc/hostname"],
        255,
        "",
        "400 not enough arguments\npct push <vmid> <file> <destination> [OPTIONS]\n",
    ),
}


def test_pct_answers_as_a_real_one(lab: Lab) -> None:
    for name, (words, code, out, err) in SEMANTICS.items():
        answer = lab.pct(*words)
        assert (answer.code, answer.out) == (code, out), name
        assert err is None or answer.err == err, name
        assert err is not None or answer.err, name


def test_config_is_sorted_with_raw_lines_last(lab: Lab) -> None:
    keys = [line.partition(": ")[0] for line in lab.pct("config", CT).out.splitlines()]
    plain = [key for key in keys if not key.startswith("lxc.")]
    assert plain == sorted(plain) and "hostname" in plain
    assert keys[len(plain) :] == ["lxc.cgroup2.devices.allow"] * 2


def test_the_callers_environment_leaks_in_unless_it_is_told_not_to(lab: Lab) -> None:
    leaked = lab.pct("exec", CT, "--", "env", env={"SECRET": "x"}).out.splitlines()
    assert {"SECRET=x", "PATH=/sbin:/bin:/usr/sbin:/usr/bin", "HOME=/root"} <= set(leaked)
    clean = lab.pct("exec", CT, "--keep-env", "0", "--", "env", env={"SECRET": "x"}).out.splitlines()
    assert not [line for line in clean if line.startswith(("SECRET=", "HOME="))]


@pytest.mark.parametrize(
    ("env", "received"),
    [
        ({}, "\ufffd\ufffda"),
        ({"LANG": "C"}, "\ufffd\ufffda"),
        ({"LANG": "C.UTF-8"}, "\u00e9a"),
        ({"LC_CTYPE": "en_US.utf8"}, "\u00e9a"),
    ],
)
def test_arguments_are_decoded_by_the_hosts_locale(lab: Lab, env: dict[str, str], received: str) -> None:
    assert lab.pct("exec", CT, "--", "printf", "%s", "\u00e9a", env=env).out == received


def test_over_ssh_there_is_no_locale(lab: Lab) -> None:
    assert lab.ssh(f"pct exec {CT} -- printf %s '\u00e9'").out == "\ufffd\ufffd"


def test_stdin_passes_every_byte_to_its_end(lab: Lab) -> None:
    data = os.urandom(300_000)
    assert lab.ssh(f"pct exec {CT} -- sh -c 'cat >/workspace/bytes; echo ok; echo no >&2'", stdin=data)[:3] == (
        0,
        "ok\n",
        "no\n",
    )
    assert (lab.workspace / "bytes").read_bytes() == data


def test_a_terminal_mangles_line_ends(lab: Lab) -> None:
    seen = lab.run("ssh", "-tt", "-F", str(lab.ssh_config), "pve-lab", f"pct exec {CT} -- echo hi").out
    assert seen == "hi\r\r\n"


def test_exec_into_a_frozen_container_hangs(lab: Lab) -> None:
    trouble.freeze_container(lab.place, VMID)
    with pytest.raises(subprocess.TimeoutExpired):
        lab.pct("exec", CT, "--", "true", timeout_s=1)
    trouble.thaw_container(lab.place, VMID)
    assert lab.pct("exec", CT, "--", "true").code == 0


def test_exec_in_a_container_that_is_stopped_meanwhile_ends_with_137(lab: Lab) -> None:
    argv = [str(lab.place.state / "bin/pct"), "exec", CT, "--", "sh", "-c", "echo on; exec sleep 100"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None and run.stdout.readline() == b"on\n"
        assert lab.pct("stop", CT).code == 0
        assert run.wait(timeout=10) == 137


def test_power_verbs_refuse_what_is_already_so(lab: Lab) -> None:
    assert lab.pct("shutdown", CT, "--timeout", "20") == (0, "", "")
    assert lab.pct("status", CT).out == "status: stopped\n"
    assert lab.pct("exec", CT, "--", "true") == (255, "", "container '200' not running!\n")
    assert lab.pct("push", CT, "/etc/hostname", "/workspace/a") == (255, "", "can only push files to a running CT\n")
    assert lab.pct("stop", CT) == (255, "", "CT 200 not running\n")
    assert lab.ssh(f"pct start {CT}") == (0, "", "")
    assert lab.pct("exec", CT, "--", "true").code == 0
    assert lab.pct("reboot", CT).code == 0
    assert lab.pct("exec", CT, "--", "nvidia-smi", "-L").out.count("GPU-") == QUICK.gpus


def test_a_backup_lock_stops_power_verbs_but_not_exec(lab: Lab) -> None:
    trouble.lock_container(lab.place, VMID)
    assert lab.pct("stop", CT) == (255, "", "CT is locked (backup)\n")
    assert "running    backup       gpu200" in lab.pct("list").out
    assert lab.pct("exec", CT, "--", "true").code == 0


def test_push_writes_in_place_through_links_and_keeps_the_mode(lab: Lab, tmp_path: Path) -> None:
    target = lab.workspace / "target"
    target.write_text("a longer text than the new one")
    target.chmod(0o600)
    (lab.workspace / "link").symlink_to("/workspace/target")
    inode = target.stat().st_ino
    (tmp_path / "new").write_text("new")
    assert lab.pct("push", CT, str(tmp_path / "new"), "/workspace/link") == (0, "", "")
    assert (target.read_text(), target.stat().st_ino, stat.S_IMODE(target.stat().st_mode)) == ("new", inode, 0o600)
    assert (
        lab.pct("push", CT, "/dev/stdin", "/workspace/target", "--perms", "750", "--user", "1", stdin=b"in").code == 0
    )
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode), target.stat().st_uid) == ("in", 0o750, 1)


@pytest.mark.parametrize(("umask", "mode"), [("022", 0o644), ("077", 0o600), ("000", 0o666)])
def test_a_new_file_of_push_has_what_the_callers_umask_leaves_of_0666(lab: Lab, umask: str, mode: int) -> None:
    answer = lab.run("sh", "-c", f"umask {umask}; pct push {CT} /etc/hostname /workspace/new{umask}")
    assert answer == (0, "", "")
    assert stat.S_IMODE((lab.workspace / f"new{umask}").stat().st_mode) == mode


def test_a_start_may_warn_and_succeed(lab: Lab) -> None:
    trouble.stop_container(lab.place, VMID)
    trouble.warn_at_start(lab.place, VMID, "old systemd")
    assert lab.pct("start", CT) == (0, "", "WARN: old systemd\nTask finished with 1 warning(s)!\n")
    assert lab.pct("status", CT).out == "status: running\n"


def test_push_over_a_running_program_exits_0_and_says_text_file_busy(lab: Lab) -> None:
    lab.in_container("sh", "-c", "cp /bin/sleep /workspace/prog; setsid /workspace/prog 60 >/dev/null 2>&1 &")
    answer = lab.pct("push", CT, "/etc/hostname", "/workspace/prog")
    assert answer == (0, "", "failed to create file: /workspace/prog: Text file busy\n")
    lab.in_container("pkill", "-f", "/workspace/prog")


def test_pull_copies_and_leaves_an_empty_file_when_it_fails(lab: Lab, tmp_path: Path) -> None:
    (lab.workspace / "there").write_text("text")
    assert lab.pct("pull", CT, "/workspace/there", str(tmp_path / "a")) == (0, "", "")
    assert (tmp_path / "a").read_text() == "text"
    failed = lab.pct("pull", CT, "/workspace/nosuch", str(tmp_path / "b"))
    assert failed == (0, "", "failed to open /workspace/nosuch: No such file or directory\n")
    assert (tmp_path / "b").read_text() == ""


def test_a_push_holds_the_lock_until_it_is_done_and_exec_does_not_mind(lab: Lab) -> None:
    argv = [str(lab.place.state / "bin/pct"), "push", CT, "/dev/stdin", "/workspace/slow"]
    lock = lab.place.lock_dir / f"pve-config-{CT}.lock"
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as first:
        assert first.stdin is not None
        first.stdin.write(b"begin")
        first.stdin.flush()
        deadline = time.monotonic() + 10
        while not (lab.workspace / "slow").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        with lock.open("r+") as handle, pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert lab.pct("exec", CT, "--", "cat", "/workspace/slow").code == 0
        second: list[tuple[int, str, str]] = []
        waiter = threading.Thread(
            target=lambda: second.append(lab.pct("push", CT, "/etc/hostname", "/workspace/second"))
        )
        waiter.start()
        first.stdin.close()
        waiter.join(timeout=20)
    assert second[0][0] == 0 and (lab.workspace / "second").exists()


def test_a_lock_that_is_kept_ends_in_a_timeout(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert LOCK_TIMEOUT_S == 10
    with (
        pve.config_lock(lab.place, VMID),
        pytest.raises(PveError) as caught,
        pve.config_lock(lab.place, VMID, timeout_s=0.1),
    ):
        pass
    assert str(caught.value) == "can't lock file '/run/lock/lxc/pve-config-200.lock' - got timeout"
    assert caught.value.code == 4
    assert capsys.readouterr().err == "trying to acquire lock...\n"


def test_every_call_is_counted(lab: Lab) -> None:
    lab.pct("status", CT)
    lab.ssh(f"pct exec {CT} -- true")
    assert [(call["verb"], call["argv"][1]) for call in lab.pct_calls()] == [("status", CT), ("exec", CT)]


def test_a_call_can_be_as_slow_as_a_real_one(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(QUICK._replace(pct_delay_s=0.8))
    lab.pct("list")
    assert lab.pct_calls()[0]["seconds"] >= 0.8


def test_a_restart_gives_back_the_gpus_memory(lab: Lab) -> None:
    claim = lab.place.gpu_dir(VMID) / "claims/1-1.json"
    claim.write_text("{}")
    container.stop(lab.place, VMID)
    assert lab.pct("start", CT).code == 0
    assert not claim.exists()
