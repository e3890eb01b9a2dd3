"""Whose turn is it? Hosts with pending requests, in the order in which they may be sent one."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable

# Hosts that use more places than this share one level.
_LEVELS = 32

Opening = Callable[[str, float], tuple[int, float]]


class Turns:
    """Orders names by what ``opening(name, now)`` says of each.

    That is how many places the name uses already, and the time from which it may be sent a request:
    now or earlier, later, or infinity for "not before something happens". Those that may go now
    take turns, the ones that use the fewest places first; the others are not looked at until their
    time has come, or until :meth:`put` is called because something happened. So the choice costs
    the same however many names there are.
    """

    # All mutable state: the names that may go now, by level, and the level of each; the names that
    # wait for a time, and those times in a heap (entries whose name waits for another are skipped).
    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._ready: list[OrderedDict[str, None]] = []
        self._level: dict[str, int] = {}
        self._due: dict[str, float] = {}
        self._times: list[tuple[float, str]] = []

    def __repr__(self) -> str:
        return f"<Turns ready={len(self._level)} timed={len(self._due)}>"

    def put(self, name: str, now: float) -> bool:
        """Give ``name`` the place it should have now; return whether it may go.

        Its turn among equals is kept if it has one, else it is the last of them.
        """
        used, at = self._opening(name, now)
        level = min(used, _LEVELS - 1) if at <= now else None
        if level is not None and self._level.get(name) == level:
            return True
        if level is None and at == self._due.get(name):
            return False
        self.drop(name)
        if level is not None:
            while len(self._ready) <= level:
                self._ready.append(OrderedDict())
            self._ready[level][name] = None
            self._level[name] = level
            return True
        if at != float("inf"):
            self._due[name] = at
            heapq.heappush(self._times, (at, name))
        return False

    def drop(self, name: str) -> None:
        """Forget ``name``, whether it is known or not."""
        level = self._level.pop(name, None)
        if level is not None:
            del self._ready[level][name]
        if self._due.pop(name, None) is not None and len(self._times) > 2 * len(self._due) + 64:
            self._times = [(at, name) for name, at in self._due.items()]
            heapq.heapify(self._times)

    def first(self, now: float) -> str | None:
        """The name whose turn it is; it keeps it until :meth:`drop`. ``None``: nobody may go."""
        self._release(now)
        level = 0
        # A level may be added meanwhile.
        while level < len(self._ready):
            names = self._ready[level]
            while names:
                name = next(iter(names))
                # What closes a gate tells nobody: it is found out here.
                if self.put(name, now) and self._level[name] <= level:
                    return name
            level += 1
        return None

    def next_due(self) -> float | None:
        """The earliest time for which a name waits, ``None`` if none does."""
        while self._times and self._due.get(self._times[0][1]) != self._times[0][0]:
            heapq.heappop(self._times)
        return self._times[0][0] if self._times else None

    def _release(self, now: float) -> None:
        while (due := self.next_due()) is not None and due <= now:
            name = heapq.heappop(self._times)[1]
            # Past its time it counts as new, even if it has to wait once more until then.
            del self._due[name]
            self.put(name, now)
