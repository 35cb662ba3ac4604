"""All that is said before a launch: sizes, warnings, what-ifs, the best changes. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from rackhand.capacity.advice import Advice, advise
from rackhand.capacity.cautions import warn
from rackhand.capacity.errors import CapacityError
from rackhand.capacity.outlook import Launch, Outlook, look_ahead
from rackhand.capacity.rate import Lengths
from rackhand.capacity.read import FlagValue, dashed

MOST_TRIALS = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One combination of --what-if; `problem` says why it has no outlook."""

    name: str
    outlook: Outlook | None
    problem: str = ""


PREDICTED = (
    *("slots", "slots_per_request", "max_running_requests", "capped_by", "kv_tokens", "kv_each_gib", "ssm_gib"),
    *("conv_gib", "intermediate_ssm_gib", "intermediate_conv_gib", "reserved_unused_gib", "tokens_per_s"),
    "roofline_tokens_per_s",
)
"""Keys that every forecast's JSON has; null where there is no outlook."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """`where` names the servers it is about; `error` says why there is no outlook."""

    where: str
    launch: Launch
    lengths: Lengths
    lengths_from: str
    outlook: Outlook | None = None
    error: CapacityError | None = None
    cautions: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()
    trials: tuple[Trial, ...] = ()

    def as_json(self) -> dict[str, Any]:
        launch = self.launch
        found: dict[str, Any] = {"where": self.where, "model": launch.model.name, "gpu": launch.gpu.name}
        found |= {"engine_version": launch.version, "gpu_free_gib": round(launch.gpu.free_gib, 3)}
        found |= {"flags": dict(launch.flags), "resident_tokens": round(self.lengths.resident)}
        found |= {"lengths_from": self.lengths_from, "error": None if self.error is None else str(self.error)}
        found |= dict.fromkeys(PREDICTED) if self.outlook is None else self.outlook.as_json()
        found["warnings"] = list(self.cautions)
        found["changes"] = [
            {
                "flags": dict(one.change.flags),
                "gain": round(one.gain, 4),
                "cost": one.change.cost,
                **_short(one.outlook),
            }
            for one in self.advice
        ]
        found["what_if"] = [
            {"set": trial.name, "error": trial.problem or None, **_short(trial.outlook)} for trial in self.trials
        ]
        return found


def foresee(
    where: str,
    launch: Launch,
    *,
    lengths: Lengths,
    lengths_from: str,
    what_if: Mapping[str, Sequence[FlagValue]] | None = None,
    gpu_totals_mib: tuple[int, ...] = (),
) -> Forecast:
    """Never raises CapacityError: it stands in the forecast."""
    found = Forecast(where=where, launch=launch, lengths=lengths, lengths_from=lengths_from)
    trials = tuple(_try(launch, lengths, flags) for flags in combinations(what_if or {}))
    try:
        outlook = look_ahead(launch, lengths)
    except CapacityError as error:
        return dataclasses.replace(found, error=error, trials=trials)
    return dataclasses.replace(
        found,
        outlook=outlook,
        cautions=warn(launch, outlook, gpu_totals_mib=gpu_totals_mib),
        advice=advise(launch, lengths),
        trials=trials,
    )


def combinations(what_if: Mapping[str, Sequence[FlagValue]]) -> list[dict[str, FlagValue]]:
    """Every choice of one value for each flag, the first 64 of them; none for no flag."""
    if not what_if:
        return []
    every = itertools.product(*what_if.values())
    return [dict(zip(what_if, values, strict=True)) for values in itertools.islice(every, MOST_TRIALS)]


def _try(launch: Launch, lengths: Lengths, flags: Mapping[str, FlagValue]) -> Trial:
    name = ", ".join(
        f"{flag}={str(value).lower() if isinstance(value, bool) else value}" for flag, value in flags.items()
    )
    merged = {**dashed(launch.flags), **dashed(flags)}
    merged = {flag: value for flag, value in merged.items() if value is not False}
    try:
        return Trial(name=name, outlook=look_ahead(dataclasses.replace(launch, flags=merged), lengths))
    except CapacityError as error:
        return Trial(name=name, outlook=None, problem=str(error))


def _short(outlook: Outlook | None) -> dict[str, Any]:
    if outlook is None:
        return {}
    every = outlook.as_json()
    names = ("slots", "max_running_requests", "capped_by", "kv_tokens", "steady_running", "tokens_per_s", "outside_gib")
    return {name: every[name] for name in names}
