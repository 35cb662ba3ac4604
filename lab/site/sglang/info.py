"""The endpoints that tell about a server: models, sizes, loads, cache and abort."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from typing import Any

import orjson
from aiohttp import web

from . import __version__
from .life import Life
from .loading import GRAPH_GIB
from .metrics import render_metrics

CREATED = int(time.time())


def add_information(app: web.Application, life: Life) -> None:
    """Adds the endpoints; /metrics only with --enable-metrics."""
    plain: dict[str, Callable[[Life], Any]] = {
        "/v1/models": _models,
        "/model_info": _model_info,
        "/server_info": _server_info,
        "/v1/loads": _loads,
    }
    old = {"/get_model_info": "/model_info", "/get_server_info": "/server_info"}
    for path, body in plain.items():
        app.router.add_get(path, _answering(life, body))
    for path, new in old.items():
        app.router.add_get(path, _answering(life, plain[new], note=(path, new)))
    app.router.add_get("/get_load", _answering(life, _old_load, note=("/get_load", "/v1/loads")))
    app.router.add_route("GET", "/flush_cache", lambda _: _flush(life))
    app.router.add_post("/flush_cache", lambda _: _flush(life))
    app.router.add_post("/abort_request", lambda request: _abort(life, request))
    if life.args.enable_metrics:
        app.router.add_get("/metrics", lambda _: _metrics(life))


def _answering(
    life: Life, body: Callable[[Life], Any], note: tuple[str, str] | None = None
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        if note:
            life.lines.warning(
                f"Endpoint '{note[0]}' is deprecated and will be removed in a future version. "
                f"Please use '{note[1]}' instead."
            )
        text = orjson.dumps(body(life), option=orjson.OPT_NON_STR_KEYS)
        return web.Response(body=text, content_type="application/json")

    return answer


def _models(life: Life) -> dict[str, Any]:
    card = {
        "id": life.args.served_model_name,
        "object": "model",
        "created": CREATED,
        "owned_by": "sglang",
        "root": life.args.served_model_name,
        "parent": None,
        "max_model_len": life.loaded.context_len,
    }
    return {"object": "list", "data": [card]}


def _model_info(life: Life) -> dict[str, Any]:
    return {
        "model_path": life.args.model_path,
        "tokenizer_path": life.args.tokenizer_path,
        "is_generation": True,
        "preferred_sampling_params": life.args.preferred_sampling_params,
        "weight_version": "default",
        "has_image_understanding": True,
        "has_audio_understanding": False,
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
    }


def _memory(life: Life) -> dict[str, Any]:
    return {
        "weight": round(life.loaded.model.weights_gib, 2),
        "kvcache": round(2 * life.loaded.capacity.kv_each_gib, 2),
        "token_capacity": life.loaded.capacity.kv_tokens,
        "graph": GRAPH_GIB,
    }


def _server_info(life: Life) -> dict[str, Any]:
    args = vars(life.args)
    state = {
        **args,
        "max_mamba_cache_size": life.loaded.capacity.slots,
        "last_gen_throughput": life.scheduler.gen_throughput,
        "memory_usage": _memory(life),
        "effective_max_running_requests_per_dp": life.loaded.capacity.max_running_requests,
    }
    if life.loaded.limits.draft_tokens:
        state["avg_spec_accept_length"] = life.loaded.limits.accept_length
    return {
        **args,
        "max_total_num_tokens": life.loaded.capacity.kv_tokens,
        "max_req_input_len": min(life.loaded.context_len, life.loaded.capacity.kv_tokens) - 6,
        "internal_states": [state],
        "version": __version__,
    }


def _loads(life: Life) -> dict[str, Any]:
    scheduler, limits = life.scheduler, life.loaded.limits
    used, metered = scheduler.used_tokens, bool(life.args.enable_metrics)
    load = {
        "dp_rank": 0,
        "num_running_reqs": len(scheduler.running),
        "num_waiting_reqs": len(scheduler.queue),
        "num_used_tokens": used,
        "num_total_tokens": used + scheduler.pending_tokens,
        "max_total_num_tokens": limits.kv_tokens,
        "token_usage": round(max(used / limits.kv_tokens, scheduler.slots_held / limits.slots), 4),
        "gen_throughput": round(scheduler.gen_throughput, 2) if metered else 0.0,
        "cache_hit_rate": round(scheduler.cache_hit_rate, 4) if metered else 0.0,
        "utilization": 0.0,
        "max_running_requests": limits.running,
        "memory": {
            "weight_gb": round(life.loaded.model.weights_gib, 3),
            "kv_cache_gb": round(2 * life.loaded.capacity.kv_each_gib, 3),
            "graph_gb": GRAPH_GIB,
            "token_capacity": limits.kv_tokens,
        },
        "queues": {"waiting": len(scheduler.queue), "grammar": 0, "paused": 0, "retracted": 0},
        "num_total_reqs": len(scheduler.running) + len(scheduler.queue),
    }
    aggregate = {
        "total_running_reqs": load["num_running_reqs"],
        "total_waiting_reqs": load["num_waiting_reqs"],
        "total_reqs": load["num_total_reqs"],
        "avg_token_usage": load["token_usage"],
        "avg_throughput": load["gen_throughput"],
        "avg_utilization": 0.0,
    }
    return {
        "timestamp": datetime.now(timezone.utc).isoformat(),
        "version": __version__,
        "dp_rank_count": 1,
        "loads": [load],
        "aggregate": aggregate,
    }


def _old_load(life: Life) -> list[dict[str, Any]]:
    scheduler = life.scheduler
    waiting, pending = len(scheduler.queue), scheduler.pending_tokens
    return [
        {
            "dp_rank": 0,
            "num_reqs": len(scheduler.running) + waiting,
            "num_waiting_reqs": waiting,
            "num_tokens": scheduler.used_tokens + pending,
            "num_pending_tokens": pending,
            "ts_tic": time.perf_counter(),
        }
    ]


async def _flush(life: Life) -> web.Response:
    running, waiting = len(life.scheduler.running), len(life.scheduler.queue)
    if running or waiting:
        life.lines.warning(
            f"Cache not flushed because there are pending requests. #queue-req: {waiting}, #running-req: {running}"
        )
        return web.Response(text="Flush cache failed.\n", status=400)
    life.lines.info("Cache flushed successfully!")
    text = (
        "Cache flushed.\nPlease check backend logs for more details. "
        "(When there are running or waiting requests, the operation will not be performed.)\n"
    )
    return web.Response(text=text)


async def _abort(life: Life, request: web.Request) -> web.Response:
    body = orjson.loads(await request.read() or b"{}")
    for rid, work in list(life.in_flight.items()):
        if body.get("abort_all") or rid.startswith(str(body.get("rid") or "\0")):
            life.scheduler.abort(work)
    return web.Response(status=200)


async def _metrics(life: Life) -> web.Response:
    return web.Response(text=render_metrics(life), content_type="text/plain", charset="utf-8")
