"""GPUs by name: memory, bandwidth, dense compute, power. Pure data, each row with its source."""

from __future__ import annotations

import dataclasses
import re

from rackhand.capacity.shapes import Gpu

CONTEXT_MIB = 1500
"""What the driver's reserve and a CUDA context with its distributed groups take before the weights; measured 1,484 on
an RTX PRO 6000 and 1,523 on a B200."""

MEASURED_FREE_GIB = {"rtx-pro-6000": 94.14, "b200": 177.57}
"""`Load weight begin. avail mem` of idle GPUs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuKind:
    """`key` is what --gpu takes; `pattern` fits nvidia-smi's name. `memory_mib` as nvidia-smi totals it, bandwidth in
    GB/s (10^9), TFLOP/s dense, without sparsity, with fp32 accumulation; `fp8_tflops` = bf16 where there is no fp8."""

    key: str
    pattern: str
    memory_mib: int
    compute_capability: str
    bandwidth_gb_s: float
    bf16_tflops: float
    fp8_tflops: float
    power_w: float
    source: str

    @property
    def idle_free_gib(self) -> float:
        return MEASURED_FREE_GIB.get(self.key, (self.memory_mib - CONTEXT_MIB) / 1024)

    def gpu(self, free_gib: float | None = None) -> Gpu:
        """For `predict`; `free_gib` None: an idle GPU's, as SGLang finds it before the weights."""
        free = self.idle_free_gib if free_gib is None else free_gib
        return Gpu(name=self.key, memory_mib=self.memory_mib, free_gib=free, compute_capability=self.compute_capability)


KINDS = tuple(
    GpuKind(
        key=key,
        pattern=pattern,
        memory_mib=mib,
        compute_capability=capability,
        bandwidth_gb_s=bandwidth,
        bf16_tflops=bf16,
        fp8_tflops=fp8,
        power_w=power,
        source=source,
    )
    for key, pattern, mib, capability, bandwidth, bf16, fp8, power, source in (
        (
            "rtx-pro-6000",
            r"RTX PRO 6000 Blackwell Server",
            97_887,
            "12.0",
            1597,
            500,
            1000,
            600,
            "NVIDIA RTX PRO 6000 Blackwell Server Edition datasheet: 1,597 GB/s, 4 PFLOP/s of sparse fp4",
        ),
        (
            "rtx-pro-6000-workstation",
            r"RTX PRO 6000 Blackwell (?!Server)",
            97_887,
            "12.0",
            1792,
            500,
            1000,
            600,
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition datasheet: 1,792 GB/s, 4,000 AI TOPS (sparse fp4)",
        ),
        (
            "b200",
            r"\bB200\b",
            183_359,
            "10.0",
            7672,
            2250,
            4500,
            1000,
            "7,680-bit bus at 3,996 MHz by the driver (pytorch/ao#4002), sold as 8 TB/s; power: MLPerf Inference v6.0",
        ),
        (
            "h200",
            r"\bH200\b(?!.*NVL)",
            143_771,
            "9.0",
            4800,
            989,
            1979,
            700,
            "NVIDIA H200 datasheet: 4.8 TB/s, 700 W, 1,979 / 3,958 TFLOP/s with sparsity",
        ),
        (
            "h100",
            r"\bH100\b(?!.*(PCIe|NVL))",
            81_559,
            "9.0",
            3350,
            989,
            1979,
            700,
            "NVIDIA H100 SXM datasheet: 3.35 TB/s, 700 W, 1,979 / 3,958 TFLOP/s with sparsity",
        ),
        (
            "a100-80gb",
            r"\bA100\b.*SXM.*80",
            81_920,
            "8.0",
            2039,
            312,
            312,
            400,
            "NVIDIA A100 80GB SXM datasheet: 2,039 GB/s, 312 TFLOP/s of dense bf16, 400 W; no fp8",
        ),
        (
            "l40s",
            r"\bL40S\b",
            46_068,
            "8.9",
            864,
            362,
            733,
            350,
            "NVIDIA L40S datasheet: 864 GB/s, 362 / 733 TFLOP/s dense, 350 W",
        ),
        (
            "rtx-5090",
            r"RTX 5090",
            32_607,
            "12.0",
            1792,
            209.5,
            419,
            575,
            "NVIDIA RTX Blackwell architecture paper: 1,792 GB/s, 209.5 / 419 TFLOP/s dense with fp32 accumulation",
        ),
        (
            "rtx-4090",
            r"RTX 4090",
            24_564,
            "8.9",
            1008,
            165.2,
            330.3,
            450,
            "NVIDIA Ada architecture paper: 1,008 GB/s, 165.2 / 330.3 TFLOP/s dense with fp32 accumulation",
        ),
    )
)


def kind_of(name: str) -> GpuKind | None:
    """The kind of that key, or that fits nvidia-smi's name; None when there is none."""
    plain = name.strip().lower().replace(" ", "-").replace("_", "-")
    for kind in KINDS:
        if plain == kind.key or re.search(kind.pattern, name):
            return kind
    return None
