"""How SGLang's releases size the state pool: regimes 0 and A to E. Pure; every "GiB" is 2^30 bytes."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

from rackhand.capacity.errors import UnsupportedVersion

Release: TypeAlias = tuple[int, int, int]
Regime: TypeAlias = Literal["0", "A", "B1", "B", "C", "D", "E"]

SUPPORTED = ("0.5.3", "0.5.23")
"""The first and the last release whose sizing `predict` knows."""
UNASKED_SLOTS = 512
_SINCE: tuple[tuple[Release, Regime], ...] = (
    ((0, 5, 17), "E"),
    ((0, 5, 14), "D"),
    ((0, 5, 13), "C"),
    ((0, 5, 8), "B"),
    ((0, 5, 7), "B1"),
    ((0, 5, 4), "A"),
    ((0, 5, 3), "0"),
)


def release_of(version: str) -> Release:
    """The release as numbers; UnsupportedVersion outside `SUPPORTED`. A post release counts as its release."""
    first, last = (tuple(int(p) for p in v.split(".")) for v in SUPPORTED)
    parts = version.split(".")[:3]
    if len(parts) != 3 or not all(p.isascii() and p.isdigit() for p in parts):
        raise UnsupportedVersion(f"SGLang {version!r} is no release; write it like 0.5.11")
    if not first <= tuple(map(int, parts)) <= last:
        raise UnsupportedVersion(
            f"SGLang {version}: the memory model knows {SUPPORTED[0]} to {SUPPORTED[1]} and no other release"
        )
    return int(parts[0]), int(parts[1]), int(parts[2])


def regime_of(release: Release) -> Regime:
    """Which way of sizing a release has. 0: 0.5.3 · A: 0.5.4-6 · B1: 0.5.7 · B: 0.5.8-12 · C: 0.5.13 · D: 0.5.14-16 ·
    E: 0.5.17-23."""
    return next(regime for since, regime in _SINCE if release >= since)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StateBudget:
    """What sizing of the state pool starts from.

    `rest_gib` is what weights and the non-static part leave; `slot_gib` one slot; `running` the asked number or None;
    `slots` the asked pool; `drafts` the draft tokens a step verifies (0: no speculation); `kept` tells that the
    intermediate copies aren't needed (ReplaySSM), `ring_gib` what it needs instead.
    """

    regime: Regime
    rest_gib: float
    slot_gib: float
    ratio: float
    running: int | None
    slots: int | None
    drafts: int
    per_request: int
    radix: bool
    kept: bool = False
    ring_gib: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StatePool:
    """`slots` of state, GiB `reserved_gib` for intermediate copies and `state_gib` for the slots, as charged."""

    slots: int
    reserved_gib: float
    state_gib: float


def size_state(budget: StateBudget) -> StatePool:
    """The state pool of a hybrid model, by regime; see each regime's function for its formula. SGLang 0.5.3-0.5.23."""
    if budget.regime in ("0", "A"):
        return _size_early(budget)
    if budget.regime in ("B1", "B"):
        return _size_for_asked(budget)
    return _size_jointly(budget)


def _size_early(b: StateBudget) -> StatePool:
    """0 (0.5.3): slots = flag, asked or 512, copies not charged. A (0.5.4-0.5.6): share / slot / (1 + D); flag and
    asked number count only without radix cache; copies charged for every slot."""
    if b.regime == "0" or not b.radix:
        slots = b.slots or b.running or UNASKED_SLOTS
    else:
        slots = max(0, int(_share_gib(b) // b.slot_gib // (1 + b.drafts)))
    copies = 0 if b.regime == "0" else b.drafts
    return StatePool(slots=slots, reserved_gib=slots * b.slot_gib * copies, state_gib=slots * b.slot_gib)


def _size_for_asked(b: StateBudget) -> StatePool:
    """B (0.5.8-0.5.12): slot x asked x D is reserved first, whatever runs in the end; then slots = flag, or asked
    without radix cache, or share of the rest / slot. B1 (0.5.7): reserved only where the ratio decides."""
    reserved = b.slot_gib * (b.running or 0) * b.drafts
    slots = b.slots
    if slots is None and not b.radix:
        slots = b.running or (UNASKED_SLOTS if b.regime == "B1" else None)
    if slots is not None and b.regime == "B1":
        reserved = 0.0
    if slots is None:
        slots = max(0, int(_share_gib(b, reserved) // b.slot_gib))
    return StatePool(slots=slots, reserved_gib=reserved, state_gib=slots * b.slot_gib)


def _size_jointly(b: StateBudget) -> StatePool:
    """C (0.5.13) and D (0.5.14-0.5.16): copies for min(asked, slots // S) requests; by ratio
    slots = share / (slot x (1 + D / S)). E (0.5.17-0.5.23): one padding slot more on each buffer."""
    pad = 1 if b.regime == "E" else 0
    drafts = 0 if b.kept else b.drafts
    if b.slots is not None:
        slots = b.slots
    elif not b.radix and b.running is not None:
        slots = b.running
    else:
        free = _share_gib(b) - b.ring_gib - pad * b.slot_gib * (1 + drafts)
        slots = max(0, int(free // (b.slot_gib * (1 + drafts / b.per_request))))
    charged = slots if b.running is None else min(b.running, slots // b.per_request)
    reserved = b.slot_gib * (charged + pad) * drafts if drafts else 0.0
    return StatePool(slots=slots, reserved_gib=reserved, state_gib=(slots + pad) * b.slot_gib + b.ring_gib)


def _share_gib(b: StateBudget, reserved_gib: float = 0.0) -> float:
    return max(0.0, (b.rest_gib - reserved_gib) * b.ratio / (1 + b.ratio))
