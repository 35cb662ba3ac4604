"""The zipapp: remote/, contract and engines as one reproducible archive, and its digest.

The same sources give the same bytes on every machine: names sorted, times fixed, no compiled files.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rackhand.place import PACKAGE, SHARE

SIZE_BUDGET = 256 * 1024
"""Bytes; a test looks at it, since the zipapp travels with every call."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = """import sys
if sys.version_info < (3, 10):
    sys.exit("rackhand needs Python 3.10 or newer, not " + sys.version.split()[0])
import os, pwd
try:
    os.environ.setdefault("HOME", pwd.getpwuid(os.getuid()).pw_dir)
except KeyError:
    os.environ["HOME"] = "/"
from remote.cli import main
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True)
class Payload:
    data: bytes
    sha256: str


@cache
def build(share: Path = SHARE, package: Path = PACKAGE) -> Payload:
    """The zipapp of the remote/ in `share`, and of contract/ and engines/ in the package's folder."""
    entries = {"__main__.py": _MAIN.encode(), "rackhand/__init__.py": b""}
    parts = {"remote": share, "rackhand/contract": package.parent, "rackhand/engines": package.parent}
    for part, top in parts.items():
        for path in sorted((top / part).rglob("*.py")):
            entries[path.relative_to(top).as_posix()] = path.read_bytes()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(entries.items()):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
    data = out.getvalue()
    return Payload(data, hashlib.sha256(data).hexdigest())
