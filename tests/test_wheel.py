"""The wheel: what `pipx install .` installs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rackhand.place import SHARE

SHARED = ("remote", "templates", "tasks.py", "requirements-remote.lock")
BUILD = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"


@pytest.fixture(name="wheel", scope="module")
def build_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By pyproject's build backend, offline."""
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run([sys.executable, "-c", BUILD, folder], cwd=SHARE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


def tracked(*paths: str) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *paths],
        cwd=SHARE,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name for name in listed.stdout.splitlines() if (SHARE / name).exists()}


def test_the_wheel_holds_the_package_and_what_it_sends_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == tracked("rackhand") | {f"rackhand/_share/{name}" for name in tracked(*SHARED)}


def test_the_wheel_needs_what_the_checkout_needs(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    told = {
        name.rpartition("/")[2]: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name
    }
    assert told["entry_points.txt"].split() == ["[console_scripts]", "rackhand", "=", "rackhand.__main__:run"]
    assert "Requires-Dist: invoke" in told["METADATA"] and "LICENSE" in told


@pytest.fixture(name="unpacked", scope="module")
def unpack(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def installed(unpacked: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", "-m", "rackhand", *words]
    env = {**os.environ, "PYTHONPATH": str(unpacked)}
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_an_installed_rackhand_makes_the_same_zipapp_as_the_checkout(unpacked: Path, tmp_path: Path) -> None:
    code = "import rackhand, sys; from rackhand.payload import build; print(rackhand.__file__, build().sha256)"
    env = {**os.environ, "PYTHONPATH": str(unpacked)}
    said = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    from rackhand.payload import build

    assert said.stdout.split() == [str(unpacked / "rackhand/__init__.py"), build().sha256]


def operator_verbs() -> list[str]:
    import tasks

    return [name for name in tasks.ns.task_names if not re.match(r"demo$|test$|(lab|dev|docs)\.", name)]


def test_an_installed_rackhand_has_the_operators_verbs_and_no_others(unpacked: Path, tmp_path: Path) -> None:
    listed = installed(unpacked, cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert sorted(re.findall(r"(?m)^  ([a-z][\w.-]*) ", listed.stdout)) == sorted(operator_verbs())


def test_the_help_of_an_installed_rackhand_names_its_own_command(unpacked: Path, tmp_path: Path) -> None:
    for verb in ("deploy", "compare"):
        told = installed(unpacked, "--help", verb, cwd=tmp_path)
        assert (told.returncode, "./inv" in told.stdout, f"Example: rackhand {verb}" in told.stdout) == (0, False, True)


def test_an_installed_rackhand_completes_itself(unpacked: Path, tmp_path: Path) -> None:
    script = installed(unpacked, "--print-completion-script", "bash", cwd=tmp_path)
    assert script.stdout.endswith("complete -o default -F _rackhand_complete rackhand\n"), script.stderr


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (
            "status",
            2,
            "no inventory 'lab' in HERE/inventory; name one, or a path, with --inventory or RACKHAND_INVENTORY",
        ),
        ("status --inventory mini", 2, "no inventory 'mini' in HERE/inventory"),
        ("lab.up", 2, "it works in a checkout of rackhand's source, as ./inv lab.up"),
        ("demo", 2, "it works in a checkout of rackhand's source, as ./inv demo"),
        ("depoly", 2, "did you mean deploy? rackhand --list shows the tasks"),
    ],
)
def test_an_installed_rackhand_says_where_the_way_ends(
    unpacked: Path, tmp_path: Path, words: str, status: int, said: str
) -> None:
    ended = installed(unpacked, *words.split(), cwd=tmp_path)
    assert ended.returncode == status
    assert said.replace("HERE", str(tmp_path)) in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_inventory_stands_in_the_current_directory_and_may_be_chosen_once_by_the_environment(
    unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inventory").mkdir()
    shutil.copy(SHARE / "inventory/example-b200.yaml", tmp_path / "inventory/mine.yaml")
    monkeypatch.setenv("RACKHAND_INVENTORY", "mine")
    told = installed(unpacked, "history", "--job", "none", cwd=tmp_path)
    assert (told.returncode, "thinking" in told.stderr) == (2, True), told.stderr


def test_what_an_installed_rackhand_advises_can_be_typed(unpacked: Path, tmp_path: Path) -> None:
    ended = installed(unpacked, "report", "--inventory", str(SHARE / "inventory/example-b200.yaml"), cwd=tmp_path)
    assert ended.returncode != 0
    assert "; rackhand record" in ended.stderr and "./inv" not in ended.stderr, ended.stderr
