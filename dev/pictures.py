"""docs/img: pictures of the report page and of tail-metrics, from a real run on the lab."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from demo.figures import PHASES
from demo.play import OPTIONS
from demo.prompts import write_prompts
from demo.stage import Stage
from dev.browser import install_browser, open_browser
from dev.programs import ROOT
from lab import host, packages
from lab.place import Place
from rackhand.contract import from_json
from rackhand.contract.watch import Sample
from rackhand.load import load
from rackhand.program import hold_signals
from rackhand.render import screen
from rackhand.render.text import picture_of
from rackhand.tell import progress
from rackhand.trail import Trail

PICTURES = ROOT / "docs/img"
MARGIN = 12
HOLD_S = 130.0
ROWS = 8000
END_DEADLINE_S = 30.0
SHOTS = {
    "report-light.png": ("light", 1200, 1180),
    "report-dark.png": ("dark", 1200, 1180),
    "report-phone.png": ("light", 375, 812),
}
"""File → colour scheme, width and height in pixels: what is seen first."""
PARTS = {
    "report-runs.png": "section[aria-labelledby=h-runs]",
    "report-outputs.png": "section[aria-labelledby=h-outputs]",
}
"""File → the part of the page in it."""
TAIL = "tail-metrics.svg"


def write_pictures(page: str | None = None) -> int:
    """Relive the field report's two phases on the lab for HOLD_S each, record them, make the page and take the
    pictures; `page` is a page that is there already. Needs root, and no lab in this checkout."""
    install_browser()
    if page is not None:
        return _take(Path(page))
    packages.prepare_for_lab()
    with tempfile.TemporaryDirectory(prefix="rackhand-pictures-") as folder:
        environ = {**os.environ, "XDG_STATE_HOME": folder}
        with _lab() as place, _recording(environ):
            write_prompts(place.state / "prompts.jsonl", ROWS)
            _play(Path(folder, "seen.jsonl"), environ)
            draw_tail(Path(folder, "seen.jsonl"))
        made = Path(folder, "report.html")
        status = subprocess.run(_inv("report", "--output", str(made)), cwd=ROOT, env=environ).returncode
        return status or _take(made)


def draw_tail(seen: Path) -> None:
    """What tail-metrics shows of `seen`, its own --json, at the last moment that was steady."""
    events = [event for line in seen.read_text().splitlines() if (event := json.loads(line))["event"] == "sample"]
    steady = max((at for at, event in enumerate(events) if event["course"] == "steady"), default=len(events) - 1)
    trail = Trail()
    for event in events[: steady + 1]:
        trail.take(from_json(Sample, event))
    svg = picture_of(events[0]["where"], trail, load("lab", os.environ, needs_secrets=False).baselines)
    (PICTURES / TAIL).write_text(svg, encoding="utf-8")


def _play(seen: Path, environ: Mapping[str, str]) -> None:
    fleet = load("lab", os.environ)
    with screen() as told:
        stage = Stage(fleet, told, progress())
        stage.deploy()
        for phase in PHASES[:2]:
            stage.restart_servers(phase.settings)
            stage.resume(phase.concurrency)
            told.say("pictures", f"{phase.name}: {HOLD_S:.0f} s")
            with _tailing(seen, environ):
                time.sleep(HOLD_S)
            stage.stop_job()


@contextmanager
def _lab() -> Iterator[Place]:
    place = host.up(ROOT, OPTIONS)
    try:
        yield place
    finally:
        with hold_signals():
            host.down(ROOT)


@contextmanager
def _recording(environ: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    recording = subprocess.Popen(_inv("record", "--interval", "1"), cwd=ROOT, env=environ, stderr=subprocess.DEVNULL)
    try:
        yield recording
    finally:
        _end(recording)


@contextmanager
def _tailing(seen: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """What tail-metrics says meanwhile, into `seen`; another call's is replaced."""
    with seen.open("wb") as file:
        words = _inv("tail-metrics", "--json")
        tail = subprocess.Popen(words, cwd=ROOT, env=environ, stdout=file, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            _end(tail)


def _end(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(END_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _take(page: Path) -> int:
    PICTURES.mkdir(parents=True, exist_ok=True)
    with open_browser() as browser:
        for name, (scheme, width, height) in SHOTS.items():
            context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
            tab = context.new_page()
            tab.goto(page.absolute().as_uri())
            tab.screenshot(path=PICTURES / name)
            context.close()
        tab = browser.new_page(viewport={"width": 1200, "height": 1180}, color_scheme="light")
        tab.goto(page.absolute().as_uri())
        for name, part in PARTS.items():
            box = tab.locator(part).bounding_box()
            if box is not None:
                clip = {"x": 0, "y": box["y"] - MARGIN, "width": 1200, "height": box["height"] + 2 * MARGIN}
                tab.screenshot(path=PICTURES / name, full_page=True, clip=clip)
    return 0


def _inv(*words: str) -> list[str]:
    return [sys.executable, "-m", "invoke", *words]
