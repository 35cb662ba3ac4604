"""Where this rackhand stands, in a checkout or installed from a wheel, and how a person calls it there.

A wheel holds beside the package's modules, in `_share`, what a checkout has at its top: tasks.py, remote/, templates/
and requirements-remote.lock. So an installed rackhand puts one name into its environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
_INSIDE = PACKAGE / "_share"
IN_CHECKOUT = not _INSIDE.is_dir()
SHARE = PACKAGE.parent if IN_CHECKOUT else _INSIDE
COMMAND = "./inv" if IN_CHECKOUT else "rackhand"
"""What messages and the help advise to type."""


def command_argv() -> tuple[str, ...]:
    """This rackhand's own command line, for a program that stands anywhere."""
    return (str(SHARE / "inv"),) if IN_CHECKOUT else (sys.executable, "-P", "-m", "rackhand")
