from __future__ import annotations

import json
from pathlib import Path

import pytest

from rackhand.engines.sglang.trouble import clean, find_cause

CASES = json.loads((Path(__file__).parent / "troubles.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_first_sign_in_the_log_is_the_cause(case: dict[str, object]) -> None:
    cause = find_cause(case["lines"], case.get("status"))  # type: ignore[arg-type]
    assert cause.text == case["cause"]
    assert str(case["hint"]) in cause.hint


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("[2026-11-29 14:13:45] hello\n", "hello"),
        ("[2026-11-29 14:13:45.123 DP0 TP1] hello", "hello"),
        ("(Engine pid=12, ip=10.0.0.1) [2026-11-29 14:13:45 TP0] hello", "hello"),
        ("\x1b[33mold flag\x1b[0m", "old flag"),
        ("  0%|   | 0/2\r 50%|#  | 1/2\r100%|##| 2/2\n", "100%|##| 2/2"),
    ],
)
def test_lines_lose_prefix_colours_and_overwritten_bars(line: str, text: str) -> None:
    assert clean(line) == text
