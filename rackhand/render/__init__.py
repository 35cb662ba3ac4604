"""What the operator sees. The only part that imports rich, and only for people: JSON needs none."""

from __future__ import annotations

from rackhand.render.screen import Screen, screen

__all__ = ["Screen", "screen"]
