"""Rates that real machines reached, as points for `rate`. Pure data."""

from __future__ import annotations

from rackhand.capacity.rate import Point, Work
from rackhand.capacity.shapes import QWEN3_6_27B

FIELD_REPORT = "the field report's decode rates"

MEASURED = (
    Point(
        gpu="rtx-pro-6000",
        model=QWEN3_6_27B,
        work=Work(running=32, resident=1600, state_dtype="bfloat16"),
        tokens_per_s=670,
        source=f"{FIELD_REPORT}: 32 sent, KV usage 0.20-0.21 of 250,789 tokens",
    ),
    Point(
        gpu="rtx-pro-6000",
        model=QWEN3_6_27B,
        work=Work(running=64, resident=1930, state_dtype="bfloat16"),
        tokens_per_s=1180,
        source=f"{FIELD_REPORT}: 64 sent, KV usage 0.36-0.49 of 290,801 tokens",
    ),
    Point(
        gpu="b200",
        model=QWEN3_6_27B,
        work=Work(running=16, resident=1900, drafts=4),
        tokens_per_s=2000,
        source=f"{FIELD_REPORT}: 16 running with MTP",
    ),
    Point(
        gpu="b200",
        model=QWEN3_6_27B,
        work=Work(running=40, resident=1900, drafts=4),
        tokens_per_s=3500,
        source=f"{FIELD_REPORT}: 40 running with MTP",
    ),
)
