"""When a host may be sent the next request: spacing between departures, and pauses.

Pure: times are seconds of one monotonic clock, randomness is passed in. Spacing of a rate is GCRA,
the generic cell rate algorithm of ITU-T I.371. Three clocks are kept apart on purpose, the rate's,
the plain delay's and the pause's: with a shared one every 429 looks as if it had been handled
already.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from scrapy_hostgate.interval import NEGLIGIBLE_S, PenaltyInterval
from scrapy_hostgate.saved import Plain, Saved

BACKOFF_BASE_S = 1.0
BACKOFF_MAX_S = 60.0
BACKOFF_JITTER = 0.2
SPACING_SAMPLES = 16
# A host that asks for more than a page a day has made a mistake, or a joke.
MAX_CRAWL_DELAY_S = 86_400.0
_NEVER = -math.inf
# Of every host that has never refused.
_NO_PENALTY = PenaltyInterval()


@dataclass(frozen=True, slots=True)
class Pace:
    """The numbers of one host's pace.

    ``rate`` is departures per second (``None``: not bounded), of which ``burst`` may leave at once
    after a quiet spell. ``delay_s`` is Scrapy's download delay in seconds, varied by ``± jitter``
    (0.5 is Scrapy's own ± 50 %). ``max_pause_s`` caps every pause a host can ask for.
    """

    rate: float | None = None
    burst: int = 1
    delay_s: float = 0.0
    jitter: float = 0.5
    max_pause_s: float = 900.0

    @property
    def rate_interval_s(self) -> float:
        return 1 / self.rate if self.rate else 0.0


@dataclass(frozen=True, slots=True)
class Pause:
    """What a refusal did to the departures: until when (monotonic seconds), for how long, and why.

    ``added_s`` is by how much it lengthened the pause. ``asked_s`` is what the host asked for
    (``None``: nothing, so backoff), ``capped`` that it was more than the maximum.
    """

    until: float
    wait_s: float
    added_s: float
    asked_s: float | None
    capped: bool
    interval_s: float


class Pacer:
    """One host's departure clock. Ask :meth:`next_departure`, tell :meth:`departed`."""

    # All mutable state: the theoretical arrival time of the GCRA, the earliest time after the plain
    # spacing, the end of the pause, how many refusals in a row, the last gaps, and the two
    # delays that others set (a slot's delay from outside, robots.txt's Crawl-delay).
    __slots__ = (
        "_counting",
        "_gaps",
        "_idle_s",
        "_idle_since",
        "_in_a_row_before",
        "_not_before",
        "_tat",
        "_uniform",
        "crawl_delay_s",
        "last_departure",
        "outside_delay_s",
        "pace",
        "pause_until",
        "penalty",
        "refusals_in_a_row",
    )

    def __init__(self, pace: Pace, uniform: Callable[[float, float], float]) -> None:
        self.pace = pace
        self.pause_until = _NEVER
        self.penalty = _NO_PENALTY
        self.refusals_in_a_row = 0
        self._in_a_row_before = 0
        self.crawl_delay_s = 0.0
        self.outside_delay_s: float | None = None
        self._uniform = uniform
        self._tat = self._not_before = self.last_departure = _NEVER
        # Seconds between the last departures, none before the second. They do not count the time in
        # which the host had nothing of ours: an hour in which nobody asked is no spacing.
        self._gaps: array[float] | None = None
        self._counting = False
        self._idle_since: float | None = None
        self._idle_s = 0.0

    def __repr__(self) -> str:
        return (
            f"<Pacer rate={self.pace.rate} burst={self.pace.burst} delay={self.delay_s:.3f}s "
            f"crawl_delay={self.crawl_delay_s:.3f}s penalty={self.penalty.interval_s:.3f}s "
            f"pause_until={self.pause_until:.3f} refusals_in_a_row={self.refusals_in_a_row}>"
        )

    @property
    def delay_s(self) -> float:
        """The download delay in force, before jitter: one set from outside can only add."""
        return max(self.pace.delay_s, self.outside_delay_s or 0.0)

    @property
    def spaced(self) -> bool:
        """Whether anything but a rate keeps departures apart."""
        return bool(
            self.pace.delay_s
            or self.outside_delay_s
            or self.crawl_delay_s
            or self.penalty.interval_s
        )

    @property
    def keeps_apart(self) -> bool:
        """Whether the time of a departure depends on when the last one was."""
        return bool(self.pace.rate) or self.spaced

    @property
    def spacing_s(self) -> float:
        """Seconds between departures that hold now, before jitter."""
        return max(
            self.pace.rate_interval_s, self.delay_s, self.crawl_delay_s, self.penalty.interval_s
        )

    def paused(self, now: float) -> bool:
        return now < self.pause_until

    def next_departure(self, now: float) -> float:
        """The earliest time, from ``now`` on, at which pause and spacing allow a departure."""
        earliest = now
        if earliest < self.pause_until:
            earliest = self.pause_until
        if earliest < self._not_before:
            earliest = self._not_before
        if self.pace.rate:
            earliest = max(earliest, self._tat - (self.pace.burst - 1) * self.pace.rate_interval_s)
        return earliest

    # A pacer costs less to keep than a bound method of it.
    __call__ = next_departure

    def departed(self, now: float) -> None:
        """Count a departure; it moves every clock on."""
        if self._idle_since is not None:
            self._idle_s += max(0.0, now - self._idle_since)
            self._idle_since = None
        if self._counting:
            gaps = self._gaps
            if gaps is None:
                gaps = self._gaps = array("f")
            elif len(gaps) == SPACING_SAMPLES - 1:
                del gaps[0]
            # Less than none, if a standstill moved the departure beyond the rest that followed it.
            gaps.append(max(0.0, now - self.last_departure - self._idle_s))
        self._counting = True
        self._idle_s = 0.0
        self.last_departure = now
        if self.pace.rate:
            self._tat = max(self._tat, now) + self.pace.rate_interval_s
        if self.spaced:
            self._not_before = now + self.draw_spacing_s()

    def left_late(self, granted_at: float, now: float) -> None:
        """Correct the last departure: it was granted at ``granted_at`` but left only ``now``.

        Between the two the event loop was busy. Without the correction the next departure would
        follow the late one too closely.
        """
        late_s = now - granted_at
        if late_s <= 0 or self.last_departure != granted_at:
            return
        apart = self._not_before > granted_at or self.pace.rate
        if not apart and late_s <= NEGLIGIBLE_S:
            return
        self.last_departure = now
        if self._gaps:
            self._gaps[-1] += late_s
        if self.pace.rate:
            self._tat = max(self._tat, granted_at) + late_s
        if self._not_before > granted_at:
            self._not_before += late_s

    def rests(self, now: float) -> None:
        """Nothing is in flight or waiting any more."""
        self._idle_since = now

    def refused(self, now: float, retry_after_s: float | None, *, incident: bool) -> Pause:
        """The host refused at ``now``, asking for ``retry_after_s`` seconds or for nothing.

        ``incident`` says that this is news and not the echo of a refusal already acted on: only
        then does the backoff step up and the interval widen. An echo can only lengthen the pause.
        """
        asked_s, capped = retry_after_s, False
        if asked_s is not None and asked_s > self.pace.max_pause_s:
            asked_s, capped = self.pace.max_pause_s, True
        if incident:
            self.refusals_in_a_row += 1
            if self.refusals_in_a_row == 1:
                # An outage that refuses every knock says nothing about the pace of the knocks.
                if self.penalty is _NO_PENALTY:
                    self.penalty = PenaltyInterval()
                # Capped like a pause: who refuses every second page would double it for ever.
                in_use_s = min(self._interval_in_use_s(), self.pace.max_pause_s / 2)
                self.penalty.refused(now, in_use_s)
        if asked_s is not None:
            wait_s = asked_s
        elif incident:
            wait_s = self._backoff_s()
        else:
            wait_s = 0.0
        added_s = self.pause(now, wait_s)
        return Pause(
            until=self.pause_until,
            wait_s=max(0.0, self.pause_until - now),
            added_s=added_s,
            asked_s=retry_after_s,
            capped=capped,
            interval_s=self.penalty.interval_s,
        )

    def served(self) -> None:
        """The host served a request: the next refusal starts the backoff anew.

        A pause that runs goes on: a success never shortens it.
        """
        self._in_a_row_before = self.refusals_in_a_row
        self.refusals_in_a_row = 0

    def unserved(self) -> None:
        """The last :meth:`served` was none: count on as if it had not been said."""
        self.refusals_in_a_row = max(self.refusals_in_a_row, self._in_a_row_before)

    def pause(self, now: float, wait_s: float) -> float:
        """No departures for ``wait_s`` seconds, at most the maximum. Never shortens a pause.

        Returns the seconds by which it lengthened the pause.
        """
        until = now + min(wait_s, self.pace.max_pause_s)
        begins = max(now, self.pause_until)
        if until <= begins:
            return 0.0
        if self.pace.rate:
            # No tokens accrue in a pause: whatever was missing before it is missing after it.
            self._tat = max(self._tat, begins) + (until - begins)
        self.pause_until = until
        # The gap of a pause is not a spacing that the host was asked to bear.
        self._gaps = None
        self._counting = False
        return until - begins

    def quota(self, now: float, remaining: int, reset_s: float, interval_s: float) -> None:
        """The host announced what it will still serve before a reset ``reset_s`` seconds away.

        With nothing remaining departures wait for the reset; else the next leaves no sooner than
        ``interval_s`` from now (0: at once). Never shortens a wait; the same cap as for a pause.
        """
        if remaining <= 0:
            self.pause(now, reset_s)
        else:
            self._not_before = max(self._not_before, now + min(interval_s, self.pace.max_pause_s))

    def delay_from_outside(self, delay_s: float) -> None:
        """Another component sets a download delay in seconds; counted from the last departure on.

        It replaces the one it set before, but never undercuts the configured one.
        """
        self.outside_delay_s = delay_s
        self._not_before = max(self._not_before, self.last_departure + delay_s)

    def crawl_delay(self, now: float, delay_s: float) -> None:
        """robots.txt asks for ``delay_s`` seconds between departures, the last one included."""
        self.crawl_delay_s = max(self.crawl_delay_s, min(delay_s, MAX_CRAWL_DELAY_S))
        self._not_before = max(self._not_before, self.last_departure + self.crawl_delay_s)

    def export(self, now: float, offset_s: float) -> Plain:
        """What still holds at ``now``, as plain numbers for :meth:`restore`; empty if nothing does.

        Times become Unix seconds: ``offset_s`` is what has to be added to ours for that.
        """
        told: Plain = {
            name: at + offset_s
            for name, at in (
                ("pause_until", self.pause_until),
                ("not_before", self._not_before),
                ("tat", self._tat),
            )
            if at > now
        }
        return told | self.lesson(offset_s)

    def lesson(self, offset_s: float) -> Plain:
        """What refusals have taught, for :meth:`adopt`; empty if nothing."""
        told: Plain = {}
        if self.refusals_in_a_row:
            told["refusals_in_a_row"] = self.refusals_in_a_row
        if self.penalty.interval_s:
            told["penalty"] = self.penalty.export(offset_s)
        return told

    def adopt(self, saved: Saved) -> None:
        """Take up a :meth:`lesson`. Raises ``ValueError`` for what cannot be one."""
        self.penalty = PenaltyInterval()
        self.penalty.restore(saved.part("penalty"))
        self.refusals_in_a_row = saved.whole("refusals_in_a_row", 0)

    def restore(self, saved: Saved) -> None:
        """Go on from what was exported, within today's pace.

        Raises ``ValueError`` for what cannot have been exported.
        """
        pace, now = self.pace, saved.now
        self.pause_until = min(saved.deadline("pause_until"), now + pace.max_pause_s)
        self._not_before = saved.deadline("not_before")
        # No bucket is ever emptier than this, and a rate may have been raised since.
        fullest = max(now, self.pause_until) + pace.burst * pace.rate_interval_s
        self._tat = min(saved.deadline("tat"), fullest)
        self.adopt(saved)

    def at_rest(self, now: float) -> bool:
        """Whether forgetting this pacer would lose nothing that a new one would not do too."""
        return (
            self.next_departure(now) <= now
            and self._tat <= now
            and self.refusals_in_a_row == 0
            and self.penalty.interval_s == 0
        )

    def draw_spacing_s(self) -> float:
        """Seconds from one departure to the next, but for a rate; with jitter, a new draw."""
        delay_s = self.delay_s
        if delay_s and self.pace.jitter:
            delay_s *= 1 + self._uniform(-self.pace.jitter, self.pace.jitter)
        return max(0.0, delay_s, self.crawl_delay_s, self.penalty.interval_s)

    def _interval_in_use_s(self) -> float:
        """The interval that was refused: the configured one, or the real one if that is longer."""
        gaps = self._gaps
        # To the microsecond, which is what is left of seconds in four bytes.
        mean = round(sum(gaps) / len(gaps), 6) if gaps else 0.0
        return max(self.spacing_s, mean)

    def _backoff_s(self) -> float:
        doubled = BACKOFF_BASE_S * 2.0 ** min(self.refusals_in_a_row - 1, 16)
        jittered = min(doubled, BACKOFF_MAX_S) * (
            1 + self._uniform(-BACKOFF_JITTER, BACKOFF_JITTER)
        )
        return min(jittered, BACKOFF_MAX_S)
