"""README.md in an output: what Hugging Face `datasets` needs to load the shards as they are."""

from __future__ import annotations

from pathlib import Path

from remote.output.append_file import put_whole

CARD_FILE = "README.md"
FEATURES = {
    "index": "int64",
    "id": "json",
    "messages": "json",
    "completion": "string",
    "reasoning": "string",
    "tool_calls": "json",
    "finish_reason": "string",
    "usage": "json",
    "model": "string",
    "server": "string",
    "attempts": "int64",
    "latency_s": "float64",
    "created": "string",
}
"""Types of a record's keys. Said and not guessed, since a column may be null for the first hundred thousand rows."""


def render_card(keep: tuple[str, ...] = ()) -> str:
    """The card of an output whose records keep those input columns."""
    features = {**FEATURES, "extra": "json"} if keep else FEATURES
    lines = "\n".join(f"  - {{name: {name}, dtype: {dtype}}}" for name, dtype in features.items())
    return f"""---
configs:
- config_name: default
  data_files:
  - split: train
    path: completions-*.jsonl*
dataset_info:
  config_name: default
  features:
{lines}
---
Completions made by rackhand, one JSON record a line. `datasets.load_dataset(DIR)` loads them; the types above need a
version with `datasets.Json`. Closed shards stand in manifest.jsonl with their sha256.
"""


def put_card(output: Path, keep: tuple[str, ...]) -> None:
    """Unless a README.md is there already: it may be the user's."""
    if not (output / CARD_FILE).exists():
        put_whole(output / CARD_FILE, render_card(keep).encode(), sync=False)
