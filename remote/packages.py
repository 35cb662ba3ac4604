"""Packages that only some options need."""

from __future__ import annotations

import importlib
import sys
from typing import Any


class MissingPackageError(Exception):
    """An option was used without its package: one line that names both."""


def load_package(module: str, what: str) -> Any:
    """The module; MissingPackageError says that `what` needs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        name = module.partition(".")[0]
        raise MissingPackageError(
            f"{what} needs {name}, which {sys.executable} can't import; install it there (pip install {name})"
        ) from None
