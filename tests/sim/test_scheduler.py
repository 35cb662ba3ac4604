"""The scheduler of a simulated server, driven in this process at a thousand steps a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from lab.site.sglang.batch import Limits, QueueFullError, Request
from lab.site.sglang.scheduler import Scheduler

STEP_S = 0.001


class Recorder:
    """Stands for the log; keeps the texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def info(self, text: str) -> None:
        self.texts.append(text)

    warning = error = info

    def having(self, part: str) -> list[str]:
        return [text for text in self.texts if part in text]


def limits(**changes: float | None) -> Limits:
    plain = Limits(
        running=4,
        slots=12,
        held_per_request=2,
        kv_tokens=100_000,
        prefill_tokens=8192,
        log_interval=10,
        graph_batch=256,
        queued=None,
        accept_length=1.0,
        draft_tokens=0,
    )
    return plain._replace(**changes)


def request(prompt_tokens: int = 10, tokens: int = 21) -> Request:
    return Request(prompt_tokens, tokens, tokens, asyncio.get_running_loop().create_future())


def drive(work: Callable[[Callable[..., Scheduler], Recorder], Awaitable[None]]) -> Recorder:
    recorder = Recorder()

    def make(**changes: float | None) -> Scheduler:
        return Scheduler(limits(**changes), lambda _: STEP_S, recorder, lambda _: None)  # type: ignore[arg-type]

    async def run() -> None:
        await work(make, recorder)

    asyncio.run(run())
    return recorder


def test_a_decode_line_comes_every_interval_and_tells_held_slots() -> None:
    async def work(make: Callable[..., Scheduler], recorder: Recorder) -> None:
        scheduler = make()
        requests = [request(tokens=41) for _ in range(3)]
        for one in requests:
            scheduler.submit(one)
        await asyncio.gather(*(one.done for one in requests))
        assert scheduler.totals.finished_tokens == 123
        assert scheduler.totals.generated_tokens == pytest.approx(120)

    lines = drive(work).having("Decode batch")
    assert len(lines) == 4
    assert "#running-req: 3, " in lines[1]
    assert "mamba num: 6, mamba usage: 0.50, " in lines[1]
    assert "gen throughput (token/s): 3000.00" in lines[2]


def test_requests_above_the_cap_wait_their_turn() -> None:
    async def work(make: Callable[..., Scheduler], recorder: Recorder) -> None:
        scheduler = make(running=2)
        requests = [request() for _ in range(5)]
        for one in requests:
            scheduler.submit(one)
        for _ in range(3):
            await asyncio.sleep(0)
        assert (len(scheduler.running), len(scheduler.queue)) == (2, 3)
        assert scheduler.pending_tokens == 30
        assert all(await asyncio.gather(*(one.done for one in requests)))
        assert scheduler.used_tokens == 0

    drive(work)


def test_a_full_kv_pool_gives_requests_back_and_still_finishes_them_all() -> None:
    async def work(make: Callable[..., Scheduler], recorder: Recorder) -> None:
        scheduler = make(kv_tokens=200)
        requests = [Request(20, 80, 1, asyncio.get_running_loop().create_future()) for _ in range(4)]
        for one in requests:
            scheduler.submit(one)
        assert all(await asyncio.gather(*(one.done for one in requests)))
        assert scheduler.totals.retracted > 0
        assert scheduler.totals.finished_tokens == 320
        assert scheduler.used_tokens == 0

    assert drive(work).having("KV cache pool is full. Retract requests. #retracted_reqs: ")


def test_an_abort_frees_the_slot_for_the_next() -> None:
    async def work(make: Callable[..., Scheduler], recorder: Recorder) -> None:
        scheduler = make(running=1)
        first, second = request(tokens=100_000), request()
        scheduler.submit(first)
        scheduler.submit(second)
        await asyncio.sleep(5 * STEP_S)
        scheduler.abort(first)
        assert await first.done is False
        assert await second.done is True
        assert scheduler.totals.aborted == 1

    drive(work)


def test_a_frozen_scheduler_makes_nothing_until_it_thaws() -> None:
    async def work(make: Callable[..., Scheduler], recorder: Recorder) -> None:
        scheduler = make()
        one = request()
        scheduler.submit(one)
        await asyncio.sleep(5 * STEP_S)
        scheduler.set_pace(frozen=True, slowness=1.0)
        await asyncio.sleep(60 * STEP_S)
        assert not one.done.done()
        scheduler.set_pace(frozen=False, slowness=1.0)
        assert await one.done

    drive(work)


def test_slow_prompts_keep_slots_free_while_others_wait() -> None:
    async def work(make: Callable[..., Scheduler], recorder: Recorder) -> None:
        scheduler = make()
        scheduler.set_pace(frozen=False, slowness=1.0, prefill_tok_s=500_000)
        requests = [request(prompt_tokens=8000, tokens=3) for _ in range(6)]
        for one in requests:
            scheduler.submit(one)
        assert all([await one.done for one in requests])

    told = [text for text in drive(work).having("Prefill batch") if "#queue-req: 0" not in text]
    assert all("#new-seq: 1" in text for text in told)
    assert "#pending-token: 40000" in told[0]
    assert max(int(text.split("#running-req: ")[1].split(",")[0]) for text in told) < 4


def test_a_burst_above_the_queue_limit_is_refused() -> None:
    async def work(make: Callable[..., Scheduler], recorder: Recorder) -> None:
        scheduler = make(queued=1)
        first = request()
        scheduler.submit(first)
        with pytest.raises(QueueFullError):
            scheduler.submit(request())
        await first.done

    drive(work)


def test_speculation_makes_its_accept_length_a_step() -> None:
    async def work(make: Callable[..., Scheduler], recorder: Recorder) -> None:
        scheduler = make(accept_length=3.2, draft_tokens=4)
        one = request(tokens=1 + 32 * 10)
        scheduler.submit(one)
        await one.done
        assert scheduler.totals.decode_passes == pytest.approx(100)

    assert "accept len: 3.20, accept rate: 0.73, cuda graph: True" in drive(work).having("Decode batch")[3]
