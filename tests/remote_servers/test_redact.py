from __future__ import annotations

from pathlib import Path

import pytest

from remote.serving.redact import LONGEST_LINE, Redactor, read_secrets, read_values, redact


def test_values_are_read_as_the_shell_reads_them(tmp_path: Path) -> None:
    (tmp_path / "secrets.env").write_text("A=plain\nB='two words'\nC='it'\"'\"'s'\nEMPTY=''\n")
    assert read_values(tmp_path) == {"A": b"plain", "B": b"two words", "C": b"it's", "EMPTY": b""}
    assert read_secrets(tmp_path) == (b"two words", b"plain", b"it's")
    assert read_secrets(tmp_path / "none") == ()


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_secret_is_blanked_wherever_the_pipe_cuts_it(cut: int) -> None:
    line = b"server_args: key hunter2-hunter2 end\n"
    redactor = Redactor((b"hunter2-hunter2",))
    out = redactor.feed(line[:cut]) + redactor.feed(line[cut:]) + redactor.flush()
    assert out == b"server_args: key <secret> end\n"


@pytest.mark.parametrize(
    "text", [b"api_key='abc', x", b"'api_key': 'abc', x", b'"admin_api_key": "abc", x', b"admin_api_key='abc', x"]
)
def test_a_key_that_nobody_named_is_blanked_too(text: bytes) -> None:
    assert b"abc" not in redact(text, ())
    assert redact(text, ()).endswith(b", x")


def test_an_absent_key_stays_readable() -> None:
    assert redact(b"'api_key': None", ()) == b"'api_key': None"


@pytest.mark.parametrize("tail", [b"hunt", b"hunter2", b"hunter2x"])
def test_a_line_without_an_end_does_not_grow_for_ever(tail: bytes) -> None:
    redactor = Redactor((b"hunter2",))
    first = redactor.feed(b"x" * (LONGEST_LINE + 1) + tail)
    out = first + redactor.feed(b"hunter2"[len(tail) :] + b"\n")
    assert len(first) > LONGEST_LINE - 100
    assert b"<secret>" in out
    assert b"hunter2" not in out
