"""An event loop whose time passes only while nobody has anything to do, and then at once."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

TURN_S = 1e-6


class _Skipping(selectors.SelectSelector):
    """Where the loop would sleep, its clock is moved on instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everybody waits for ever")
        # A turn takes a little: a timer that is due by less than the clock's rounding comes up.
        self.loop.now += timeout + TURN_S
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """``asyncio`` without real time and without I/O. ``now`` is its clock, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0
        selector = _Skipping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now
