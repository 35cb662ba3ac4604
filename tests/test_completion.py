"""Completion in the shells: what is offered, and that the scripts offer it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from invoke.parser.argument import Argument

from rackhand.completion import candidates

ROOT = Path(__file__).resolve().parent.parent
TAKES, SWITCH = Argument(name="x", kind=str), Argument(name="y", kind=bool, default=False)
VERBS = {
    "deploy": {"--inventory": TAKES, "--hosts": TAKES, "--dry-run": SWITCH},
    "stop": {"--servers": SWITCH, "--inventory": TAKES},
}
COMMON = {"--list": TAKES, "--version": SWITCH, "-h": TAKES}
BOTH = ["deploy", "stop"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ([], BOTH),
        ([""], BOTH),
        (["dep"], BOTH),
        (["-"], ["--list", "--version"]),
        (["--help", ""], BOTH),
        (["deploy", "--"], ["--dry-run", "--hosts", "--inventory"]),
        (["deploy", "--dry-run", "--h"], ["--dry-run", "--hosts", "--inventory"]),
        (["deploy", "--inventory", ""], ["lab", "mine"]),
        (["deploy", "--inventory", "mi"], ["lab", "mine"]),
        (["deploy", "--inventory", "="], ["lab", "mine"]),
        (["deploy", "--inventory", "=", "mi"], ["lab", "mine"]),
        (["deploy", "--inventory=mi"], ["--inventory=lab", "--inventory=mine"]),
        (["deploy", "--hosts=r"], []),
        (["deploy", "--hosts", ""], []),
        (["deploy", ""], []),
        (["deploy", "stop", "--s"], ["--inventory", "--servers"]),
        (["nonsense", "--s"], ["--list", "--version"]),
    ],
    ids=" ".join,
)
def test_what_can_stand_there_is_offered(words: list[str], offered: list[str]) -> None:
    assert candidates(words, VERBS, COMMON, ["lab", "mine"]) == offered


@pytest.fixture(name="program")
def make_program(tmp_path: Path) -> Path:
    """An `inv` in a folder with a blank, as ./inv once .venv stands."""
    folder = tmp_path / "a checkout"
    folder.mkdir()
    start = "import sys; sys.path.insert(0, sys.argv[1]); from rackhand.program import main; main(sys.argv[2:])"
    (folder / "inv").write_text(f"#!/bin/sh\nexec '{sys.executable}' -P -c '{start}' '{ROOT}' \"$@\"\n")
    (folder / "inv").chmod(0o755)
    return folder / "inv"


def script_of(program: Path, shell: str) -> str:
    return subprocess.run(
        [program, "--print-completion-script", shell], capture_output=True, text=True, check=True
    ).stdout


TYPED = {
    "./inv dep": {"deploy"},
    "./inv restart-servers --no-": {"--no-compare"},
    "./inv deploy --inventory example-": {"example-b200", "example-proxmox"},
    "./inv prompts": {"prompts.check"},
}


def in_bash(program: Path, typed: str) -> set[str]:
    words = typed.split(" ")
    shown = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _rackhand_complete"
    code = f"{script_of(program, 'bash')}\n{shown}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    return {*run("bash", "--norc", "-c", code, cwd=program.parent).split()}


def in_fish(program: Path, typed: str) -> set[str]:
    code = f"{script_of(program, 'fish')}\ncomplete --do-complete '{typed}'"
    return {*run("fish", "--no-config", "-c", code, cwd=program.parent).split()}


def in_zsh(program: Path, typed: str) -> set[str]:
    """zsh completes at a terminal only: zpty is one."""
    (program.parent / "script").write_text(script_of(program, "zsh"))
    code = f"""zmodload zsh/zpty
zpty shell 'TERM=dumb zsh -f -i'
ask() {{ zpty -w shell "$1"; zpty -r -m shell seen "*DONE*" || exit 1; }}
ask 'PS1=; unsetopt zle_bracketed_paste; autoload -Uz compinit; compinit -D; source ./script; LISTMAX=1000; echo DO""NE'
ask 'compadd() {{ builtin compadd -O kept "$@"; print -l -- $kept >>offered; builtin compadd "$@" }}; echo DO""NE'
zpty -w -n shell $'{typed}\\t'
for try in {{1..300}}; do [[ -s offered ]] && break; sleep 0.05; done
zpty -d shell
cat offered
"""
    return {*run("zsh", "-f", "-c", code, cwd=program.parent).split()}


def run(*argv: str, cwd: Path) -> str:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("typed", TYPED)
def test_bash_completes_the_program_that_is_typed_wherever_it_stands(program: Path, typed: str) -> None:
    assert in_bash(program, typed) == TYPED[typed]


def test_bash_asks_the_script_for_a_path_too(program: Path) -> None:
    told = run("bash", "--norc", "-c", f"{script_of(program, 'bash')}\ncomplete -p inv", cwd=program.parent)
    assert told == "complete -o default -F _rackhand_complete inv\n"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("shell", [in_zsh, in_fish], ids=["zsh", "fish"])
@pytest.mark.parametrize("typed", TYPED)
def test_zsh_and_fish_complete_it_too(program: Path, typed: str, shell: object) -> None:
    missing = [name for name in ("zsh", "fish") if not shutil.which(name)]
    assert not missing or subprocess.run(["sh", ROOT / "lab/apt-install", *missing], check=False).returncode == 0
    assert callable(shell) and shell(program, typed) == TYPED[typed]


def test_a_shell_that_is_not_known_is_named(program: Path) -> None:
    ended = subprocess.run([program, "--print-completion-script", "ksh"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.split(";")[0]) == (2, "no completion for 'ksh', only for bash, zsh, fish")
