"""What the PVE API refuses before a route sees it: values that its schema doesn't know."""

from __future__ import annotations

import re

from lab import pve

KINDS = {"string": r"[^\n]*", "integer": r"[+-]?\d+", "boolean": r"[01]|(?i:on|off|yes|no|true|false)"}
UNKNOWN = "property is not defined in schema and the schema does not allow additional properties"


class ApiError(Exception):
    """An answer that isn't 200; `reason` becomes the reason phrase."""

    def __init__(self, status: int, reason: str, errors: dict[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.errors = status, reason, errors


def check_values(vmid: str | None, values: dict[str, str], parameters: dict[str, str]) -> None:
    """`parameters` are the kinds that a route takes; `vmid` is the path's, None where it has none."""
    errors = {"vmid": fault} if vmid is not None and (fault := pve.vmid_fault(vmid)) else {}
    for name, value in values.items():
        kind = parameters.get(name)
        if kind is None:
            errors[name] = UNKNOWN
        elif not re.fullmatch(KINDS[kind], value, re.ASCII):
            errors[name] = f"type check ('{kind}') failed - got '{value}'"
    if errors:
        raise unfit(errors)


def unfit(errors: dict[str, str]) -> ApiError:
    return ApiError(400, "Parameter verification failed.", errors)
