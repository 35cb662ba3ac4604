"""The HTTP side: generation endpoints, health, information, keys, access lines."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from . import openai
from .batch import QueueFullError, Request
from .info import add_information
from .life import Life
from .openai import Ask, BadRequestError
from .words import Answer, Lengths, make_answer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
STREAM_FLUSH_S = 0.05
ADMIN_PATHS = {"/flush_cache", "/abort_request", "/pause_generation", "/continue_generation", "/freeze_gc"}


def make_app(life: Life) -> web.Application:
    """The application of one server."""
    app = web.Application(middlewares=[_access(life), _keys(life)], client_max_size=256 * 2**20)
    endpoints = Generation(life)
    app.router.add_post("/v1/chat/completions", endpoints.chat)
    app.router.add_post("/v1/completions", endpoints.completions)
    app.router.add_post("/generate", endpoints.generate)
    app.router.add_get("/health", lambda _: _health(life))
    app.router.add_get("/health_generate", lambda _: _health(life))
    add_information(app, life)
    return app


def answer_json(body: Any, status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


class Generation:
    """The three endpoints that make tokens."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._lengths = Lengths(life.mean_tokens, life.length_sigma)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        return await self._serve(request, openai.parse_chat)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        return await self._serve(request, openai.parse_completion)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """POST /generate."""
        return await self._serve(request, openai.parse_generate)

    async def _serve(self, http: web.Request, parse: Callable[[dict[str, Any], str], Ask]) -> web.StreamResponse:
        args = self._life.args
        try:
            ask = parse(openai.parse_json(await http.read(), http.path), args.served_model_name)
            most = openai.check_length(ask, self._life.loaded.context_len)
        except BadRequestError as bad:
            return answer_json(bad.body, 400)
        answer = make_answer(
            ask.prompt,
            seed=ask.seed,
            lengths=self._lengths,
            max_tokens=most,
            thinking=ask.thinking,
            endless=ask.endless,
        )
        rid = openai.new_id()
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        work = Request(ask.prompt_tokens, answer.tokens, most, done)
        try:
            trouble = self._life.enter(rid, work)
        except QueueFullError:
            return await self._refuse(http, ask)
        if trouble:
            return answer_json(openai.error_body("Internal Server Error", "InternalServerError", 500), 500)
        try:
            if ask.stream:
                return await self._stream(http, ask, rid, answer, work)
            started = time.monotonic()
            if not await done:
                return answer_json(openai.error_body("Request aborted", "abort", 499), 400)
            self._life.observe_latency(time.monotonic() - started, work)
            return answer_json(self._body(ask, rid, answer, time.monotonic() - started))
        except asyncio.CancelledError:
            self._life.scheduler.abort(work)
            raise
        finally:
            self._life.in_flight.pop(rid, None)

    def _body(self, ask: Ask, rid: str, answer: Answer, latency_s: float) -> dict[str, Any]:
        args = self._life.args
        cached = 0 if args.enable_cache_report else None
        if ask.kind == "chat":
            tool = bool(args.tool_call_parser)
            return openai.chat_body(ask, rid, answer, cached, parsed=bool(args.reasoning_parser), tool=tool)
        if ask.kind == "text":
            return openai.text_body(ask, rid, answer, cached)
        return openai.generate_body(ask, rid, answer, 0, latency_s)

    async def _refuse(self, http: web.Request, ask: Ask) -> web.StreamResponse:
        text = "The request queue is full."
        if not ask.stream:
            return answer_json(openai.error_body(text, "503", 503), 503)
        response = await _open_stream(http)
        await _send(response, {"error": openai.error_body(text, "SERVICE_UNAVAILABLE", 503)})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _stream(self, http: web.Request, ask: Ask, rid: str, answer: Answer, work: Request) -> web.StreamResponse:
        """Chunks as the tokens come; a token's chunk is sent once its step is over."""
        response = await _open_stream(http)
        parsed = bool(self._life.args.reasoning_parser)
        if ask.kind == "chat":
            chunks = list(openai.chat_chunks(ask, rid, answer, parsed=parsed))
        else:
            chunks = [self._body(ask, rid, answer, 0.0)]
        sent = 0
        while not work.done.done():
            await asyncio.wait([work.done], timeout=STREAM_FLUSH_S)
            ready = len(chunks) if work.done.done() else self._life.scheduler.produced_tokens(work)
            for chunk in chunks[sent : min(ready, len(chunks) - 1)]:
                await _send(response, chunk)
            sent = max(sent, min(ready, len(chunks) - 1))
        for chunk in chunks[sent:]:
            await _send(response, chunk)
        if ask.include_usage:
            cached = 0 if self._life.args.enable_cache_report else None
            tail = {**chunks[-1], "choices": [], "usage": openai.usage(ask, answer, cached)}
            await _send(response, tail)
        await response.write(b"data: [DONE]\n\n")
        return response


async def _open_stream(http: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(http)
    return response


async def _send(response: web.StreamResponse, chunk: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n")


async def _health(life: Life) -> web.Response:
    """503 while warming up or draining; else 200 after a second, when something still comes out of the scheduler."""
    if life.draining:
        life.lines.info("Health check request received during shutdown. Returning 503.")
        return web.Response(status=503)
    if not life.up:
        return web.Response(status=503)
    probe = None
    if not life.scheduler.running and not life.scheduler.queue and not life.scheduler.frozen:
        probe = Request(1, 1, 1, asyncio.get_running_loop().create_future())
        life.scheduler.submit(probe)
    await asyncio.sleep(1.0 * life.scale)
    life.unhealthy = False
    return web.Response(status=200)


def _access(life: Life) -> Any:
    quiet = tuple(life.args.uvicorn_access_log_exclude_prefixes or ())

    @web.middleware
    async def access(request: web.Request, handler: Handler) -> web.StreamResponse:
        outcome = "500 Internal Server Error"
        try:
            response = await handler(request)
            outcome = f"{response.status} {response.reason}"
            return response
        except web.HTTPException as problem:
            outcome = f"{problem.status} {problem.reason}"
            return answer_json({"detail": problem.reason}, problem.status)
        finally:
            if not request.path.startswith(quiet):
                peer = request.transport.get_extra_info("peername") if request.transport else None
                host, port = peer[:2] if peer else ("127.0.0.1", 0)
                life.lines.uvicorn(f'{host}:{port} - "{request.method} {request.path_qs} HTTP/1.1" {outcome}')

    return access


def _keys(life: Life) -> Any:
    @web.middleware
    async def keys(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith(("/health", "/metrics")) or request.method == "OPTIONS":
            return await handler(request)
        wanted = life.args.api_key
        if request.path in ADMIN_PATHS:
            wanted = life.args.admin_api_key or wanted
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if wanted and not (scheme.lower() == "bearer" and hmac.compare_digest(given, wanted)):
            return answer_json({"error": "Unauthorized"}, 401)
        return await handler(request)

    return keys
