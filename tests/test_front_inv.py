"""./inv before Python runs, in a checkout with an empty lock file; a stand-in for uv makes .venv without pip, fast."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STUB = """import os, sys
def main(argv):
    print("ran", argv, "in", os.getcwd(), "with", sys.executable)
"""
TOOLS = ("sh", "readlink", "sha256sum", "flock", "id", "rm", "mv", "env", "uname")


@pytest.fixture(name="checkout")
def make_checkout(tmp_path: Path) -> Path:
    top = tmp_path / "a checkout"
    (top / "lab").mkdir(parents=True)
    (top / "rackhand").mkdir()
    shutil.copy(ROOT / "inv", top / "inv")
    shutil.copy(ROOT / "lab/apt-install", top / "lab/apt-install")
    (top / "requirements.lock").write_text("# nothing\n")
    (top / "rackhand/__init__.py").touch()
    (top / "rackhand/program.py").write_text(STUB)
    return top


@pytest.fixture(name="tools")
def make_tools(tmp_path: Path) -> Path:
    """A PATH with a few programs and no Python, apt-get or sudo; tests add scripts of their own."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    return folder


@pytest.fixture(name="uv")
def make_uv(tools: Path) -> str:
    """The PATH with a Python and a uv; what the latter installs takes as long as the file `slow` is there."""
    python = Path(sys.executable).resolve()
    (tools / "python3").symlink_to(python)
    for name in ("mkdir", "sleep"):
        (tools / name).symlink_to(str(shutil.which(name)))
    install = f'while [ -e "{tools}/slow" ]; do sleep 0.05; done'
    write_script(
        tools / "uv",
        f'''[ "$1" = venv ] || {{ {install}; exit 0; }}
for last; do :; done
exec "{python}" -m venv --without-pip "$last"''',
    )
    return str(tools)


def start(command: Path, *words: str, path: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    env = {
        **os.environ,
        "HOME": "/nonexistent",
        "PATH": path or f"{Path(sys.executable).resolve().parent}:/usr/bin:/bin",
    }
    env.pop("PYENV_ROOT", None)
    return subprocess.Popen(
        [command, *words],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(command: Path, *words: str, path: str, cwd: Path | None = None) -> tuple[int, str, str]:
    running = start(command, *words, path=path, cwd=cwd)
    out, err = running.communicate(timeout=60)
    return running.returncode, out, err


def await_(seen: Callable[[], bool], *, what: str, deadline_s: float = 30.0) -> None:
    end = time.monotonic() + deadline_s
    while not seen():
        assert time.monotonic() < end, f"never seen: {what}"
        time.sleep(0.01)


def write_script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_it_runs_through_a_symlink_from_anywhere_and_makes_the_environment_once_per_lock(
    checkout: Path, tmp_path: Path, uv: str
) -> None:
    link = tmp_path / "link to inv"
    link.symlink_to(checkout / "inv")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    status, out, err = run(link, "status", "--hosts", "a b", path=uv, cwd=elsewhere)
    assert (status, "inv: making .venv" in err) == (0, True), err
    assert out == f"ran ['status', '--hosts', 'a b'] in {elsewhere} with {checkout}/.venv/bin/python\n"
    assert run(link, path=uv, cwd=elsewhere)[2] == ""
    (checkout / "requirements.lock").write_text("# another nothing\n")
    assert "making it anew" in run(link, path=uv)[2]
    assert run(link, path=uv)[2] == ""


def test_a_run_killed_half_way_is_made_good_by_the_next(checkout: Path, tools: Path, uv: str) -> None:
    (tools / "slow").touch()
    running = start(checkout / "inv", path=uv)
    await_((checkout / ".venv/bin/python").exists, what=".venv/bin/python")
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate(timeout=10)
    assert not (checkout / ".venv/made-from").exists()
    (tools / "slow").unlink()
    status, out, err = run(checkout / "inv", path=uv)
    assert (status, "making it anew" in err, out.startswith("ran []")) == (0, True, True), err


def test_of_two_runs_at_once_one_makes_the_environment_and_both_run(checkout: Path, tools: Path, uv: str) -> None:
    (tools / "slow").touch()
    both = [start(checkout / "inv", path=uv), start(checkout / "inv", path=uv)]
    await_((checkout / ".venv/bin/python").exists, what=".venv/bin/python")
    (tools / "slow").unlink()
    told = [one.communicate(timeout=60) for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert sum("inv: making .venv" in err for _, err in told) == 1
    assert all(out.startswith("ran []") for out, _ in told)


def test_without_python_it_says_what_to_install(checkout: Path, tools: Path) -> None:
    status, _, err = run(checkout / "inv", path=str(tools))
    assert status == 4
    assert "apt-get install python3 python3-venv" in err


@pytest.fixture(name="bare_python")
def make_bare_python(tools: Path) -> str:
    """A python3 that lacks ensurepip, as Debian's does without python3-venv; returns its version."""
    real = Path(sys.executable).resolve()
    write_script(tools / "python3", f'case "$*" in *ensurepip*) exit 1 ;; esac\nexec "{real}" "$@"')
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def test_without_the_venv_module_and_apt_it_prints_the_exact_command(
    checkout: Path, tools: Path, bare_python: str
) -> None:
    status, _, err = run(checkout / "inv", path=str(tools))
    assert status == 4
    assert f"apt-get install -y --no-install-recommends python{bare_python}-venv" in err
    assert not (checkout / ".venv").exists()


def test_a_user_installs_the_venv_module_through_sudo_after_being_told(
    checkout: Path, tools: Path, bare_python: str
) -> None:
    (tools / "id").unlink()
    write_script(tools / "id", "echo 1000")
    write_script(tools / "apt-get", "exit 99")
    write_script(tools / "sudo", f'echo "$@" >>"{tools}/sudo.log"')
    status, out, err = run(checkout / "inv", path=str(tools))
    assert (status, out.startswith("ran []")) == (0, True), err
    assert f"installing with sudo apt-get: python{bare_python}-venv" in err
    assert f"apt-install python{bare_python}-venv" in (tools / "sudo.log").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_fresh_clone_in_a_path_with_blanks_lists_its_tasks(tmp_path: Path) -> None:
    clone = tmp_path / "a fresh clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    listed = subprocess.run([clone / "inv", "--list"], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert listed.returncode == 0, listed.stderr
    assert "dev.check" in listed.stdout


@pytest.mark.parametrize("has_venv", [True, False])
def test_in_somebody_elses_checkout_nothing_is_removed_and_the_owner_is_named(checkout: Path, has_venv: bool) -> None:
    """Root may write anywhere, so that the other user is nobody then, in a folder that nobody may enter."""
    with tempfile.TemporaryDirectory() as folder:
        place = shutil.copytree(checkout, Path(folder) / "theirs")
        if has_venv:
            (place / ".venv").mkdir()
            (place / ".venv/kept").touch()
        for path in (Path(folder), place, *(place / ".venv",) * has_venv):
            path.chmod(0o555)
        other = {"user": 65534, "group": 65534, "extra_groups": ()} if os.geteuid() == 0 else {}
        env = {"HOME": "/nonexistent", "PATH": "/usr/bin:/bin"}
        ended = subprocess.run([place / "inv", "--list"], capture_output=True, text=True, env=env, **other, check=False)
        kept = (place / ".venv/kept").exists()
        for path in (Path(folder), place, *(place / ".venv",) * has_venv):
            path.chmod(0o755)
    assert ended.returncode == 4
    assert kept == has_venv
    assert "not writable" in ended.stderr and "in a clone of your own" in ended.stderr
    assert "rm:" not in ended.stderr
