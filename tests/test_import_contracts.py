"""Every import contract of pyproject.toml is seen red: an import that it forbids breaks it, and it alone."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import tomllib

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("rackhand", "remote", "lab", "demo", "dev")
FORBIDDEN = {
    "layers of rackhand, every module in one: what is sent and decided stands below what reaches out": (
        "rackhand/transport/via.py",
        "import rackhand.observe",
    ),
    "the container side imports contract and engines only": ("remote/serving/ask.py", "import rackhand.command"),
    "layers of remote: verbs, then the generator and the servers, then prompts, then the output": (
        "remote/output/shards.py",
        "import remote.generator.feeder",
    ),
    "contract and engines travel: standard library only": ("rackhand/contract/watch.py", "import yaml"),
    "nobody but tasks, tests, the demo and dev imports the lab": ("rackhand/tell.py", "import lab.place"),
    "the lab imports capacity, contract and engines at most": ("lab/place.py", "import rackhand.errors"),
    "deciding modules reach nothing": ("rackhand/plan/deploy.py", "import subprocess"),
    "rich has one importer": ("rackhand/tell.py", "import rich"),
    "fabric and paramiko have one importer": ("rackhand/agent.py", "import paramiko"),
    "proxmoxer and requests have one importer, httpx none yet": ("rackhand/workflows/deploy.py", "import httpx"),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("contracts")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def broken(folder: Path) -> set[str]:
    """Names of the contracts that lint-imports finds broken; it folds long ones."""
    linter = Path(sysconfig.get_path("scripts"), "lint-imports")
    said = subprocess.run([linter, "--no-cache"], cwd=folder, capture_output=True, text=True).stdout
    whole = " ".join(said.split())
    return {name for name in names() if f"{name} BROKEN" in whole}


def names() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return [contract["name"] for contract in settings["contracts"]]


def test_every_contract_has_its_forbidden_import() -> None:
    assert set(names()) == set(FORBIDDEN)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_forbidden_import_breaks_its_contract_alone(name: str, copy: Path) -> None:
    file, line = FORBIDDEN[name]
    before = (copy / file).read_text()
    (copy / file).write_text(f"{before}\n{line}\n")
    try:
        assert broken(copy) == {name}
    finally:
        (copy / file).write_text(before)


def test_a_module_without_a_layer_is_seen(copy: Path) -> None:
    stray = copy / "rackhand" / "stray.py"
    stray.write_text("")
    try:
        assert len(broken(copy)) == 1
    finally:
        stray.unlink()
