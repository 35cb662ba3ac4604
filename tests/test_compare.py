from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from rackhand.compare import Line, changed_gpus, compare, interval, steady_stretch
from rackhand.contract.watch import GpuSample, JobSample, Sample
from rackhand.errors import PreconditionError, UsageError
from rackhand.inventory import Baseline
from rackhand.recording import Run
from rackhand.render.lines import comparison_lines
from rackhand.render.verdicts import changed_flags, compared_line, comparison_of
from rackhand.workflows.compare import chosen_runs


def run_of(
    *, running: int, tok_s: float, seconds: int = 120, ramp: int = 0, seed: int = 1, per_s: float = 2.0
) -> list[Sample]:
    """Eight GPUs with noise of some per cent; the first `ramp` seconds climb."""
    random, made = Random(seed), []  # noqa: S311
    for at in range(0, seconds + ramp, 2):
        share = min(1.0, (at + 1) / ramp) if ramp else 1.0
        gpus = tuple(
            GpuSample(
                n, state="running", running=round(running * share), cap=72, queue=0, kv_usage=0.3, util_pct=100.0,
                tok_s=tok_s * share * random.uniform(0.97, 1.03), power_w=500.0,
            )
            for n in range(8)
        )  # fmt: skip
        done = int(at * per_s)
        progress = {"completed": done, "total_output_tokens": done * 2500, "eta_hours": 100.0 - at / 3600}
        made.append(Sample(1000.0 + at, at, gpus, (JobSample("j", "/o", progress),)))
    return made


def test_the_steady_stretch_leaves_the_ramp_out() -> None:
    stretch = steady_stretch(run_of(running=64, tok_s=1175, ramp=60))
    assert 1050 <= stretch[0].time <= 1065
    assert stretch[-1].time == 1178
    assert steady_stretch(run_of(running=64, tok_s=1175, seconds=2, ramp=60)) == []
    assert steady_stretch([]) == []


def test_a_real_change_is_more_and_the_figures_are_those_of_the_runs() -> None:
    found = compare(
        run_of(running=32, tok_s=670, ramp=40, per_s=1.7), run_of(running=64, tok_s=1175, seconds=90, per_s=2.9)
    )
    rate = found.line("tok/s per GPU")
    assert rate.ratio == pytest.approx(1175 / 670, rel=0.02)
    assert rate.low is not None
    assert rate.high is not None
    assert rate.low > 1.7
    assert rate.high < 1.8
    assert rate.differs
    assert found.line("running per GPU").b == 64
    assert found.line("tok/s in all").a == pytest.approx(8 * 670, rel=0.02)
    assert found.line("completions/s").b == pytest.approx(2.9, rel=0.05)
    assert found.line("output tokens each").differs is False
    assert found.line("tokens per joule").b == pytest.approx(1175 / 500, rel=0.02)
    assert found.line("tok/s per GPU p10").a == pytest.approx(670 * 0.976, rel=0.01)
    assert found.line("mamba usage") == Line("mamba usage", None, None)
    assert found.seconds == 88


def test_the_same_again_is_no_difference_and_two_calls_say_the_same() -> None:
    a, b = run_of(running=64, tok_s=1175, seed=1), run_of(running=64, tok_s=1175, seed=2)
    found = compare(a, b)
    assert found.line("tok/s per GPU").differs is False
    assert found == compare(a, b)
    text = comparison_lines(comparison_of(found, ("run 1", "run 2")))
    assert any("tok/s per GPU " in line and line.endswith("no difference") for line in text)


def test_what_was_rebuilt_of_a_broken_road_counts_with_what_it_knows() -> None:
    a, b = run_of(running=32, tok_s=670, per_s=1.7), run_of(running=64, tok_s=1175, per_s=2.9)
    b[20:40] = [
        replace(s, jobs=(), rebuilt=True, gpus=tuple(replace(g, util_pct=None, power_w=None) for g in s.gpus))
        for s in b[20:40]
    ]
    found = compare(a, b)
    assert found.seconds == 118
    assert found.line("completions/s").b == pytest.approx(2.9, rel=0.05)
    assert found.line("tokens per joule").b == pytest.approx(1175 / 500, rel=0.02)
    assert found.line("ETA h").b is not None


def test_too_few_blocks_give_no_interval() -> None:
    assert interval([(1, 1), (2, 1)], [(1, 1)] * 9) is None
    assert interval([(0, 1)] * 5, [(1, 1)] * 5) is None
    assert interval([(1, 1)] * 5, [(2, 1)] * 5) == (2, 2)
    short = compare(run_of(running=64, tok_s=1175, seconds=24), run_of(running=64, tok_s=1175, seconds=24))
    assert short.line("tok/s per GPU").differs is None
    assert "too little steady time" in "".join(comparison_of(short, ("a", "b")).notes)


def test_the_table_says_what_was_changed_and_the_share_of_a_baseline() -> None:
    a = Run(1, "rtx", 0, 9, 5, {"0": {"mem-fraction-static": "0.88"}}, 32.0, 1)
    b = Run(2, "rtx", 9, 19, 5, {"0": {"mem-fraction-static": "0.9", "chunked-prefill-size": "8192"}}, 64.0, 2)
    changed = changed_flags(a, b)
    assert changed == [
        "chunked-prefill-size: - -> 8192",
        "mem-fraction-static: 0.88 -> 0.9",
        "sent per server: 32 -> 64",
    ]
    found = compare(run_of(running=32, tok_s=670), run_of(running=64, tok_s=1175))
    text = "\n".join(
        comparison_lines(comparison_of(found, ("a", "b"), changed=changed, baselines=[Baseline("b200", 25_000, 0.25)]))
    )
    assert "21.4 %" in text
    assert "37.6 %" in text
    assert "25 % expected" in text
    assert "mem-fraction-static: 0.88 -> 0.9" in text
    assert compared_line(found, a, b).startswith("run 2 against run 1: tok/s per GPU 1,17")


def test_runs_are_chosen_by_number_or_from_the_end() -> None:
    runs = [Run(n, "rtx", n, n + 1, 1, {}, None, None) for n in (1, 2, 5)]
    assert [run.id for run in chosen_runs(runs, ("1", "last"))] == [1, 5]
    assert [run.id for run in chosen_runs(runs, ("last-1", "5"))] == [2, 5]
    with pytest.raises(UsageError, match="no run 4"):
        chosen_runs(runs, ("4", "last"))
    with pytest.raises(PreconditionError, match="the history has 1"):
        chosen_runs(runs[:1], ("1", "last"))


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ({"0": {"a": "1"}, "1": {"a": "1"}}, {"0": {"a": "2"}, "1": {"a": "1"}}, (0,)),
        ({"0": {"a": "1"}, "1": {"a": "1"}}, {"0": {"a": "2"}, "1": {"a": "2"}}, ()),
        ({"0": {"a": "1"}, "1": {"a": "1"}}, {"0": {"a": "1"}, "1": {"a": "1"}}, ()),
        ({"0": {"cap": "3"}, "10": {}, "2": {}}, {"0": {"cap": "3"}, "10": {"a": "1"}, "2": {"a": "1"}}, (2, 10)),
        ({"0": {"a": "1"}}, {"0": {"a": "1"}, "1": {"a": "2"}}, ()),
        ({"0": {"a": "1"}, "1": {"a": "1"}}, {"0": {"a": "2"}}, ()),
    ],
)
def test_the_gpus_that_changed_are_told_where_others_did_not(
    before: dict[str, dict[str, str]], after: dict[str, dict[str, str]], changed: tuple[int, ...]
) -> None:
    assert changed_gpus(before, after) == changed
