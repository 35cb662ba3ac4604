"""A server that answers with a redirect, as the probes and the watch see it: named, not followed, not waited for."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from rackhand.engines import engine
from remote.serving.ask import ask
from remote.serving.probe import observe_server
from remote.watching.endpoints import Endpoints

ASKED: list[str] = []


class _Elsewhere(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ASKED.append(self.path)
        self.send_response(307)
        self.send_header("Location", "http://elsewhere.test/x?key=secret")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    ASKED.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_probe_names_where_a_redirect_leads(url: str) -> None:
    probe = observe_server(engine("sglang"), url, None, 5.0)
    assert not probe.healthy
    assert probe.text == "HTTP 307 to http://elsewhere.test/x, which isn't followed; name the server's own URL"
    assert len(ASKED) == 1
    assert ask(url, "/health", timeout_s=5.0).moved


def test_a_watch_asks_a_path_that_is_redirected_no_more_for_a_while(url: str) -> None:
    stop = threading.Event()
    endpoints = Endpoints(url, engine("sglang"), interval_s=0.01, key=None, stop=stop)
    endpoints._look()
    first = len(ASKED)
    endpoints._look()
    assert 0 < first == len(ASKED)
    assert endpoints.moved.startswith("HTTP 307 to http://elsewhere.test/x,")
