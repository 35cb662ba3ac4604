"""Secrets out of a byte stream, line by line: SGLang prints its API key in clear (server_args)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from rackhand.contract.servers import SECRETS_FILE

BLANK = b"<secret>"
LONGEST_LINE = 1 << 20
"""Bytes without a line end after which a piece is passed on anyway."""

_KEYS = re.compile(rb"((?:admin_)?api_key['\"]?\s*[=:]\s*)(?:'[^'\n]*'|\"[^\"\n]*\")")


def read_values(directory: Path) -> dict[str, bytes]:
    """secrets.env (KEY='value' lines) as names and values; empty when the file is missing."""
    try:
        lines = (directory / SECRETS_FILE).read_bytes().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(b"=") for line in lines if b"=" in line)
    return {name.decode("ascii", "replace").strip(): _unquote(value.strip()) for name, _, value in pairs}


def read_secrets(directory: Path) -> tuple[bytes, ...]:
    """The values alone, longest first, so that none hides a part of another."""
    return tuple(sorted(filter(None, read_values(directory).values()), key=len, reverse=True))


def redact(data: bytes, secrets: Iterable[bytes]) -> bytes:
    for secret in secrets:
        data = data.replace(secret, BLANK)
    return _KEYS.sub(rb"\1'" + BLANK + b"'", data)


class Redactor:
    """Feeds on chunks, gives whole lines with secrets blanked; `flush` gives the unfinished rest."""

    def __init__(self, secrets: tuple[bytes, ...]) -> None:
        self._secrets = secrets
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        data = self._held + chunk
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not cut and len(data) > LONGEST_LINE:
            data = redact(data, self._secrets)
            cut = len(data) - max(map(len, self._secrets), default=0)
        self._held = data[cut:]
        return redact(data[:cut], self._secrets) if cut else b""

    def flush(self) -> bytes:
        rest, self._held = self._held, b""
        return redact(rest, self._secrets)


def _unquote(value: bytes) -> bytes:
    """The shell's single quotes off: 'it'"'"'s' and 'it'\\''s' are it's."""
    return re.sub(rb"'([^']*)'|\"([^\"]*)\"|\\(.)", lambda m: m[1] or m[2] or m[3] or b"", value)
