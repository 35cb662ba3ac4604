"""Retry-After and redirects: how they are read, and that a server is left alone for as long as it asks."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from remote.generator.reply import TroubleError, parse_reply
from remote.generator.retry_after import read_retry_after
from remote.generator.server import Server
from remote.redirects import words_of_redirect
from tests.remote.rig import Rig, nothing_lost_nothing_twice, wait_until, write_prompts

NOW = 784111777.0
"""Sun, 06 Nov 1994 08:49:37 GMT, the standard's own example."""

NONE = ("", "-5", "soon", "5 minutes", "nan", "inf", "1e3", "0x10", "+5", "Sun, 99 Nov 1994", "\u0663")


@pytest.mark.parametrize(
    ("value", "date", "wait_s"),
    [
        ("30", "", 30),
        (" 30 ", "", 30),
        ("0", "", 0),
        ("1.5", "", 1.5),
        ("300", "", 300),
        ("86400", "", 300),
        ("9" * 5000, "", 300),
        ("Sun, 06 Nov 1994 08:50:37 GMT", "", 60),
        ("Sunday, 06-Nov-94 08:50:37 GMT", "", 60),
        ("Sun Nov  6 08:50:37 1994", "", 60),
        ("Sun, 06 Nov 1994 08:50:37 GMT", "Sun, 06 Nov 1994 08:50:07 GMT", 30),
        ("Fri, 31 Dec 2999 23:59:59 GMT", "", 300),
        ("Fri, 31 Dec 2999 23:59:59 GMT", "Fri, 31 Dec 2999 23:59:50 GMT", 9),
        ("Sun, 06 Nov 1994 08:50:37 GMT", "yesterday", 60),
        ("Sun, 06 Nov 1994 08:49:36 GMT", "", None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", "", None),
        *[(bad, "", None) for bad in NONE],
    ],
)
def test_every_form_of_retry_after_is_read_and_limited(value: str, date: str, wait_s: float | None) -> None:
    assert read_retry_after({"Retry-After": value, "Date": date}, NOW) == wait_s


@pytest.mark.parametrize(
    ("status", "waits"), [(429, True), (503, True), (500, True), (502, True), (400, False), (404, False)]
)
def test_retry_after_counts_with_429_and_5xx(status: int, *, waits: bool) -> None:
    with pytest.raises(TroubleError) as trouble:
        parse_reply(status, b"", {"Retry-After": "7"})
    assert trouble.value.retry_after_s == (7 if waits else None)
    assert ("(Retry-After: 7 s)" in trouble.value.message) == waits


def test_a_held_server_gets_no_request_and_no_probe_before_its_time() -> None:
    server = Server("a", 64, polled=True)
    server.breaker.trip(0.0)
    assert server.hold(30.0)
    assert not server.hold(20.0), "a shorter wish takes nothing back"
    server.breaker.note_success()
    assert (server.usable, server.state, server.may_send(29.9)) == (False, "open", False)
    server.end_hold(29.9)
    assert not server.may_send(29.9)
    server.end_hold(30.0)
    assert (server.usable, server.state, server.may_send(30.0)) == (True, "active", True)
    server.hold(60.0)
    server.note_restarted()
    assert server.may_send(30.0), "that was the process before"


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_for_a_pause_gets_it_and_costs_no_attempt(tmp_path: Path, status: int) -> None:
    prompts = write_prompts(tmp_path, 60)
    with Rig(tmp_path, ports=1) as rig:
        rig.set_fault(0, {"status": status, "headers": {"Retry-After": "3"}})
        process = rig.start(prompts, "--attempts", "2")
        wait_until(lambda: rig.progress().get("status") == "paused", "the pause")
        first = rig.stats(0)["requests"]
        rig.set_fault(0, None)
        time.sleep(0.7)
        assert rig.stats(0)["requests"] == first, "nothing is sent in the pause, no probe either"
        assert rig.end(process) == 0
    assert 0 < first <= 16
    assert "gets nothing for 3 s" in rig.log
    nothing_lost_nothing_twice(rig.output, 60)


def test_the_others_work_on_while_one_server_pauses(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 300)
    with Rig(tmp_path, ports=2) as rig:
        rig.set_fault(0, {"status": 429, "headers": {"Retry-After": "Fri, 31 Dec 2999 23:59:59 GMT"}})
        assert rig.generate(prompts) == 0
        assert rig.stats(0)["requests"] <= 16
    nothing_lost_nothing_twice(rig.output, 300)
    assert "gets nothing for 300 s" in rig.log


def test_a_stop_does_not_wait_for_a_pause(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 60)
    with Rig(tmp_path, ports=1) as rig:
        rig.set_fault(0, {"status": 503, "headers": {"Retry-After": "300"}})
        process = rig.start(prompts)
        wait_until(lambda: rig.progress().get("status") == "paused", "the pause")
        assert "asked for a pause" in rig.progress()["message"]
        process.send_signal(15)
        assert rig.end(process, 20) == 143


@pytest.mark.parametrize("status", [301, 307])
def test_a_redirect_ends_the_run_at_once_and_names_where_to(tmp_path: Path, status: int) -> None:
    prompts = write_prompts(tmp_path, 200)
    with Rig(tmp_path, ports=1) as rig:
        rig.set_fault(0, {"status": status, "headers": {"Location": "https://u:secret@elsewhere.test/v1?key=secret"}})
        assert rig.generate(prompts) == 1
        assert rig.requests() <= 16
    assert f"HTTP {status} to https://elsewhere.test/v1, which isn't followed" in rig.log
    assert "secret" not in rig.log
    assert "secret" not in json.dumps(rig.progress())


def test_a_redirect_of_one_server_leaves_it_out_and_costs_no_prompt(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 200)
    with Rig(tmp_path, ports=2) as rig:
        rig.set_fault(0, {"status": 307, "headers": {"Location": "/elsewhere"}})
        assert rig.generate(prompts, "--attempts", "1") == 0
        assert rig.stats(0)["requests"] <= 16
    nothing_lost_nothing_twice(rig.output, 200)
    assert "is left out: moved: HTTP 307 to /elsewhere" in rig.log


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("http://a:1/b?c=d#e", "to http://a:1/b,"),
        ("http://u:p@a/b", "to http://a/b,"),
        ("//a/b", "to //a/b,"),
        ("", "to no Location,"),
        ("http://[", "to a Location that is no URL,"),
        ("/a\x1b[2J", "to '/a\\x1b[2J',"),
    ],
)
def test_a_redirect_is_told_without_what_is_secret(location: str, words: str) -> None:
    assert words in words_of_redirect(301, location)
