from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote_servers.site import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "a container")
    yield site
    site.close()
