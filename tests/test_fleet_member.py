"""One process's membership of a fleet: it ends, whatever becomes of its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import FakeClock, middle

from scrapy_hostgate.controller import Law
from scrapy_hostgate.fleet.member import FleetMember
from scrapy_hostgate.fleet.memory import MemoryFleet
from scrapy_hostgate.fleetrules import FleetRules
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.pacer import Pace


class DeafFleet(MemoryFleet):
    """Loses so many cancellations while it listens, as asyncio.wait_for of old Python may."""

    def __init__(self, loses: int) -> None:
        super().__init__()
        self.loses = loses
        self.closed = False

    async def listen(self, worker: str, wake: Callable[[str, float], None]) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.loses -= 1
            if self.loses < 0:
                raise

    async def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("loses", [0, 1, 3])
def test_a_lost_cancellation_does_not_keep_a_crawl_from_its_end(loses: int) -> None:
    """A redis that answers errors as the crawl closes: the listener goes on, and is told again."""
    fleet = DeafFleet(loses)
    clock = FakeClock(1000.0)
    observer: Any = SimpleNamespace(stats=None)
    crawler: Any = SimpleNamespace(spider=None)

    async def work() -> FleetMember:
        member = FleetMember(
            fleet,
            FleetRules(timeout_s=1.0),
            crawler,
            observer,
            clock=clock,
            call_later=clock.call_later,
        )
        gate = Gate(
            "a.example",
            Law(),
            Pace(),
            clock=clock,
            call_later=clock.call_later,
            uniform=middle,
            admission=member.admission,
        )
        await asyncio.sleep(0)
        await asyncio.wait_for(member.close(), 30)
        member.forget(gate)
        return member

    with ThreadPoolExecutor(1) as thread:
        member = thread.submit(lambda: asyncio.run(work())).result()
    assert not member._tasks
    assert not member._links
    assert fleet.closed
