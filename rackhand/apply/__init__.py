"""Action to commands to Outcome: one match, each arm one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rackhand.agent import Session
from rackhand.apply.container import start_container
from rackhand.apply.files import send
from rackhand.apply.job import change_job, start_job, stop_job
from rackhand.apply.servers import serve_gpus
from rackhand.contract.servers import Step
from rackhand.inventory import Host
from rackhand.plan import Action
from rackhand.plan.deploy import SendFiles, StartContainer
from rackhand.plan.job import ChangeJob, StartJob, StopJob
from rackhand.plan.servers import ServeGpus
from rackhand.report import Outcome


@dataclass(frozen=True)
class Place:
    """Where actions are applied: one host and the session with it, whom to tell, and files for the tmpfs.

    `steps` is filled with how far each GPU came, and stands also when the road breaks.
    """

    host: Host
    session: Session
    say: Callable[[str], None]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    steps: dict[int, Step] = field(default_factory=dict)


def apply(action: Action, place: Place) -> tuple[Outcome, ...]:
    """What was done, one thing an outcome. Raises RackhandError when nothing more can be done."""
    match action:
        case StartContainer():
            start_container(place.session.transport, place.host, place.say)
            return (Outcome(f"started container {action.vmid}"),)
        case SendFiles():
            send(place.session, place.host, action, place.say)
            return (Outcome(_sent(action), detail="\n".join(_changes(action))),)
        case ServeGpus():
            return serve_gpus(
                place.session, place.host, action, secrets=place.secrets, steps=place.steps, say=place.say
            )
        case StartJob():
            return start_job(place.session, place.host, action, place.secrets, place.say)
        case ChangeJob():
            return change_job(place.session, place.host, action, place.say)
        case StopJob():
            return stop_job(place.session, place.host, action, place.say)


def _sent(action: SendFiles) -> str:
    return str(action).replace("send ", "sent ").replace("remove ", "removed ").replace("write ", "wrote ")


def _changes(action: SendFiles) -> list[str]:
    return [
        *(f"wrote {file.path}" for file in action.files),
        *(f"wrote {upload.dest}" for upload in action.uploads),
        *(f"removed {path}" for path in action.remove),
        *(f"left alone, changed by hand: {path}" for path in action.left_alone),
    ]
