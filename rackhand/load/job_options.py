"""A job's options for its generator: how rows are read, what completions must be, where they go."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from rackhand.contract.job import OBJECT_STORES, PROMPT_COLUMNS
from rackhand.load.nodes import Items, Scalar, Table, Value, parse_yaml
from rackhand.load.sections import (
    Context,
    Key,
    WrongError,
    as_items,
    as_table,
    local_path,
    number,
    one_of,
    read_section,
    text,
    truth,
    whole,
)

_FILES = (".yaml", ".yml", ".json")


def _patterns(value: Value, ctx: Context) -> list[str]:
    return [_pattern(item, ctx) for item in (value.values if isinstance(value, Items) else (value,))]


def _pattern(value: Value, ctx: Context) -> str:
    words = text(value, ctx)
    try:
        re.compile(words)
    except re.error as error:
        raise WrongError(f"{words!r} is no regular expression: {error}") from None
    return words


def _words(value: Value, ctx: Context) -> list[str]:
    return [text(item, ctx) for item in (value.values if isinstance(value, Items) else (value,))]


QUALITY: Mapping[str, Key] = {
    "min_tokens": Key(whole(0, 1_000_000)),
    "max_repetition": Key(number(1, 1e6)),
    "reject_length": Key(truth),
    "require_thinking": Key(truth),
    "must": Key(_patterns),
    "must_not": Key(_patterns),
    "script": Key(_words),
    "script_share": Key(number(0, 1)),
    "retries": Key(whole(0, 100)),
    "limit_share": Key(number(0, 1)),
    "limit_first": Key(whole(0, 10_000_000)),
    "max_answer_mib": Key(number(1, 4096)),
}


def read_quality(value: Value, ctx: Context) -> str:
    """As the generator's --quality takes it: default, off, or the options, which may stand in a file of their own."""
    if isinstance(value, Scalar) and not value.null and ("/" in value.text or value.text.endswith(_FILES)):
        return _options_of(_quality_file(value, ctx), ctx)
    if isinstance(value, Scalar):
        return one_of("default", "off")(value, ctx)  # type: ignore[no-any-return]
    return _options_of(as_table(value), ctx)


def _options_of(table: Table, ctx: Context) -> str:
    return json.dumps(read_section(table, QUALITY, ctx), sort_keys=True)


def _quality_file(value: Scalar, ctx: Context) -> Table:
    """A local YAML or JSON file with a mapping. Its mistakes are told at the line that names it."""
    path = local_path(value, ctx)
    try:
        root, mistakes = parse_yaml(path.read_bytes(), str(path))
    except OSError as error:
        raise WrongError(f"{path}: {error.strerror}", "write default, off, a mapping, or a YAML file's path") from None
    if root is not None and not isinstance(root, Table):
        raise WrongError(f"{path}: holds no mapping", "write key: value lines in it")
    table = root or Table({}, value.line, value.name)
    _options_of(table, replace(ctx, mistakes=mistakes))
    for mistake in mistakes.sorted():
        ctx.wrong(value, f"{path}:{mistake.line}: {mistake.what}", mistake.hint)
    return Table({}, value.line, value.name) if mistakes.found else table


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
