"""Tokens, variables and `~` in ssh_config's values: what `ssh -G` prints as it was written."""

from __future__ import annotations

import getpass
import hashlib
import re
import socket
from collections.abc import Mapping
from pathlib import Path


class TokenError(ValueError):
    """ssh would end here too; the text says what is wrong in the value."""


def tokens_of(*, host: str, port: int, user: str, alias: str, key_name: str, jump: str = "") -> dict[str, str]:
    """ssh_config(5)'s TOKENS. `alias` is the name as given, `key_name` HostKeyAlias or else that name."""
    local, me, home = socket.gethostname(), getpass.getuser(), str(Path.home())
    digest = hashlib.sha1(f"{local}{host}{port}{user}{jump}".encode(), usedforsecurity=False).hexdigest()
    return {
        "%": "%",
        "C": digest,
        "d": home,
        "h": host,
        "i": str(Path.home().stat().st_uid),
        "j": jump,
        "k": key_name,
        "L": local.partition(".")[0],
        "l": local,
        "n": alias,
        "p": str(port),
        "r": user,
        "u": me,
    }


def expand(text: str, tokens: Mapping[str, str], env: Mapping[str, str], *, variables: bool = True) -> str:
    """`text` with its %-tokens and ${NAME} replaced, in one pass: what a value brings in is not looked at again.
    `variables` False leaves ${NAME} to a shell."""

    def value(found: re.Match[str]) -> str:
        token, name = found.groups()
        if name is not None:
            if not variables:
                return found.group()
            if name not in env:
                raise TokenError(f"the environment variable {name} is not set")
            return env[name]
        if token not in tokens:
            raise TokenError(f"%{token} is no token of ssh")
        return tokens[token]

    return re.sub(r"%(.?)|\$\{([^}]*)\}", value, text)


def path_of(text: str, tokens: Mapping[str, str], env: Mapping[str, str]) -> Path:
    """A file's path: `~` first, as ssh does, then tokens and variables."""
    try:
        start = str(Path(text).expanduser()) if text.startswith("~") else text
    except RuntimeError as error:
        raise TokenError(f"no such user: {text.partition('/')[0]}") from error
    return Path(expand(start, tokens, env))
