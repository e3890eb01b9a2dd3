"""One host's line to a fleet that fails, forgets, or answers late: nothing said is lost."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from fakes import FakeClock

from scrapy_hostgate.controller import Decision, Law
from scrapy_hostgate.fleet.link import HostLink
from scrapy_hostgate.fleet.memory import MemoryFleet
from scrapy_hostgate.fleet.protocol import Bounds, Change, Fleet, FleetError, Talk, Told
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.outcome import Outcome
from scrapy_hostgate.pacer import Pace

HOST = "a.test"


class ShakyFleet(MemoryFleet):
    """Writes down what is said; ``broken`` hears nothing, ``late`` answers when it
    is set, ``broken_after`` fails then.
    """

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.said: list[Talk] = []
        self.broken = False
        self.broken_after = False
        self.late: asyncio.Event | None = None

    async def talk(self, host: str, said: Talk) -> Told:
        if self.broken:
            raise FleetError("broken")
        self.said.append(said)
        if self.broken_after and self.late is not None:
            await self.late.wait()
            raise FleetError("broken at last")
        told = await super().talk(host, said)
        if self.late is not None:
            await self.late.wait()
        return told

    async def other(self, **values: object) -> Told:
        """What another worker is told."""
        return await MemoryFleet.talk(self, HOST, Talk("other", Bounds(), **values))  # type: ignore[arg-type]


class Worker:
    """As little of a worker as a link needs."""

    name = "w"
    timeout_s = 5.0
    alone = False
    wary = False
    stays_closed = False
    workers = 2

    def __init__(self) -> None:
        self.clock = FakeClock(1000.0)
        self.fleet: Fleet
        self.fleet = self.shaky = ShakyFleet(self.clock)
        self.ids = itertools.count(1)
        self.lost_leases = 0
        self.gate = Gate(
            HOST,
            Law(),
            Pace(),
            clock=self.clock,
            call_later=self.clock.call_later,
            uniform=lambda low, high: low,
            admission=self._admission,
        )

    def _admission(self, gate: Gate) -> HostLink:
        self.link = HostLink(
            self,
            gate,
            clock=self.clock,
            call_later=self.clock.call_later,
            uniform=lambda low, high: low,
        )
        return self.link

    def bounds(self, gate: Gate) -> Bounds:
        return Bounds()

    def heard(self, told: Told) -> None: ...
    def adopted(self, gate: Gate, decision: Decision) -> None: ...

    def lost(self, error: FleetError) -> None:
        self.alone = True
        self.link.forsaken()

    def found(self) -> None:
        self.alone = self.shaky.broken = self.shaky.broken_after = False
        self.link.rejoin()

    def leases_lost(self, gate: Gate, count: int) -> None:
        self.lost_leases += count


async def settled(worker: Worker) -> None:
    """Wait until nothing is being said."""
    for _ in range(100):
        await asyncio.sleep(0)
        if worker.link._exchange is None:
            return
    raise AssertionError("it never ends")


def run(work: Callable[[Worker], Awaitable[None]]) -> None:
    async def whole() -> None:
        await asyncio.wait_for(work(Worker()), 10)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(whole())).result()


def test_a_pause_and_a_collapse_that_nobody_heard_are_told_again() -> None:
    """The talk about a refusal fails: when the fleet is back the others are held up too."""

    async def work(worker: Worker) -> None:
        permit = worker.gate.arrive()
        await settled(worker)
        worker.shaky.broken = True
        worker.gate.record(permit, Outcome.REFUSED, None, 60)
        worker.gate.leave(permit)
        await settled(worker)
        assert worker.alone
        worker.found()
        await settled(worker)
        told = await worker.shaky.other()
        assert (told.limit, told.incidents, told.in_flight) == (1, 1, 0)
        assert told.pause_s == pytest.approx(60)

    run(work)


def test_a_fleet_that_has_forgotten_is_told_of_pause_and_collapse() -> None:
    """Nothing is in flight and nobody waits for a place, but what was learnt still holds."""

    async def work(worker: Worker) -> None:
        permit = worker.gate.arrive()
        await settled(worker)
        worker.gate.record(permit, Outcome.REFUSED, None, 60)
        worker.gate.leave(permit)
        await settled(worker)
        worker.shaky._hosts.clear()
        # A newcomer is there first, and knows nothing.
        assert (await worker.shaky.other()).limit == 2
        worker.found()
        await settled(worker)
        told = await worker.shaky.other()
        assert (told.limit, told.epoch) == (1, 1)
        assert told.pause_s == pytest.approx(60)
        assert worker.gate.limit == 1

    run(work)


def test_two_decisions_of_which_the_first_was_not_heard_are_one() -> None:
    """The second is made while the talk about the first is failing."""

    async def work(worker: Worker) -> None:
        answer = worker.shaky.late = asyncio.Event()
        worker.shaky.broken_after = True
        worker.gate.resize(3)
        for _ in range(3):
            await asyncio.sleep(0)
        worker.gate.refuse(30)
        answer.set()
        await settled(worker)
        assert worker.alone
        worker.found()
        await settled(worker)
        told = await worker.shaky.other()
        assert told.limit == worker.gate.limit == 1
        assert told.epoch == worker.gate.controller.epoch

    run(work)


def test_a_download_of_a_time_alone_that_ends_while_it_is_told_leaves_nothing() -> None:
    """The fleet has counted it before the answer is here: its end is told too."""

    async def work(worker: Worker) -> None:
        worker.alone = True
        permit = worker.gate.arrive()
        assert permit.granted
        worker.shaky.late = asyncio.Event()
        worker.found()
        for _ in range(3):
            await asyncio.sleep(0)
        assert worker.shaky.said[-1].held
        worker.gate.leave(permit)
        worker.shaky.late.set()
        await settled(worker)
        assert (await worker.shaky.other()).in_flight == 0
        assert worker.lost_leases == 0

    run(work)


@pytest.mark.parametrize("lesson", ['{"controller": 3}', '{"pacer": {"penalty": "x"}}', "[", "7"])
def test_a_lesson_that_cannot_be_read_does_no_harm(lesson: str) -> None:
    """Of another version, perhaps: the limit holds all the same, and the crawl goes on."""

    async def work(worker: Worker) -> None:
        await worker.shaky.other(change=Change(0, 1, "refused", refused=True, lesson=lesson))
        permit = worker.gate.arrive()
        await settled(worker)
        assert permit.granted
        assert worker.gate.limit == 1

    run(work)


def test_a_wake_up_that_overtakes_an_answer_is_not_forgotten() -> None:
    """ "Ask again in 5 s" comes after "it is your turn": ask now."""

    async def work(worker: Worker) -> None:
        await worker.shaky.other(asks=("other:1", "other:2"))
        worker.shaky.late = asyncio.Event()
        worker.gate.arrive()
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(worker.shaky.said) == 1
        await worker.shaky.other(ended=("other:1", "other:2"))
        worker.link.woken(0)
        worker.shaky.late.set()
        worker.shaky.late = None
        await settled(worker)
        assert worker.gate.in_flight == 1

    run(work)


def test_whoever_is_back_lets_one_go_at_a_time_for_a_while() -> None:
    """The fleet may not know yet who is in flight: nobody departs beside another."""

    async def work(worker: Worker) -> None:
        first = worker.gate.arrive()
        await settled(worker)
        assert first.granted
        said = len(worker.shaky.said)
        worker.wary = True
        second = worker.gate.arrive()
        await settled(worker)
        assert not second.granted
        assert len(worker.shaky.said) == said
        worker.gate.leave(first)
        await settled(worker)
        assert second.granted
        worker.gate.leave(second)
        await settled(worker)

    run(work)


def test_alone_one_goes_at_a_time_and_at_a_share_of_the_pace() -> None:
    """Two workers there were, so each takes half of what one may send."""

    async def work(worker: Worker) -> None:
        paced = Bounds(spacing_s=3.0)
        worker.bounds = lambda gate: paced  # type: ignore[method-assign]
        worker.lost(FleetError("gone"))
        now = worker.clock()
        assert worker.link.earliest(now) == now
        first = worker.gate.arrive()
        assert first.granted
        assert worker.link.earliest(now) == math.inf
        second = worker.gate.arrive()
        assert not second.granted
        worker.gate.leave(first)
        assert not second.granted
        assert worker.link.earliest(now) == now + 6.0
        worker.gate.semaphore.withdraw(second)
        worker.gate.leave(second)
        worker.stays_closed = True
        assert worker.link.earliest(now + 100) == math.inf

    run(work)


def test_leases_are_renewed_where_nothing_was_said_for_a_while() -> None:
    """And only then; where nothing is in flight there is nothing to renew."""

    async def work(worker: Worker) -> None:
        permit = worker.gate.arrive()
        await settled(worker)
        said = len(worker.shaky.said)
        worker.clock.advance(4.0)
        worker.link.beat(5.0)
        await settled(worker)
        assert len(worker.shaky.said) == said
        worker.clock.advance(1.0)
        worker.link.beat(5.0)
        await settled(worker)
        assert len(worker.shaky.said) == said + 1
        assert worker.shaky.said[-1].held
        worker.gate.leave(permit)
        await settled(worker)
        said = len(worker.shaky.said)
        worker.clock.advance(60.0)
        worker.link.beat(5.0)
        await settled(worker)
        assert len(worker.shaky.said) == said

    run(work)
