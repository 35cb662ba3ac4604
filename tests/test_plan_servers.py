from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from rackhand.apply.servers import outcomes_when_cut
from rackhand.contract.files import Environment, Interpreter, Platform, Workspace
from rackhand.contract.job import JobState, Progress
from rackhand.contract.servers import (
    Capacity,
    FlagFacts,
    Load,
    OwnServer,
    Process,
    ServerOrder,
    ServerRecord,
    ServersState,
    Step,
    Stray,
    argv_digest,
)
from rackhand.errors import PreconditionError, UnreachableError, UsageError
from rackhand.facts import Facts, GpuFacts
from rackhand.inventory import Host, Job, PlainSsh, SecretRef, ServerSpec, Ssh, servers_of
from rackhand.plan.job import (
    check_session,
    choose_output,
    job_outputs,
    parse_concurrency,
    plan_resume,
    plan_stop,
    render_progress,
)
from rackhand.plan.servers import ServeGpus, plan_restart, plan_stop_servers
from rackhand.report import Report, Row
from rackhand.scripts import server_argv
from rackhand.secret_files import render_secrets, secret_refs
from rackhand.status import gpu_statuses, job_word
from rackhand.tmux import Pane

SPEC = ServerSpec("m", version="0.5.11", python="/py", args={"mamba-scheduler-strategy": "auto"}, stop_timeout_s=7)
HOST = Host("h", PlainSsh(Ssh("h")), servers=(SPEC,))
GPUS = tuple(GpuFacts(i, f"GPU-{i}", "x", 97887, 4 + i) for i in range(3))
FLAGS = FlagFacts("/py", "0.5.11", {"mamba-scheduler-strategy": ("auto", "no_buffer"), "mem-fraction-static": ()})
MAIN, CHILD = Process(100, 5), Process(101, 6)


def record(gpu: int, **changes: Any) -> ServerRecord:
    base = ServerRecord(gpu, 100, 5, 30000 + gpu, f"sglang-gpu{gpu}", "d", "/log", 1.0)
    return dataclasses.replace(base, **changes)


def facts(*own: OwnServer, strays: tuple[Stray, ...] = (), **state: Any) -> Facts:
    return Facts(
        "h",
        Platform("3.11", "/py", "x86_64", "glibc"),
        Workspace(exists=True),
        Interpreter("/py", found=True),
        Environment(),
        gpus=GPUS,
        servers=ServersState(own, strays, **state),
    )


def plan(seen: Facts, flags: FlagFacts = FLAGS, **how: Any) -> ServeGpus:
    adopt = how.pop("adopt", False)
    return plan_restart(HOST, seen, servers_of(HOST, [0, 1, 2], **how), {"/py": flags}, adopt=adopt)


SERVING = OwnServer(record(1), alive=True, living=(MAIN, CHILD), load=Load(3, 0, Capacity(37)))


def test_a_gpu_with_a_server_is_stopped_by_its_main_process_first_and_the_others_only_start() -> None:
    action = plan(facts(SERVING))
    assert [order.stop for order in action.orders] == [(), (MAIN, CHILD), ()]
    assert [order.uuid for order in action.orders] == ["GPU-0", "GPU-1", "GPU-2"]
    assert {order.stop_timeout_s for order in action.orders} == {7}
    assert action.before == {1: 37}
    assert action.lines[1] == "GPU 1: stop pid 100, then start on port 30001 as deployed"


def test_the_deployed_script_is_run_unless_flags_differ() -> None:
    same, other = plan(facts()).orders[0].start, plan(facts(), overrides={"mem-fraction-static": 0.9}).orders[0].start
    assert same is not None
    assert other is not None
    assert (same.script, same.script_path) == (None, "/workspace/rackhand/serve-gpu0.sh")
    assert other.script_path == "/workspace/rackhand/run/serve-gpu0.sh"
    assert "--mem-fraction-static" in (other.script or "")
    (server,) = servers_of(HOST, [0, 1, 2], gpus=[0], overrides={"mem-fraction-static": 0.9})
    assert argv_digest(server_argv(HOST, server)) in other.tmux


def test_an_installed_version_with_other_names_gets_a_script_in_its_words() -> None:
    flags = FlagFacts("/py", "0.5.23", {"mamba-radix-cache-strategy": ()})
    start = plan(facts(), flags).orders[0].start
    assert start is not None
    assert "--mamba-radix-cache-strategy" in (start.script or "")


def test_every_wrong_flag_is_named_once_and_nothing_is_planned() -> None:
    with pytest.raises(UsageError) as failed:
        plan(facts(SERVING), overrides={"mem-fraction-statik": 1, "zzz": 2})
    assert str(failed.value).count("mem-fraction-statik") == 1
    assert "zzz" in str(failed.value)
    assert "nothing was stopped" in str(failed.value)


def test_unknown_flags_of_an_interpreter_are_a_precondition() -> None:
    with pytest.raises(PreconditionError, match=r"no module named sglang; set hosts\.\w+\.servers\.python"):
        plan(facts(), dataclasses.replace(FLAGS, error="no module named sglang"))


@pytest.mark.parametrize(
    ("stray", "in_the_way"),
    [
        (Stray(Process(9, 1), "by hand", "GPU-0", 1), True),
        (Stray(Process(9, 1), "by hand", None, 1), True),
        (Stray(Process(9, 1), "by hand", "GPU-7", 30000), True),
        (Stray(Process(9, 1), "by hand", "GPU-7", 1), False),
    ],
)
def test_servers_started_by_hand_are_in_the_way_by_gpu_or_port(stray: Stray, in_the_way: bool) -> None:
    seen = facts(strays=(stray,))
    if not in_the_way:
        assert plan(seen, gpus=[0]).orders[0].adopt == ()
        return
    with pytest.raises(PreconditionError, match=r"pid 9 \(started by hand"):
        plan(seen, gpus=[0])
    assert plan(seen, gpus=[0], adopt=True).orders[0].adopt == (Process(9, 1),)


def test_stop_takes_what_lives_and_nothing_else() -> None:
    dead = OwnServer(record(0, exit_status=0), alive=False)
    orphan = OwnServer(record(2, exit_status=-9), alive=False, living=(CHILD,))
    action = plan_stop_servers(HOST, facts(dead, SERVING, orphan))
    assert [(order.gpu, order.stop, order.start) for order in action.orders] == [
        (1, (MAIN, CHILD), None),
        (2, (CHILD,), None),
    ]
    assert plan_stop_servers(HOST, facts(SERVING), gpus=[0]).orders == ()


def test_a_server_is_stopped_though_nvidia_smi_shows_its_gpu_no_more() -> None:
    (order,) = plan_stop_servers(HOST, dataclasses.replace(facts(SERVING), gpus=())).orders
    assert (order.gpu, order.uuid, order.stop) == (1, "", (MAIN, CHILD))


@pytest.mark.parametrize(
    ("own", "text"),
    [
        (SERVING, "draining 3/37, queue 0, 0.0/95.6 GiB, port 30001, pid 100"),
        (OwnServer(record(1), alive=True, living=(MAIN,)), "loading, 0.0/95.6 GiB, port 30001, pid 100"),
        (OwnServer(record(1, exit_status=-9), alive=False), "dead (exit -9), 0.0/95.6 GiB"),
        (OwnServer(record(1, exit_status=-9, asked=True), alive=False), "stopped, 0.0/95.6 GiB"),
        (OwnServer(record(1, exit_status=0), alive=False), "dead (exit 0), 0.0/95.6 GiB"),
        (OwnServer(record(1), alive=False), "dead, 0.0/95.6 GiB"),
    ],
)
def test_status_says_what_a_gpu_does(own: OwnServer, text: str) -> None:
    statuses = gpu_statuses(HOST, facts(own, wishes={"http://127.0.0.1:30001": "draining"}))
    assert [str(gpu) for gpu in statuses] == ["empty, 0.0/95.6 GiB", text, "empty, 0.0/95.6 GiB"]


def test_a_server_that_comes_up_is_loading_and_not_draining() -> None:
    statuses = gpu_statuses(HOST, facts(SERVING, wishes={"http://127.0.0.1:30001": "starting"}))
    assert str(statuses[1]) == "loading, 0.0/95.6 GiB, port 30001, pid 100"


def test_secrets_are_files_for_the_tmpfs_and_one_key_serves_all() -> None:
    keyed = dataclasses.replace(SPEC, api_key=SecretRef(env="KEY"))
    host = dataclasses.replace(HOST, servers=(keyed,))
    assert secret_refs(host) == {"RACKHAND_API_KEY": SecretRef(env="KEY")}
    files = render_secrets(host, {"RACKHAND_API_KEY": "it's"})
    assert files == {"secrets.env": "RACKHAND_API_KEY='it'\"'\"'s'\n", "sglang.yaml": 'api-key: "it\'s"\n'}
    argv = server_argv(host, servers_of(host, [0])[0])
    assert argv[-2] == "--config"
    assert argv[-1].startswith("/dev/shm/rackhand-")
    other = dataclasses.replace(SPEC, api_key=SecretRef(env="OTHER"), gpus=(1,))
    with pytest.raises(UsageError, match="different API keys"):
        secret_refs(dataclasses.replace(host, servers=(keyed, other)))


JOB = Job("j", "h", "/out/", "/p.jsonl", sampling={"b": 1, "a": 2}, concurrency=8, model="q")
PROGRESS = Progress(100, 5, 1, 2.5, 1.25, 0, 0, 0.0, 0.1, 0, 0, "stopped", in_flight=4)
RUNNING = JobState("/o", pid=4, finished=6, progress=PROGRESS)


def at_work(status: str, *, pid: int) -> JobState:
    """A generator with pid 4 runs; the progress is of `pid`."""
    return dataclasses.replace(
        RUNNING, progress=dataclasses.replace(PROGRESS, status=status, pid=pid, message="disk full")
    )


def test_a_job_is_started_with_every_server_and_its_own_words() -> None:
    action = plan_resume(HOST, JOB, JobState("/out", exists=True, finished=7), servers_of(HOST, [0, 1]))
    assert action is not None
    assert action.line == "start job j on 2 servers, 7 already done"
    assert action.order.servers == ("http://127.0.0.1:30000", "http://127.0.0.1:30001")
    script = action.order.script.replace(" \\\n   ", "")
    assert "--concurrency 8 --control /workspace/rackhand/control.json --model q" in script
    assert """--sampling '{"a": 2, "b": 1}'""" in script
    auto = plan_resume(HOST, JOB, JobState("/out"), servers_of(HOST, [0]), concurrency="auto")
    assert auto is not None
    assert "--concurrency auto" in auto.order.script.replace(" \\\n   ", "")


def test_a_running_job_is_left_alone_and_can_be_stopped() -> None:
    running, idle = JobState("/out", exists=True, pid=5), JobState("/out", exists=True)
    assert plan_resume(HOST, JOB, running, servers_of(HOST, [0])) is None
    assert plan_stop(JOB, [idle]) is None
    action = plan_stop(JOB, [dataclasses.replace(idle, output="/other"), running], timeout_s=3.0)
    assert action is not None
    assert (action.order.output, action.order.drain_timeout_s) == ("/out", 3.0)
    with pytest.raises(PreconditionError, match="no server"):
        plan_resume(HOST, JOB, idle, ())


def test_new_takes_the_first_output_that_is_not_there() -> None:
    asked = job_outputs(JOB)
    assert asked[:3] == ("/out", "/out-2", "/out-3")
    states = [JobState(output, exists=i < 2) for i, output in enumerate(asked)]
    assert choose_output(HOST, JOB, states).output == "/out-3"
    with pytest.raises(PreconditionError, match="outputs like"):
        choose_output(HOST, JOB, [dataclasses.replace(state, exists=True) for state in states])


def test_a_session_in_which_something_runs_is_not_taken() -> None:
    def seen(*panes: Pane) -> Facts:
        return dataclasses.replace(facts(), panes={pane.session: pane for pane in panes})

    ended, other = Pane("gen", 77, dead=True, status=0, digest=""), Pane("gen2", 78, dead=False, status=None, digest="")
    check_session(HOST, JOB, facts())
    check_session(HOST, JOB, seen(ended, other))
    with pytest.raises(PreconditionError, match=r"session gen \(pid 77\)"):
        check_session(HOST, JOB, seen(dataclasses.replace(ended, dead=False)))


@pytest.mark.parametrize(("text", "value"), [(None, None), ("auto", "auto"), ("64", 64)])
def test_concurrency_is_a_number_or_auto(text: str | None, value: object) -> None:
    assert parse_concurrency(text) == value


@pytest.mark.parametrize("text", ["", " ", "0", "-1", "many", "1.5", "100001", "9" * 5000, "٣"])
def test_a_wrong_concurrency_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_concurrency(text)


UNREAD = JobState(
    "/o",
    exists=True,
    finished=7,
    progress=Progress(9, 7, 0, 1.0, 0.0, 0, 0, 0.0, 0.1, 0, 0, "done", bad_lines=2, bad_line_numbers=[3, 17]),
)


@pytest.mark.parametrize(
    ("state", "pane", "word", "text"),
    [
        (JobState("/o"), None, "not running", "0 done"),
        (RUNNING, None, "running", "6 of 100 done, 1 failed, 2.5/s, 1.2 h left, 4 in flight"),
        (dataclasses.replace(RUNNING, pid=None), None, "stopped", "6 of 100 done, 1 failed, 1.2 h left"),
        (
            at_work("paused", pid=4),
            None,
            "paused (disk full)",
            "6 of 100 done, 1 failed, 2.5/s, 1.2 h left, 4 in flight",
        ),
        (at_work("paused", pid=3), None, "running", "6 of 100 done, 1 failed, 2.5/s, 1.2 h left, 4 in flight"),
        (JobState("/o"), Pane("gen", 1, dead=True, status=3, digest=""), "ended with status 3", "0 done"),
        (UNREAD, None, "done", "7 of 9 done, 2 lines could not be read (lines 3, 17)"),
    ],
)
def test_a_job_is_told_in_one_line(state: JobState, pane: Pane | None, word: str, text: str) -> None:
    assert (job_word(state, pane), render_progress(state)) == (word, text)


@pytest.mark.parametrize(
    ("step", "stops", "done", "code"),
    [
        ("draining", True, None, 1),
        ("stopping", True, "GPU 0: told to end: pid 7", 3),
        ("memory", True, "GPU 0: stopped pid 7", 3),
        ("loading", True, "GPU 0: stopped pid 7", 3),
        ("memory", False, None, 1),
        ("loading", False, "GPU 0: a server was started", 3),
    ],
)
def test_a_restart_that_was_cut_after_something_was_done_is_done_in_part(
    step: str, stops: bool, done: str | None, code: int
) -> None:
    order = ServerOrder(0, "GPU-0", "http://127.0.0.1:30000", stop=(Process(7, 1),) if stops else ())
    outcomes = outcomes_when_cut(ServeGpus((order,), ()), {0: Step(0, step)})
    assert [o.what for o in outcomes if o.state == "done"] == ([done] if done else [])
    assert outcomes[-1].what == f"GPU 0: last seen {step}; what had begun goes on inside"
    assert Report("restart-servers", (Row("h", outcomes, error=UnreachableError("cut")),)).exit_code == code


def test_the_paths_in_the_docs_are_those_of_the_plan() -> None:
    page = (Path(__file__).parent.parent / "docs/restart-servers.md").read_text()
    start = plan(facts(), overrides={"mem-fraction-static": 0.9}).orders[0].start
    assert start is not None
    for path in ("run/serve-gpuN.sh", "rackhand/tmux.sock", "run/gpuN.json"):
        assert path in page
        assert path.replace("N", "0") in " ".join((*start.tmux, start.record, start.script_path))
