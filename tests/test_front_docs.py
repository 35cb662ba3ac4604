"""The documents hold together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_every_page_stands_in_the_index() -> None:
    index = (ROOT / "docs/README.md").read_text()
    pages = [page.name for page in ROOT.glob("docs/*.md") if page.name != "README.md"]
    assert [page for page in pages if f"({page})" not in index] == []


@pytest.mark.parametrize("page", [ROOT / "README.md", *ROOT.glob("docs/*.md")], ids=lambda page: page.name)
def test_every_verb_and_flag_in_the_documents_exists(page: Path) -> None:
    import tasks

    known = {
        name: {flag for arg in tasks.ns[name].get_arguments() for flag in arg.names} for name in tasks.ns.task_names
    }
    for verb, words in re.findall(r"(?:\./inv|\binvoke) ([a-z][a-z-]*(?:\.[a-z]+)?)([^`\n#]*)", page.read_text()):
        assert verb in known, f"{page.name}: {verb}"
        flags = re.findall(r"(?<=\s)--([a-z-]+)", words)
        assert set(flags) <= known[verb] | {"help"}, f"{page.name}: {verb} {words}"
