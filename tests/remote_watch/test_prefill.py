from __future__ import annotations

import time
from pathlib import Path

import pytest

from rackhand.engines import engine
from remote.watching.prefill import PrefillShare
from remote.watching.server_log import ServerLog
from tests.remote_watch.fake_server import decode_line

STEP_S, PREFILL_S, STEPS, RUNNING = 0.050, 0.120, 40, 64
PREFILL = (
    "Prefill batch, #new-seq: 1, #new-token: 300, #cached-token: 0, full token usage: 0.40, mamba usage: 0.50, "
    "#running-req: 64, #queue-req: 0, cuda graph: False"
)


def rate_after(batches: int) -> float:
    """Tokens per second over 40 steps with so many prefill batches between them."""
    return RUNNING * STEPS / (STEPS * STEP_S + batches * PREFILL_S)


def noted(*batches: int, running: int = RUNNING, every_s: float = 2.0) -> PrefillShare:
    share = PrefillShare()
    for n, count in enumerate(batches):
        for _ in range(count):
            share.note_prefill()
        share.note_decode(every_s * n, running, rate_after(count))
    return share


def test_the_share_is_the_time_of_the_batches_in_the_time_of_all() -> None:
    batches = [0, 1, 3, 0, 2, 1, 1, 0, 2, 1, 1, 0]
    spent = sum(batches) * PREFILL_S
    assert noted(*batches).share(24.0) == pytest.approx(spent / (spent + len(batches) * STEPS * STEP_S))


@pytest.mark.parametrize(
    ("batches", "share"), [([0] * 12, 0.0), ([1] * 12, None), ([0, 1] * 4, None), ([], None)], ids=str
)
def test_without_a_difference_between_lines_only_no_prefill_at_all_is_known(
    batches: list[int], share: float | None
) -> None:
    assert noted(*batches).share(24.0) == share


def test_old_lines_other_batches_and_pauses_do_not_count() -> None:
    share = noted(*[0, 1] * 6)
    known = share.share(24.0)
    for n in range(5):
        share.note_prefill()
        share.note_decode(24.0 + n, RUNNING, None)
    assert share.share(35.0) == known
    assert share.share(24.0 + 300) is None
    share.note_decode(360.0, RUNNING // 2, 900.0)
    assert share.share(360.0) is None


def test_the_share_is_fitted_anew_every_ten_seconds_and_after_a_clock_was_set_back() -> None:
    share = noted(*[0, 1] * 6)
    known = share.share(24.0)
    for n in range(12):
        share.note_decode(24.0 + n, RUNNING, rate_after(0))
    assert share.share(33.9) == known
    assert share.share(34.0) != known
    assert share.share(23.0) == share.share(23.0 + 9)


def test_a_server_log_tells_its_prefill_share_and_the_tokens_in_its_pool(tmp_path: Path) -> None:
    path, now = tmp_path / "sglang_gpu0.log", time.time()
    lines = []
    for n in range(14):
        at = now - 30 + 2 * n
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
        lines += [f"[{stamp}] {PREFILL}\n"] * (n % 2)
        lines.append(decode_line(at, tok_s=rate_after(n % 2)))
    path.write_text("".join(lines))
    log = ServerLog(path, engine("sglang"))
    log.update()
    assert log.prefill_share() == pytest.approx(7 * PREFILL_S / (7 * PREFILL_S + 13 * STEPS * STEP_S), rel=1e-3)
    assert log.total("#full token", "#token") == 181_000
