from __future__ import annotations

import re
from pathlib import Path

import pytest

from rackhand.contract.files import Platform
from rackhand.errors import PreconditionError
from rackhand.pins import LOCK, pins_for

LINUX = Platform("3.11.2", "/usr/bin/python3", "x86_64", "glibc 2.36")
TEXT = """\
always==1.0 \\
    --hash=sha256:aa
old==2.0 ; python_full_version < '3.11' \\
    --hash=sha256:bb
new==3.0 ; python_full_version >= '3.11' \\
    --hash=sha256:cc \\
    --hash=sha256:dd
"""


@pytest.mark.parametrize(
    ("python", "names"), [("3.10.4", "always old"), ("3.11.0", "always new"), ("3.13.1", "always new")]
)
def test_a_marker_decides_by_the_containers_python(python: str, names: str) -> None:
    pins = pins_for(Platform(python, "p", "x86_64", "glibc 2.31"), "h", TEXT)
    assert re.findall(r"^\w+", pins.text, re.MULTILINE) == names.split()
    assert ";" not in pins.text
    assert pins.text.count("--hash") == pins.text.count("sha256")


def test_the_digest_names_the_pins_and_the_platform() -> None:
    digests = {
        pins_for(platform, "h", text).digest
        for platform in (LINUX, Platform("3.12.2", "p", "x86_64", "glibc 2.36"))
        for text in (TEXT, TEXT.replace("aa", "ee"))
    }
    assert len(digests) == 4
    assert pins_for(LINUX, "h", TEXT) == pins_for(Platform("3.11.9", "q", "x86_64", "glibc 2.36"), "h", TEXT)


def test_platform_tags_reach_from_the_containers_glibc_down() -> None:
    tags = pins_for(LINUX, "h", TEXT).target.platforms
    assert tags[0] == "manylinux_2_36_x86_64"
    assert tags[-2:] == ("manylinux_2_17_x86_64", "manylinux2014_x86_64")


@pytest.mark.parametrize(
    "platform",
    [
        Platform("3.11.2", "p", "x86_64", "musl"),
        Platform("3.11.2", "p", "riscv64", "glibc 2.36"),
        Platform("3.11.2", "p", "x86_64", "glibc 2.36", "pypy"),
    ],
)
def test_a_platform_without_pinned_wheels_is_a_precondition(platform: Platform) -> None:
    with pytest.raises(PreconditionError, match=r"pve1/ct200: no wheels for .*; set hosts.pve1.python"):
        pins_for(platform, "pve1/ct200", TEXT)


def test_both_lock_files_pin_the_same_versions() -> None:
    def pinned(text: str) -> set[str]:
        return set(re.findall(r"^([a-z-]+==[\w.]+)", text, re.MULTILINE))

    remote = pinned(pins_for(LINUX, "h").text)
    assert {name.partition("==")[0] for name in remote} >= {"aiohttp", "orjson", "uvloop", "yarl"}
    assert remote <= pinned(Path(LOCK.parent, "requirements.lock").read_text())


@pytest.mark.parametrize("minor", [10, 11, 12, 13, 14])
def test_the_shipped_pins_cover_every_python(minor: int) -> None:
    text = pins_for(Platform(f"3.{minor}.0", "p", "x86_64", "glibc 2.31"), "h").text
    names = re.findall(r"^([\w-]+)==", text, re.MULTILINE)
    assert len(names) == len(set(names))
    assert ("async-timeout" in names) == (minor == 10)
