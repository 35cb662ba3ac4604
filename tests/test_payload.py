from __future__ import annotations

import ast
import io
import os
import pwd
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rackhand import payload
from tests.spoken import NONCE, asked, heard


def test_the_zipapp_holds_the_container_side_and_nothing_of_the_control_side() -> None:
    names = zipfile.ZipFile(io.BytesIO(payload.build().data)).namelist()
    assert {"remote/cli.py", "remote/observe.py", "remote/receive.py", "rackhand/contract/__init__.py"} <= {*names}
    assert [name for name in names if not name.endswith(".py")] == []
    others = {name.split("/")[1] for name in names if name.startswith("rackhand/")} - {"contract", "engines"}
    assert others == {"__init__.py"}


def test_files_times_and_modes_of_the_checkout_do_not_show_in_the_zipapp(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        for part in ("remote", "rackhand/contract", "rackhand/engines"):
            (tmp_path / folder / part).mkdir(parents=True)
            (tmp_path / folder / part / "__init__.py").write_text("x = 1\n")
    os.utime(tmp_path / "b/remote/__init__.py", (1, 1))
    (tmp_path / "b/remote/__init__.py").chmod(0o700)
    (tmp_path / "b/remote/__pycache__").mkdir()
    (tmp_path / "b/remote/notes.txt").write_text("not code")
    built = [payload.build(top, top / "rackhand").data for top in (tmp_path / "a", tmp_path / "b")]
    assert built[0] == built[1]


@pytest.fixture
def app(tmp_path: Path) -> str:
    (tmp_path / "remote.pyz").write_bytes(payload.build().data)
    return str(tmp_path / "remote.pyz")


def run(*argv: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run((sys.executable, "-B", *argv), capture_output=True, env={}, input=asked("nothing", {}, "p"))


def test_a_call_answers_from_a_file_as_from_memory(app: str) -> None:
    end = heard(run(app, "session", NONCE, "p").stdout)
    assert end is not None
    assert end["error"]["what"] == "no verb nothing"


def test_a_person_is_told_the_usage(app: str) -> None:
    done = run(app, "frobnicate")
    assert done.returncode == 2
    assert done.stderr.startswith(b"usage: ")


def test_the_zipapp_gives_itself_a_home(app: str) -> None:
    code = "import os,runpy,sys\ntry: runpy.run_path(sys.argv[1])\nexcept SystemExit: print(os.environ['HOME'])"
    assert run("-c", code, app).stdout.decode().strip() == pwd.getpwuid(os.getuid()).pw_dir


def test_the_container_side_parses_as_python_3_10() -> None:
    archive = zipfile.ZipFile(io.BytesIO(payload.build().data))
    for name in archive.namelist():
        ast.parse(archive.read(name), name, feature_version=(3, 10))
