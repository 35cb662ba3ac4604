from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from rackhand.page import Mark, Recorded, page_data, render_page
from rackhand.page.document import embedded, lasting, yaml_like
from tests.page_recordings import SECRET, recorded, samples


class Loads(HTMLParser):
    """What the elements of a page name as places to get something from."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        places = ("src", "href", "srcset", "action", "data")
        self.found += [f"{tag} {value}" for name, value in attrs if name in places]


@pytest.fixture(scope="module")
def text() -> str:
    return render_page(page_data(recorded()))


def test_the_page_asks_for_nothing_from_anywhere(text: str) -> None:
    loads = Loads()
    loads.feed(text)
    assert loads.found == ["link data:,", "a #main"]
    assert "default-src 'none'" in text
    assert not re.search(r"@import|url\(", text)


def test_the_library_keeps_its_licence(text: str) -> None:
    assert "The MIT License (MIT)" in text
    assert "uPlot (v1.6.32)" in text


def test_the_embedded_json_is_the_data(text: str) -> None:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    assert json.loads(found.group(1)) == page_data(recorded())


def test_no_secret_is_on_the_page(text: str) -> None:
    assert SECRET not in text


def test_the_same_data_gives_the_same_page(text: str) -> None:
    assert render_page(page_data(recorded())) == text


@pytest.mark.parametrize(
    "run", [Recorded("j", "h", [], 0.0), Recorded("j", "h", samples(1), 0.0), Recorded("j", "h", samples(9), 0.0)]
)
def test_a_page_is_made_of_little_too(run: Recorded) -> None:
    text = render_page(page_data(run))
    assert "<h2" in text
    assert ("Nothing was recorded yet" in text) == (not run.samples)


def test_words_from_logs_stay_words() -> None:
    evil = "</script><script>alert(1)</script><!--"
    run = Recorded(evil, "h", samples(3), 0.0, marks=(Mark(1001.0, "trouble", evil),), inventory={"a": evil})
    text = render_page(page_data(run))
    assert "<script>alert" not in text
    assert text.count("<!--") == 1


def test_unknown_is_null_and_never_nan() -> None:
    assert embedded({"a": None}) == '{"a":null}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        embedded({"a": float("nan")})


@pytest.mark.parametrize(("seconds", "told"), [(None, "\u2013"), (59.6, "1 min 00 s"), (3661, "1 h 01 min")])
def test_spans_are_told_in_words(seconds: float | None, told: str) -> None:
    assert lasting(seconds) == told


def test_nested_values_are_told_as_indented_lines() -> None:
    assert yaml_like({"a": {"b": 1, "c": [1, 2]}, "d": [{"e": "f"}]}) == "a:\n  b: 1\n  c: 1, 2\nd:\n  -\n    e: f"
