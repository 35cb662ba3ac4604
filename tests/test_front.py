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
import tomllib
from invoke.context import Context
from invoke.exceptions import Exit

from rackhand.errors import PreconditionError, RackhandError, RemoteError, UsageError
from rackhand.program import Terminated, clean_end, verb
from rackhand.report import Comparison

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
        ("deploy --foo", "No idea what '--foo' is; ./inv --help deploy"),
        ("deploy --host lab", "No idea what '--host' is; did you mean --hosts? ./inv --help deploy"),
        ("resume --concurency auto", "No idea what '--concurency' is; did you mean --concurrency?"),
        ("restart-servers --no-compar", "No idea what '--no-compar' is; did you mean --no-compare?"),
        ("stauts", "No idea what 'stauts' is; did you mean status? ./inv --list"),
        ("tail", "No idea what 'tail' is; did you mean tail-metrics?"),
        ("restart_server", "No idea what 'restart_server' is; did you mean restart-servers?"),
        ("check-prompts", "No idea what 'check-prompts' is; did you mean prompts.check?"),
        ("lab", "No idea what 'lab' is; did you mean lab.down or lab.status or lab.up?"),
        ("status lab", "No idea what 'lab' is; a value stands behind its flag, as in --inventory lab; ./inv --help"),
        ("--help resum", "No idea what 'resum' is; did you mean resume?"),
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
    for verb_name in ("deploy", "restart-servers", "resume", "stop", "status", "tail-metrics", "record", "diagnose",
                      "capacity", "history", "compare", "report", "verify", "prompts.check"):  # fmt: skip
        with pytest.raises(Exit):
            ns[verb_name](Context())
    assert {name for name, needs in asked.items() if needs} == {"deploy", "restart-servers", "resume"}
    assert len(asked) == 14


VERBS = ("deploy", "restart-servers", "resume", "stop", "status", "tail-metrics", "record", "diagnose", "capacity",
         "history", "compare", "report", "verify", "prompts.check")  # fmt: skip
EMPTY = ("", " ", ",", " , ,", "\t", "\u00a0")


def valued_flags() -> list[tuple[str, str]]:
    """Every verb with each of its words that isn't a number or a switch."""
    tasks = fresh_tasks()
    return [
        (name, str(argument.attr_name or argument.name))
        for name in tasks.task_names
        for argument in tasks[name].get_arguments()
        if argument.kind in (str, list)
    ]


@pytest.mark.parametrize(("name", "flag"), valued_flags(), ids=" ".join)
def test_an_empty_value_is_refused_in_every_verb(
    name: str, flag: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rackhand.load.load", lambda *_, **__: pytest.fail("the verb began"))
    task = fresh_tasks()[name]
    is_list = flag in task.iterable
    for empty in EMPTY:
        with pytest.raises(Exit) as ended:
            task(Context(), **{flag: ["a=1", empty] if is_list else empty})
        assert ended.value.code == 2, (flag, empty)
        assert f"--{flag.replace('_', '-')} is empty" in ended.value.message
    assert capsys.readouterr().out == ""


def test_an_unset_shell_variable_reaches_no_host_from_the_command_line() -> None:
    for words in (
        ("restart-servers", "--gpus", ""),
        ("stop", "--job="),
        ("stop", "--hosts", ","),
        ("compare", "", "2"),
    ):
        ended = inv(*words)
        assert (ended.returncode, "is empty; leave it out" in ended.stderr) == (2, True), words


@pytest.mark.parametrize(
    "words",
    ["restart-servers --at-once 0", "restart-servers --timeout 0", "stop --timeout 0", "capacity --weights-gib 0",
     "capacity --gpu-free-gib -1", "tail-metrics --interval 0", "diagnose --seconds 0",
     "restart-servers --set mem-fraction-static= --gpus 0", "stop --hosts lab,,"],
)  # fmt: skip
def test_nothing_as_a_number_or_as_part_of_a_list_is_refused_too(words: str) -> None:
    ended = inv(*words.split(), "--json")
    assert ended.returncode == 2, ended.stderr
    assert json.loads(ended.stdout)["exit_code"] == 2


def test_json_shows_what_ends_a_verb_early_whatever_the_code() -> None:
    for words, code, kind in (
        (("status", "--inventory", "no-such"), 2, "UsageError"),
        (("status", "--no-such"), 2, "UsageError"),
        (("prompts.check", "--file", "/no/such"), 4, "PreconditionError"),
    ):
        ended = inv(*words, "--json")
        found = json.loads(ended.stdout)
        assert (ended.returncode, found["exit_code"], found["kind"], found["event"]) == (code, code, kind, "error")
        assert found["what"] in ended.stderr


def test_json_lists_every_mistake_of_an_inventory(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("hosts:\n  a: {type: ssh, ssh: b, gpsu: all}\n  b: {type: sssh, ssh: b}\n")
    found = json.loads(inv("status", "--inventory", str(path), "--json").stdout)
    assert [mistake["line"] for mistake in found["mistakes"]] == [2, 3]


def test_an_interrupt_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exit), clean_end(verbose=False, as_json=True):
        raise Terminated(signal.SIGHUP)
    assert json.loads(capsys.readouterr().out)["exit_code"] == 129


def test_help_names_values_and_defaults() -> None:
    shown = inv("--help", "restart-servers").stdout
    for words in ("--gpus=NUMBERS", "--set=FLAG=VALUE", "--timeout=SECONDS", "--inventory=NAME", "(default: lab)",
                  "--[no-]compare", "--at-once=N"):  # fmt: skip
        assert words in shown, shown
    assert "--interval=SECONDS" in inv("--help", "record").stdout
    assert "(default: 5.0)" in inv("--help", "record").stdout
    assert "--output=DIR" in inv("--help", "verify").stdout


def test_every_value_has_a_name_of_its_own() -> None:
    tasks = fresh_tasks()
    for name in tasks.task_names:
        for argument in tasks[name].get_arguments():
            assert not argument.takes_value or argument.value_name not in ("TEXT", "NUMBER"), (name, argument.name)


def test_every_verb_takes_json_and_verbose() -> None:
    tasks = fresh_tasks()
    for name in VERBS:
        flags = {argument.name for argument in tasks[name].get_arguments()}
        assert {"json", "verbose", "inventory"} <= flags, name


def test_the_version_is_rackhands() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    assert inv("--version").stdout == f"rackhand {version}\n"


def test_compare_takes_the_last_two_runs_without_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("rackhand.workflows.compare.compare_runs", lambda *words: asked.append(words[3]) or COMPARED)
    tasks = fresh_tasks()
    for words in ((), ("3", "last")):
        tasks["compare"](Context(), **dict(zip(("run_a", "run_b"), words, strict=False)))
    assert asked == [(), ("3", "last")]
    ended = subprocess.run(
        [sys.executable, "-m", "invoke", "compare", "--inventory", "lab"],
        cwd=ROOT, env={**os.environ, "XDG_STATE_HOME": str(tmp_path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "no history of" in ended.stderr


COMPARED = Comparison("runs compared", ("run 1", "run 2"), ())
