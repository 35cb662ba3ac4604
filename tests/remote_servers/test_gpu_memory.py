from __future__ import annotations

from pathlib import Path

import pytest

from remote import each_gpu
from remote.serving.gpu_memory import App, Baselines, Gpu, idle_mib, is_back, observe_gpus, parse_apps, parse_gpus


def test_nvidia_smi_rows_are_read_and_others_left_out() -> None:
    text = (
        "0, GPU-a, 4\n1, GPU-b, 81234 MiB\n2, GPU-c, [N/A]\n3, GPU-d, [GPU requires reset]\n4, [Unknown Error], 0\n"
        "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error\nFailed to initialize NVML\n"
    )
    assert parse_gpus(text) == (
        Gpu(0, "GPU-a", 4),
        Gpu(1, "GPU-b", 81234),
        Gpu(2, "GPU-c", None, "N/A"),
        Gpu(3, "GPU-d", None, "GPU requires reset", is_faulty=True),
    )
    assert parse_apps("GPU-a, 123, 80000\nGPU-a, [N/A], 1\n\n") == (App("GPU-a", 123, 80000),)


def test_a_gpu_that_hides_the_others_from_nvidia_smi_is_gone_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bus in ("0000:01:00.0", "0000:41:00.0", "0000:81:00.0"):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        'case "$*" in *01:00.0) echo "0, GPU-a, 4";; *81:00.0) echo "2, GPU-c, 5";;\n'
        '*) echo "Unable to determine the device handle for GPU 0000:41:00.0: Unknown Error"; exit 255;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(each_gpu, "GPUS", tmp_path / "gpus")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert observe_gpus() == (Gpu(0, "GPU-a", 4), Gpu(2, "GPU-c", 5))


@pytest.mark.parametrize("said", ["", "No devices were found", "0, GPU-a, 4\nGPU 1 is lost", "Failed to open"])
def test_nvidia_smi_is_asked_once_where_no_gpu_hides_the_others(said: str) -> None:
    assert each_gpu.rows_of_each(("/nonexistent",), said) == said


@pytest.mark.parametrize(
    ("used", "accounted", "has_server", "idle"),
    [(4, 0, False, 4), (80_004, 80_000, True, 4), (80_004, 0, True, None), (10, 20, True, 0), (9_000, 0, False, 9_000)],
)
def test_at_first_sight_idle_is_what_no_process_accounts_for(
    used: int, accounted: int, has_server: bool, idle: int | None
) -> None:
    assert idle_mib(used, accounted, has_server=has_server) == idle


@pytest.mark.parametrize(
    ("used", "baseline", "back"),
    [(4, 4, True), (516, 4, True), (517, 4, False), (1_112, None, True), (1_113, None, False)],
)
def test_memory_is_back_within_the_tolerance(used: int, baseline: int | None, back: bool) -> None:
    assert is_back(used, baseline) is back


def test_the_lowest_value_seen_stays_the_baseline(tmp_path: Path) -> None:
    baselines = Baselines(tmp_path)
    for mib in (700, 4, 300):
        baselines.learn("GPU-a", mib)
    assert Baselines(tmp_path).read() == {"GPU-a": 4}
