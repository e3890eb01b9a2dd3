"""Truthful views of gates in ``engine.downloader.slots``.

Scrapy's ``DownloaderAwarePriorityQueue``, AutoThrottle, the telnet console and many extensions read
that table. The views look like ``scrapy.core.downloader.Slot`` but decide nothing themselves.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from typing import Any, cast

from scrapy import Request

from scrapy_hostgate.gate import Gate

_SLOT = "download_slot"
# Nobody adds to it: there is one view for each known host, and most hosts are idle.
_NOBODY = cast("set[Request]", frozenset())
# In place of a value of meta.
_ABSENT, _NOT_STAMPED = object(), object()


class SlotView:
    """What a download slot would show of one gate, or of all gates behind a user's slot name.

    A ``delay`` set from outside can only add spacing, and a ``concurrency`` set from outside can
    only tighten the limit that holds now.
    """

    __slots__ = ("_delay_s", "_departed", "_gate", "_others", "active", "key")

    latercall = None

    def __init__(self, key: str, gate: Gate, departed: Collection[Request]) -> None:
        self.key = key
        self._gate: Gate | None = gate
        self._others: tuple[Gate, ...] = ()
        self._departed = departed
        # An attribute and no property: Scrapy's queue looks at all of them for each request.
        self.active = _NOBODY
        """The requests that are here, waiting or in flight."""
        self._delay_s: float | None = None

    @property
    def transferring(self) -> set[Request]:
        """Those of ``active`` that are in flight."""
        return {request for request in self.active if request in self._departed}

    @property
    def gates(self) -> tuple[Gate, ...]:
        """The gates that it shows: the host's own, or all behind a slot name."""
        return self._others if self._gate is None else (self._gate, *self._others)

    def hide(self, gate: Gate) -> None:
        if gate is self._gate:
            self._gate = None
        self._others = tuple(other for other in self._others if other is not gate)

    def enter(self, gate: Gate, request: Request) -> None:
        """``request`` is at ``gate`` from now on, until it leaves."""
        if gate is not self._gate and gate not in self._others:
            self._others += (gate,)
        if self.active:
            self.active.add(request)
        else:
            self.active = {request}

    def leave(self, request: Request) -> None:
        active = self.active
        if active:
            active.discard(request)
            if not active:
                self.active = _NOBODY

    @property
    def concurrency(self) -> int:
        return max((gate.limit for gate in self.gates), default=1)

    @concurrency.setter
    def concurrency(self, value: int) -> None:
        for gate in self.gates:
            if value < gate.limit:
                gate.resize(max(1, int(value)))

    @property
    def delay(self) -> float:
        """Seconds between departures: as set from outside, else as configured."""
        if self._delay_s is not None:
            return self._delay_s
        return max((gate.pacer.delay_s for gate in self.gates), default=0.0)

    @delay.setter
    def delay(self, value: float) -> None:
        self._delay_s = max(0.0, float(value))
        for gate in self.gates:
            gate.pacer.delay_from_outside(self._delay_s)
            gate.semaphore.reconsider()

    @property
    def jitter(self) -> float:
        return max((gate.pacer.pace.jitter for gate in self.gates), default=0.0)

    @property
    def randomize_delay(self) -> bool:
        return bool(self.jitter)

    @property
    def queue(self) -> deque[tuple[Request, None]]:
        """The requests that wait, as (request, None), in no particular order."""
        return deque((request, None) for request in self.active - self.transferring)

    @property
    def lastseen(self) -> float:
        """Monotonic time of the last departure in seconds."""
        return max((max(0.0, gate.pacer.last_departure) for gate in self.gates), default=0.0)

    def free_transfer_slots(self) -> int:
        return sum(gate.limit - gate.in_flight for gate in self.gates)

    def download_delay(self) -> float:
        return self.delay

    def close(self) -> None:
        """Nothing to do: the gate owns the timers."""

    def __repr__(self) -> str:
        return f"SlotView(concurrency={self.concurrency!r}, delay={self.delay:.2f})"

    def __str__(self) -> str:
        return (
            f"<hostgate slot {self.key!r} concurrency={self.concurrency!r} "
            f"delay={self.delay:.2f} jitter={self.jitter!r} "
            f"len(active)={len(self.active)} len(queue)={len(self.queue)} "
            f"len(transferring)={len(self.transferring)} "
            f"lastseen={time.monotonic() - self.lastseen:.1f} s ago>"
        )


# One request's stay, as the views show it: under the host's own name, perhaps under another, and
# what its meta said of the slot before it was stamped with the gate's key.
Visit = tuple[SlotView, SlotView | None, object]


class SlotTable:
    """Keeps the views in ``downloader.slots`` and the stamp in ``meta`` while a request is here."""

    def __init__(self, max_aliases: int, departed: Collection[Request]) -> None:
        """``departed`` holds the requests that are in flight, at whatever host."""
        self._max_aliases = max_aliases
        self._departed = departed
        self._aliases: dict[Any, SlotView] = {}
        self._aliases_of: dict[Gate, set[Any]] = {}

    def enter(
        self,
        slots: dict[Any, Any],
        gate: Gate,
        request: Request,
        meta: dict[str, Any],
        slot_key: Any,
    ) -> Visit:
        """Show ``request``, which has ``meta``, at ``gate``.

        ``slot_key`` is what Scrapy's queue calls its slot.
        """
        key = gate.key
        view, alias = slots.get(key), None
        if not isinstance(view, SlotView):
            view = slots[key] = SlotView(key, gate, self._departed)
        view.enter(gate, request)
        # Scrapy's queue counts by its own key, so the truth has to stand under that one too: a
        # user's own download_slot, or a spelling of the host that is not the normal one.
        if slot_key != key and _hashable(slot_key):
            alias = self._alias(slots, gate, slot_key)
            alias.enter(gate, request)
        was = meta.get(_SLOT, _ABSENT)
        if was is _ABSENT or was is None or was == "":
            meta[_SLOT] = key
        else:
            was = _NOT_STAMPED
        return view, alias, was

    def leave(self, request: Request, meta: dict[str, Any], visit: Visit) -> None:
        """Take ``request`` out of the views and the stamp off its meta.

        What was stamped must not travel into redirects and retries, which copy meta.
        """
        view, alias, was = visit
        view.leave(request)
        if alias is not None:
            alias.leave(request)
        if was is _NOT_STAMPED:
            return
        if meta.get(_SLOT) == view.key:
            if was is _ABSENT:
                del meta[_SLOT]
            else:
                meta[_SLOT] = was

    def owns(self, slots: dict[Any, Any], slot_key: Any) -> bool:
        """Whether Scrapy's own queue would find a view where it expects its slot."""
        return _hashable(slot_key) and isinstance(slots.get(slot_key), SlotView)

    def forget(self, slots: dict[Any, Any], gate: Gate) -> None:
        """The gate is no more: neither are its view and the aliases that showed only it."""
        if isinstance(slots.get(gate.key), SlotView):
            del slots[gate.key]
        for key in self._aliases_of.pop(gate, ()):
            view = self._aliases.get(key)
            if view is None:
                continue
            view.hide(gate)
            if not view.gates:
                self._drop_alias(slots, key, view)

    def _alias(self, slots: dict[Any, Any], gate: Gate, key: Any) -> SlotView:
        view = slots.get(key)
        if not isinstance(view, SlotView):
            if len(self._aliases) >= self._max_aliases:
                self._drop_idle_aliases(slots)
            view = slots[key] = self._aliases[key] = SlotView(str(key), gate, self._departed)
        self._aliases_of.setdefault(gate, set()).add(key)
        return view

    def _drop_idle_aliases(self, slots: dict[Any, Any]) -> None:
        for key, view in list(self._aliases.items()):
            if not view.active:
                for gate in view.gates:
                    self._aliases_of.get(gate, set()).discard(key)
                self._drop_alias(slots, key, view)

    def _drop_alias(self, slots: dict[Any, Any], key: Any, view: SlotView) -> None:
        del self._aliases[key]
        if slots.get(key) is view:
            del slots[key]


def _hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
