"""Start-up files of root's shell on a real sshd: what prints breaks nothing, what makes work impossible is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import trouble
from rackhand import agent
from rackhand.inventory import Fleet, Host, ProxmoxLxc, Ssh
from rackhand.render.lines import report_lines
from rackhand.report import Report
from rackhand.workflows.deploy import Choice, deploy
from rackhand.workflows.servers import status
from tests.lab.conftest import VMID, Lab

pytestmark = pytest.mark.lab
TALKS = r"""
seq 3000
printf '\033[32mwelcome\033[0m\r\n{"event": "end", "error": null}\n'
trap 'printf farewell' EXIT
(sleep 0.2; echo late; printf 'no newline: ') &
printf 'motd: '
"""


@pytest.fixture
def fleet(lab: Lab) -> Iterator[Fleet]:
    road = ProxmoxLxc(Ssh("pve-lab", lab.ssh_config), VMID)
    yield Fleet(Path("x.yaml"), (Host("pve1", road, python="/opt/sglang/bin/python"),))
    trouble.print_at_login(lab.place, None)


def run(fleet: Fleet) -> Report:
    return deploy(fleet, fleet.hosts, say=lambda *_: None, choice=Choice(yes=True))


def test_one_that_talks_breaks_no_verb_costs_no_call_and_is_told_of_when_asked(lab: Lab, fleet: Fleet) -> None:
    trouble.print_at_login(lab.place, TALKS)
    lab.forget_pct_calls()
    report = run(fleet)
    assert report.rows[0].error is None, report.rows[0].error
    assert report.rows[0].outcomes[0].what.startswith("sent ")
    assert [call["verb"] for call in lab.pct_calls()] == ["exec"]
    assert run(fleet).rows[0].outcomes[0].what == "nothing to do"
    seen = status(fleet, fleet.hosts, say=lambda *_: None)
    assert seen.exit_code == 0
    assert not [line for line in report_lines(seen, verbose=False) if "rackhand's" in line]
    (told,) = [line for line in report_lines(seen, verbose=True) if "rackhand's" in line]
    assert "~/.bashrc" in told


@pytest.mark.parametrize("startup", ["read answer", "cat >/dev/null", "exit 0", "exec /bin/sh", "echo no >&2; exit 1"])
def test_one_that_makes_work_impossible_is_named_and_gets_nothing(
    lab: Lab, fleet: Fleet, startup: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "READY_S", 2.0)
    trouble.print_at_login(lab.place, startup)
    report = run(fleet)
    assert "pve1: the shell there doesn't run our commands as they are" in str(report.rows[0].error)
    assert "a start-up file is the likely cause: ~/.bashrc, /etc/profile.d" in str(report.rows[0].error)
    assert report.exit_code == 4
