"""A clock that moves only when told to, and draws that are not random."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class FakeTimer:
    """One scheduled call. Cancelling it twice, or after it ran, is an error as it is in Twisted."""

    __slots__ = ("_clock", "at", "done", "function")

    def __init__(self, clock: FakeClock, at: float, function: Callable[[], None]) -> None:
        self._clock = clock
        self.at = at
        self.function = function
        self.done = False

    def cancel(self) -> None:
        assert not self.done, "cancelled twice, or after it ran"
        self.done = True
        self._clock.pending -= 1


class FakeClock:
    """Monotonic seconds (call it) and ordered timers (:meth:`call_later`)."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.pending = 0
        """How many timers are set."""
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._order = itertools.count()

    def __call__(self) -> float:
        return self.now

    def call_later(self, delay_s: float, function: Callable[[], None]) -> FakeTimer:
        assert delay_s >= 0
        timer = FakeTimer(self, self.now + delay_s, function)
        heapq.heappush(self._timers, (timer.at, next(self._order), timer))
        self.pending += 1
        return timer

    @property
    def next_at(self) -> float | None:
        """When the next timer runs, ``None`` if none is set."""
        while self._timers and self._timers[0][2].done:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def run_until(self, until: float) -> None:
        """Let time pass; every timer that falls due runs at its own time, in order."""
        timers = self._timers
        while timers and timers[0][0] <= until:
            at, _, timer = heapq.heappop(timers)
            if timer.done:
                continue
            # A stall may have left it overdue: it runs late then, time never goes back.
            if at > self.now:
                self.now = at
            timer.done = True
            self.pending -= 1
            timer.function()
        self.now = max(self.now, until)

    def advance(self, seconds: float) -> None:
        self.run_until(self.now + seconds)

    def stall(self, seconds: float) -> None:
        """The event loop stands still: time passes and no timer runs."""
        self.now += seconds


def middle(low: float, high: float) -> float:
    """A draw from ``uniform(low, high)`` without luck."""
    return (low + high) / 2


def lowest(low: float, high: float) -> float:
    return low


def highest(low: float, high: float) -> float:
    return high
