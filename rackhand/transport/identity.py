"""Which keys an SSH connection may offer, and why none of them was taken."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import paramiko

from rackhand.errors import AuthError
from rackhand.transport.ssh_config import Target


def key_options(target: Target) -> dict[str, Any]:
    """For paramiko: the key files that are there, and the agent's keys as far as IdentitiesOnly lets them."""
    known = _agent_key(target.key_files) if target.only_key_files and target.agent else None
    return {
        "key_filename": [str(file) for file in target.key_files if file.is_file()],
        "allow_agent": target.agent and not target.only_key_files,
        "look_for_keys": False,
        **({"pkey": known} if known else {}),
    }


def refused(target: Target, error: Exception, where: str) -> AuthError:
    files = [str(file) for file in target.key_files if file.is_file()]
    locked = [file for file in files if _is_locked(Path(file))]
    if locked:
        hint = f"{locked[0]} has a passphrase: unlock it in an agent, ssh-add {locked[0]}"
    else:
        offered = ", ".join(files) or "no key file"
        hint = f"offered: {offered}; put the public key into {target.user}'s authorized_keys"
    return AuthError(f"{target.user}@{target.host} was refused", where=where, hint=hint, detail=str(error))


def _agent_key(files: tuple[Path, ...]) -> paramiko.PKey | None:
    """The agent's key whose public half lies beside one of `files`."""
    wanted = set()
    for file in files:
        public = file if file.suffix == ".pub" else file.with_name(file.name + ".pub")
        with contextlib.suppress(OSError, IndexError):
            wanted.add(public.read_text().split()[1])
    if not wanted:
        return None
    return next((key for key in paramiko.Agent().get_keys() if key.get_base64() in wanted), None)


def _is_locked(file: Path) -> bool:
    try:
        paramiko.PKey.from_path(file)
    except (paramiko.PasswordRequiredException, TypeError):
        return True
    except Exception:  # noqa: BLE001  only a passphrase is asked about here
        return False
    return False
