"""A model's files in a container: how to ask for them, and what they say of its shape. Pure."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from rackhand.capacity.config import parse_model, weights_gib_of
from rackhand.capacity.errors import UnknownModel
from rackhand.capacity.shapes import ModelShape, known_model
from rackhand.command import Argv
from rackhand.contract.files import CommandState

_SCRIPT = """
d=$1
if [ ! -d "$d" ]; then
  hub=${HF_HUB_CACHE:-${HF_HOME:-$HOME/.cache/huggingface}/hub}
  d=$(ls -dt "$hub/models--$(printf %s "$1" | sed 's|/|--|g')"/snapshots/* 2>/dev/null | head -n 1)
fi
[ -n "$d" ] && [ -f "$d/config.json" ] || exit 3
cat "$d/config.json"
printf '\\n--shards--\\n'
stat -L -c %s "$d"/*.safetensors 2>/dev/null
exit 0
"""


def model_files_argv(model: str) -> Argv:
    """Prints config.json and the shards' sizes of a directory or a model in the hub's cache; status 3 for neither."""
    return ("sh", "-c", _SCRIPT, "model", model)


@dataclasses.dataclass(frozen=True, slots=True)
class ModelFiles:
    """config.json, and GiB of all safetensors shards (0: none there)."""

    config: dict[str, Any]
    shards_gib: float


def parse_model_files(done: CommandState | None) -> ModelFiles | None:
    """None where the model wasn't found or its config.json can't be read."""
    if done is None or done.status != 0:
        return None
    text, _, sizes = done.stdout.partition("\n--shards--\n")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        return None
    shards = [int(word) for word in sizes.split() if word.isdigit()]
    return ModelFiles(config, weights_gib_of(shards)) if isinstance(config, dict) else None


def shape_of(
    name: str, files: ModelFiles | None, *, weights_gib: float | None = None, draft_gib: float | None = None
) -> ModelShape:
    """The model's shape: measured weights win over the shards' sum, files over what is known by name.

    UnknownModel when there is no config.json, or no weights. A draft whose size nobody said is its layer, its
    embedding and its output matrix.
    """
    known = known_model(name)
    if files is None:
        if known is None:
            raise UnknownModel(f"no config.json of {name} was found; give --model-config and --weights-gib")
        shape = known if weights_gib is None else dataclasses.replace(known, weights_gib=weights_gib)
        return shape if draft_gib is None else dataclasses.replace(shape, draft_gib=draft_gib)
    weights = weights_gib or (known.weights_gib if known else 0.0) or files.shards_gib
    if not weights:
        raise UnknownModel(f"{name} has no safetensors shards; give --weights-gib")
    shape = parse_model(files.config, weights_gib=weights, draft_gib=draft_gib or 0.0, name=name)
    if draft_gib is None and shape.draft_layers:
        layers = shape.full_layers + shape.linear_layers + shape.swa_layers
        each = (weights - 2 * shape.embedding_gib) / layers
        guess = known.draft_gib if known else shape.draft_layers * each + 2 * shape.embedding_gib
        shape = dataclasses.replace(shape, draft_gib=guess)
    return shape
