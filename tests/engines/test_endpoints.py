from __future__ import annotations

import json

import pytest

from rackhand.contract.servers import Capacity, Load
from rackhand.engines import engine
from rackhand.engines.sglang import endpoints

LOADS = {
    "version": "0.5.23",
    "loads": [
        {
            "dp_rank": 0,
            "num_running_reqs": 16,
            "num_waiting_reqs": 16,
            "max_total_num_tokens": 8192,
            "max_running_requests": 16,
        }
    ],
}
STATE = {
    "max_running_requests": 128,
    "max_mamba_cache_size": 217,
    "effective_max_running_requests_per_dp": 72,
    "memory_usage": {"weight": 51.05, "kvcache": 30.0, "token_capacity": 444_000, "graph": 0.8},
}
READY = "max_total_num_tokens=8192, chunked_prefill_size=4096, max_prefill_tokens=16384, max_running_requests=37, "
LOG = [
    "[2026-11-29 14:33:13] Mamba Cache is allocated. max_mamba_cache_size: 185, conv_state size: 0.08GB",
    f"[2026-11-29 14:33:13] {READY}context_len=4096, available_gpu_mem=20.17 GB",
]


def answer(**message: object) -> str:
    tokens = message.pop("tokens", 8)
    return json.dumps({"choices": [{"message": message}], "usage": {"completion_tokens": tokens}})


def test_loads_give_what_runs_and_the_effective_capacity() -> None:
    assert endpoints.parse_load(endpoints.LOADS, json.dumps(LOADS)) == Load(16, 16, Capacity(16, 8192, None, "loads"))


def test_server_info_gives_the_effective_capacity_and_not_the_asked_one() -> None:
    body = {"max_running_requests": 128, "internal_states": [STATE]}
    load = endpoints.parse_load(endpoints.SERVER_INFO, json.dumps(body))
    assert load == Load(0, 0, Capacity(72, 444_000, 217, "server_info"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"loads": []}', '{"internal_states": [{}]}', "<html>"])
def test_an_answer_without_figures_is_no_load(text: str) -> None:
    assert endpoints.parse_load(endpoints.LOADS, text) is None
    assert endpoints.parse_load(endpoints.SERVER_INFO, text) is None


def test_the_ready_line_is_the_fallback() -> None:
    assert endpoints.parse_log_capacity(LOG) == Load(0, 0, Capacity(37, 8192, 185, "log"))
    assert endpoints.parse_log_capacity(LOG[:1]) is None


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        (answer(content="red, green"), ""),
        (answer(content=None, reasoning_content="Let me think"), ""),
        (answer(content="", tokens=0), "an empty completion"),
        (answer(content="  ", tokens=3), "an empty completion"),
        (answer(content="!!!!!!!!!!!!!!!!", tokens=16), "nothing but '!'"),
        ("{}", "no completion"),
        ("<html>", "no completion"),
    ],
)
def test_only_real_text_counts_as_a_generation(text: str, trouble: str) -> None:
    found = endpoints.parse_generation(text)
    assert found.trouble.startswith(trouble) if trouble else found.trouble == ""


@pytest.mark.parametrize(
    ("words", "is_server", "is_main"),
    [
        (("/opt/py", "-m", "sglang.launch_server", "--port", "1"), True, True),
        (("python3", "-B", "-m", "sglang.launch_server"), True, True),
        (("/opt/py", "/opt/bin/sglang", "serve", "--model-path", "x"), True, True),
        (("sglang::scheduler_DP0_TP1",), True, False),
        (("sglang::detokenizer", "", ""), True, False),
        (("vim", "sglang.launch_server"), False, False),
        (("/opt/py", "remote.pyz", "supervise", "--", "/opt/py", "-m", "sglang.launch_server"), False, False),
        (("tail", "-f", "sglang_gpu0.log"), False, False),
        ((), False, False),
    ],
)
def test_server_processes_are_told_by_their_command_line(
    words: tuple[str, ...], is_server: bool, is_main: bool
) -> None:
    assert (engine("sglang").is_server(words), engine("sglang").is_main(words)) == (is_server, is_main)


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        ("[t] Load weight begin. avail mem=21.03 GB", "loading weights"),
        ("[t] Capture cuda graph begin. This can take up to several minutes.", "capturing graphs"),
        ("[t] Capture target decode CUDA graph begin", "capturing graphs"),
        ("[t] Running FlashInfer autotune...", "compiling"),
        ("[t] The server is fired up and ready to roll!", "ready"),
        ("[t] Decode batch, #running-req: 1", None),
    ],
)
def test_start_up_lines_tell_the_stage(line: str, stage: str | None) -> None:
    assert endpoints.parse_stage(line) == stage
