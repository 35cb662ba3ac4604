"""The quality gate: what counts as a bad completion, what becomes of it, and when a job stops by itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from remote.generator.quality import DEFAULT, OFF, Gate, Quality, parse_quality, quality_of
from remote.generator.repetition import repetition
from remote.generator.reply import Reply
from tests.remote.rig import Rig, nothing_lost_nothing_twice, write_prompts

PROSE = (Path(__file__).parents[2] / "docs/generator.md").read_text()
CODE = (Path(__file__).parents[2] / "remote/generator/feeder.py").read_text()


def _reply(text: str = PROSE, reasoning: str | None = None, *, tokens: int = 900, finish: str = "stop") -> Reply:
    return Reply(text, reasoning, None, finish, {"completion_tokens": tokens}, "m")


def _call(arguments: object) -> Reply:
    call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": arguments}}
    return Reply("", None, [call], "tool_calls", {"completion_tokens": 900}, "m")


@pytest.mark.parametrize(
    ("reply", "options", "reason", "rejects"),
    [
        (_reply(), {}, None, True),
        (_reply(CODE), {}, None, True),
        (_reply("42", "Six times seven is 42."), {}, None, True),
        (_reply(""), {}, "empty", True),
        (_reply("  \n"), {}, "empty", True),
        (_reply("", "so"), {}, "thinking", True),
        (_reply("", "so", finish="length"), {}, "length", False),
        (_reply(finish="length"), {}, "length", False),
        (_reply(finish="length"), {"reject_length": True}, "length", True),
        (_reply("I am done now.", tokens=6), {}, "short", True),
        (_reply("I am done now.", tokens=6), {"min_tokens": 6}, None, True),
        (_reply("two words", tokens=0), {}, "short", True),
        (_reply("x", tokens=2, finish="length"), {}, "length", False),
        (_reply(PROSE + "and again " * 500), {}, "repetition", True),
        (_reply(PROSE, PROSE + "Wait, no. " * 500), {}, "repetition", True),
        (_reply("ha" * 300), {}, "repetition", True),
        (_reply("ha" * 300), {"max_repetition": 1000}, None, True),
        (_reply(), {"require_thinking": True}, "thinking", True),
        (_reply(reasoning="so"), {"require_thinking": True}, None, True),
        (_reply(), {"must": ["durab", "qqq"]}, "must", True),
        (_reply(), {"must": "(?i)GENERATOR"}, None, True),
        (_reply("这个 does not belong here"), {"must_not": "[\u4e00-\u9fff]"}, "must_not", True),
        (_reply(), {"script": "latin"}, None, True),
        (_reply(CODE), {"script": "latin", "script_share": 0.99}, None, True),
        (_reply("答案是四十二。因为六乘以七等于四十二。请再核对一遍。"), {"script": "latin"}, "script", True),
        (
            _reply("答えは四十二です。カタカナもあります。もう一度確認してください。ー"),
            {"script": ["han", "hiragana", "katakana"], "script_share": 1},
            None,
            True,
        ),
        (_reply("Ответ сорок два, потому что шесть на семь."), {"script": "cyrillic"}, None, True),
        (_reply("6 * 7 == 42; x = 答案"), {"script": "latin"}, None, True),
    ],
)
def test_a_bad_completion_is_known_by_its_fault(
    reply: Reply, options: dict[str, object], reason: str | None, rejects: bool
) -> None:
    fault = quality_of(options).find_fault(reply)
    assert (fault.reason if fault else None) == reason
    assert fault is None or (fault.rejects == rejects and fault.detail)


TABLE = "| mark | meaning |\n|------|---------|\n| ---- | nothing |\nThat is all.\n" + "-" * 40


@pytest.mark.parametrize(
    "text",
    [
        *("!" * 8, "!" * 399, "! " * 8, "!\n!!\n!!! !!", "。" * 8, "-" * 300, "\U0001f600" * 8, "…!" * 8),
        *("the " * 13, "the the the " * 12, "ab" * 13, "aab" * 20, "aaaaaaab" * 13, "a,b;c. " * 13, "no\n" * 40),
        *("的" * 25, "你好" * 13, "نعم " * 13, "कि" * 20, "กก" * 30, "ще раз " * 13, "G" * 25, "0" * 37, "0, " * 50),
        *("The result is: " + "!" * 30, "!" * 30 + " that is it", '{"answer": "' + "!" * 30 + '"}'),
        *(
            PROSE[:300] + "!" * 400,
            PROSE[:900] + "the " * 400,
            "a sentence of some sixty letters, said again and again. " * 13,
        ),
    ],
)
def test_one_piece_said_over_and_over_is_no_answer_however_short(text: str) -> None:
    for reply in (
        _reply(text),
        _reply("Six times seven is 42.", text),
        _reply(text, "Six times seven is 42."),
        _reply(text, finish="length"),
        _call(json.dumps({"query": text})),
        _call(json.dumps({"a": [3, {"b": text}]})),
        _call(text),
        _call({"query": text}),
    ):
        fault = DEFAULT.find_fault(reply)
        assert fault is not None
        assert (fault.reason, fault.rejects) == ("repetition", True)
    assert OFF.find_fault(_reply(text)) is None


@pytest.mark.parametrize(
    "text",
    [
        *("ha ha ha", "0", "yes yes", "1111", "AAAA", "10000000", "no, no, no, no, no!", "la la la la la la la la"),
        *("A" * 24, "1" + "0" * 20, "0.3333333333333333", "1" * 32, "f" * 16, "ffff:" * 7 + "ffff"),
        *("[0, 0, 0, 0, 0, 0, 0, 0]", "no\n" * 12, "哈哈哈哈哈哈哈哈", "ㅋㅋㅋㅋㅋㅋㅋㅋㅋ", "wwwwwwwwww"),
        *("Wow!!!!!!!!", "Nooooooooooooooo!", "!" * 7, "Name: ____________", "00000000-0000-0000-0000-000000000000"),
        *(TABLE, PROSE[:399], CODE[:399], "Title\n==========\n\nText that goes on here.", "GATTACA" * 5, "[[]]"),
        *("11111111111111111111111111111111", "255.255.255.255", "tick, tock, tick, tock, tick, tock"),
    ],
)
def test_a_short_answer_that_repeats_itself_by_right_is_kept(text: str) -> None:
    lenient = quality_of({"min_tokens": 1})
    for reply in (_reply(text), _reply("42 it is.", text), _call(json.dumps({"query": text})), _call({"query": text})):
        assert lenient.find_fault(reply) is None


@pytest.mark.parametrize("text", ["\x00" * 300, "\x00", "\u200b \ufeff", "\ufffd\ufffd", "\x1b\x07"])
def test_what_nobody_can_read_is_empty(text: str) -> None:
    for reply in (_reply(text), _reply(text, finish="length")):
        fault = OFF.find_fault(reply)
        assert fault is not None
        assert (fault.reason, fault.detail) == ("empty", "nothing in it can be read")


def test_how_often_a_piece_may_stand_there_follows_max_repetition() -> None:
    assert quality_of({"max_repetition": 50}).find_fault(_reply("the " * 50)) is None
    assert quality_of({"max_repetition": 50}).find_fault(_reply("the " * 51)) is not None
    assert quality_of({"max_repetition": 50}).find_fault(_reply("!" * 30)) is None
    assert quality_of({"max_repetition": 50}).find_fault(_reply("0" * 150)) is None


def test_one_argument_among_others_may_be_a_line_of_dashes() -> None:
    assert (
        DEFAULT.find_fault(_call(json.dumps({"text": "Six times seven is forty-two, which is 42.", "rule": "-" * 20})))
        is None
    )


def test_tool_calls_of_any_shape_are_judged_without_an_error() -> None:
    shapes: list[list] = [
        *([{}], [None, 5], [{"function": "x"}], [{"function": {"name": 5, "arguments": 5}}]),
        *([{"custom": {"name": "sh", "input": "ls -l"}}], [{"function": {"arguments": "{broken"}}]),
    ]
    for calls in shapes:
        assert DEFAULT.find_fault(Reply("", None, calls, "tool_calls", {}, "m")) is None
    loop = [{"custom": {"name": "sh", "input": "ls " * 30}}]
    assert DEFAULT.find_fault(Reply("", None, loop, "tool_calls", {}, "m")) is not None


def test_a_tool_call_may_be_short_and_off_rejects_only_what_is_empty() -> None:
    call = Reply("", None, [{"id": "1"}], "tool_calls", {"completion_tokens": 3}, "m")
    assert DEFAULT.find_fault(call) is None
    assert quality_of({"must": "x"}).find_fault(call) is None
    assert OFF.find_fault(_reply("ha" * 900, tokens=1)) is None
    empty = OFF.find_fault(_reply(""))
    assert empty is not None
    assert empty.reason == "empty"


def test_prose_and_code_are_far_from_a_loop() -> None:
    assert max(repetition(PROSE), repetition(CODE)) < DEFAULT.max_repetition / 2
    assert repetition(PROSE + "\n" + "-" * 120) < DEFAULT.max_repetition / 2
    assert repetition("I can't do that. " * 50) > DEFAULT.max_repetition


@pytest.mark.parametrize(
    "loop",
    [
        "".join(f"Step {i}: now I go on with what I said before.\n" for i in range(200)),
        PROSE[:800] * 20,
        PROSE[:2000] * 14,
        "\n" * 900,
        "0" * 5000,
        "的" * 400,
        PROSE + "Wait, let me check again. " * 200,
    ],
)
def test_loops_of_every_kind_are_seen(loop: str) -> None:
    assert repetition(loop) > DEFAULT.max_repetition


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"min_token": 3}', "no option min_token; there are min_tokens"),
        ('{"min_tokens": -1}', "min_tokens: -1 is no whole number"),
        ('{"limit_share": 2}', "limit_share: 2 is no number from 0 to 1"),
        ('{"must": "("}', "must: .*unterminated"),
        ('{"must_not": [1]}', "a pattern, or a list"),
        ('{"reject_length": 1}', "neither true nor false"),
        ('{"script": "english"}', "script: a script, or a list .* there are arabic, .* latin"),
        ("min_tokens: 3", "No such file"),
        ("{", "not JSON"),
        ("nowhere.json", "nowhere.json: No such file.*; write default, off or a JSON file"),
    ],
)
def test_a_wrong_option_is_named(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_quality(text)


def test_options_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "quality.json"
    file.write_text('{"min_tokens": 3, "retries": 0}')
    assert parse_quality(str(file)) == Quality(min_tokens=3, retries=0)
    assert (parse_quality("default"), parse_quality("off")) == (DEFAULT, OFF)


def test_the_gate_looks_at_the_first_prompts_only() -> None:
    bad = DEFAULT.find_fault(_reply(""))
    gate = Gate(DEFAULT)
    assert [gate.note(bad) for _ in range(100)] == [None] * 100
    assert [gate.note(None) for _ in range(400)] == [None] * 400
    assert [gate.note(bad) for _ in range(500)] == [None] * 500
    gate = Gate(DEFAULT)
    said = [gate.note(bad) for _ in range(101)][-1]
    assert said is not None
    assert said.startswith("101 of the first 101 prompts were rejected (101 empty), more than 20% of 500")


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (_reply("B", tokens=2), "2 tokens, fewer than 8.*answers are rightly that short.*{min_tokens: 1}"),
        (_reply("ha" * 300), "set max_repetition above 12"),
        (_reply("", "so"), "max_tokens more room for thinking"),
        (_reply(""), "look at the chat template and max_tokens"),
    ],
)
def test_the_gate_says_which_option_to_change_and_where(reply: Reply, words: str) -> None:
    gate = Gate(DEFAULT)
    said = [gate.note(DEFAULT.find_fault(reply)) for _ in range(101)][-1]
    assert re.search(f"{words}.*quality in the inventory, or in --quality JSON.*--retry-rejected", said or ""), said


def test_answers_that_max_tokens_keeps_short_are_not_short() -> None:
    assert DEFAULT.within(8) == DEFAULT
    assert DEFAULT.within(5).find_fault(_reply("B", tokens=2)) is None
    assert DEFAULT.within(5).find_fault(_reply("", tokens=1)) is not None


def test_a_job_whose_answers_are_six_tokens_long_stops_by_itself(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 3000)
    with Rig(tmp_path, "--pshort", "0.87", ports=4) as rig:
        assert rig.generate(prompts) == 1
        assert rig.requests() < 1500
    progress = rig.progress()
    assert progress["status"] == "failed"
    assert "short), more than 20% of 500; the last: 6 tokens, fewer than 8" in progress["message"]
    assert progress["quality"]["short"] == progress["rejected"] > 100
    rejected = [json.loads(line) for line in (rig.output / "rejected.jsonl").read_text().splitlines()]
    assert {(row["reason"], row["detail"], row["attempts"]) for row in rejected} == {
        ("short", "6 tokens, fewer than 8", 2)
    }
    with Rig(tmp_path, ports=2) as rig:
        assert rig.generate(prompts, "--retry-rejected") == 0
    nothing_lost_nothing_twice(rig.output, 3000)


def test_a_bad_answer_is_asked_again_with_a_new_seed_and_length_is_only_counted(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 100, lambda i: f"loops {i}" if i < 10 else f"prompt {i}")
    with Rig(tmp_path, "--plength", "0.3", ports=2) as rig:
        assert rig.generate(prompts) == 0
        assert 110 <= rig.requests() <= 114  # at the end a late one is asked once more
    progress = rig.progress()
    assert set(progress["quality"]) == {"length"}
    assert sum(server["quality"].get("repetition", 0) for server in progress["servers"].values()) == 10
    found = nothing_lost_nothing_twice(rig.output, 100)
    assert {record["attempts"] for record in found if record["index"] < 10} == {2}
    assert all("reason" not in record for record in found)


def test_length_is_rejected_by_option(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 40)
    options = '{"reject_length": true, "retries": 0, "limit_share": 1}'
    with Rig(tmp_path, "--plength", "0.5", ports=1) as rig:
        assert rig.generate(prompts, "--quality", options) == 3
    rejected = [json.loads(line) for line in (rig.output / "rejected.jsonl").read_text().splitlines()]
    assert rig.progress()["quality"] == {"length": len(rejected)}
    assert {row["reason"] for row in rejected} == {"length"}
