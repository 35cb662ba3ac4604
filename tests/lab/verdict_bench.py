"""A lab of eight GPUs on which the causes of verdicts are made, and a watch that tells what is found."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lab import container
from lab.faults import clear_faults, set_fault
from lab.machine import Machine
from lab.place import Place
from rackhand.arguments import FlagValue
from rackhand.contract.watch import Sample
from rackhand.diagnose import Diagnosis, diagnose
from rackhand.inventory import Env, Fleet, Host, Job, ProxmoxLxc, ServerSpec, Ssh
from rackhand.report import Report
from rackhand.steady import last_seconds
from rackhand.workflows.deploy import Choice, deploy
from rackhand.workflows.job import Resume, Stop, resume, stop
from rackhand.workflows.metrics import tail_metrics
from rackhand.workflows.record import Recorder
from rackhand.workflows.servers import Restart, restart_servers
from tests.lab.kept_samples import Told, keep_samples
from tests.lab.load import Load, load_command

VMID = 200
GPUS = 8
PYTHON = "/opt/sglang/bin/python"
MODEL = "Qwen/Qwen3.6-27B"
WINDOW_S = 20.0
KEPT_ENV = "RACKHAND_KEEP_SAMPLES"
"""A directory for the samples of each scene, as tests/diagnose/lab has them."""
FLAGS: Mapping[str, FlagValue] = {
    "mamba-scheduler-strategy": "extra_buffer",
    "max-mamba-cache-size": 40,
    "mem-fraction-static": 0.85,
    "chunked-prefill-size": 4096,
    "enable-metrics": True,
}
"""Eight requests at a time: 40 state slots // 5."""
STALL = "while kill -STOP $1; do sleep 1.$((RANDOM % 9)); kill -CONT $1; sleep 0.8; done"


@dataclass
class VerdictBench:
    """The lab, its servers and its machine. `host` changes with the flags of its servers."""

    place: Place
    host: Host = field(init=False)
    machine: Machine = field(init=False)
    jobs: tuple[Job, ...] = ()
    is_broken: bool = False

    def __post_init__(self) -> None:
        road = ProxmoxLxc(Ssh("pve-lab", self.place.ssh_config), VMID)
        self.host = Host("pve1", road, gpus=tuple(range(GPUS)), python=PYTHON, env=Env(source="/root/sglang_env.sh"))
        self.machine = Machine(self.place, VMID)

    @property
    def fleet(self) -> Fleet:
        return Fleet(Path("x.yaml"), (self.host,), self.jobs)

    @property
    def gpu_dir(self) -> Path:
        return self.place.gpu_dir(VMID)

    @property
    def workspace(self) -> Path:
        return self.place.workspace(VMID)

    def serve(
        self,
        differing: Mapping[int, Mapping[str, FlagValue]] | None = None,
        *,
        at_start: Mapping[int, tuple[str, Mapping[str, Any]]] | None = None,
    ) -> None:
        """Servers on all GPUs without load; FLAGS and what differs on some, faults that a start reads. Those that serve
        so already stay, unless `is_broken`."""
        self.quiet()
        specs = tuple(
            ServerSpec(
                MODEL,
                python=PYTHON,
                args={**FLAGS, **(differing or {}).get(gpu, {})},
                gpus=(gpu,),
                ready_timeout_s=300,
                stop_timeout_s=20,
            )
            for gpu in range(GPUS)
        )
        if specs == self.host.servers and not self.is_broken and not at_start:
            return
        self.host = replace(self.host, servers=specs)
        done = deploy(self.fleet, (self.host,), say=_silent, choice=Choice())
        assert done.exit_code == 0, done.rows[0].error
        for gpu, (name, params) in (at_start or {}).items():
            set_fault(self.gpu_dir, gpu, name, **params)
        done = restart_servers(self.fleet, (self.host,), Restart(), say=_silent)
        assert done.exit_code == 0, (done.rows[0].error, [outcome.what for outcome in done.rows[0].outcomes])
        self.is_broken = False

    @contextlib.contextmanager
    def serve_by_hand(self, gpu: int) -> Iterator[None]:
        """Somebody's own server in the place of ours: no record of it, its log elsewhere, no /metrics."""
        record = self.workspace / f"rackhand/run/gpu{gpu}.json"
        self.in_container("kill", "-9", str(json.loads(record.read_text())["pid"]))
        deadline = time.monotonic() + 30
        while json.loads(record.read_text())["exit_status"] is None:
            assert time.monotonic() < deadline, "its supervisor sees no end"
            time.sleep(0.1)
        ask = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", str(gpu))
        while float(self.in_container(*ask)) > 1000:
            assert time.monotonic() < deadline, "its memory doesn't come back"
            time.sleep(0.1)
        record.unlink()
        (self.workspace / f"sglang_logs/sglang_gpu{gpu}.log").unlink()
        words = [f"--{name} {value}" for name, value in FLAGS.items() if value is not True]
        serve = f"{PYTHON} -m sglang.launch_server --model-path {MODEL} --port {30000 + gpu} {' '.join(words)}"
        self.in_container("bash", "-c", f"CUDA_VISIBLE_DEVICES={gpu} setsid {serve} </dev/null >/dev/null 2>&1 &")
        try:
            yield
        finally:
            self.in_container("bash", "-c", f"pkill -KILL -f '^{PYTHON} -m sglang.*--port {30000 + gpu} '; true")

    def load(self, *loads: Load) -> None:
        self.in_container("bash", "-c", load_command(*loads))

    def quiet(self) -> None:
        """No load, no job, no fault, a quiet machine."""
        clear_faults(self.gpu_dir)
        self.in_container("bash", "-c", f"pkill -KILL -f '^{PYTHON} - '; true")
        if self.jobs:
            stop(self.fleet, (self.host,), Stop(timeout_s=5), say=_silent)
        self.machine.show()

    def resume(self, job: Job, concurrency: int) -> None:
        report = resume(self.fleet, job, Resume(concurrency=concurrency), say=_silent)
        assert report.exit_code == 0, report

    def wish(self, wish: str) -> None:
        """control.json, as a verb leaves it that was killed before it asked for the servers again."""
        control = self.workspace / "rackhand/control.json"
        draft = control.with_suffix(".draft")
        draft.write_text(json.dumps({"servers": {f"http://127.0.0.1:{30000 + gpu}": wish for gpu in range(GPUS)}}))
        draft.replace(control)

    @contextlib.contextmanager
    def small_disk(self, name: str, *, mib: int) -> Iterator[None]:
        """A file system of its own under /workspace."""
        pid = str(container.init_pid(self.place, VMID))
        enter = ["nsenter", "-t", pid, "-m", "-p"]
        self.in_container("mkdir", "-p", f"/workspace/{name}")
        mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "small", f"/workspace/{name}"]
        subprocess.run([*enter, *mount], check=True, capture_output=True)
        try:
            yield
        finally:
            subprocess.run([*enter, "umount", "-l", f"/workspace/{name}"], check=True, capture_output=True)

    @contextlib.contextmanager
    def stalling_generator(self, job: Job) -> Iterator[None]:
        """The job's generator gets about a third of its time, as one whose disk or CPU keeps it waiting."""
        pid = json.loads((self.workspace / Path(job.output).name / "progress.json").read_text())["pid"]
        self.in_container("bash", "-c", f"setsid bash -c '{STALL}' stall {pid} </dev/null >/dev/null 2>&1 &")
        try:
            yield
        finally:
            self.in_container("bash", "-c", f"pkill -KILL -f '^bash -c .* stall {pid}$'; kill -CONT {pid}")

    def in_container(self, *argv: str) -> str:
        words = container.attach_argv(self.place, VMID, *argv, keep_env=False)
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, (argv, done.stdout, done.stderr)
        return done.stdout

    @contextlib.contextmanager
    def watch(self, recorder: Recorder | None = None) -> Iterator[Watch]:
        watch = Watch(self, recorder)
        thread = threading.Thread(target=watch.run)
        thread.start()
        try:
            yield watch
        finally:
            watch.stop.set()
            thread.join(20)
            assert not thread.is_alive()


@dataclass
class Watch:
    """Follows the lab's servers in the background, a sample a second."""

    bench: VerdictBench
    recorder: Recorder | None = None
    samples: list[Sample] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    report: Report | None = None

    def run(self) -> None:
        fleet = self.bench.fleet
        with contextlib.suppress(StopError):
            self.report = tail_metrics(fleet, fleet.hosts, show=self.show, say=_silent, interval_s=1.0)

    def show(self, host: Host, sample: Sample) -> None:
        self.samples.append(sample)
        if self.recorder:
            self.recorder.take(host, sample)
        self.bench.machine.pass_time()
        if self.stop.is_set():
            raise StopError

    def await_verdicts(self, scene: str, wanted: Told, *, looks: int = 3, limit_s: float = 150.0) -> Diagnosis:
        """Until a window that begins now gives `wanted` and nothing else, so many looks in a row."""
        begin, alike = time.time(), 0
        deadline = time.monotonic() + limit_s
        found = self.found(begin)
        while alike < looks:
            assert time.monotonic() < deadline, f"{scene}: {told(found)}\n{found}\n{self.report}\n{self.samples[-1:]}"
            time.sleep(1.0)
            found = self.found(begin)
            alike = alike + 1 if told(found) == wanted and found.seconds > WINDOW_S - 3 else 0
        seen = last_seconds(tuple(self.samples), WINDOW_S)
        every = 2 if told(diagnose(seen[::2], window_s=WINDOW_S)) == wanted else 1
        self.keep(scene, wanted, seen, every=every)
        return found

    def job_status(self) -> str:
        jobs = self.samples[-1].jobs if self.samples else ()
        return str((jobs[0].progress or {}).get("status", "")) if jobs else ""

    def found(self, since: float = 0.0) -> Diagnosis:
        seen = [sample for sample in tuple(self.samples) if sample.time >= since]
        return diagnose(seen, window_s=WINDOW_S)

    def keep(self, scene: str, wanted: Told, samples: Sequence[Sample], *, every: int = 2) -> None:
        if folder := os.environ.get(KEPT_ENV):
            keep_samples(Path(folder) / f"{scene}.json", samples[::every], wanted, window_s=WINDOW_S)


class StopError(Exception):
    """Ends a watch."""


def told(found: Diagnosis) -> Told:
    return [(verdict.name, verdict.stage, verdict.gpus) for verdict in found.verdicts]


def _silent(*_: object) -> None:
    return None
