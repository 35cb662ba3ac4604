"""The demo's output in README.md, from a real run."""

from __future__ import annotations

import os
import subprocess
import sys

from dev.programs import ROOT

BEGIN, END = "<!-- demo: written by ./inv docs.demo -->", "<!-- end of demo -->"


def with_output(text: str, output: str) -> str:
    """`text` with `output` between the marks, as a code block. ValueError when a mark is missing."""
    head, found, rest = text.partition(BEGIN)
    _, closed, tail = rest.partition(END)
    if not (found and closed):
        raise ValueError(f"README.md lacks {BEGIN} or {END}")
    return f"{head}{BEGIN}\n```text\n$ ./inv demo\n{output.rstrip()}\n```\n{END}{tail}"


def write_demo_output() -> int:
    """Run the demo and put what it prints into README.md; a demo that fails changes nothing. Returns its exit code."""
    env = {**os.environ, "COLUMNS": "110", "NO_COLOR": "1"}
    start = [sys.executable, "-m", "invoke", "demo"]
    ran = subprocess.run(start, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    if ran.returncode == 0:
        readme = ROOT / "README.md"
        readme.write_text(with_output(readme.read_text(), ran.stdout))
    return ran.returncode
