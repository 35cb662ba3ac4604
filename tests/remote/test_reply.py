from __future__ import annotations

import json
from pathlib import Path

import pytest

from remote import fastjson
from remote.generator.endpoint import Load, parse_loads, parse_server_info
from remote.generator.quality import OFF, quality_of
from remote.generator.reply import TroubleError, names_no_model, parse_reply, split_thinking

RECORDED = Path(__file__).parents[1] / "fixtures/sglang-0.5.23"


@pytest.fixture(params=["orjson", "standard"], autouse=True)
def _json_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "standard":
        monkeypatch.setattr(fastjson, "loads", fastjson._standard_loads)


def _completion(**message: object) -> bytes:
    finish = message.pop("finish", "stop")
    return json.dumps({"choices": [{"message": message, "finish_reason": finish}], "model": "m"}).encode()


def test_a_recorded_completion_is_read_whole() -> None:
    reply = parse_reply(200, (RECORDED / "b1_chat.json").read_bytes())
    assert reply.completion == "R iWx\x14ol logon"
    assert (reply.finish_reason, reply.model, reply.input_tokens, reply.output_tokens) == ("length", "tiny", 15, 8)
    assert reply.usage is not None
    assert reply.usage["prompt_tokens_details"] == {"cached_tokens": 4}
    assert (reply.reasoning, reply.tool_calls, reply.empty) == (None, None, False)


def test_a_recorded_refusal_is_the_prompts_fault() -> None:
    body, _, status = (RECORDED / "b1_errors.txt").read_text().splitlines()[1].rpartition(" [")
    with pytest.raises(TroubleError, match="maximum context length of 4096 tokens") as trouble:
        parse_reply(int(status.rstrip("]")), body.encode())
    assert trouble.value.kind == "prompt"


@pytest.mark.parametrize(
    ("kind", "message", "says_so"),
    [
        ("not_found", "HTTP 404: The model `a/b` does not exist.", True),
        ("prompt", "HTTP 400: Invalid model name passed in model=a/b. Call `/v1/models`", True),
        ("not_found", "HTTP 404: The model `c` does not exist.", False),
        ("prompt", "HTTP 400: The input (9 tokens) is longer than the model's context length (4 tokens).", False),
        ("prompt", "HTTP 400: a/b takes no images", False),
        ("server_error", "HTTP 500: The model `a/b` does not exist.", False),
    ],
)
def test_a_refusal_of_the_models_name_is_known_by_that_name(kind: str, message: str, *, says_so: bool) -> None:
    assert names_no_model(TroubleError(kind, message), "a/b") is says_so  # type: ignore[arg-type]
    assert not names_no_model(TroubleError(kind, message), None)  # type: ignore[arg-type]


def test_a_recorded_full_queue_is_busy_and_its_streamed_form_is_no_completion() -> None:
    plain, _, streamed = (RECORDED / "m1_queue_full.txt").read_text().partition("HTTP/1.1 200 OK")
    with pytest.raises(TroubleError, match="request queue is full") as trouble:
        parse_reply(503, plain.rpartition("\n\n")[2].strip().encode())
    assert trouble.value.kind == "busy"
    with pytest.raises(TroubleError) as trouble:
        parse_reply(200, streamed.partition("\n\n")[2].encode())
    assert trouble.value.kind == "bad_body"


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (500, b'{"message": "x"}', "server_error"),
        (502, b"<html>Bad Gateway</html>", "server_error"),
        (302, b"", "moved"),
        (307, b"{}", "moved"),
        (429, b"", "busy"),
        (503, b"", "busy"),
        (400, b"{}", "prompt"),
        (422, b"{}", "prompt"),
        (401, b"{}", "refused"),
        (404, b"{}", "not_found"),
        (200, b"", "bad_body"),
        (200, b"[]", "bad_body"),
        (200, b'{"choices": null}', "bad_body"),
        (200, b'{"choices": {}}', "bad_body"),
        (200, b'{"choices": [{"message": {"content": "half', "bad_body"),
        (200, b'{"error": {"message": "x"}}', "bad_body"),
        (200, b'{"object": "error", "message": "x"}', "bad_body"),
        (200, _completion(content="half", finish="abort"), "aborted"),
        (200, _completion(content="half", finish={"type": "abort", "message": "x"}), "aborted"),
        (400, b'{"message": [[[]]]}', "prompt"),
        (500, b'{"error": {"message": "\\ud800"}}', "server_error"),
        (500, b"[" * 100_000, "server_error"),
    ],
)
def test_an_answer_that_is_no_completion_says_whose_fault_it_is(status: int, body: bytes, kind: str) -> None:
    with pytest.raises(TroubleError) as trouble:
        parse_reply(status, body)
    assert trouble.value.kind == kind


def test_an_error_of_null_is_none_and_a_model_that_is_no_text_is_unknown() -> None:
    body = json.loads(_completion(content="x")) | {"error": None, "model": 5}
    reply = parse_reply(200, json.dumps(body).encode())
    assert (reply.completion, reply.model) == ("x", None)


@pytest.mark.parametrize(
    ("message", "completion", "reasoning"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab", None),
        ({"content": ["a", {"text": "b"}, {"type": "output_text", "text": "c"}]}, "abc", None),
        ({"content": [{"type": "text", "text": "<think>r</think>a"}]}, "a", "r"),
        ({"content": [{"type": "thinking", "thinking": "r"}, {"type": "text", "text": "a"}]}, "a", "r"),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "r"}]},
                    {"type": "text", "text": "a"},
                ]
            },
            *("a", "r"),
        ),
        ({"content": [{"type": "reasoning", "text": "r"}, "a"]}, "a", "r"),
        ({"content": "a", "reasoning": [{"type": "text", "text": "r"}]}, "a", "r"),
        ({"content": "a", "finish": {"type": "stop", "matched": 2}}, "a", None),
    ],
)
def test_unusual_shapes_are_read_as_they_are_meant(message: dict, completion: str, reasoning: str | None) -> None:
    reply = parse_reply(200, _completion(**message))
    assert (reply.completion, reply.reasoning, reply.finish_reason, reply.flaw) == (completion, reasoning, "stop", None)


def test_a_choice_without_a_message_and_a_call_of_the_older_form_are_read() -> None:
    reply = parse_reply(200, b'{"choices": [{"text": "a", "finish_reason": "stop"}], "usage": null}')
    assert (reply.completion, reply.usage, reply.output_tokens, reply.flaw) == ("a", None, 0, None)
    reply = parse_reply(200, _completion(content=None, function_call={"name": "f", "arguments": "{}"}))
    assert reply.tool_calls == [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert not reply.empty


@pytest.mark.parametrize(
    ("body", "flaw"),
    [
        (b'{"choices": []}', ("empty", "choices is an empty list")),
        (b'{"choices": [null]}', ("shape", "choices hold null")),
        (b'{"choices": [{"message": "a"}]}', ("shape", "message is a text")),
        (b'{"choices": [{"message": {}}]}', None),
        (b'{"choices": [{}]}', None),
        (_completion(content=5), ("shape", "content is a number")),
        (_completion(content={"text": "a"}), ("shape", "content is an object")),
        (_completion(content=[5]), ("shape", "content has a part that is a number")),
        (_completion(content=[[]]), ("shape", "content has a part that is a list")),
        (
            _completion(content=[{"type": "text", "text": 5}]),
            ("shape", "content has a part of type text, which is no text"),
        ),
        (_completion(content=[{"type": []}]), ("shape", "content has a part of type a list, which is no text")),
        (
            _completion(content=["a", {"type": "image_url", "image_url": {}}]),
            ("shape", "content has a part of type image_url, which is no text"),
        ),
        (_completion(content="a", reasoning_content=5), ("shape", "reasoning is a number")),
        (_completion(content="a", tool_calls="y"), ("shape", "tool_calls is a text")),
        (_completion(content="a", tool_calls=[5]), ("shape", "tool_calls hold what is no call")),
        (_completion(content="a", finish=5), ("shape", "finish_reason is a number")),
        (_completion(content=None, refusal="I can't."), ("empty", "no text; the model refuses: I can't.")),
        (
            b'{"choices": [{"message": {"content": ' + b"[" * 5000 + b"]" * 5000 + b"}}]}",
            ("shape", "an answer nested too deeply"),
        ),
        (
            b'{"choices": [{"message": {"x": ' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"}}]}",
            ("shape", "an answer nested too deeply"),
        ),
    ],
)
def test_an_answer_that_cannot_be_kept_says_why_and_is_no_servers_fault(
    body: bytes, flaw: tuple[str, str] | None
) -> None:
    reply = parse_reply(200, body)
    assert reply.flaw == flaw
    fault = OFF.find_fault(reply)
    assert fault is not None
    assert fault.rejects
    assert (fault.reason, fault.detail) == (flaw or ("empty", "no text and no tool call"))


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (rb"\ud800", "\ufffd"),
        (rb"\udc00\ud800", "\ufffd\ufffd"),
        (rb"\ud83d\ude00 \ud83d", "\U0001f600 \ufffd"),
        (b"\xff", "\ufffd"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
    ],
)
def test_what_is_no_character_is_kept_as_the_sign_for_that_wherever_it_stands(said: bytes, kept: str) -> None:
    text = b'"a' + said + b'"'
    call = (
        b'{"id": ' + text + b', "function": {"name": "f", "arguments": ' + text + b", " + text + b": [" + text + b"]}}"
    )
    message = b'{"content": ' + text + b', "reasoning_content": ' + text + b', "tool_calls": [' + call + b"]}"
    body = b'{"model": ' + text + b', "usage": {' + text + b': 1}, "choices": [{"message": ' + message + b"}]}"
    reply = parse_reply(200, body)
    want = f"a{kept}"
    assert (reply.completion, reply.reasoning, reply.model, reply.usage) == (want, want, want, {want: 1})
    assert reply.tool_calls == [{"id": want, "function": {"name": "f", "arguments": want, want: [want]}}]
    assert (reply.flaw, reply.mended) == (None, True)
    fault = quality_of({"min_tokens": 1}).find_fault(reply)
    assert fault is not None
    assert (fault.reason, fault.rejects) == ("encoding", False)


@pytest.mark.parametrize(
    "said", [b"NaN", b"-Infinity", b"1e999", b"1" * 5000, b"-1", b"true", b"1.5", b'"9"', b"[]", b"null"]
)
def test_a_count_that_is_none_is_no_fault_of_the_answer(said: bytes) -> None:
    body = _completion(content="a").replace(b'"model"', b'"usage": {"completion_tokens": ' + said + b'}, "model"')
    reply = parse_reply(200, body)
    assert (reply.completion, reply.output_tokens, reply.flaw, reply.mended) == ("a", 0, None, False)


def test_control_characters_that_json_forbids_are_taken() -> None:
    assert parse_reply(200, b'{"choices": [{"message": {"content": "a\x00\nb"}}]}').completion == "a\x00\nb"


@pytest.mark.parametrize(
    ("message", "completion", "reasoning", "empty"),
    [
        ({"content": "a"}, "a", None, False),
        ({"content": "a", "reasoning_content": "r"}, "a", "r", False),
        ({"content": "<think>\nr\n</think>\n\na"}, "a", "r", False),
        ({"content": "r\n</think>\n\na"}, "a", "r", False),
        ({"content": "<think>r", "finish": "length"}, "", "r", False),
        ({"content": "<think>r"}, "", "r", True),
        ({"content": "<think>\n\n</think>\n\n"}, "", "", True),
        ({"content": None}, "", None, True),
        ({"content": " \n"}, " \n", None, True),
        ({"content": None, "finish": "length"}, "", None, True),
        ({"content": None, "tool_calls": [{"id": "1"}]}, "", None, False),
    ],
)
def test_thinking_is_split_off_and_nothing_is_called_empty(
    message: dict, completion: str, reasoning: str | None, empty: bool
) -> None:
    reply = parse_reply(200, _completion(**message))
    assert (reply.completion, reply.reasoning, reply.empty) == (completion, reasoning, empty)


def test_text_without_thinking_is_left_as_it_is() -> None:
    assert split_thinking("  a <think> b") == ("  a <think> b", None)


def test_the_effective_capacity_is_read_from_recorded_answers() -> None:
    loads = parse_loads(json.loads((RECORDED / "b1_loads_under_32.json").read_bytes()))
    assert loads == Load(capacity=64, running=32, queue=0, used_tokens=7108)
    info = json.loads((RECORDED / "h7_server_info.json").read_bytes())
    assert parse_server_info(info, Load(None, 3, 0, 5)) == Load(16, 3, 0, 5)


@pytest.mark.parametrize(
    "data", [None, [], {}, {"loads": []}, {"loads": [5]}, {"loads": [{"max_running_requests": "x"}]}]
)
def test_what_a_server_does_not_say_is_unknown(data: object) -> None:
    assert parse_loads(data) == Load(None)
    assert parse_server_info(data, Load(None)) == Load(None)
