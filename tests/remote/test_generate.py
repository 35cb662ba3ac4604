"""The generator end to end, in processes of its own, against null servers with faults."""

from __future__ import annotations

import json
from pathlib import Path

from tests.remote.rig import Rig, nothing_lost_nothing_twice, write_prompts


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
