"""The generator end to end, in processes of its own, against null servers with faults."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.remote.rig import ROOT, Rig, nothing_lost_nothing_twice, write_prompts


def test_all_prompts_are_completed_and_a_resume_asks_nothing(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 300)
    with Rig(tmp_path, ports=3) as rig:
        assert rig.generate(prompts) == 0
        asked = rig.requests()
        assert rig.generate(prompts) == 0
        assert rig.requests() == asked == 300
    nothing_lost_nothing_twice(rig.output, 300)
    progress = json.loads((rig.output / "progress.json").read_text())
    assert (progress["status"], progress["completed_before"], progress["completed"]) == ("done", 300, 0)
    assert "300 already done, resuming" in rig.log


def test_without_uvloop_and_orjson_the_records_are_the_same(tmp_path: Path) -> None:
    text = "\u2028 \u00e9 \U0001f600 \x00 "
    prompts = write_prompts(tmp_path, 40, lambda i: f"{text}{i}")
    hidden = "import sys; sys.modules.update(orjson=None, uvloop=None); from remote.cli import main; "
    hidden += "sys.exit(main(sys.argv[1:]))"
    with Rig(tmp_path, ports=1) as rig:
        argv = rig.argv(prompts)
        done = subprocess.run([argv[0], "-c", hidden, *argv[3:]], cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert rig.generate(prompts) == 0
        assert rig.requests() == 40
    nothing_lost_nothing_twice(rig.output, 40)


def test_bad_lines_are_named_by_number_and_stop_nothing(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\n{"prompt": \n{"prompt": "\xff"}\n{"prompt": "b"}')
    with Rig(tmp_path, ports=1) as rig:
        assert rig.generate(prompts) == 3
        progress = rig.progress()
    nothing_lost_nothing_twice(rig.output, [0, 4])
    assert (progress["total"], progress["bad_lines"], progress["eta_hours"]) == (4, 2, 0.0)
    assert progress["input"] == {"bom": 1, "blank": 1, "crlf": 1, "not_json": 1, "not_utf8": 1, "unended": 1}
    assert "lines that end with CRLF, which is fine: 1; the last line has no newline" in rig.log
    assert progress["bad_line_numbers"] == [3, 4]
    assert "2 lines could not be read (lines 3, 4)" in rig.log


def test_the_api_key_is_sent_and_written_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACKHAND_API_KEY", "sesame-7")
    prompts = write_prompts(tmp_path, 5)
    with Rig(tmp_path, "--key", "sesame-7", ports=1) as rig:
        assert rig.generate(prompts) == 0
        assert "sesame-7" not in rig.log
    assert not [path for path in rig.output.iterdir() if b"sesame-7" in path.read_bytes()]
    monkeypatch.setenv("RACKHAND_API_KEY", "wrong")
    other = tmp_path / "other"
    other.mkdir()
    with Rig(other, "--key", "sesame-7", ports=1) as rig:
        assert rig.generate(prompts) == 1
        assert "check the API key" in rig.log
