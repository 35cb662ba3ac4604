from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackhand.contract.servers import FlagFacts
from rackhand.engines import Launch
from rackhand.engines.sglang.flags import NUMBERS, check_flags, launch_argv, parse_help, parse_version, translate

HELP = Path(__file__).parent.parent / "fixtures/sglang/help-0.5.23-excerpt.txt"
FLAGS_0_5_11 = Path(__file__).parents[2] / "lab/site/sglang/flags.json"
OPTIONS, BARE = parse_help(HELP.read_text())
NEW = FlagFacts("/py", "0.5.23", OPTIONS, BARE)
OLD_NAMES = frozenset({"mamba-scheduler-strategy", "cuda-graph-max-bs"})


@pytest.mark.parametrize(
    ("flag", "choices", "is_bare"),
    [
        ("help", (), True),
        ("model", (), False),
        ("model-path", (), False),
        ("tokenizer-mode", ("auto", "slow"), False),
        ("quantize-and-serve", (), True),
        ("no-enable-tf32-matmul", (), True),
        ("cuda-graph-bs-decode", (), False),
        ("mamba-radix-cache-strategy", ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"), False),
    ],
)
def test_help_gives_every_long_option(flag: str, choices: tuple[str, ...], is_bare: bool) -> None:
    assert OPTIONS[flag] == choices
    assert (flag in BARE) is is_bare


def test_help_texts_and_usage_are_no_options() -> None:
    assert "tokenizer-path" not in OPTIONS
    assert all(name == name.strip() and " " not in name for name in OPTIONS)


@pytest.mark.parametrize(
    ("args", "said", "hint"),
    [
        ({"mem-fraction-statik": 0.9}, "has no flag --mem-fraction-statik", "did you mean --mem-fraction-static"),
        ({"mamba-scheduler-strategy": "auto"}, "has no flag", "did you mean --mamba-radix-cache-strategy"),
        ({"zzz": 1}, "has no flag --zzz", ""),
        ({"enable-metrics": "yes please"}, "takes no value", "true or false"),
        ({"mem-fraction-static": True}, "needs a value", "mem-fraction-static=VALUE"),
        ({"mem-fraction-static": "a lot"}, "takes a number, not 'a lot'", ""),
        ({"max-running-requests": (1, 2)}, "takes a number", ""),
        ({"mamba-radix-cache-strategy": "no-buffer"}, "does not take 'no-buffer'", "did you mean no_buffer"),
        ({"mamba-ssm-dtype": "int4"}, "does not take 'int4'", "bfloat16"),
    ],
)
def test_a_wrong_flag_is_named_with_the_nearest_right_one(args: dict[str, Any], said: str, hint: str) -> None:
    (mistake,) = check_flags(args, NEW)
    assert said in mistake.what
    assert hint in mistake.hint


def test_flags_taken_for_numbers_are_numbers_in_0_5_11() -> None:
    table = json.loads(FLAGS_0_5_11.read_text())
    kinds = {name.removeprefix("--"): flag["kind"] for flag in table for name in flag["names"]}
    assert {kinds[name] for name in NUMBERS if name in kinds} == {"int", "float"}
    assert len(NUMBERS - kinds.keys()) <= 1, "a misspelt flag would never be checked"


def test_right_flags_pass_and_false_leaves_a_flag_out() -> None:
    args = {"mem-fraction-static": 0.9, "disable-radix-cache": False, "cuda-graph-bs-decode": (1, 2), "log-level": "x"}
    assert check_flags(args, NEW) == ()


@pytest.mark.parametrize(
    ("version", "known", "given", "wanted"),
    [
        ("0.5.11", None, "mamba-radix-cache-strategy", "mamba-scheduler-strategy"),
        ("0.5.14", None, "mamba-scheduler-strategy", "mamba-radix-cache-strategy"),
        ("0.5.23", None, "mamba_scheduler_strategy", "mamba-radix-cache-strategy"),
        (None, None, "mamba-scheduler-strategy", "mamba-scheduler-strategy"),
        (None, frozenset(OPTIONS), "mamba-scheduler-strategy", "mamba-radix-cache-strategy"),
        ("0.5.23", OLD_NAMES, "mamba-radix-cache-strategy", "mamba-scheduler-strategy"),
        ("0.5.20", None, "cuda-graph-max-bs", "cuda-graph-max-bs-decode"),
        ("0.5.13", None, "cuda-graph-max-bs-decode", "cuda-graph-max-bs"),
        ("0.5.16", None, "enable-gdn-replayssm-spec", "enable-gdn-replayssm-spec"),
        ("0.5.20", None, "enable-gdn-replayssm-spec", "enable-linear-replayssm-spec"),
        ("0.5.20", None, "--page_size", "page-size"),
    ],
)
def test_flags_are_said_in_the_words_of_the_version(
    version: str | None, known: frozenset[str] | None, given: str, wanted: str
) -> None:
    assert dict(translate({given: "x", "log-level": "info"}, version=version, known=known)) == {
        wanted: "x",
        "log-level": "info",
    }


@pytest.mark.parametrize(
    ("text", "version"), [("0.5.11", (0, 5, 11)), ("0.4.10.post2", (0, 4, 10)), ("main", None), (None, None)]
)
def test_versions_are_compared_by_number(text: str | None, version: tuple[int, ...] | None) -> None:
    assert parse_version(text) == version


def test_a_command_line_has_bare_flags_repeated_words_and_no_secret() -> None:
    args = {"mem-fraction-static": 0.9, "disable-radix-cache": True, "cuda-graph-bs": (1, 2), "enable-metrics": False}
    assert launch_argv(Launch("/opt/py", "/models/q", 30001, 40001, args, "/dev/shm/x/sglang.yaml")) == (
        *("/opt/py", "-m", "sglang.launch_server", "--model-path", "/models/q", "--host", "127.0.0.1"),
        *("--port", "30001", "--nccl-port", "40001", "--mem-fraction-static", "0.9", "--disable-radix-cache"),
        *("--cuda-graph-bs", "1", "2", "--config", "/dev/shm/x/sglang.yaml"),
    )
