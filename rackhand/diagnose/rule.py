"""What a rule is made of: conditions on figures, and words with figures in them. Pure data and its reading."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Figures = Mapping[str, float]
"""Figure → value; a figure that is unknown is not there. docs/diagnose.md names them all."""

Operator = Literal["<", "<=", ">=", ">"]
_OPERATORS: Mapping[Operator, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">=": operator.ge,
    ">": operator.gt,
}


@dataclass(frozen=True, slots=True)
class If:
    """One condition. `than` is a number or the name of another figure; an unknown figure meets no condition."""

    figure: str
    is_: Operator
    than: float | str

    def holds(self, figures: Figures) -> bool:
        value = figures.get(self.figure)
        bound = figures.get(self.than) if isinstance(self.than, str) else self.than
        return value is not None and bound is not None and _OPERATORS[self.is_](value, bound)


AnyOf = tuple[tuple[If, ...], ...]
"""Holds when every condition of one of its groups does; never when it has none."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something to try: what to do, the effect to expect, what it costs; words may hold figures as `{cap:.0f}`. It is
    left out where one of its `needs` is not there."""

    do: str
    effect: str
    cost: str
    when: AnyOf = ((),)
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """`when` makes the verdict, `sure` makes it certain; `says` and `evidence` are words with figures in them, and
    a line of evidence with an unknown figure is left out. `hides` names the verdicts that it makes meaningless on the
    same GPU, `*` all of them. A `host` rule is asked once for all GPUs, and hides on all of them. An `is_limit` is what
    a server meets when it gets more requests; only those are looked at for what comes next. A rule is silent where one
    of its `needs` (figures of present.py) is known not to be there."""

    name: str
    when: AnyOf
    says: str
    evidence: tuple[str, ...]
    changes: tuple[Change, ...]
    sure: AnyOf = ()
    hides: frozenset[str] = frozenset()
    scope: Literal["gpu", "host"] = "gpu"
    is_limit: bool = False
    needs: tuple[str, ...] = ()


def holds(any_of: AnyOf, figures: Figures) -> bool:
    return any(all(condition.holds(figures) for condition in group) for group in any_of)


def is_there(needs: Iterable[str], figures: Figures) -> bool:
    """False when one of `needs` is known to be missing; of several servers, on any of them."""
    return all(figures.get(name, 1.0) >= 1 for name in needs)


def render_words(words: str, figures: Mapping[str, float | str]) -> str | None:
    """The words with their figures; None when one of these is unknown."""
    try:
        return words.format(**figures)
    except KeyError:
        return None
