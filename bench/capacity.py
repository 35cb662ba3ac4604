"""Predicted against recorded: every check value of the memory model, and the measured decode rates.

Run: python bench/capacity.py. Ends with 1 when a count is not exact, or a size off by more than 0.5 %. `reported`
values were printed by real servers; `table` and `pencil` ones were worked out beside this code (tests/capacity).
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rackhand.capacity import predict  # noqa: E402
from rackhand.capacity.gpus import kind_of  # noqa: E402
from rackhand.capacity.measured import MEASURED  # noqa: E402
from rackhand.capacity.rate import predict_rate  # noqa: E402
from tests.capacity import Row, rows  # noqa: E402

TOLERANCE = 0.005
MEASURES = ("kv_tokens", "kv_each_gib", "ssm_gib", "intermediate_ssm_gib", "reserved_unused_gib", "swa_tokens")


def main() -> int:
    print(f"{'check value':<58}{'recorded':>12}{'predicted':>12}{'off':>9}  source")
    checked = [line for row in rows() for line in _lines(row)]
    worst = max(off for _, _, off in checked)
    for text, _, _ in checked:
        print(text)
    wrong = [text for text, good, _ in checked if not good]
    print(f"\n{len(checked)} values, {len(wrong)} wrong, largest difference of a size {worst:.3%}\n")
    _rates()
    return 1 if wrong else 0


def _lines(row: Row) -> list[tuple[str, bool, float]]:
    found = predict(row.model, row.gpu, row.version, row.flags, row.environ)
    lines = []
    for name, recorded in row.expected.items():
        ours = getattr(found, name)
        off = abs(ours / recorded - 1) if name in MEASURES and recorded else 0.0
        good = off <= TOLERANCE if name in MEASURES and recorded else ours == recorded
        shown = f"{off:9.3%}" if name in MEASURES else f"{'exact' if good else 'WRONG':>9}"
        label = f"{row.name}: {name}"
        lines.append((f"{label:<58.58}{_word(recorded):>12}{_word(ours):>12}{shown}  {row.source}", good, off))
    return lines


def _word(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)


def _rates() -> None:
    print(f"{'decode rate of one server':<34}{'measured':>10}{'from the other point':>28}{'off':>8}{'roofline':>10}")
    for point in MEASURED:
        others = [p for p in MEASURED if p.gpu == point.gpu and p is not point]
        kind = kind_of(point.gpu)
        if kind is None:
            continue
        found = predict_rate(point.model, kind, point.work, others)
        label = f"{point.gpu}, {point.work.running} running{', MTP' if point.work.drafts else ''}"
        guess = f"{found.tokens_per_s:,.0f} ({found.low:,.0f}-{found.high:,.0f})"
        off = found.tokens_per_s / point.tokens_per_s - 1
        print(f"{label:<34}{point.tokens_per_s:>10,.0f}{guess:>28}{off:>8.1%}{found.roofline_tokens_per_s:>10,.0f}")


if __name__ == "__main__":
    sys.exit(main())
