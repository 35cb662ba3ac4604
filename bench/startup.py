"""What ./inv adds to Invoke: `./inv --list`, warm, against `python -c "import invoke"` of the same environment.

    .venv/bin/python bench/startup.py [ROUNDS]

Prints the medians and their ratio; the two commands alternate, so that a busy machine slows both.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INV = (str(ROOT / "inv"), "--list")
PEER = (sys.executable, "-c", "import invoke")
BOUND = 2.5


def seconds(argv: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main(rounds: int) -> None:
    for argv in (INV, PEER):
        seconds(argv)
    pairs = [(seconds(INV), seconds(PEER)) for _ in range(rounds)]
    inv_s, peer_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(inv / peer for inv, peer in pairs)
    print(f"./inv --list             {inv_s * 1000:7.1f} ms")
    print(f'python -c "import invoke" {peer_s * 1000:6.1f} ms')
    print(f"ratio                    {inv_s / peer_s:7.2f}     (bound {BOUND}; pairs {ratios[0]:.2f}-{ratios[-1]:.2f})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
