"""What a job's sampling may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from rackhand.errors import InventoryError
from rackhand.load import load_text

HEAD = """hosts:
  lab: {type: ssh, ssh: box}
jobs:
  a:
    host: lab
    prompts: /p
    output: /o
    sampling:
"""
RIGHT = (
    "temperature: 0", "temperature: 1.0", "temperature: 2", "top_p: 1", "top_p: 0.95", "top_k: -1", "top_k: 40",
    "min_p: 0.0", "max_tokens: 16384", "max_completion_tokens: 1", "min_tokens: 0", "stop: END", "stop: ['a', \"1\"]",
    "stop_token_ids: [1, 2]", "presence_penalty: -2", "frequency_penalty: 1.5", "repetition_penalty: 1.05",
    "seed: -1", "seed: 0", "logprobs: true", "top_logprobs: 5", "ignore_eos: yes", "logit_bias: {50256: -100}",
    "chat_template_kwargs: {enable_thinking: false}", "response_format: {type: json_object}", "regex: a+",
    "reasoning_effort: low", "tool_choice: none", "tool_choice: {type: function}", "my_own_name: anything",
    "custom_params: {a: [1]}", "seed: null", "stop: []",
)  # fmt: skip
WRONG = (
    "temperature: hot", "temperature: \"0.7\"", "temperature: -0.1", "temperature: 2.01", "temperature: true",
    "temperature: nan", "temperature: .inf", "temperature:", "temperature: [0.7]", "temperature: {a: 1}",
    "top_p: 0", "top_p: 1.5", "top_k: 0", "top_k: -2", "top_k: 1.5", "min_p: 2", "min_p: -1", "max_tokens: 0",
    "max_tokens: -5", "max_tokens: 1.5", "max_tokens: many", "max_tokens: \"100\"", "max_tokens: 1e3",
    "max_completion_tokens: 0", "min_tokens: -1", "stop: 5", "stop: ['']", "stop: [1]", "stop: true",
    "stop_token_ids: 5", "stop_token_ids: [a]", "presence_penalty: 3", "frequency_penalty: -2.5",
    "repetition_penalty: 0", "repetition_penalty: 3", "seed: 1.5", "seed: x", "logprobs: 5", "top_logprobs: 21",
    "ignore_eos: maybe", "logit_bias: {a: 1}", "logit_bias: {1: 200}", "logit_bias: 5", "chat_template_kwargs: 5",
    "response_format: json", "regex: 5", "reasoning_effort: 1", "tool_choice: [a]", "n: 2", "temprature: 1",
)  # fmt: skip


def sampling(line: str) -> object:
    return load_text(f"{HEAD}      {line}\n".encode(), Path("x.yaml"), {}).jobs[0].sampling


@pytest.mark.parametrize("line", RIGHT)
def test_a_value_of_the_right_kind_is_taken(line: str) -> None:
    assert sampling(line)


@pytest.mark.parametrize("line", WRONG)
def test_a_value_of_the_wrong_kind_is_named_with_its_line_at_load(line: str) -> None:
    with pytest.raises(InventoryError) as caught:
        sampling(line)
    (mistake,) = caught.value.mistakes
    assert mistake.line == 9
    assert f"jobs.a.sampling.{line.partition(':')[0]}" in mistake.what
    assert mistake.hint


def test_a_least_length_above_the_longest_is_refused() -> None:
    with pytest.raises(InventoryError, match="200 is more than the 100 allowed"):
        sampling("max_tokens: 100\n      min_tokens: 200")
