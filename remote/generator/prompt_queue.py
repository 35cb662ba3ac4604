"""Prompts that wait for a slot: fresh ones in file order, and failed ones until their time comes. Pure."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from remote.prompts.rows import Prompt

_FIRST_WAIT_S = 0.25
_MAX_WAIT_S = 30.0
_LOOKAHEAD = 32
_PATIENCE_S = 5.0


@dataclass(slots=True, eq=False)
class Item:
    """A prompt on its way. `attempts` counts against the limit, `sent` counts all requests; `tried` are servers.

    `copies` are in flight now, more than one when it is hedged; `settled`: its end is known, other answers are late.
    """

    prompt: Prompt
    attempts: int = 0
    sent: int = 0
    bad_answers: int = 0
    due: float = 0.0
    copies: int = 0
    settled: bool = False
    tried: set[str] = field(default_factory=set)


class Queue:
    """A retry whose time has come goes before fresh prompts, to a server it hasn't tried while there is one."""

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self._fresh: deque[Item] = deque()
        self._ready: deque[Item] = deque()
        self._waiting: list[tuple[float, int, Item]] = []
        self._jitter = jitter

    def __len__(self) -> int:
        return len(self._fresh) + len(self._ready) + len(self._waiting)

    @property
    def fresh(self) -> int:
        return len(self._fresh)

    @property
    def retries(self) -> int:
        return len(self._ready) + len(self._waiting)

    def add(self, prompt: Prompt) -> None:
        self._fresh.append(Item(prompt))

    def give_back(self, item: Item, server: str) -> None:
        """To be asked at once, on another server first: the request was cut off by us."""
        item.tried.add(server)
        self._ready.append(item)

    def retry(self, item: Item, server: str, now: float) -> None:
        """After a back-off with jitter, on another server first."""
        item.tried.add(server)
        wait = min(_MAX_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(item.sent - 1, 10))
        item.due = now + wait * (0.5 + self._jitter() / 2)
        heapq.heappush(self._waiting, (item.due, item.prompt.index, item))

    def take(self, server: str, usable: Collection[str], now: float) -> Item | None:
        """The next item for `server`; `usable` are the servers that answer now."""
        while self._waiting and self._waiting[0][0] <= now:
            self._ready.append(heapq.heappop(self._waiting)[2])
        for position in range(min(len(self._ready), _LOOKAHEAD)):
            item = self._ready[position]
            if server not in item.tried or item.tried.issuperset(usable) or now - item.due > _PATIENCE_S:
                del self._ready[position]
                if item.tried.issuperset(usable):
                    item.tried.clear()
                return item
        return self._fresh.popleft() if self._fresh else None
