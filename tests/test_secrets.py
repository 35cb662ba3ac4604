from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import pickle
import sys
import time
from pathlib import Path

import pytest

from rackhand.errors import PreconditionError
from rackhand.inventory import SecretRef
from rackhand.secrets import Secret, mask, resolve

WORD = "s3cret-w'ord/%"


def test_a_secret_shows_in_no_kind_of_print() -> None:
    secret = Secret(WORD)
    for shown in (
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret:>20}",
        f"{secret!r}",
        ascii([secret]),
    ):
        assert "s3cret" not in shown
        assert "***" in shown
    assert secret.reveal() == WORD


@pytest.mark.parametrize("spill", [pickle.dumps, json.dumps, vars], ids=["pickle", "json", "vars"])
def test_a_secret_cannot_be_spilled_by_accident(spill: object) -> None:
    assert callable(spill)
    with pytest.raises(TypeError):
        spill(Secret(WORD))


def test_a_secret_survives_copies_and_compares_by_value() -> None:
    @dataclasses.dataclass
    class Holder:
        secret: Secret

    assert dataclasses.asdict(Holder(Secret(WORD)))["secret"] == Secret(WORD)
    assert copy.copy(Secret(WORD)) == Secret(WORD)
    assert Secret(WORD) != Secret("other") and Secret(WORD) != WORD
    assert len({Secret(WORD), Secret(WORD)}) == 1


def test_a_secret_comes_from_the_environment_that_was_handed_in() -> None:
    assert resolve(SecretRef(env="KEY"), {"KEY": f"{WORD}\n"}).reveal() == WORD


def python(code: str, cwd: Path | None = None) -> SecretRef:
    return SecretRef(command=(sys.executable, "-c", code), cwd=cwd)


def test_a_command_runs_in_the_inventory_directory_and_loses_its_last_newline(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\r\n")
    assert resolve(SecretRef(command=("cat", "token"), cwd=tmp_path), dict(os.environ)).reveal() == "abc"


def test_a_command_sees_the_environment_and_no_shell() -> None:
    assert (
        resolve(SecretRef(command=("printenv", "A")), {"A": "$HOME;x", "PATH": os.environ["PATH"]}).reveal()
        == "$HOME;x"
    )


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        (SecretRef(env="GONE"), "GONE is not set"),
        (SecretRef(env="BLANK"), "GONE is not set".replace("GONE", "BLANK")),
        (SecretRef(env="LINES"), "not one line"),
        (SecretRef(command=("no-such-command-here", "s3cret")), "No such file"),
        (python("print('s3cret'); raise SystemExit(3)"), "status 3"),
        (python("pass"), "is empty"),
        (python("print('s3cret'); print('more')"), "not one line"),
        (python("import os; os.write(1, b's3cret\\xff')"), "not UTF-8"),
        (python("print('s3cret' * 20000)"), "not one line"),
    ],
)
def test_a_secret_that_cannot_be_had_says_why_and_shows_nothing_of_it(ref: SecretRef, said: str) -> None:
    with pytest.raises(PreconditionError, match=said) as caught:
        resolve(ref, {"BLANK": "", "LINES": "s3cret\nb", "PATH": os.environ["PATH"]}, where="pve1")
    assert str(caught.value).startswith("pve1: ")
    assert "s3cret" not in f"{caught.value} {caught.value.detail} {caught.value.__cause__}"
    assert caught.value.exit_code == 4


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    pipe = tmp_path / "held"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        command = ("sh", "-c", f"exec 9>{pipe}; sleep 100 & wait")
        with pytest.raises(PreconditionError, match="gave nothing in 1 s"):
            resolve(SecretRef(command=command), dict(os.environ), deadline_s=1.0)
        assert ends_within(reader, seconds=10)
    finally:
        os.close(reader)


def ends_within(reader: int, *, seconds: float) -> bool:
    """Whether the last writer of the pipe has gone."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            return os.read(reader, 1) == b""
        time.sleep(0.02)
    return False


def test_known_secrets_are_blanked_in_every_spelling_of_a_text() -> None:
    secrets = [Secret(WORD), Secret("s3cret-w"), Secret('a"b')]
    text = (
        f"""raw {WORD} url s3cret-w%27ord%2F%25 shell 's3cret-w'"'"'ord/%' yaml 's3cret-w''ord/%' json "a\\"b" rest"""
    )
    assert mask(text, secrets) == "raw *** url *** shell '***' yaml '***' json \"***\" rest"
    assert mask("nothing here", secrets) == "nothing here"
