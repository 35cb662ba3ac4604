"""A lab for the tests: its own state directory, so that the operator's .lab stays as it is."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lab import container, host, sshd, trouble
from lab.place import LabOptions, Place

CHECKOUT = Path(__file__).resolve().parents[2]
QUICK = LabOptions(gpus=2, load_seconds=0.5, release_seconds=0.5, speed=10)
VMID = QUICK.vmid


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Lab:
    """A running lab, and the short ways to it. Output is decoded as UTF-8, other bytes as surrogates."""

    place: Place
    options: LabOptions

    @property
    def ssh_config(self) -> Path:
        return self.place.ssh_config

    @property
    def workspace(self) -> Path:
        """The container's /workspace, seen from outside."""
        return self.place.workspace(VMID)

    def run(self, *argv: str, stdin: bytes = b"", timeout_s: float = 30, env: dict[str, str] | None = None) -> Answer:
        """Any program on the Proxmox host, with the environment of an SSH session."""
        path = f"{self.place.state}/bin:{sshd.SYSTEM_PATH}"
        session = {"PATH": path, "HOME": str(self.place.state / "home"), "USER": "root", **(env or {})}
        done = subprocess.run(argv, input=stdin, capture_output=True, timeout=timeout_s, env=session, check=False)
        return Answer(done.returncode, _text(done.stdout), _text(done.stderr))

    def pct(self, *words: str, **how: Any) -> Answer:
        return self.run("pct", *words, **how)

    def ssh(self, command: str, *, alias: str = "pve-lab", **how: Any) -> Answer:
        return self.run("ssh", "-F", str(self.ssh_config), alias, command, **how)

    def in_container(self, *argv: str, **how: Any) -> Answer:
        """A command in the container that doesn't count as a call of pct."""
        return self.run(*container.attach_argv(self.place, VMID, *argv, keep_env=False), **how)

    def pct_calls(self) -> list[dict[str, Any]]:
        """Every call of pct since the lab started or `forget_pct_calls`: verb, argv, started, seconds."""
        if not self.place.pct_calls.exists():
            return []
        return [json.loads(line) for line in self.place.pct_calls.read_text().splitlines()]

    def forget_pct_calls(self) -> None:
        self.place.pct_calls.unlink(missing_ok=True)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _up(state: Path, options: LabOptions, root: Path = CHECKOUT) -> Lab:
    return Lab(host.up(root, options, state=state), options)


@pytest.fixture(scope="session")
def root_only() -> None:
    if os.geteuid() != 0:
        pytest.skip("the lab needs root: LXC containers, sshd")


@pytest.fixture(scope="session")
def lab(root_only: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One lab for all tests: two GPUs, quick servers. A test may break it: `_whole_lab` mends it before the next."""
    state = tmp_path_factory.mktemp("lab") / "state"
    try:
        yield _up(state, QUICK)
    finally:
        host.down(CHECKOUT, state=state)


@pytest.fixture(autouse=True)
def _whole_lab(request: pytest.FixtureRequest) -> None:
    """Mends what the last test broke: stopped parts are started, freezes and locks end, pct's calls are forgotten."""
    if "lab" not in request.fixturenames:
        return
    lab: Lab = request.getfixturevalue("lab")
    trouble.mend(lab.place, VMID)
    host.up(CHECKOUT, lab.options, state=lab.place.state)
    lab.forget_pct_calls()


@pytest.fixture
def make_lab(root_only: None, tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """make_lab(options, root=CHECKOUT, name="state"): a lab of the test's own, ended with the test."""
    made: list[tuple[Path, Path]] = []

    def make(options: LabOptions = QUICK, *, root: Path = CHECKOUT, name: str = "state") -> Lab:
        made.append((root, tmp_path / name))
        return _up(tmp_path / name, options, root)

    yield make
    for root, state in made:
        host.down(root, state=state)
