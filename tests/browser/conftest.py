from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dev.browser import open_browser
from rackhand.page import page_data, render_page
from tests.page_recordings import recorded


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with open_browser() as found:
        yield found


@pytest.fixture(scope="session")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "run.html"
    path.write_text(render_page(page_data(recorded())), encoding="utf-8")
    return path


@pytest.fixture
def open_page(browser: Any, page_file: Path) -> Iterator[Callable[..., Any]]:
    """Opens the page; at the end of the test it must have told nothing on the console and asked for nothing."""
    told: list[str] = []
    contexts = []

    def open_page(*, width: int = 1200, scheme: str = "light", file: Path = page_file, **more: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: told.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: told.append(f"error: {error}"))
        page.on("request", lambda request: told.append(request.url) if request.url.startswith("http") else None)
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert told == []
