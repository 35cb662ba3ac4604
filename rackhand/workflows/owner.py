"""Who deploys, as the container is told."""

from __future__ import annotations

import getpass
import socket
import time

from rackhand.contract.files import Owner
from rackhand.inventory import Fleet, Host


def owner_of(fleet: Fleet, host: Host) -> Owner:
    """This inventory, this person, this machine, now."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    outputs = tuple(sorted(job.output.rstrip("/") for job in fleet.jobs_on(host)))
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Owner(fleet.path.stem, host.name, outputs, user, socket.gethostname(), now)
