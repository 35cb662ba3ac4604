"""Every command that advice names: it parses as it stands, and is about what the operator is at."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from invoke.parser import Parser
from invoke.parser.context import ParserContext

from rackhand.advised import TAKES, all_as_typed, as_typed, use_inventory
from rackhand.diagnose import RULES, diagnose
from rackhand.program import adopt_house_rules
from rackhand.render.verdicts import with_commands
from tests.test_diagnose import samples_of
from tests.test_front import fresh_tasks

ROOT = Path(__file__).resolve().parent.parent
COMMAND = re.compile(r"(?:\./inv|\{COMMAND\}) ((?:(?!\./inv |\{COMMAND\} )[^;,()\n`])*)")
PROSE = re.compile(
    r" (?:and|or|first|again|shows?|starts?|says?|lists|brings|ends|writes|goes|gives|tells)\b.*"
    r"| (?:once|it|in|with|later|about)\b.*| -> .*"
)
VALUES = {"gpus": "0,3", "other": "/out-2", "some": ""}
NO_ADVICE = ("rackhand/advised.py", "rackhand/words_given.py", "dev/readme.py")
"""Where commands are taken apart and put together."""


def strings() -> Iterator[tuple[str, str]]:
    """Every text in the code but docstrings that names a command, with its place; figures in it stand as {name}."""
    files = [*ROOT.glob("rackhand/**/*.py"), *ROOT.glob("remote/**/*.py"), ROOT / "tasks.py", *ROOT.glob("dev/*.py")]
    for file in files:
        if str(file.relative_to(ROOT)) in NO_ADVICE:
            continue
        tree = ast.parse(file.read_text())
        inside = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        inside |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            text = ""
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                text = node.value
            elif isinstance(node, ast.JoinedStr):
                text = "".join(
                    str(part.value) if isinstance(part, ast.Constant) else f"{{{_name(part)}}}" for part in node.values
                )
            if "./inv " in text or "{COMMAND} " in text:
                yield f"{file.relative_to(ROOT)}:{node.lineno}", text


def _name(part: ast.expr) -> str:
    value = part.value if isinstance(part, ast.FormattedValue) else part
    return ast.unparse(value).rpartition(".")[2]


def commands() -> list[tuple[str, str]]:
    found = {}
    for place, text in strings():
        for match in COMMAND.finditer(text):
            words = PROSE.sub("", match[1]).strip(" .'\"|]?:")
            words = re.sub(r"\{(\w*)[^{}]*\}", lambda m: VALUES.get(m[1], "x"), words)
            if words and words[0].islower():
                found[words] = place
    return sorted(found.items())


adopt_house_rules()
TASKS = fresh_tasks()


def parser() -> Parser:
    return Parser(contexts=TASKS.to_contexts(), initial=ParserContext())


@pytest.mark.parametrize(("words", "place"), commands(), ids=lambda value: str(value).replace("/", "|"))
def test_a_command_in_advice_parses_as_it_stands(words: str, place: str) -> None:
    _, verb = parser().parse_argv(shlex.split(words))
    assert verb.name, place


def test_many_commands_are_found() -> None:
    assert len(commands()) > 20


def test_each_verb_takes_what_the_table_of_advice_says() -> None:
    tasks = fresh_tasks()
    for verb, flags in TAKES.items():
        assert flags == {argument.name for argument in tasks[verb].get_arguments()} & {"inventory", "hosts", "job"}, (
            verb
        )


def test_the_commands_of_every_verdict_parse_with_host_gpus_and_job() -> None:
    seen = 0
    for file in sorted((ROOT / "tests/diagnose").glob("*.json")):
        found = diagnose(samples_of(json.loads(file.read_text())))
        for verdict in with_commands(found, gpus=8, where="rtx/ct200", job="expansion").verdicts:
            for advice in verdict.advice:
                assert not advice.do.startswith("--"), advice.do
                for match in COMMAND.finditer(advice.do):
                    _, verb = parser().parse_argv(shlex.split(PROSE.sub("", match[1])))
                    if verb.name == "restart-servers":
                        assert verb.args["hosts"].value == "rtx"
                    if verb.name == "resume":
                        assert verb.args["job"].value
                    seen += 1
    assert seen > 15


def test_no_rule_names_a_verb_without_the_command() -> None:
    bare = re.compile(r"(?<!\./inv )\b(restart-servers|tail-metrics|resume|deploy|stop) (--|\{)")
    for rule in RULES:
        for change in rule.changes:
            assert not bare.search(change.do), (rule.name, change.do)
            assert "=N" not in change.do, (rule.name, change.do)


@pytest.mark.parametrize(
    ("text", "about", "typed"),
    [
        ("./inv resume", {"job": "a"}, "./inv resume --job a"),
        ("./inv resume --job b first", {"job": "a"}, "./inv resume --job b first"),
        ("try ./inv restart-servers --gpus 3; or", {"hosts": "x"}, "try ./inv restart-servers --hosts x --gpus 3; or"),
        ("./inv stop, or wait", {"hosts": "x", "job": "a"}, "./inv stop --job a, or wait"),
        ("./inv record or ./inv status", {"hosts": "x"}, "./inv record --hosts x or ./inv status --hosts x"),
        ("./inv --list shows the tasks", {"hosts": "x"}, "./inv --list shows the tasks"),
        ("./inv lab.up", {"hosts": "x"}, "./inv lab.up"),
        ("nothing to type", {"hosts": "x"}, "nothing to type"),
    ],
)
def test_a_command_is_made_whole(text: str, about: dict[str, str], typed: str) -> None:
    assert as_typed(text, **about) == typed


def test_the_inventory_in_use_is_named_everywhere() -> None:
    use_inventory("my lab")
    try:
        assert as_typed("./inv deploy first, ./inv status later") == (
            "./inv deploy --inventory 'my lab' first, ./inv status --inventory 'my lab' later"
        )
        assert all_as_typed({"a": ["./inv stop"], "b": 1}) == {"a": ["./inv stop --inventory 'my lab'"], "b": 1}
    finally:
        use_inventory(None)
    assert as_typed("./inv deploy") == "./inv deploy"
