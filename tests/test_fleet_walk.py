"""Both fleets under any order of messages, crashes, losses and restarts: the same, and right."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fleet_walk import FleetWalk
from fleet_world import run_world
from redis_server import RedisServer

from scrapy_hostgate.fleet import memory
from scrapy_hostgate.fleet.protocol import Granted
from scrapy_hostgate.fleet.redisfleet import RedisFleet

# Set it to walk longer.
WALKS = int(os.environ.get("HOSTGATE_FLEET_WALKS", "40"))
TOGETHER = 20
MOVES = 30


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.stop()


def test_redis_and_memory_decide_alike_whatever_is_said(server: RedisServer) -> None:
    """HG-39, HG-40, HG-47: no grant beyond the limit or in a pause, no id twice, no epoch that
    falls, no key without an end, everybody's turn comes; and one fleet is as good as the other."""
    from redis.asyncio import Redis

    async def work() -> int:
        fleet, client = RedisFleet(server.url, 10), Redis(port=server.port)
        talks = 0
        try:
            for first in range(0, WALKS, TOGETHER):
                walks = [FleetWalk(client, fleet, first + more) for more in range(TOGETHER)]
                await asyncio.gather(*(walk.walk(MOVES) for walk in walks))
                talks += sum(walk.talks for walk in walks)
        finally:
            await fleet.close()
            await client.aclose()
        return talks

    with ThreadPoolExecutor(1) as thread:
        talks = thread.submit(lambda: asyncio.run(work())).result()
    assert talks > 20 * WALKS


def test_workers_with_clocks_of_their_own_and_a_network_that_fails() -> None:
    """HG-39, HG-42, HG-44: killed workers, lost, late and doubled messages, a fleet that is gone or
    has forgotten everything. What is really in flight stays bounded, and below the limit as soon as
    nothing has gone wrong for a while; everybody is served; no lease, task or timer is left."""
    departures = _run_worlds(WALKS)
    assert departures > 20 * WALKS


def test_the_model_notices_a_fleet_that_grants_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that cannot fail proves nothing."""

    def grant(shared: memory._Host, ask: str, bounds: memory.Bounds, now: float) -> Granted:
        return memory._grant(shared, ask, bounds, now)

    monkeypatch.setattr(memory, "_answer", grant)
    with pytest.raises(AssertionError, match=r"more than the ceiling|unbounded"):
        _run_worlds(WALKS)


def _run_worlds(count: int) -> int:
    with ThreadPoolExecutor(1) as thread:
        return sum(thread.submit(run_world, seed).result().departures for seed in range(count))
