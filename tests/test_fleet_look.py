"""Looking at a fleet from a terminal: ``scrapy hostgate fleet`` and ``scrapy hostgate watch``."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis_server import RedisServer, free_port

from scrapy_hostgate.commands.fleet import text_table
from scrapy_hostgate.fleet.protocol import Bounds, Change, Talk
from scrapy_hostgate.fleet.redisfleet import RedisFleet


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    server = RedisServer().start()

    async def crawl() -> None:
        fleet = RedisFleet(server.url)
        refused = Change(0, 1, "refused", refused=True)
        # Longer than any machine takes to look.
        bounds = Bounds(lease_s=600, wait_s=200)
        await fleet.talk("steady.test", Talk("a", bounds, asks=("a:1", "a:2")))
        await fleet.talk("steady.test", Talk("b", bounds, asks=("b:1",)))
        await fleet.talk("sick.test", Talk("a", bounds, change=refused, pause_s=90.4, refusals=1))
        await fleet.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(crawl())).result()
    yield server
    server.stop()


def hostgate(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scrapy", "hostgate", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )


def test_the_hosts_in_trouble_come_first(server: RedisServer) -> None:
    """Limit, in flight, who waits, pause, refusals and the last reason of each host."""
    shown = hostgate("fleet", "--url", server.url)
    assert shown.returncode == 0, shown.stderr
    head, sick, steady = (line.split() for line in shown.stdout.splitlines())
    assert head[:2] == ["host", "limit"]
    assert [*sick[:5], *sick[6:]] == ["sick.test", "1", "0", "0", "1", "s", "1", "refused"]
    assert 0 < int(sick[5]) <= 90
    assert steady == ["steady.test", "2", "2", "1", "2", "0"]


def test_the_live_view_shows_a_fleet_too(server: RedisServer) -> None:
    """The same table as of a crawl on this machine."""
    shown = hostgate("watch", "--once", "--url", server.url)
    assert shown.returncode == 0, shown.stderr
    assert "fleet: 2 hosts, 1 in trouble, 2 in flight" in shown.stdout
    assert "sick.test    paused" in shown.stdout


def test_the_environment_may_name_the_fleet(server: RedisServer) -> None:
    """Without ``--url``; an address is never shown in the help, it may hold a password."""
    shown = hostgate("fleet", HOSTGATE_FLEET_URL=server.url)
    assert "steady.test" in shown.stdout
    assert server.url not in hostgate("fleet", "-h", HOSTGATE_FLEET_URL=server.url).stdout


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "Which fleet?"),
        (["--url", "http://user:secret@127.0.0.1"], 2, "must be a URL"),
        (["--url", "redis://user:secret@127.0.0.1:{port}"], 1, "The fleet cannot be asked"),
    ],
)
def test_what_cannot_be_shown_is_said(words: list[str], status: int, said: str) -> None:
    """One line, an exit status, and no password."""
    shown = hostgate("fleet", *(word.format(port=free_port()) for word in words))
    assert shown.returncode == status
    assert said in shown.stderr
    assert "secret" not in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_fleet_without_hosts() -> None:
    """Nobody has asked yet."""
    assert text_table([]) == "No worker has asked for a host lately."
