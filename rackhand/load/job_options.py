"""A job's options for its generator: how rows are read, what completions must be, where they go."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from rackhand.contract.job import OBJECT_STORES, PROMPT_COLUMNS
from rackhand.load.nodes import Items, Scalar, Value
from rackhand.load.sections import (
    Context,
    Key,
    WrongError,
    as_items,
    as_table,
    number,
    one_of,
    read_section,
    text,
    truth,
    whole,
)


def _patterns(value: Value, ctx: Context) -> list[str]:
    return [_pattern(item, ctx) for item in (value.values if isinstance(value, Items) else (value,))]


def _pattern(value: Value, ctx: Context) -> str:
    words = text(value, ctx)
    try:
        re.compile(words)
    except re.error as error:
        raise WrongError(f"{words!r} is no regular expression: {error}") from None
    return words


QUALITY: Mapping[str, Key] = {
    "min_tokens": Key(whole(0, 1_000_000)),
    "max_repetition": Key(number(1, 1e6)),
    "reject_length": Key(truth),
    "require_thinking": Key(truth),
    "must": Key(_patterns),
    "must_not": Key(_patterns),
    "retries": Key(whole(0, 100)),
    "limit_share": Key(number(0, 1)),
    "limit_first": Key(whole(0, 10_000_000)),
}


def read_quality(value: Value, ctx: Context) -> str:
    """As the generator's --quality takes it."""
    if isinstance(value, Scalar):
        return one_of("default", "off")(value, ctx)  # type: ignore[no-any-return]
    return json.dumps(read_section(as_table(value), QUALITY, ctx), sort_keys=True)


def read_columns(value: Value, ctx: Context) -> Mapping[str, str]:
    table = as_table(value)
    for name, entry in table.entries.items():
        if name not in PROMPT_COLUMNS:
            ctx.wrong(entry.value, "unknown column", f"there are {', '.join(PROMPT_COLUMNS)}", line=entry.line)
    return {name: text(entry.value, ctx) for name, entry in table.entries.items() if name in PROMPT_COLUMNS}


def read_keep(value: Value, ctx: Context) -> tuple[str, ...]:
    names = tuple(text(item, ctx) for item in as_items(value).values)
    if wrong := [name for name in names if "," in name]:
        raise WrongError(f"{wrong[0]!r} holds a comma", "name columns without one")
    return names


def read_store(value: Value, ctx: Context) -> str:
    """An object store's URL, or a directory in the container. Never shown when it holds a password."""
    words = text(value, ctx)
    parts = urlsplit(words)
    if "@" in parts.netloc or parts.query:
        raise WrongError("a credential can't stand in the inventory", "put it into env.variables as {env: NAME}")
    if words.startswith("/") or (parts.scheme in OBJECT_STORES and parts.netloc):
        return words
    raise WrongError(f"{words!r} is no object store", "write s3://BUCKET/PREFIX, gs://, az://, or a directory")


JOB_OPTIONS: Mapping[str, Key] = {
    "quality": Key(read_quality),
    "columns": Key(read_columns),
    "keep": Key(read_keep),
    "last_assistant": Key(one_of("drop", "continue")),
    "compress": Key(one_of("zstd")),
    "object_store": Key(read_store),
    "delete_local_after_upload": Key(truth),
}
