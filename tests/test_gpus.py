"""What nvidia-smi says, in words, statuses and rows, and what is made of it before anything is stopped."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackhand.contract.files import CommandState, Environment, Interpreter, Manifest, ManifestEntry, Platform, Workspace
from rackhand.contract.gpus import FIELDS, GpuFacts, SmiAnswer
from rackhand.contract.servers import OwnServer, Process, ServerRecord, ServersState
from rackhand.contract.watch import GpuSample, Sample
from rackhand.errors import PreconditionError, UsageError
from rackhand.facts import Facts, parse_gpus
from rackhand.inventory import Host, PlainSsh, ServerSpec, Ssh
from rackhand.launch import seen_gpu
from rackhand.plan.gpus import check_listed, gpus_words, known_gpus, possible_gpus, unread_lines, usable_servers
from rackhand.plan.servers import plan_stop_servers
from rackhand.render.watch_table import smi_lines
from rackhand.status import gpu_statuses

GOOD = "0, GPU-a, NVIDIA B200, 183359, 4, Disabled, 31\n"
NO_HANDLE = "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error"
LOST = "Unable to determine the device handle for GPU 0000:0F:00.0: GPU is lost.  Reboot the system to recover this GPU"
INFOROM = "WARNING: infoROM is corrupted at gpu 0000:04:00.0"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"
MIG = "split by MIG; a server needs a whole GPU"

# status, stdout, the GPUs as (index, used MiB, fault, unread), lost, notes
ANSWERS: dict[str, tuple[int | None, str, list[tuple[int, int | None, str, str]], list[str], list[str]]] = {
    "good": (0, GOOD, [(0, 4, "", "")], [], []),
    "with units": (0, "0, GPU-a, B200, 183359 MiB, 4 MiB, Disabled, 31\n", [(0, 4, "", "")], [], []),
    "with a header": (0, f"index, uuid, name, memory.total [MiB], memory.used [MiB]\n{GOOD}", [(0, 4, "", "")], [], []),
    "fewer columns": (0, "0, GPU-a, B200, 183359, 4\n", [(0, 4, "", "")], [], []),
    "hardly a column": (0, "0, GPU-a\n", [(0, None, "", "nothing")], [], []),
    "more columns": (0, "0, GPU-a, B200, 183359, 4, [N/A], 31, P0, 99\n", [(0, 4, "", "")], [], []),
    "CRLF": (0, GOOD.replace("\n", "\r\n"), [(0, 4, "", "")], [], []),
    "N/A": (0, "0, GPU-a, NVIDIA GB10, [N/A], [N/A], [N/A], 31\n", [(0, None, "", "N/A")], [], []),
    "bare N/A": (0, "0, GPU-a, NVIDIA GB10, N/A, N/A, N/A, N/A\n", [(0, None, "", "N/A")], [], []),
    "not supported": (0, "0, GPU-a, x, 9, [Not Supported]\n", [(0, None, "", "Not Supported")], [], []),
    "no permission": (
        0,
        "0, GPU-a, x, 9, [Insufficient Permissions], [N/A], 31\n",
        [(0, None, "", "Insufficient Permissions")],
        [],
        [],
    ),
    "less than nothing": (0, "0, GPU-a, x, 9, -1\n", [(0, None, "", "-1")], [], []),
    "unknown error": (
        0,
        f"{GOOD}1, [Unknown Error], [Unknown Error], [Unknown Error], [Unknown Error]\n",
        [(0, 4, "", ""), (1, None, "Unknown Error", "Unknown Error")],
        [],
        [],
    ),
    "reset, with 0 MiB in use": (
        0,
        "0, GPU-a, x, 9, 0, Disabled, [GPU requires reset]\n",
        [(0, None, "GPU requires reset", "GPU requires reset")],
        [],
        [],
    ),
    "ERR!": (0, "0, GPU-a, x, 9, ERR!\n", [(0, None, "ERR!", "ERR!")], [], []),
    "lost in a row": (15, "0, GPU-a, [GPU is lost], 9, 3\n", [(0, None, "GPU is lost", "GPU is lost")], [], []),
    "no handle among rows": (
        15,
        f"{GOOD}{NO_HANDLE}\n2, GPU-c, x, 9, 3\n",
        [(0, 4, "", ""), (2, 3, "", "")],
        [NO_HANDLE],
        [],
    ),
    "no handle, status 0": (0, f"{NO_HANDLE}\n{GOOD}", [(0, 4, "", "")], [NO_HANDLE], []),
    "lost": (255, f"{GOOD}{LOST}\n", [(0, 4, "", "")], [LOST], []),
    "lost, by status only": (15, GOOD, [(0, 4, "", "")], ["a GPU has fallen off the bus"], []),
    "infoROM": (14, f"{GOOD}{INFOROM}\n", [(0, 4, "", "")], [], [INFOROM]),
    "infoROM, by status only": (
        14,
        GOOD,
        [(0, 4, "", "")],
        [],
        ["nvidia-smi ended with status 14: a GPU's infoROM is corrupted"],
    ),
    "another status": (3, GOOD, [(0, 4, "", "")], [], ["nvidia-smi ended with status 3: an error"]),
    "MIG is on": (0, "0, GPU-a, x, 9, [N/A], Enabled, 31\n", [(0, None, MIG, MIG)], [], []),
    "MIG rows": (0, "0, MIG-a, x MIG 1g, 9, 3\n0, MIG-b, x MIG 1g, 9, 3\n", [(0, None, MIG, MIG)], [], []),
    "a MIG row beside its GPU": (0, f"{GOOD}0, MIG-a, x MIG 1g, 9, 3\n", [(0, 4, MIG, "")], [], []),
    "hangs at the second": (
        None,
        GOOD,
        [(0, 4, "", "")],
        ["nvidia-smi gave no more answer: it hangs at a GPU"],
        [],
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_good_rows_are_read_and_what_cannot_be_read_is_named(name: str) -> None:
    status, stdout, gpus, lost, notes = ANSWERS[name]
    found = parse_gpus(CommandState(status, stdout, ""))
    assert [(g.index, g.memory_used_mib, g.fault, g.unread) for g in found.gpus] == gpus
    assert (list(found.lost), list(found.notes), found.problem) == (lost, notes, "")


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (None, "nvidia-smi wasn't asked"),
        (CommandState(0, "No devices were found\n", ""), "nvidia-smi lists no GPU"),
        (CommandState(6, "No devices were found\n", ""), "nvidia-smi lists no GPU"),
        (CommandState(0, "", ""), "nvidia-smi lists no GPU"),
        (CommandState(18, f"{MISMATCH}\nNVML library version: 580.95\n", ""), f"nvidia-smi failed: {MISMATCH}"),
        (CommandState(1, "", f"{MISMATCH}\n"), f"nvidia-smi failed: {MISMATCH}"),
        (CommandState(9, "", ""), "nvidia-smi failed: status 9: the driver isn't loaded"),
        (CommandState(12, "", ""), "nvidia-smi failed: status 12: its library libnvidia-ml isn't there"),
        (CommandState(6, f"{NO_HANDLE}\nNo devices were found\n", ""), f"nvidia-smi can read no GPU: {NO_HANDLE}"),
        (CommandState(255, f"{NO_HANDLE}\n", ""), f"nvidia-smi can read no GPU: {NO_HANDLE}"),
        (CommandState(None, "", ""), "no nvidia-smi in the PATH, or it hangs"),
        (CommandState(None, "", "no such program"), "no nvidia-smi in the PATH"),
        (CommandState(None, "", "\nno answer in 30 s"), "nvidia-smi gives no answer: it hangs"),
    ],
)
def test_why_there_is_no_gpu_is_explained(state: CommandState | None, problem: str) -> None:
    found = parse_gpus(state)
    assert (found.gpus, found.problem) == ((), problem)


CELLS = st.sampled_from(
    ["", "[N/A]", "ERR!", "4", "4 MiB", "-1", "1e9", "²", "[Unknown Error]", "GPU-x", "MIG-x", "Enabled", "\x00", "٣"]
)


@given(
    st.lists(st.lists(CELLS, max_size=9).map(", ".join) | st.text(max_size=30), max_size=5),
    st.sampled_from([None, 0, 15]),
)
def test_whatever_it_prints_no_reading_is_invented(lines: list[str], status: int | None) -> None:
    found = parse_gpus(CommandState(status, "\n".join(lines), ""))
    assert bool(found.problem) is not bool(found.gpus)
    assert len({gpu.index for gpu in found.gpus}) == len(found.gpus)
    for gpu in found.gpus:
        assert gpu.fault or gpu.uuid.startswith("GPU-")
        assert gpu.memory_used_mib is not None or gpu.unread


def host(*gpus: int, only: tuple[int, ...] | None = None) -> Host:
    """With `gpus` a server on each of these, else one on every GPU that is found."""
    return Host("h", PlainSsh(Ssh("h")), gpus=only, servers=(ServerSpec("m", gpus=gpus or None),))


def facts(text: str, status: int | None = 0, **change: Any) -> Facts:
    seen: SmiAnswer = parse_gpus(CommandState(status, text, ""))
    platform = Platform("3.11", "/py", "x86_64", "glibc")
    found = Facts("h", platform, Workspace(exists=True), Interpreter("/py", found=True), Environment())
    return dataclasses.replace(
        found, gpus=seen.gpus, gpus_problem=seen.problem, gpus_lost=seen.lost, gpus_notes=seen.notes, **change
    )


def row(index: int, used: str = "4", temperature: str = "31") -> str:
    return f"{index}, GPU-{index}, NVIDIA B200, 183359, {used}, Disabled, {temperature}\n"


RESET = row(0) + row(1, "0", "[GPU requires reset]") + row(2)
FALLEN = f"{row(0)}{NO_HANDLE}\n{row(2)}"
OTHERS = "nothing was stopped; restart-servers --hosts h --gpus 0,2 restarts the others"


@pytest.mark.parametrize(
    ("wanted", "text", "gpus", "outcome"),
    [
        (host(), RESET, None, f"h: GPU 1 can't be used: GPU requires reset; {OTHERS}"),
        (host(), RESET, (1,), f"h: GPU 1 can't be used: GPU requires reset; {OTHERS}"),
        (host(), RESET, (0, 2), (0, 2)),
        (host(0, 2), RESET, None, (0, 2)),
        (host(only=(0, 2)), RESET, None, (0, 2)),
        (host(), FALLEN, None, f"h: a GPU can't be read: {NO_HANDLE}; {OTHERS}"),
        (host(), FALLEN, (0, 2), (0, 2)),
        (host(), FALLEN, (1,), f"h: no server on GPU 1; nvidia-smi says: {NO_HANDLE}; {OTHERS}"),
        (host(0, 2), FALLEN, None, (0, 2)),
        (
            host(0, 1, 2),
            FALLEN,
            None,
            f"h: GPU 1 not found: nvidia-smi shows 0, 2; nvidia-smi says: {NO_HANDLE}; {OTHERS}",
        ),
        (host(0, 1, 2), FALLEN, (0,), (0,)),
        (host(), row(0, "[N/A]") + row(1), None, (0, 1)),
        (host(), f"{row(0)}{INFOROM}\n", None, (0,)),
        (host(), row(0, "0", "ERR!"), None, "h: GPU 0 can't be used: ERR!; nothing was stopped; look at the driver"),
        (host(), "No devices were found", None, "h: nvidia-smi lists no GPU; nothing was stopped; look at the driver"),
    ],
)
def test_a_gpu_that_cannot_be_read_is_refused_by_name_before_anything_is_stopped_and_others_can_be_chosen(
    wanted: Host, text: str, gpus: tuple[int, ...] | None, outcome: str | tuple[int, ...]
) -> None:
    if isinstance(outcome, str):
        with pytest.raises(PreconditionError) as caught:
            usable_servers(wanted, facts(text), gpus=gpus)
        assert str(caught.value) == outcome
    else:
        assert tuple(server.gpu for server in usable_servers(wanted, facts(text), gpus=gpus)) == outcome


def test_without_a_fault_a_wrong_gpu_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match="no server on GPU 7; there is: 0"):
        usable_servers(host(), facts(row(0)), gpus=(7,))


def test_memory_that_is_not_told_is_said_before_a_restart() -> None:
    seen = facts(row(0, "[Insufficient Permissions]") + row(1, "[N/A]") + row(2))
    lines = unread_lines(seen, usable_servers(host(), seen, gpus=(0, 2)))
    assert lines == (
        "GPU 0: nvidia-smi says Insufficient Permissions instead of its memory: a leftover there won't be noticed",
    )


def test_a_gpu_that_fell_off_the_bus_is_no_change_of_what_is_deployed() -> None:
    home = host().home
    files = {f"{home}/serve-gpu{n}.sh": ManifestEntry("", 0o755) for n in range(3)}
    seen = facts(FALLEN, manifest=Manifest(files))
    assert [gpu.index for gpu in known_gpus(host(), seen)] == [0, 2, 1]
    assert [gpu.index for gpu in known_gpus(host(), facts(row(0) + row(2), manifest=Manifest(files)))] == [0, 2]


def test_deploy_takes_a_listed_gpu_that_is_not_there_for_a_mistake_unless_nvidia_smi_explains_it() -> None:
    check_listed(host(0, 1), facts(FALLEN))
    with pytest.raises(PreconditionError, match="GPU 1 not found: nvidia-smi shows 0, 2"):
        check_listed(host(0, 1), facts(row(0) + row(2)))


def own(gpu: int) -> OwnServer:
    main = Process(100 + gpu, 5)
    record = ServerRecord(gpu, main.pid, main.start_ticks, 30000 + gpu, f"s{gpu}", "d", "/log", 1.0)
    return OwnServer(record, alive=True, living=(main,))


def test_status_says_what_cannot_be_read_and_never_calls_it_empty() -> None:
    text = row(0, "[N/A]") + row(1, "0", "[GPU requires reset]") + NO_HANDLE
    found = gpu_statuses(host(0, 1, 2, 3), facts(text, servers=ServersState((own(1), own(3)))))
    assert [str(gpu) for gpu in found] == [
        "empty, memory unknown (N/A)",
        "loading, nvidia-smi: GPU requires reset, port 30001, pid 101",
        "unreadable, nvidia-smi: it doesn't show this GPU",
        "loading, nvidia-smi: it doesn't show this GPU, port 30003, pid 103",
    ]
    assert gpus_words(facts(text)) == NO_HANDLE


def test_status_of_a_host_whose_nvidia_smi_hangs_calls_no_gpu_empty() -> None:
    (found,) = gpu_statuses(host(0), facts("", None))
    assert str(found) == "unreadable, nvidia-smi: it shows no GPU"


def test_a_server_on_a_faulty_gpu_is_stopped_without_waiting_for_its_memory() -> None:
    seen = facts(RESET, servers=ServersState((own(0), own(1))))
    assert [(order.gpu, order.uuid) for order in plan_stop_servers(host(), seen).orders] == [(0, "GPU-0"), (1, "")]


def test_a_job_may_go_on_with_servers_of_gpus_that_cannot_be_seen() -> None:
    assert possible_gpus(host(), facts(FALLEN, servers=ServersState((own(1),)))) == (0, 1, 2)
    assert possible_gpus(host(4), facts("", None)) == (4,)


def test_capacity_takes_the_kinds_memory_where_it_is_not_told() -> None:
    named = GpuFacts(0, "GPU-0", "NVIDIA B200", None, None, unread="N/A")
    assert seen_gpu(facts(row(0)), named).memory_mib == 183359
    assert seen_gpu(facts(""), dataclasses.replace(named, name="NVIDIA GB10")).memory_mib == 0


def test_a_watch_tells_what_cannot_be_read() -> None:
    sample = Sample(1.0, gpus=(GpuSample(0), GpuSample(1, fault="GPU requires reset")), nvidia_smi=NO_HANDLE)
    assert smi_lines(sample) == [
        "GPU 1: can't be read, nvidia-smi says: GPU requires reset",
        f"nvidia-smi: {NO_HANDLE}",
    ]


def test_the_query_asks_for_what_is_read() -> None:
    assert FIELDS[:5] == ("index", "uuid", "name", "memory.total", "memory.used")
