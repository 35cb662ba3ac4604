"""The picture in docs/capacity.md: how some launches share a GPU's memory, drawn from the predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from xml.sax.saxutils import escape

from dev.programs import ROOT
from rackhand.capacity import (
    B200,
    QWEN3_6_27B,
    QWEN3_6_27B_FP8,
    RTX_PRO_6000,
    Capacity,
    Flags,
    Gpu,
    ModelShape,
    predict,
)

TARGET = ROOT / "docs" / "capacity.svg"
WIDTH, LEFT, BAR, STEP, TOP = 900, 16, 868, 58, 46
COLOURS = {
    "weights": "#5b6c8f",
    "draft": "#9aa7c2",
    "state": "#c8553d",
    "intermediate": "#e39b84",
    "KV tokens": "#588b6a",
    "reserved, unused": "#d9c26a",
    "outside the pools": "#e8e8e4",
}


class Launch(NamedTuple):
    title: str
    model: ModelShape
    gpu: Gpu
    flags: Flags


MTP: Flags = {"speculative-algorithm": "NEXTN", "mamba-scheduler-strategy": "extra_buffer", "mem-fraction-static": 0.93}
FP8: Flags = {"mem-fraction-static": 0.9}
LAUNCHES = (
    Launch(
        "96 GB, FP8 weights, extra_buffer",
        QWEN3_6_27B_FP8,
        RTX_PRO_6000,
        {**FP8, "mamba-scheduler-strategy": "extra_buffer"},
    ),
    Launch(
        "the same with a bf16 state",
        QWEN3_6_27B_FP8,
        RTX_PRO_6000,
        {**FP8, "mamba-scheduler-strategy": "extra_buffer", "mamba-ssm-dtype": "bfloat16"},
    ),
    Launch(
        "radix cache off, 128 asked",
        QWEN3_6_27B_FP8,
        RTX_PRO_6000,
        {**FP8, "disable-radix-cache": True, "max-running-requests": 128},
    ),
    Launch(
        "B200, MTP, 200 slots, 64 asked",
        QWEN3_6_27B,
        B200,
        {**MTP, "max-mamba-cache-size": 200, "max-running-requests": 64},
    ),
    Launch(
        "B200, MTP, 200 slots, 40 asked",
        QWEN3_6_27B,
        B200,
        {**MTP, "max-mamba-cache-size": 200, "max-running-requests": 40},
    ),
)


def picture() -> str:
    """The SVG; the same predictions give the same bytes."""
    height = TOP + STEP * len(LAUNCHES) + 8
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">'
    lines = [head, f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>', *_legend()]
    for number, launch in enumerate(LAUNCHES):
        found = predict(launch.model, launch.gpu, "0.5.11", launch.flags)
        lines += _bar(launch, found, TOP + STEP * number)
    return "\n".join((*lines, "</svg>")) + "\n"


def write_picture(say: Callable[[str], None] = print) -> int:
    TARGET.write_text(picture(), encoding="utf-8")
    say(f"wrote {TARGET.relative_to(ROOT)}")
    return 0


def _parts(found: Capacity) -> dict[str, float]:
    """GiB by part; what is reserved and never used comes out of what stays outside."""
    unused = min(found.reserved_unused_gib, max(0.0, found.outside_gib))
    return {
        "weights": found.weights_gib,
        "draft": found.draft_gib + found.draft_kv_gib,
        "state": found.ssm_gib + found.conv_gib,
        "intermediate": found.intermediate_gib,
        "KV tokens": found.kv_gib,
        "reserved, unused": unused,
        "outside the pools": max(0.0, found.outside_gib) - unused,
    }


def _legend() -> list[str]:
    lines, x = [], float(LEFT)
    for name, colour in COLOURS.items():
        lines.append(f'<rect x="{x:.0f}" y="14" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{x + 17:.0f}" y="25" font-size="13" fill="#333333">{escape(name)}</text>')
        x += 34 + 7.4 * len(name)
    return lines


def _bar(launch: Launch, found: Capacity, y: int) -> list[str]:
    runs = f"{found.max_running_requests} running, {found.kv_tokens:,} KV tokens"
    title = f"{launch.title}: {runs}, {launch.gpu.free_gib:.1f} GiB"
    lines = [f'<text x="{LEFT}" y="{y + 14}" font-size="14" fill="#111111">{escape(title)}</text>']
    x = float(LEFT)
    for name, gib in _parts(found).items():
        width = gib / launch.gpu.free_gib * BAR
        lines.append(f'<rect x="{x:.1f}" y="{y + 20}" width="{width:.1f}" height="24" fill="{COLOURS[name]}"/>')
        if width > 34:
            dark = name in ("outside the pools", "reserved, unused")
            lines.append(
                f'<text x="{x + width / 2:.1f}" y="{y + 37}" font-size="12" text-anchor="middle" '
                f'fill="{"#333333" if dark else "#ffffff"}">{gib:.1f}</text>'
            )
        x += width
    return lines
