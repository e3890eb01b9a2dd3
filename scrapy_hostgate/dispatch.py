"""Between a scheduler's queues and the gates: what may be sent now, and what is on its way."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Container, Hashable

from scrapy_hostgate.registry import Registry
from scrapy_hostgate.semaphore import CallLater, Timer

UNGATED = "hostgate_bypass:"
"""Begins the name of everything that no gate holds, which no host key does."""

# So many of those on their way are looked at for each one sent: enough to find all in time.
_LOOKS = 2


class Dispatch:
    """Tells queues which hosts may be sent a request, and when that changes.

    A request that leaves its queue needs a turn or more of the event loop to its gate: through
    every downloader middleware, and perhaps it never arrives, because one of them answers or drops
    it. Until then it is *on its way* and counts, or a queue would send a host all it has at once.
    """

    # All mutable state: which name each request on its way counts for, and how many each name has;
    # who listens; and the one timer, which exists only while a queue waits for a time.
    def __init__(
        self,
        registry: Registry,
        *,
        clock: Callable[[], float],
        call_later: CallLater,
        in_downloader: Callable[[], Container[Hashable]],
        wake: Callable[[], None],
    ) -> None:
        """``in_downloader()`` holds what the downloader has; ``wake()`` makes the engine ask."""
        self.clock = clock
        self.wake = wake
        self._registry = registry
        self._call_later = call_later
        self._in_downloader = in_downloader
        self._sent: OrderedDict[Hashable, str] = OrderedDict()
        self._coming: dict[str, int] = {}
        self.listeners: list[Callable[[str], None]] = []
        """Whom :meth:`changed` calls. Where there is nobody, nothing is on its way either."""
        self._timer: Timer | None = None
        self._timer_at = 0.0

    def __repr__(self) -> str:
        return f"<Dispatch sent={len(self._sent)} listeners={len(self.listeners)}>"

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call ``listener(name)`` whenever ``name`` may be sent more than before."""
        self.listeners.append(listener)

    def opening(self, name: str, now: float) -> tuple[int, float]:
        """How many places ``name`` uses, and when it may be sent a request; see ``Turns``."""
        coming = self._coming.get(name, 0)
        if name.startswith(UNGATED):
            return coming, now
        gate = self._registry.get(name)
        if gate is None:
            # A host nothing is known of gets one request, until it has answered.
            return coming, math.inf if coming else now
        return gate.claims + coming, gate.opens_at(now, coming)

    def admits(self, name: str) -> bool:
        """Whether ``name`` may be sent a request now, by its gate, which is made if need be."""
        if not name.startswith(UNGATED):
            self._registry.gate(name)
        now = self.clock()
        return self.opening(name, now)[1] <= now

    def send(self, request: Hashable, name: str) -> None:
        """``request`` leaves its queue; it counts for ``name`` until it arrives or ends."""
        for _ in range(min(_LOOKS, len(self._sent))):
            self._look_at_oldest()
        # A spider may yield one and the same object twice.
        self.arrived(request)
        self._sent[request] = name
        self._coming[name] = self._coming.get(name, 0) + 1

    def arrived(self, request: Hashable) -> None:
        """``request`` is at its gate, which counts it from here on."""
        name = self._sent.pop(request, None)
        if name is not None:
            self._settle(name)

    def changed(self, name: str) -> None:
        """Something happened at the gate of ``name``: it may have opened."""
        for listener in self.listeners:
            listener(name)

    def look_for_gone(self) -> None:
        """Stop counting what has left the downloader without having been at a gate."""
        for _ in range(len(self._sent)):
            self._look_at_oldest()

    def wake_at(self, at: float) -> None:
        """Wake the engine at ``at``, unless it is to be woken sooner."""
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._call_later(max(0.0, at - self.clock()), self._on_timer)

    def stop(self) -> None:
        """The crawl is over: cancel the timer and let everything go."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._sent.clear()
        self._coming.clear()
        self.listeners.clear()

    def _on_timer(self) -> None:
        self._timer = None
        self.wake()

    def _look_at_oldest(self) -> None:
        request, name = self._sent.popitem(last=False)
        if request in self._in_downloader():
            self._sent[request] = name
        else:
            self._settle(name)

    def _settle(self, name: str) -> None:
        self._coming[name] -= 1
        if not self._coming[name]:
            del self._coming[name]
        self.changed(name)
