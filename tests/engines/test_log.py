from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackhand.engines.sglang import Event, parse_line, read_line

FIXTURES = Path(__file__).parent.parent / "fixtures"
SAMPLES = [line for line in (FIXTURES / "sglang-log-samples.txt").read_text().splitlines() if not line.startswith("# ")]
EXPECTED = json.loads((Path(__file__).parent / "log_samples.json").read_text())
KINDS = {"decode", "prefill", "ready", "memory", "retraction", "trouble", "lifecycle"}
HYBRID = (
    "[2026-05-09 22:25:10] Decode batch, #running-req: 64, #full token: 9120, full token usage: 0.02, mamba num: 128, "
    "mamba usage: 0.59, cuda graph: True, gen throughput (token/s): 1171.35, #queue-req: 3"
)


def recorded(name: str) -> list[str]:
    with (FIXTURES / "sglang-0.5.23" / name).open(encoding="utf-8", errors="replace", newline="\n") as log:
        return list(log)


@pytest.mark.parametrize(("line", "expected"), list(zip(SAMPLES, EXPECTED, strict=True)))
def test_every_sample_line_is_read(line: str, expected: dict[str, object]) -> None:
    event = parse_line(line)
    if expected["kind"] is None:
        assert event is None
        return
    assert event is not None
    assert event._asdict() == {name: expected[name] for name in event._fields}


@pytest.mark.parametrize("line", [line for line in SAMPLES if re.search(r"(Decode|Prefill) batch", line)])
def test_a_batch_line_keeps_every_name_and_number_that_it_prints(line: str) -> None:
    event = parse_line(line)
    assert event is not None
    body = re.split(r"(?:Decode|Prefill) batch(?: \[\d+\])?[.,] ", line)[1]
    printed = {}
    for part in body.strip(" ,").split(", "):
        name, word = part.split(": ")
        printed[name] = {"True": True, "False": False}[word] if word[0] in "TF" else float(word.rstrip("%"))
    assert {name: value for name, value in event.fields.items() if name != "iter"} == printed


@pytest.mark.parametrize(
    ("name", "kinds", "cap"),
    [
        ("b1.log", {"decode": 84, "prefill": 19, "ready": 1, "memory": 5, "lifecycle": 18}, 64),
        ("h7_next.log", {"decode": 4, "prefill": 8, "ready": 1, "memory": 6, "lifecycle": 18}, 16),
    ],
)
def test_a_recorded_run_is_read_without_an_unread_line(name: str, kinds: dict[str, int], cap: int) -> None:
    read = [read_line(line) for line in recorded(name)]
    assert sum(unread for _, unread in read) == 0
    events = [event for event, _ in read if event is not None]
    assert Counter(event.kind for event in events) == kinds
    ready = next(event for event in events if event.kind == "ready")
    assert ready.fields["max_running_requests"] == cap
    assert next(event.sign for event in events if event.sign == "fired_up")


def test_fields_may_come_in_any_order_and_unknown_names_are_kept() -> None:
    event = parse_line(
        "[2027-01-01 00:00:00 DP0 ATTN_CP1 MOE_DP2] Decode batch, #queue-req: 0, new thing: 7, odd: [1], "
        "gen throughput (token/s): 5.00, share: 91.20%, #running-req: 2",
    )
    assert event is not None
    assert event.rank == "DP0 ATTN_CP1 MOE_DP2"
    assert event.fields == {
        "#queue-req": 0,
        "new thing": 7,
        "gen throughput (token/s)": 5.0,
        "share": 91.2,
        "#running-req": 2,
    }


@pytest.mark.parametrize(
    "line",
    [
        "\x1b[33m" + HYBRID + "\x1b[0m",
        HYBRID + "\r\n",
        "Capturing batches (bs=8 avail_mem=7.44 GB):  62%|###   | 5/8 [00:09<00:05]\r" + HYBRID,
        "See https://example.org/refleaks.html" + HYBRID,
        "(SchedulerActor pid=48211, ip=10.0.0.4) " + HYBRID,
        "\ufffd\ufffd" + HYBRID,
        HYBRID + ", ",
    ],
    ids=["colour", "crlf", "progress bar", "no newline before", "ray", "invalid utf-8", "old tail"],
)
def test_what_stands_around_a_line_does_not_hide_it(line: str) -> None:
    plain = parse_line(HYBRID)
    event = parse_line(line)
    assert plain is not None
    assert event is not None
    assert (event.kind, event.fields, event.stamp) == ("decode", plain.fields, "2026-05-09 22:25:10")


@pytest.mark.parametrize(
    "line",
    [
        HYBRID[:90],
        HYBRID.replace("64", "6\ufffd"),
        HYBRID.replace("#running-req: 64, ", ""),
        "[2026-05-09 22:25:10] Prefill batch, #new-seq: 2, #new-tok",
        "[2026-05-09 22:10:25] max_total_num_tokens=431872, chunked_prefill_size=8192, max_runn",
        "[2026-05-09 22:09:34] KV Cache is allocated. #tok",
        "[2026-05-09 22:09:34] Decode batch",
    ],
)
def test_a_line_of_a_known_shape_that_makes_no_sense_is_counted_as_unread(line: str) -> None:
    assert read_line(line) == (None, 1)
    assert parse_line(line) is None


def test_a_torn_line_is_counted_and_the_line_that_broke_into_it_is_read() -> None:
    for torn in (HYBRID[:90], HYBRID.rstrip() + ", new thing: x"):
        event, unread = read_line(torn + HYBRID)
        assert event == parse_line(HYBRID)
        assert unread == 1


@pytest.mark.parametrize(
    ("line", "sign", "fields"),
    [
        (
            "max_running_requests is capped to 37 by the mamba state cache (max_mamba_cache_size=185, "  # noqa: ISC004
            "5 state slots per request).",
            "cap_by_state",
            {"max_running_requests": 37, "max_mamba_cache_size": 185, "state slots per request": 5},
        ),
        (
            "Mamba Cache is allocated. max_mamba_cache_size: 80, conv_state size: 0.21GB, ssm_state size: 11.40GB "  # noqa: ISC004
            "intermediate_ssm_state_cache size: 9.60GB intermediate_conv_window_cache size: 0.25GB ",
            "mamba_pool",
            {
                "max_mamba_cache_size": 80,
                "conv_state size": 0.21,
                "ssm_state size": 11.4,
                "intermediate_ssm_state_cache size": 9.6,
                "intermediate_conv_window_cache size": 0.25,
            },
        ),
        (
            "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 9, KV size: 0.50 GB",
            "kv_pool",
            {"#tokens": 9, "KV size": 0.5},
        ),
    ],
)
def test_start_up_lines_give_the_pools_and_the_caps(line: str, sign: str, fields: dict[str, float]) -> None:
    assert parse_line(f"[2026-05-09 22:09:33] {line}") == Event("memory", fields, sign, "2026-05-09 22:09:33")


def test_server_args_are_known_and_nothing_of_them_is_kept() -> None:
    event = parse_line("[2026-05-09 22:07:00] server_args=ServerArgs(model_path='m', api_key='12345', port=30000)")
    assert event == Event("lifecycle", {}, "server_args", "2026-05-09 22:07:00")


@pytest.mark.parametrize(
    "line",
    [
        "",
        '[2026-05-09 22:10:39] INFO:     127.0.0.1:51722 - "POST /v1/Decode batch, CUDA out of memory HTTP/1.1" 200 OK',
        "[2026-11-29 14:14:01] Ignore import error when loading sglang.srt.models.grok: CUDA out of memory",
        "nanobind: leaked 4 instances!",
        "[transformers] `torch_dtype` is deprecated! Use `dtype` instead!",
    ],
)
def test_other_lines_are_neither_events_nor_unread(line: str) -> None:
    assert read_line(line) == (None, 0)


WORDS = st.sampled_from(
    [*SAMPLES, "[2026-05-09 22:25:10] ", "Decode batch", "Prefill batch, ", "#running-req: ", "max_total_num_tokens=",
     "KV Cache is allocated", "Capture ", "%|", "Retract requests. ", "nan", "inf", "1e999", "9" * 5000, "GB", "\r",
     "\x1b[", ", ", ": ", "=", " [", "]", "reduced from the requested 1 to ", "\ufffd", "\udc80", "٣"],
)  # fmt: skip


@given(st.lists(WORDS | st.text(max_size=12), max_size=6).map("".join), st.integers(0, 200))
def test_no_line_raises_and_every_value_is_a_number(line: str, cut: int) -> None:
    for text in (line, line[cut:], line[: -cut or None]):
        event, unread = read_line(text)
        assert unread >= 0
        if event is not None:
            assert event.kind in KINDS
            assert all(isinstance(value, int | float) and name for name, value in event.fields.items())
