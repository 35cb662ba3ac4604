from __future__ import annotations

from collections.abc import Callable

import pytest

from rackhand.contract.watch import GpuSample, JobSample, Sample
from rackhand.steady import course_of, phase_means, relative_change, total_of


def gpu(number: int, running: int | None, tok_s: float | None, **fields: object) -> GpuSample:
    fixed = {"state": "running", "cap": 72, "queue": 0, "kv_usage": 0.42, "mamba_usage": 0.59, **fields}
    return GpuSample(number, running=running, tok_s=tok_s, **fixed)  # type: ignore[arg-type]


def samples(running: Callable[[int], float], tok_s: Callable[[int], float], count: int = 16) -> list[Sample]:
    return [Sample(100.0 + 2 * n, n, tuple(gpu(g, int(running(n)), tok_s(n)) for g in range(8))) for n in range(count)]


@pytest.mark.parametrize(
    ("running", "tok_s", "count", "course"),
    [
        (lambda n: 64, lambda n: 1175 + 20 * (n % 3), 16, "steady"),
        (lambda n: 63 + n % 2, lambda n: 1175, 16, "steady"),
        (lambda n: 4 * n, lambda n: 70 * n, 16, "ramping"),
        (lambda n: 64, lambda n: 400 + 40 * n, 16, "ramping"),
        (lambda n: 64 - 4 * n, lambda n: 1175 - 70 * n, 16, "draining"),
        (lambda n: 0, lambda n: 0, 16, "idle"),
        (lambda n: 64, lambda n: 1175, 4, "unknown"),
    ],
)
def test_the_course_follows_from_slopes_over_the_window(
    running: Callable[[int], float], tok_s: Callable[[int], float], count: int, course: str
) -> None:
    assert course_of(samples(running, tok_s, count)) == course


def test_a_ramp_that_ended_before_the_window_does_not_count() -> None:
    assert course_of(samples(lambda n: min(64, 4 * n), lambda n: min(1175, 75 * n), 40)) == "steady"


def test_one_gpu_that_can_not_be_read_makes_totals_unknown_and_dead_ones_do_not_count() -> None:
    dead = GpuSample(2, state="dead")
    assert total_of(Sample(0, gpus=(gpu(0, 64, 1000), gpu(1, 60, 900), dead)), "tok_s") == 1900
    assert total_of(Sample(0, gpus=(gpu(0, 64, 1000), gpu(1, 60, None), dead)), "tok_s") is None
    assert total_of(Sample(0, gpus=(dead,)), "tok_s") is None


def test_a_phase_is_the_means_of_its_window() -> None:
    run = [
        Sample(
            100.0 + n,
            n,
            (gpu(0, 64, 1200.0), gpu(1, 62, 1100.0, mamba_usage=None)),
            (JobSample("a", "/o", {"completed": 3 * n}), JobSample("b", "/p", None)),
        )
        for n in range(11)
    ]
    means = phase_means(run, window_s=10)
    assert (means.seconds, means.cap_per_gpu, means.running_per_gpu) == (10, 72, 63)
    assert (means.tok_s_per_gpu, means.tok_s_total, means.mamba_usage) == (1150, 2300, 0.59)
    assert means.completions_per_s == pytest.approx(3)
    assert means.completed == 30


def test_a_phase_without_samples_knows_nothing() -> None:
    means = phase_means([])
    assert (means.tok_s_total, means.completions_per_s, means.completed) == (None, None, None)


def test_the_change_is_that_of_the_fitted_line() -> None:
    assert relative_change([(0, 90), (1, 100), (2, 110)]) == pytest.approx(0.2)
    assert relative_change([(0, 0), (1, 0)]) == 0
    assert relative_change([(5, 7)]) == 0
