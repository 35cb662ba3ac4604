"""Time lost at the end of a job, against its longest request.

Run: python bench/tail.py [--prompts 4000] [--seeds 5]

A simulation: the real feeder, judge and queue on scripted servers whose clock runs 100 times as fast. 8 servers of 24
slots; lengths as in the field: mean 2,660 tokens, log-normal with a long tail, 20 ms a token. Besides: one server that
is four times as slow, and one that hangs at the end. Lost is the time of the job less the work there was, spread over
all slots; the bar is 1.1 times the longest request (as the job itself would take it: on a good server).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from remote.generator.committer import Committer  # noqa: E402
from remote.generator.endpoint import Load  # noqa: E402
from remote.generator.feeder import Feeder  # noqa: E402
from remote.generator.feeding import Feeding  # noqa: E402
from remote.generator.judge import Judge  # noqa: E402
from remote.generator.prompt_queue import Queue  # noqa: E402
from remote.generator.reply import Reply  # noqa: E402
from remote.generator.server import Server  # noqa: E402
from remote.generator.tally import Tally  # noqa: E402
from remote.log_lines import LogLines  # noqa: E402
from remote.output.recovery import open_ledger  # noqa: E402
from remote.prompts.rows import Prompt, Row  # noqa: E402

SERVERS, SLOTS = 8, 24
SPEED = 100.0
MEAN_TOKENS, SIGMA, S_PER_TOKEN, MAX_TOKENS = 2660, 0.8, 0.02, 16384
BAR = 1.1


@dataclass
class Fleet:
    """Scripted servers: `slow` is four times as slow, `hung` answers nothing after `hangs_after` requests."""

    lengths: list[int]
    slow: str = ""
    hung: str = ""
    hangs_after: int = 0
    asked: int = 0
    cut_at: dict[str, asyncio.Semaphore] = field(default_factory=dict)

    async def complete(self, server: str, body: bytes, timeout_s: float) -> Reply:
        self.asked += 1
        index = int(body.split(b'"content":"')[1].split(b'"')[0])
        if server == self.hung and self.asked > self.hangs_after:
            await asyncio.sleep(timeout_s)
        async with self.cut_at.setdefault(server, asyncio.Semaphore(SLOTS)):
            await asyncio.sleep(self.seconds(server, index) / SPEED)
        return Reply(f"answer {index} " * 10, None, None, "stop", {"completion_tokens": self.lengths[index]}, "m")

    def seconds(self, server: str, index: int) -> float:
        return self.lengths[index] * S_PER_TOKEN * (4 if server == self.slow else 1)

    async def observe_load(self, server: str) -> Load | None:  # noqa: ARG002
        return Load(SLOTS)

    async def observe_health(self, server: str) -> bool:  # noqa: ARG002
        return True

    async def observe_model(self, server: str) -> str | None:  # noqa: ARG002
        return "m"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    for kind in ("all good", "one slow", "one hangs"):
        ratios = [_lost(kind, options.prompts, seed) for seed in range(options.seeds)]
        worst = max(ratios)
        print(f"{kind:10} lost / longest request: mean {sum(ratios) / len(ratios):.2f}, worst {worst:.2f}  (bar {BAR})")


def _lost(kind: str, count: int, seed: int) -> float:
    dice = random.Random(seed)
    mu_mean = MEAN_TOKENS / 2.718281828 ** (SIGMA**2 / 2)
    lengths = [min(MAX_TOKENS, 1 + int(mu_mean * dice.lognormvariate(0, SIGMA))) for _ in range(count)]
    urls = [f"http://s{n}" for n in range(SERVERS)]
    fleet = Fleet(
        lengths, slow=urls[0] if kind == "one slow" else "", hung=urls[0] if kind == "one hangs" else "",
        hangs_after=int(count * 0.97),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        took_s = asyncio.run(_run(fleet, urls, Path(folder))) * SPEED
    slots = SERVERS * SLOTS - (SLOTS * 0.75 if fleet.slow else 0)
    return (took_s - sum(lengths) * S_PER_TOKEN / slots) / (max(lengths) * S_PER_TOKEN)


async def _run(fleet: Fleet, urls: list[str], folder: Path) -> float:
    rows: list[Row] = [Prompt(i, None, [{"role": "user", "content": str(i)}]) for i in range(len(fleet.lengths))]

    def read(wanted: int, size: int) -> list[Row]:  # noqa: ARG001
        found = rows[:wanted]
        del rows[:wanted]
        return found

    tally, queue, log = Tally(started=0.0), Queue(), LogLines()
    feeding = Feeding({"max_tokens": MAX_TOKENS}, "m", timeout_floor_s=120.0 / SPEED)
    servers = [Server(url, SLOTS) for url in urls]
    ledger = open_ledger(folder, lambda _: None)
    committer = Committer(ledger, tally.note_safe)
    judge = Judge(servers, queue, committer, fleet, tally, feeding, log)
    began = time.monotonic()
    await Feeder(servers, queue, fleet, committer, judge, tally, feeding, read, log).run()
    took = time.monotonic() - began
    await committer.stop(10)
    ledger.close()
    assert tally.completed == len(fleet.lengths), (tally.completed, tally.failed)
    return took


if __name__ == "__main__":
    main()
