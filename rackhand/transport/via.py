"""A hop as a prefix of words: `pct exec 200 --` in front of every command."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator

from rackhand.command import Argv, Completed
from rackhand.errors import PreconditionError, RackhandError, StoppedError
from rackhand.transport import Limits, Stdin, Transport

Explain = Callable[[Completed, str], RackhandError | None]


class Via:
    """`inner` with `prefix` in front of every command. `explain` reads the hop's own failures.

    Words stay ASCII: pct decodes them by the host's locale, and what it can't decode it replaces without a word.
    """

    def __init__(
        self, inner: Transport, prefix: Argv, where: str, explain: Explain = lambda _done, _where: None
    ) -> None:
        self.inner = inner
        self._prefix, self._where, self._explain = prefix, where, explain

    @property
    def where(self) -> str:
        return self._where

    def exec(self, argv: Argv, *, stdin: Stdin = b"", deadline_s: float = 60.0) -> Completed:
        return self.checked(self.inner.exec(self._words(argv), stdin=stdin, deadline_s=deadline_s))

    def stream(
        self, argv: Argv, *, stdin: Stdin = b"", limits: Limits | None = None
    ) -> Generator[bytes, None, Completed]:
        done = yield from self.inner.stream(self._words(argv), stdin=stdin, limits=limits)
        return self.checked(done)

    def close(self) -> None:
        self.inner.close()

    def _words(self, argv: Argv) -> Argv:
        for word in argv:
            if not word.isascii():
                hint = "use ASCII for the paths of programs in the inventory"
                raise PreconditionError(f"{word!r} can't be an argument there", where=self._where, hint=hint)
        return (*self._prefix, *argv)

    def checked(self, done: Completed) -> Completed:
        """`done`, or what the hop itself had against it. For `inner`'s commands that speak for the hop too."""
        problem = self._explain(done, self._where) if done.status else None
        if problem is not None:
            raise problem
        return done


def pct(inner: Transport, vmid: int, where: str | None = None) -> Via:
    """The road into a container of the Proxmox host behind `inner`.

    No `--keep-env`: pve-container before 5.0.9 doesn't know it, and the agent's `env -i` makes it needless.
    """

    def explain(done: Completed, at: str) -> RackhandError | None:
        return explain_pct(done, at, getattr(inner, "user", "root"))

    return Via(inner, ("pct", "exec", str(vmid), "--"), where or f"{inner.where}/ct{vmid}", explain)


def explain_pct(done: Completed, where: str, user: str = "root") -> RackhandError | None:
    """pct's own failures, told from the command's by their texts: its exit statuses mean nothing but non-zero.
    `user` is who asked; PATH of others than root has no /usr/sbin."""
    text = done.stderr.decode(errors="replace")
    vmid = where.rpartition("/ct")[2]
    # Ends of lines, not whole ones: a start-up file may have printed in front of it, without a newline.
    if re.search(
        r"(CT \d+ not running|container '?\d+'? not running|can only push files to a running CT)!?\s*$",
        text,
        re.MULTILINE,
    ):
        return StoppedError("the container is stopped", where=where, hint=f"start it: pct start {vmid}", detail=text)
    if re.search(r"Configuration file 'nodes/[^']*' does not exist|CT \d+ does not exist", text):
        hint = "`pct list` on the Proxmox host shows those it has; mend vmid in the inventory"
        return PreconditionError(f"no container {vmid} here", where=where, hint=hint, detail=text)
    if locked := re.search(r"CT is locked \((\w+)\)", text):
        hint = f"wait for its end; when nothing of it runs any more: pct unlock {vmid}"
        return PreconditionError(f"the container is locked ({locked[1]})", where=where, hint=hint, detail=text)
    if re.search(r"can't lock file '?\S*pve-config-\d+\.lock'? - got timeout", text):
        what = "something else holds the container's configuration lock (pct, a backup, a snapshot)"
        return PreconditionError(what, where=where, hint="try again when it has ended", detail=text)
    no_pct = re.search(r"\b(ba|da|z)?sh: .*pct: (command )?not found", text, re.MULTILINE)
    if no_pct and user != "root":
        hint = f"pct needs root: log in as root@ the Proxmox host, not as {user}"
        return PreconditionError(f"no pct for {user}", where=where, hint=hint, detail=text)
    if no_pct:
        return PreconditionError("no pct here", where=where, hint="is it a Proxmox host? type: ssh is for plain hosts")
    if re.search(r"please run as root|Permission denied.*pmxcfs|ipcc_send_rec.*Permission denied", text):
        return PreconditionError("pct needs root", where=where, hint="log in as root@ the Proxmox host", detail=text)
    return None
