"""resume and stop over SSH and pct on the lab, with servers that die and generators that are killed."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab import container, faults
from lab import host as lab_host
from lab.place import LabOptions, Place
from rackhand.contract.checks import PromptsCheck, Verified
from rackhand.contract.watch import Sample
from rackhand.inventory import Env, Fleet, Host, Job, ProxmoxLxc, ServerSpec, Ssh
from rackhand.report import Report
from rackhand.workflows.checks import check_job, verify
from rackhand.workflows.deploy import Choice, deploy
from rackhand.workflows.job import Resume, Stop, resume, stop
from rackhand.workflows.metrics import tail_metrics
from rackhand.workflows.servers import Restart, restart_servers, status
from remote.output.job_file import observe_lock

pytestmark = pytest.mark.lab
ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/opt/sglang/bin/python"
PROMPTS = 240
DONE_BEFORE = 3
ARGS = {"mamba-scheduler-strategy": "extra_buffer", "mamba-ssm-dtype": "bfloat16", "mem-fraction-static": 0.85}


class Bench:
    """A deployed lab with two servers that serve, and a job whose first prompts somebody finished before."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place = place
        prompts = folder / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": f"Say {i}."}) + "\n" for i in range(PROMPTS)))
        spec = ServerSpec("Qwen/Qwen3.6-27B", python=PYTHON, args=ARGS, ready_timeout_s=60, stop_timeout_s=20)
        road = ProxmoxLxc(Ssh("pve-lab", place.ssh_config, connect_timeout_s=5), 200)
        self.host = Host("pve1", road, python=PYTHON, env=Env(source="/root/sglang_env.sh"), servers=(spec,))
        self.job = Job("j", "pve1", "/workspace/out", "/workspace/prompts.jsonl", prompts, {"max_tokens": 20}, 8)
        self.output = place.workspace(200) / "out"
        self.output.mkdir()
        (self.output / ".done_indices").write_text("".join(f"{i}\n" for i in range(DONE_BEFORE)))

    @property
    def fleet(self) -> Fleet:
        return Fleet(Path("x.yaml"), (self.host,), (self.job,))

    def resume(self, job: Job | None = None, *, dry_run: bool = False, **wish: Any) -> Report:
        choice = Choice(dry_run=dry_run)
        return resume(self.fleet, job or self.job, Resume(**wish), say=lambda *_: None, choice=choice)

    def stop(self, **wish: Any) -> Report:
        return stop(self.fleet, (self.host,), Stop(**wish), say=lambda *_: None)

    def restart(self) -> Report:
        return restart_servers(self.fleet, (self.host,), Restart(), say=lambda *_: None)

    def status(self) -> dict[str, str]:
        return dict(status(self.fleet, (self.host,), say=lambda *_: None).rows[0].facts)

    def progress(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.output / "progress.json").read_text())
        return found

    def finished(self) -> list[int]:
        return [int(line) for line in (self.output / ".done_indices").read_text().split()]

    def records(self) -> list[int]:
        shards = sorted(self.output.glob("completions-*.jsonl"))
        return [json.loads(line)["index"] for shard in shards for line in shard.read_text().splitlines()]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("job")
    try:
        place = lab_host.up(
            ROOT,
            LabOptions(gpus=2, load_seconds=0.5, release_seconds=0.5, speed=6),
            state=folder / "lab",
        )
        bench = Bench(place, folder)
        assert deploy(bench.fleet, (bench.host,), say=lambda *_: None, choice=Choice()).exit_code == 0
        yield bench
    finally:
        lab_host.down(ROOT, state=folder / "lab")


def what(report: Report) -> list[str]:
    assert report.rows[0].error is None, f"{report.rows[0].error}\n{report.rows[0].error.detail}"
    return [outcome.what for outcome in report.rows[0].outcomes]


def await_true(check: Callable[[], object], said: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, said
        time.sleep(0.1)


def kill(place: Place, pid: int) -> None:
    """SIGKILL to a process of the container, by its pid in there."""
    argv = container.attach_argv(place, 200, "/bin/kill", "-9", str(pid), keep_env=False)
    subprocess.run(argv, check=True, capture_output=True)


def test_without_a_server_that_generates_nothing_is_started(bench: Bench) -> None:
    assert bench.resume(dry_run=True).exit_code == 4
    report = bench.resume()
    assert report.exit_code in (3, 4)
    assert "no server generates" in str(report.rows[0].error)
    assert "restart-servers" in str(report.rows[0].error)


@pytest.mark.timeout(300)
def test_a_job_survives_a_dead_server_and_a_dead_generator_and_is_done_once(bench: Bench) -> None:
    assert bench.restart().exit_code == 0
    assert what(bench.resume())[-1] == f"job j: started, {DONE_BEFORE} already done, 2 of 2 servers generate"
    again = bench.resume()
    assert again.exit_code == 0
    assert what(again)[0].startswith("job j: already running (pid ")

    await_true(lambda: bench.progress()["completed"] >= 5, "completions come")
    # However slow this machine is, the job isn't over before the last resume.
    for gpu in (0, 1):
        faults.set_fault(bench.place.gpu_dir(200), gpu, "slow", factor=4.0)
    planned = bench.resume(dry_run=True, concurrency="auto")
    assert what(planned)[0].startswith("set concurrency of job j (pid ")
    assert bench.progress()["concurrency"] == "8"
    assert what(bench.resume(concurrency="auto"))[0].startswith("job j: changed to concurrency auto, ")
    assert bench.progress()["concurrency"] == "auto"
    assert what(bench.resume(concurrency="auto"))[0].startswith("job j: already running (pid ")
    late = bench.resume(retry_failed=True)
    assert late.exit_code == 4
    assert "--retry-failed work at a start only" in str(late.rows[0].error)
    record = bench.place.workspace(200) / "rackhand/run/gpu1.json"
    kill(bench.place, json.loads(record.read_text())["pid"])
    await_true(lambda: json.loads(record.read_text())["exit_status"] == -9, "the supervisor sees it end")
    before = len(bench.finished())
    assert bench.status()["GPU 1"].startswith("dead (exit -9)")
    assert "the server was killed (signal 9)" in bench.status()["GPU 1"]
    await_true(lambda: len(bench.finished()) > before, "the other server goes on")
    kill(bench.place, bench.progress()["pid"])
    await_true(lambda: observe_lock(bench.output) is None, "the generator is gone")
    said = "killed (the generator was killed (signal 9); ./inv resume goes on), "
    await_true(lambda: bench.status()["job j"].startswith(said), "status says how the generator ended")

    other = replace(bench.job, upload=bench.place.state / "other.jsonl")
    other.upload.write_text('{"prompt": "other"}\n')
    there = (bench.place.workspace(200) / "prompts.jsonl").read_bytes()
    gone = replace(bench.job, upload=None, prompts="/workspace/gone.jsonl")
    for job, dry_run, said in (
        (replace(bench.job, sampling={"max_tokens": 9}), True, "the sampling changed: max_tokens"),
        (replace(bench.job, sampling={"max_tokens": 9}), False, "the sampling changed: max_tokens"),
        (other, False, "the prompts changed"),
        (gone, True, "no prompts file /workspace/gone.jsonl"),
        (replace(bench.job, upload=bench.place.state / "none.jsonl"), True, "can't read"),
    ):
        refused = bench.resume(job, dry_run=dry_run)
        assert (refused.exit_code, said in str(refused.rows[0].error)) == (4, True), refused.rows[0].error
    assert (bench.place.workspace(200) / "prompts.jsonl").read_bytes() == there, "refused before anything was sent"
    assert what(bench.resume(dry_run=True))[0].startswith("start job j on 2 servers")
    assert observe_lock(bench.output) is None

    done = len(bench.finished())
    second = bench.resume()
    assert second.exit_code == 3, "one server is dead: said, and not in the way"
    assert what(second)[0] == f"job j: started, {done} already done, 1 of 2 servers generate"
    stopped = bench.stop()
    assert stopped.exit_code == 0
    assert what(stopped)[0].startswith("job j: stopped")
    assert bench.status()["job j"].startswith("stopped")

    faults.clear_faults(bench.place.gpu_dir(200))
    assert bench.resume(concurrency=64).exit_code == 3
    await_true(lambda: bench.progress()["status"] == "done", "the job ends", 110)
    assert sorted(bench.finished()) == list(range(PROMPTS))
    assert sorted(bench.records()) == list(range(DONE_BEFORE, PROMPTS))
    await_true(lambda: observe_lock(bench.output) is None, "the generator ended")
    assert what(bench.resume())[0].startswith(f"job j: done, {PROMPTS} of {PROMPTS} done")
    output = verify(bench.fleet, bench.job, say=lambda *_: None).found
    assert isinstance(output, Verified)
    assert (output.records, output.imported, output.problems) == (PROMPTS - DONE_BEFORE, DONE_BEFORE, ())
    prompts = check_job(bench.fleet, replace(bench.job, upload=None), say=lambda *_: None)
    assert (prompts.where, prompts.exit_code) == ("pve1/ct200", 0)
    assert isinstance(prompts.found, PromptsCheck)
    assert (prompts.found.rows, prompts.found.duplicates) == (PROMPTS, 0)


def test_new_starts_another_output_that_every_verb_sees_at_work(bench: Bench) -> None:
    report = bench.resume(new=True)
    assert "job j: started, 0 already done, 1 of 2 servers generate" in what(report)
    assert (bench.place.workspace(200) / "out-2/job.json").exists()
    assert what(bench.resume())[0].startswith("job j: already running in /workspace/out-2 (pid ")
    (row,) = status(bench.fleet, (bench.host,), say=lambda *_: None).rows
    assert row.facts["job j in /workspace/out-2"].startswith("running, ")
    samples: list[Sample] = []
    tail_metrics(
        bench.fleet, (bench.host,), show=lambda _, sample: samples.append(sample), say=lambda *_: None, once=True
    )
    (seen,) = samples[0].jobs
    assert (seen.output, (seen.progress or {})["status"]) == ("/workspace/out-2", "running")
    second = replace(bench.job, name="k", output="/workspace/k")
    fleet = Fleet(Path("x.yaml"), (bench.host,), (bench.job, second))
    (row,) = resume(fleet, second, Resume(), say=lambda *_: None).rows
    assert "something runs in tmux session gen" in str(row.error)
    assert what(bench.stop())[0].startswith("job j: stopped")
    assert bench.status()["job j in /workspace/out-2"].startswith("stopped, ")
    first = verify(bench.fleet, bench.job, say=lambda *_: None).found
    again = verify(bench.fleet, bench.job, output="/workspace/out-2", say=lambda *_: None).found
    assert isinstance(first, Verified)
    assert isinstance(again, Verified)
    assert (first.others, again.others, again.output) == (
        ("/workspace/out-2",),
        ("/workspace/out",),
        "/workspace/out-2",
    )
