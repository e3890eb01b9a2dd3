"""The longer departure interval after a refusal, and how it is earned back by bisection."""

from __future__ import annotations

import math

from scrapy_hostgate.saved import Plain, Saved

QUIET_S = 600.0
# Below this a spacing means nothing: one turn of the event loop takes as long.
NEGLIGIBLE_S = 0.005
_NEVER = -math.inf


class PenaltyInterval:
    """Keeps a host's departures further apart after it refused.

    The interval becomes twice the one that was refused. From there it steps to the middle between
    the refused interval and the present one, so that the pace settles just beneath what the host
    bears instead of sawing at it, as plain halving does. The refused interval itself is tried again
    only after 600 quiet seconds; if it is borne then, the search goes on below it in the same way.
    """

    __slots__ = ("_lowered_at", "_stepped_at", "interval_s", "refused_s")

    def __init__(self) -> None:
        self.interval_s = 0.0
        """Seconds between departures that the penalty asks for; 0 when there is none."""
        self.refused_s = 0.0
        """The interval, in seconds, at which the host last refused: the search stays above it."""
        self._stepped_at = self._lowered_at = _NEVER

    def refused(self, now: float, interval_s: float) -> None:
        """The host refused at ``now``, when departures were ``interval_s`` seconds apart."""
        self.refused_s = interval_s
        self.interval_s = 2 * interval_s
        self._stepped_at = self._lowered_at = now

    def export(self, offset_s: float) -> Plain:
        """The penalty as plain numbers for :meth:`restore`, times as Unix seconds; empty if none.

        ``offset_s`` is what has to be added to our times for that.
        """
        if not self.interval_s:
            return {}
        return {
            "interval_s": self.interval_s,
            "refused_s": self.refused_s,
            "stepped_at": self._stepped_at + offset_s,
            "lowered_at": self._lowered_at + offset_s,
        }

    def restore(self, saved: Saved) -> None:
        """Go on from what was exported. Raises ``ValueError`` if that is impossible."""
        interval_s, refused_s = saved.seconds("interval_s"), saved.seconds("refused_s")
        if refused_s > interval_s:
            raise ValueError(f"refused_s ({refused_s!r}) is more than interval_s ({interval_s!r})")
        self.interval_s, self.refused_s = interval_s, refused_s
        self._stepped_at = saved.past("stepped_at")
        self._lowered_at = saved.past("lowered_at")

    def relax(self, now: float, recovery_delay_s: float) -> bool:
        """Take one step back if ``recovery_delay_s`` have passed since the last; say whether."""
        if not self.interval_s or now - self._stepped_at < recovery_delay_s:
            return False
        self._stepped_at = now
        if now - self._lowered_at >= QUIET_S:
            self.interval_s, self.refused_s = self.refused_s, self.refused_s / 2
            self._lowered_at = now
            if self.interval_s < NEGLIGIBLE_S:
                self.interval_s = self.refused_s = 0.0
        else:
            self.interval_s = (self.refused_s + self.interval_s) / 2
        return True
