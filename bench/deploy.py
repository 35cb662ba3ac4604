"""deploy of 10 changed files against the loop of scp and pct push that it replaces, to 1, 4 and 8 containers.

Run: python bench/deploy.py [--rounds 3] [--delay 0.8]      (root; some minutes)

The lab with `--pct-delay`: the seconds that Proxmox's own pct takes before it does anything. The loop is the field
report's: for each container and file one scp to the Proxmox host and one `pct push` over ssh, one after the other. Both
change all files of all containers in each round and alternate; deploy is a process of its own, as ./inv is. Prints
medians and their ratio against the bar of 6.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lab import host  # noqa: E402
from lab.place import LabOptions, Place  # noqa: E402

FILES, FILE_BYTES, BAR = 10, 4096, 6.0
VMIDS = tuple(range(200, 208))
INV = "import sys; sys.path.insert(0, sys.argv[1]); from rackhand.program import main; main(sys.argv[2:])"


def main(rounds: int, delay_s: float) -> None:
    with tempfile.TemporaryDirectory(prefix="rackhand-bench-") as name:
        folder = Path(name)
        options = LabOptions(gpus=1, pct_delay_s=delay_s, vmid=VMIDS[0], more_vmids=VMIDS[1:])
        try:
            place = host.up(ROOT, options, state=folder / "lab")
            for count in (1, 4, 8):
                _compare(place, folder, VMIDS[:count], rounds)
        finally:
            host.down(ROOT, state=folder / "lab")


def _compare(place: Place, folder: Path, vmids: tuple[int, ...], rounds: int) -> None:
    inventory = folder / f"{len(vmids)}.json"
    inventory.write_text(json.dumps(_inventory(place, folder, vmids)))
    for vmid in vmids:
        (place.workspace(vmid) / "loop").mkdir(exist_ok=True)
    _change(folder, "first")
    _deploy(inventory)
    pairs = []
    for number in range(rounds):
        _change(folder, f"{len(vmids)}-{number}")
        place.pct_calls.unlink(missing_ok=True)
        ours = _deploy(inventory)
        calls = len(place.pct_calls.read_text().splitlines())
        assert calls == len(vmids), calls
        _check(place, folder, vmids, "ours")
        pairs.append((ours, _loop(place, folder, vmids)))
        _check(place, folder, vmids, "loop")
    ours, loop = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(theirs / mine for mine, theirs in pairs)
    print(
        f"{len(vmids)} containers: deploy {ours:5.1f} s, loop {loop:6.1f} s, ratio {loop / ours:5.1f} "
        f"(bar {BAR:g}; pairs {ratios[0]:.1f}-{ratios[-1]:.1f})",
        flush=True,
    )


def _inventory(place: Place, folder: Path, vmids: tuple[int, ...]) -> dict[str, object]:
    files = [{"src": str(folder / f"f{n}"), "dest": f"/workspace/ours/f{n}"} for n in range(FILES)]
    ssh = {"destination": "pve-lab", "config": str(place.ssh_config)}
    common = {"type": "proxmox-lxc", "ssh": ssh, "python": "/opt/sglang/bin/python", "files": files}
    return {"hosts": {f"ct{vmid}": {**common, "vmid": vmid} for vmid in vmids}}


def _change(folder: Path, text: str) -> None:
    for number in range(FILES):
        (folder / f"f{number}").write_text(f"{text}-{number}\n".ljust(FILE_BYTES, "x"))


def _deploy(inventory: Path) -> float:
    argv = (sys.executable, "-c", INV, str(ROOT), "deploy", "--yes", "--inventory", str(inventory))
    return _seconds(argv)


def _loop(place: Place, folder: Path, vmids: tuple[int, ...]) -> float:
    lines = [f'set -e; S="-q -F {place.ssh_config}"']
    for vmid in vmids:
        for number in range(FILES):
            staged = f"/tmp/rackhand-bench-{vmid}-{number}"  # noqa: S108
            lines.append(f"scp $S {folder}/f{number} pve-lab:{staged}")
            lines.append(f"ssh $S pve-lab 'pct push {vmid} {staged} /workspace/loop/f{number}; rm {staged}'")
    return _seconds(("/bin/sh", "-c", "\n".join(lines)))


def _seconds(argv: tuple[str, ...]) -> float:
    began = time.perf_counter()
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return time.perf_counter() - began


def _check(place: Place, folder: Path, vmids: tuple[int, ...], where: str) -> None:
    for vmid in vmids:
        for number in range(FILES):
            there = place.workspace(vmid) / where / f"f{number}"
            assert there.read_bytes() == (folder / f"f{number}").read_bytes(), there


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.8)
    given = parser.parse_args()
    main(given.rounds, given.delay)
