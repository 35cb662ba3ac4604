"""The body of an HTTP answer, up to a limit, decompressed here.

aiohttp would decompress each piece whole: a megabyte of gzip may hold a gigabyte.
"""

from __future__ import annotations

import zlib

import aiohttp

_GZIP_OR_ZLIB = 47
_RAW = -15


class BodyError(Exception):
    """Bytes that are no body: damaged, cut, or in a coding that wasn't asked for."""


async def read_body(response: aiohttp.ClientResponse, limit: int) -> tuple[bytes, bool]:
    """What came, and whether that is all: else the first `limit` bytes, and the connection is closed."""
    headers = response.headers
    coding = headers.get("Content-Encoding", "identity").strip().lower()
    length = response.content_length
    if length is not None and length <= limit and coding == "identity" and "Transfer-Encoding" not in headers:
        return await response.read(), True
    inflate = None if coding == "identity" else _Inflate(coding)
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        data = piece if inflate is None else inflate.take(piece, limit - size + 1)
        pieces.append(data)
        size += len(data)
        if size > limit:
            response.close()
            return b"".join(pieces)[:limit], False
    if inflate is not None:
        inflate.end()
    return b"".join(pieces), True


class _Inflate:
    """gzip, also in several members, and deflate, also without its header, as some servers send it."""

    def __init__(self, coding: str) -> None:
        if coding not in ("gzip", "x-gzip", "deflate"):
            raise BodyError(f"Content-Encoding {coding[:40]}, which wasn't asked for")
        self._coding = coding
        self._begun = False
        self._member = zlib.decompressobj(_GZIP_OR_ZLIB)

    def take(self, data: bytes, limit: int) -> bytes:
        """At most `limit` bytes; more is in it when there are as many."""
        found = []
        while data and limit > 0:
            piece = self._inflate(data, limit)
            found.append(piece)
            limit -= len(piece)
            self._begun = True
            data = self._member.unconsumed_tail
            if self._member.eof:
                data = self._member.unused_data
                if data:
                    self._member = zlib.decompressobj(_GZIP_OR_ZLIB)
        return b"".join(found)

    def _inflate(self, data: bytes, limit: int) -> bytes:
        try:
            return self._member.decompress(data, limit)
        except zlib.error as error:
            if self._begun or self._coding != "deflate":
                raise BodyError(f"damaged {self._coding}: {error}") from None
        self._member = zlib.decompressobj(_RAW)
        self._begun = True
        return self._inflate(data, limit)

    def end(self) -> None:
        if self._begun and not self._member.eof:
            raise BodyError(f"its {self._coding} is cut")
