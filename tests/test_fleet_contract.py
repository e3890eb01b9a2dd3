"""One contract for both fleets: the one in memory and the one in Redis decide alike."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from redis_server import RedisServer

from scrapy_hostgate.fleet.memory import MemoryFleet
from scrapy_hostgate.fleet.protocol import (
    AskAgain,
    Bounds,
    Change,
    Fleet,
    Granted,
    Known,
    Talk,
    Told,
    Why,
)
from scrapy_hostgate.fleet.redisfleet import WAKE_PREFIX, RedisFleet

HOST = "a.test"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.stop()


@pytest.fixture(params=["memory", "redis"])
def make_fleet(request: pytest.FixtureRequest) -> Callable[[], Fleet]:
    if request.param == "memory":
        return MemoryFleet
    server: RedisServer = request.getfixturevalue("server")
    server.command("FLUSHALL")
    return lambda: RedisFleet(server.url)


async def listening(fleet: Fleet, *workers: str) -> None:
    """Wait until these have subscribed; in one process they have as soon as they ask."""
    while isinstance(fleet, RedisFleet):
        channels = [WAKE_PREFIX + worker for worker in workers]
        if all(count for _, count in await fleet._client.pubsub_numsub(*channels)):
            return
        await asyncio.sleep(0.01)


def run(make_fleet: Callable[[], Fleet], work: Callable[[Fleet], Awaitable[None]]) -> None:
    """Run ``work`` on an event loop of its own, in a thread: the test's has the reactor's."""

    async def whole() -> None:
        fleet = make_fleet()
        try:
            await asyncio.wait_for(work(fleet), 30)
        finally:
            await fleet.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(whole())).result()


def said(worker: str = "w", **values: Any) -> Talk:
    bounds = values.pop("bounds", Bounds())
    return Talk(worker=worker, bounds=bounds, **values)


def granted(told: Told) -> list[str]:
    return [ask for ask, answer in told.answers.items() if isinstance(answer, Granted)]


def why(told: Told, ask: str) -> Why:
    answer = told.answers[ask]
    assert isinstance(answer, AskAgain)
    assert answer.after_s > 0
    return answer.why


def after_s(told: Told, ask: str) -> float:
    answer = told.answers[ask]
    assert isinstance(answer, AskAgain)
    return answer.after_s


def test_no_more_are_granted_than_the_limit(make_fleet: Callable[[], Fleet]) -> None:
    """Two of three asks of different workers; the third when one has ended, and not before."""

    async def work(fleet: Fleet) -> None:
        first = await fleet.talk(HOST, said("a", asks=("a:1", "a:2")))
        assert granted(first) == ["a:1", "a:2"]
        assert [first.answers[ask].in_flight for ask in ("a:1", "a:2")] == [1, 2]  # type: ignore[union-attr]
        second = await fleet.talk(HOST, said("b", asks=("b:1",)))
        assert why(second, "b:1") is Why.LIMIT
        assert second.in_flight == 2
        await fleet.talk(HOST, said("a", held=("a:2",), ended=("a:1",)))
        third = await fleet.talk(HOST, said("b", asks=("b:1",)))
        assert granted(third) == ["b:1"]
        assert third.in_flight == 2

    run(make_fleet, work)


def test_saying_it_twice_changes_nothing(make_fleet: Callable[[], Fleet]) -> None:
    """A lost reply, a repeated call: the same grant, and a second end frees nobody else's place."""

    async def work(fleet: Fleet) -> None:
        for _ in range(3):
            told = await fleet.talk(HOST, said("a", asks=("a:1",)))
            assert granted(told) == ["a:1"]
            assert told.in_flight == 1
        await fleet.talk(HOST, said("b", asks=("b:1",)))
        for _ in range(3):
            told = await fleet.talk(HOST, said("a", ended=("a:1",)))
            assert told.in_flight == 1

    run(make_fleet, work)


def test_who_waited_longer_goes_first(make_fleet: Callable[[], Fleet]) -> None:
    """First come, first served over the workers, and whoever asks again keeps the place."""

    async def work(fleet: Fleet) -> None:
        one = Bounds(start=1)
        await fleet.talk(HOST, said("a", asks=("a:1",), bounds=one))
        for worker in "bcd":
            await fleet.talk(HOST, said(worker, asks=(f"{worker}:1",), bounds=one))
        await fleet.talk(HOST, said("a", ended=("a:1",), asks=("a:2",), bounds=one))
        order = []
        for _ in range(4):
            for worker in "dcba":
                ask = "a:2" if worker == "a" else f"{worker}:1"
                if ask in order:
                    continue
                told = await fleet.talk(HOST, said(worker, asks=(ask,), bounds=one))
                if granted(told):
                    order.append(ask)
                    await fleet.talk(HOST, said(worker, ended=(ask,), bounds=one))
        assert order == ["b:1", "c:1", "d:1", "a:2"]

    run(make_fleet, work)


def test_a_worker_that_falls_silent_leaves_the_queue(make_fleet: Callable[[], Fleet]) -> None:
    """Its asks and its permits lapse, and the next one asks at the right time."""

    async def work(fleet: Fleet) -> None:
        short = Bounds(start=1, lease_s=0.4, wait_s=0.1, ttl_s=5)
        assert granted(
            await fleet.talk(HOST, said("dead", asks=("dead:1", "dead:2"), bounds=short))
        )
        told = await fleet.talk(HOST, said("b", asks=("b:1",), bounds=short))
        began = asyncio.get_running_loop().time()
        while not granted(told):
            await asyncio.sleep(after_s(told, "b:1"))
            told = await fleet.talk(HOST, said("b", asks=("b:1",), bounds=short))
        waited = asyncio.get_running_loop().time() - began
        assert 0.38 < waited < 1.4

    run(make_fleet, work)


def test_a_pause_holds_everybody_and_is_never_shortened(make_fleet: Callable[[], Fleet]) -> None:
    """The longest that anybody asked for, whoever asks now."""

    async def work(fleet: Fleet) -> None:
        await fleet.talk(HOST, said("a", pause_s=60))
        told = await fleet.talk(HOST, said("b", asks=("b:1",), pause_s=1))
        assert why(told, "b:1") is Why.PAUSE
        assert 59 < told.pause_s <= 60
        assert after_s(told, "b:1") <= Bounds().wait_s

    run(make_fleet, work)


def test_departures_keep_the_spacing_of_whoever_asks(make_fleet: Callable[[], Fleet]) -> None:
    """The longer of what the last one left behind and what the next one asks for."""

    async def work(fleet: Fleet) -> None:
        assert granted(
            await fleet.talk(HOST, said("a", asks=("a:1",), bounds=Bounds(spacing_s=0.2)))
        )
        told = await fleet.talk(HOST, said("b", asks=("b:1",)))
        assert why(told, "b:1") is Why.SPACING
        assert 0 < after_s(told, "b:1") <= 0.201
        told = await fleet.talk(HOST, said("c", asks=("c:1",), bounds=Bounds(spacing_s=3)))
        assert 2.5 < after_s(told, "c:1") <= 6
        await asyncio.sleep(0.21)
        assert granted(await fleet.talk(HOST, said("b", asks=("b:1",)))) == ["b:1"]

    run(make_fleet, work)


def test_a_rate_lets_a_burst_go_and_then_keeps_the_interval(
    make_fleet: Callable[[], Fleet],
) -> None:
    """GCRA: three at once, the fourth an interval later; a pause brings no tokens."""

    async def work(fleet: Fleet) -> None:
        rate = Bounds(start=4, rate_s=0.2, burst=3)
        told = await fleet.talk(HOST, said("a", asks=("a:1", "a:2", "a:3", "a:4"), bounds=rate))
        assert granted(told) == ["a:1", "a:2", "a:3"]
        assert why(told, "a:4") is Why.SPACING
        assert 0.1 < after_s(told, "a:4") <= 0.201
        await fleet.talk(HOST, said("a", pause_s=0.3, ended=("a:1", "a:2", "a:3"), bounds=rate))
        await asyncio.sleep(0.31)
        told = await fleet.talk(HOST, said("a", asks=("a:4",), bounds=rate))
        assert why(told, "a:4") is Why.SPACING

    run(make_fleet, work)


def test_only_the_first_change_of_an_epoch_counts(make_fleet: Callable[[], Fleet]) -> None:
    """Compare and set: a burst over three workers is one incident, two widenings are one."""

    async def work(fleet: Fleet) -> None:
        collapse = Change(0, 1, "refused", refused=True, lesson="{}")
        told = [await fleet.talk(HOST, said(worker, change=collapse)) for worker in "abc"]
        assert [one.changed for one in told] == [True, False, False]
        assert {(one.epoch, one.limit, one.incidents) for one in told} == {(1, 1, 1)}
        widen = Change(1, 2, "recovered")
        told = [await fleet.talk(HOST, said(worker, change=widen)) for worker in "abc"]
        assert [(one.changed, one.limit, one.epoch) for one in told] == [
            (True, 2, 2),
            (False, 2, 2),
            (False, 2, 2),
        ]

    run(make_fleet, work)


def test_without_a_decision_everybody_goes_by_the_own_start(
    make_fleet: Callable[[], Fleet],
) -> None:
    """A start that was raised in the settings holds at once: nothing has been learnt against it."""

    async def work(fleet: Fleet) -> None:
        low = await fleet.talk(HOST, said("a", asks=("a:1", "a:2"), bounds=Bounds(start=1)))
        assert granted(low) == ["a:1"]
        high = await fleet.talk(HOST, said("b", asks=("b:1", "b:2"), bounds=Bounds(start=4)))
        assert high.limit == 4
        assert granted(high) == ["b:1", "b:2"]
        await fleet.talk(HOST, said("b", change=Change(0, 1, "refused", refused=True)))
        told = await fleet.talk(HOST, said("b", ended=("b:1",), asks=("b:3",)))
        assert told.limit == 1
        assert why(told, "b:3") is Why.LIMIT

    run(make_fleet, work)


def test_a_lower_ceiling_of_ones_own_holds(make_fleet: Callable[[], Fleet]) -> None:
    """A worker that may send one at a time is not granted a second because others may."""

    async def work(fleet: Fleet) -> None:
        await fleet.talk(HOST, said("a", asks=("a:1",)))
        low = await fleet.talk(HOST, said("b", asks=("b:1",), bounds=Bounds(start=1, ceiling=1)))
        assert why(low, "b:1") is Why.LIMIT

    run(make_fleet, work)


def test_a_fleet_without_memory_is_told_what_it_was(make_fleet: Callable[[], Fleet]) -> None:
    """After a restart the first to come brings epoch and limit; what is in flight is counted."""

    async def work(fleet: Fleet) -> None:
        known = Known(epoch=7, limit=1, reason="refused", lesson="x")
        told = await fleet.talk(HOST, said("a", held=("a:1",), known=known, asks=("a:2",)))
        assert (told.epoch, told.limit, told.reason, told.lesson) == (7, 1, "refused", "x")
        assert (told.lost, told.in_flight) == (1, 1)
        assert why(told, "a:2") is Why.LIMIT
        other = await fleet.talk(HOST, said("b", known=replace(known, epoch=3, limit=4)))
        assert (other.epoch, other.limit) == (7, 1)
        # Who comes later may have heard more; a wider limit is not taken on its word.
        later = await fleet.talk(HOST, said("c", known=replace(known, epoch=9, limit=4)))
        assert (later.epoch, later.limit, later.lesson) == (9, 1, "x")

    run(make_fleet, work)


def test_an_end_after_the_lapse_takes_nobody_elses_place(make_fleet: Callable[[], Fleet]) -> None:
    """HG-40: a late end frees only what is its own."""

    async def work(fleet: Fleet) -> None:
        one = Bounds(start=1)
        short = Bounds(start=1, lease_s=0.2, wait_s=0.1, ttl_s=5)
        await fleet.talk(HOST, said("a", asks=("a:1",), bounds=short))
        await asyncio.sleep(0.25)
        assert granted(await fleet.talk(HOST, said("b", asks=("b:1",), bounds=one)))
        told = await fleet.talk(HOST, said("a", ended=("a:1",), asks=("a:2",), bounds=one))
        assert told.in_flight == 1
        assert why(told, "a:2") is Why.LIMIT

    run(make_fleet, work)


def test_a_late_renewal_makes_the_count_true_and_lets_nobody_go(
    make_fleet: Callable[[], Fleet],
) -> None:
    """HG-40 (c): the lapsed download is counted again beside the one that took its place."""

    async def work(fleet: Fleet) -> None:
        one = Bounds(start=1)
        short = Bounds(start=1, lease_s=0.2, wait_s=0.1, ttl_s=5)
        await fleet.talk(HOST, said("a", asks=("a:1",), bounds=short))
        await asyncio.sleep(0.25)
        assert granted(await fleet.talk(HOST, said("b", asks=("b:1",), bounds=one)))
        told = await fleet.talk(HOST, said("a", held=("a:1",), asks=("a:2",), bounds=one))
        assert (told.lost, told.in_flight) == (1, 2)
        assert why(told, "a:2") is Why.LIMIT
        told = await fleet.talk(HOST, said("a", ended=("a:1",), asks=("a:2",), bounds=one))
        assert told.in_flight == 1
        assert why(told, "a:2") is Why.LIMIT

    run(make_fleet, work)


def test_whose_turn_it_is_is_woken(make_fleet: Callable[[], Fleet]) -> None:
    """An end wakes the first in the queue and nobody else."""

    async def work(fleet: Fleet) -> None:
        woken: list[tuple[str, str]] = []
        heard = asyncio.Event()

        def wake_of(worker: str) -> Callable[[str, float], None]:
            def wake(host: str, after_s: float) -> None:
                assert after_s == 0
                woken.append((worker, host))
                heard.set()

            return wake

        listeners = [
            asyncio.ensure_future(fleet.listen(worker, wake_of(worker))) for worker in "bc"
        ]
        one = Bounds(start=1)
        await fleet.talk(HOST, said("a", asks=("a:1",), bounds=one))
        for worker in "bc":
            await fleet.talk(HOST, said(worker, asks=(f"{worker}:1",), bounds=one))
        await listening(fleet, "b", "c")
        await fleet.talk(HOST, said("a", ended=("a:1",), bounds=one))
        await asyncio.wait_for(heard.wait(), 5)
        assert woken == [("b", HOST)]
        for listener in listeners:
            listener.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)

    run(make_fleet, work)


def test_nobody_is_woken_when_there_is_no_more_room(make_fleet: Callable[[], Fleet]) -> None:
    """Workers that wait for their time do not wake each other; an end says when the turn comes."""

    async def work(fleet: Fleet) -> None:
        woken: list[float] = []
        heard = asyncio.Event()

        def wake(host: str, after_s: float) -> None:
            woken.append(after_s)
            heard.set()

        listener = asyncio.ensure_future(fleet.listen("b", wake))
        spaced = Bounds(rate_s=3)
        await fleet.talk(HOST, said("a", asks=("a:1",), bounds=spaced))
        for _ in range(3):
            for worker in "bc":
                told = await fleet.talk(HOST, said(worker, asks=(f"{worker}:1",), bounds=spaced))
                assert why(told, f"{worker}:1") is Why.SPACING
        await listening(fleet, "b")
        assert not woken
        await fleet.talk(HOST, said("a", ended=("a:1",), bounds=spaced))
        await asyncio.wait_for(heard.wait(), 5)
        assert len(woken) == 1
        assert 1 < woken[0] <= 3
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)

    run(make_fleet, work)


def test_nobody_passes_a_first_one_that_waits_for_its_time(
    make_fleet: Callable[[], Fleet],
) -> None:
    """A worker with a longer delay of its own does not starve among others that have none."""

    async def work(fleet: Fleet) -> None:
        await fleet.talk(HOST, said("a", asks=("a:1",)))
        slow = said("b", asks=("b:1",), bounds=Bounds(spacing_s=0.3))
        told = await fleet.talk(HOST, slow)
        assert not granted(await fleet.talk(HOST, said("a", ended=("a:1",), asks=("a:2",))))
        await asyncio.sleep(after_s(told, "b:1") + 0.01)
        assert granted(await fleet.talk(HOST, slow))
        await asyncio.sleep(0.31)
        assert granted(await fleet.talk(HOST, said("a", asks=("a:2",))))

    run(make_fleet, work)


def test_the_hosts_are_listed_for_people(make_fleet: Callable[[], Fleet]) -> None:
    """Limit, in flight, who waits, pause, refusals and the last reason."""

    async def work(fleet: Fleet) -> None:
        assert await fleet.hosts() == []
        await fleet.talk(HOST, said("a", asks=("a:1",)))
        await fleet.talk(
            HOST,
            said("a", change=Change(0, 1, "refused", refused=True), pause_s=30, refusals=2),
        )
        await fleet.talk(HOST, said("b", asks=("b:1",)))
        (row,) = await fleet.hosts()
        assert (row.host, row.limit, row.in_flight, row.waiting, row.workers) == (HOST, 1, 1, 1, 2)
        assert (row.refusals, row.incidents, row.reason) == (2, 1, "refused")
        assert 29 < row.pause_s <= 30

    run(make_fleet, work)
