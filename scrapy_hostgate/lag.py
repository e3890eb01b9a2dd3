"""Did our own event loop stand still? Then a latency measured meanwhile is not the host's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from scrapy_hostgate.semaphore import CallLater, Timer

BEAT_S = 0.02
MIN_LAG_S = 0.05
LAG_SHARE = 0.1


class LoopLag:
    """Watches the event loop by a beat that runs only while something is in flight.

    The last beat after that finds nothing to watch and is not followed by another: a host that
    answers at once would otherwise cost a new timer for each request.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        call_later: CallLater,
        on_standstill: Callable[[float, float], None] = lambda now, seconds: None,
    ) -> None:
        """``on_standstill(now, seconds)`` is called as soon as a standstill is over."""
        self._clock = clock
        self._on_standstill = on_standstill
        self._call_later = call_later
        self._timer: Timer | None = None
        self.watching = False
        """Whether something is in flight."""
        self._due_at = 0.0
        # (when it ended, seconds) of each standstill that could spoil a sample.
        self._standstills: deque[tuple[float, float]] = deque(maxlen=256)

    def start(self) -> None:
        """Begin to watch; harmless if it does already."""
        self.watching = True
        if self._timer is None:
            self._schedule()

    def rest(self) -> None:
        """Nothing is in flight any more."""
        self.watching = False

    def stop(self) -> None:
        """Cancel the timer."""
        self.watching = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def spoils(self, departed_at: float, latency_s: float, now: float) -> bool:
        """Whether the loop lagged too long for a sample of ``latency_s`` that left at that time.

        Too long is more than 50 ms and more than a tenth of the sample.
        """
        overdue_s = now - self._due_at if self._timer is not None else 0.0
        if overdue_s <= MIN_LAG_S and not self._standstills:
            return False
        bound = max(MIN_LAG_S, LAG_SHARE * latency_s)
        if overdue_s > bound:
            return True
        for ended, seconds in reversed(self._standstills):
            if ended <= departed_at:
                break
            if seconds > bound:
                return True
        return False

    def _schedule(self) -> None:
        self._due_at = self._clock() + BEAT_S
        self._timer = self._call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        now = self._clock()
        # The stop may have begun just after the last beat, so all of the time since then counts.
        lag_s = now - self._due_at + BEAT_S
        if lag_s > MIN_LAG_S + BEAT_S:
            self._standstills.append((now, lag_s))
            self._on_standstill(now, lag_s)
        if self.watching:
            self._schedule()
        else:
            self._timer = None
