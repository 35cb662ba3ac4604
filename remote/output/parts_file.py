""".upload_parts: the upload in parts that is under way, and its parts that arrived, for the next process.

First a line that names the upload, then one for each part. It holds nothing secret, and is for the owner only.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rackhand.contract import from_json
from remote.output.append_file import AppendFile
from remote.output.objects import PART_BYTES

PARTS_FILE = ".upload_parts"


@dataclass(frozen=True, slots=True)
class PartsUpload:
    """`url` and `shard` name the object, `sha256` is the shard's; `id` is the store's name for the upload."""

    url: str
    shard: str
    sha256: str
    id: str
    part_bytes: int = PART_BYTES


class PartsFile:
    """`upload` is the one under way. What can't be written (a full disk) is left out: then nothing is gone on with."""

    def __init__(self, output: Path) -> None:
        self._path = output / PARTS_FILE
        self.upload: PartsUpload | None = None
        self._tags: dict[int, tuple[str, str]] = {}
        self._read()

    @property
    def kept(self) -> bool:
        """Whether the next process finds the upload."""
        return self._path.exists() and self._path.stat().st_size > 0

    def begin(self, upload: PartsUpload) -> None:
        self.forget()
        self.upload = upload
        self._append(asdict(upload))

    def e_tag(self, number: int, md5: str) -> str | None:
        """The ETag of a part that arrived, None when that part had another MD5 or didn't arrive."""
        known = self._tags.get(number)
        return known[1] if known is not None and known[0] == md5 else None

    def add(self, number: int, md5: str, e_tag: str) -> None:
        self._tags[number] = (md5, e_tag)
        if self.kept:
            self._append({"part": number, "md5": md5, "e_tag": e_tag})

    def forget(self) -> None:
        self.upload, self._tags = None, {}
        self._path.unlink(missing_ok=True)

    def _read(self) -> None:
        """A torn line names nothing; the next line begins after the last whole one."""
        try:
            head, *parts = self._path.read_bytes().split(b"\n")[:-1]
            self.upload = from_json(PartsUpload, json.loads(head))
            for line in parts:
                part = json.loads(line)
                self._tags[int(part["part"])] = (str(part["md5"]), str(part["e_tag"]))
        except FileNotFoundError:
            return
        except (ValueError, TypeError, KeyError, OverflowError):
            self._tags = {}

    def _append(self, line: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            self._path.touch(mode=0o600)
            file = AppendFile(self._path, self._path.read_bytes().rfind(b"\n") + 1)
            try:
                file.append(json.dumps(line).encode() + b"\n", sync=True)
            finally:
                file.close()
