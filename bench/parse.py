"""Lines per second of parse_line on one core, against a bare re.search over the same lines.

Run: python bench/parse.py. Lines: a server at work as the log shows it (decode, prefill, two access lines each), and
the recorded run of tests/fixtures. Every batch line has numbers of its own. CPU time, since others use the machine
too: of each piece of PIECE lines the best of ROUNDS rounds over all of them counts.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rackhand.engines.sglang import parse_line  # noqa: E402

PIECE, ROUNDS = 400, 9
PEER = r"gen throughput \(token/s\): ([\d.]+)"


def main() -> None:
    random.seed(7)
    at_work = [line for second in range(12_000) for line in _second(second)]
    recording = ROOT / "tests/fixtures/sglang-0.5.23/b1.log"
    recorded = recording.read_text(encoding="utf-8", errors="replace").split("\n") * 60
    for name, lines in (("at work", at_work), ("decode only", at_work[::4]), ("recorded, start included", recorded)):
        ours = _lines_per_s(parse_line, lines)
        peer = _lines_per_s(partial(re.search, PEER), lines)
        print(f"{name:26}{ours:>10,.0f} lines/s   re.search{peer:>11,.0f} lines/s   ratio {ours / peer:.2f}")


def _second(second: int) -> Iterable[str]:
    stamp = f"[2026-05-09 {second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}]"
    running, usage = random.randint(58, 64), 0.42 + 0.05 * random.random()
    yield (
        f"{stamp} Decode batch, #running-req: {running}, #full token: {int(usage * 431_872)}, full token usage: "
        f"{usage:.2f}, mamba num: {2 * running}, mamba usage: {2 * running / 217:.2f}, cuda graph: True, "
        f"gen throughput (token/s): {1155 + 40 * random.random():.2f}, #queue-req: 0\n"
    )
    yield (
        f"{stamp} Prefill batch, #new-seq: 1, #new-token: {random.randint(30, 900)}, #cached-token: 0, full token "
        f"usage: {usage:.2f}, mamba usage: 0.59, #running-req: {running}, #queue-req: 0, #pending-token: 0, "
        f"cuda graph: False, input throughput (token/s): {900 * random.random():.2f}\n"
    )
    for _ in range(2):
        port = random.randint(30_000, 60_000)
        yield f'{stamp} INFO:     127.0.0.1:{port} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'


def _lines_per_s(read: Callable[[str], object], lines: list[str]) -> float:
    pieces = [lines[at : at + PIECE] for at in range(0, len(lines), PIECE)]
    best = [float("inf")] * len(pieces)
    for _ in range(ROUNDS):
        for at, piece in enumerate(pieces):
            begin = time.process_time()
            for line in piece:
                read(line)
            best[at] = min(best[at], time.process_time() - begin)
    return len(lines) / sum(best)


if __name__ == "__main__":
    main()
