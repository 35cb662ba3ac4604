"""A session: several requests of one process, what breaks it and what doesn't, and shells that talk or read."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackhand import agent, unanswered
from rackhand.agent import Session
from rackhand.command import Argv, Completed
from rackhand.contract import to_json, wire
from rackhand.contract.files import Incoming, ObserveRequest, ReceiveRequest
from rackhand.contract.watch import WatchRequest
from rackhand.errors import (
    DeadlineError,
    NotRunningError,
    PreconditionError,
    RackhandError,
    RemoteError,
    TransportError,
)
from rackhand.transport import Limits, Stdin
from rackhand.transport.local import Local
from rackhand.transport.via import Via

PYTHON = sys.executable


class Shell(Local):
    """This machine behind a shell that runs `startup` before every command, and `logout` behind it."""

    def __init__(self, startup: str, logout: str = ":") -> None:
        super().__init__("pve1")
        self.script = f'{startup}\n"$@"; status=$?; {logout}; exit $status'
        self.started = 0

    def exec(self, argv: Argv, *, stdin: Stdin = b"", deadline_s: float = 60.0) -> Completed:
        return super().exec(self._words(argv), stdin=stdin, deadline_s=deadline_s)

    def stream(
        self, argv: Argv, *, stdin: Stdin = b"", limits: Limits | None = None
    ) -> Generator[bytes, None, Completed]:
        self.started += 1
        return (yield from super().stream(self._words(argv), stdin=stdin, limits=limits))

    def _words(self, argv: Argv) -> Argv:
        return ("/bin/bash", "-c", self.script, "bash", *argv)


class Files:
    """Requests about files in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def look(self, session: Session, *names: str) -> dict[str, str]:
        request = ObserveRequest(f"{self.folder}/home", str(self.folder), tuple(f"{self.folder}/{n}" for n in names))
        seen = session.call_once("observe", to_json(request), python=PYTHON)
        return {Path(path).name: state["sha256"] for path, state in seen["files"].items()}

    def send(self, session: Session, body: Iterator[bytes], size: int, sha256: str) -> None:
        incoming = Incoming(f"{self.folder}/sent", size, sha256, 0o644)
        request = ReceiveRequest(f"{self.folder}/home", str(self.folder), (incoming,))
        list(session.call("receive", to_json(request), python=PYTHON, body=body))


SHA_A = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def shell() -> Iterator[Shell]:
    road = Shell(":")
    yield road
    assert not road._running, "nothing stays"


def test_one_process_looks_writes_and_sees_what_was_written(files: Files, shell: Shell) -> None:
    with Session(shell) as session:
        assert files.look(session, "sent") == {}
        files.send(session, iter((b"a",)), 1, SHA_A)
        assert files.look(session, "sent") == {"sent": SHA_A}
    assert shell.started == 1


def test_a_request_that_fails_leaves_the_session_usable_and_the_rest_of_its_body_unread(
    files: Files, shell: Shell
) -> None:
    sent: list[int] = []

    def endless() -> Iterator[bytes]:
        for number in range(100_000):
            sent.append(number)
            yield b"x" * 100_000

    with Session(shell) as session:
        with pytest.raises(RemoteError, match="its sha256 differs"):
            files.send(session, endless(), 1, SHA_A)
        assert files.look(session, "sent") == {}
        files.send(session, iter((b"a",)), 1, SHA_A)
        assert files.look(session, "sent") == {"sent": SHA_A}
    assert shell.started == 1
    assert len(sent) < 5_000, "what nobody wants isn't sent"


def test_a_body_whose_source_fails_raises_that_and_the_session_goes_on(files: Files, shell: Shell) -> None:
    def broken() -> Iterator[bytes]:
        yield b"some"
        raise PreconditionError("the file became shorter")

    with Session(shell) as session:
        with pytest.raises(PreconditionError, match="became shorter"):
            files.send(session, broken(), 100, SHA_A)
        assert files.look(session, "sent") == {}
    assert shell.started == 1


def test_a_body_that_is_too_long_does_not_reach_the_next_request(files: Files, shell: Shell) -> None:
    with Session(shell) as session:
        files.send(session, iter((b"a", wire.ask("prompts", {}, PYTHON), b"b" * 70_000)), 1, SHA_A)
        assert files.look(session, "sent") == {"sent": SHA_A}


def test_a_verb_that_is_killed_is_said_so_and_the_session_goes_on(files: Files, shell: Shell) -> None:
    lock = files.folder / "home/.deploy.lock"

    def body() -> Iterator[bytes]:
        yield b"a" * 10
        _await(lambda: lock.exists() and lock.read_text())
        os.kill(int(lock.read_text()), signal.SIGKILL)
        yield b"b"

    with Session(shell) as session:
        with pytest.raises(NotRunningError, match=r"receive was killed; was the container stopped, or out of memory\?"):
            files.send(session, body(), 100, SHA_A)
        assert files.look(session, "sent") == {}
    assert shell.started == 1


def test_a_signal_inside_a_request_ends_it_clean_and_then_the_process(files: Files, shell: Shell) -> None:
    """SIGTERM to the process that the road started: its request says `interrupted`, and the next call starts anew."""
    lock = files.folder / "home/.deploy.lock"

    def body() -> Iterator[bytes]:
        yield b"a" * 10
        _await(lambda: lock.exists() and lock.read_text())
        os.kill(_parent(int(lock.read_text())), signal.SIGTERM)
        time.sleep(0.2)
        yield b"b"

    with Session(shell) as session:
        with pytest.raises(RemoteError, match="interrupted") as caught:
            files.send(session, body(), 100, SHA_A)
        assert caught.value.kind == "interrupted"
        assert [path.name for path in files.folder.iterdir()] == ["home"], "no temporary file stays"


def test_a_session_whose_process_is_gone_raises_once_and_starts_again(files: Files, shell: Shell) -> None:
    with Session(shell) as session:
        files.look(session)
        for process in tuple(shell._running):
            os.killpg(process._process.pid, signal.SIGKILL)
        with pytest.raises(NotRunningError, match="observe was killed"):
            files.look(session)
        assert files.look(session, "sent") == {}
    assert shell.started == 2


def test_the_process_ends_when_the_control_side_is_gone_in_the_middle_of_a_body(tmp_path: Path) -> None:
    """What receive learns is what it learnt when it was a process of its own: its input ended."""
    read, write = os.pipe()
    request = to_json(ReceiveRequest(f"{tmp_path}/home", str(tmp_path), (Incoming(f"{tmp_path}/f", 9, SHA_A, 0o644),)))
    argv = [PYTHON, "-m", "remote", "session", "n0", "p"]
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(argv, stdin=read, stdout=out)
    os.close(read)
    os.write(write, wire.ask("receive", request, "p") + wire.frame(b"aa"))
    os.close(write)
    assert process.wait(60) == 0
    assert b"the stream ended within" in (tmp_path / "out").read_bytes()
    assert not (tmp_path / "f").exists()


def test_another_interpreter_is_gone_on_with_in_the_same_session(files: Files, shell: Shell) -> None:
    request = to_json(ObserveRequest(f"{files.folder}/home", str(files.folder)))
    other = files.folder / "python"
    other.symlink_to(Path(PYTHON).resolve())
    with Session(shell) as session:
        for python in (PYTHON, str(other), PYTHON):
            assert session.call_once("observe", request, python=python)["platform"]["executable"] == python
        with pytest.raises(PreconditionError, match=r"pve1: no /none/python; set hosts.pve1.python or install it"):
            session.call_once("observe", request, python="/none/python")
        (files.folder / "plain").write_text("")
        with pytest.raises(PreconditionError, match=r"plain can't be run; mend hosts.pve1.python"):
            session.call_once("observe", request, python=str(files.folder / "plain"))
        assert session.call_once("observe", request, python=PYTHON)["event"] == "observed"
    assert shell.started == 1


def test_an_error_of_our_own_shows_its_last_line_and_keeps_the_traceback_for_verbose(shell: Shell) -> None:
    with Session(shell) as session:
        with pytest.raises(TransportError, match=r"observe ended without an answer .*ObserveRequest.home") as caught:
            session.call_once("observe", {"home": 3}, python=PYTHON)
        assert "Traceback" in caught.value.detail
        with pytest.raises(PreconditionError, match="no verb nothing"):
            session.call_once("nothing", {}, python=PYTHON)


def test_a_watch_that_nobody_follows_any_more_ends_and_others_can_be_asked(files: Files, shell: Shell) -> None:
    request = to_json(WatchRequest(f"{files.folder}/home", interval_s=0.1, until_eof=True))
    open_ended = threading.Event()

    def held() -> Iterator[bytes]:
        while not open_ended.wait(0.1):
            yield b""

    with Session(shell) as session:
        samples = session.call("watch", request, python=PYTHON, body=held(), deadline_s=None)
        assert [next(samples)["seq"], next(samples)["seq"]] == [0, 1]
        samples.close()
        assert files.look(session, "sent") == {}
    assert shell.started == 1


def test_limits_are_those_of_each_request_and_time_between_requests_counts_for_none(files: Files, shell: Shell) -> None:
    request = to_json(WatchRequest(f"{files.folder}/home", interval_s=60, until_eof=True))
    with Session(shell) as session:
        files.look(session)
        time.sleep(1.2)
        session.call_once("observe", to_json(ObserveRequest("/h", "/")), python=PYTHON, silence_s=30)

        def held() -> Iterator[bytes]:
            while True:
                time.sleep(0.05)
                yield b""

        samples = session.call("watch", request, python=PYTHON, body=held(), deadline_s=None, silence_s=1.0)
        with pytest.raises(DeadlineError, match="no sign of life"):
            list(samples)
        assert files.look(session) == {}
    assert shell.started == 2


def test_five_megabytes_on_stderr_and_a_long_body_at_once_block_nothing(files: Files) -> None:
    road = Shell("(head -c 5000000 /dev/zero | tr '\\0' e >&2) &")
    data = os.urandom(3_000_000)
    with Session(road) as session:
        files.send(session, (data[i : i + 77_777] for i in range(0, len(data), 77_777)), len(data), _sha(data))
        assert files.look(session, "sent") == {"sent": _sha(data)}


NOISE = {
    "lines": "echo welcome; echo",
    "without a newline": "printf 'motd: '",
    "escapes": r"printf '\033[1;32mhello\033[0m \033]0;title\007'",
    "JSON like our own": """echo '{"event": "end", "nonce": "x", "error": null}'; printf '{"event": "observed"}'""",
    "a mark of another": r"""printf '\036deadbeefdeadbeef {"event": "end", "error": null}\n'""",
    "thousands of lines": "seq 20000",
    "binary": "head -c 100000 /dev/urandom; echo",
    "carriage returns": r"printf 'a\r\nb\r\n\r'",
    "the command line itself": 'echo "$0 $*"; set -x',
    "on stderr": "seq 20000 >&2; echo 'CT 200 not running' >&2",
    "behind and at the end": "(sleep 0.3; echo late; sleep 0.4; printf later) & :",
}


@pytest.mark.parametrize("startup", NOISE.values(), ids=NOISE.keys())
def test_a_shell_that_talks_breaks_nothing_and_is_told_of(files: Files, startup: str) -> None:
    road = Shell(startup, logout="echo bye; printf farewell")
    with Session(road) as session:
        assert files.look(session, "sent") == {}
        files.send(session, iter((b"a",)), 1, SHA_A)
        assert files.look(session, "sent") == {"sent": SHA_A}
        if startup in (NOISE["lines"], NOISE["escapes"], NOISE["without a newline"]):
            said = str(session.noise)
            assert said.startswith("1 line that isn't rackhand's")
            assert "~/.bashrc" in said
            assert "\x1b" not in said
    assert road.started == 1


@given(st.lists(st.binary(max_size=50), max_size=5), st.binary(max_size=20))
def test_an_event_is_found_behind_whatever_stands_in_its_line(lines: list[bytes], glued: bytes) -> None:
    event = {"event": "x", "text": "\x1en0 {}"}
    line = glued.replace(b"\n", b"") + wire.tell("n0", event).rstrip(b"\n")
    text = wire.hear("n0", line)[1]
    assert text is not None
    assert json.loads(text) == event
    for other in lines:
        if b"\x1en0 " not in other:
            assert wire.hear("n0", other) == (other, None)


STARTUPS = {
    "reads a line": "read answer",
    "reads all": "cat >/dev/null",
    "exits": "exit 0",
    "exits with an error": "echo no >&2; exit 3",
    "becomes another shell": "exec /bin/sh",
    "becomes another program": "exec /bin/true",
    "a forced command": "echo 'This account is currently not available.'; exit 1",
}


@pytest.mark.parametrize("startup", STARTUPS.values(), ids=STARTUPS.keys())
def test_a_start_up_file_that_makes_work_impossible_is_named(
    files: Files, startup: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "READY_S", 1.0)
    road = Shell(startup)
    for way in (road, Via(road, ("env", "HOP=1"), "pve1/ct200")):
        with Session(way) as session, pytest.raises(PreconditionError) as caught:
            files.look(session)
        text = str(caught.value)
        assert text.startswith("pve1: the shell there doesn't run our commands as they are")
        for name in ("~/.bashrc", "/etc/profile.d", "BASH_ENV", "ForceCommand", "case $- in"):
            assert name in text
    assert not list(files.folder.iterdir())


def test_a_start_up_file_that_never_ends_is_a_deadline_that_names_it(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "READY_S", 0.5)
    monkeypatch.setattr(unanswered, "PROBE_S", 0.5)
    for startup in ("sleep 100", "while :; do echo again; sleep 0.01; done"):
        with Session(Shell(startup)) as session, pytest.raises(DeadlineError, match=r"start-up file .*~/\.bashrc"):
            files.look(session)


def test_nothing_is_sent_to_a_shell_that_took_the_place_of_our_command(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zipapp and a request with secrets must not be run as commands, or land in a file."""
    monkeypatch.setattr(agent, "READY_S", 1.0)
    taken = files.folder / "taken"
    with Session(Shell(f"cat >>{taken}; exit 0")) as session, pytest.raises(RackhandError):
        files.look(session)
    assert len(taken.read_bytes()) < 20, "a word of the probe at most"


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _await(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
