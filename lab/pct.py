"""pct as Proxmox VE 8.4 has it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from lab import container
from lab.place import read_place


def main(state: str, lc_ctype: str, argv: list[str]) -> int:
    place, options = read_place(Path(state))
    time.sleep(options.pct_delay_s)
    words = container.attach_argv(place, options.vmid, *argv[argv.index("--") + 1 :])
    os.environ["HOME"] = "/root"
    if not lc_ctype:
        os.environ.pop("LC_CTYPE", None)
    os.environ["PATH"] = "/sbin:/bin:/usr/sbin:/usr/bin"
    os.execvp(words[0], words)  # noqa: S606
