"""What servers say of themselves, a JSON line a tick, until stdin ends. Run where the servers' ports are.

Run: python bench/loads.py SECONDS URL...

Running, waiting and cap are /v1/loads', decoded tokens and decode steps the counters of /metrics; null: no answer.
"""

from __future__ import annotations

import http.client
import json
import select
import sys
import time
from typing import Any
from urllib.parse import urlsplit

COUNTERS = {"decoded": "realtime_tokens_total{", "steps": "cuda_graph_passes_total{"}


class Teller:
    """One server, over one connection while that stands."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._http = http.client.HTTPConnection(str(parts.hostname), parts.port or 80, timeout=2.0)

    def observe(self) -> dict[str, float] | None:
        """None when it doesn't answer."""
        try:
            load = json.loads(self._get("/v1/loads"))["loads"][0]
            metrics = self._get("/metrics").splitlines()
        except (OSError, http.client.HTTPException, ValueError):
            self._http.close()
            return None
        found = {
            "running": load["num_running_reqs"],
            "queue": load["num_waiting_reqs"],
            "cap": load["max_running_requests"],
        }
        for name, key in COUNTERS.items():
            lines = (line for line in metrics if key in line and 'mode="decode' in line)
            found[name] = sum(float(line.rpartition(" ")[2]) for line in lines)
        return found

    def _get(self, path: str) -> str:
        self._http.request("GET", path)
        return self._http.getresponse().read().decode()


def main(interval_s: float, urls: list[str]) -> None:
    tellers = [Teller(url) for url in urls]
    while True:
        tick: dict[str, Any] = {"time": time.time(), "servers": [teller.observe() for teller in tellers]}
        print(json.dumps(tick), flush=True)
        ended, _, _ = select.select([sys.stdin], [], [], max(0.0, tick["time"] + interval_s - time.time()))
        if ended:
            return


if __name__ == "__main__":
    try:
        main(float(sys.argv[1]), sys.argv[2:])
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(0)
