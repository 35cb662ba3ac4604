"""The fault `smi`: how nvidia-smi shows a GPU that it can't read, in a query's cells, lines and exit status."""

from __future__ import annotations

import re
import time

MEMORY = ("memory.used", "memory.free", "memory.total", "memory.reserved")
CELLS: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "na": ("[N/A]", MEMORY),
    "unsupported": ("[Not Supported]", MEMORY),
    "permission": ("[Insufficient Permissions]", (*MEMORY, "utilization.gpu")),
    "unknown": ("[Unknown Error]", None),
    "reset": ("[GPU requires reset]", ("temperature.gpu", "utilization.gpu", "pstate")),
    "err": ("ERR!", ("power.draw", "temperature.gpu", "memory.used")),
    "lost": ("[GPU is lost]", None),
}
"""By the fault's `says`: the word, and the fields where it stands; None: in all but the index."""
SAYS = (*CELLS, "handle", "mig", "inforom", "hang", "mismatch", "no_driver")
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."


def play_whole(says: set[str]) -> tuple[str, int] | None:
    """What it says instead of everything, and its status; a hang doesn't come back."""
    while "hang" in says:
        time.sleep(3600)
    return (MISMATCH, 18) if "mismatch" in says else (NO_DRIVER, 9) if "no_driver" in says else None


def spoil(says: str, fields: tuple[str, ...], bus_id: str, row: str) -> tuple[list[str], list[str], int]:
    """The lines that stand in place of a GPU's row, those at the end, and the exit status (0: none of its own)."""
    bus = re.sub(r"^0000", "", bus_id)
    if says == "handle":
        return [f"Unable to determine the device handle for GPU{bus}: Unknown Error"], [], 15
    if says == "inforom":
        return [row], [f"WARNING: infoROM is corrupted at gpu {bus}"], 14
    if says == "mig":
        put = {"mig.mode.current": "Enabled", "utilization.gpu": "[N/A]", "memory.used": "[Insufficient Permissions]"}
        return [_row(fields, row, put)], [], 0
    if says not in CELLS:
        return [row], [], 0
    word, where = CELLS[says]
    put = dict.fromkeys((field for field in fields if field != "index") if where is None else where, word)
    if says == "reset":
        put["memory.used"] = "0"
    return [_row(fields, row, put)], [], 15 if says == "lost" else 0


def _row(fields: tuple[str, ...], row: str, put: dict[str, str]) -> str:
    return ", ".join(put.get(field, cell) for field, cell in zip(fields, row.split(", "), strict=True))
