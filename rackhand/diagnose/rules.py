"""The rules, in the order in which they are told: what makes the rest meaningless first, limits of capacity last."""

from __future__ import annotations

from rackhand.diagnose.figures import STILL_S
from rackhand.diagnose.rule import Change, If, Rule

FULL = 0.95
"""A server that runs this share of its cap is full."""
KV_FULL = 0.90
RESTART = "a restart of the servers, minutes; the generator goes on by itself"
RESUME = "the generator starts again, seconds; servers stay as they are, nothing finished is asked again"
LIVE = If("live", ">=", 1)
SETTLED = If("settled", ">=", 1)
MOST_SETTLED = If("settled", ">=", 0.5)
"""Of a host: half of its GPUs at work. While a run starts or ends GPUs wait for requests, whatever the host does."""
NO_QUEUE = If("queue", "<", 0.5)
QUEUE = If("queue", ">=", 0.5)
IS_FULL = If("fill", ">=", FULL)
NOT_FULL = If("fill", "<", FULL)
KV_FREE = If("kv", "<", KV_FULL)

BROKEN = (
    Rule(
        name="paused",
        scope="host",
        when=((If("paused", ">=", 1),),),
        sure=((If("paused", ">=", 1),),),
        says="job {paused_job} is paused: {paused_for}",
        evidence=("its generator said so {paused_age_s:.0f} s ago",),
        changes=(
            Change(
                "put right what it names; the generator looks again and goes on by itself", "the job goes on", "nothing"
            ),
        ),
        hides=frozenset({"idle", "client-bound", "client-slow"}),
    ),
    Rule(
        name="generator-killed",
        scope="host",
        when=((If("killed", ">=", 1),),),
        sure=((If("killed", ">=", 1),),),
        says="the generator of job {killed_job} was killed",
        evidence=("{killed_for}",),
        changes=(
            Change("./inv resume --job {killed_job}", "the job goes on; nothing finished is asked again", "nothing"),
        ),
        hides=frozenset({"idle", "client-bound", "client-slow"}),
    ),
    Rule(
        name="generator-suspended",
        scope="host",
        when=((If("suspended", ">=", 1),),),
        sure=((If("suspended", ">=", 1),),),
        says="the generator of job {suspended_job} is suspended: somebody stopped its process by a signal",
        evidence=("{suspended_for}",),
        changes=(
            Change(
                "what that says, or ./inv stop --job {suspended_job} and ./inv resume --job {suspended_job}",
                "the job goes on",
                "nothing",
            ),
        ),
        hides=frozenset({"idle", "client-bound", "client-slow"}),
    ),
    Rule(
        name="down",
        when=((If("down", ">=", 1),),),
        sure=((If("down", ">=", 1),),),
        says="the server ended by itself",
        evidence=("{down_for}", "its process is gone, and nobody asked it to stop"),
        changes=(Change("./inv restart-servers --gpus {gpus}", "the GPU works again", "the start of one server"),),
        hides=frozenset("*"),
    ),
    Rule(
        name="hang",
        when=((LIVE, If("running_now", ">", 0), If("still_s", ">=", STILL_S)), (If("stalled", ">=", 1),)),
        sure=((If("stalled", ">=", 1),),),
        says="the server hangs: {running_now:.0f} requests in flight and nothing has moved for {still_s:.0f} s",
        evidence=("no batch line and no token counted for {still_s:.0f} s", "{tok_s:.0f} tok/s now"),
        changes=(
            Change(
                "collect `py-spy dump` of its scheduler, then ./inv restart-servers --gpus {gpus}",
                "the GPU works again; the generator sends what was lost once more",
                "the requests in flight there, and the start of one server",
            ),
        ),
        hides=frozenset("*"),
    ),
    Rule(
        name="gpu-fault",
        scope="host",
        when=((If("xids", ">=", 1),),),
        sure=((If("xids", ">=", 1),),),
        says="the driver reports GPU faults (Xid)",
        evidence=("{xids:.0f} Xid lines in the kernel log: {xid_lines}",),
        changes=(Change("look at the Xid in NVIDIA's list; reset or replace the GPU", "", "the GPU's servers"),),
    ),
    Rule(
        name="idle",
        when=((LIVE, If("running", "<=", 0), If("running_max", "<=", 0), NO_QUEUE),),
        sure=((If("seconds", ">=", 10),),),
        says="nothing is sent to the server",
        evidence=("0 requests running and none waiting for {seconds:.0f} s",),
        changes=(Change("./inv resume", "the job goes on", "nothing"),),
        hides=frozenset("*"),
    ),
)

HARDWARE = (
    Rule(
        name="thermal-throttling",
        when=((If("thermal", ">=", 0.3),),),
        sure=((If("thermal", ">=", 0.8),),),
        says="the GPU slows itself down for heat",
        evidence=("thermal or hardware slowdown in {thermal:.0%} of the samples", "{temperature_c:.0f} °C"),
        changes=(
            Change(
                "look at fans, air flow and neighbours of GPU {gpus}; until then a lower power limit is steadier",
                "the rate of its equals: now {rate_of_peers:.0%} of it",
                "a look at the machine",
            ),
        ),
        hides=frozenset({"power-throttling", "slow-gpu"}),
    ),
    Rule(
        name="power-throttling",
        when=(
            (If("power_brake", ">=", 0.2),),
            (If("power_cap_beyond_peers", ">=", 0.5), If("rate_of_peers", "<", 0.9)),
        ),
        sure=((If("power_brake", ">=", 0.2),),),
        says="the GPU slows itself down for power",
        evidence=(
            "power brake in {power_brake:.0%} of the samples, power cap in {power_cap:.0%}",
            "{power_w:.0f} W",
            "{rate_of_peers:.0%} of the rate of its equals",
        ),
        changes=(
            Change(
                "compare nvidia-smi -q -d POWER of GPU {gpus} with an equal one; look at supply and power limit",
                "the rate of its equals",
                "a look at the machine",
            ),
        ),
        hides=frozenset({"slow-gpu"}),
    ),
    Rule(
        name="slow-gpu",
        when=((LIVE, If("peers", ">=", 1), If("rate_of_peers", "<", 0.75)),),
        sure=((If("rate_of_peers", "<", 0.6), If("seconds", ">=", 10)),),
        says="one GPU is slower than its equals: {rate_of_peers:.0%} of their rate with as many requests",
        evidence=(
            "{tok_s:,.0f} tok/s with {running:.0f} running; {peers:.0f} others with as many: {peers_tok_s:,.0f} tok/s",
        ),
        changes=(
            Change(
                "./inv restart-servers --gpus {gpus}",
                "up to x{peers_gain:.2f} on this GPU",
                "the start of one server",
            ),
            Change(
                "if it stays slow: clocks, PCIe width and ECC of nvidia-smi -q",
                "the rate of its equals",
                "a look at the machine",
                needs=("on_gpu",),
            ),
        ),
        hides=frozenset({"client-bound", "client-slow", "state-bound", "flag-bound", "cap-bound"}),
    ),
    Rule(
        name="disk-full",
        scope="host",
        when=((If("disk_free_gib", "<", 1),),),
        sure=((If("disk_free_gib", "<", 0.3),),),
        says="the disk of the output is nearly full",
        evidence=("{disk_free_gib:.2f} GiB free",),
        changes=(Change("make room; the generator waits and goes on by itself", "the job doesn't stop", "nothing"),),
    ),
    Rule(
        name="disk-bound",
        scope="host",
        when=(
            (MOST_SETTLED, If("iowait_pct", ">=", 20), If("util_pct", "<", 80)),
            (MOST_SETTLED, If("iowait_pct", ">=", 20), If("arrived_share", "<", 0.9)),
            (MOST_SETTLED, If("io_pressure_pct", ">=", 30), If("util_pct", "<", 80)),
            (MOST_SETTLED, If("io_pressure_pct", ">=", 30), If("arrived_share", "<", 0.9)),
        ),
        says="the disk holds things up",
        evidence=(
            "the CPUs wait for the disk {iowait_pct:.0f} % of the time",
            "all work stood for I/O {io_pressure_pct:.0f} % of the last 10 s",
            "GPU util {util_pct:.0f} %",
            "{arrived_share:.0%} of the requests that the generator may send are at the servers",
        ),
        changes=(
            Change(
                "put the job's output on a faster disk, or find who else writes there",
                "the feeding keeps up",
                "a new output directory (./inv resume --new), or another program's time",
            ),
        ),
        hides=frozenset({"client-slow"}),
    ),
    Rule(
        name="cpu-bound",
        scope="host",
        when=(
            (MOST_SETTLED, If("cpu_pct", ">=", 90), If("util_pct", "<", 90)),
            (MOST_SETTLED, If("cpu_pressure_pct", ">=", 40), If("util_pct", "<", 90)),
        ),
        sure=((If("cpu_pct", ">=", 90), If("util_pct", "<", 75)),),
        says="the host's CPUs hold things up",
        evidence=(
            "CPUs {cpu_pct:.0f} % busy, GPU util {util_pct:.0f} %",
            "work waited for a CPU {cpu_pressure_pct:.0f} % of the last 10 s",
        ),
        changes=(
            Change(
                "give the container more cores, or stop what else runs there",
                "GPU util near 100 %: up to x{util_gain:.2f}",
                "cores of the host",
            ),
        ),
        hides=frozenset({"client-slow"}),
    ),
)
