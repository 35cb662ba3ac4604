"""A headless Chromium for the browser tests and the pictures: Debian's, driven by Playwright."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dev.programs import ROOT
from lab.packages import PackagesMissingError

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = "chromium"
LOCK = ROOT / "requirements-browser.lock"
QUIET = (
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def install_browser() -> None:
    """Install what is missing, after saying so: the Debian package, and Playwright into this environment."""
    if shutil.which(CHROMIUM) is None:
        status = subprocess.run(["sh", str(ROOT / "lab/apt-install"), CHROMIUM]).returncode
        if status:
            raise PackagesMissingError(f"missing system packages: {CHROMIUM}")
    if importlib.util.find_spec("playwright") is None:
        sys.stderr.write("inv: installing Playwright from requirements-browser.lock, about 50 MB\n")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "-r", str(LOCK)]
        subprocess.run(pip, check=True)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Chromium's own sandbox needs a user that isn't root; nothing but files of ours is opened in it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which(CHROMIUM), args=list(QUIET), chromium_sandbox=False
        )
        try:
            yield browser
        finally:
            browser.close()
