"""The verb `job` over a road: start a generator and see it at work, or stop it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rackhand.agent import Session
from rackhand.contract import from_json, to_json
from rackhand.contract.job import bad_lines_words
from rackhand.contract.run import RunNote, RunRequest, RunResult
from rackhand.errors import PreconditionError, RemoteError, TransportError
from rackhand.inventory import Host
from rackhand.place import COMMAND
from rackhand.plan.job import ChangeJob, StartJob, StopJob, render_progress
from rackhand.report import Outcome

SLACK_S = 60.0


def start_job(
    session: Session, host: Host, action: StartJob, secrets: Mapping[str, str], say: Callable[[str], None]
) -> tuple[Outcome, ...]:
    """PreconditionError when nothing could be started, RemoteError when it was started and failed at once."""
    order = action.order
    request = RunRequest(host.home, start=order, secrets=dict(secrets))
    result = _call(session, host, request, order.probe_timeout_s + order.start_timeout_s + SLACK_S, say)
    if result.outcome == "running":
        return (Outcome(f"job {action.name}: already running, {render_progress(result.state)}", "unchanged"),)
    sick = [probe for probe in result.probes if not probe.healthy]
    notes = tuple(Outcome(f"{probe.url} does not generate: {probe.text}", "failed") for probe in sick)
    if result.outcome == "ended" and result.status:
        what = f"job {action.name}: the generator ended at once{f': {result.why}' if result.why else ''}"
        raise RemoteError(what, where=host.where, hint=f"read {order.log}", detail="\n".join(result.lines))
    healthy = f"{len(result.probes) - len(sick)} of {len(result.probes)} servers generate"
    if result.outcome == "planned":
        return (Outcome(f"{action.line}; {healthy}", "planned"), *notes)
    if result.outcome == "ended":
        return (Outcome(f"job {action.name}: done, {render_progress(result.state)}"), *_unread(action, result), *notes)
    return (Outcome(f"job {action.name}: started, {_before(result)} already done, {healthy}"), *notes)


def change_job(session: Session, host: Host, action: ChangeJob, say: Callable[[str], None]) -> tuple[Outcome, ...]:
    """RemoteError when the generator did not take it; PreconditionError when it ended meanwhile."""
    order = action.order
    result = _call(session, host, RunRequest(host.home, change=order), order.timeout_s + SLACK_S, say)
    said = f"concurrency {order.concurrency}, {render_progress(result.state)}"
    match result.outcome:
        case "changed":
            return (Outcome(f"job {action.name}: changed to {said}"),)
        case "running":
            return (Outcome(f"job {action.name}: already running with {said}", "unchanged"),)
        case _:
            what = f"job {action.name}: its generator ended meanwhile"
            raise PreconditionError(what, where=host.where, hint=f"./inv resume --job {action.name} starts it again")


def stop_job(session: Session, host: Host, action: StopJob, say: Callable[[str], None]) -> tuple[Outcome, ...]:
    """Ends when the generator has: what was in flight is finished, or given back at the deadline."""
    order = action.order
    deadline_s = order.drain_timeout_s + 2 * order.hurry_timeout_s + SLACK_S
    result = _call(session, host, RunRequest(host.home, stop=order), deadline_s, say)
    said = render_progress(result.state)
    match result.outcome:
        case "idle":
            return (Outcome(f"job {action.name}: no generator runs, {said}", "unchanged"),)
        case "planned":
            return (Outcome(action.line, "planned"),)
        case "killed":
            what = f"job {action.name}: did not end when asked and was killed; nothing finished is lost, {said}"
            return (Outcome(what),)
        case _:
            return (Outcome(f"job {action.name}: stopped, {said}"),)


def _call(
    session: Session, host: Host, request: RunRequest, deadline_s: float, say: Callable[[str], None]
) -> RunResult:
    result: RunResult | None = None
    for event in session.call("job", to_json(request), python=host.python, deadline_s=deadline_s, silence_s=60.0):
        match event.get("event"):
            case "note":
                say(from_json(RunNote, event).text)
            case "heartbeat":
                say(f"waiting for {event.get('waiting_for')}")
            case "run":
                result = from_json(RunResult, event)
            case _:
                pass
    if result is None:
        raise TransportError("job gave no answer", where=host.where)
    return result


def _unread(action: StartJob, result: RunResult) -> tuple[Outcome, ...]:
    """A job that is done without lines that can't be read is done in part: exit status 3."""
    progress = result.state.progress
    if progress is None or not progress.bad_lines:
        return ()
    words = bad_lines_words(progress.bad_lines, progress.bad_line_numbers)
    advice = f"{COMMAND} prompts.check --job {action.name} says what is wrong with them"
    return (Outcome(f"job {action.name}: {words}; {advice}", "failed"),)


def _before(result: RunResult) -> int:
    progress = result.state.progress
    return result.state.finished if progress is None else progress.completed_before
