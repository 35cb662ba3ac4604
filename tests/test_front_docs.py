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


def test_every_promise_of_the_security_page_names_tests_that_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "SECURITY.md").read_text()))
    there = {name for path in ROOT.glob("tests/**/*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert named and named <= there
    rows = (ROOT / "SECURITY.md").read_text().partition("| promise | test |")[2].partition("\n\n")[0].splitlines()[2:]
    assert [row for row in rows if "`test_" not in row] == []


def test_the_architecture_picture_is_the_one_that_the_command_draws() -> None:
    from dev.architecture_picture import picture

    assert (ROOT / "docs/architecture.svg").read_text() == picture()


def message_pieces() -> list[str]:
    """What the troubleshooting page says is printed: the parts between the dots of its first column's code."""
    rows = re.findall(r"(?m)^\| (.*?) \|", (ROOT / "docs/troubleshooting.md").read_text())
    told = [code for cell in rows for code in re.findall(r"`([^`]+)`", cell)]
    pieces = {piece.strip(" :;,()") for code in told for piece in code.split("...")}
    return sorted(piece for piece in pieces if len(piece) > 3)


@pytest.mark.parametrize("piece", message_pieces())
def test_the_troubleshooting_page_quotes_what_is_printed(piece: str) -> None:
    sources = "".join(path.read_text() for top in ("rackhand", "remote") for path in sorted((ROOT / top).rglob("*.py")))
    system = ("Connection refused", "CUDA out of memory")
    assert piece in system or piece in re.sub(r'"\n\s+f?"', "", sources)
