"""An adaptive semaphore: who may be in flight at one host, and who goes next.

It is not fair among unequals (the higher priority leaves first), it never takes a permit back, and
it knows no event loop: a grant is a synchronous change of state followed by a callback.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """What a scheduled call gives back."""

    def cancel(self) -> object: ...


CallLater = Callable[[float, Callable[[], None]], Timer]

WAITING, GRANTED, RELEASED, WITHDRAWN = "waiting", "granted", "released", "withdrawn"
"""States of a permit."""


class Permit:
    """One request's claim on a host: first waiting, then granted, then given back."""

    __slots__ = (
        "arrival",
        "epoch",
        "granted_at",
        "in_flight",
        "lease",
        "on_grant",
        "priority",
        "state",
    )

    def __init__(self, priority: int, arrival: int) -> None:
        self.priority = priority
        self.arrival = arrival
        """Its number at its semaphore, in order of arrival."""
        self.state = WAITING
        self.granted_at = 0.0
        """When, in seconds of the semaphore's clock; 0 before."""
        self.in_flight = 0
        """How many were in flight when it departed, itself included."""
        self.epoch = 0
        self.lease: str | None = None
        """The fleet's name for this departure, where a fleet had to allow it."""
        self.on_grant: Callable[[], None] | None = None
        """Called once, at the grant, if the permit had to wait for it."""

    def __repr__(self) -> str:
        return f"<Permit {self.state} priority={self.priority} epoch={self.epoch}>"

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands in the queue: by priority, then by arrival."""
        return -self.priority, self.arrival

    @property
    def granted(self) -> bool:
        return self.state is GRANTED


class Owner(Protocol):
    """Who is told of every grant; an object and not its method, which would cost memory to keep."""

    def departing(self, permit: Permit, now: float) -> None:
        """``permit`` is granted at ``now``, and counted already."""


class _Nobody:
    def departing(self, permit: Permit, now: float) -> None:
        raise RuntimeError(f"{permit!r} was granted by the semaphore of a host that is forgotten")


_NOBODY = _Nobody()


class AdaptiveSemaphore:
    """Grants permits while fewer than ``limit`` are out *and* the departure clock allows one.

    Both are checked and counted in one synchronous step (:meth:`_admit`), so no departure token is
    spent by a request that still waits for a slot, and no slot is held by one that waits for a
    token. Shrinking drains: the limit drops at once, what is in flight stays in flight, and
    releases are not replaced until the count is below the limit again.
    """

    __slots__ = (
        "_arrival",
        "_borrowers",
        "_call_later",
        "_clock",
        "_earliest",
        "_granting",
        "_limit",
        "_owner",
        "_timer",
        "_timer_at",
        "_waiters",
        "_waiting",
        "drains",
    )

    # All mutable state: the limit, who is out, who waits (a heap, if anybody does; withdrawn ones
    # are skipped), and the one timer, which exists only while the first of them waits for a time.
    def __init__(
        self,
        limit: int,
        *,
        clock: Callable[[], float],
        call_later: CallLater,
        earliest: Callable[[float], float],
        owner: Owner,
    ) -> None:
        self._limit = limit
        self._clock = clock
        self._call_later = call_later
        self._earliest = earliest
        self._owner = owner
        # A tuple: they are few, and most hosts are idle, where anything else takes memory.
        self._borrowers: tuple[Permit, ...] = ()
        self._waiters: list[tuple[tuple[int, int], Permit]] | None = None
        self._waiting = 0
        self._arrival = 0
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._granting = False
        self.drains = False
        """Whether more are out than the limit allows, which a shrink leaves behind."""

    def __repr__(self) -> str:
        return f"<AdaptiveSemaphore {len(self._borrowers)}/{self._limit} waiting={self._waiting}>"

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def in_flight(self) -> int:
        return len(self._borrowers)

    @property
    def waiting(self) -> int:
        return self._waiting

    @property
    def idle(self) -> bool:
        """Whether nobody is out and nobody waits."""
        return not (self._borrowers or self._waiting)

    def acquire(self, priority: int = 0) -> Permit:
        """Ask for a permit; it may be granted already when this returns.

        Otherwise set its ``on_grant``. Every permit must end in :meth:`release` or
        :meth:`withdraw`, once.
        """
        self._arrival += 1
        permit = Permit(priority, self._arrival)
        if self._waiting or self._granting:
            self._enqueue(permit)
            return permit
        at = self._admit(permit)
        if at is not None:
            self._enqueue(permit)
            self._wake_at(at)
        return permit

    def release(self, permit: Permit) -> None:
        """Give a granted permit back. Raises ``RuntimeError`` if it is not out (any more)."""
        self._take_back(permit)
        permit.state = RELEASED
        if self._waiting:
            self._grant()

    def withdraw(self, permit: Permit) -> bool:
        """Take a waiting permit out of the queue; ``False`` if it was not waiting."""
        if permit.state is not WAITING:
            return False
        permit.state = WITHDRAWN
        permit.on_grant = None
        self._waiting -= 1
        if self._waiters is not None and len(self._waiters) > 2 * self._waiting + 64:
            self._waiters = [entry for entry in self._waiters if entry[1].state is WAITING]
            heapq.heapify(self._waiters)
        self._grant()
        return True

    def requeue(self, permit: Permit) -> None:
        """Take back a grant that has not been used; the permit waits again, at its old place.

        Set its ``on_grant`` anew unless it is granted again at once. Raises ``RuntimeError`` if it
        is not out.
        """
        self._take_back(permit)
        permit.state = WAITING
        self._enqueue(permit)
        self._grant()

    def resize(self, limit: int) -> None:
        """Set the limit, at least 1. Never revokes what is out."""
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit!r}")
        self._limit = limit
        self.drains = len(self._borrowers) > limit
        self._grant()

    def retire(self) -> None:
        """Nobody will come here again. Lets go of whoever made this semaphore, which holds it too:
        both are freed at once then, and not whenever cycles are collected.
        """
        self._owner = _NOBODY

    @property
    def retired(self) -> bool:
        return self._owner is _NOBODY

    def reconsider(self) -> None:
        """The departure clock has changed (a pause, a spacing): look again."""
        self._grant()

    def _grant(self) -> None:
        """Restore the invariant: whoever may go has gone, and if time is what the first waits for,
        a timer is set. Called after every release, withdrawal, resize, change of the clock and
        timer. An arrival that finds nobody waiting need not ask for more than itself.
        """
        if self._granting:
            # A callback of a grant changed something; the loop below looks again by itself.
            return
        self._granting = True
        try:
            while self._waiting:
                permit = self._first()
                at = self._admit(permit)
                if at is not None:
                    self._wake_at(at)
                    return
                self._drop_first()
                on_grant, permit.on_grant = permit.on_grant, None
                if on_grant is not None:
                    on_grant()
        finally:
            self._granting = False
        self._wake_at(math.inf)
        self._waiters = None

    def _admit(self, permit: Permit) -> float | None:
        """Grant ``permit`` if it may go now, the only place where that is done.

        Otherwise the time at which to ask again, ``inf`` if time is not what it waits for.
        """
        borrowers = self._borrowers
        if len(borrowers) >= self._limit:
            return math.inf
        now = self._clock()
        at = self._earliest(now)
        if at > now:
            return at
        permit.state = GRANTED
        permit.granted_at = now
        self._borrowers = (*borrowers, permit)
        permit.in_flight = len(borrowers) + 1
        self._owner.departing(permit, now)
        return None

    def _take_back(self, permit: Permit) -> None:
        borrowers = self._borrowers
        try:
            at = borrowers.index(permit)
        except ValueError:
            raise RuntimeError(f"{permit!r} is not borrowed from {self!r}") from None
        self._borrowers = left = borrowers[:at] + borrowers[at + 1 :]
        if self.drains:
            self.drains = len(left) > self._limit

    def _enqueue(self, permit: Permit) -> None:
        if self._waiters is None:
            self._waiters = []
        heapq.heappush(self._waiters, (permit.place, permit))
        self._waiting += 1

    def _first(self) -> Permit:
        assert self._waiters is not None
        while self._waiters[0][1].state is not WAITING:
            heapq.heappop(self._waiters)
        return self._waiters[0][1]

    def _drop_first(self) -> None:
        assert self._waiters is not None
        heapq.heappop(self._waiters)
        self._waiting -= 1

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            if self._timer_at == at:
                return
            self._timer.cancel()
            self._timer = None
        if at == math.inf:
            # Whatever else it waits for ends in _grant().
            return
        self._timer_at = at
        self._timer = self._call_later(max(0.0, at - self._clock()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._grant()
