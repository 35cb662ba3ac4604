"""A job's options in the inventory become the generator's flags, which the generator takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rackhand.contract.job import PROMPT_COLUMNS
from rackhand.errors import InventoryError
from rackhand.load import load_text
from rackhand.load.job_options import QUALITY
from rackhand.plan.job import generate_argv
from remote.generator.options import parse_options
from remote.generator.quality import _READ, Quality
from remote.prompts.shapes import Reading

INVENTORY = """
hosts: {{h: {{type: ssh, ssh: h, servers: {{model: m}}}}}}
jobs:
  j: {{host: h, prompts: /p.jsonl, output: /out, {options}}}
"""


def _argv(options: str, tmp_path: Path) -> list[str]:
    fleet = load_text(INVENTORY.format(options=options).encode(), tmp_path / "i.yaml", {})
    words = generate_argv(fleet.hosts[0], fleet.job(), (), more=("--retry-failed",))
    return [*words[3:], "--server", "http://127.0.0.1:1"]


def test_every_option_reaches_the_generator(tmp_path: Path) -> None:
    options = (
        "quality: {min_tokens: 3, must_not: ['[a-z]', x], reject_length: yes, limit_share: 0.5},"
        " columns: {prompt: question}, keep: [task, 'the level'], last_assistant: continue"
    )
    found = parse_options(_argv(options, tmp_path))
    assert found.quality == Quality(3, reject_length=True, must_not=found.quality.must_not, limit_share=0.5)
    assert [pattern.pattern for pattern in found.quality.must_not] == ["[a-z]", "x"]
    assert found.reading == Reading({"prompt": "question"}, ("task", "the level"), "continue")
    assert found.retry_failed
    assert parse_options(_argv("quality: off", tmp_path)).quality.limit_share == 1.0
    plain = _argv("quality: default", tmp_path)
    assert not {"--quality", "--columns", "--keep", "--last-assistant", "--compress", "--object-store"} & {*plain}


@pytest.mark.parametrize(
    "text", ["min_tokens: 3\nscript: [han, latin]\n", '{"min_tokens": 3, "script": ["han", "latin"]}']
)
def test_quality_may_stand_in_a_file_of_its_own(tmp_path: Path, text: str) -> None:
    (tmp_path / "quality.yaml").write_text(text)
    found = parse_options(_argv("quality: quality.yaml", tmp_path))
    assert found.quality == Quality(3, script=("han", "latin"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("min_token: 3\nretries: -1\n", r"quality\.yaml:1: min_token: unknown key.*\n.*quality\.yaml:2: retries"),
        ("- 3\n", "holds no mapping"),
        ("a: [", r"quality\.yaml:1"),
        (None, "No such file"),
    ],
)
def test_what_is_wrong_in_a_quality_file_is_named_with_its_line(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "quality.yaml").write_text(text)
    with pytest.raises(InventoryError, match=rf"(?s)i\.yaml:4.*{words}"):
        _argv("quality: ./quality.yaml", tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("quality: of", "'of' is not one of default, off"),
        ("quality: {min_token: 3}", "did you mean min_tokens"),
        ("quality: {must: '('}", "is no regular expression"),
        ("columns: {question: prompt}", "unknown column; there are messages"),
        ("keep: ['a,b']", "holds a comma"),
        ("compress: gzip", "is not one of zstd"),
        ("object_store: bucket", "is no object store"),
        ("object_store: 's3://key:secret@b/x'", "a credential can't stand"),
    ],
)
def test_a_wrong_option_is_named_with_its_line(options: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match=r"i\.yaml:4") as error:
        _argv(options, tmp_path)
    assert words in str(error.value)
    assert "secret" not in str(error.value)


def test_both_sides_know_the_same_quality_options() -> None:
    assert list(QUALITY) == list(_READ) == list(json.loads(json.dumps(Quality.__dataclass_fields__, default=str)))
    assert len(PROMPT_COLUMNS) == 8
