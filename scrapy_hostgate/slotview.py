"""Truthful views of gates in ``engine.downloader.slots``.

Scrapy's ``DownloaderAwarePriorityQueue``, AutoThrottle, the telnet console and many extensions read
that table. The views look like ``scrapy.core.downloader.Slot`` but decide nothing themselves.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Set as AbstractSet
from typing import Any

from scrapy import Request

from scrapy_hostgate.gate import Gate

_SLOT = "download_slot"
_NONE: frozenset[Request] = frozenset()


class SlotView:
    """What a download slot would show of one gate, or of all gates behind a user's slot name.

    A ``delay`` set from outside can only add spacing, and a ``concurrency`` set from outside can
    only tighten the limit that holds now.
    """

    __slots__ = ("_delay_s", "_gate", "_others", "active", "key", "transferring")

    latercall = None

    # There is one for each known host and most hosts are idle, so what is empty is not there.
    def __init__(self, key: str, gate: Gate) -> None:
        self.key = key
        self._gate: Gate | None = gate
        self._others: tuple[Gate, ...] = ()
        # Attributes and not properties: Scrapy's queue looks at all of them for each request.
        self.active: AbstractSet[Request] = _NONE
        """The requests that are here, waiting or in flight."""
        self.transferring: AbstractSet[Request] = _NONE
        """Those in flight."""
        self._delay_s: float | None = None

    @property
    def gates(self) -> tuple[Gate, ...]:
        """The gates that it shows: the host's own, or all behind a slot name."""
        return self._others if self._gate is None else (self._gate, *self._others)

    def show(self, gate: Gate) -> None:
        if gate is not self._gate and gate not in self._others:
            self._others += (gate,)

    def hide(self, gate: Gate) -> None:
        if gate is self._gate:
            self._gate = None
        self._others = tuple(other for other in self._others if other is not gate)

    def enter(self, request: Request) -> None:
        active = self.active
        if isinstance(active, set):
            active.add(request)
        else:
            self.active = {request}

    def depart(self, request: Request) -> None:
        transferring = self.transferring
        if isinstance(transferring, set):
            transferring.add(request)
        else:
            self.transferring = {request}

    def land(self, request: Request) -> None:
        self.transferring = _without(self.transferring, request)

    def leave(self, request: Request) -> None:
        self.active = _without(self.active, request)

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


class Visit:
    """One request's stay at a gate, as the views show it: there, perhaps departed, and gone."""

    __slots__ = ("_alias", "_had_slot", "_request", "_stamp", "_view", "_was", "refused")

    def __init__(
        self, request: Request, view: SlotView, alias: SlotView | None, stamp: str
    ) -> None:
        meta = request.meta
        self._request = request
        self._view = view
        self._alias = alias
        self._had_slot = _SLOT in meta
        self._was: object = meta.get(_SLOT)
        self._stamp: str | None = None
        self.refused = False
        """Whether the host answered with a refusal."""
        view.enter(request)
        if alias is not None:
            alias.enter(request)
        if self._was is None or self._was == "":
            self._stamp = meta[_SLOT] = stamp

    def departed(self) -> None:
        self._view.depart(self._request)
        if self._alias is not None:
            self._alias.depart(self._request)

    def landed(self) -> None:
        self._view.land(self._request)
        if self._alias is not None:
            self._alias.land(self._request)

    def leave(self) -> None:
        """Take the request out of the views and the stamp off its meta.

        What was stamped must not travel into redirects and retries, which copy meta.
        """
        self._view.leave(self._request)
        if self._alias is not None:
            self._alias.leave(self._request)
        meta = self._request.meta
        if self._stamp is not None and meta.get(_SLOT) == self._stamp:
            if self._had_slot:
                meta[_SLOT] = self._was
            else:
                del meta[_SLOT]


class SlotTable:
    """Keeps the views in ``downloader.slots`` and the stamp in ``meta`` while a request is here."""

    def __init__(self, max_aliases: int) -> None:
        self._max_aliases = max_aliases
        self._aliases: dict[Any, SlotView] = {}
        self._aliases_of: dict[Gate, set[Any]] = {}

    def enter(self, slots: dict[Any, Any], gate: Gate, request: Request, slot_key: Any) -> Visit:
        """Show ``request`` at ``gate``. ``slot_key`` is what Scrapy's queue calls its slot."""
        view, alias = slots.get(gate.key), None
        if not isinstance(view, SlotView):
            view = slots[gate.key] = SlotView(gate.key, gate)
        view.show(gate)
        # Scrapy's queue counts by its own key, so the truth has to stand under that one too: a
        # user's own download_slot, or a spelling of the host that is not the normal one.
        if slot_key != gate.key and _hashable(slot_key):
            alias = self._alias(slots, gate, slot_key)
        return Visit(request, view, alias, gate.key)

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
            view = slots[key] = self._aliases[key] = SlotView(str(key), gate)
        self._aliases_of.setdefault(gate, set()).add(key)
        view.show(gate)
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


def _without(requests: AbstractSet[Request], request: Request) -> AbstractSet[Request]:
    if isinstance(requests, set):
        requests.discard(request)
    return requests or _NONE


def _hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
