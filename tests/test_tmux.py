from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from rackhand import tmux

LISTED = """\
sglang-gpu0:9599:0::0123456789abcdef
sglang-gpu1:9600:1:7:fedcba
gen:9601:1::
"""


def test_panes_are_read_with_exit_status_and_digest() -> None:
    assert tmux.parse_panes(LISTED) == (
        tmux.Pane("sglang-gpu0", 9599, dead=False, status=None, digest="0123456789abcdef"),
        tmux.Pane("sglang-gpu1", 9600, dead=True, status=7, digest="fedcba"),
        tmux.Pane("gen", 9601, dead=True, status=None, digest=""),
    )


@pytest.mark.parametrize(
    "text", ["", "no server running on /tmp/x/tmux.sock\n", "error connecting to /x (Permission)\n"]
)
def test_no_server_means_no_panes(text: str) -> None:
    assert tmux.parse_panes(text) == ()


@pytest.mark.parametrize("name", ["", "a.b", "a:b"])
def test_names_that_tmux_would_change_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="session name"):
        tmux.new_session_argv("/w", name, ("true",), digest="")


def test_a_session_keeps_its_exit_status_and_digest_and_is_found_by_its_exact_name(tmp_path: Path) -> None:
    home = str(tmp_path)
    script = tmp_path / "a b.sh"
    script.write_text('[ "$1" = "x;" ] && exit 7; exit 1\n')
    start = tmux.new_session_argv(home, "gpu10", ("/bin/sh", str(script), "x;"), digest="abcd")
    try:
        done = subprocess.run(start, capture_output=True, text=True, check=True)
        assert int(done.stdout) > 1
        deadline = time.monotonic() + 10
        while (panes := _panes(home))[0].status is None and time.monotonic() < deadline:
            # tmux 3.3a overlooks about one SIGCHLD in fifty; the end of another child makes it look again.
            subprocess.run(tmux.tmux_argv(home, "run-shell", "true"), check=True)
        assert [(p.session, p.status, p.digest) for p in panes] == [("gpu10", 7, "abcd")]
        assert subprocess.run(tmux.kill_session_argv(home, "gpu1"), capture_output=True, check=False).returncode != 0
    finally:
        subprocess.run(tmux.kill_session_argv(home, "gpu10"), check=True)
    assert _panes(home) == ()


def _panes(home: str) -> tuple[tmux.Pane, ...]:
    listed = subprocess.run(tmux.list_panes_argv(home), capture_output=True, text=True, check=False)
    return tmux.parse_panes(listed.stdout)
