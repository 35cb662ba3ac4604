"""Faults on request, for the tests and the demo: faults.json of a state directory, read at run time.

    {"0": {"hang": {}}, "all": {"slow": {"factor": 3.0}}}

`python -m lab.faults set GPU|all NAME [key=value ...]`, `... clear [GPU]`, `... show`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

NAMES = {
    "crash_at_start": "kind=cuda_oom|sm120|no_memory|killed: the server ends while it loads",
    "crash_under_load": "after=N: the scheduler raises when the Nth request arrives (N counts from the server's start)",
    "hang": "after=N (0): /health says 200 while no request ends any more",
    "slow_start": "seconds=S: loading takes S seconds longer",
    "memory_kept": "memory of an ended process is not given back while this stands",
    "orphan": "the scheduler child outlives its parent and keeps the memory",
    "http_500": "share=0..1: this share of generation requests is answered 500",
    "slow": "factor=X: each decode step takes X times as long",
    "throttle": "reason=thermal|hw_thermal|power_brake|power_cap factor=X (2): in nvidia-smi; steps X times as long",
    "starved": "util=PCT: the CPU lets the GPU wait: so much GPU util, and steps take 100/PCT times as long",
    "slow_prefill": "tok_s=N: prompts are read at N tokens/s, one batch between two decode steps, which wait meanwhile",
    "smi": "says=na|unsupported|permission|unknown|reset|err|lost|handle|mig|inforom: nvidia-smi can't read the GPU; "
    "hang|mismatch|no_driver: nothing at all",
    "poor_drafts": "accept_len=X: tokens a step with speculation, of a server that starts from now on",
}


def set_fault(state_dir: Path | str, gpu: int | None, name: str, **params: Any) -> None:
    """Makes the GPU with this index (None: every GPU) show the fault `name` from now on. ValueError: unknown name."""
    if name not in NAMES:
        raise ValueError(f"unknown fault {name}; there are {', '.join(NAMES)}")
    faults = read_faults(state_dir)
    faults.setdefault("all" if gpu is None else str(gpu), {})[name] = params
    _write(Path(state_dir), faults)


def clear_faults(state_dir: Path | str, gpu: int | None = None) -> None:
    """Takes the faults of one GPU away, or all of them."""
    faults = {} if gpu is None else read_faults(state_dir)
    faults.pop(str(gpu), None)
    _write(Path(state_dir), faults)


def read_faults(state_dir: Path | str) -> dict[str, dict[str, dict[str, Any]]]:
    """faults.json as it stands; empty when there is none."""
    try:
        found: dict[str, dict[str, dict[str, Any]]] = json.loads((Path(state_dir) / "faults.json").read_bytes())
    except FileNotFoundError:
        return {}
    return found


def faults_of(state_dir: Path | str, gpu: int) -> dict[str, dict[str, Any]]:
    """The faults of one GPU: name → parameters; its own go before those of all."""
    faults = read_faults(state_dir)
    return {**faults.get("all", {}), **faults.get(str(gpu), {})}


def slowness_of(faults: dict[str, dict[str, Any]]) -> float:
    """How many times as long a decode step takes with a GPU's faults."""
    slow = float(faults.get("slow", {}).get("factor", 1.0))
    throttled = float(faults["throttle"].get("factor", 2.0)) if "throttle" in faults else 1.0
    return slow * throttled * 100 / float(faults.get("starved", {}).get("util", 100))


def _write(state_dir: Path, faults: dict[str, dict[str, dict[str, Any]]]) -> None:
    draft = state_dir / f".faults.{os.getpid()}"
    draft.write_text(json.dumps(faults))
    draft.replace(state_dir / "faults.json")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def main(argv: list[str]) -> int:
    """The command line; 2 for a wrong one."""
    state_dir = os.environ.get("RACKHAND_LAB_DIR", "/run/rackhand-lab")
    match argv:
        case ["set", gpu, name, *params] if name in NAMES and (gpu == "all" or gpu.isdigit()):
            pairs = dict(p.partition("=")[::2] for p in params)
            chosen = None if gpu == "all" else int(gpu)
            set_fault(state_dir, chosen, name, **{k: _value(v) for k, v in pairs.items()})
        case ["clear"]:
            clear_faults(state_dir)
        case ["clear", gpu] if gpu.isdigit():
            clear_faults(state_dir, int(gpu))
        case ["show"]:
            print(json.dumps(read_faults(state_dir), indent=1))
        case _:
            sys.stderr.write(f"{__doc__}\n" + "".join(f"  {n}: {text}\n" for n, text in NAMES.items()))
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
