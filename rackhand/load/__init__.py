"""YAML → Fleet: every mistake at once, with file, line and the nearest right name.

Nothing is asked of any host, and no secret is read: where secrets are needed an environment variable must be set, a
command runs at its first use. `src` files must be there; ssh_config, ca and upload files are looked for when they are
used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rackhand.errors import InventoryError, UsageError, nearest
from rackhand.inventory import Fleet
from rackhand.load.fleet import read_fleet
from rackhand.load.nodes import parse_yaml
from rackhand.load.sections import Context
from rackhand.place import IN_CHECKOUT, SHARE


def load(path_or_name: str | Path, environ: Mapping[str, str], *, needs_secrets: bool = True) -> Fleet:
    """The inventory of that name (`inventory/NAME.yaml` of a checkout, then of the current directory) or path.

    A path has a slash or ends in .yaml or .yml. Raises InventoryError with all mistakes, UsageError when no such file
    can be read. Without `needs_secrets` a secret's environment variable that isn't set is no mistake.
    """
    path = find(path_or_name)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"can't be read: {error.strerror}", where=_shown(path), hint="choose with --inventory"
        ) from None
    return load_text(data, path, environ, needs_secrets=needs_secrets)


def load_text(data: bytes, path: Path, environ: Mapping[str, str], *, needs_secrets: bool = True) -> Fleet:
    """The fleet that `data` describes, as if it stood in `path`. Raises nothing but InventoryError."""
    root, mistakes = parse_yaml(data, _shown(path))
    fleet = None
    if root is not None:
        fleet = read_fleet(root, path, Context(path.absolute().parent, environ, mistakes, needs_secrets))
    if mistakes.found or fleet is None:
        raise InventoryError(mistakes.sorted())
    return fleet


def find(path_or_name: str | Path) -> Path:
    """Where that inventory stands. UsageError with the nearest name otherwise."""
    text = str(path_or_name)
    if isinstance(path_or_name, Path) or os.sep in text or text.endswith((".yaml", ".yml")):
        path = Path(text)
        if path.is_file():
            return path
        raise UsageError("no such inventory", where=text, hint="choose with --inventory")
    here = Path.cwd() / "inventory"
    folders = (SHARE / "inventory", here) if IN_CHECKOUT else (here,)
    for folder in folders:
        if (path := folder / f"{text}.yaml").is_file():
            return path
    known = sorted({path.stem for folder in folders for path in folder.glob("*.yaml")})
    hint = nearest(text, known) if known else "name one, or a path, with --inventory or RACKHAND_INVENTORY"
    raise UsageError(f"no inventory {text!r} in {folders[0]}", hint=hint)


def _shown(path: Path) -> str:
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
