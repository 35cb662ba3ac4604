"""One bad server of eight, random faults, bad prompts: nothing is lost, and only what is bad fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.remote.rig import Rig, nothing_lost_nothing_twice, write_prompts

FAULTS = ["500", "503", "429", "hang", "dead", "reset", "badjson", "errorbody", "empty", "trunc", "html502", "refuse"]


def test_a_bad_server_of_each_kind_beside_three_good_ones_costs_no_prompt(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 1500)
    bad = [word for number, fault in enumerate(FAULTS) for word in ("--bad", f"{number}:{fault}")]
    with Rig(tmp_path, "--lat", "20", *bad, ports=len(FAULTS) + 3) as rig:
        assert rig.generate(prompts, "--timeout-floor", "2", "--attempts", "12") == 0
        urls = {fault: rig.url(number) for number, fault in enumerate(FAULTS)}
    nothing_lost_nothing_twice(rig.output, 1500)
    servers = rig.progress()["servers"]
    assert {fault: servers[url]["completed"] for fault, url in urls.items()} == dict.fromkeys(FAULTS, 0)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_one_bad_server_of_eight_costs_no_prompt(tmp_path: Path, fault: str) -> None:
    prompts = write_prompts(tmp_path, 800)
    with Rig(tmp_path, "--lat", "20", "--bad", f"0:{fault}") as rig:
        assert rig.generate(prompts, "--timeout-floor", "2") == 0
        bad = rig.url(0)
        asked = 0 if fault == "refuse" else rig.stats(0)["requests"]
    nothing_lost_nothing_twice(rig.output, 800)
    servers = json.loads((rig.output / "progress.json").read_text())["servers"]
    assert servers[bad]["completed"] == 0
    assert servers[bad]["last_error"] or fault == "dead"
    assert asked < 150


def test_random_faults_slow_a_run_down_and_lose_nothing(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 1000)
    shares = ("--p500", "0.05", "--p429", "0.02", "--preset", "0.01", "--ptrunc", "0.01")
    with Rig(tmp_path, "--lat", "5", "--phang", "0.002", *shares) as rig:
        assert (
            rig.generate(prompts, "--timeout-floor", "1", "--attempts", "20", "--sampling", '{"max_tokens": 20}') == 0
        )
    nothing_lost_nothing_twice(rig.output, 1000)


def test_a_run_waits_for_its_only_server_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 400)
    with Rig(tmp_path, "--lat", "5", "--down", "0:0:3", ports=1) as rig:
        assert rig.generate(prompts) == 0
    nothing_lost_nothing_twice(rig.output, 400)
    assert "is left out until it answers" in rig.log
    assert "answers again" in rig.log


def test_a_refused_prompt_fails_for_good_and_trips_nothing(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 200, lambda i: "always400" if i % 10 == 3 else f"prompt {i}")
    bad = set(range(3, 200, 10))
    with Rig(tmp_path, ports=2) as rig:
        assert rig.generate(prompts) == 3
        asked = rig.requests()
        assert asked == 200
        assert rig.generate(prompts) == 3
        assert rig.requests() == asked
        failures = [json.loads(line) for line in (rig.output / "failures.jsonl").read_text().splitlines()]
        assert {failure["index"] for failure in failures} == bad
        assert {failure["kind"] for failure in failures} == {"prompt"}
        assert "left out" not in rig.log
        assert rig.generate(prompts, "--retry-failed") == 3
        assert rig.requests() == asked + len(bad)
    nothing_lost_nothing_twice(rig.output, set(range(200)) - bad)


def test_a_prompt_that_breaks_every_server_is_given_up_and_asked_again_by_the_next_run(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 50, lambda i: "always500" if i in (7, 8) else f"prompt {i}")
    with Rig(tmp_path, ports=1) as rig:
        assert rig.generate(prompts, "--attempts", "3") == 3
        assert not (rig.output / "failures.jsonl").exists()
        nothing_lost_nothing_twice(rig.output, set(range(50)) - {7, 8})
        before = rig.requests()
        assert rig.generate(prompts, "--attempts", "1") == 3
        assert rig.requests() > before


def test_an_empty_completion_is_tried_twice_then_rejected_and_never_stored(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 60, lambda i: "alwaysempty" if i == 11 else f"prompt {i}")
    with Rig(tmp_path, ports=2) as rig:
        assert rig.generate(prompts) == 3
        asked = rig.requests()
        assert asked == 61
        assert rig.generate(prompts) == 3
        assert rig.requests() == asked
        rejected = [json.loads(line) for line in (rig.output / "rejected.jsonl").read_text().splitlines()]
        assert [(row["index"], row["completion"], row["attempts"]) for row in rejected] == [(11, "", 2)]
        (rig.output / "rejected.jsonl").stat()
        assert rig.generate(prompts, "--retry-rejected") == 3
        assert rig.requests() == asked + 2
        assert rig.generate(prompts) == 3
        assert rig.requests() == asked + 2
    done = sorted(int(line) for line in (rig.output / ".done_indices").read_text().split())
    assert done == list(range(60))


@pytest.mark.parametrize(("fault", "words"), [("400", "were refused"), ("401", "no server takes requests")])
def test_a_request_that_every_server_refuses_stops_the_run_with_one_message(
    tmp_path: Path, fault: str, words: str
) -> None:
    prompts = write_prompts(tmp_path, 1000)
    with Rig(tmp_path, "--bad", f"0:{fault}", "--bad", f"1:{fault}", ports=2) as rig:
        assert rig.generate(prompts) == 1
        assert words in rig.log
        assert rig.progress()["status"] == "failed"
        for port in range(2):
            rig.set_fault(port, None)
        assert rig.generate(prompts) == 0
    nothing_lost_nothing_twice(rig.output, 1000)
