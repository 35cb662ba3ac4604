"""The feeder with a scripted client: what each kind of trouble costs, and that a run always ends."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.generator.committer import Committer
from remote.generator.endpoint import Load
from remote.generator.feeder import Feeder
from remote.generator.feeding import Feeding, HopelessError
from remote.generator.hedge import find_late
from remote.generator.judge import Judge
from remote.generator.prompt_queue import Item, Queue
from remote.generator.reply import Reply, TroubleError
from remote.generator.server import Flight, Server, least_silence_s
from remote.generator.tally import Tally
from remote.log_lines import LogLines
from remote.output.ledger import Ledger
from remote.output.recovery import open_ledger
from remote.prompts.rows import Prompt, Row

Answer = Callable[[str, str], Reply | TroubleError | None]
"""Of a server's URL and a prompt's text; None hangs."""

SLOTS = 4
GOOD = Reply("fine", None, None, "stop", {"completion_tokens": 50}, "m")


class ScriptedClient:
    def __init__(self, answer: Answer, *, healthy: bool = True) -> None:
        self._answer = answer
        self._healthy = healthy
        self.asked: list[tuple[str, str]] = []

    async def complete(self, server: str, body: bytes, timeout_s: float) -> Reply:
        text = body.decode().split('"content":"')[1].split('"')[0]
        self.asked.append((server, text))
        await asyncio.sleep(0.002)
        answer = self._answer(server, text)
        if answer is None:
            await asyncio.sleep(timeout_s)
            raise TroubleError("timeout", f"no answer in {timeout_s} s")
        if isinstance(answer, TroubleError):
            raise answer
        return answer

    async def observe_load(self, server: str) -> Load | None:
        return Load(4, 0, 0, 0)

    async def observe_health(self, server: str) -> bool:
        return self._healthy

    async def observe_model(self, server: str) -> str | None:
        return "m"


def _run(
    tmp_path: Path,
    client: ScriptedClient,
    count: int,
    *urls: str,
    attempts: int = 3,
    patience_s: float = 0.0,
    model: str | None = "m",
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Tally, Ledger]:
    async def run() -> tuple[Tally, Ledger]:
        ledger = open_ledger(tmp_path, lambda text: None)
        rows: list[Row] = [Prompt(i, None, [{"role": "user", "content": f"p{i}"}]) for i in range(count)]

        def read(wanted: int, size: int) -> list[Row]:
            found = rows[:wanted]
            del rows[:wanted]
            return found

        tally, queue, log = Tally(started=0.0), Queue(lambda: 0.0), LogLines()
        feeding = Feeding({"max_tokens": 1}, model, attempts, timeout_floor_s=0.2)
        servers = [Server(url, None, s_per_token=patience_s) for url in urls]
        committer = Committer(ledger, tally.note_safe)
        judge = Judge(servers, queue, committer, client, tally, feeding, log)
        await Feeder(servers, queue, client, committer, judge, tally, feeding, read, log, clock).run()
        assert await committer.stop(10)
        ledger.close()
        return tally, ledger

    return asyncio.run(asyncio.wait_for(run(), 30))


def test_a_prompt_that_hangs_everywhere_is_given_up_and_the_others_are_done(tmp_path: Path) -> None:
    client = ScriptedClient(lambda server, text: None if text == "p3" else GOOD)
    tally, ledger = _run(tmp_path, client, 40, "a", "b", attempts=2)
    assert (tally.completed, tally.given_up) == (39, 1)
    assert 3 not in ledger.done
    assert {server for server, text in client.asked if text == "p3"} == {"a", "b"}


@pytest.mark.parametrize("kind", ["server_error", "bad_body", "aborted"])
def test_a_run_ends_though_the_last_prompts_break_their_only_server(tmp_path: Path, kind: str) -> None:
    poison = {"p0", "p1", "p2"}
    client = ScriptedClient(lambda server, text: TroubleError(kind, "x") if text in poison else GOOD)  # type: ignore[arg-type]
    tally, _ = _run(tmp_path, client, 30, "a")
    assert (tally.completed, tally.given_up) == (27, 3)


def test_a_failure_is_tried_on_another_server_before_the_same_one(tmp_path: Path) -> None:
    client = ScriptedClient(lambda server, text: TroubleError("cut", "x") if server == "a" and text == "p5" else GOOD)
    tally, _ = _run(tmp_path, client, 20, "a", "b")
    asked = [server for server, text in client.asked if text == "p5"]
    assert tally.completed == 20
    assert asked[:2] in (["b"], ["a", "b"], ["b", "a"])  # at the end a late one is asked once more


def test_a_failing_server_uses_up_no_prompts_attempts_once_it_is_left_out(tmp_path: Path) -> None:
    client = ScriptedClient(lambda server, text: TroubleError("connect", "refused") if server == "a" else GOOD)
    tally, _ = _run(tmp_path, client, 300, "a", "b", attempts=2)
    assert (tally.completed, tally.failed) == (300, 0)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("prompt", "HTTP 400: Invalid model name passed in model=old. Call `/v1/models` to view available models"),
        ("not_found", "HTTP 404: The model `old` does not exist."),
    ],
)
def test_a_server_that_comes_back_with_another_model_is_asked_for_its_name_and_no_prompt_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, message: str
) -> None:
    monkeypatch.setattr("remote.generator.poll.POLL_S", 0.05)

    class Renamed(ScriptedClient):
        async def complete(self, server: str, body: bytes, timeout_s: float) -> Reply:
            reply = await super().complete(server, body, timeout_s)
            if f'"model":"{await self.observe_model(server)}"' in body.decode().replace(" ", ""):
                return reply
            raise TroubleError(kind, message)  # type: ignore[arg-type]

        async def observe_model(self, server: str) -> str | None:
            return "old" if len(self.asked) < 20 else "new"

    client = Renamed(lambda server, text: GOOD)
    tally, ledger = _run(tmp_path, client, 60, "a", model=None)
    assert (tally.completed, tally.failed, len(ledger.failed)) == (60, 0, 0)


def test_a_model_that_no_server_has_ends_the_run_before_anything_fails(tmp_path: Path) -> None:
    client = ScriptedClient(lambda server, text: TroubleError("prompt", "HTTP 400: The model `m` does not exist."))
    with pytest.raises(HopelessError, match="--model"):
        _run(tmp_path, client, 300, "a", "b")
    assert not (tmp_path / "failures.jsonl").exists() or not (tmp_path / "failures.jsonl").stat().st_size


def test_a_server_that_was_away_is_full_again_before_its_first_completion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.generator.poll.POLL_S", 0.05)

    full = asyncio.Event()

    class Restarted(ScriptedClient):
        refused = asked_since = 0

        async def complete(self, server: str, body: bytes, timeout_s: float) -> Reply:
            if server == "b":
                return await super().complete(server, body, timeout_s)
            if await self.observe_load(server) is None:
                self.refused += 1
                raise TroubleError("connect", "refused")
            self.asked_since += 1
            if self.asked_since == SLOTS:
                full.set()
            await full.wait()
            return GOOD

        async def observe_load(self, server: str) -> Load | None:
            return None if server == "a" and (self.refused < 5 or len(self.asked) < 60) else Load(SLOTS - 2, 0, 0, 0)

    client = Restarted(lambda server, text: GOOD)
    tally, _ = _run(tmp_path, client, 300, "a", "b")
    assert (tally.completed, tally.failed) == (300, 0)
    assert full.is_set()


def test_refusals_before_any_completion_are_recorded_only_when_the_run_ends_by_itself(tmp_path: Path) -> None:
    client = ScriptedClient(lambda server, text: TroubleError("prompt", "HTTP 400: too long"))
    tally, ledger = _run(tmp_path, client, 5, "a")
    assert (tally.permanent, list(ledger.failed)) == (5, [0, 1, 2, 3, 4])


def test_a_server_stopped_in_the_moment_of_sending_gives_back_what_never_went_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pump = Feeder._pump

    def pump_then_stop(feeder: Feeder, server: Server) -> None:
        pump(feeder, server)
        if server.url == "b" and server.flights:
            feeder.set_wish(server, "stopped")

    monkeypatch.setattr(Feeder, "_pump", pump_then_stop)
    client = ScriptedClient(lambda server, text: GOOD)
    tally, _ = _run(tmp_path, client, 40, "a", "b")
    assert tally.completed == 40
    assert {server for server, _ in client.asked} == {"a"}


def test_the_last_prompts_do_not_wait_for_a_server_that_hangs(tmp_path: Path) -> None:
    hung: set[str] = set()

    def answer(server: str, text: str) -> Reply | None:
        if server == "a" and text in {"p2", "p3"}:
            hung.add(text)
            return None
        return GOOD

    client = ScriptedClient(answer)
    tally, ledger = _run(tmp_path, client, 8, "a", "b", patience_s=3600.0)
    assert (tally.completed, tally.failed, len(ledger.done)) == (8, 0, 8)
    assert all(("b", text) in client.asked for text in hung)


@pytest.mark.parametrize("jump_s", [60.0, 86400.0])
def test_a_clock_that_jumps_ahead_costs_no_prompt_and_leaves_no_server_out(tmp_path: Path, jump_s: float) -> None:
    calls = itertools.count()

    def clock() -> float:
        return time.monotonic() + (jump_s if next(calls) > 60 else 0.0)

    client = ScriptedClient(lambda server, text: GOOD)
    tally, ledger = _run(tmp_path, client, 200, "a", "b", clock=clock)
    assert next(calls) > 100
    assert (tally.completed, tally.failed, len(ledger.done), len(client.asked)) == (200, 0, 200, 200)


def test_a_wall_clock_that_jumps_back_changes_only_the_time_that_records_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamps = itertools.cycle(["2026-01-01T00:00:00+00:00", "1970-01-01T00:00:00+00:00"])
    monkeypatch.setattr("remote.generator.feeding.utc_now", lambda: next(stamps))
    tally, ledger = _run(tmp_path, ScriptedClient(lambda server, text: GOOD), 40, "a", "b")
    assert (tally.completed, len(ledger.done)) == (40, 40)


def _busy_server(url: str, s_per_token: float, flights: int, sent_at: float = 0.0) -> Server:
    server = Server(url, 4, polled=True, s_per_token=s_per_token, latency_s=10.0)
    for n in range(flights):
        flight = Flight(Item(Prompt(n, None, []), copies=1), probe=False, sent_at=sent_at + n)
        server.flights[object()] = flight  # type: ignore[index]
    return server


@pytest.mark.parametrize(
    ("s_per_token", "silent_since", "sent_at", "late"),
    [
        (0.1, 100.0, 95.0, 0),
        (0.2, 100.0, 95.0, 4),
        (0.1, 90.0, 95.0, 4),
        (0.1, 96.0, 95.0, 0),
        (0.1, 100.0, 48.0, 2),
    ],
)
def test_at_the_end_what_is_on_a_slow_or_silent_server_or_very_old_is_asked_once_more_where_slots_are_free(
    s_per_token: float, silent_since: float, sent_at: float, late: int
) -> None:
    server = _busy_server("a", s_per_token, 4, sent_at)
    server.silent_since = silent_since
    other = _busy_server("b", 0.1, 0)
    found = []
    for flight, best in find_late([server, other], 100.0, 1.0):
        assert best is other
        best.flights[object()] = flight  # type: ignore[index]
        flight.hedged = True
        found.append(flight.sent_at)
    assert found == sorted(found, reverse=True)
    assert len(found) == late


def test_at_the_end_what_is_on_a_server_that_is_left_out_is_asked_once_more_at_once() -> None:
    server, other = _busy_server("a", 0.1, 1, sent_at=99.9), _busy_server("b", 0.1, 0)
    server.silent_since = 99.9
    assert not list(find_late([server, other], 100.0, 30.0))
    server.breaker.trip(99.0)
    assert [best for _, best in find_late([server, other], 100.0, 30.0)] == [other]


def test_five_seconds_of_silence_count_once_the_usual_latency_is_known() -> None:
    servers = [_busy_server("a", 0.1, 0), _busy_server("b", 0.1, 0)]
    assert least_silence_s(servers, 120.0) == 30.0
    servers[0].completed, servers[1].completed = 39, 1
    assert [least_silence_s(servers, floor_s) for floor_s in (120.0, 8.0)] == [5.0, 2.0]
