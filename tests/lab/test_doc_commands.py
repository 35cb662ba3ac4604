"""Every command that the documents show, run on the lab in the order in which an operator would."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.lab.conftest import CHECKOUT, Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(1500)]
PAGES = (CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md")))
ORDER = ("deploy", "restart-servers", "resume", "status", "tail-metrics", "record", "diagnose", "capacity", "history")
ORDER += ("report", "compare", "prompts.check", "verify", "stop")
ELSEWHERE = re.compile(r"\./inv (-|demo|test|dev\.|docs\.|lab\.)|.*[\[|]|\./inv [A-Z]|.*--export$")
"""Those with a test of their own (the demo, the suite, the gates, the lab), and mere forms of a command."""
UNTIL_CTRL_C = re.compile(r"\./inv (tail-metrics(?!.*--once)|record(?!.*--detach))")
MAY_END = {"compare": {0, 2, 4}, "resume": {0, 3}, "resume --new": {0, 4}}
MAY_END["resume --retry-failed --retry-rejected"] = {0, 4}
"""compare: the run that the page names needn't be there, or have been steady. --new and --retry-* are refused
while the job runs."""


def documented() -> list[str]:
    """Without comments, each once, by ORDER; `mine` is the environment's inventory here."""
    found: dict[str, None] = {}
    for page in PAGES:
        text = page.read_text()
        shown = re.findall(r"(?m)^(?:    |)(\./inv [^\n`]*)", text) + re.findall(r"`(\./inv [^`]*)`", text)
        lines = [" ".join(line.partition(" #")[0].split()) for line in shown]
        found |= dict.fromkeys(line.replace(" --inventory mine", "") for line in lines)
    wanted = [line for line in found if not ELSEWHERE.match(line)]
    return sorted(wanted, key=lambda line: ORDER.index(line.split()[1]))


def test_the_documents_commands_are_found() -> None:
    assert {line.split()[1] for line in documented()} == {*ORDER}


@pytest.fixture(name="folder", scope="module")
def make_folder(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An operator's directory: inventory/mine.yaml, a prompts file, a model's config."""
    folder = tmp_path_factory.mktemp("operator")
    text = (CHECKOUT / "inventory/lab.yaml").read_text().replace("../.lab", str(lab.place.state))
    prompts = "".join(json.dumps({"prompt": f"Say {number}."}) + "\n" for number in range(400))
    (folder / "prompts.jsonl").write_text(prompts)
    (folder / "inventory").mkdir()
    mine = folder / "inventory/mine.yaml"
    mine.write_text(text.replace(str(lab.place.state / "prompts.jsonl"), str(folder / "prompts.jsonl")))
    (folder / "DIR").mkdir()
    config = next((CHECKOUT / "tests/capacity/configs").glob("*.json"))
    (folder / "DIR/config.json").write_bytes(config.read_bytes())
    return folder


def run(line: str, folder: Path) -> tuple[int, str]:
    words = shlex.split(line.replace("FILE", "prompts.jsonl").replace("NAME", "expansion"))
    words = ["0-1" if word == "0,2-4" else "0" if word == "N" else word for word in words]
    env = {**os.environ, "RACKHAND_INVENTORY": "mine", "COLUMNS": "120"}
    argv = [str(CHECKOUT / "inv"), *words[1:]]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    running = subprocess.Popen(argv, cwd=folder, env=env, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload]
    try:
        said, _ = running.communicate(timeout=8 if UNTIL_CTRL_C.match(line) else 300)
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=60)
    return running.returncode, said


def test_every_command_of_the_documents_works_as_typed(folder: Path) -> None:
    wrong = []
    for line in documented():
        code, said = run(line, folder)
        expected = (
            {130}
            if UNTIL_CTRL_C.match(line)
            else MAY_END.get(line.removeprefix("./inv "), MAY_END.get(line.split()[1], {0}))
        )
        if code not in expected or "Traceback" in said:
            wrong.append(f"$ {line}\n{said[-800:]}ended with {code}")
    socket = next((Path(os.environ["XDG_STATE_HOME"]) / "rackhand").glob("mine-*/tmux.sock"), None)
    if socket is not None:
        subprocess.run(["tmux", "-S", socket, "kill-server"], check=False)
    assert not wrong, "\n\n".join(wrong)
