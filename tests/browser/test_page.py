"""The page in a real browser."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rackhand.page import Recorded, page_data, render_page
from tests.page_recordings import SECRET, recorded, samples

pytestmark = pytest.mark.slow
CONTRAST = Path(__file__).with_name("contrast.js").read_text()
INK = """() => [...document.querySelectorAll('.plot')].map((plot) => {
  const canvas = plot.querySelector('canvas');
  if (!canvas) return [plot.id, 0];
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Set();
  for (let i = 0; i < data.length; i += 4)
    if (data[i + 3] > 200) colours.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
  return [plot.id, colours.size];
})"""
REACHABLE = "button, summary, .plot, .scroll, a[href], [role=button]"
OpenPage = Callable[..., Any]


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return page_data(recorded())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_chart_draws(open_page: OpenPage, data: dict[str, Any], scheme: str) -> None:
    drawn = dict(open_page(scheme=scheme).evaluate(INK))
    wanted = {f"chart-{chart['id']}" for chart in data["charts"]} | {"chart-lengths"}
    assert set(drawn) == wanted
    assert {name: colours for name, colours in drawn.items() if colours < 10} == {}


def test_a_legend_that_nobody_points_at_shows_the_newest_values(open_page: OpenPage) -> None:
    page = open_page()
    legend = page.locator("#chart-throughput .u-legend .u-value")
    page.wait_for_function(
        "() => document.querySelector('#chart-throughput .u-legend .u-value').innerText !== '\u2013'"
    )
    before = legend.all_inner_texts()
    assert "\u2013" not in before
    page.set_viewport_size({"width": 900, "height": 800})
    page.mouse.move(450, 500)
    page.mouse.move(0, 0)
    page.wait_for_timeout(200)
    assert legend.all_inner_texts() == before


def test_the_stack_reaches_the_sum_of_the_gpus(open_page: OpenPage, data: dict[str, Any]) -> None:
    page = open_page()
    at = max(range(len(data["time"])), key=lambda i: data["host"]["tok_s"][i] or 0)
    plot = page.locator("#chart-throughput")
    plot.focus()
    page.keyboard.press("Home")
    for _ in range(at):
        page.keyboard.press("ArrowRight")
    shown = plot.locator(".u-legend .u-value").all_inner_texts()[1:]
    rates = [float(text.replace(",", "")) for text in shown]
    wanted = [data["gpu"][str(gpu)]["tok_s"][at] for gpu in reversed(data["gpus"])]
    assert rates == pytest.approx(wanted, abs=0.51)
    assert sum(rates) == pytest.approx(data["host"]["tok_s"][at], abs=len(rates))


def test_the_numbers_on_the_page_are_those_of_its_json(open_page: OpenPage) -> None:
    page = open_page()
    found = page.evaluate("""() => {
      const data = JSON.parse(document.getElementById('data').textContent);
      return [...document.querySelectorAll('[data-path]')].map((e) =>
        [e.dataset.path, e.textContent, e.dataset.path.split('.').reduce((d, key) => d[key], data), +e.dataset.digits]);
    }""")
    assert len(found) > 100
    assert any(value for _, _, value, _ in found)
    for path, text, value, digits in found:
        assert text == ("\u2013" if value is None else f"{value:,.{digits}f}"), path


def test_what_is_saved_is_the_data(open_page: OpenPage, data: dict[str, Any], tmp_path: Path) -> None:
    page = open_page(accept_downloads=True)
    for kind in ("json", "csv"):
        with page.expect_download() as waiting:
            page.click(f"#save-{kind}")
        assert waiting.value.suggested_filename == f"expansion.{kind}"
        waiting.value.save_as(tmp_path / kind)
    saved = json.loads((tmp_path / "json").read_text())
    assert saved == json.loads(json.dumps(data))
    rows = list(csv.DictReader((tmp_path / "csv").read_text().splitlines()))
    assert len(rows) == len(data["time"]) * (len(data["gpus"]) + 1)
    for gpu in (0, 7):
        read = [float(row["tok_s"]) if row["tok_s"] else None for row in rows if row["gpu"] == str(gpu)]
        assert read == data["gpu"][str(gpu)]["tok_s"]
    total = [float(row["completed"]) if row["completed"] else None for row in rows if row["gpu"] == "all"]
    assert total == data["host"]["completed"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_and_line_can_be_read(open_page: OpenPage, scheme: str) -> None:
    page = open_page(scheme=scheme)
    page.evaluate("() => document.querySelectorAll('details').forEach((d) => (d.open = true))")
    found = page.evaluate(CONTRAST)
    assert found["texts"] > 200
    assert found["faint"] == []


def test_everything_is_reached_by_keys(open_page: OpenPage, data: dict[str, Any]) -> None:
    page = open_page()
    reached, outlined = set(), True
    for _ in range(page.evaluate(f"() => document.querySelectorAll({REACHABLE!r}).length")):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("() => document.activeElement.id || document.activeElement.className"))
        outlined &= page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle !== 'none'")
    assert outlined
    assert {f"chart-{chart['id']}" for chart in data["charts"]} <= reached
    assert {"save-csv", "save-json", "skip", "scroll"} <= reached


def test_a_line_is_hidden_and_shown_by_keys(open_page: OpenPage) -> None:
    page = open_page()
    label = page.locator("#chart-running .u-legend .u-series th").nth(1)
    label.focus()
    for pressed in ("false", "true"):
        page.keyboard.press("Enter")
        assert label.get_attribute("aria-pressed") == pressed


@pytest.mark.parametrize("width", [375, 768, 1200])
def test_no_screen_scrolls_sideways(open_page: OpenPage, width: int) -> None:
    page = open_page(width=width)
    page.evaluate("() => document.querySelectorAll('details').forEach((d) => (d.open = true))")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    assert (
        page.evaluate(
            "() => Math.max(...[...document.querySelectorAll('canvas')].map((c) => c.getBoundingClientRect().right))"
        )
        <= width
    )


def test_the_charts_follow_the_window(open_page: OpenPage) -> None:
    page = open_page(width=1200)
    page.set_viewport_size({"width": 375, "height": 800})
    page.wait_for_function(
        "() => [...document.querySelectorAll('canvas')].every((c) => c.getBoundingClientRect().right <= 375)"
    )


def test_it_prints_light_and_whole(open_page: OpenPage) -> None:
    page = open_page(scheme="dark")
    seen = page.evaluate("""async () => {
      const folded = () => document.querySelectorAll('details:not([open])').length;
      const before = folded();
      dispatchEvent(new Event('beforeprint'));
      await new Promise((done) => setTimeout(done));
      const ground = getComputedStyle(document.documentElement).getPropertyValue('--ground').trim();
      const widest = Math.max(...[...document.querySelectorAll('canvas')].map((c) => c.getBoundingClientRect().width));
      const left = folded();
      dispatchEvent(new Event('afterprint'));
      const after = getComputedStyle(document.documentElement).getPropertyValue('--ground').trim();
      return [ground, widest, after, before, left, folded()];
    }""")
    assert seen[0] == "#fbfbfa"
    assert seen[1] <= 680
    assert seen[2] != seen[0]
    assert seen[3] > seen[4] == 0
    assert seen[5] == seen[3]
    page.emulate_media(media="print", color_scheme="dark")
    ground, ink = page.evaluate(
        "() => (({ backgroundColor, color }) => [backgroundColor, color])(getComputedStyle(document.body))"
    )
    assert (ground, ink) == ("rgb(255, 255, 255)", "rgb(27, 31, 36)")
    assert page.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.parametrize("count", [0, 1])
def test_little_data_makes_no_error(open_page: OpenPage, tmp_path: Path, count: int) -> None:
    told = Recorded("j", "h", samples(count), 0.0)
    file = tmp_path / "little.html"
    file.write_text(render_page(page_data(told)))
    page = open_page(file=file)
    assert page.locator(".uplot").count() == len(page_data(told)["charts"])


def test_no_secret_is_in_the_document(open_page: OpenPage) -> None:
    assert SECRET not in open_page().content()


def test_on_a_phone_each_event_is_read_whole_without_scrolling_sideways(open_page: OpenPage) -> None:
    page = open_page(width=375)
    found = page.evaluate("""() => {
      const box = document.querySelector('.events').parentElement;
      const rows = [...document.querySelectorAll('.events tbody tr')];
      const right = document.documentElement.clientWidth;
      return {
        sideways: box.scrollWidth - box.clientWidth,
        rows: rows.length,
        outside: [...document.querySelectorAll('.events tbody td')].filter((td) => {
          const r = td.getBoundingClientRect();
          return r.right > right + 0.5 || r.left < 0 || td.scrollWidth > td.clientWidth + 1;
        }).map((td) => td.textContent),
        below: rows.every((tr) => {
          const [number, , , words] = [...tr.children].map((td) => td.getBoundingClientRect());
          return words.top >= number.bottom - 1 && words.width > right * 0.7;
        }),
      };
    }""")
    assert found["rows"] > 3
    assert (found["sideways"], found["outside"], found["below"]) == (0, [], True)
    wide = open_page(width=1200)
    assert wide.evaluate("() => getComputedStyle(document.querySelector('.events tr')).display") == "table-row"
