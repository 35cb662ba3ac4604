"""The pure parts of feeding: breaker, queue, one server's slots, counts, control.json."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from rackhand.contract.job import Wish
from remote.generator.breaker import Breaker
from remote.generator.committer import Entry
from remote.generator.control_file import ControlFile, Wanted
from remote.generator.endpoint import Load
from remote.generator.prompt_queue import Item, Queue
from remote.generator.server import Flight, Server
from remote.generator.tally import Tally
from remote.prompts.rows import Prompt


def _prompt(index: int) -> Prompt:
    return Prompt(index, None, [{"role": "user", "content": "x"}])


def _fly(server: Server, count: int, now: float = 0.0, completed: int = 0) -> None:
    for _ in range(count):
        flight = Flight(Item(_prompt(0)), server.note_sent(now, completed), now)
        server.flights[object()] = flight  # type: ignore[index]


def test_a_breaker_opens_at_five_failures_in_a_row_and_one_probe_at_a_time_goes_through() -> None:
    breaker = Breaker()
    assert [breaker.note_failure(0.0, probe=False) for _ in range(4)] == [False] * 4
    assert not breaker.note_success()
    assert [breaker.note_failure(0.0, probe=False) for _ in range(5)] == [False] * 4 + [True]
    assert not breaker.may_send(0.9)
    assert breaker.may_send(1.0)
    assert breaker.note_sent()
    assert not breaker.may_send(1000.0)
    breaker.note_failure(1000.0, probe=True)
    assert not breaker.may_send(1029.0)
    assert breaker.may_send(1030.0)
    assert breaker.note_success()
    assert breaker.may_send(1030.0)


@pytest.mark.parametrize(
    ("away_s", "late_s", "probes"), [(0.5, 1, 1), (5, 1, 6), (20, 2, 19), (120, 12, 38), (900, 30, 72)]
)
def test_a_server_is_left_out_for_little_longer_than_it_was_away(away_s: float, late_s: float, probes: int) -> None:
    breaker, now, sent = Breaker(), 0.0, 0
    breaker.trip(now)
    while breaker.open:
        now += 0.05
        if breaker.may_send(now):
            sent += breaker.note_sent()
            if now < away_s:
                breaker.note_failure(now, probe=True)
            else:
                breaker.note_success()
    assert now <= away_s + late_s + 0.1
    assert sent <= probes


def test_failures_of_older_requests_do_not_move_an_open_breakers_probe() -> None:
    breaker = Breaker()
    breaker.trip(0.0)
    assert not breaker.note_failure(0.9, probe=False)
    assert breaker.may_send(1.0)


def test_a_probe_that_was_cancelled_lets_the_next_one_through() -> None:
    breaker = Breaker()
    breaker.trip(0.0)
    breaker.note_sent()
    assert not breaker.may_send(5.0)
    breaker.note_gone(probe=True)
    assert breaker.may_send(5.0)


def test_a_retry_goes_to_another_server_first_and_before_fresh_prompts() -> None:
    queue = Queue(lambda: 0.5)
    failed = Item(_prompt(0), sent=1)
    queue.add(_prompt(1))
    queue.retry(failed, "a", now=0.0)
    both = ["a", "b"]
    assert queue.take("b", both, now=0.0) is not failed
    queue.add(_prompt(2))
    fresh = queue.take("a", both, now=1.0)
    assert fresh is not None
    assert fresh.prompt.index == 2
    assert queue.take("a", both, now=1.0) is None
    assert queue.take("b", both, now=1.0) is failed


def test_a_retry_goes_back_to_the_same_server_when_it_is_the_only_one_that_answers_or_nobody_takes_it() -> None:
    for usable, now in ([["a"], 1.0], [["a", "b"], 10.0]):
        queue = Queue()
        failed = Item(_prompt(0), sent=1)
        queue.retry(failed, "a", now=0.0)
        assert queue.take("a", usable, now=now) is failed


def test_the_back_off_grows_with_jitter_and_is_capped() -> None:
    for roll, share in ((0.0, 0.5), (0.5, 0.75)):
        queue = Queue(lambda roll=roll: roll)
        for sent in range(1, 12):
            item = Item(_prompt(0), sent=sent)
            queue.retry(item, "a", now=0.0)
            assert item.due == share * min(30.0, 0.25 * 2 ** (sent - 1))


def test_auto_follows_the_effective_capacity_with_a_short_queue_behind_it() -> None:
    server = Server("a", None)
    assert server.limit == 1
    server.note_load(Load(None), 0.0)
    assert server.limit == 8
    server.note_load(Load(37, 0, 0, 0), 0.0)
    assert server.limit == 39
    server.note_load(None, 0.0)
    assert server.limit == 39, "a missed question changes nothing"
    server.breaker.trip(0.0)
    server.note_load(None, 0.0)
    assert server.limit == 1
    server.note_load(Load(72, 0, 0, 0), 0.0)
    assert server.limit == 74
    for _ in range(3):
        server.note_load(Load(72, 50, 24, 0), 0.0)
    assert server.limit == 52, "a long queue before the cap is reached is trimmed"
    for _ in range(20):
        server.note_load(Load(72, 52, 0, 0), 0.0)
    assert server.limit == 74


def test_a_cold_server_gets_its_slots_one_by_one() -> None:
    server = Server("a", 64, polled=True)
    sent = []
    for _ in range(40):
        while server.may_send(0.0):
            _fly(server, 1)
        sent.append(len(server.flights))
        server.tick_ramp()
    assert sent[0] == 8
    assert max(b - a for a, b in itertools.pairwise(sent)) <= 2
    assert sent[-1] == 64


def test_a_server_that_is_active_again_has_the_slots_at_once_that_it_still_fills() -> None:
    server = Server("a", 64, polled=True)
    _fly(server, 40)
    server.restart_ramp()
    assert not server.may_send(0.0)
    server.tick_ramp()
    assert server.may_send(0.0)


def test_a_restarted_server_gets_its_slots_back_and_loses_them_at_the_next_failure() -> None:
    server = Server("a", None, polled=True)
    server.note_model("m")
    server.breaker.trip(0.0)
    server.note_load(None, 20.0)
    assert (server.is_back, server.model_known) == (False, False)
    server.note_load(Load(72, 0, 0, 0), 20.5)
    assert server.is_back
    server.note_restarted()
    assert (server.usable, server.may_send(20.5), server.is_back) == (True, True, False)
    assert server.breaker.note_failure(21.0, probe=False), "it is open again"


@pytest.mark.parametrize("wish", ["draining", "stopped"])
def test_a_server_that_is_not_wished_active_gets_nothing(wish: Wish) -> None:
    assert not Server("a", 8, wish=wish, polled=True).may_send(0.0)


def test_a_deadline_comes_from_the_servers_own_token_rate() -> None:
    server = Server("a", 8)
    assert server.timeout_s(1000, 120.0, 0.0) == pytest.approx(750.0)
    assert server.timeout_s(1000, 120.0, 0.1) == pytest.approx(300.0)
    server.note_completion(20.0, 5, 400, "stop")
    assert server.timeout_s(4000, 120.0, 0.1) == pytest.approx(600.0)
    assert server.timeout_s(10, 120.0, 0.1) == 120.0
    assert server.timeout_s(10**9, 120.0, 0.1) == 6 * 3600


def test_a_server_is_hung_when_it_is_silent_while_the_others_finish_many() -> None:
    server, other = Server("a", 8, polled=True), Server("b", 8, polled=True, latency_s=2.0)
    _fly(server, 3, now=100.0, completed=50)
    assert not server.is_hung(200.0, [other], 60, 5.0), "the others finished too little"
    assert not server.is_hung(109.0, [other], 100, 5.0), "not five times the usual latency"
    assert server.is_hung(111.0, [other], 100, 5.0)
    assert not server.is_hung(111.0, [other], 100, 30.0)
    assert not server.is_hung(111.0, [], 100, 5.0), "nobody to compare with"
    server.note_load(Load(8, 3, 0, 10), 105.0)
    server.note_load(Load(8, 3, 0, 11), 110.0)
    assert not server.is_hung(111.0, [other], 100, 5.0), "its tokens move"
    server.note_load(Load(8, 3, 0, 11), 119.0)
    assert server.is_hung(121.0, [other], 100, 5.0)
    server.hangs = 2
    assert not server.is_hung(129.9, [other], 100, 5.0), "twice before: four times five seconds"
    assert server.is_hung(130.1, [other], 100, 5.0)


def test_progress_has_exactly_the_agreed_names_and_this_runs_counts() -> None:
    tally = Tally(started=0.0, completed_before=10, failed_before=1, total=100, mine=50)
    tally.sample(0.0, [])
    tally.note_safe([Entry("record", 0, b"", 7, 20), Entry("record", 1, b"", 5, 30), Entry("failure", 2, b"")])
    tally.note_safe([Entry("rejected", 3, b"")])
    tally.given_up += 1
    tally.note_bad_line(41)
    progress = tally.progress(4.0, [])
    assert (progress.completed, progress.failed, progress.rejected, progress.completed_before) == (2, 3, 1, 10)
    assert (progress.total_input_tokens, progress.total_output_tokens, progress.avg_output_tokens) == (12, 50, 25.0)
    assert (progress.rate_per_sec, progress.tokens_per_s) == (0.5, 12.5)
    assert tally.left == 50 - 10 - 1 - 2 - 3 - 1
    assert progress.eta_hours == round(33 / 0.5 / 3600, 2)
    assert (progress.total, progress.bad_lines, tally.bad_line_numbers) == (100, 1, [42])


def test_rate_and_eta_look_at_the_last_five_minutes() -> None:
    tally = Tally(started=0.0, total=10**6, mine=10**6)
    for second in range(1000):
        tally.sample(float(second), [])
        tally.completed += 10 if second < 500 else 2
    assert tally.rates(1000.0)[0] == pytest.approx(2.0, rel=0.02)


def test_before_anything_is_known_progress_says_unknown_and_not_zero() -> None:
    progress = Tally(started=0.0).progress(1.0, [])
    assert (progress.total, progress.eta_hours) == (None, None)


def test_control_json_is_read_when_it_changes_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    control = ControlFile(path)
    assert control.observe() is None
    path.write_text('{"servers": {"http://a:1/v1/": "draining", "http://b:1": "stopped"}}')
    assert control.observe() == Wanted({"http://a:1": "draining", "http://b:1": "stopped"})
    assert control.observe() is None
    for text, words in [
        ('{"servers": {"http://a:1": "gone"}}', "'gone' is none of"),
        ('{"concurrency": {"/o": "many"}}', "'many' is neither auto nor a number"),
        ('{"concurrency": {"/o": "0"}}', "'0' is neither auto nor a number"),
        ("[]", "expected"),
        ("{", "line 1"),
        ("[" * 100_000, "nested too deeply"),
    ]:
        path.write_text(text)
        assert control.observe() is None
        assert words in str(control.problem)
    path.write_text('{"servers": {}, "concurrency": {"/o": "64", "/p": "auto"}}')
    assert control.observe() == Wanted({}, {"/o": 64, "/p": None})
    assert control.problem is None
    path.unlink()
    assert control.observe() == Wanted()
    assert control.observe() is None
