"""A simulated server from its start to its answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from tests.sim.conftest import CHAT, Server, Start, await_true, shape_of

pytestmark = pytest.mark.lab

NO_BUFFER = ("--mem-fraction-static", "0.9", "--max-running-requests", "128")
SAMPLES = {
    "Load weight begin": "[2026-05-09 22:08:05] Load weight begin. avail mem=94.14 GB",
    "Mamba Cache": "[2026-05-09 22:09:33] Mamba Cache is allocated. max_mamba_cache_size: 185, "
    "conv_state size: 0.51GB, ssm_state size: 26.16GB ",
    "KV Cache is": "[2026-05-09 22:09:34] KV Cache is allocated. #tokens: 431872, K size: 13.18 GB, V size: 13.18 GB",
    "Memory pool end": "[2026-05-09 22:09:34] Memory pool end. avail mem=8.91 GB",
    "graph end": "[2026-05-09 22:10:22] Capture cuda graph end. Time elapsed: 47.33 s. mem usage=1.62 GB. "
    "avail mem=7.18 GB.",
    "max_total_num_tokens": "[2026-05-09 22:10:25] max_total_num_tokens=431872, chunked_prefill_size=8192, "
    "max_prefill_tokens=16384, max_running_requests=37, context_len=262144, available_gpu_mem=7.10 GB",
    "Decode batch": "[2026-05-09 22:25:10] Decode batch, #running-req: 3, #full token: 9120, full token usage: 0.02, "
    "mamba num: 12, mamba usage: 0.06, cuda graph: True, gen throughput (token/s): 171.35, #queue-req: 0",
    "Prefill batch": "[2026-05-09 22:17:33] Prefill batch, #new-seq: 2, #new-token: 16384, #cached-token: 4096, "
    "full token usage: 0.27, mamba usage: 0.48, #running-req: 22, #queue-req: 5, #pending-token: 71230, "
    "cuda graph: False, input throughput (token/s): 7044.10",
    '"POST /v1/chat': '[2026-05-09 22:10:39] INFO:     127.0.0.1:51722 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
}
ORDER = [
    "server_args=ServerArgs(",
    "Init torch distributed begin.",
    "Init torch distributed ends. ",
    "Load weight begin. avail mem=94.14 GB",
    "Load weight end. ",
    "Using KV cache dtype: torch.bfloat16",
    "Mamba Cache is allocated. max_mamba_cache_size: 185",
    "KV Cache is allocated. #tokens: 487",
    "Memory pool end. ",
    "Capture cuda graph begin. ",
    "Capturing batches (bs=",
    "Capture cuda graph end. ",
    "max_running_requests=61",
    "Uvicorn running on ",
    '"GET /model_info HTTP/1.1" 200 OK',
    "The server is fired up and ready to roll!",
]


async def ask_many(server: Server, count: int, **options: Any) -> list[tuple[int, dict[str, Any]]]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(number: int) -> tuple[int, dict[str, Any]]:
            body = {"messages": [{"role": "user", "content": f"prompt {number}"}], **options}
            async with session.post(server.url + CHAT, json=body) as answer:
                return answer.status, await answer.json()

        return await asyncio.gather(*(ask(n) for n in range(count)))


def test_a_start_logs_and_answers_in_the_real_order(start: Start) -> None:
    server = start(*NO_BUFFER, "--api-key", "sk-secret", "--decode-log-interval", "5")
    server.await_log("Load weight end")
    with pytest.raises(httpx.ConnectError):
        server.get("/health")
    server.await_log("Uvicorn running")
    key = {"Authorization": "Bearer sk-secret"}
    assert server.get("/v1/models", **key).json()["data"][0]["max_model_len"] == 262_144
    server.await_ready()
    assert server.get("/health").status_code == 200
    assert server.post(CHAT, {"messages": [{"role": "user", "content": "hi"}]}, **key).status_code == 200
    text = server.text()
    positions = [text.find(part) for part in ORDER]
    assert -1 not in positions, dict(zip(ORDER, positions, strict=True))
    assert positions == sorted(positions)
    assert "api_key='sk-secret'" in text
    for part, sample in SAMPLES.items():
        assert shape_of(sample) in {shape_of(line) for line in server.lines(part)}, part


def test_the_key_guards_everything_but_health_and_metrics(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "sglang.yaml"
    config.write_text("api-key: sk-file\nmem-fraction-static: 0.5\nenable-metrics: true\n")
    server = start("--config", str(config), *NO_BUFFER).await_ready()
    for path in ("/v1/models", "/server_info", "/v1/loads", "/model_info"):
        refused = server.get(path)
        assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
        assert server.get(path, Authorization="Bearer sk-file").status_code == 200
    assert server.get("/health").status_code == 200
    assert server.get("/metrics").status_code == 200
    state = server.get("/server_info", Authorization="Bearer sk-file").json()["internal_states"][0]
    assert state["effective_max_running_requests_per_dp"] == 61
    assert server.get("/get_server_info", Authorization="Bearer sk-file").json()["api_key"] == "sk-file"


def test_answers_have_the_shapes_of_openai_and_depend_on_the_prompt_alone(plain: Server) -> None:
    body = plain.chat("count to ten", max_tokens=50).json()
    assert body["model"] == "any"
    choice, usage = body["choices"][0], body["usage"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["reasoning_content"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 < usage["reasoning_tokens"] < usage["completion_tokens"]
    assert plain.chat("count to ten", max_tokens=50).json()["choices"][0]["message"] == choice["message"]
    other = plain.chat("count to eleven", max_tokens=50).json()["choices"][0]["message"]
    assert other != choice["message"]
    unthinking = plain.chat("hi", max_tokens=50, chat_template_kwargs={"enable_thinking": False}).json()
    assert unthinking["choices"][0]["message"]["reasoning_content"] is None
    short = plain.chat("hi", max_tokens=2).json()
    assert (short["choices"][0]["finish_reason"], short["usage"]["completion_tokens"]) == ("length", 2)
    text = plain.post("/v1/completions", {"prompt": "once", "max_tokens": 3}).json()
    assert text["object"] == "text_completion"
    raw = plain.post("/generate", {"text": "once", "sampling_params": {"max_new_tokens": 3}}).json()
    assert raw["meta_info"]["finish_reason"] == {"type": "length", "length": 3}


def test_a_stream_ends_with_its_usage_and_done(plain: Server) -> None:
    answer = plain.chat("hi", max_tokens=4, stream=True, stream_options={"include_usage": True})
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 4


def test_wrong_requests_are_answered_400_with_the_recorded_bodies(plain: Server) -> None:
    long = plain.chat("hi", max_tokens=999_999)
    assert long.status_code == 400
    assert long.json()["type"] == "BadRequestError"
    assert "exceeds the model's maximum context length of 262144 tokens" in long.json()["message"]
    missing = plain.post(CHAT, {"model": "any"})
    assert (missing.status_code, missing.json()["type"]) == (400, "Bad Request")
    broken = httpx.post(plain.url + CHAT, content=b"{nope")
    assert broken.status_code == 400
    assert "JSON decode error" in broken.json()["message"]
    assert plain.get("/metrics").status_code == 404


def test_no_more_run_than_the_slots_carry_and_the_rest_waits(start: Start) -> None:
    flags = ("--mamba-scheduler-strategy", "extra_buffer", "--mem-fraction-static", "0.9", "--enable-metrics")
    server = start(*flags).await_ready()
    answers = asyncio.run(ask_many_and_look(server))
    assert [status for status, _ in answers] == [200] * 41


async def ask_many_and_look(server: Server) -> list[tuple[int, dict[str, Any]]]:
    asking = asyncio.create_task(ask_many(server, 41, max_tokens=30, ignore_eos=True))
    seen = (0, 0)
    while not asking.done() and seen != (37, 4):
        await asyncio.sleep(0.05)
        load = (await asyncio.to_thread(server.get, "/v1/loads")).json()["loads"][0]
        seen = (load["num_running_reqs"], load["num_waiting_reqs"])
    assert seen == (37, 4)
    metrics = (await asyncio.to_thread(server.get, "/metrics")).text
    labels = '{engine_type="unified",model_name="Qwen/Qwen3.6-27B-FP8",moe_ep_rank="0",pp_rank="0",tp_rank="0"}'
    assert f"sglang:num_running_reqs{labels} 37.0" in metrics
    assert f"sglang:num_queue_reqs{labels} 4.0" in metrics
    assert f"sglang:mamba_usage{labels} 0.8\n" in metrics
    return await asking


def test_a_full_queue_is_answered_503(start: Start) -> None:
    server = start(*NO_BUFFER, "--max-queued-requests", "2").await_ready()
    answers = asyncio.run(ask_many(server, 24, max_tokens=4))
    # The first is admitted at once, two wait for the next step, and what comes before that finds the queue full.
    refused = [body for status, body in answers if status == 503]
    assert {status for status, _ in answers} == {200, 503}
    assert refused[0] == {
        "object": "error",
        "message": "The request queue is full.",
        "type": "503",
        "param": None,
        "code": 503,
    }


def test_an_aborted_request_gives_its_slot_back(plain: Server) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            plain.url + CHAT,
            json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9000, "ignore_eos": True},
            timeout=0.5,
        )
    await_true("the request to leave", lambda: plain.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 0, 10)
    assert plain.post("/flush_cache", {}).status_code == 200


def test_the_decode_rates_are_those_of_the_report(start: Start) -> None:
    flags = ("--mamba-ssm-dtype", "bfloat16", *NO_BUFFER, "--decode-log-interval", "20")
    servers = {32: start(*flags, gpu=0), 64: start(*flags, gpu=1)}

    async def load() -> None:
        for server in servers.values():
            await asyncio.to_thread(server.await_ready)
        await asyncio.gather(*(ask_many(s, n, max_tokens=90, ignore_eos=True) for n, s in servers.items()))

    asyncio.run(load())
    for count, expected in ((32, 670), (64, 1180)):
        full = [line for line in servers[count].lines("Decode batch") if f"#running-req: {count}," in line]
        rate = float(full[-1].partition("(token/s): ")[2].partition(",")[0])
        assert rate == pytest.approx(expected, rel=0.05)
    assert "mamba num: 128" in servers[64].lines("#running-req: 64,")[-1]


def test_speculation_logs_its_buffers_and_accept_length(start: Start) -> None:
    flags = ("--speculative-algorithm", "NEXTN", "--mamba-scheduler-strategy", "extra_buffer")
    server = start(*flags, "--mem-fraction-static", "0.9", "--decode-log-interval", "2").await_ready()
    server.chat("hi", max_tokens=20, ignore_eos=True)
    assert server.lines("intermediate_ssm_state_cache size: ")
    assert server.lines("Max running requests is reset to 48 for speculative decoding.")
    assert len(server.lines("Load weight end.")) == len(server.lines("KV Cache is allocated.")) == 2
    assert "max_running_requests=18" in server.lines("max_total_num_tokens")[0]
    assert "accept len: 3.20, accept rate: 0.73, " in server.lines("Decode batch")[0]
