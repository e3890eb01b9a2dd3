"""Requests that wait at gates, and what becomes of them when the spider closes.

Scrapy tells nobody that a spider begins to close, so whoever waits has to look.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from twisted.internet.defer import Deferred

from scrapy_hostgate.errors import SpiderClosingError
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.observe.log import printable
from scrapy_hostgate.semaphore import CallLater, Permit, Timer

CLOSE_POLL_S = 0.25
CLOSE_GRACE_S = 5.0


class WaitingRoom:
    """Holds the Deferred of everyone who waits for a permit.

    While the spider closes, whoever waits is handed back to the scheduler. Those that have come
    back at once were sent by somebody who has no scheduler (a media pipeline, robots.txt,
    ``engine.download_async``): they may still go if their gate opens within 5 s of the closing, and
    fail otherwise.
    """

    # All mutable state: who waits, and the one timer, which exists only while somebody does.
    def __init__(
        self,
        clock: Callable[[], float],
        call_later: CallLater,
        closing_began: Callable[[], float | None],
        on_drop: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self._closing_began = closing_began
        self._on_drop = on_drop
        self.waiters: dict[Permit, _Waiter] = {}
        """Everybody who waits."""
        self._watch: Timer | None = None
        self._looking = False

    def __len__(self) -> int:
        return len(self.waiters)

    def enter(self, gate: Gate, permit: Permit, *, came_back: bool) -> Deferred[bool]:
        """Wait for ``permit``. Fires with ``True`` at the grant, ``False`` for a hand-back.

        Fails with :exc:`SpiderClosingError`, or with what :meth:`fail` is given. Cancelling it
        withdraws the permit. Call :meth:`leave` whatever comes of it.
        """

        def cancelled(_: Deferred[bool]) -> None:
            gate.semaphore.withdraw(permit)

        wakes: Deferred[bool] = Deferred(cancelled)
        permit.on_grant = partial(wakes.callback, True)
        self.waiters[permit] = _Waiter(gate, wakes, came_back)
        self._keep_watch()
        return wakes

    def leave(self, permit: Permit) -> None:
        del self.waiters[permit]

    def fail(self, gate: Gate, error: Exception) -> int:
        """End every wait at ``gate`` with ``error``; return how many."""
        failed = 0
        for permit, waiter in list(self.waiters.items()):
            if waiter.gate is gate and gate.semaphore.withdraw(permit):
                failed += 1
                waiter.wakes.errback(error)
        return failed

    def look_for_close(self) -> None:
        """If the spider closes, end the waits that should not hold it up."""
        # Without asyncio a waiter that is woken runs at once, and looks here again as it leaves.
        # The loop below has everybody already; a level deeper for each would end in recursion.
        if not self.waiters or self._looking:
            return
        began = self._closing_began()
        if began is None:
            return
        self._looking = True
        try:
            self._end_waits(began)
        finally:
            self._looking = False

    def _end_waits(self, began: float) -> None:
        now, deadline = self._clock(), began + CLOSE_GRACE_S
        for permit, waiter in list(self.waiters.items()):
            semaphore = waiter.gate.semaphore
            if not waiter.came_back:
                if semaphore.withdraw(permit):
                    waiter.wakes.callback(False)
                continue
            in_vain = now >= deadline or waiter.gate.pacer.next_departure(now) > deadline
            if in_vain and semaphore.withdraw(permit):
                self._on_drop()
                host = printable(waiter.gate.key)
                waiter.wakes.errback(
                    SpiderClosingError(f"the spider closes while {host} is not to be asked")
                )

    def stop(self) -> None:
        """Cancel the timer."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _keep_watch(self) -> None:
        if self._watch is None:
            self._watch = self._call_later(CLOSE_POLL_S, self._look)

    def _look(self) -> None:
        self._watch = None
        self.look_for_close()
        if self.waiters:
            self._keep_watch()


class _Waiter:
    __slots__ = ("came_back", "gate", "wakes")

    def __init__(self, gate: Gate, wakes: Deferred[bool], came_back: bool) -> None:
        self.gate = gate
        self.wakes = wakes
        self.came_back = came_back
