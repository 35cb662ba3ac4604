"""nvidia-smi asked for one GPU after the other, where one that it can't read hides all the rest from it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from rackhand.contract.gpus import is_hidden

GPUS = Path("/proc/driver/nvidia/gpus")
"""A directory for each GPU of the driver, named for its bus."""
LIMIT_S = 10.0


def rows_of_each(argv: Sequence[str], said: str) -> str:
    """What `argv` said, with the rows of the GPUs that it shows one by one; as it is where it showed any, or where no
    GPU is to blame."""
    if not is_hidden(said):
        return said
    found = [said]
    for bus in sorted(path.name for path in GPUS.glob("*:*")):
        try:
            done = subprocess.run((*argv, "-i", bus), stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S)
        except (OSError, subprocess.TimeoutExpired):
            continue
        found.append(done.stdout.decode(errors="replace"))
    return "\n".join(part.rstrip("\n") for part in found)
