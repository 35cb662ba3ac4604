from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
import tomllib

from rackhand.contract import to_json
from rackhand.contract.job import VERSION, PromptsDigest, Record, plan_refusals, root_url
from remote.generator.feeding import record_line
from remote.generator.prompt_queue import Item
from remote.generator.reply import Reply
from remote.output.job_file import (
    Lock,
    RefusedError,
    observe_job,
    observe_lock,
    observe_prompts_digest,
    start_job,
)
from remote.output.state import observe_state
from remote.prompts.rows import Prompt


def test_the_generators_version_is_the_distributions() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["version"] == VERSION


def test_a_record_has_the_agreed_keys_in_order() -> None:
    reply = Reply("c", "r", None, "stop", {"prompt_tokens": 1}, "m")
    line = record_line("http://a:1", Item(Prompt(3, "x", [{"role": "user", "content": "p"}]), sent=2), reply, 1.5)
    assert list(json.loads(line)) == [field.name for field in dataclasses.fields(Record)]
    assert line.startswith(b'{"index":3,')
    assert line.endswith(b"}\n")


@pytest.mark.parametrize("url", ["http://a:1", "http://a:1/", "http://a:1/v1", "http://a:1/v1/"])
def test_a_server_is_known_by_its_root(url: str) -> None:
    assert root_url(url) == "http://a:1"


def test_a_big_prompts_file_is_known_by_samples_from_first_to_last(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    with path.open("wb") as file:
        file.truncate(80 << 20)
    before = observe_prompts_digest(path)
    assert not before.whole
    for at in (0, (80 << 20) - 1):
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"x")
        after = observe_prompts_digest(path)
        assert after != before
        before = after


def test_state_is_observed_without_changing_anything(tmp_path: Path) -> None:
    assert not observe_state(tmp_path / "nowhere").exists
    (tmp_path / ".done_indices").write_text("1\n2\n3")
    assert (observe_state(tmp_path).finished, observe_state(tmp_path).pid) == (2, None)
    lock = Lock(tmp_path)
    digest = PromptsDigest(5, "ab", whole=True)
    job, notes = start_job(tmp_path, tmp_path / "p", digest, {"top_p": 1}, shard=(0, 1), model=None)
    assert notes[0].startswith("2 finished indices imported")
    state = observe_state(tmp_path)
    assert (state.pid, state.job, state.progress, state.problem) == (os.getpid(), job, None, "")
    assert json.loads(json.dumps(to_json(state)))["job"]["imported"] == 2
    with pytest.raises(RefusedError, match=f"pid {os.getpid()}"):
        Lock(tmp_path)
    lock.release()
    assert observe_lock(tmp_path) is None
    assert plan_refusals(job, digest, {"top_p": 1}, 1) == []
    (tmp_path / "job.json").write_text("{")
    with pytest.raises(RefusedError, match="can't be read"):
        observe_job(tmp_path)
    assert "can't be read" in observe_state(tmp_path).problem
