"""Rows of check values, and the models they are about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rackhand.capacity import B200, QWEN3_6_27B, QWEN3_6_27B_FP8, RTX_PRO_6000, Gpu, ModelShape
from rackhand.capacity.config import parse_model

HERE = Path(__file__).parent
GPUS = {
    "rtx": RTX_PRO_6000,
    "b200": B200,
    "h100": Gpu(name="H100", memory_mib=81_559, free_gib=78.2, compute_capability="9.0"),
    "h200": Gpu(name="H200", memory_mib=143_771, free_gib=138.9, compute_capability="9.0"),
}
WEIGHTS_GIB = {
    "llama-3.1-8b": 14.96,
    "llama-3.1-70b": 131.42,
    "deepseek-v3": 642.0,
    "gpt-oss-20b": 12.8,
    "gemma-3-27b": 51.1,
}


class Row(NamedTuple):
    name: str
    source: str
    how: str
    model: ModelShape
    gpu: Gpu
    version: str
    flags: dict[str, Any]
    environ: dict[str, Any]
    expected: dict[str, Any]


def config(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "configs" / f"{name}.json").read_text())
    return found


def model(name: str) -> ModelShape:
    if name in ("27b", "27b-fp8"):
        return QWEN3_6_27B if name == "27b" else QWEN3_6_27B_FP8
    return parse_model(config(name), weights_gib=WEIGHTS_GIB[name], name=name)


def rows() -> list[Row]:
    found = yaml.safe_load((HERE / "rows.yaml").read_text())["rows"]
    return [
        Row(
            name=row["name"],
            source=row.get("source", "pencil"),
            how=row.get("how", ""),
            model=model(row["model"]),
            gpu=GPUS[row["gpu"]],
            version=row["version"],
            flags=row["flags"],
            environ=row.get("environ", {}),
            expected=row["expected"],
        )
        for row in found
    ]
