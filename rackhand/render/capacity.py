"""A forecast as text: a bar of the memory, the figures, warnings, the best changes, what-ifs; or as JSON."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from rackhand.capacity.errors import DoesNotFit, FlagsRefused
from rackhand.capacity.forecast import Forecast, Trial
from rackhand.capacity.outlook import Outlook
from rackhand.capacity.predict import Capacity
from rackhand.capacity.rate import Rate
from rackhand.render.lines import fitting, report_lines
from rackhand.render.words import plain
from rackhand.report import Report

BAR = 64
BAR_FRAME = 15
TEXT = 80
LIMITS = {
    "slots": "state slots",
    "tokens": "the tokens rule",
    "asked": "--max-running-requests",
    "kv": "KV tokens",
}
PARTS = (("weights", "W"), ("draft", "D"), ("state", "S"), ("intermediate", "I"), ("KV", "K"), ("reserved", "r"))


def show(forecasts: Sequence[Forecast], report: Report | None, *, as_json: bool, verbose: bool) -> int:
    """Print to stdout, as text or as one JSON object; returns the exit code that follows from it."""
    if as_json:
        sys.stdout.write(json.dumps(forecasts_json(forecasts, report), ensure_ascii=False) + "\n")
    else:
        failed = report_lines(report, verbose=verbose) if report is not None and _tells(report) else []
        blocks = ["\n".join(forecast_lines(found, screen_width())) for found in forecasts]
        text = "\n\n".join((*blocks, *(["\n".join(failed)] if failed else [])))
        sys.stdout.write(plain(text) + "\n")
    return exit_code(forecasts, report)


def screen_width() -> int | None:
    """The terminal's columns; None where there is none, and nothing has to fit."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def forecasts_json(forecasts: Sequence[Forecast], report: Report | None) -> dict[str, Any]:
    """One forecast's keys at the top; several under `servers`. Under `hosts` those that failed or whose GPUs can't all
    be read."""
    failed = [row for row in (report.as_json()["hosts"] if report else ()) if row["error"] or row["facts"]]
    found = [forecast.as_json() for forecast in forecasts]
    return (found[0] if len(found) == 1 else {"servers": found}) | ({"hosts": failed} if failed else {})


def _tells(report: Report) -> bool:
    """Whether it holds more than that all went well: an error, or what couldn't be read."""
    return bool(report.exit_code) or any(row.facts for row in report.rows)


def exit_code(forecasts: Sequence[Forecast], report: Report | None) -> int:
    """The report's own, else 4 where SGLang would not start, 2 where the model or version isn't known, else 0."""
    if report is not None and report.exit_code:
        return report.exit_code
    errors = [found.error for found in forecasts if found.error is not None]
    if not errors:
        return 0
    return 4 if all(isinstance(error, DoesNotFit | FlagsRefused) for error in errors) else 2


def forecast_lines(found: Forecast, width: int | None = None) -> list[str]:
    """For a log, or a screen of `width` columns; 80 columns but for what-if tables, which get narrower with the
    screen."""
    text_width = min(TEXT, width or TEXT)
    launch = found.launch
    lines = [f"{found.where}: {launch.model.name} on {launch.gpu.name}, SGLang {launch.version}"]
    if found.outlook is None:
        lines.append(f"  no prediction: {found.error}")
    else:
        lines += _memory(found.outlook.capacity, launch.gpu.free_gib, min(BAR, text_width - BAR_FRAME))
        lines += _figures(found.outlook, found)
    lines += [f"  ! {caution}" for caution in found.cautions]
    lines += _changes(found)
    whole = found.outlook is None  # an error's line stays whole
    return [
        *(lines if whole else (piece for line in lines for piece in _wrapped(line, text_width))),
        *_trials(found, width),
    ]


def _wrapped(line: str, width: int) -> list[str]:
    if "[" in line and line.endswith("]") and " GiB [" in line:
        return [line]
    indent = " " * (20 if line.startswith("  ") and not line.startswith("    ") else 11)
    indent = indent if width >= TEXT else "    "
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _memory(found: Capacity, free_gib: float, columns: int) -> Iterator[str]:
    sizes = {
        "weights": found.weights_gib,
        "draft": found.draft_gib + found.draft_kv_gib,
        "state": found.ssm_gib + found.conv_gib,
        "intermediate": found.intermediate_gib,
        "KV": found.kv_gib,
        "reserved": min(found.reserved_unused_gib, max(0.0, found.outside_gib)),
    }
    bar, reached = "", 0.0
    for name, letter in PARTS:
        reached += sizes[name]
        bar += letter * (min(columns, round(reached / free_gib * columns)) - len(bar))
    yield f"  {free_gib:6.2f} GiB [{bar.ljust(columns, '.')}]"
    told = [f"{letter} {name} {sizes[name]:.2f}" for name, letter in PARTS if sizes[name] or name in ("weights", "KV")]
    yield f"             {' · '.join(told)} · outside {found.outside_gib:.2f}"


def _figures(outlook: Outlook, found: Forecast) -> Iterator[str]:
    c = outlook.capacity
    rows = [("static fraction", f"{c.mem_fraction_static:.3f}{'' if _is_set(found) else ', chosen by SGLang'}")]
    if c.slots:
        how = f"{c.strategy}, overlap {'on' if c.overlap else 'off'}, sizing {c.regime}"
        rows.append(("state slots", f"{c.slots:,}, {c.slots_per_request} a request ({how})"))
        rows.append(("state", f"ssm {c.ssm_gib:.2f} GiB, conv {c.conv_gib:.2f} GiB ({c.state_dtype})"))
    if c.draft_tokens:
        rows.append(("intermediate", f"ssm {c.intermediate_ssm_gib:.2f} GiB, conv {c.intermediate_conv_gib:.2f} GiB"))
        rows.append(("reserved, unused", f"{c.reserved_unused_gib:.2f} GiB"))
    each = f"K and V {c.kv_each_gib:.2f} GiB each" if c.kv_buffers == 2 else f"{c.kv_each_gib:.2f} GiB"
    window = f"; window layers {c.swa_tokens:,}, {c.swa_kv_each_gib:.2f} GiB each" if c.swa_tokens else ""
    rows.append(("KV tokens", f"{c.kv_tokens:,}, {each}{window}"))
    rows.append(("running at most", f"{c.max_running_requests:,}, capped by {LIMITS[c.capped_by]}"))
    kept = f"{outlook.steady_running:,} running of {found.lengths.resident:,.0f} tokens"
    rows.append(("this job keeps", f"{kept}, limited by {LIMITS[outlook.limit]} ({found.lengths_from})"))
    rows.append(("rate", _rate(outlook.rate, found.launch.gpu.name)))
    yield from (f"  {name:<17} {text}" for name, text in rows)


def _is_set(found: Forecast) -> bool:
    return any(name.strip("-").replace("_", "-") == "mem-fraction-static" for name in found.launch.flags)


def _rate(rate: Rate | None, gpu: str) -> str:
    if rate is None:
        return f"unknown: no bandwidth of {gpu} in the table"
    roof = f"{rate.share:.0%} of the {rate.bound} roofline {rate.roofline_tokens_per_s:,.0f}"
    return f"{rate.tokens_per_s:,.0f} tok/s ({rate.low:,.0f}-{rate.high:,.0f}), {roof}; {rate.basis}"


def _speed(outlook: Outlook) -> str:
    return "?" if outlook.rate is None else f"{outlook.rate.tokens_per_s:,.0f}"


def _changes(found: Forecast) -> Iterator[str]:
    if found.outlook is None:
        return
    yield "  best changes:" if found.advice else "  best changes: none gains 1 % or more"
    for one in found.advice:
        yield f"    {one.gain:+5.0%}  {one.outlook.steady_running:,} running, {_speed(one.outlook)} tok/s: {one.change}"
        yield f"           costs {one.change.cost}"


def _trials(found: Forecast, width: int | None) -> Iterator[str]:
    if not found.trials:
        return
    yield "  what if:"
    rows = [("set", "slots", "running", "KV tokens", "tok/s", "outside GiB"), *map(_trial, found.trials)]
    widths = [max(len(row[at]) for row in rows if len(row) > at) for at in range(len(rows[0]))]
    kept = list(range(len(widths)))
    if width is not None:
        kept = fitting(widths, width - 4, drop=(1, 5, 3))
        if sum(widths[at] + 2 for at in kept) - 2 > width - 4:
            yield from _stacked(rows, found.trials, width)
            return
    for row, trial in zip(rows, (None, *found.trials), strict=True):
        if trial is not None and trial.problem:
            line = f"    {row[0].ljust(widths[0])}  {trial.problem}"
            yield from [line] if width is None else textwrap.wrap(line, width, subsequent_indent="      ")
        else:
            yield "    " + "  ".join(row[at].ljust(widths[at]) for at in kept).rstrip()


def _trial(trial: Trial) -> tuple[str, ...]:
    if trial.outlook is None:
        return (trial.name, "", "", "", "", "")
    c, kept = trial.outlook.capacity, trial.outlook.steady_running
    running = f"{c.max_running_requests:,}" + (f" ({kept:,} by KV)" if kept < c.max_running_requests else "")
    return (trial.name, f"{c.slots:,}", running, f"{c.kv_tokens:,}", _speed(trial.outlook), f"{c.outside_gib:.1f}")


def _stacked(rows: Sequence[tuple[str, ...]], trials: Sequence[Trial], width: int) -> Iterator[str]:
    """Where not even the columns that matter most fit: a name with its figures below."""
    for (name, *figures), trial in zip(rows[1:], trials, strict=True):
        yield from textwrap.wrap(name, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
        told = ", ".join(f"{label} {figure}" for label, figure in zip(rows[0][1:], figures, strict=True))
        yield from textwrap.wrap(trial.problem or told, width, initial_indent="      ", subsequent_indent="      ")
