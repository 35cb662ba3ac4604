"""HTTP to OpenAI-style servers: one request, one answer. aiohttp; uvloop where it is there.

One session for all servers, without a limit of its own: slots are the caller's. A connection isn't kept as long as
uvicorn's 5 s, so that no request goes into one that the server is closing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, cast

import aiohttp

from remote import fastjson
from remote.generator.body import BodyError, read_body
from remote.generator.endpoint import Load, parse_loads, parse_server_info
from remote.generator.reply import Reply, TroubleError, flawed, parse_reply

_KEEPALIVE_S = 4.0
_CONNECT_S = 10.0
_ASK_S = 5.0
_SWEEP_S = 0.2
_JSON = {"Content-Type": "application/json"}
_NO_ANSWER = (aiohttp.ClientError, OSError, asyncio.TimeoutError, BodyError)
_ERROR_BYTES = 64 << 10
_FACTS_BYTES = 8 << 20


class HttpClient:
    """Made inside a running loop, closed by `close`. The API key goes into one header and nowhere else.

    Completions' deadlines are looked at five times a second, all at once: a timer a request costs a tenth of it.
    """

    def __init__(self, *, api_key: str = "", max_answer_bytes: int) -> None:
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            trust_env=False,
            read_bufsize=1 << 20,
            headers=headers,
            auto_decompress=False,
        )
        self._max_answer_bytes = max_answer_bytes
        self._loop = asyncio.get_running_loop()
        self._deadlines: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    async def close(self) -> None:
        self._sweeper.cancel()
        await self._session.close()

    async def complete(self, server: str, body: bytes, timeout_s: float) -> Reply:
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._deadlines[task] = self._loop.time() + timeout_s
        try:
            status, headers, data, whole = await self._post(f"{server}/v1/chat/completions", body)
        except asyncio.CancelledError:
            if task not in self._late or _still_cancelled(task):
                raise
            raise TroubleError("timeout", f"no answer in {timeout_s:.0f} s") from None
        finally:
            del self._deadlines[task]
            self._late.discard(task)
        if not whole and status == 200:
            return flawed(("large", f"answer over {self._max_answer_bytes / (1 << 20):g} MiB"))
        return parse_reply(status, data, headers, time.time())

    def _sweep(self) -> None:
        now = self._loop.time()
        for task, deadline in self._deadlines.items():
            if deadline <= now and task not in self._late:
                self._late.add(task)
                task.cancel()
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    async def _post(self, url: str, body: bytes) -> tuple[int, Mapping[str, str], bytes, bool]:
        """Status, headers, body, and whether the body is whole."""
        try:
            response = await self._session.post(url, data=body, headers=_JSON, allow_redirects=False)
            # Read to its end or not, it gives its connection back by itself.
            limit = self._max_answer_bytes if response.status == 200 else _ERROR_BYTES
            return (response.status, response.headers, *await read_body(response, limit))
        except aiohttp.ServerTimeoutError:
            raise TroubleError("connect", f"no connection in {_CONNECT_S:.0f} s") from None
        except aiohttp.ClientConnectorError as error:
            raise TroubleError("connect", str(error.os_error)) from None
        except aiohttp.InvalidURL:
            raise TroubleError("connect", "not a URL") from None
        except BodyError as error:
            raise TroubleError("bad_body", str(error)) from None
        except (aiohttp.ClientError, OSError) as error:
            raise TroubleError("cut", str(error) or type(error).__name__) from None

    async def observe_load(self, server: str) -> Load | None:
        try:
            loads = parse_loads(await self._ask(f"{server}/v1/loads"))
            if loads.capacity is None:
                loads = parse_server_info(await self._ask(f"{server}/server_info"), loads)
        except _NO_ANSWER:
            return None
        return loads

    async def observe_health(self, server: str) -> bool:
        """SGLang's /health generates a token, which may take its 20 s and never less than one."""
        try:
            timeout = aiohttp.ClientTimeout(total=25.0)
            async with self._session.get(f"{server}/health", timeout=timeout, allow_redirects=False) as response:
                return response.status == 200
        except _NO_ANSWER:
            return False

    async def observe_model(self, server: str) -> str | None:
        """The name of the first model served, None when it can't be read."""
        try:
            data = await self._ask(f"{server}/v1/models")
        except _NO_ANSWER:
            return None
        try:
            name = data["data"][0]["id"]
        except (KeyError, IndexError, TypeError):
            return None
        return name if isinstance(name, str) else None

    async def _ask(self, url: str) -> Any:
        """Decoded JSON, None when the answer isn't one."""
        timeout = aiohttp.ClientTimeout(total=_ASK_S)
        async with self._session.get(url, timeout=timeout, allow_redirects=False) as response:
            data, whole = await read_body(response, _FACTS_BYTES)
            if response.status != 200 or not whole:
                return None
        try:
            return fastjson.loads(data)
        except ValueError:
            return None


def _still_cancelled(task: asyncio.Task[Any]) -> bool:
    """After the deadline's cancellation is taken back: does somebody else's stand? Python 3.10 doesn't count them."""
    uncancel = getattr(task, "uncancel", None)
    return uncancel is not None and uncancel() > 0
