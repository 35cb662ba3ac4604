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


_RECIPE = """\
import json
from glob import glob
from datasets import Dataset, Features, Value

TYPES = {"index": "int64", "attempts": "int64", "latency_s": "float64"}
TEXTS = ("completion", "reasoning", "finish_reason", "model", "server", "created")


def rows(pattern):
    for shard in sorted(glob(pattern)):
        with open(shard, encoding="utf-8", newline="\\n") as lines:
            for row in map(json.loads, lines):
                yield {key: row[key] if key in TYPES or key in TEXTS else json.dumps(row[key]) for key in row}


pattern = "DIR/completions-*.jsonl"
features = Features({key: Value(TYPES.get(key, "string")) for key in next(rows(pattern))})
dataset = Dataset.from_generator(rows, features=features, gen_kwargs={"pattern": pattern})
"""


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
Completions made by rackhand, one JSON record a line. Closed shards stand in manifest.jsonl with their sha256.

`datasets.load_dataset(DIR)` loads them with datasets 4.7 or later: older ones don't know the type `json`. There this
does, with what is JSON kept as text:

```python
{_RECIPE}```
"""


def put_card(output: Path, keep: tuple[str, ...]) -> None:
    """Unless a README.md is there already: it may be the user's."""
    if not (output / CARD_FILE).exists():
        put_whole(output / CARD_FILE, render_card(keep).encode(), sync=False)
