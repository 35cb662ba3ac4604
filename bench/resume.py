"""How soon a resume asks: from the start of the process to the first request, and the peak RSS until then.

Run: python bench/resume.py [--done 1000000] [--row-bytes 1000] [--runs 3] [--folder DIR]

Makes an output with so many done: closed shards (sparse files of 256 MiB, 8 GB a million), 64 MiB of an open shard
that is real, a hole at row 17 and 1,000 rows left at the end. `first` is without what the generator keeps beside an
output (.done_indices.bits, .prompts_offsets), `next` with it. The page cache is warm.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from remote.output.done_bits import BITS_FILE  # noqa: E402
from remote.output.done_file import DONE_FILE, done_lines  # noqa: E402
from remote.output.job_file import observe_prompts_digest, start_job  # noqa: E402
from remote.output.ledger import utc_now  # noqa: E402
from remote.output.shards import Closed, manifest_line, shard_name  # noqa: E402
from remote.prompts.offsets import OFFSETS_FILE, observe_known  # noqa: E402

LEFT = 1_000
HOLE = 17
RECORD_BYTES = 8_192
SHARD_BYTES = 256 << 20
OPEN_BYTES = 64 << 20
BARS = {1_000_000: (2.0, 150), 10_000_000: (10.0, 300)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--done", type=int, default=1_000_000)
    parser.add_argument("--row-bytes", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", help="where the output is made; it must hold sparse files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        prompts, output = Path(folder) / "prompts.jsonl", Path(folder) / "out"
        _make_prompts(prompts, options.done + LEFT, options.row_bytes)
        _make_output(output, prompts, options.done)
        print(f"{options.done} done, prompts of {prompts.stat().st_size >> 20} MiB, load {os.getloadavg()[0]:.1f}")
        first = _measure(prompts, output)
        observe_known(prompts, output, observe_prompts_digest(prompts), (0, 1)).count_rows()
        assert (output / BITS_FILE).exists() and (output / OFFSETS_FILE).exists()
        runs = [_measure(prompts, output) for _ in range(options.runs)]
        bar = "  (bars {} s, {} MiB)".format(*BARS[options.done]) if options.done in BARS else ""
        print(f"first  {first[0]:6.2f} s  {first[1]:5.0f} MiB")
        print(f"next   {statistics.median(r[0] for r in runs):6.2f} s  {max(r[1] for r in runs):5.0f} MiB{bar}")


def _make_prompts(path: Path, count: int, size: int) -> None:
    with path.open("wb") as file:
        for index in range(count):
            file.write(b'{"id": %d, "prompt": "prompt %d %s"}\n' % (index, index, b"x" * max(0, size - 50)))


def _make_output(output: Path, prompts: Path, done: int) -> None:
    output.mkdir()
    start_job(output, prompts, observe_prompts_digest(prompts), {"max_tokens": 8}, shard=(0, 1), model=None)
    indices = [index for index in range(done + 1) if index != HOLE]
    open_count = OPEN_BYTES // RECORD_BYTES
    with (output / DONE_FILE).open("wb") as listed, (output / "manifest.jsonl").open("wb") as manifest:
        per_shard, number = SHARD_BYTES // RECORD_BYTES, 0
        for at in range(0, done - open_count, per_shard):
            here = indices[at : min(at + per_shard, done - open_count)]
            listed.write(done_lines(here))
            with (output / shard_name(number)).open("wb") as shard:
                shard.truncate(len(here) * RECORD_BYTES)
            entry = Closed(
                shard_name(number), len(here), here[0], here[-1], len(here) * RECORD_BYTES, "0" * 64,
                listed.tell(), at + len(here), utc_now(),
            )  # fmt: skip
            manifest.write(manifest_line(entry))
            number += 1
        listed.write(done_lines(indices[done - open_count :]))
    with (output / shard_name(number)).open("wb") as shard:
        for index in indices[done - open_count :]:
            head, tail = b'{"index":%d,"completion":"' % index, b'"}\n'
            shard.write(head + b"x" * (RECORD_BYTES - len(head) - len(tail)) + tail)


def _measure(prompts: Path, output: Path) -> tuple[float, float]:
    server = subprocess.Popen(
        [sys.executable, ROOT / "bench/null_server.py", "--ports", "1", "--lat", "600000"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    url = f"http://127.0.0.1:{json.loads(server.stdout.readline())[0]}"
    argv = [sys.executable, "-m", "remote", "generate", "--prompts", prompts, "--output", output, "--server", url]
    options = ["--concurrency", "8", "--sampling", '{"max_tokens": 8}', "--drain-timeout", "0"]
    with tempfile.TemporaryFile() as said:
        began = time.monotonic()
        process = subprocess.Popen([*argv, *options], cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)
        try:
            while not (asked := _asked(url)):
                if process.poll() is not None:
                    said.seek(0)
                    sys.exit(f"the generator ended: {said.read().decode()}")
                time.sleep(0.05)
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak_kib = int(status.split("VmHWM:")[1].split()[0])
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        finally:
            process.kill()
            server.kill()
            server.communicate()
    return asked - began, peak_kib / 1024


def _asked(url: str) -> float:
    with urllib.request.urlopen(f"{url}/_stats", timeout=10) as answer:  # noqa: S310
        return float(json.load(answer)["asked"])


if __name__ == "__main__":
    main()
