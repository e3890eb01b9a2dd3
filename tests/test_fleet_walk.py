"""Both fleets under any order of messages, crashes, losses and restarts: the same, and right."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fleet_walk import FleetWalk
from redis_server import RedisServer

from scrapy_hostgate.fleet.redisfleet import RedisFleet

WALKS = int(os.environ.get("HOSTGATE_FLEET_WALKS", "120"))
TOGETHER = 20
MOVES = 30


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.stop()


def test_redis_and_memory_decide_alike_whatever_is_said(server: RedisServer) -> None:
    """HG-39, HG-40, HG-47: no grant beyond the limit or in a pause, no id twice, no epoch that
    falls, no key without an end, everybody's turn comes; and one fleet is as good as the other.

    HOSTGATE_FLEET_WALKS is how many examples (120)."""
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
