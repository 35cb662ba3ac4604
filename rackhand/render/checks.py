"""What prompts.check and verify found, as lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rackhand.contract import to_json
from rackhand.contract.checks import NAMED, PromptsCheck, Verified
from rackhand.contract.job import bad_lines_words
from rackhand.render.screen import screen
from rackhand.report import Checked


def tell_checked(checked: Checked, *, as_json: bool, verbose: bool = False) -> int:
    """Prints a table, or one JSON object; gives the exit code. With `verbose` each shard of an output has a line."""
    found = checked.found
    lines = prompts_lines(found) if isinstance(found, PromptsCheck) else verified_lines(found, verbose=verbose)
    noise = checked.noise.splitlines() if verbose else []
    fields = {name: value for name, value in to_json(found).items() if name != "event"}
    with screen(json=as_json) as out:
        out.lines(found.event, {"where": checked.where, "exit_code": checked.exit_code, **fields}, [*lines, *noise])
    return checked.exit_code


def prompts_lines(check: PromptsCheck) -> Iterable[str]:
    duplicates = "too many rows to say" if check.duplicates is None else f"{check.duplicates}"
    yield from _table(
        [
            ("file", f"{check.path}, {check.bytes} bytes"),
            ("lines", f"{check.lines}, of them {check.blank} blank"),
            ("prompts", f"{sum(check.shapes.values())}: {_counts(check.shapes)}"),
            ("with tools, with system", f"{check.with_tools}, {check.with_system}"),
            ("bad lines", f"{check.bad_lines}, of them {check.empty} empty prompts"),
            ("duplicates", duplicates),
            ("characters", ", ".join(f"{name} {value:g}" for name, value in check.chars.items()) or "none"),
        ]
    )
    yield from (f"note: {note}" for note in check.notes)
    yield from (f"line {bad.line}: {bad.what}" for bad in check.bad)
    if check.bad_lines > len(check.bad):
        yield f"... and {check.bad_lines - len(check.bad)} more bad lines"
    yield from (f"line {row.line}: {row.what}" for row in check.duplicated)
    if check.duplicates and check.duplicates > len(check.duplicated):
        yield f"... and {check.duplicates - NAMED} more duplicates"


def verified_lines(found: Verified, *, verbose: bool = False) -> Iterable[str]:
    closed = sum(shard.state == "closed" for shard in found.shards)
    yield from _table(
        [
            ("output", found.output),
            ("records", f"{found.records}, {found.mean_tokens:g} output tokens each"),
            ("finish reasons", _counts(found.finish_reasons)),
            ("finished indices", f"{found.listed}, of them {found.imported} imported"),
            ("rejected", _counts(found.rejected)),
            ("failed", f"{found.failed}"),
            ("shards", f"{len(found.shards)}, {closed} closed ones as the manifest says"),
            ("bad records", _counts(found.faults, of=found.records)),
            ("prompts", bad_lines_words(found.bad_lines, found.bad_line_numbers) or "all lines could be read"),
            ("ledger", f"{len(found.problems)} problems" if found.problems else "right"),
        ]
    )
    if found.cut_on_purpose:
        share = found.cut_on_purpose / found.records
        yield f"note: max_tokens cut {found.cut_on_purpose} answers ({share:.0%}): taken as meant, not as bad records"
    if found.running is not None:
        yield f"note: a generator (pid {found.running}) works on it; what it wrote meanwhile may be missing"
    yield from (f"note: the job has another output, {other}: ./inv verify --output {other}" for other in found.others)
    yield from (f"problem: {problem}" for problem in found.problems)
    if verbose:
        yield from (f"shard {s.shard}: {s.records} records, {s.size} bytes, {s.state}" for s in found.shards)
    yield from (f"{reason}: {where}" for reason, examples in found.examples.items() for where in examples)


def _counts(counts: Mapping[str, int], *, of: int = 0) -> str:
    shares = {name: f" ({count / of:.1%})" if of else "" for name, count in counts.items()}
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {name}{shares[name]}" for name, count in ordered) or "none"


def _table(rows: Sequence[tuple[str, str]]) -> Iterable[str]:
    width = max(len(name) for name, _ in rows)
    return (f"{name:<{width}}  {text}" for name, text in rows)
