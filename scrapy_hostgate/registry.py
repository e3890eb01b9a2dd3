"""Host key to gate: which host is it, and what is known of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain

from scrapy_hostgate.gate import Gate
from scrapy_hostgate.saved import Saved

# So many gates of each full table are looked at for a new host: making room must cost little.
_SWEEP = 8


class Registry:
    """Gates by host key, made when first asked for.

    At most ``max_hosts`` are kept. Beyond that, idle gates are forgotten, the least telling first
    (those that have no baseline yet), and of these the longest unused. A gate that is in use,
    paused or spaced, or shrunk or refused within 600 s, is never forgotten, so the table may be
    larger while so many hosts are in trouble.
    """

    # All mutable state: the gates in order of their last use, those believed to have learnt nothing
    # apart from those that have a baseline. Which is which is found out when room is needed.

    def __init__(
        self,
        make_gate: Callable[[str], Gate],
        *,
        max_hosts: int,
        clock: Callable[[], float],
        on_evict: Callable[[Gate], None] = lambda gate: None,
    ) -> None:
        self._make_gate = make_gate
        self._max_hosts = max_hosts
        self._clock = clock
        self._on_evict = on_evict
        self._fresh: OrderedDict[str, Gate] = OrderedDict()
        self._learnt: OrderedDict[str, Gate] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Registry {len(self)}/{self._max_hosts} hosts>"

    def __len__(self) -> int:
        return len(self._fresh) + len(self._learnt)

    def __iter__(self) -> Iterator[Gate]:
        return chain(self._fresh.values(), self._learnt.values())

    def __contains__(self, key: object) -> bool:
        return key in self._fresh or key in self._learnt

    def get(self, key: str) -> Gate | None:
        """The gate of ``key`` if there is one; asking does not count as use."""
        return self._fresh.get(key) or self._learnt.get(key)

    def gate(self, key: str) -> Gate:
        """The gate of ``key``, made now if need be."""
        gate = self._fresh.get(key)
        if gate is not None:
            self._fresh.move_to_end(key)
            return gate
        gate = self._learnt.get(key)
        if gate is not None:
            self._learnt.move_to_end(key)
            return gate
        if len(self) >= self._max_hosts:
            self._make_room()
        gate = self._fresh[key] = self._make_gate(key)
        return gate

    def restore(self, key: str, saved: Saved) -> bool:
        """Make the gate of ``key`` from what was saved of it; say whether, or it was old news.

        Raises ``ValueError`` for what cannot have been saved; there is no gate then.
        """
        gate = self._make_gate(key)
        if not gate.restore(saved):
            self._on_evict(gate)
            return False
        if len(self) >= self._max_hosts:
            self._make_room()
        self._fresh[key] = gate
        return True

    def _make_room(self) -> None:
        now = self._clock()
        for table in (self._fresh, self._learnt):
            for _ in range(min(_SWEEP, len(table))):
                if len(self) < self._max_hosts:
                    return
                key, gate = next(iter(table.items()))
                if table is self._fresh and gate.controller.baseline_s is not None:
                    del table[key]
                    self._learnt[key] = gate
                elif gate.forgettable(now):
                    del table[key]
                    self._on_evict(gate)
                    gate.semaphore.retire()
                else:
                    table.move_to_end(key)
