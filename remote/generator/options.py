"""The generator's command line."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from rackhand.contract.job import PROMPT_COLUMNS, root_url
from remote import fastjson
from remote.generator.quality import Quality, parse_quality
from remote.output.ledger import SHARD_BYTES, SHARD_S
from remote.output.object_store import is_store
from remote.prompts.shapes import Reading


@dataclass(frozen=True)
class GenerateOptions:
    """`concurrency` None is auto. `shard` is (I, N): rows whose index mod N is I. `limit`: prompts of this run."""

    prompts: Path
    output: Path
    servers: tuple[str, ...]
    concurrency: int | None
    model: str | None
    sampling: dict[str, Any]
    shard: tuple[int, int]
    control: Path | None
    limit: int | None
    new: bool
    retry_failed: bool
    retry_rejected: bool
    attempts: int
    drain_timeout_s: float
    timeout_floor_s: float
    shard_bytes: int
    shard_s: float
    quality: Quality
    reading: Reading
    compress: bool
    object_store: str | None
    delete_local: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; --help lists the flags\n")


def parse_options(argv: list[str]) -> GenerateOptions:
    """Ends with status 2 and one line on what is wrong."""
    parser = _Parser(
        prog="generate", description="Feed prompts to OpenAI-style servers; resume exactly where it stopped.",
        allow_abbrev=False,
    )  # fmt: skip
    add = parser.add_argument
    add("--prompts", type=Path, required=True, help=".jsonl, .jsonl.gz, .jsonl.zst or .parquet")
    add("--output", type=Path, required=True, help="directory of the completions; resumed when it holds this job")
    add("--server", type=_url, action="append", required=True, metavar="URL", help="repeat for each; may end in /v1")
    add("--concurrency", type=_concurrency, default="auto", metavar="N|auto", help="requests in flight a server")
    add("--model", help="name to send; default: what each server calls its own")
    add("--sampling", type=_sampling, default="{}", metavar="JSON", help="object that goes into every request")
    add("--shard", type=_shard, default="0/1", metavar="I/N", help="take the rows whose index mod N is I")
    add("--control", type=Path, metavar="FILE", help="control.json: which servers are active, draining, stopped")
    add("--limit", type=_positive, metavar="N", help="ask at most N prompts in this run")
    add("--new", action="store_true", help="refuse an output that holds a job or finished indices already")
    add("--retry-failed", action="store_true", help="ask again what stands in failures.jsonl")
    add("--retry-rejected", action="store_true", help="ask again what stands in rejected.jsonl")
    add("--attempts", type=_positive, default=5, metavar="K", help="tries of a prompt on servers that fail")
    add(
        "--drain-timeout",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="seconds for what is in flight after a signal",
    )
    add("--timeout-floor", type=_seconds, default=120.0, metavar="S", help="shortest deadline of a request, seconds")
    add("--shard-bytes", type=_positive, default=SHARD_BYTES, metavar="B", help="a shard is closed at this size")
    add("--shard-seconds", type=_seconds, default=SHARD_S, metavar="S", help="a shard is closed at this age")
    add("--quality", type=_quality, default="default", metavar="default|off|FILE", help="checks of each completion")
    add("--compress", choices=("zstd",), help="compress shards: one frame with a checksum a commit group")
    add(
        "--object-store",
        type=_store,
        metavar="URL",
        help="closed shards go there: s3://BUCKET/PREFIX, gs://, az://, DIR",
    )
    add("--delete-local-after-upload", action="store_true", help="remove a shard here once it is verified there")
    add("--columns", type=_columns, default="{}", metavar="JSON", help='the file\'s own names: {"prompt": "question"}')
    add("--keep", type=_names, default="", metavar="A,B", help="input columns that go into the records, under extra")
    add("--last-assistant", choices=("drop", "continue"), default="drop", help="an assistant's turn at the end")
    found = parser.parse_args(argv)
    return GenerateOptions(
        prompts=found.prompts,
        output=found.output,
        servers=tuple(dict.fromkeys(found.server)),
        concurrency=None if found.concurrency == "auto" else found.concurrency,
        model=found.model,
        sampling=found.sampling,
        shard=found.shard,
        control=found.control,
        limit=found.limit,
        new=found.new,
        retry_failed=found.retry_failed,
        retry_rejected=found.retry_rejected,
        attempts=found.attempts,
        drain_timeout_s=found.drain_timeout,
        timeout_floor_s=found.timeout_floor,
        shard_bytes=found.shard_bytes,
        shard_s=found.shard_seconds,
        quality=found.quality,
        compress=found.compress == "zstd",
        object_store=found.object_store,
        delete_local=found.delete_local_after_upload,
        reading=Reading(found.columns, found.keep, found.last_assistant),
    )


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        plain = not (parts.query or parts.fragment or "@" in parts.netloc)
    except ValueError:
        good = plain = False
    if good and not plain:
        # Not shown: a password stands before an @.
        raise argparse.ArgumentTypeError("a URL with a user, a query or a fragment; the key comes from the environment")
    if not good:
        raise argparse.ArgumentTypeError(f"{text!r} is no URL such as http://127.0.0.1:30000")
    return root_url(text)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0")
    return value


def _concurrency(text: str) -> int | str:
    return "auto" if text == "auto" else _positive(text)


def _json(text: str) -> Any:
    try:
        return fastjson.loads(text.encode("utf-8", "replace"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None


def _sampling(text: str) -> dict[str, Any]:
    value = _json(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("a JSON object was expected")
    taken = sorted({"messages", "model", "stream", "n"} & set(value))
    if taken:
        raise argparse.ArgumentTypeError(f"{', '.join(taken)} can't be set here")
    return value


def _shard(text: str) -> tuple[int, int]:
    index, slash, count = text.partition("/")
    if not (slash and text.isascii() and index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no I/N with I from 0 to N-1")
    return int(index), int(count)


def _store(text: str) -> str:
    if not is_store(text):
        raise argparse.ArgumentTypeError(
            "no object store; s3://BUCKET/PREFIX, gs://, az:// or a directory from / on, and no credentials in it"
        )
    return text


def _columns(text: str) -> dict[str, str]:
    value = _json(text)
    if not isinstance(value, dict) or not all(isinstance(name, str) and name for name in value.values()):
        raise argparse.ArgumentTypeError("an object of column names was expected")
    unknown = sorted(set(value) - set(PROMPT_COLUMNS))
    if unknown:
        raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(PROMPT_COLUMNS)}")
    return value


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _quality(text: str) -> Quality:
    try:
        return parse_quality(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
