"""SGLang's HTTP endpoints and start-up lines: readiness, one real generation, effective capacity, processes.

The port is bound after the model is loaded: connection refused means loading. /v1/models answers before the warm-up
is done and is no test. `max_running_requests` at the top of /server_info is the asked value, not the effective one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from rackhand.contract.servers import Capacity, Load
from rackhand.engines import Generation

HEALTH = "/health"
LOADS = "/v1/loads"
SERVER_INFO = "/server_info"
OLD_SERVER_INFO = "/get_server_info"
CHAT = "/v1/chat/completions"
PROBE_TOKENS = 16

_READY = re.compile(r"max_total_num_tokens=(\d+).*?max_running_requests=(\d+)")
_SLOTS = re.compile(r"max_mamba_cache_size: (\d+)")
_STAGES = (
    (re.compile(r"fired up and ready to roll"), "ready"),
    (re.compile(r"Uvicorn running on|Application startup complete"), "warming up"),
    (re.compile(r"Entering DeepGEMM JIT|DeepGEMM JIT Compiling|FlashInfer autotune|Loading JIT ops"), "compiling"),
    (re.compile(r"Captur(?:e|ing) .*(?:graph|batches)"), "capturing graphs"),
    (re.compile(r"Memory pool end|KV Cache is allocated|Mamba Cache is allocated"), "memory pools"),
    (re.compile(r"Load weight end"), "weights loaded"),
    (re.compile(r"Load weight begin|loading shards|Loading safetensors"), "loading weights"),
    (re.compile(r"Init torch distributed|server_args="), "starting"),
)


def parse_stage(line: str) -> str | None:
    for pattern, stage in _STAGES:
        if pattern.search(line):
            return stage
    return None


def parse_log_capacity(lines: Iterable[str]) -> Load | None:
    """From the ready line of the scheduler and the line of the state pool; the last start in `lines` counts."""
    ready, slots = None, None
    for line in lines:
        if found := _SLOTS.search(line):
            slots = int(found[1])
        if found := _READY.search(line):
            ready = found
    if ready is None:
        return None
    return Load(0, 0, Capacity(int(ready[2]), int(ready[1]), slots, "log"))


def parse_load(path: str, text: str) -> Load | None:
    data = _object(text)
    if path == LOADS:
        return _from_loads(data)
    return _from_server_info(data)


def generation_request() -> dict[str, object]:
    """Model names are not checked by SGLang: any will do."""
    message = {"role": "user", "content": "Name three colours."}
    return {"model": "default", "messages": [message], "max_tokens": PROBE_TOKENS, "temperature": 0}


def parse_generation(text: str) -> Generation:
    """A real generation has tokens and text; one character without end is the sign of broken kernels."""
    data = _object(text)
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return Generation("", 0, f"no completion in the answer: {text[:120]!r}")
    message = choices[0].get("message") or {}
    said = "".join(str(message.get(part) or "") for part in ("reasoning_content", "content"))
    tokens = _int((data.get("usage") or {}).get("completion_tokens")) or 0
    if tokens < 1 or not said.strip():
        return Generation(said, tokens, "an empty completion")
    if len(said.strip()) >= PROBE_TOKENS // 2 and len(set(said.strip())) == 1:
        return Generation(said, tokens, f"nothing but {said.strip()[0]!r}: broken output")
    return Generation(said, tokens)


def is_main(cmdline: tuple[str, ...]) -> bool:
    if not cmdline or cmdline[0].startswith("sglang::"):
        return False
    words = list(cmdline)
    if "-m" in words[:4] and "sglang.launch_server" in words[:6]:
        return words[words.index("-m") + 1] == "sglang.launch_server"
    return any(w.endswith("/sglang") or w == "sglang" for w in words[:2]) and "serve" in words[1:3]


def is_server(cmdline: tuple[str, ...]) -> bool:
    """Children set their title: `sglang::scheduler`, `sglang::detokenizer`, with tags joined by `_`."""
    return bool(cmdline) and (cmdline[0].startswith("sglang::") or is_main(cmdline))


def _from_loads(data: dict[str, Any]) -> Load | None:
    loads = [entry for entry in data.get("loads") or () if isinstance(entry, dict)]
    if not loads:
        return None
    running = sum(_int(entry.get("num_running_reqs")) or 0 for entry in loads)
    queued = sum(_int(entry.get("num_waiting_reqs")) or 0 for entry in loads)
    caps = [_int(entry.get("max_running_requests")) for entry in loads]
    if any(cap is None for cap in caps):
        return Load(running, queued)
    tokens = sum(_int(entry.get("max_total_num_tokens")) or 0 for entry in loads)
    return Load(running, queued, Capacity(sum(cap or 0 for cap in caps), tokens or None, None, "loads"))


def _from_server_info(data: dict[str, Any]) -> Load | None:
    states = [state for state in data.get("internal_states") or () if isinstance(state, dict)]
    caps = [_int(state.get("effective_max_running_requests_per_dp")) for state in states]
    if not caps or any(cap is None for cap in caps):
        return None
    tokens = sum(_int((state.get("memory_usage") or {}).get("token_capacity")) or 0 for state in states)
    slots = sum(_int(state.get("max_mamba_cache_size")) or 0 for state in states)
    return Load(0, 0, Capacity(sum(cap or 0 for cap in caps), tokens or None, slots or None, "server_info"))


def _object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
