"""Secrets in the container: where they may lie, and who may read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote.cli import VerbError
from remote.serving import secret_files

MOUNTS = """/dev/vda1 / ext4 rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
/dev/vda2 /dev/shm/disk ext4 rw 0 0
/dev/vda3 /over ext4 rw 0 0
tmpfs /over tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "fine"),
    [("/dev/shm/x", True), ("/dev/shm", True), ("/dev/shmx", False), ("/dev/shm/disk/x", False), ("/over/a/b", True)],
)
def test_a_tmpfs_is_told_by_the_last_mount_on_the_way(
    path: str, fine: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mounts"
    table.write_text(MOUNTS)
    monkeypatch.setattr(secret_files, "MOUNTS", table)
    assert secret_files.is_on_tmpfs(Path(path)) is fine


def test_secrets_go_to_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_files, "is_on_tmpfs", lambda path: False)
    with pytest.raises(VerbError, match="is not on a tmpfs"):
        secret_files.put_secrets(tmp_path / "d", {"secrets.env": "A='b'\n"})
    assert list((tmp_path / "d").iterdir()) == []


def test_only_the_owner_can_read_secrets_and_nothing_half_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_files, "is_on_tmpfs", lambda path: True)
    folder = tmp_path / "d"
    secret_files.put_secrets(folder, {"secrets.env": "A='b'\n"})
    assert (folder.stat().st_mode & 0o777, (folder / "secrets.env").stat().st_mode & 0o777) == (0o700, 0o600)
    with pytest.raises(UnicodeEncodeError):
        secret_files.put_secrets(folder, {"secrets.env": "\ud800"})
    assert [path.name for path in folder.iterdir()] == ["secrets.env"]
    assert (folder / "secrets.env").read_text() == "A='b'\n"
