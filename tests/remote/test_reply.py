from __future__ import annotations

import json
from pathlib import Path

import pytest

from remote.generator.endpoint import Load, parse_loads, parse_server_info
from remote.generator.reply import TroubleError, names_no_model, parse_reply, split_thinking

RECORDED = Path(__file__).parents[1] / "fixtures/sglang-0.5.23"


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
        (302, b"", "server_error"),
        (429, b"", "busy"),
        (503, b"", "busy"),
        (400, b"{}", "prompt"),
        (422, b"{}", "prompt"),
        (401, b"{}", "refused"),
        (404, b"{}", "not_found"),
        (200, b"", "bad_body"),
        (200, b"[]", "bad_body"),
        (200, b'{"choices": []}', "bad_body"),
        (200, b'{"error": {"message": "x"}}', "bad_body"),
        (200, b'{"object": "error", "message": "x"}', "bad_body"),
        (200, _completion(content=5), "bad_body"),
        (200, _completion(content="x", tool_calls="y"), "bad_body"),
        (200, _completion(content="x", finish={"type": "stop"}), "bad_body"),
        (200, _completion(content="half", finish="abort"), "aborted"),
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
