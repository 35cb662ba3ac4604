"""The installed command in a fresh environment and an empty folder, from the locked packages and the wheel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.conftest import CHECKOUT, Lab
from tests.test_wheel import BUILD, operator_verbs

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(name="command", scope="module")
def install(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    built = [sys.executable, "-c", BUILD, str(folder)]
    name = subprocess.run(built, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout.split()[-1]
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [folder / "venv/bin/python", "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--require-hashes", "-r", CHECKOUT / "requirements.lock"], check=True)
    subprocess.run([*pip, folder / name], check=True)
    return folder / "venv/bin/rackhand"


def rackhand(command: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(
        [command, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )


def test_it_tells_its_version_its_verbs_and_each_verbs_flags(command: Path, tmp_path: Path) -> None:
    assert re.fullmatch(r"rackhand \d+\.\d+\.\d+\n", rackhand(command, tmp_path, "--version").stdout, re.IGNORECASE)
    assert "restart-servers" in rackhand(command, tmp_path, "--list").stdout
    for verb in operator_verbs():
        told = rackhand(command, tmp_path, "--help", verb)
        assert (told.returncode, told.stderr) == (0, ""), verb
        assert f"Example: rackhand {verb}" in told.stdout


def test_it_deploys_to_the_lab_what_the_checkout_would(command: Path, lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "inventory").mkdir()
    text = (CHECKOUT / "inventory/lab.yaml").read_text().replace("../.lab", str(lab.place.state))
    (tmp_path / "inventory/mine.yaml").write_text(text)
    sent = rackhand(command, tmp_path, "deploy", "--yes", "--inventory", "mine")
    assert sent.returncode == 0, sent.stdout + sent.stderr
    again = subprocess.run(
        [CHECKOUT / "inv", "deploy", "--inventory", tmp_path / "inventory/mine.yaml", "--dry-run"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (again.returncode, "nothing to do" in again.stdout + again.stderr) == (0, True), again.stdout + again.stderr
