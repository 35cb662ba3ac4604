"""A redirect in words. None is followed: a request costs minutes of a GPU, and the API key is meant for one address."""

from __future__ import annotations

from urllib.parse import urlsplit


def words_of_redirect(status: int, location: str) -> str:
    """`HTTP 307 to http://HOST/PATH, ...`; a user, a password and a query in it aren't shown."""
    return f"HTTP {status} {_where(location.strip())}, which isn't followed; name the server's own URL"


def _where(location: str) -> str:
    if not location:
        return "to no Location"
    try:
        parts = urlsplit(location)
    except ValueError:
        return "to a Location that is no URL"
    shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()[:200]
    return f"to {shown if shown.isprintable() else ascii(shown)}"
