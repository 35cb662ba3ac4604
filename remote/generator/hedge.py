"""Which of the last requests are asked once more elsewhere: nothing waits any more, and slots are free. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from remote.generator.server import HANG_FACTOR, Flight, Server

_SLOWER = 1.5
"""Times another server's seconds a token: there a request that begins now may well be done first."""

_SILENT = 0.5
"""Of the usual latency without any sign of life: a full server gives dozens in that time."""


def find_late(servers: Sequence[Server], now: float, floor_s: float) -> Iterator[tuple[Flight, Server]]:
    """Requests to be asked again and where, the youngest first, which have the longest way to go.

    Late is what runs on a slower server than the free one, on one that is left out or silent, or for five times the
    usual latency. Lazy: the caller sends each before it asks for the next, so that no server gets more than its slots.
    """
    usual_s = max((server.latency_s for server in servers), default=0.0)
    limits = {"silent_after_s": max(floor_s, _SILENT * usual_s), "late_after_s": max(floor_s, HANG_FACTOR * usual_s)}
    flights = [(flight, server) for server in servers for flight in server.flights.values()]
    for flight, server in sorted(flights, key=lambda pair: -pair[0].sent_at):
        if flight.hedged or flight.answered or flight.item.copies > 1:
            continue
        free = (other for other in servers if other is not server and other.usable and other.may_send(now))
        best = min(free, key=lambda other: len(other.flights), default=None)
        if best is not None and _is_late(flight, server, best, now, **limits):
            yield flight, best


def _is_late(
    flight: Flight, server: Server, best: Server, now: float, *, silent_after_s: float, late_after_s: float
) -> bool:
    if best.s_per_token and server.s_per_token > _SLOWER * best.s_per_token:
        return True
    return server.breaker.open or now - server.silent_since > silent_after_s or now - flight.sent_at > late_after_s
