"""Every way in which Scrapy can be run: three kinds of event loop, ``fetch`` and ``shell``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest
from child import run_child
from harness import pages
from redis_server import RedisServer
from scrapy.settings import default_settings

from demo.behaviours import Reply, after, scripted, steady
from demo.origin import OriginThread

HOST, OTHER = "127.0.0.2", "127.0.0.3"
GATE = 'DOWNLOADER_MIDDLEWARES={"scrapy_hostgate.HostGateMiddleware": 1000}'


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.stop()


@pytest.mark.parametrize("reactor", ["asyncio", "select", "none"])
def test_the_same_crawl_on_every_event_loop(reactor: str) -> None:
    """HG-24: twenty pages of two hosts, one refusal of a second: the same bound, the same pause,
    and without Twisted's reactor it is not even imported."""
    if reactor == "none" and not hasattr(default_settings, "TWISTED_REACTOR_ENABLED"):
        pytest.skip("this Scrapy always runs a reactor")
    # The second is still under way when the first is refused: nothing can leave in its place.
    first, second = Reply(429, {"Retry-After": "1"}, delay=0.05), Reply(delay=0.5)
    refusing = scripted([first, second], then=Reply(delay=0.05))
    with OriginThread({HOST: refusing, OTHER: steady(0.05)}) as origin:
        result = run_child(
            [*pages(origin, HOST, 10), *pages(origin, OTHER, 10)], reactor=reactor, timeout_s=60
        )
        record, other = origin.record(HOST), origin.record(OTHER)
    assert result.returncode == 0, result.log
    assert [status for _, status in result.answers] == [200] * 20
    assert (record.peak, other.peak) == (2, 2)
    refused = record.arrivals[0].at + 0.05
    assert record.arrivals_between(refused + 0.02, refused + 0.97) == []


@pytest.mark.parametrize("fleet", [False, True])
@pytest.mark.parametrize("command", [("fetch",), ("shell", "-c", "print(response.status)")])
def test_fetch_and_shell(command: tuple[str, ...], fleet: bool, server: RedisServer) -> None:
    """HG-24: one arrival and a clean end, though the shell starts the engine in another order; with
    a fleet no lease is left."""
    server.command("FLUSHALL")
    settings = ["-s", GATE, "-s", "TELNETCONSOLE_ENABLED=0"]
    if fleet:
        settings += ["-s", f"HOSTGATE_FLEET_URL={server.url}"]
    with OriginThread({HOST: after(0, 0.05, steady(0.05))}) as origin:
        ran = subprocess.run(
            [sys.executable, "-m", "scrapy", *command, *settings, origin.url(HOST, "/p")],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tempfile.gettempdir(),
            env={**os.environ, "SCRAPY_PYTHON_SHELL": "python"},
        )
        record = origin.record(HOST)
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr, ran.stderr
    assert "<html" in ran.stdout if command[0] == "fetch" else "200" in ran.stdout
    assert len(record.pages()) == 1
    if fleet:
        assert server.command("ZCARD", f"hostgate:{{{HOST}}}:permits") == 0
        assert server.command("EXISTS", f"hostgate:{{{HOST}}}:state") == 1
