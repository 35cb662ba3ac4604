"""What users of other generators ran into, each with the small input that would show it here.

The numbers of issues are those of the peers' own. HELD_BY says which test holds which of them.
"""

from __future__ import annotations

import ast
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from remote.output import append_file
from remote.output.ledger import Batch
from remote.output.recovery import open_ledger
from tests.remote.rig import ROOT, Process, Rig, nothing_lost_nothing_twice, varied, wait_until, write_prompts

HELD_BY = (
    ("vllm#30268", "test_descriptors_and_memory_stay_flat"),
    ("ray#59522", "test_an_engine_that_is_down_from_the_start_and_one_that_dies_on_the_way_end_no_job"),
    ("ray PR 52634", "test_slots_stay_full_though_lengths_differ"),
    ("sglang#33858", "ISSUES"),
    ("sglang#4191", "ISSUES"),
    ("sglang#435", "ISSUES"),
    ("sglang#7357", "test_generate_faults.test_a_refused_prompt_fails_for_good_and_trips_nothing"),
    ("sglang#1742", "ISSUES"),
    ("olmocr#317", "test_feeding_policy.test_a_cold_server_gets_its_slots_one_by_one"),
    ("olmocr#110", "ISSUES"),
    ("distilabel#1065", "test_generate_life.test_kills_in_a_row_lose_nothing_and_ask_little_twice"),
    ("distilabel#666", "test_bytes_written_a_record_do_not_grow_with_the_run"),
    ("curator#618", "test_generate_life.test_a_second_signal_gives_requests_in_flight_back_at_once"),
    (
        "curator PR 202",
        "test_generate_faults.test_a_bad_server_of_each_kind_beside_three_good_ones_costs_no_prompt",
    ),
    ("DataDesigner#525", "test_generate.test_all_prompts_are_completed_and_a_resume_asks_nothing"),
    ("DataDesigner#575", "ISSUES"),
    ("DataDesigner PR 526", "test_a_kill_where_the_count_is_no_multiple_of_the_shard_loses_no_row"),
    ("httpx#3215", "bench/generator.py"),
    ("openai-python#874", "test_descriptors_and_memory_stay_flat"),
    ("vllm#39963", "ISSUES"),
    ("vllm-omni#5548", "test_no_total_of_the_client_library_cuts_a_long_answer"),
    ("vllm router#179", "ISSUES"),
    ("tau PR 354", "ISSUES"),
    (
        "hermes-agent PR 93653",
        "test_generate_faults.test_an_empty_completion_is_tried_twice_then_rejected_and_never_stored",
    ),
    ("datatrove#316", "test_generate_life.test_kills_in_a_row_lose_nothing_and_ask_little_twice"),
    ("litellm#13891", "test_descriptors_and_memory_stay_flat"),
    (
        "refused for all",
        "test_generate_faults.test_a_request_that_every_server_refuses_stops_the_run_with_one_message",
    ),
    ("BOM, CRLF, blank lines", "test_prompts.test_every_oddity_of_a_file_is_counted_and_told"),
    ("the file changed", "test_generate_life.test_changed_prompts_sampling_or_shards_are_refused_by_name"),
    ("duplicate ids", "test_ids_may_be_the_same_and_a_row_without_messages_is_left_out"),
)
"""Issue, and the test that holds it; ISSUES where it is a scene of that table."""


def test_every_issue_has_its_test_and_none_only_a_slow_one() -> None:
    for issue, where in HELD_BY:
        if where == "ISSUES":
            assert any(name.startswith(f"{issue}:") for name in ISSUES), issue
        elif where.startswith("bench/"):
            assert (ROOT / where).exists()
        else:
            module, _, name = where.rpartition(".")
            tree = ast.parse((Path(__file__).parent / f"{module or Path(__file__).stem}.py").read_text())
            (test,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
            assert "pytest.mark.slow" not in map(ast.unparse, test.decorator_list), name


@dataclass(frozen=True)
class Issue:
    """`servers` are null_server's options, `options` the generator's; `check` looks at the rig before it is gone."""

    servers: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    ports: int = 4
    count: int = 400
    text: Callable[[int], str] = lambda i: f"prompt {i}"
    missing: frozenset[int] = frozenset()
    exit: int = 0
    check: Callable[[Rig], None] = lambda rig: None


def _servers_share_alike(rig: Rig) -> None:
    counts = [rig.stats(port)["requests"] for port in range(len(rig.ports))]
    assert max(counts) - min(counts) <= 0.3 * sum(counts) / len(counts), counts


def _log_is_short(rig: Rig) -> None:
    assert rig.log.count("\n") < 40
    assert rig.progress()["failed"] == 3


def _each_hang_was_asked_elsewhere(rig: Rig) -> None:
    assert rig.progress()["retries"] <= 60


def _the_hung_server_is_left_out(rig: Rig) -> None:
    servers = rig.progress()["servers"]
    assert servers[rig.url(0)]["completed"] == 0
    assert rig.stats(0)["requests"] < 100


def _each_server_has_its_own_mean(rig: Rig) -> None:
    servers = rig.progress()["servers"]
    assert [servers[rig.url(port)]["avg_output_tokens"] for port in range(4)] == [6, 20, 20, 20]


ISSUES = {
    "sglang#4191: hung, and /health says 200": Issue(
        ("--lat", "5", "--bad", "0:hang"), ("--timeout-floor", "1"), check=_the_hung_server_is_left_out
    ),
    "sglang#1742: the output length of one server drifts": Issue(
        ("--lat", "5", "--bad", "0:short"), ("--quality", '{"min_tokens": 1}'), check=_each_server_has_its_own_mean
    ),
    "sglang#33858: some requests are never answered": Issue(
        ("--lat", "5", "--phang", "0.01"),
        ("--timeout-floor", "1", "--sampling", '{"max_tokens": 5}'),
        check=_each_hang_was_asked_elsewhere,
    ),
    "sglang#435: a server is gone for good near the end": Issue(
        ("--lat", "5", "--down", "0:0.2:600"), ("--timeout-floor", "2")
    ),
    "olmocr#110: one item is retried for ever and floods the log": Issue(
        text=lambda i: "always500" if i in (5, 6, 399) else f"prompt {i}",
        options=("--attempts", "3"),
        missing=frozenset((5, 6, 399)),
        exit=3,
        check=_log_is_short,
    ),
    "DataDesigner#575: transient 5xx shut the run down": Issue(
        ("--lat", "5", "--p500", "0.3"), ("--attempts", "30"), count=300
    ),
    "vllm#39963: big bodies": Issue(("--body", "400000"), ports=2, count=60),
    "vllm router#179: one worker gets everything": Issue(
        ("--lat", "20"), ports=8, count=1600, check=_servers_share_alike
    ),
    "tau PR 354: line separators inside a text": Issue(
        text=lambda i: f"one\u2028two\u0085three\u2029 {i} \r\f\v end", count=50
    ),
    "a 5 MB line": Issue(text=lambda i: varied(5 << 20) if i == 7 else "the same", count=30, ports=1),
}


@pytest.mark.parametrize("name", ISSUES)
def test_an_issue_of_a_peer_is_none_here(tmp_path: Path, name: str) -> None:
    issue = ISSUES[name]
    prompts = write_prompts(tmp_path, issue.count, issue.text)
    with Rig(tmp_path, *issue.servers, ports=issue.ports) as rig:
        assert rig.generate(prompts, *issue.options) == issue.exit, rig.log
        issue.check(rig)
    nothing_lost_nothing_twice(rig.output, set(range(issue.count)) - issue.missing)


def test_ids_may_be_the_same_and_a_row_without_messages_is_left_out(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "x", "prompt": "a"}\n' * 20 + '{"id": "x"}\n' + '{"id": 3, "prompt": "b"}\n')
    with Rig(tmp_path, ports=1) as rig:
        assert rig.generate(prompts) == 3
        assert rig.progress()["input"] == {"shape": 1}
    found = nothing_lost_nothing_twice(rig.output, {*range(20), 21})
    assert [record["id"] for record in sorted(found, key=lambda record: record["index"])] == ["x"] * 20 + [3]


def test_an_engine_that_is_down_from_the_start_and_one_that_dies_on_the_way_end_no_job(tmp_path: Path) -> None:
    """ray#59522."""
    prompts = write_prompts(tmp_path, 1200)
    with Rig(tmp_path, "--lat", "10", "--bad", "3:refuse", ports=8) as rig:
        process = rig.start(prompts, "--timeout-floor", "2")
        rig.wait_for_progress(process)
        rig.set_fault(1, "reset")
        assert rig.end(process) == 0
    nothing_lost_nothing_twice(rig.output, 1200)


def test_slots_stay_full_though_lengths_differ(tmp_path: Path) -> None:
    """ray PR 52634: batches wait for their slowest."""
    prompts = write_prompts(tmp_path, 3000)
    with Rig(tmp_path, "--lat", "500", "--dist", "tail", ports=2) as rig:
        process = rig.start(prompts)
        wait_until(lambda: rig.stats(0)["running"] == rig.stats(1)["running"] == 16, "full slots")
        looks = []
        while len(looks) < 40 and process.poll() is None and rig.finished() < 2000:
            looks.append(rig.stats(0)["running"] + rig.stats(1)["running"])
            time.sleep(0.02)
        process.kill()
        process.wait()
    assert sum(looks) / len(looks) > 0.9 * 32


def test_a_kill_where_the_count_is_no_multiple_of_the_shard_loses_no_row(tmp_path: Path) -> None:
    """DataDesigner PR 526."""
    prompts = write_prompts(tmp_path, 1001)
    with Rig(tmp_path, "--lat", "20", ports=2) as rig:
        process = rig.start(prompts, "--shard-bytes", "30000")
        wait_until(lambda: rig.finished() >= 555, "555 rows")
        process.kill()
        process.wait()
        assert rig.generate(prompts, "--shard-bytes", "30000") == 0
    nothing_lost_nothing_twice(rig.output, 1001)


def test_bytes_written_a_record_do_not_grow_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """distilabel#666."""
    ledger = open_ledger(tmp_path, lambda text: None)
    written: list[int] = []
    real = os.pwrite
    monkeypatch.setattr(
        append_file.os, "pwrite", lambda fd, data, at: (written.append(len(data)), real(fd, data, at))[1]
    )
    for index in range(1000, 1400):
        ledger.commit(Batch(records=[(index, b'{"index":%d}\n' % index)]))
    ledger.close()
    assert set(written) == {len('{"index":1000}\n'), len("1000\n")}


def _figures(process: Process) -> tuple[int, int]:
    """Open descriptors and RSS in MiB."""
    folder = Path(f"/proc/{process.pid}")
    resident = re.search(r"VmRSS:\s+(\d+)", (folder / "status").read_text())
    assert resident is not None
    return len(list((folder / "fd").iterdir())), int(resident[1]) >> 10


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [6_000, pytest.param(300_000, marks=pytest.mark.slow)])
def test_descriptors_and_memory_stay_flat(tmp_path: Path, count: int) -> None:
    """openai-python#874 and #2688, litellm#13891; vllm#30268 with its memory that grew with the file."""
    prompts = write_prompts(tmp_path, count, lambda i: f"prompt {i} " + varied(1000))
    with Rig(tmp_path, "--lat", "5", ports=4) as rig:
        process = rig.start(prompts)
        wait_until(lambda: rig.finished() > count // 5, "a fifth", 600)
        files, memory = _figures(process)
        wait_until(lambda: rig.finished() > count * 4 // 5 or process.poll() is not None, "four fifths", 600)
        later_files, later_memory = _figures(process)
        assert rig.end(process, 600) == 0
    assert later_files <= 4 * 16 + 40
    assert later_files <= files + 20
    assert later_memory < memory + 30


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_answer_that_takes_longer_than_five_minutes_is_waited_for(tmp_path: Path) -> None:
    """vllm-omni#5548: aiohttp's default total of 300 s."""
    prompts = write_prompts(tmp_path, 8)
    with Rig(tmp_path, "--lat", "301000", ports=1) as rig:
        assert rig.generate(prompts, "--timeout-floor", "900", seconds=800) == 0
    nothing_lost_nothing_twice(rig.output, 8)


def test_no_total_of_the_client_library_cuts_a_long_answer() -> None:
    text = (ROOT / "remote/generator/client.py").read_text()
    assert "ClientTimeout(total=None" in text


def test_the_generators_own_folder_says_what_was_read(tmp_path: Path) -> None:
    """vllm#30268: a resume doesn't count the rows of a big file again."""
    prompts = write_prompts(tmp_path, 40)
    with Rig(tmp_path, ports=1) as rig:
        assert rig.generate(prompts, "--limit", "10") == 0
        kept = json.loads((rig.output / ".prompts_offsets").read_bytes().split(b"\n")[0])
    assert kept["count"] == {"total": 40, "mine": 40}
