"""The front: what the commands do before any host is asked."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context
from invoke.exceptions import Exit

from rackhand.errors import PreconditionError, RackhandError, RemoteError, UsageError
from rackhand.program import Terminated, clean_end, verb

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("paramiko", "fabric", "proxmoxer", "httpx", "rich", "requests", "jinja2", "aiohttp")


def inv(*words: str, binary: tuple[str, ...] = (), cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """What ./inv runs once .venv stands; `binary` runs something else, such as plain invoke."""
    start = binary or (
        sys.executable,
        "-P",
        "-c",
        "import sys; sys.path.insert(0, sys.argv[1]); from rackhand.program import main; main(sys.argv[2:])",
        str(ROOT),
    )
    return subprocess.run([*start, *words], cwd=cwd, capture_output=True, text=True, timeout=60)


def test_loading_the_tasks_imports_no_heavy_package() -> None:
    asked = f"import sys, json, tasks; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    loaded = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(loaded.stdout) == []


@pytest.mark.parametrize("start", [(), (sys.executable, "-m", "invoke")], ids=["inv", "invoke"])
@pytest.mark.parametrize(
    "words",
    [
        ("no-such-task",),
        ("dev.check", "--no-such-flag"),
        ("test", "--only"),
        ("--help", "no-such-task"),
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2_and_a_way_on(words: tuple[str, ...], start: tuple[str, ...]) -> None:
    ended = inv(*words, binary=start)
    assert ended.returncode == 2
    assert "./inv --list" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("stop --timeout x", "--timeout 'x' is no number; ./inv --list"),
        ("restart-servers --at-once=1.5", "--at-once '1.5' is no whole number; ./inv --list"),
        ("deploy --foo", "No idea what '--foo' is; ./inv --list"),
        ("deploy --hosts", "Flag --hosts needed value and was not given one; ./inv --list"),
    ],
)
def test_wrong_usage_names_the_flag(words: str, said: str) -> None:
    assert inv(*words.split()).stderr.startswith(said)


@pytest.mark.parametrize(
    ("flag", "said"),
    [("--kind=h100", "no GPU model 'h100' in the lab; there is: rtx-pro-6000"), ("--gpus=0", "a lab has at least one")],
)
def test_a_lab_that_can_not_be_is_refused(flag: str, said: str) -> None:
    ended = inv("lab.up", flag)
    assert (ended.returncode, ended.stderr[: len(said)]) == (2, said)


def test_without_words_the_tasks_are_listed_from_any_directory(tmp_path: Path) -> None:
    listed = inv(cwd=tmp_path)
    assert listed.returncode == 0
    assert "dev.check" in listed.stdout


def fresh_tasks() -> Any:
    """The collection, anew: Invoke hands out a task's help once."""
    for name in ("dev.tasks", "tasks"):
        module = importlib.reload(importlib.import_module(name))
    return module.ns


def test_every_task_has_a_first_line_and_an_example() -> None:
    tasks = fresh_tasks()
    assert tasks.task_names
    for name in tasks.task_names:
        first_line, _, rest = (tasks[name].__doc__ or "").strip().partition("\n")
        assert first_line, name
        assert f"Example: ./inv {name}" in rest, name


def test_help_shows_the_example() -> None:
    assert "Example: ./inv deploy" in inv("--help", "deploy").stdout


def test_every_flag_is_explained() -> None:
    tasks = fresh_tasks()
    for name in tasks.task_names:
        unexplained = [argument.name for argument in tasks[name].get_arguments() if not argument.help]
        assert unexplained == [], name


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RackhandError("failed"), 1),
        (RemoteError("failed"), 1),
        (UsageError("wrong"), 2),
        (PreconditionError("first this"), 4),
        (KeyboardInterrupt(), 130),
        (Terminated(signal.SIGTERM), 143),
    ],
    ids=repr,
)
def test_an_error_becomes_its_exit_code(error: BaseException, code: int) -> None:
    with pytest.raises(Exit) as ended, clean_end(verbose=False):
        raise error
    assert ended.value.code == code


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), clean_end(verbose=False):
        os.kill(1 // 0, 0)


@pytest.mark.parametrize(("verbose", "shown"), [(True, True), (False, False)])
def test_details_are_for_verbose(verbose: bool, shown: bool) -> None:
    with pytest.raises(Exit) as ended, clean_end(verbose=verbose):
        raise RackhandError("pct failed", where="pve1/ct200", hint="start it", detail="CT 200 not running")
    assert ended.value.message.startswith("pve1/ct200: pct failed; start it")
    assert ("CT 200 not running" in ended.value.message) is shown


def test_sigterm_in_a_verb_runs_its_cleanup() -> None:
    cleaned = []

    def sleeper(_context: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            cleaned.append(True)
        return 0

    with pytest.raises(Exit) as ended:
        verb(help={})(sleeper).body(None)
    assert ended.value.code == 143
    assert cleaned == [True]


def test_a_verb_ends_with_the_code_it_returns() -> None:
    with pytest.raises(Exit) as ended:
        verb(help={})(lambda _context: 3).body(None)
    assert ended.value.code == 3
    assert verb(help={})(lambda _context: 0).body(None) is None


def test_only_verbs_that_use_secrets_need_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, bool] = {}

    def load(_name: str, _environ: object, *, needs_secrets: bool = True) -> None:
        asked[verb_name] = needs_secrets
        raise UsageError("seen")

    monkeypatch.setattr("rackhand.load.load", load)
    ns = importlib.import_module("tasks").ns
    words = {"compare": ("1", "2")}
    for verb_name in ("deploy", "restart-servers", "resume", "stop", "status", "tail-metrics", "record", "diagnose",
                      "capacity", "history", "compare", "report", "verify", "prompts.check"):  # fmt: skip
        with pytest.raises(Exit):
            ns[verb_name](Context(), *words.get(verb_name, ()))
    assert {name for name, needs in asked.items() if needs} == {"deploy", "restart-servers", "resume"}
    assert len(asked) == 14
