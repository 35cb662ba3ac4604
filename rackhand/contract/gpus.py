"""What nvidia-smi says of the GPUs, read in one place for both sides. Pure.

It is a program for people: a GPU that can't be read stands as a word in a cell, as a line among the rows, or only as an
exit status, beside rows that are good. Rows are read whatever the exit status is; what can't be read is None with the
word that stood there, never 0.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

FIELDS = ("index", "uuid", "name", "memory.total", "memory.used", "mig.mode.current", "temperature.gpu")
"""Of `parse_gpus`. The temperature is no use of its own: a GPU that has to be reset says so there, and 0 MiB in use."""
STATUSES = {
    6: "no such device",
    8: "a GPU's power cable isn't attached",
    9: "the driver isn't loaded",
    10: "an interrupt problem of a GPU",
    12: "its library libnvidia-ml isn't there",
    14: "a GPU's infoROM is corrupted",
    15: "a GPU has fallen off the bus",
}
"""nvidia-smi's exit statuses that tell of more than a wrong call."""
_UNITS = re.compile(r"\s*(MiB|GiB|%|W|C|MHz)$")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)
_FAULT = re.compile(r"\berr(or)?\b|\blost\b|\breset\b|fallen off|\btimeout\b", re.IGNORECASE)
_LOST = re.compile(
    r"unable to (determine|detect) the device handle|\blost\b|fallen off|requires? (a )?reset", re.IGNORECASE
)
_CHATTER = re.compile(r"index\b|no devices were found|\+?[-=+|]+$", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU by nvidia-smi's own index. Memory is None where it can't be read; `unread` is what stands there instead.
    `fault` says why no server can be put there; then `uuid` may be ""."""

    index: int
    uuid: str
    name: str
    memory_total_mib: int | None
    memory_used_mib: int | None
    fault: str = ""
    unread: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class SmiAnswer:
    """`lost`: lines on GPUs that can't be read and have no row; `notes`: what else it said; `problem`: why there is no
    row at all."""

    gpus: tuple[GpuFacts, ...] = ()
    lost: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""


def query_argv(fields: Sequence[str]) -> tuple[str, ...]:
    return ("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")


def parse_gpus(status: int | None, stdout: str, stderr: str = "") -> SmiAnswer:
    """The answer to query_argv(FIELDS), the last of which may be missing. `status` None: it gave no answer in time."""
    rows, lines = split_rows(stdout)
    lines += [line.strip() for line in stderr.splitlines() if line.strip()]
    found: dict[int, GpuFacts] = {}
    for row in rows:
        gpu = _gpu(row)
        same = found.get(gpu.index)
        # a MIG device may have a row of its own, with its GPU's index
        found[gpu.index] = gpu if same is None else dataclasses.replace(same, fault=same.fault or gpu.fault)
    gpus = tuple(sorted(found.values(), key=lambda gpu: gpu.index))
    lost = tuple(dict.fromkeys(line for line in lines if _LOST.search(line)))
    notes = [line for line in lines if line not in lost and not _CHATTER.match(line)]
    if gpus and status is None:
        lost = (*lost, "nvidia-smi gave no more answer: it hangs at a GPU")
    elif gpus and status == 15 and not lost and not any(gpu.fault for gpu in gpus):
        lost = (STATUSES[15],)
    elif gpus and status and not (lost or notes) and not any(gpu.fault for gpu in gpus):
        notes = [f"nvidia-smi ended with status {status}: {STATUSES.get(status, 'an error')}"]
    return SmiAnswer(gpus, lost, tuple(notes), "" if gpus else _problem(status, lost, notes, stderr))


def split_rows(text: str) -> tuple[list[list[str]], list[str]]:
    """Rows, which begin with a GPU's index, as cells; and the other lines that aren't blank."""
    rows, lines = [], []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) > 1 and re.fullmatch(r"[0-9]{1,4}", cells[0], re.ASCII):
            rows.append(cells)
        elif line.strip():
            lines.append(line.strip())
    return rows, lines


def is_hidden(text: str) -> bool:
    """Whether it has no row because of one GPU: older drivers give up at the first that they can't read."""
    rows, lines = split_rows(text)
    return not rows and any(_LOST.search(line) for line in lines)


def number(cell: str) -> float | None:
    """The number in a cell, with or without its unit; None for anything else."""
    bare = _UNITS.sub("", cell)
    return float(bare) if _NUMBER.fullmatch(bare) else None


def mib(cell: str) -> int | None:
    found = number(cell)
    return None if found is None or found < 0 else int(found)


def fault_in(cells: Sequence[str]) -> str:
    """The words of a cell that tells of a GPU out of order, such as `GPU requires reset`; "" when none does."""
    return next(_words_of_faults(cells), "")


def word(cell: str) -> str:
    """`[N/A]` → `N/A`."""
    return cell.strip().strip("[]")


def _words_of_faults(cells: Sequence[str]) -> Iterator[str]:
    for cell in cells:
        if (cell.startswith("[") or number(cell) is None) and _FAULT.search(cell):
            yield word(cell)


def _gpu(row: list[str]) -> GpuFacts:
    index, uuid, name, total, used, mig, *others = (*row, *("",) * (len(FIELDS) - len(row)))
    is_whole = uuid.startswith("GPU-")
    fault = fault_in((uuid, total, used, mig, *others)) or ("" if name == "" else fault_in((name,)))
    if not fault and (uuid.startswith("MIG-") or mig.lower() == "enabled"):
        fault = "split by MIG; a server needs a whole GPU"
    if not fault and not is_whole:
        fault = f"no UUID: {word(uuid) or 'nothing'}"
    known = None if fault else mib(used)
    unread = "" if known is not None else fault or word(used) or "nothing"
    return GpuFacts(
        int(index), uuid if is_whole else "", "" if name.startswith("[") else name, mib(total), known, fault, unread
    )


def _problem(status: int | None, lost: Sequence[str], notes: Sequence[str], stderr: str) -> str:
    if status is None:
        if "no such program" in stderr:
            return "no nvidia-smi in the PATH"
        return "nvidia-smi gives no answer: it hangs" if stderr else "no nvidia-smi in the PATH, or it hangs"
    if lost:
        return f"nvidia-smi can read no GPU: {lost[0]}"
    if notes and status:
        return f"nvidia-smi failed: {notes[0]}"
    if status not in (0, 6):
        return f"nvidia-smi failed: status {status}{': ' + STATUSES[status] if status in STATUSES else ''}"
    return f"nvidia-smi lists no GPU{': ' + notes[0] if notes else ''}"
