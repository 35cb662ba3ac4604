"""The inventory as a page or a history may show it: references for secrets, and nothing that looks like one. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from rackhand.inventory import Fleet, Host, Job, SecretRef

MASK = "***"
_SECRET_NAME = re.compile(r"(^|[-_.])(key|token|secret|password|passwd|credentials?)$", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"(://[^/:@\s]*):[^@/\s]+@")
_NEVER_SHOWN = frozenset({"cwd"})


def shown_inventory(fleet: Fleet, host: Host, job: Job | None) -> dict[str, Any]:
    """The host, its servers and the job. A secret shows as where it comes from, e.g. `$API_KEY`; the value of a
    variable or flag with a secret's name (`..._TOKEN`, `api-key`) as ***; what isn't set stays out."""
    shown = {"inventory": fleet.path.name, "host": plain(host)}
    return shown | ({"job": plain(job)} if job is not None else {})


def plain(value: object) -> Any:
    """The value as JSON knows it, masked."""
    if isinstance(value, SecretRef):
        return str(value) if value.env else "the output of a command"
    if is_dataclass(value) and not isinstance(value, type):
        return masked({f.name: getattr(value, f.name) for f in fields(value) if f.name not in _NEVER_SHOWN})
    if isinstance(value, Mapping):
        return masked(value)
    if isinstance(value, list | tuple | frozenset | set):
        return [plain(one) for one in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str):
        return _PASSWORD_IN_URL.sub(rf"\1:{MASK}@", value)
    return value if isinstance(value, int | float | bool) or value is None else str(value)


def masked(values: Mapping[str, object]) -> dict[str, Any]:
    """Without what isn't set; text under a secret's name is ***."""
    found = {}
    for name, value in values.items():
        if value is None or value in ((), {}, ""):
            continue
        hidden = isinstance(value, str) and _SECRET_NAME.search(str(name))
        found[str(name)] = MASK if hidden else plain(value)
    return found
