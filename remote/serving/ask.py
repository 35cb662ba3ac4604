"""One HTTP request to a server on this machine, with a deadline for each read and no proxy."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rackhand.contract.servers import API_KEY
from remote.redirects import words_of_redirect
from remote.serving.redact import read_values

LARGEST_ANSWER = 4 << 20


@dataclass(frozen=True)
class Answer:
    """`status` 0: no answer; then `text` says why (refused, no answer in N s ...). A redirect's text is its words."""

    status: int
    text: str

    @property
    def moved(self) -> bool:
        return 300 <= self.status < 400

    @property
    def refused(self) -> bool:
        return self.status == 0 and self.text == "connection refused"


def read_api_key(secrets: Path) -> str | None:
    """RACKHAND_API_KEY of secrets.env."""
    value = read_values(secrets).get(API_KEY)
    return value.decode() if value else None


def ask(url: str, path: str, *, timeout_s: float, key: str | None = None, body: object = None) -> Answer:
    """GET, or POST when there is a body. Never raises for what the network or the server does."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=timeout_s)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request("GET" if data is None else "POST", path, body=data, headers=headers)
        response = connection.getresponse()
        if 300 <= response.status < 400:
            return Answer(response.status, words_of_redirect(response.status, response.getheader("Location") or ""))
        return Answer(response.status, response.read(LARGEST_ANSWER).decode("utf-8", "replace"))
    except ConnectionRefusedError:
        return Answer(0, "connection refused")
    except TimeoutError:
        return Answer(0, f"no answer in {timeout_s:.0f} s")
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, f"{type(error).__name__}: {error}".rstrip(": "))
    finally:
        connection.close()
