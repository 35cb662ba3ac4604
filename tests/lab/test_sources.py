"""The sources of a watch side by side on the lab, and what is rebuilt from the logs when the road was cut."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest

from lab import sshd, trouble
from rackhand.agent import Session
from rackhand.contract.watch import GpuSample, Sample, WatchedServer
from rackhand.follow import follow_samples
from rackhand.inventory import Fleet, Host, Job, ProxmoxLxc, ServerSpec, Ssh
from rackhand.recording import Recording, recording_file, recordings_dir
from rackhand.workflows.fleet import Roads
from rackhand.workflows.metrics import plan_watch, tail_metrics
from rackhand.workflows.record import Recorder
from tests.lab.conftest import VMID, Lab
from tests.lab.load import Load, load_command

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(400)]
PYTHON = "/opt/sglang/bin/python"
LOG = "/workspace/sglang_logs/sglang_gpu{gpu}.log"
RUNNING, QUEUE = 8, 4
SERVE = f"""
mkdir -p /workspace/sglang_logs
for gpu in 0 1; do
  metrics=--enable-metrics; [ $gpu = 1 ] && metrics=
  CUDA_VISIBLE_DEVICES=$gpu setsid {PYTHON} -m sglang.launch_server --model-path Qwen/Qwen3.6-27B \\
    --port $((30000 + gpu)) --nccl-port $((40000 + gpu)) --mamba-scheduler-strategy extra_buffer \\
    --max-mamba-cache-size 40 --mem-fraction-static 0.90 --trust-remote-code $metrics \\
    >/workspace/sglang_logs/sglang_gpu$gpu.log 2>&1 </dev/null &
done
"""
WINDOWS = """
import http.server, threading, urllib.request
def window(port, hidden):
    class Window(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = 404, b"{}"
            if self.path not in hidden:
                with urllib.request.urlopen("http://127.0.0.1:30000" + self.path) as answer:
                    status, body = answer.status, answer.read()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        def log_message(self, *_):
            pass
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Window).serve_forever()
for port, hidden in ((31001, ["/metrics"]), (31002, ["/v1/loads"]), (31003, ["/metrics", "/v1/loads"])):
    threading.Thread(target=window, args=(port, hidden), daemon=port < 31003).start()
"""
THROUGHPUT = """
import json, time, urllib.request
found = []
for _ in range(60):
    found.append(json.load(urllib.request.urlopen("http://127.0.0.1:30000/v1/loads"))["loads"][0]["gen_throughput"])
    time.sleep(0.5)
print(json.dumps(found))
"""


class EnoughError(Exception):
    """A test has seen what it wanted."""


@pytest.fixture(scope="module")
def fleet(lab: Lab) -> Iterator[Fleet]:
    """Two servers with a full batch and a queue; the second has no /metrics. Windows at 31001-31003 show the first one
    without /metrics, without /v1/loads, and without both."""
    waves = range(RUNNING + QUEUE)
    loads = (Load(gpu, 1, prompt_tokens=12_000, tokens=2000 + 250 * wave) for gpu in (0, 1) for wave in waves)
    windows = f"setsid {PYTHON} - >/dev/null 2>&1 <<'END' &\n{WINDOWS}\nEND"
    for words in (SERVE, load_command(*loads), windows):
        started = lab.in_container("bash", "-c", words)
        assert started.code == 0, started.err
    host = Host("pve1", ProxmoxLxc(Ssh("pve-lab", lab.ssh_config), VMID), python=PYTHON, servers=(ServerSpec("m"),))
    (lab.workspace / "out").mkdir()
    (lab.workspace / "out/progress.json").write_text('{"completed": 747, "status": "running", "pid": 7}')
    yield Fleet(Path("x.yaml"), (host,), (Job("expansion", "pve1", "/workspace/out", "/workspace/p.jsonl"),))
    lab.in_container("bash", "-c", f"pkill -KILL -f '^{PYTHON} -( |m sglang)'; rm -r /workspace/out")


def watch(fleet: Fleet, servers: tuple[WatchedServer, ...], is_enough: Callable[[list[Sample]], bool]) -> list[Sample]:
    roads, stop, found = Roads(), threading.Event(), list[Sample]()
    (host,) = fleet.hosts
    request = replace(plan_watch(host, (), once=False, interval_s=0.5), servers=servers, seen_only=False)
    with closing(roads), Session(roads.open(host)) as session:
        for sample in follow_samples(session, request, python=PYTHON, say=lambda _: None, stop=stop):
            found.append(sample)
            if is_enough(found):
                stop.set()
    return found


def mean(samples: list[Sample], view: int, name: str) -> float:
    values = [getattr(sample.gpus[view], name) for sample in samples]
    return fmean(value for value in values if value is not None)


def is_loaded(gpu: GpuSample) -> bool:
    return gpu.running == RUNNING and gpu.queue == QUEUE


def test_metrics_loads_and_log_agree_and_each_stands_in_for_the_others(lab: Lab, fleet: Fleet) -> None:
    whole, no_metrics, no_loads, log_only, plain, plain_log = range(6)
    ports = (30000, 31001, 31002, 31003, 30001, 9)
    servers = tuple(
        WatchedServer(view, f"http://127.0.0.1:{port}", LOG.format(gpu=int(view >= plain)))
        for view, port in enumerate(ports)
    )
    steady: list[float] = []

    def is_enough(samples: list[Sample]) -> bool:
        gpus = samples[-1].gpus
        if not steady and all(is_loaded(gpu) for gpu in gpus[:plain]) and gpus[whole].tok_s_source == "counter":
            steady.append(samples[-1].time)
            asking.start()
        return bool(steady) and samples[-1].time - steady[0] > 40

    told: list[float] = []
    asking = threading.Thread(
        target=lambda: told.extend(json.loads(lab.in_container(PYTHON, "-c", THROUGHPUT, timeout_s=90).out))
    )
    samples = [s for s in watch(fleet, servers, is_enough) if s.time >= steady[0]]
    asking.join()
    assert len(samples) > 60
    assert all(sample.gpus[whole].kv_tokens and sample.gpus[whole].decoded_tokens for sample in samples)
    sources = [{sample.gpus[view].tok_s_source for sample in samples} for view in range(5)]
    assert sources == [{"counter"}, {"log"}, {"counter"}, {"log"}, {"log"}]
    for view in (no_metrics, no_loads, log_only):
        for name, unit in (("running", 1.0), ("queue", 1.0), ("kv_usage", 0.005), ("mamba_usage", 0.005)):
            assert mean(samples, view, name) == pytest.approx(mean(samples, whole, name), rel=0.03, abs=unit), name
        assert mean(samples, view, "tok_s") == pytest.approx(mean(samples, whole, "tok_s"), rel=0.03)
        assert mean(samples, view, "cap") == RUNNING
    assert fmean(told) == pytest.approx(mean(samples, whole, "tok_s"), rel=0.03)
    assert mean(samples, whole, "kv_usage") > 0.1, "enough to tell it from the log's rounding"
    assert mean(samples, whole, "mamba_usage") > 0.5
    for name, unit in (("running", 1.0), ("queue", 1.0), ("kv_usage", 0.005), ("mamba_usage", 0.005), ("tok_s", 0.0)):
        assert mean(samples, plain, name) == pytest.approx(mean(samples, whole, name), rel=0.05, abs=unit), name
    assert {sample.gpus[plain_log].state for sample in samples} == {"unknown"}, "a port that nobody listens at"


def test_a_cut_road_leaves_no_hole_in_the_history_and_nothing_twice(lab: Lab, fleet: Fleet, tmp_path: Path) -> None:
    environ, seen = {"XDG_STATE_HOME": str(tmp_path)}, list[Sample]()
    (host,) = fleet.hosts

    def show(_: Host, sample: Sample) -> None:
        recorder.take(host, sample)
        seen.append(sample)
        live = [s for s in seen if not s.rebuilt and all(is_loaded(gpu) for gpu in s.gpus)]
        if len(live) == 8 and not cuts:
            cuts.append(time.time())
            trouble.stop_sshd(lab.place)
            threading.Timer(20, sshd.start, (lab.place, sshd.HOST)).start()
        if cuts and len([s for s in live if s.time > cuts[0] + 20]) >= 6:
            raise EnoughError

    cuts: list[float] = []
    with Recorder(fleet, environ, say=lambda *_: None, interval_s=1.0) as recorder, pytest.raises(EnoughError):
        tail_metrics(
            fleet, fleet.hosts, show=show, say=lambda *_: None, interval_s=1.0, past_s=60.0, since=recorder.newest
        )
    with closing(Recording(recording_file(recordings_dir(environ, fleet.path), "expansion"))) as recording:
        kept, events = list(recording.samples()), recording.events()
        (run,) = recording.runs()
        of_run = list(recording.samples(run=run.id))
    times = [sample.time for sample in kept]
    assert times == sorted({sample.time for sample in seen})
    during = [sample for sample in kept if cuts[0] + 1 < sample.time < cuts[0] + 20]
    assert len(during) >= 18
    assert all(sample.rebuilt and not sample.jobs for sample in during)
    since_cut = [sample.time for sample in kept if sample.time > cuts[0] - 5]
    assert max(b - a for a, b in pairwise(since_cut)) < 2.0
    live = [sample for sample in kept if not sample.rebuilt and sample.time > cuts[0] - 6]
    for view in range(2):
        for name, unit in (("running", 1.0), ("queue", 1.0), ("tok_s", 0.0), ("mamba_usage", 0.005)):
            assert mean(during, view, name) == pytest.approx(mean(live, view, name), rel=0.05, abs=unit), name
    assert {sample.gpus[0].util_pct for sample in during} == {None}
    assert {sample.time for sample in during} < {sample.time for sample in of_run}
    assert [event.kind for event in events if event.kind in ("gap", "rebuilt")] == ["rebuilt", "rebuilt"]
