from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest

from rackhand import inventory
from rackhand.agent import Session
from rackhand.command import Completed
from rackhand.errors import (
    DeadlineError,
    NotRunningError,
    PreconditionError,
    RackhandError,
    StoppedError,
    TransportError,
    UnreachableError,
)
from rackhand.transport import Limits, Transport, connect, pump
from rackhand.transport.local import Local
from rackhand.transport.ssh import Ssh
from rackhand.transport.ssh_config import Target
from rackhand.transport.staging import staged
from rackhand.transport.via import Via, explain_pct, pct

ALL_BYTES = bytes(range(256)) * 1000


def test_every_byte_comes_back_as_it_went() -> None:
    done = Local().exec(("cat",), stdin=(ALL_BYTES[i : i + 999] for i in range(0, len(ALL_BYTES), 999)))
    assert done.stdout == ALL_BYTES
    assert done.status == 0


def test_five_megabytes_on_stderr_block_nothing() -> None:
    code = "import sys;sys.stderr.write('x'*5_000_000);sys.stdout.write(sys.stdin.read())"
    done = Local().exec((sys.executable, "-c", code), stdin=b"y" * 1_000_000)
    assert len(done.stdout) == 1_000_000
    assert len(done.stderr) == 64 * 1024


@pytest.mark.parametrize(
    ("argv", "status"), [(("sh", "-c", "exit 7"), 7), (("sh", "-c", "kill -9 $$"), 137), (("true",), 0)]
)
def test_a_status_is_reported_and_not_raised(argv: tuple[str, ...], status: int) -> None:
    assert Local().exec(argv, stdin=b"unread " * 100_000).status == status


@pytest.mark.parametrize(
    "take",
    [lambda: Local().exec(("yes",)), lambda: list(Local().stream(("sh", "-c", "yes | tr -d '\\n'")))],
    ids=["collected", "one line"],
)
def test_output_without_an_end_is_cut_off_before_it_fills_this_machine(
    take: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump, "MOST_BYTES", 1 << 20)
    with pytest.raises(TransportError, match="said more than 1 MiB"):
        take()


def test_pieces_of_lines_are_put_together() -> None:
    code = r"for piece in ('a', 'bc\nd', '\n\n', 'e\n'): print(piece, end='', flush=True)"
    assert list(Local().stream((sys.executable, "-c", code))) == [b"abc", b"d", b"", b"e"]


def test_lines_come_while_the_command_runs_and_its_end_is_the_generators_value() -> None:
    lines = Local().stream(("sh", "-c", "echo one; read answer; echo $answer; printf rest; exit 3"), stdin=b"two\n")
    seen: list[bytes] = []

    def relay() -> Iterator[bytes]:
        done.append((yield from lines))

    done: list[Completed] = []
    seen.extend(relay())
    assert seen == [b"one", b"two", b"rest"]
    assert done[0].status == 3


def test_closing_the_stream_ends_the_command(tmp_path: Path) -> None:
    lines = Local().stream(("sh", "-c", "echo $$; exec sleep 100"))
    pid = int(next(lines))
    lines.close()
    assert not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize(
    ("options", "text"),
    [({"deadline_s": 0.3}, "no end of sleep 100 within"), ({"silence_s": 0.3}, "no sign of life from sleep 100")],
)
def test_a_command_that_says_nothing_ends_in_a_deadline_error(options: dict[str, float], text: str) -> None:
    started = time.monotonic()
    with pytest.raises(DeadlineError, match=text):
        list(Local("pve1").stream(("sleep", "100"), limits=Limits(**options)))
    assert time.monotonic() - started < 60


def test_an_input_that_fails_is_raised_to_the_caller() -> None:
    def broken() -> Iterator[bytes]:
        yield b"some"
        raise PreconditionError("no file")

    with pytest.raises(PreconditionError, match="no file"):
        Local().exec(("cat",), stdin=broken())


def test_close_ends_what_still_runs() -> None:
    local = Local()
    lines = local.stream(("sh", "-c", "echo up; exec sleep 100"))
    assert next(lines) == b"up"
    local.close()
    with pytest.raises(StopIteration) as stop:
        next(lines)
    assert stop.value.value.status == 143


NOISY = 'echo hello; printf \'{"event": 1}\'; exec "$@"'


def behind(startup: str) -> Via:
    """A road whose shell has such a start-up file."""
    return Via(Local("pve1"), ("sh", "-c", startup, "sh"), "pve1")


def stages() -> set[Path]:
    return set(Path("/tmp").glob("rackhand-stage-*"))


@pytest.mark.parametrize("road", [Local(), behind(NOISY)], ids=["quiet", "noisy"])
def test_a_staged_file_is_private_and_goes_away(road: Transport) -> None:
    data = [bytes([n]) * 100_000 for n in range(20)]
    with staged(road, data, 2_000_000) as name:
        assert Path(name).read_bytes() == b"".join(data)
        assert Path(name).stat().st_mode & 0o777 == 0o600
    assert not Path(name).exists()


def test_a_staged_file_goes_away_when_its_user_fails_or_the_road_is_cut() -> None:
    with pytest.raises(RuntimeError), staged(Local(), [b"x"], 1) as failed:
        raise RuntimeError
    local = Local()
    with staged(local, [b"x"], 1) as cut:
        local.close()
        end = time.monotonic() + 30
        while Path(cut).exists():
            assert time.monotonic() < end
            time.sleep(0.02)
    assert not Path(failed).exists()


def test_a_staged_file_that_lacks_a_part_is_an_error_and_goes_away() -> None:
    before = stages()

    def broken() -> Iterator[bytes]:
        yield b"some"
        raise PreconditionError("no file")

    with pytest.raises(PreconditionError, match="no file"), staged(Local(), broken(), 10):
        pass
    end = time.monotonic() + 30
    while stages() - before:
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("stderr", "kind", "text"),
    [
        (
            "head: write error: No space left on device",
            PreconditionError,
            "can't write /tmp/rackhand-.*: No space left",
        ),
        (
            "sh: 1: cannot create /tmp/x: Read-only file system",
            PreconditionError,
            "Read-only file system; is /tmp there",
        ),
        ("sh: head: not found", TransportError, "head: not found"),
    ],
)
def test_a_host_without_room_is_told_what_needs_none(stderr: str, kind: type[RackhandError], text: str) -> None:
    with (
        pytest.raises(kind, match=text),
        staged(behind(f"cat >/dev/null & echo '{stderr}' >&2; exit 1"), [b"x"], 1),
    ):
        pass


def test_a_hop_is_words_in_front_and_its_name_stands_in_messages() -> None:
    via = Via(Local("pve1"), ("env", "HOP=1"), "pve1/ct1")
    assert via.exec(("sh", "-c", 'echo "$HOP" "$1"', "sh", "a b'c")).stdout == b"1 a b'c\n"
    assert via.where == "pve1/ct1"


@pytest.mark.parametrize(
    ("stderr", "kind", "text"),
    [
        (
            "motd of ops: container '200' not running!\n",
            StoppedError,
            "pve1/ct200: the container is stopped; start it: pct start 200",
        ),
        ("CT 200 not running\n", StoppedError, "pve1/ct200: the container is stopped; start it: pct start 200"),
        (
            "Configuration file 'nodes/pve1/lxc/200.conf' does not exist\n",
            PreconditionError,
            "pve1/ct200: no container 200 here",
        ),
        ("can only push files to a running CT\n", StoppedError, "pve1/ct200: the container is stopped"),
        (
            "CT is locked (backup)\n",
            PreconditionError,
            "pve1/ct200: the container is locked (backup); wait for its end",
        ),
        (
            "trying to acquire lock...\ncan't lock file '/run/lock/lxc/pve-config-200.lock' - got timeout\n",
            PreconditionError,
            "pve1/ct200: something else holds the container's configuration lock",
        ),
        ("bash: line 1: pct: command not found\n", PreconditionError, "pve1/ct200: no pct here"),
        ("sh: 1: pct: not found\n", PreconditionError, "pve1/ct200: no pct here"),
        ("please run as root\n", PreconditionError, "pve1/ct200: pct needs root"),
        ("a line of the command's own\n", type(None), ""),
    ],
)
def test_pcts_own_failures_are_told_from_the_commands(stderr: str, kind: type[RackhandError], text: str) -> None:
    problem = explain_pct(Completed(("pct",), 255, b"", stderr.encode(), 1.0), "pve1/ct200")
    assert type(problem) is kind
    assert str(problem or "").startswith(text)


def test_a_login_without_pct_hears_that_it_needs_root() -> None:
    done = Completed(("pct",), 127, b"", b"bash: line 1: pct: command not found\n", 1.0)
    assert str(explain_pct(done, "pve1/ct200", "ops")) == (
        "pve1/ct200: no pct for ops; pct needs root: log in as root@ the Proxmox host, not as ops"
    )


def test_pct_keeps_its_hands_off_the_commands_options(tmp_path: Path) -> None:
    stub = tmp_path / "pct"
    stub.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    stub.chmod(0o755)
    road = pct(Via(Local("pve1"), ("env", f"PATH={tmp_path}:{os.environ['PATH']}"), "pve1"), 200)
    assert road.exec(("ls", "-l", "a b")).stdout == b"exec|200|--|ls|-l|a b|"
    assert road.where == "pve1/ct200"


def test_a_word_that_pct_would_garble_is_refused() -> None:
    with pytest.raises(PreconditionError, match="pve1/ct200: '/opt/é/python' can't be an argument there"):
        pct(Local("pve1"), 200).exec(("/opt/é/python",))


def _stub(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("script", "kind", "text"),
    [
        (None, PreconditionError, "pve1: no {python}; set hosts.pve1.python or install it"),
        (
            "echo rackhand needs Python 3.10 or newer, not 3.8.1 >&2; exit 1",
            PreconditionError,
            "{python} is older than Python 3.10",
        ),
        (
            "echo \"AttributeError: module 'os' has no attribute 'memfd_create'\" >&2; exit 1",
            PreconditionError,
            "older",
        ),
        ("kill -9 $$", NotRunningError, "observe was killed"),
        ("echo boom >&2; exit 1", TransportError, r"observe ended without an answer \(status 1\); boom"),
        ('echo \'{"event": "end", "nonce": "guess"}\'', TransportError, "without an answer"),
    ],
)
def test_a_call_without_an_answer_says_why(
    tmp_path: Path, script: str | None, kind: type[Exception], text: str
) -> None:
    python = str(tmp_path / "python") if script is None else _stub(tmp_path / "python", script)
    with pytest.raises(kind, match=text.format(python=python)):
        list(Session(Local("pve1")).call("observe", {}, python=python))


def test_a_frozen_interpreter_is_a_deadline_and_not_a_hang(tmp_path: Path) -> None:
    python = _stub(tmp_path / "python", "exec sleep 100")
    with pytest.raises(DeadlineError):
        list(Session(Local("pve1")).call("observe", {}, python=python, deadline_s=0.3))


def test_a_port_where_nobody_listens_is_unreachable(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host alias\n HostName 127.0.0.1\n Port 9\n User root\n")
    road = Ssh(inventory.Ssh("alias", config=tmp_path / "config"), "pve1")
    with pytest.raises(UnreachableError, match=r"pve1: 127.0.0.1 port 9: Connection refused; is the host up"):
        road.exec(("true",))


@pytest.mark.parametrize("text", ["Error reading SSH protocol banner", "No existing session"])
def test_an_sshd_that_says_nothing_in_time_is_called_frozen_however_paramiko_puts_it(text: str) -> None:
    target = Target(host="pve1.example", port=22, user="root", key_name="pve1.example")
    problem = connect._why(paramiko.SSHException(text), target, "pve1", limit_s=1, waited_s=1.2)
    assert isinstance(problem, DeadlineError)
    assert "sshd said nothing; is the machine frozen or overloaded?" in str(problem)
    dropped = connect._why(paramiko.SSHException(text), target, "pve1", limit_s=15, waited_s=0.1)
    assert isinstance(dropped, UnreachableError)
