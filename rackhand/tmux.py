"""tmux argv builders and the list-panes parser.

Always an own socket, no configuration file, and exact targets: `-t gpu1` would match gpu10 when gpu1 is gone.
A session's pane runs a script file: tmux refuses commands over 16 KB and keeps the first caller's environment.
"""

from __future__ import annotations

from dataclasses import dataclass

from rackhand.command import Argv

DIGEST = "@rackhand_digest"
_FORMAT = "#{session_name}:#{pane_pid}:#{pane_dead}:#{pane_dead_status}:#{" + DIGEST + "}"
"""Session names never hold a colon (tmux turns it into `_`), and no other field does."""


@dataclass(frozen=True, slots=True)
class Pane:
    """The one pane of a session. `status` is the exit status of a dead pane, None while it lives or if unknown."""

    session: str
    pid: int
    dead: bool
    status: int | None
    digest: str


SOCKET_BYTES = 107
"""The longest path of a Unix socket (sun_path without its NUL); tmux says "File name too long" beyond."""


def socket_path(home: str) -> str:
    return f"{home}/tmux.sock"


def tmux_argv(home: str, *words: str) -> Argv:
    return ("tmux", "-S", socket_path(home), "-f", "/dev/null", *words)


def new_session_argv(home: str, session: str, command: Argv, *, digest: str) -> Argv:
    """One call that makes the session, keeps its pane after the end (the exit status) and names its argv digest.

    It prints the pid of the pane's process.
    """
    _check(session)
    return tmux_argv(
        home,
        *(
            "new-session",
            "-d",
            "-s",
            session,
            "-x",
            "200",
            "-y",
            "50",
            "-c",
            home,
            "-P",
            "-F",
            "#{pane_pid}",
            "--",
            *map(_literal, command),
        ),
        *(";", "set-option", "-w", "-t", f"={session}:", "remain-on-exit", "on"),
        *(";", "set-option", "-t", f"={session}:", DIGEST, digest),
    )


def kill_session_argv(home: str, session: str) -> Argv:
    _check(session)
    return tmux_argv(home, "kill-session", "-t", f"={session}")


def list_panes_argv(home: str) -> Argv:
    return tmux_argv(home, "list-panes", "-a", "-F", _FORMAT)


def parse_panes(text: str) -> tuple[Pane, ...]:
    """Panes of `list-panes`; lines that are not ours to read (no server running, errors) are left out."""
    panes = []
    for line in text.splitlines():
        parts = line.split(":")
        if len(parts) != 5 or not parts[1].isdigit():
            continue
        session, pid, dead, status, digest = parts
        known = int(status) if status.lstrip("-").isdigit() else None
        panes.append(Pane(session, int(pid), dead == "1", known, digest))
    return tuple(panes)


def _literal(word: str) -> str:
    """tmux reads a word that ends in `;` as the end of a command."""
    return word[:-1] + "\\;" if word.endswith(";") else word


def _check(session: str) -> None:
    if not session or any(mark in session for mark in ".:"):
        raise ValueError(f"tmux session name {session!r}: it must not be empty or hold `.` or `:`")
