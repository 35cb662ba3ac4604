"""The installed command `rackhand`, and `python -m rackhand`; a checkout has ./inv."""

from __future__ import annotations

import signal
import sys


def run() -> None:
    """Until a verb cleans up after itself, Ctrl-C just ends: also while modules are being imported, as in ./inv."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from rackhand.program import main

    main(sys.argv[1:])


if __name__ == "__main__":
    run()
