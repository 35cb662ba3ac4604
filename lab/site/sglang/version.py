"""The version, where the real package keeps it."""

from . import __version__

__all__ = ["__version__"]
