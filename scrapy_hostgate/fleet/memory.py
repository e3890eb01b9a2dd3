"""The fleet of one process: several crawlers in it share one bound, without Redis.

The same decisions as ``fleet/*.lua``, in the same order, on this process's monotonic clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from time import time
from typing import Any

from scrapy_hostgate.fleet.protocol import (
    AskAgain,
    Bounds,
    Granted,
    HostRow,
    Known,
    Talk,
    Told,
    Wake,
    Why,
)

_SOON_S = 0.005


@dataclass
class _Host:
    """What is shared about one host. Times are seconds of the fleet's clock."""

    epoch: int
    limit: int
    reason: str = ""
    lesson: str = ""
    bounds: Bounds = field(default_factory=Bounds)
    """Of the worker that talked last; for people only."""
    refusals: int = 0
    incidents: int = 0
    pause_until: float = 0.0
    tat: float = 0.0
    """Theoretical arrival time of the rate."""
    departed_at: float = 0.0
    not_before: float = 0.0
    turn: str = ""
    """The ask that is first in the queue and waits only for its time."""
    gone_at: float = 0.0
    """When all of this is forgotten."""
    permits: dict[str, float] = field(default_factory=dict)
    """Id of a download in flight to when its lease ends."""
    queue: dict[str, float] = field(default_factory=dict)
    """Id of an ask, first come first, to when it leaves the queue unless it is asked again."""
    workers: dict[str, float] = field(default_factory=dict)


class MemoryFleet:
    """Shares the state of hosts among the workers of one process."""

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._clock = clock
        self._hosts: dict[str, _Host] = {}
        self._listeners: dict[str, Wake] = {}

    def __repr__(self) -> str:
        return f"<MemoryFleet hosts={len(self._hosts)}>"

    async def talk(self, host: str, said: Talk) -> Told:
        now = self._clock()
        shared = self._shared(host, said, now)
        bounds = said.bounds
        opened = _forget_lapsed(shared, now)
        lost = sum(permit not in shared.permits for permit in said.held)
        for permit in said.held:
            shared.permits[permit] = now + bounds.lease_s
            shared.queue.pop(permit, None)
        for permit in said.ended:
            for table in (shared.permits, shared.queue):
                opened = table.pop(permit, None) is not None or opened
        shared.bounds = bounds
        shared.workers[said.worker] = now + 2 * bounds.lease_s
        shared.refusals += said.refusals
        if said.pause_s > 0:
            _pause(shared, now, said.pause_s)
        changed = said.change is not None and said.change.epoch == shared.epoch
        if changed:
            assert said.change is not None
            shared.epoch += 1
            opened = opened or said.change.limit > shared.limit
            shared.limit, shared.reason = said.change.limit, said.change.reason
            shared.lesson = said.change.lesson
            shared.incidents += said.change.refused
        answers = {ask: _answer(shared, ask, bounds, now) for ask in said.asks}
        if opened:
            self._wake_first(host, shared, said, now)
        shared.gone_at = now + bounds.ttl_s + max(0.0, shared.pause_until - now)
        return Told(
            now_s=now,
            epoch=shared.epoch,
            limit=shared.limit,
            reason=shared.reason,
            lesson=shared.lesson,
            pause_s=max(0.0, shared.pause_until - now),
            in_flight=len(shared.permits),
            workers=len(shared.workers),
            incidents=shared.incidents,
            changed=changed,
            lost=lost,
            answers=answers,
        )

    async def ping(self) -> None:
        """It is always there."""

    async def hosts(self) -> list[HostRow]:
        now = self._clock()
        self._forget_gone(now)
        rows = []
        for name, shared in sorted(self._hosts.items()):
            _forget_lapsed(shared, now)
            rows.append(
                HostRow(
                    host=name,
                    limit=shared.limit,
                    start=shared.bounds.start,
                    ceiling=shared.bounds.ceiling,
                    in_flight=len(shared.permits),
                    waiting=len({worker_of(ask) for ask in shared.queue}),
                    workers=len(shared.workers),
                    pause_s=max(0.0, shared.pause_until - now),
                    refusals=shared.refusals,
                    incidents=shared.incidents,
                    reason=shared.reason,
                )
            )
        return rows

    def listen(self, worker: str, wake: Wake) -> Coroutine[Any, Any, None]:
        self._listeners[worker] = wake
        return self._listen(worker)

    async def close(self) -> None:
        """Nothing to let go of: others in this process may go on."""

    async def _listen(self, worker: str) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._listeners.pop(worker, None)

    def _shared(self, name: str, said: Talk, now: float) -> _Host:
        shared = self._hosts.get(name)
        if shared is None or shared.gone_at <= now:
            self._forget_gone(now)
            known = said.known if said.known.epoch else Known(0, said.bounds.start)
            shared = self._hosts[name] = _Host(known.epoch, known.limit, known.reason, known.lesson)
        known = said.known
        if known.reason and known.epoch > shared.epoch:
            # Memory was lost, and somebody who knew less, or nothing, came first.
            if known.limit <= shared.limit:
                shared.limit, shared.reason, shared.lesson = (
                    known.limit,
                    known.reason,
                    known.lesson,
                )
            shared.epoch = known.epoch
        if shared.epoch == 0:
            # Nobody has decided anything yet, so everybody goes by the own start.
            shared.limit = said.bounds.start
        return shared

    def _forget_gone(self, now: float) -> None:
        self._hosts = {name: host for name, host in self._hosts.items() if host.gone_at > now}

    def _wake_first(self, name: str, shared: _Host, said: Talk, now: float) -> None:
        """Tell those whose turn it is, and when. Those who have just asked know it already."""
        free = max(0, shared.limit - len(shared.permits))
        after_s = max(0.0, shared.pause_until - now, _free_at(shared, said.bounds) - now)
        for place, ask in enumerate(list(shared.queue)[:free]):
            wake = self._listeners.get(worker_of(ask))
            if wake is not None and ask not in said.asks:
                wake(name, after_s + place * _step_s(said.bounds))


def worker_of(ask: str) -> str:
    """The worker that made an id: ids are ``worker:number``."""
    return ask.rpartition(":")[0]


def _forget_lapsed(shared: _Host, now: float) -> bool:
    """Return whether somebody who waits may have more room now."""
    before = len(shared.permits) + len(shared.queue)
    for table in (shared.permits, shared.queue, shared.workers):
        for name in [name for name, until in table.items() if until <= now]:
            del table[name]
    return len(shared.permits) + len(shared.queue) < before


def _pause(shared: _Host, now: float, pause_s: float) -> None:
    begins = max(now, shared.pause_until)
    if now + pause_s > begins:
        if shared.tat:
            # No tokens accrue in a pause.
            shared.tat = max(shared.tat, begins) + now + pause_s - begins
        shared.pause_until = now + pause_s


def _answer(shared: _Host, ask: str, bounds: Bounds, now: float) -> Granted | AskAgain:
    if ask in shared.permits:
        # The answer to an earlier call was lost.
        shared.permits[ask] = now + bounds.lease_s
        return Granted(len(shared.permits))
    places = min(shared.limit, bounds.ceiling) - len(shared.permits)
    ahead = _place(shared, ask)
    at, step_s = _free_at(shared, bounds), _step_s(bounds)
    # Nobody passes a first one that waits only for its time: it would wait for ever.
    passes = bool(ahead) and shared.turn == next(iter(shared.queue))
    if shared.pause_until > now:
        answer = AskAgain(shared.pause_until - now, Why.PAUSE)
    elif at <= now and ahead < places and not passes:
        return _grant(shared, ask, bounds, now)
    elif at > now or (step_s and places > 0):
        if not ahead:
            shared.turn = ask
        # Also where no place is free yet: nobody tells when it is only time that is missing.
        answer = AskAgain(max(0.0, at - now) + ahead * step_s, Why.SPACING)
    else:
        # If a lease lapses, nobody tells; so ask then, at the latest.
        lapse_s = min(shared.permits.values(), default=now) - now + _SOON_S
        answer = AskAgain(lapse_s if shared.permits else bounds.wait_s, Why.LIMIT)
    shared.queue[ask] = now + 2 * bounds.wait_s
    return replace(answer, after_s=min(answer.after_s, bounds.wait_s))


def _free_at(shared: _Host, bounds: Bounds) -> float:
    """When time allows the next departure, places or not."""
    return max(
        shared.not_before,
        shared.departed_at + bounds.spacing_s if shared.departed_at else 0.0,
        shared.tat - (bounds.burst - 1) * bounds.rate_s if bounds.rate_s else 0.0,
    )


def _step_s(bounds: Bounds) -> float:
    return max(bounds.spacing_s, bounds.rate_s)


def _place(shared: _Host, ask: str) -> int:
    """How many have waited longer."""
    for place, other in enumerate(shared.queue):
        if other == ask:
            return place
    return len(shared.queue)


def _grant(shared: _Host, ask: str, bounds: Bounds, now: float) -> Granted:
    shared.queue.pop(ask, None)
    shared.permits[ask] = now + bounds.lease_s
    shared.departed_at = now
    shared.not_before = now + bounds.spacing_s
    if bounds.rate_s:
        shared.tat = max(shared.tat, now) + bounds.rate_s
    return Granted(len(shared.permits))
