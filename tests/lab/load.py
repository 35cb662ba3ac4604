"""Requests that never end, sent to servers from inside the container; each is asked again when it is answered."""

from __future__ import annotations

import json
from dataclasses import dataclass

PYTHON = "/opt/sglang/bin/python"
_SCRIPT = """
import json, sys, threading, time, urllib.request
def ask(port, letters, tokens):
    body = json.dumps({"model": "m", "max_tokens": tokens, "ignore_eos": True,
                       "messages": [{"role": "user", "content": "x" * letters}]}).encode()
    while True:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body,
                                         {"Content-Type": "application/json"})
        try:
            urllib.request.urlopen(request).read()
        except OSError:
            time.sleep(0.3)
for gpu, count, prompt_tokens, tokens in json.loads(sys.argv[1]):
    for _ in range(count):
        threading.Thread(target=ask, args=(30000 + gpu, 4 * prompt_tokens, tokens), daemon=True).start()
time.sleep(3600)
"""


@dataclass(frozen=True)
class Load:
    """`count` clients, each with one request of that many prompt tokens and completion tokens after the other."""

    gpu: int
    count: int
    prompt_tokens: int = 20
    tokens: int = 4000


def load_command(*loads: Load) -> str:
    """For `bash -c` in the container; it goes on when that has ended."""
    words = json.dumps([[load.gpu, load.count, load.prompt_tokens, load.tokens] for load in loads])
    return f"setsid {PYTHON} - '{words}' >/dev/null 2>&1 <<'END' &\n{_SCRIPT}\nEND"
