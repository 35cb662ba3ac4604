"""SGLang's log, 0.4.10 to 0.5.23, read line by line.

SGLang's own parser demands `#token:` and so misses every hybrid line; this one splits `name: value` pairs, whatever
their order, and keeps names that it doesn't know.
"""

from __future__ import annotations

import re

from rackhand.engines.seen import Event, Kind, Value
from rackhand.engines.sglang.signs import ANY_ERROR_RE, NO_TROUBLE, START_UP, START_UP_RE, TROUBLE

_STAMP = re.compile(
    r"(?:\([^()]*\) )?\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)((?: [A-Z][A-Z_]*\d+)*)\] ?",
)
"""`[time tags] `, under Ray with `(Name pid=N, ip=A) ` before it."""
_HEAD = re.compile(
    r"\[(20[0-9]{2}-[0-9: -]{14}(?:\.[0-9]+)?)((?: [A-Z][A-Z_]*[0-9]+)*)\] "
    r"(?:(Decode|Prefill) batch(?: \[([0-9]{1,18})\])?[.,] |(INFO:     [0-9]))?",
)
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")
_BATCH = re.compile(r"(Decode|Prefill) batch(?: \[(\d{1,18})\])?[.,] ?")
_BAR = re.compile(r"(?:\(bs=(\d{1,9}) avail_mem=([\d.]{1,9}) GB\):)?\s+(\d{1,3})%(?=\||\s+Completed)")
_ASSIGNED = re.compile(r"\b([A-Za-z_]\w*)=(True|False|-?\d[\d.]*)")
_SIZES_END = str.maketrans({"(": ",", ")": ","})
_REMAINING = re.compile(r"(Remaining number of requests) (\d{1,18})")
_CAP = re.compile(
    r"from the requested (?P<asked>\d{1,18}) to (?P<reduced>\d{1,18})|(?:reset|capped) to (?P<to>\d{1,18})"
)
_SLOTS = re.compile(r"max_mamba_cache_size=(\d{1,18}), (\d{1,18}) state slots per request")

_BOOL = {"True": True, "False": False}
_KNOWN = frozenset((
    "#running-req", "#queue-req", "#pending-token", "#new-seq", "#new-token", "#cached-token", "#replay-token",
    "#token", "#full token", "#swa token", "#gpu token", "#cpu token", "mamba num", "#prealloc-req", "#transfer-req",
    "#host-receive-req", "#retracted-req", "#bootstrap-req", "#inflight-req", "#optimistic-req",
    "#unbootstrapped-req", "#transferring-req", "token usage", "full token usage", "swa token usage",
    "gpu token usage", "cpu token usage", "mamba usage", "pre-allocated usage", "cuda graph", "cpu graph", "npu graph",
    "musa graph", "gen throughput (token/s)",
))  # fmt: skip
"""Names whose value must be readable. `accept len` and `input throughput` may be nan: such a field is left out."""
_BATCH_KINDS: dict[str, Kind] = {"Decode": "decode", "Prefill": "prefill"}
_LAST = {"Decode": "gen throughput (token/s)", "Prefill": "#new-token"}
"""With #running-req and #queue-req it makes nearly every batch line whole."""
_REPEATED = 5
"""Values of so many characters come again and again (usages, counts of requests); longer ones hardly ever."""
_MOST_PARTS = 8192


def parse_line(text: str) -> Event | None:
    """What the line says, or None: not a batch, start-up or trouble line, or one that can't be read.

    `text` is one line of the log, with or without its newline, bytes that aren't UTF-8 replaced. Never raises.
    """
    return read_line(text)[0]


def read_line(text: str) -> tuple[Event | None, int]:
    """Like parse_line, with the count of unread parts: lines of a known shape, or torn pieces of them, that make no
    sense. A piece that another line broke into counts, and the line behind it is read."""
    head = _HEAD.match(text)
    if head is not None:
        stamp, rank, batch, iteration, access = head.groups()
        if batch is not None:
            try:
                fields = dict(map(_read_pair, text[head.end() :].rstrip().split(", ")))
            except ValueError:
                return _read_odd_line(text)
            fields.pop("", None)
            if iteration is not None:
                fields["iter"] = int(iteration)
            if "#running-req" in fields and "#queue-req" in fields and _LAST[batch] in fields:
                return Event(_BATCH_KINDS[batch], fields, "", stamp, rank[1:]), 0
        elif text.rfind("[20") == 0:
            if access is not None:
                return None, 0
            if "\r" not in text and "\x1b" not in text:
                return _read_message(text[head.end(2) + 2 :].rstrip(), stamp, rank[1:])
    return _read_odd_line(text)


def _read_odd_line(text: str) -> tuple[Event | None, int]:
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    text = text.rstrip("\r\n")
    if "\r" in text:
        text = text[text.rfind("\r") + 1 :]
    stamps = list(_STAMP.finditer(text)) if "[20" in text else []
    if not stamps:
        return _read_message(text, "", "")
    last = stamps[-1]
    event, unread = _read_message(text[last.end() :], last[1], last[2].strip())
    starts = [0, *(found.end() for found in stamps[:-1])]
    for start, following in zip(starts, stamps, strict=True):
        unread += _looks_torn(text[start : following.start()])
    return event, unread


def _looks_torn(piece: str) -> int:
    return int(piece.startswith(("Decode batch", "Prefill batch", "max_total_num_tokens=")))


def _read_message(message: str, stamp: str, rank: str) -> tuple[Event | None, int]:
    if message.startswith(("Decode batch", "Prefill batch")):
        return _read_batch(message, stamp, rank)
    if message.startswith("max_total_num_tokens="):
        return _read_ready(message, stamp, rank)
    known = START_UP_RE.match(message)
    if known is not None and "graph failed" not in message:
        _, kind, sign = START_UP[(known.lastindex or 1) - 1]
        return _read_start_up(kind, sign, message, stamp, rank)
    sign = _trouble_sign(message)
    return (Event("trouble", _assigned(message), sign, stamp, rank), 0) if sign else (None, 0)


def _trouble_sign(message: str) -> str:
    if message.startswith(NO_TROUBLE):
        return ""
    for sign, texts in TROUBLE:
        for text in texts:
            if text in message:
                return sign
    return "error" if ANY_ERROR_RE.match(message) else ""


def _read_batch(message: str, stamp: str, rank: str) -> tuple[Event | None, int]:
    head = _BATCH.match(message)
    if head is None:
        return None, 1
    fields = _read_pairs(message[head.end() :])
    if not _is_whole(head[1], fields):
        return None, 1
    if head[2]:
        fields["iter"] = int(head[2])
    return Event(_BATCH_KINDS[head[1]], fields, "", stamp, rank), 0


def _is_whole(batch: str, fields: dict[str, Value]) -> bool:
    if "#running-req" not in fields:
        return False
    if batch == "Decode":
        return "#queue-req" in fields and "gen throughput (token/s)" in fields
    return "#new-token" in fields and ("#queue-req" in fields or "#bootstrap-req" in fields)


def _read_pairs(body: str) -> dict[str, Value]:
    """Empty when a name that is known has a value that can't be read, or another line broke in."""
    try:
        fields = dict(map(_read_pair, body.rstrip().split(", ")))
    except ValueError:
        return {}
    fields.pop("", None)
    return fields


class _Parts(dict[str, tuple[str, Value]]):
    """`name: value` → both; the name is "" when there is nothing to keep. Short ones are remembered, since most parts
    of a line stood in the line before."""

    def __missing__(self, part: str) -> tuple[str, Value]:
        name, _, word = part.partition(": ")
        try:
            pair = name, (float(word) if "." in word else int(word))
        except ValueError:
            pair = _read_rare_pair(name, word)
        if "[20" in name:
            raise ValueError(part)
        if len(word) <= _REPEATED:
            if len(self) >= _MOST_PARTS:
                self.clear()
            self[part] = pair
        return pair


_read_pair = _Parts().__getitem__


def _read_rare_pair(name: str, word: str) -> tuple[str, Value]:
    value = _number(word.rstrip(",").removesuffix("%"))
    if value is not None:
        return name, value
    if name in _KNOWN or "[20" in word:
        raise ValueError(word)
    return "", 0


def _number(word: str) -> Value | None:
    try:
        return float(word) if "." in word else int(word)
    except ValueError:
        return _BOOL.get(word)


def _read_ready(message: str, stamp: str, rank: str) -> tuple[Event | None, int]:
    fields = _assigned(message)
    if "max_running_requests" not in fields:
        return None, 1
    return Event("ready", fields, "", stamp, rank), 0


def _read_start_up(kind: Kind, sign: str, message: str, stamp: str, rank: str) -> tuple[Event | None, int]:
    if sign in ("server_args", "jit", "exiting", "uvicorn"):
        return Event(kind, {}, sign, stamp, rank), 0
    if sign.startswith("cap_by"):
        return _read_cap(sign, message, stamp, rank)
    if sign.endswith("_progress"):
        return Event(kind, _read_bar(message), sign, stamp, rank), 0
    fields = _read_sizes(message)
    if sign == "draining":
        fields.update(_numbers(_REMAINING.findall(message)))
    if kind in ("memory", "retraction") and not fields and not _may_be_bare(message):
        return None, 1
    return Event(kind, fields, sign, stamp, rank), 0


def _read_sizes(message: str) -> dict[str, Value]:
    """`name=1.5 GB`, `name: 1.5GB`, `name: 0.3 -> 0.6` (the new value counts), with or without commas between them."""
    fields: dict[str, Value] = {}
    parts = message.translate(_SIZES_END).replace("GB", ",").replace(". ", ",").split(",")
    for part in parts:
        name, _, word = part.partition("=" if "=" in part else ": ")
        if not word:
            continue
        value = _number(word[word.rfind("> ") + 1 :].strip().removesuffix(" s").rstrip("."))
        if value is not None and (key := name.strip(" :")):
            fields[key] = value
    return fields


def _read_bar(message: str) -> dict[str, Value]:
    bar = _BAR.search(message)
    if bar is None:
        return {}
    words = (("bs", bar[1]), ("avail_mem", bar[2]), ("percent", bar[3]))
    return _numbers([(name, word) for name, word in words if word])


def _may_be_bare(message: str) -> bool:
    return message.startswith(("Capture", "Committed", "Init torch distributed"))


def _read_cap(sign: str, message: str, stamp: str, rank: str) -> tuple[Event | None, int]:
    found = _CAP.search(message)
    if not found:
        return None, 1
    fields: dict[str, Value] = {"max_running_requests": int(found["reduced"] or found["to"])}
    if found["asked"]:
        fields["requested"] = int(found["asked"])
    slots = _SLOTS.search(message)
    if slots:
        fields["max_mamba_cache_size"] = int(slots[1])
        fields["state slots per request"] = int(slots[2])
    return Event("memory", fields, sign, stamp, rank), 0


def _assigned(message: str) -> dict[str, Value]:
    return _numbers(_ASSIGNED.findall(message))


def _numbers(pairs: list[tuple[str, str]]) -> dict[str, Value]:
    read = ((name.strip(), _number(word.rstrip("."))) for name, word in pairs)
    return {name: value for name, value in read if value is not None}
