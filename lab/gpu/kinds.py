"""The GPU kinds that the lab can play: what nvidia-smi says about them and how fast a decode step is on them."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """One kind of GPU. Memory in MiB as nvidia-smi counts it; `free_gib` is what SGLang finds free after its own
    context, before the weights. `step_fixed_s` and `step_per_running_s` are the line t(b) of `step_time_s`."""

    key: str
    name: str
    memory_total_mib: int
    memory_reserved_mib: int
    memory_idle_mib: int
    free_gib: float
    power_limit_w: float
    power_idle_w: float
    step_fixed_s: float
    step_per_running_s: float
    fitted_with_speculation: bool
    compute_capability: str

    @property
    def context_mib(self) -> int:
        """What a CUDA process takes before it loads anything, MiB."""
        return self.memory_total_mib - self.memory_reserved_mib - self.memory_idle_mib - round(self.free_gib * 1024)


KINDS = {
    kind.key: kind
    for kind in (
        Kind(
            key="rtx-pro-6000",
            name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
            memory_total_mib=97887,
            memory_reserved_mib=638,
            memory_idle_mib=4,
            free_gib=94.14,
            power_limit_w=600.0,
            power_idle_w=31.4,
            step_fixed_s=0.0413,
            step_per_running_s=0.0002025,
            fitted_with_speculation=False,
            compute_capability="12.0",
        ),
        Kind(
            key="b200",
            name="NVIDIA B200",
            memory_total_mib=183359,
            memory_reserved_mib=606,
            memory_idle_mib=4,
            free_gib=177.57,
            power_limit_w=1000.0,
            power_idle_w=141.2,
            step_fixed_s=0.00571,
            step_per_running_s=0.0001429,
            fitted_with_speculation=True,
            compute_capability="10.0",
        ),
    )
}


def step_time_s(kind: Kind, running: int, *, speculation: bool) -> float:
    """Seconds per token of each of `running` requests: fitted to the field report's decode rates.

    RTX PRO 6000 without speculation: 32 running give 670 tok/s, 64 give 1,180. B200 with MTP: 16 give 2,000, 40 give
    3,500. The other pairings aren't measured; the lab plays them a factor `UNMEASURED_SPECULATION_GAIN` apart.
    """
    fitted = kind.step_fixed_s + kind.step_per_running_s * running
    if speculation == kind.fitted_with_speculation:
        return fitted
    return fitted / UNMEASURED_SPECULATION_GAIN if speculation else fitted * UNMEASURED_SPECULATION_GAIN


UNMEASURED_SPECULATION_GAIN = 1.9
