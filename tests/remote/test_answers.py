"""Answers that no completion should look like, over HTTP: each is told, none trips a breaker, none costs the memory."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from remote import fastjson
from remote.generator.body import BodyError, read_body
from remote.generator.feeding import Feeding
from remote.generator.quality import quality_of
from tests.remote.rig import Rig, write_prompts

MIB = 1 << 20
LENIENT = '{"min_tokens": 1, "limit_share": 1}'


def _answer(message: str, more: str = "") -> str:
    return f'{{"choices": [{{"message": {message}, "finish_reason": "stop"}}]{more}}}'


ODD = {
    "surrogate": (_answer(r'{"content": "one \ud800 of them"}'), "kept", "one \ufffd of them"),
    "call": (
        _answer(r'{"content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": \"\ud800\"}"}}]}'),
        "kept",
        "",
    ),
    "parts": (
        _answer('{"content": [{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}]}'),
        "kept",
        "in parts",
    ),
    "nan": (
        _answer('{"content": "not a number", "logprobs": [NaN, -Infinity]}', ', "usage": {"x": NaN}'),
        "kept",
        "not a number",
    ),
    "long integer": (
        _answer('{"content": "ten to the 30"}', f', "usage": {{"completion_tokens": 1{"0" * 30}}}'),
        "kept",
        "ten to the 30",
    ),
    "image": (_answer('{"content": [{"type": "image_url", "image_url": {"url": "x"}}]}'), "shape", "image_url"),
    "number": (_answer('{"content": 5}'), "shape", "content is a number"),
    "deep": (_answer('{"content": ' + "[" * 2000 + "]" * 2000 + "}"), "shape", "nested too deeply"),
    "deep call": (
        _answer(
            '{"content": null, "tool_calls": [{"function": {"name": "f", "arguments": ' + "[" * 500 + "]" * 500 + "}}]}"
        ),
        "shape",
        "nested too deeply",
    ),
    "no choice": ('{"choices": []}', "empty", "choices is an empty list"),
    "no message": ('{"choices": [{}]}', "empty", "no text"),
    "signs": (_answer('{"content": "!!!!!!!!!!!!"}'), "repetition", "12 times in a row"),
}


@pytest.mark.parametrize("orjson", [True, False])
def test_odd_answers_are_kept_or_rejected_once_and_never_the_servers_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, orjson: bool
) -> None:
    if not orjson:
        monkeypatch.setattr(fastjson, "loads", fastjson._standard_loads)
        monkeypatch.setattr(fastjson, "dumps", fastjson._standard_dumps)
    bodies = list(ODD.values())
    prompts = write_prompts(
        tmp_path, 40 + len(bodies), lambda i: f"body:{bodies[i - 40][0]}" if i >= 40 else f"prompt {i}"
    )
    with Rig(tmp_path, ports=2) as rig:
        assert rig.generate(prompts, "--quality", LENIENT) == 3
        asked = rig.requests()
        assert rig.generate(prompts, "--quality", LENIENT) == 3
        assert rig.requests() == asked, "a second start asks nothing again"
    progress = rig.progress()
    kept = {i for i, body in enumerate(bodies) if body[1] == "kept"}
    assert asked == 40 + len(kept) + 2 * (len(bodies) - len(kept))
    assert {server["state"] for server in progress["servers"].values()} == {"active"}
    assert sum(server["failures"] for server in progress["servers"].values()) == 0
    assert "left out" not in rig.log
    found = _strict(rig.output / "completions-00000.jsonl")
    assert {i - 40: row["completion"] for i, row in found.items() if i >= 40} == {i: bodies[i][2] for i in kept}
    rejected = _strict(rig.output / "rejected.jsonl")
    for i, (_, reason, words) in enumerate(bodies):
        if i not in kept:
            assert rejected[i + 40]["reason"] == reason
            assert words in rejected[i + 40]["detail"]


def _strict(path: Path) -> dict[int, dict[str, Any]]:
    """Records by index, read by a parser that takes no NaN and no lone surrogate."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    rows = [json.loads(line, parse_constant=refuse) for line in path.read_bytes().split(b"\n")[:-1]]
    for row in rows:
        json.dumps(row, ensure_ascii=False).encode()
    return {row["index"]: row for row in rows}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"body": "x" * 1024, "repeat": 2048}, "answer over 1 MiB"),
        ({"body": "\0" * MIB, "repeat": 32, "gzip": True}, "answer over 1 MiB"),
        ({"body": '{"choices": ' * 1024, "endless": True}, "answer over 1 MiB"),
    ],
)
def test_an_answer_of_any_length_is_cut_at_its_limit_and_rejected_after_a_second_try(
    tmp_path: Path, fault: dict[str, Any], words: str
) -> None:
    prompts = write_prompts(tmp_path, 2)
    with Rig(tmp_path, ports=1) as rig:
        rig.set_fault(0, fault)
        assert rig.generate(prompts, "--sampling", '{"max_tokens": 100}') == 3
        assert rig.requests() == 4
    assert rig.progress()["quality"] == {"large": 2}
    assert "left out" not in rig.log
    rejected = _strict(rig.output / "rejected.jsonl")
    assert {row["detail"] for row in rejected.values()} == {words}


class _Response:
    """The part of aiohttp's that a body is read from."""

    def __init__(self, data: bytes, headers: dict[str, str], *, endless: bool = False) -> None:
        self.headers, self.content_length, self.content = headers, None, self
        self.closed = False
        self._data, self._endless = data, endless

    async def iter_any(self) -> AsyncIterator[bytes]:
        for begin in itertools.count() if self._endless else range(0, len(self._data), 65536):
            yield self._data if self._endless else self._data[begin : begin + 65536]

    def close(self) -> None:
        self.closed = True


def _read(response: _Response, limit: int) -> tuple[bytes, bool]:
    return asyncio.run(read_body(response, limit))  # type: ignore[arg-type]


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw", "identity"])
def test_memory_is_bounded_by_the_limit_whatever_is_sent(coding: str) -> None:
    wbits = {"gzip": 31, "deflate": 15, "raw": -15}.get(coding)
    packer = zlib.compressobj(wbits=wbits) if wbits else None
    data = b"".join(packer.compress(bytes(MIB)) for _ in range(64)) + packer.flush() if packer else bytes(MIB)
    response = _Response(data, {"Content-Encoding": coding.replace("raw", "deflate")}, endless=packer is None)
    tracemalloc.start()
    try:
        assert _read(response, 2 * MIB) == (bytes(2 * MIB), False)
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()
    assert response.closed


@pytest.mark.parametrize("body", [b"", b"a", b"ab" * MIB])
def test_a_compressed_body_is_read_whole_in_every_form(body: bytes) -> None:
    raw = zlib.compressobj(wbits=-15)
    forms = {
        "gzip": [gzip.compress(body), gzip.compress(body[:100]) + gzip.compress(body[100:])],
        "x-gzip": [gzip.compress(body)],
        "deflate": [zlib.compress(body), raw.compress(body) + raw.flush()],
        "identity": [body],
    }
    for coding, datas in forms.items():
        for data in datas:
            assert _read(_Response(data, {"Content-Encoding": coding}), len(body)) == (body, True)


@pytest.mark.parametrize(
    ("coding", "data", "words"),
    [
        ("gzip", gzip.compress(b"a" * 1000, mtime=0)[:-12], "its gzip is cut"),
        ("gzip", b"plain", "damaged gzip"),
        ("deflate", b"\xff\xff\xff", "damaged deflate"),
        ("br", b"a", "Content-Encoding br, which wasn't asked for"),
        ("gzip, gzip", b"a", "Content-Encoding gzip, gzip"),
    ],
)
def test_a_body_that_is_none_is_told_by_name(coding: str, data: bytes, words: str) -> None:
    with pytest.raises(BodyError, match=words):
        _read(_Response(data, {"Content-Encoding": coding}), MIB)


def test_a_gzipped_answer_that_was_not_asked_for_is_read(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 4)
    with Rig(tmp_path, ports=1) as rig:
        rig.set_fault(0, {"body": _answer('{"content": "small enough"}'), "gzip": True})
        assert rig.generate(prompts, "--quality", LENIENT) == 0
    assert {row["completion"] for row in _strict(rig.output / "completions-00000.jsonl").values()} == {"small enough"}


@pytest.mark.parametrize(
    ("sampling", "quality", "mib"),
    [
        ({}, {}, 64),
        ({"max_tokens": 100}, {}, 1),
        ({"max_tokens": 4096}, {}, 4),
        ({"max_completion_tokens": 4096, "max_tokens": 10}, {}, 4),
        ({"max_tokens": 1_000_000}, {}, 64),
        ({"max_tokens": 100, "logprobs": True}, {}, 64),
        ({"max_tokens": 100, "logprobs": False}, {}, 1),
        ({"max_tokens": 100, "return_hidden_states": True}, {}, 64),
        ({"max_tokens": 100}, {"max_answer_mib": 200}, 200),
        ({}, {"max_answer_mib": 1.5}, 1.5),
    ],
)
def test_the_longest_answer_follows_max_tokens(sampling: dict[str, Any], quality: dict[str, Any], mib: float) -> None:
    assert Feeding(sampling, quality=quality_of(quality)).max_answer_bytes == mib * MIB
