"""record and history: keep what is seen, and tell or export it."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from rackhand import tmux
from rackhand.contract import to_json
from rackhand.contract.watch import Sample
from rackhand.errors import RackhandError, UsageError
from rackhand.inventory import Fleet, Host
from rackhand.page.marks import job_changes
from rackhand.place import command_argv
from rackhand.recording import GPU_COLUMNS, Happening, Recording, Run, recordings_dir
from rackhand.render.screen import Screen
from rackhand.render.verdicts import event_json, event_lines, run_lines
from rackhand.report import Outcome, Report, Row
from rackhand.transport.local import Local
from rackhand.workflows.fleet import Say
from rackhand.workflows.metrics import PAST_S, tail_metrics
from rackhand.workflows.record import Recorder, open_recording

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
JOB_CELLS = ("status", "completed", "failed", "total_output_tokens", "tokens_per_s", "eta_hours")


@dataclass(frozen=True, slots=True)
class Told:
    """What a history holds since a time."""

    runs: tuple[Run, ...]
    events: tuple[Happening, ...]
    exported: str = ""


def record(
    fleet: Fleet, hosts: Sequence[Host], environ: Mapping[str, str], *, say: Say, interval_s: float = 5.0
) -> Report:
    """Write the histories until Ctrl-C (exit code 130). Each host's road is taken up again when it breaks."""
    recorder = Recorder(fleet, environ, say=say, interval_s=interval_s)
    try:
        return tail_metrics(
            fleet,
            hosts,
            show=recorder.take,
            say=say,
            verb="record",
            interval_s=interval_s,
            past_s=PAST_S,
            since=recorder.newest,
            note=recorder.note,
            patience="start",
        )
    finally:
        recorder.close()


def detach(fleet: Fleet, environ: Mapping[str, str], argv: Sequence[str]) -> Report:
    """Run `argv` in a tmux session of its own on this machine; unchanged when one of this inventory runs."""
    directory = recordings_dir(environ, fleet.path)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        what = f"no history can be kept here: {error.strerror}"
        raise RackhandError(what, where=str(directory), hint="set XDG_STATE_HOME") from None
    local, home, session = Local(), str(directory), "record"
    panes = tmux.parse_panes(local.exec(tmux.list_panes_argv(home)).stdout.decode(errors="replace"))
    attach = shlex.join(tmux.tmux_argv(home, "attach", "-t", session))
    if any(pane.session == session and not pane.dead for pane in panes):
        return _report(f"a recording of {fleet.path.name} runs already; {attach}", "unchanged")
    if any(pane.session == session for pane in panes):
        local.exec(tmux.kill_session_argv(home, session))
    done = local.exec(tmux.new_session_argv(home, session, tuple(argv), digest="record"))
    if done.status:
        why = done.stderr.decode(errors="replace").strip()
        hint = "install tmux here; its socket's path has at most 107 characters (XDG_STATE_HOME)"
        raise RackhandError(f"tmux makes no session: {why[-300:]}", where=home, hint=hint)
    return _report(f"recording in tmux until Ctrl-C there: {attach}", "done")


def remove_history(environ: Mapping[str, str], inventory: Path) -> None:
    """Everything that was recorded of an inventory, and the recording in tmux that may write it."""
    directory = recordings_dir(environ, inventory)
    if not directory.is_dir():
        return
    Local().exec(tmux.tmux_argv(str(directory), "kill-server"))
    shutil.rmtree(directory, ignore_errors=True)


def history(
    fleet: Fleet, environ: Mapping[str, str], job: str, *, since: str | None = None, export: str | None = None
) -> Told:
    """What the history of `job` holds; `since` is an age (`12h`, `30m`, `2d`) or a local time; `export` also writes
    samples to FILE.csv (one row a GPU) or samples and events to FILE.jsonl."""
    start = parse_since(since, time.time())
    recording = open_recording(fleet, environ, job)
    exported = ""
    try:
        if export is not None:
            _export(recording, Path(export), start)
            exported = f"wrote {export}: {recording.count(start):,} samples"
        runs = tuple(run for run in recording.runs() if run.ended >= start)
        return Told(runs, tuple(all_events(recording, start)), exported)
    finally:
        recording.close()


def all_events(recording: Recording, since: float) -> list[Happening]:
    """What was kept as an event, and each start and end of a generator, which the samples show."""
    by_host: dict[str, list[Sample]] = {}
    for host, sample in recording.job_samples(since=since):
        by_host.setdefault(host, []).append(sample)
    jobs = [
        Happening(time, host, None, "job", text, {})
        for host, samples in by_host.items()
        for time, _, text, _ in job_changes(samples)
    ]
    return sorted([*recording.events(since=since), *jobs], key=lambda event: event.time)


def tell_history(screen: Screen, told: Told) -> None:
    for line, run in zip(run_lines(told.runs), told.runs, strict=True):
        screen.lines("run", asdict(run), (line,))
    for lines, event in zip(event_lines(told.events), told.events, strict=True):
        screen.lines("happening", asdict(event), lines)
    if told.exported:
        screen.say("history", told.exported)
    elif not told.runs and not told.events:
        screen.say("history", "neither runs nor events of that time are kept")


def parse_since(text: str | None, now: float) -> float:
    """Unix seconds; 0 for None. UsageError for what is neither an age nor a time."""
    if text is None:
        return 0.0
    if age := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
        return now - float(age[1]) * _UNITS[age[2]]
    for form in ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d"):
        with suppress(ValueError):
            return time.mktime(time.strptime(text.replace("T", " "), form))
    raise UsageError(f"--since {text!r} is no time", hint="write 12h, 30m, 2d or 2026-05-09 18:00")


def _export(recording: Recording, path: Path, since: float) -> None:
    if path.suffix not in (".csv", ".jsonl"):
        raise UsageError(f"--export {path}: neither .csv nor .jsonl", hint="the name's end says the format")
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            write = write_csv if path.suffix == ".csv" else write_jsonl
            write(file, recording, since)
    except OSError as error:
        raise RackhandError(f"can't be written: {error.strerror}", where=str(path)) from None


def write_csv(file: TextIO, recording: Recording, since: float = 0.0) -> None:
    """One row for each GPU of each sample; job columns are those of the first job."""
    rows = csv.writer(file)
    rows.writerow(("time", "gpu", *GPU_COLUMNS, "throttle", *(f"job_{name}" for name in JOB_CELLS), "rebuilt"))
    for sample in recording.samples(since=since):
        rows.writerows(_csv_rows(sample))


def _csv_rows(sample: Sample) -> Iterator[list[object]]:
    progress = sample.jobs[0].progress if sample.jobs else None
    after = [*((progress or {}).get(name, "") for name in JOB_CELLS), int(sample.rebuilt)]
    for gpu in sample.gpus:
        values = [getattr(gpu, name) for name in GPU_COLUMNS]
        yield [sample.time, gpu.gpu, *("" if v is None else v for v in values), " ".join(gpu.throttle), *after]


def write_jsonl(file: TextIO, recording: Recording, since: float = 0.0) -> None:
    """Samples as tail-metrics --json prints them, then events."""
    file.writelines(json.dumps(to_json(sample), ensure_ascii=False) + "\n" for sample in recording.samples(since=since))
    file.writelines(event_json(event) + "\n" for event in all_events(recording, since))


def record_argv(fleet: Fleet, hosts: Sequence[Host], interval_s: float) -> tuple[str, ...]:
    """The foreground recording's own command line, wherever it is run."""
    names = ",".join(host.name for host in hosts)
    inventory = str(fleet.path.resolve())
    return (*command_argv(), "record", "--inventory", inventory, "--hosts", names, "--interval", f"{interval_s:g}")


def _report(text: str, state: str) -> Report:
    outcome = Outcome(text, "done" if state == "done" else "unchanged")
    return Report("record", (Row("here", (outcome,)),))
