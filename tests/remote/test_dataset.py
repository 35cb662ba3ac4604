"""An output is a data set: all records have the same keys and types, and its card says which."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.json
import pytest
import yaml

from remote.generator.feeding import record_line
from remote.generator.prompt_queue import Item
from remote.generator.reply import Reply
from remote.output.dataset_card import CARD_FILE, put_card, render_card
from remote.prompts.rows import Prompt
from tests.remote.rig import Rig, lines_of, records, write_prompts

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": None}
KINDS = {"int64": int, "string": str | None, "float64": float, "json": object}
ARROW = {"int64": pa.int64(), "string": pa.string(), "float64": pa.float64()}


def _card(text: str) -> dict[str, Any]:
    card: dict[str, Any] = yaml.safe_load(text.split("---")[1])
    return card


def _features(text: str) -> dict[str, str]:
    return {feature["name"]: feature["dtype"] for feature in _card(text)["dataset_info"]["features"]}


@pytest.mark.parametrize("keep", [(), ("task", "level")])
@pytest.mark.parametrize(
    "reply",
    [
        Reply("text", None, None, "stop", USAGE, "m"),
        Reply("", "thought", [CALL], "tool_calls", {**USAGE, "prompt_tokens_details": {"cached_tokens": 4}}, "m"),
        Reply("text", None, None, None, None, None),
    ],
)
def test_every_record_has_the_cards_keys_and_types(reply: Reply, keep: tuple[str, ...]) -> None:
    extra = dict.fromkeys(keep) if keep else None
    prompt = Prompt(3, None, [{"role": "user", "content": "x"}], extra=extra)
    record = json.loads(record_line("http://a", Item(prompt, sent=1), reply, 2.0))
    features = _features(render_card(keep))
    assert list(record) == list(features)
    assert all(isinstance(record[name], KINDS[kind]) for name, kind in features.items())  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [(), ("--compress", "zstd")])
def test_an_output_reads_as_a_table_with_the_cards_columns(tmp_path: Path, options: tuple[str, ...]) -> None:
    prompts = write_prompts(tmp_path, 120)
    with Rig(tmp_path, "--lat", "30", ports=1) as rig:
        assert rig.generate(prompts, "--concurrency", "6", "--shard-bytes", "1500", *options) == 0
    text = (rig.output / CARD_FILE).read_text()
    features = _features(text)
    (split,) = _card(text)["configs"][0]["data_files"]
    shards = sorted(rig.output.glob(split["path"]))
    schema = pa.schema([(name, ARROW[kind]) for name, kind in features.items() if kind in ARROW])
    how = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer")
    tables = [pyarrow.json.read_json(pa.py_buffer(lines_of(shard)), parse_options=how) for shard in shards]
    assert len(tables) > 1
    for table in tables:
        assert set(table.column_names) == set(features)
        assert table.select(schema.names).schema == schema
    assert sum(table.num_rows for table in tables) == len(records(rig.output)) == 120


def test_the_cards_words_for_older_versions_give_every_row_with_plain_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = [Reply("a\u2028b", None, None, "stop", USAGE, "m"), Reply("", "so", [CALL], "tool_calls", USAGE, "m")]
    for number, reply in enumerate(replies):
        item = Item(Prompt(number, number or "x", [{"role": "user", "content": "x"}]), sent=1)
        (tmp_path / f"completions-0000{number}.jsonl").write_bytes(record_line("http://a", item, reply, 2.0))

    def from_generator(rows: Any, features: dict[str, str], gen_kwargs: dict[str, str]) -> Any:
        return features, list(rows(**gen_kwargs))

    fake = SimpleNamespace(Features=dict, Value=str, Dataset=SimpleNamespace(from_generator=from_generator))
    monkeypatch.setitem(sys.modules, "datasets", fake)  # type: ignore[arg-type]
    code = render_card().split("```python\n")[1].split("```")[0].replace("DIR", str(tmp_path))
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102
    features, rows = names["dataset"]
    assert [row["index"] for row in rows] == [0, 1]
    assert list(rows[0]) == list(features) == list(_features(render_card()))
    kinds = {"int64": int, "float64": float, "string": str | None}
    assert all(isinstance(row[key], kinds[kind]) for row in rows for key, kind in features.items())  # type: ignore[arg-type]
    assert json.loads(rows[1]["tool_calls"]) == [CALL]


def test_a_card_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / CARD_FILE).write_text("mine")
    put_card(tmp_path, ())
    assert (tmp_path / CARD_FILE).read_text() == "mine"
