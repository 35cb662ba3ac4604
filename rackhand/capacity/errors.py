"""Why there is no prediction. Each says what SGLang would refuse, or what the model doesn't know."""

from __future__ import annotations


class CapacityError(ValueError):
    """The prediction can't be made, or SGLang would refuse to start; the text says why."""


class UnsupportedVersion(CapacityError):  # noqa: N818 - reads as what happened
    """An SGLang release whose sizing isn't known."""


class FlagsRefused(CapacityError):  # noqa: N818 - reads as what happened
    """SGLang of that version refuses these flags, or the memory model doesn't cover them (NotCovered)."""


class NotCovered(FlagsRefused):
    """The memory model doesn't cover these flags; SGLang may well take them."""


class DoesNotFit(CapacityError):  # noqa: N818 - reads as what happened
    """Weights and reserved memory leave nothing for the pools."""


class UnknownModel(CapacityError):  # noqa: N818 - reads as what happened
    """A model whose shape isn't known; the text names the fields that are missing."""
