from __future__ import annotations

import pytest

from rackhand.contract.watch import GpuSample, Sample
from rackhand.render.sparks import ASCII, BLOCKS, cells, spark
from rackhand.render.trends import below, beside, trends_of


@pytest.mark.parametrize(
    ("values", "top", "ramp", "drawn"),
    [
        ([0, 0.124, 0.125, 0.5, 0.874, 0.875, 1.0], 1.0, BLOCKS, "▁▁▂▅▇██"),
        ([0, None, 600, 1200], 1200.0, BLOCKS, "▁ ▅█"),
        ([0, 0.5, 1.0, 2.0, -1.0], 1.0, ASCII, "_=##_"),
        ([0, None, 5], 0.0, BLOCKS, "▁ ▁"),
        ([], 1.0, BLOCKS, ""),
    ],
)
def test_a_figure_is_as_high_as_its_share_of_the_top_and_unknown_is_a_gap(
    values: list[float | None], top: float, ramp: str, drawn: str
) -> None:
    assert spark(values, top, ramp=ramp) == drawn


def test_a_cell_is_the_mean_of_its_stretch_of_time() -> None:
    points = [(0.0, 9.0), (41.0, 1.0), (59.0, 3.0), (60.0, None), (99.0, 4.0), (100.0, 6.0)]
    assert cells(points, until=100.0, seconds=60.0, count=3) == [2.0, None, 5.0]


def gpu(number: int, tok_s: float | None) -> GpuSample:
    return GpuSample(number, state="running", tok_s=tok_s, kv_usage=0.5, mamba_usage=None if tok_s is None else 0.6)


RUN = [Sample(1000.0 + 10 * n, gpus=tuple(gpu(g, 100.0 * n if g < 3 else None) for g in range(4))) for n in range(13)]


def test_sparklines_are_as_long_as_what_was_seen_and_scaled_to_the_fastest_gpu() -> None:
    trends = trends_of(RUN)
    assert (trends.seconds, trends.most) == (120.0, 1200.0)
    names, rows = beside(trends, 120, BLOCKS)
    assert names == ("0-1,200", "KV 0-1", "mamba 0-1")
    assert rows[0] == ("▁▁▂▃▃▄▅▅▆▇▇██", "▅" * 13, "▅" * 13)
    assert rows[3] == (" " * 13, "▅" * 13, " " * 13)


def test_a_narrow_screen_has_them_below_the_table_two_gpus_in_a_line() -> None:
    lines = below(trends_of(RUN), 80, ASCII)
    assert lines[0] == "last 2 min: tok/s 0-1,200, KV 0-1, mamba 0-1"
    assert [line[:2] for line in lines[1:]] == ["0 ", "2 "]
    assert max(map(len, lines)) <= 80
    assert lines[2].count("=" * 11) == 3


@pytest.mark.parametrize(
    ("width", "at_the_side", "lines"), [(39, 0, 0), (40, 0, 5), (80, 0, 3), (111, 0, 3), (112, 3, 0)]
)
def test_what_is_drawn_follows_from_the_width(width: int, at_the_side: int, lines: int) -> None:
    trends = trends_of(RUN)
    assert len(beside(trends, width, BLOCKS)[0]) == at_the_side
    assert len(below(trends, width, BLOCKS)) == lines
    assert max(map(len, below(trends, width, BLOCKS)), default=0) <= max(width, 48)
