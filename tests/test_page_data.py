from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rackhand.arguments import gpu_ranges
from rackhand.contract.job import length_class
from rackhand.contract.watch import JobSample, Sample
from rackhand.inventory import Env, Fleet, Host, Job, PlainSsh, SecretRef, ServerSpec, Ssh
from rackhand.masked import shown_inventory
from rackhand.page import Recorded, page_data, render_page
from rackhand.page.marks import marks_of
from rackhand.page.runs import runs_of
from rackhand.page.series import MOST_POINTS, host_lines, points_of, times_of
from rackhand.page.work import work_of
from tests.page_recordings import SECRET, gpu, progress, recorded, run, samples


def test_each_sample_is_a_point_while_there_are_few() -> None:
    found = samples(20)
    points = points_of(found)
    assert times_of(points) == [sample.time for sample in found]
    lines = host_lines(points)
    assert lines["tok_s"] == [1340.0] * 20
    assert lines["running"] == [32.0] * 20
    assert lines["completed"] == [10.0 * n for n in range(20)]


def test_many_samples_become_means_of_equal_spans() -> None:
    found = samples(4 * MOST_POINTS, lambda n: {"tok_s": float(n)}, gpus=1)
    points = points_of(found)
    assert len(points) == MOST_POINTS
    rates = host_lines(points)["tok_s"]
    assert rates[0] == pytest.approx(1.5, abs=1)
    assert rates[-1] == pytest.approx(4 * MOST_POINTS - 2.5, abs=1)


def test_a_gap_in_the_recording_breaks_the_lines() -> None:
    found = [*samples(10), *(replace(s, time=s.time + 600) for s in samples(10))]
    points = points_of(found)
    lines, times = host_lines(points), times_of(points)
    assert len(points) == 21
    assert lines["tok_s"][10] is None
    assert found[9].time < times[10] < found[10].time


def test_a_server_that_is_down_has_no_figures_but_its_gpu_has() -> None:
    lines = host_lines(points_of(samples(3, lambda n: {"state": "dead"})))
    assert lines["running"] == [None] * 3
    assert lines["tok_s"] == [None] * 3
    assert lines["power_w"] == [1000.0] * 3


def test_restarts_deaths_and_generators_are_told_once_for_all_gpus() -> None:
    def state(n: int) -> dict[str, object]:
        if 5 <= n < 8:
            return {"state": "stopped", "cap": None}
        if n in (8, 9):
            return {"state": "loading", "cap": None}
        if n >= 15:
            return {"state": "dead", "cap": None}
        return {"cap": 37 if n < 5 else 72}

    told = [(mark.kind, mark.text) for mark in marks_of(samples(20, state, gpus=4))]
    assert told == [
        ("restart", "stopped: GPU 0-3"),
        ("restart", "up, cap 37 → 72: GPU 0-3"),
        ("trouble", "died: GPU 0-3"),
    ]


def test_what_was_rebuilt_of_the_past_starts_no_generator_and_lowers_no_rate() -> None:
    made = samples(90)
    made[:5] = [replace(one, jobs=(), rebuilt=True) for one in made[:5]]
    made[60:] = [replace(one, jobs=(), rebuilt=True) for one in made[60:]]
    assert marks_of(made) == []
    (found,) = runs_of(made, [run(1, 1000.0, 1178.0, {})])
    assert (found["steady"], found["figures"]["completions_s"], found["figures"]["settled_s"]) == (True, 5.0, 178.0)


def test_a_run_shows_the_inventory_of_then_where_it_was_another() -> None:
    now, then = {"host": {"name": "rtx"}}, {"host": {"name": "old"}}
    runs = [replace(run(n, 1000.0, 1100.0, {}), inventory=told) for n, told in enumerate((now, then, {}))]
    data = page_data(Recorded("j", "host", samples(60), 0.0, runs=runs, inventory=now))
    assert [one["inventory"] for one in data["runs"]] == [None, then, None]
    assert "name: old" in render_page(data)


def test_a_generator_that_starts_and_fails_is_told() -> None:
    def sample(time: float, pid: int, status: str, message: str = "") -> Sample:
        return Sample(
            time, gpus=(gpu(0),), jobs=(JobSample("j", "/out", progress(0, pid=pid, status=status, message=message)),)
        )

    run = [sample(0, 1, "running"), sample(2, 1, "failed", "disk full"), sample(4, 2, "running"), sample(6, 2, "done")]
    assert [(mark.time, mark.kind, mark.text) for mark in marks_of(run)] == [
        (2, "trouble", "j: failed (disk full)"),
        (4, "job", "j: generator started"),
        (6, "job", "j: done"),
    ]


@pytest.mark.parametrize(("gpus", "told"), [([0, 1, 2, 5], "0-2,5"), ([3], "3"), ([0, 2, 4], "0,2,4")])
def test_gpus_are_named_as_ranges(gpus: list[int], told: str) -> None:
    assert gpu_ranges(gpus) == told


def test_a_run_is_measured_without_its_ramp_and_drain() -> None:
    def ramp(n: int) -> dict[str, object]:
        share = min(1.0, n / 10, (60 - n) / 10)
        return {"running": round(32 * share), "tok_s": 670.0 * share}

    told = Recorded("j", "host", samples(60, ramp), 0.0, runs=(run(1, 1000, 1200, {}),))
    (found,) = page_data(told)["runs"]
    assert found["figures"]["running"] == pytest.approx(32, rel=0.02)
    assert found["figures"]["tok_s_total"] == pytest.approx(1340, rel=0.02)
    assert found["figures"]["completed"] == 590
    assert found["figures"]["output_tokens"] == 200
    assert found["figures"]["completions_s"] == 5


def test_flags_are_those_of_most_servers_and_others_are_named() -> None:
    flags = {"0": {"a": "1"}, "1": {"a": "1"}, "2": {"a": "2", "api-key": SECRET}}
    told = Recorded("j", "host", samples(9), 0.0, runs=(run(1, 1000, 1200, flags),))
    (found,) = page_data(told)["runs"]
    assert found["flags"] == {"a": "1"}
    assert found["other_flags"] == {"2": {"a": "2", "api-key": "***"}}


def test_runs_are_compared_over_their_steady_windows() -> None:
    def rate(n: int) -> dict[str, object]:
        return {"tok_s": (600.0 if n < 60 else 1200.0) + n % 3, "running": 32 if n < 60 else 64}

    told = Recorded("j", "host", samples(120, rate), 0.0, runs=(run(1, 1000, 1119, {}), run(2, 1120, 1300, {}, 64)))
    found = page_data(told)["comparison"]
    assert (found["before"], found["after"]) == ("run 1", "run 2")
    assert found["seconds"] > 60
    assert found["figures"]["tok_s_per_gpu"]["ratio"] == pytest.approx(2, rel=0.01)
    assert found["figures"]["tok_s_per_gpu"]["differs"] is True
    assert found["figures"]["completions_s"]["differs"] is False


def test_gpus_that_changed_are_compared_with_those_that_did_not() -> None:
    made = [
        replace(one, gpus=(replace(one.gpus[0], tok_s=1300.0 if n >= 60 else 650.0), *one.gpus[1:]))
        for n, one in enumerate(samples(120))
    ]
    old, new = {"0": {"a": "1"}, "1": {"a": "1"}}, {"0": {"a": "2"}, "1": {"a": "1"}}
    told = Recorded("j", "host", made, 0.0, runs=(run(1, 1000, 1119, old), run(2, 1120, 1300, new)))
    found = page_data(told)["comparison"]
    assert found["split"] == {"changed": "0", "others": "1"}
    ratios = {name: found["figures"][name]["ratio"] for name in ("tok_s_per_gpu", "tok_s_others", "tok_s_beyond")}
    assert ratios == {"tok_s_per_gpu": 2.0, "tok_s_others": 1.0, "tok_s_beyond": 2.0}
    assert "Only GPU 0 changed: running and tok/s per GPU are compared there" in render_page(page_data(told))


def test_a_run_that_was_never_steady_is_not_compared() -> None:
    told = Recorded("j", "host", samples(12), 0.0, runs=(run(1, 1000, 1010, {}), run(2, 1012, 1030, {})))
    data = page_data(told)
    assert [one["steady"] for one in data["runs"]] == [False, False]
    assert data["comparison"] == {"before": "run 1", "after": "run 2", "seconds": 0, "figures": {}}


def test_totals_are_added_over_the_generators_runs() -> None:
    def sample(pid: int, completed: int, before: int, lengths: dict[str, int]) -> Sample:
        server = {"failures": 2, "empty": 1, "finish_reasons": {"stop": completed}, "output_lengths": lengths}
        found = progress(completed, pid=pid, completed_before=before, failed=1, retries=3, servers={"http://x": server})
        return Sample(float(pid), jobs=(JobSample("j", "/out", found),))

    work = work_of([sample(1, 5, 0, {"8": 5}), sample(1, 10, 0, {"8": 10}), sample(2, 4, 10, {"8": 1, "64": 3})])
    assert work["generators"] == 2
    assert work["completed"] == 14
    assert work["finish_reasons"] == [{"reason": "stop", "count": 14}]
    assert work["lengths"] == {"most_tokens": [8, 16, 32, 64], "completions": [11, 0, 0, 3]}
    assert work["failures"]["failed requests"] == 4
    assert work["failures"]["requests asked again"] == 6
    assert work["unread"] == ""


def test_lines_that_could_not_be_read_are_named() -> None:
    found = progress(5, bad_lines=2, bad_line_numbers=[3, 17])
    work = work_of([Sample(1.0, jobs=(JobSample("j", "/out", found),))])
    assert work["failures"]["lines that could not be read"] == 2
    assert work["unread"] == "2 lines could not be read (lines 3, 17)"


@pytest.mark.parametrize(
    ("tokens", "most"), [(0, 0), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (4096, 4096), (4097, 8192)]
)
def test_a_completions_length_class_is_the_next_power_of_two(tokens: int, most: int) -> None:
    assert length_class(tokens) == most


def test_lengths_that_nobody_counted_are_said_to_be_missing() -> None:
    work = work_of(samples(2))
    assert work["lengths"] is None
    assert "don't count" in work["lengths_missing"] or "doesn't count" in work["lengths_missing"]


def test_another_job_of_the_host_stays_out() -> None:
    one = Sample(1.0, jobs=(JobSample("j", "/a", progress(5)), JobSample("other", "/b", progress(500))))
    assert page_data(Recorded("j", "host", [one], 0.0))["work"]["completed"] == 5


def test_an_inventory_shows_where_secrets_come_from_and_never_one() -> None:
    spec = ServerSpec(
        "m",
        args={"tokenizer-path": f"http://me:{SECRET}@host/t", "admin-api-key": SECRET},
        api_key=SecretRef(env="MY_KEY"),
    )
    variables = {"HF_TOKEN": SECRET, "OTHER": SecretRef(command=("pass", SECRET)), "HF_HUB_OFFLINE": "1"}
    host = Host("h", PlainSsh(Ssh("h")), env=Env(variables), servers=(spec,))
    shown = shown_inventory(
        Fleet(Path("/x/mine.yaml"), (host,)), host, Job("j", "h", "/o", "/p", sampling={"top_k": 1})
    )
    text = json.dumps(shown)
    assert SECRET not in text
    assert shown["host"]["env"]["variables"] == {
        "HF_TOKEN": "***",
        "OTHER": "the output of a command",
        "HF_HUB_OFFLINE": "1",
    }
    assert shown["host"]["servers"][0]["api_key"] == "$MY_KEY"
    assert shown["host"]["servers"][0]["args"] == {"tokenizer-path": "http://me:***@host/t", "admin-api-key": "***"}
    assert shown["job"]["sampling"] == {"top_k": 1}


def test_the_recorded_has_the_runs_of_the_field_report() -> None:
    runs = page_data(recorded())["runs"]
    found = [(p["figures"]["cap"], round(p["figures"]["running"])) for p in runs]
    assert found == [(37, pytest.approx(32, abs=1)), (72, pytest.approx(64, abs=1)), (72, pytest.approx(72, abs=1))]
