"""The command that does again what was left undone works as it is typed."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from rackhand.again import fill_gpus, restart_words, stop_words
from rackhand.apply.servers import outcomes_when_cut
from rackhand.arguments import parse_gpus, parse_overrides
from rackhand.contract.servers import Process, ServerOrder, Step
from rackhand.inventory import Fleet, Host, PlainSsh, Ssh
from rackhand.plan.servers import ServeGpus

HOST = Host("rtx", PlainSsh(Ssh("rtx")))
FLEET = Fleet(Path("/x/inventory/mine.yaml"), (HOST,))


@pytest.mark.parametrize(
    "sets",
    [
        (),
        ("mem-fraction-static=0.9", "enable-metrics=true", "disable-radix-cache=false"),
        ("cuda-graph-bs=[1,2,4]", "chat-template=/a b/{gpus}.jinja", """json-model-override-args={"a": "it's"}"""),
    ],
)
def test_every_flag_comes_back_as_it_was_given(sets: tuple[str, ...]) -> None:
    wanted = parse_overrides(sets)
    line = restart_words(FLEET, HOST, wanted, timeout_s=90.0, at_once=2, adopt=True, compare=False)
    words = shlex.split(line)
    assert words[:4] == ["./inv", "restart-servers", "--hosts", "rtx"]
    assert dict(parse_overrides(b for a, b in pairwise(words) if a == "--set")) == dict(wanted)
    assert "--timeout 90 --at-once 2 --adopt --no-compare --inventory mine" in line
    filled = shlex.split(fill_gpus(restart_words(FLEET, HOST, {}), (2, 3, 4, 5, 6, 7)))
    assert filled[4:6] == ["--gpus", "2-7"]
    assert parse_gpus(filled[5]) == (2, 3, 4, 5, 6, 7)


def test_an_inventory_that_is_a_path_is_named_by_it() -> None:
    fleet = Fleet(Path("/a b/rtx.yaml"), (HOST,))
    assert stop_words(fleet, HOST) == "./inv stop --hosts rtx --servers --inventory '/a b/rtx.yaml'"


def test_after_a_cut_each_gpu_is_told_and_the_command_for_those_not_begun() -> None:
    orders = tuple(ServerOrder(gpu, "", "", stop=(Process(100 + gpu, 1),)) for gpu in range(5))
    action = ServeGpus(orders, (), redo=restart_words(FLEET, HOST, {}, at_once=2))
    steps = {0: Step(0, "ready"), 1: Step(1, "memory", "3 MiB"), 2: Step(2, "failed", "no memory")}
    said = [outcome.what for outcome in outcomes_when_cut(action, steps)]
    run = "./inv restart-servers --hosts rtx --gpus"
    assert said == [
        "GPU 0: ready",
        "GPU 1: stopped pid 101",
        "GPU 1: last seen memory; what had begun goes on inside",
        "GPU 2: stopped pid 102",
        "GPU 2: last seen failed; no memory",
        f"GPU 2: not done; run: {run} 2 --at-once 2 --inventory mine",
        f"GPU 3-4: not begun; run: {run} 3-4 --at-once 2 --inventory mine",
    ]
    killed = [outcome.what for outcome in outcomes_when_cut(action, steps, goes_on=False)]
    assert f"GPU 1-2: not done; run: {run} 1-2 --at-once 2 --inventory mine" in killed
