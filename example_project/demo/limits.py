"""How the limit of a host went over time, and whether the host's record agrees with it."""

from __future__ import annotations

import math

from demo.origin_record import HostRecord

# A request arrives a little after it left, and a sampled change is seen a little after it was made.
TOLERANCE_S = 1.0


class LimitHistory:
    """Which limits one host had, and since when (monotonic seconds)."""

    def __init__(self, start: int) -> None:
        self.changes = [(-math.inf, start)]

    def __repr__(self) -> str:
        return f"<LimitHistory {self.path}>"

    @property
    def path(self) -> str:
        """All limits in order, such as ``2 > 1 > 2``."""
        return " > ".join(str(limit) for _, limit in self.changes)

    def note(self, limit: int, now: float) -> None:
        """Tell it the limit as often as you like; only changes are kept."""
        if limit != self.changes[-1][1]:
            self.changes.append((now, limit))

    def highest(self, since: float, until: float) -> int:
        """The highest limit that held at any time from ``since`` to ``until``."""
        ends = [at for at, _ in self.changes[1:]] + [math.inf]
        return max(
            limit
            for (begin, limit), end in zip(self.changes, ends)
            if begin <= until and end >= since
        )

    def exceeded_by(self, record: HostRecord) -> bool:
        """Whether the host ever had more requests in flight than the limit of that moment."""
        # Both processes read the machine's one monotonic clock, so their times can be compared.
        return any(
            arrival.in_flight > self.highest(arrival.at - TOLERANCE_S, arrival.at + TOLERANCE_S)
            for arrival in record.arrivals
        )
