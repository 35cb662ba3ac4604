from __future__ import annotations

import subprocess
from pathlib import Path

import jinja2
import pytest

from dev.programs import program
from rackhand.bundle import render_env
from rackhand.errors import PreconditionError
from rackhand.inventory import Env, Host, PlainSsh, SecretRef, Ssh
from rackhand.template import TEMPLATES, comment, render_file, render_script, words

AWKWARD = ["", "a b", "it's", '"', "$(touch /tmp/no)", "`x`", "-n", "a\nb", "\\", "*", "~", "é", "#", "!x", "a;b&c|d"]


def host(**env: object) -> Host:
    return Host("box", PlainSsh(Ssh("box")), env=Env(**env))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", AWKWARD)
def test_a_variable_reaches_the_shell_as_it_stands_in_the_inventory(value: str, tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text(render_env(host(variables={"VALUE": value})))
    script = f'. {tmp_path}/env.sh; printf "%s" "$VALUE"'
    assert subprocess.run(["bash", "-c", script], capture_output=True).stdout == value.encode()


def test_a_source_with_an_awkward_name_is_sourced_and_a_missing_one_fails(tmp_path: Path) -> None:
    source = tmp_path / "my 'cuda'.sh"
    source.write_text("export FROM=$PWD\n")
    env = tmp_path / "env.sh"
    env.write_text(render_env(host(source=str(source), variables={"A": "1"})))
    done = subprocess.run(["bash", "-c", f". {env} && echo $FROM $A"], capture_output=True, cwd="/", text=True)
    assert done.stdout == "/ 1\n"
    source.unlink()
    done = subprocess.run(["bash", "-c", f". {env} || exit 9"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (9, f"env.sh: no script {source}\n")


def test_a_secret_is_not_in_the_environments_script() -> None:
    text = render_env(host(variables={"TOKEN": SecretRef(env="TOKEN"), "MODE": "x"}))
    assert "TOKEN" not in text
    assert "export MODE=x" in text


def test_rendered_scripts_please_shellcheck(tmp_path: Path) -> None:
    text = render_env(host(source="/root/a b.sh", variables={f"V{i}": value for i, value in enumerate(AWKWARD)}))
    (tmp_path / "env.sh").write_text("#!/bin/bash\n" + text)
    done = subprocess.run(
        [program("shellcheck"), "--severity", "warning", str(tmp_path / "env.sh")], capture_output=True, text=True
    )
    assert done.stdout == ""


def test_every_value_is_quoted_though_the_template_says_nothing() -> None:
    from rackhand.template import _shell

    script = _shell().from_string("echo {{ a }} {{ many | words }} {{ n | number }} # {{ note | comment }}")
    values = {"a": "x y", "many": ["p q", "$r"], "n": 3, "note": "one\nrm -rf /"}
    assert script.render(**values) == "echo 'x y' 'p q' '$r' 3 # one?rm -rf /"


@pytest.mark.parametrize("text", ["{{ missing }}", "{{ n | name }}", "{{ a | number }}", "{{ nul }}"])
def test_what_cannot_stand_in_a_script_is_an_error(text: str) -> None:
    from rackhand.template import _shell

    with pytest.raises((jinja2.UndefinedError, ValueError)):
        _shell().from_string(text).render(n="a-b", a="x", nul="a\0b")


def test_a_missing_value_in_a_shipped_template_is_an_error() -> None:
    for template in TEMPLATES.glob("*.j2"):
        with pytest.raises(jinja2.UndefinedError):
            render_script(template.name, {})


@pytest.mark.parametrize(
    ("text", "where"),
    [("ok\n{{ nope }}", "conf.j2: "), ("ok\n{% if %}", "conf.j2:2: "), ("{{ 1 / 0 }}", "conf.j2: ")],
)
def test_a_users_template_that_is_wrong_is_named(text: str, where: str) -> None:
    with pytest.raises(PreconditionError) as caught:
        render_file(text, {"home": "/h"}, "conf.j2")
    assert str(caught.value).startswith(where)


def test_a_users_template_quotes_only_where_it_says_so() -> None:
    assert render_file("a: {{ v }}\nb: {{ v | quote }}\n", {"v": "x y"}, "c") == "a: x y\nb: 'x y'\n"


def test_words_are_joined_with_what_is_asked_for() -> None:
    assert words(["a b", "c"], " \\\n  ") == "'a b' \\\n  c"
    assert comment("a\tb") == "a?b"
