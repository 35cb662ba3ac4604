from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rackhand.contract.watch import GpuSample, JobSample, Sample
from rackhand.losses import Losses, losses_of
from rackhand.render.words import losses_words

GPU = GpuSample(0, "running", running=64, cap=72, queue=0, tok_s=1200.0, kv_tokens=100_000, prefill_share=0.04)


def sample(n: int, *, kv: int = 0, tok_s: float | None = 1200.0, **gpu: Any) -> Sample:
    """Every 5 s: 15 prompts of 2,600 tokens each become records, of 2,700 that came back."""
    progress = {
        "status": "running", "pid": 7, "completed": 15 * n, "total_input_tokens": 15 * n * 100,
        "total_output_tokens": 15 * n * 2600, "servers": {"http://a": {"output_tokens": 15 * n * 2700}},
    }  # fmt: skip
    one = replace(GPU, tok_s=tok_s, kv_tokens=100_000 + kv * n, **gpu)
    return Sample(5.0 * n, gpus=tuple(replace(one, gpu=g) for g in range(8)), jobs=(JobSample("a", "/o", progress),))


def test_every_token_is_accounted_for_from_what_is_possible_to_the_client() -> None:
    found = losses_of([sample(n, kv=500) for n in range(40)])
    assert found.seconds == 195
    assert found.server_tok_s == pytest.approx(9600)
    assert found.idle_slots_tok_s == pytest.approx(9600 * 8 / 64)
    assert found.queue_tok_s == 0
    assert found.prefill_tok_s == pytest.approx(9600 * 0.04 / 0.96)
    assert found.possible_tok_s == pytest.approx(9600 + 1200 + 400)
    assert found.client_tok_s == pytest.approx(7800)
    assert found.in_flight_tok_s == pytest.approx(8 * 500 / 5)
    assert found.thrown_away_tok_s == pytest.approx(300)
    assert found.rest_tok_s == pytest.approx(9600 - 7800 - 800 - 300)
    assert losses_words(found) == (
        "tok/s: at most 11,200 - 400 prefill - 0 queue - 1,200 idle slots = 9,600 at the servers"
        " - 800 still in flight - 300 thrown away - 700 rest = 7,800 at the client"
    )


def test_prompts_that_came_to_run_are_no_answers_in_flight() -> None:
    run = [sample(n, kv=500) for n in range(40)]
    run[0] = replace(run[0], gpus=tuple(replace(gpu, running=54) for gpu in run[0].gpus))
    assert losses_of(run).in_flight_tok_s == pytest.approx(8 * 500 / 5 - 8 * 10 * 100 / 195)


def test_slots_that_stand_empty_while_requests_wait_are_the_queues() -> None:
    found = losses_of([sample(0, running=60, queue=3)])
    each = 8 * 1200 / 60
    assert (found.queue_tok_s, found.idle_slots_tok_s) == (pytest.approx(3 * each), pytest.approx(9 * each))
    full = losses_of([sample(0, running=72, queue=30)])
    assert (full.queue_tok_s, full.idle_slots_tok_s) == (0, 0)


@pytest.mark.parametrize(
    ("gpu", "names"),
    [
        ({"cap": None}, ["possible_tok_s", "queue_tok_s", "idle_slots_tok_s"]),
        ({"prefill_share": None}, ["possible_tok_s", "prefill_tok_s"]),
        ({"running": None}, ["possible_tok_s", "queue_tok_s", "idle_slots_tok_s", "in_flight_tok_s", "rest_tok_s"]),
    ],
)
def test_what_can_not_be_read_stays_unknown(gpu: dict[str, object], names: list[str]) -> None:
    found = losses_of([sample(n, **gpu) for n in range(40)]).as_json()
    assert sorted(name for name, value in found.items() if value is None) == sorted(names)


def test_a_counter_wins_over_the_rate_unless_a_server_began_anew() -> None:
    run = [sample(n, decoded_tokens=6500.0 * n) for n in range(40)]
    assert losses_of(run).server_tok_s == pytest.approx(8 * 6500 / 5)
    run[-1] = sample(39, decoded_tokens=100.0)
    assert losses_of(run).server_tok_s == pytest.approx(9600)


def test_a_gpu_that_does_not_tell_its_prefill_is_like_the_others_when_half_of_them_do() -> None:
    one = sample(0)
    for told, lost in ((4, pytest.approx(400)), (3, None)):
        gpus = tuple(replace(g, prefill_share=0.04 if g.gpu < told else None) for g in one.gpus)
        assert losses_of([replace(one, gpus=gpus)]).prefill_tok_s == lost


def test_the_client_is_known_after_a_minute_and_thirty_answers_only() -> None:
    early = losses_of([sample(n) for n in range(11)])
    assert (early.server_tok_s, early.client_tok_s, early.rest_tok_s) == (9600, None, None)
    assert losses_words(early).endswith("= 9,600 at the servers")
    assert losses_of([sample(n) for n in range(13)]).client_tok_s == pytest.approx(7800)


def test_the_window_reaches_back_to_what_broke() -> None:
    run = [sample(n, tok_s=None if n == 20 else 1200.0) for n in range(40)]
    assert losses_of(run).seconds == 5 * 18
    other = [replace(s, jobs=(replace(s.jobs[0], progress={**s.jobs[0].progress, "pid": 8}),)) for s in run[35:]]  # type: ignore[dict-item]
    assert losses_of([*run[:35], *other]).seconds == 20


def test_without_servers_or_samples_there_is_nothing_to_say() -> None:
    assert losses_of([]) == Losses(0.0)
    assert losses_words(Losses(0.0)) == ""
    assert losses_words(losses_of([sample(0, running=0, tok_s=0.0)])) == ""
