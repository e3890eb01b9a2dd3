"""One host's line to the fleet: asks for departures, and tells what became of them.

At most one exchange is under way at a time, so what is said arrives in order: a refusal lowers the
shared limit before the place it frees can go to the next. Everything that has gathered meanwhile is
said in the next exchange.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from scrapy_hostgate.controller import Decision, Reason
from scrapy_hostgate.fleet.protocol import (
    Bounds,
    Change,
    Fleet,
    FleetError,
    Granted,
    Known,
    Talk,
    Told,
    Why,
)
from scrapy_hostgate.fleet.within import within
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.saved import Saved
from scrapy_hostgate.semaphore import CallLater, Permit, Timer

# Waiters that ask again after the same time would ask all at once.
JITTER = 0.1
# A pause that differs by less from what the fleet said is the same one.
SAME_PAUSE_S = 0.05
# How long a departure is valid that the fleet has not heard of.
UNTOLD = math.inf


class Worker(Protocol):
    """What a link needs of the worker it belongs to."""

    fleet: Fleet
    name: str
    timeout_s: float
    ids: itertools.count[int]

    @property
    def alone(self) -> bool:
        """Whether the fleet cannot be asked now."""

    @property
    def wary(self) -> bool:
        """Whether the fleet has only just come back, and may not know yet who is in flight."""

    @property
    def stays_closed(self) -> bool:
        """Whether nobody departs while the fleet is gone."""

    @property
    def workers(self) -> int:
        """How many workers there were when the fleet could last be asked."""

    def bounds(self, gate: Gate) -> Bounds: ...
    def heard(self, told: Told) -> None: ...
    def lost(self, error: FleetError) -> None: ...
    def adopted(self, gate: Gate, decision: Decision) -> None: ...
    def leases_lost(self, gate: Gate, count: int) -> None: ...


@dataclass(frozen=True, slots=True)
class _Ticket:
    """A departure that the fleet has allowed and nobody has used yet."""

    lease: str
    valid_until: float
    in_flight: int


class HostLink:
    """The fleet's say over one gate. See :class:`scrapy_hostgate.gate.Admission`."""

    # All mutable state: asks not yet granted, by when to ask again; tickets in hand; leases in
    # flight, by how long they are valid; what has still to be told; which leases of a time alone
    # were told without an answer yet; what was last heard; the one exchange under way, and what a
    # wake-up said meanwhile; and the one timer.
    def __init__(
        self,
        worker: Worker,
        gate: Gate,
        *,
        clock: Callable[[], float],
        call_later: CallLater,
        uniform: Callable[[float, float], float],
    ) -> None:
        self.gate = gate
        self._worker = worker
        self._clock = clock
        self._call_later = call_later
        self._uniform = uniform
        self._asks: dict[str, float] = {}
        self._tickets: list[_Ticket] = []
        self._held: dict[str, float] = {}
        self._ended: list[str] = []
        self._unheard: set[str] = set()
        self._change: Change | None = None
        self._refusals_told = gate.refusals
        self._pause_known = -math.inf
        self._known: Known | None = None
        self._offset_s = 0.0
        self._talked_at = -math.inf
        # Whether to say what is held and known, though nothing of it has changed.
        self._renew = True
        self._woken_for = math.inf
        self._exchange: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<HostLink {self.gate.key!r} asks={len(self._asks)} held={len(self._held)}>"

    @property
    def idle(self) -> bool:
        """Whether nothing is held or asked for, and no exchange is under way."""
        return not (self._exchange or self._timer or self._asks or self._held)

    # -- what the gate asks and tells ------------------------------------------------------------

    def earliest(self, now: float) -> float:
        worker = self._worker
        if worker.alone:
            return math.inf if worker.stays_closed else self._earliest_alone(now)
        if worker.wary and self.gate.in_flight:
            return math.inf
        if self._tickets and self._tickets[0].valid_until > now:
            return now
        self.talk()
        return math.inf

    def departing(self, permit: Permit) -> None:
        if self._tickets and not self._worker.alone:
            ticket = self._tickets.pop(0)
            permit.lease, permit.in_flight = ticket.lease, ticket.in_flight
            self._held[ticket.lease] = ticket.valid_until
        else:
            # Alone. The fleet hears of it when it is back.
            permit.lease = self._new_id()
            self._held[permit.lease] = UNTOLD

    def valid(self, permit: Permit) -> bool:
        return permit.lease is not None and self._clock() < self._held[permit.lease]

    def left(self, permit: Permit) -> None:
        lease, permit.lease = permit.lease, None
        if lease is not None and (self._held.pop(lease) != UNTOLD or lease in self._unheard):
            self._ended.append(lease)
        self.talk()

    def decided(self, decision: Decision) -> None:
        lesson = json.dumps(self.gate.lesson(self._clock(), self._offset_s))
        change = Change(
            decision.epoch - 1,
            decision.limit_to,
            decision.reason.value,
            decision.reason is Reason.REFUSED,
            lesson,
        )
        self._change = _both(self._change, change)
        self.talk()

    # -- the exchange ----------------------------------------------------------------------------

    def talk(self) -> None:
        """Say what there is to say, as soon as the exchange under way is over."""
        if self._exchange is None and not self._closed and not self._worker.alone:
            self._exchange = asyncio.ensure_future(self._talk_all())

    def woken(self, after_s: float) -> None:
        """It may be our turn in so many seconds."""
        at = self._clock() + after_s
        self._woken_for = min(self._woken_for, at)
        for ask, due in self._asks.items():
            self._asks[ask] = min(due, at)
        if self._exchange is None:
            self._set_timer()

    def beat(self, older_than_s: float) -> None:
        """Renew the leases in flight if nothing was said for so long."""
        if self._held and self._clock() - self._talked_at >= older_than_s:
            self._renew = True
            self.talk()

    def forsaken(self) -> None:
        """The fleet cannot be asked any more: nothing asked for will be granted."""
        self._ended += self._asks
        self._asks.clear()
        self.gate.semaphore.reconsider()

    def rejoin(self) -> None:
        """The fleet is back: tell it first what is in flight here."""
        self._renew = True
        self._pause_known = -math.inf
        self.talk()

    async def close(self) -> None:
        """Say the last word: nothing is held or asked for here any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._closed = True
        self._ended += self._asks
        self._asks.clear()
        if self._exchange is not None:
            await asyncio.wait([self._exchange])
        if self._ended and not self._worker.alone:
            await self._talk_once()

    async def _talk_all(self) -> None:
        try:
            # Whatever else happens in this turn of the loop is said too.
            await asyncio.sleep(0)
            while self._has_to_talk():
                if not await self._talk_once():
                    return
        finally:
            self._exchange = None
            self._set_timer()

    async def _talk_once(self) -> bool:
        said = self._say()
        ended, self._ended = self._ended, []
        change, self._change = self._change, None
        self._unheard.update(lease for lease in said.held if self._held[lease] == UNTOLD)
        self._renew = False
        self._talked_at = sent_at = self._clock()
        self._woken_for = math.inf
        try:
            told = await within(
                self._worker.timeout_s, self._worker.fleet.talk(self.gate.key, said)
            )
        except FleetError as error:
            self._ended = ended + self._ended
            self._change = _both(change, self._change)
            if said.pause_s:
                self._pause_known = -math.inf
            self._worker.lost(error)
            return False
        self._refusals_told += said.refusals
        self._worker.heard(told)
        self._hear(said, told, sent_at)
        return True

    def _to_tell(self) -> bool:
        return bool(
            self._ended
            or self._change
            or self.gate.refusals > self._refusals_told
            or self.gate.pacer.pause_until > max(self._pause_known + SAME_PAUSE_S, self._clock())
        )

    def _has_to_talk(self) -> bool:
        now = self._clock()
        renew = self._renew and (bool(self._held) or self._taught(now))
        asks = self._wanted() > len(self._asks) or any(due <= now for due in self._asks.values())
        return renew or asks or self._wanted() < len(self._asks) or self._to_tell()

    def _taught(self, now: float) -> bool:
        """Whether the fleet would want to hear from us what it once knew."""
        return self._known is not None and self.gate.controller.troubled(now)

    def _wanted(self) -> int:
        """How many asks should be out: no more than could depart here at once."""
        gate, now = self.gate, self._clock()
        if self._closed or gate.pacer.next_departure(now) > now:
            return 0
        free = (1 if self._worker.wary else gate.limit) - gate.in_flight
        return max(0, min(gate.waiting, free) - len(self._tickets))

    def _say(self) -> Talk:
        now = self._clock()
        wanted = self._wanted()
        while len(self._asks) > wanted:
            self._ended.append(self._asks.popitem()[0])
        while len(self._asks) < wanted:
            self._asks[self._new_id()] = now
        pause_s = self.gate.pacer.pause_until - now
        if pause_s > 0 and self.gate.pacer.pause_until > self._pause_known + SAME_PAUSE_S:
            self._pause_known = self.gate.pacer.pause_until
        else:
            pause_s = 0.0
        return Talk(
            worker=self._worker.name,
            bounds=self._worker.bounds(self.gate),
            held=tuple(self._held),
            ended=tuple(self._ended),
            asks=tuple(self._asks),
            change=self._change,
            pause_s=pause_s,
            refusals=self.gate.refusals - self._refusals_told,
            known=self._known or self._learnt_before(),
        )

    def _learnt_before(self) -> Known:
        """What a gate knows that goes on from an earlier run."""
        controller = self.gate.controller
        return Known(controller.epoch, controller.limit)

    def _hear(self, said: Talk, told: Told, sent_at: float) -> None:
        now = self._clock()
        self._offset_s = told.now_s - now
        self._known = Known(told.epoch, told.limit, told.reason, told.lesson)
        lost = told.lost - len(self._unheard.intersection(said.held))
        self._unheard.clear()
        if lost > 0:
            self._worker.leases_lost(self.gate, lost)
        for lease in said.held:
            if lease in self._held:
                self._held[lease] = sent_at + said.bounds.lease_s
        self._take_up(said, told, now)
        if told.pause_s:
            self.gate.pacer.pause(now, told.pause_s)
            self._pause_known = max(self._pause_known, self.gate.pacer.pause_until)
        valid_until = sent_at + said.bounds.lease_s
        for ask, answer in told.answers.items():
            if isinstance(answer, Granted):
                self._asks.pop(ask, None)
                self._tickets.append(_Ticket(ask, valid_until, answer.in_flight))
            elif ask in self._asks:
                late = self._uniform(0, JITTER) if answer.why is Why.LIMIT else 0.0
                # A wake-up may have overtaken the answer that it is news to.
                self._asks[ask] = min(now + answer.after_s * (1 + late), self._woken_for)
        self.gate.semaphore.reconsider()
        self._give_back_tickets()

    def _take_up(self, said: Talk, told: Told, now: float) -> None:
        """The shared limit is the one that holds, whoever decided on it."""
        controller = self.gate.controller
        if self._change is not None:
            # We have decided again meanwhile, on top of what was just heard or of nothing.
            if said.change is None or told.changed:
                self._change = replace(self._change, epoch=told.epoch)
                return
            self._change = None
        if said.change is not None and told.changed:
            controller.epoch = told.epoch
            return
        if told.epoch == controller.epoch and said.change is None:
            return
        try:
            reason = Reason(told.reason)
        except ValueError:
            reason = Reason.RESIZED
        try:
            values = json.loads(told.lesson) if told.lesson else {}
            decision = self._adopt(values, told, now, reason)
        except ValueError:
            # Of another version of this package, perhaps: the limit holds without its grounds.
            decision = self._adopt({}, told, now, reason)
        self._worker.adopted(self.gate, decision)

    def _adopt(self, lesson: object, told: Told, now: float, reason: Reason) -> Decision:
        saved = Saved(lesson, now=now, offset_s=self._offset_s)
        return self.gate.adopt(saved, told.limit, told.epoch, reason)

    def _give_back_tickets(self) -> None:
        """What nobody uses at once is for others: nothing is held while waiting."""
        self._ended += [ticket.lease for ticket in self._tickets]
        self._tickets.clear()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._asks and not self._closed:
            wait_s = min(self._asks.values()) - self._clock()
            self._timer = self._call_later(max(0.0, wait_s), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.talk()

    def _new_id(self) -> str:
        return f"{self._worker.name}:{next(self._worker.ids)}"

    def _earliest_alone(self, now: float) -> float:
        """One at a time, and the workers share what one of them may send."""
        gate = self.gate
        if gate.in_flight:
            return math.inf
        bounds = self._worker.bounds(gate)
        interval_s = max(bounds.spacing_s, bounds.rate_s)
        return max(now, gate.pacer.last_departure + interval_s * self._worker.workers)


def _both(first: Change | None, then: Change | None) -> Change | None:
    """What stands for two decisions of which nobody has heard yet."""
    if first is None or then is None:
        return first or then
    return replace(then, epoch=first.epoch, refused=first.refused or then.refused)
