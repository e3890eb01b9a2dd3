"""A fleet that cannot be relied on: no page is lost, nothing is unbounded, nothing is blocked."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import pytest_twisted
from child import run_child
from harness import crawl, pages, pinned
from redis_proxy import RedisProxy
from redis_server import RedisServer, free_port
from scrapy.crawler import Crawler
from twisted.internet.defer import DeferredList, ensureDeferred

from demo.behaviours import steady
from demo.origin import OriginThread
from scrapy_hostgate.checks import HostGateSettingsError
from scrapy_hostgate.fleet.join import open_fleet
from scrapy_hostgate.fleet.protocol import Bounds, FleetError, Talk, Told
from scrapy_hostgate.fleet.redisfleet import RedisFleet

HOST = "127.0.0.2"
SECRET = "hunter2-is-secret"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.stop()


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[RedisProxy]:
    server.command("FLUSHALL")
    proxy = RedisProxy(server.port).start()
    yield proxy
    proxy.stop()


def fleet(url: str, **settings: Any) -> dict[str, Any]:
    return {
        "HOSTGATE_FLEET_URL": url,
        "HOSTGATE_FLEET_LEASE": 2,
        "HOSTGATE_FLEET_TIMEOUT": 0.5,
        **pinned(2),
        **settings,
    }


@pytest.mark.parametrize("error", ["READONLY", "LOADING", "OOM", "CROSSSLOT", "MOVED"])
@pytest_twisted.ensureDeferred
async def test_a_server_that_answers_errors(proxy: RedisProxy, error: str) -> None:
    """HG-43, HG-44: never "allowed": one in flight, all pages, one warning that names the error."""
    proxy.error = error
    with OriginThread({HOST: steady(0.02)}) as origin:
        result = await crawl(pages(origin, HOST, 20), fleet(proxy.url))
        record = origin.record(HOST)
    assert len(result.answers) == 20
    assert record.peak == 1
    (warning,) = [line for line in result.gate_log if "the fleet cannot be asked" in line]
    assert "one request in flight" in warning


@pytest_twisted.ensureDeferred
async def test_a_server_that_hangs(proxy: RedisProxy) -> None:
    """It accepts and never answers: after the time-out the crawl goes on alone, and ends."""
    proxy.mute = True
    with OriginThread({HOST: steady(0.02)}) as origin:
        result = await crawl(pages(origin, HOST, 20), fleet(proxy.url))
        record = origin.record(HOST)
    assert len(result.answers) == 20
    assert record.peak == 1
    assert result.stats["hostgate/fleet/alone"] == 1


@pytest_twisted.ensureDeferred
async def test_a_server_that_is_not_there_at_the_start(server: RedisServer) -> None:
    """HG-44 (a): the crawl begins alone and joins when the server comes."""
    away = RedisServer()
    with OriginThread({HOST: steady(0.1)}) as origin:

        def come(crawler: Crawler) -> None:
            from twisted.internet import reactor

            reactor.callLater(1.0, away.start)  # type: ignore[attr-defined]

        try:
            result = await crawl(pages(origin, HOST, 60), fleet(away.url), on_start=come)
        finally:
            away.stop()
        record = origin.record(HOST)
    assert len(result.answers) == 60
    assert record.peak <= 2
    assert result.stats["hostgate/fleet/alone"] == 0
    assert result.stats["hostgate/fleet/round_trips"] > 0
    assert any("can be asked again" in line for line in result.gate_log)


@pytest_twisted.ensureDeferred
async def test_closed_means_closed(proxy: RedisProxy) -> None:
    """``HOSTGATE_FLEET_FAIL = "closed"``: nobody departs until the fleet is back, then all do."""
    proxy.error = "LOADING"
    heal_at = time.monotonic() + 1.5

    def heal(crawler: Crawler) -> None:
        from twisted.internet import reactor

        reactor.callLater(1.5, lambda: setattr(proxy, "error", None))  # type: ignore[attr-defined]

    with OriginThread({HOST: steady(0.02)}) as origin:
        settings = fleet(proxy.url, HOSTGATE_FLEET_FAIL="closed")
        result = await crawl(pages(origin, HOST, 10), settings, on_start=heal)
        record = origin.record(HOST)
    assert len(result.answers) == 10
    assert min(arrival.at for arrival in record.arrivals) > heal_at
    assert record.peak <= 2


def test_a_reply_cut_at_every_byte(proxy: RedisProxy) -> None:
    """The connection breaks after 0, 1, 2 … bytes of a reply: an error, and no grant is doubled."""

    async def talk(fleet: RedisFleet) -> Told:
        return await fleet.talk(HOST, Talk("w", Bounds(), asks=("w:1",)))

    async def work() -> None:
        for _ in range(2):  # the second time the server has the script
            proxy.replies = 0
            fleet = RedisFleet(proxy.url, 2)
            whole = await talk(fleet)
            await fleet.close()
        length = proxy.replies
        assert length > 100
        for at in range(length):
            proxy.replies, proxy.cut_at = 0, at
            fleet = RedisFleet(proxy.url, 2)
            try:
                told = await talk(fleet)
            except FleetError:
                told = await talk(fleet)
            assert told.answers == whole.answers, at
            assert told.in_flight == 1
            await fleet.close()
        # The last byte of a number that is a little shorter now is not there to be cut.
        assert proxy.cuts >= length - 10

    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(work())).result()


@pytest_twisted.ensureDeferred
async def test_a_crawl_whose_connection_breaks(proxy: RedisProxy) -> None:
    """In the middle of a reply, again and again: no page is lost and the bound holds."""
    with OriginThread({HOST: steady(0.02)}) as origin:
        for at in (0, 1, 150, 333):
            proxy.replies, proxy.cut_at = 0, at
            result = await crawl(pages(origin, HOST, 5, f"/{at}-"), fleet(proxy.url))
            assert len(result.answers) == 5
        record = origin.record(HOST)
    assert proxy.cuts == 4
    assert record.peak <= 2


@pytest_twisted.ensureDeferred
async def test_scripts_that_are_forgotten(server: RedisServer, proxy: RedisProxy) -> None:
    """NOSCRIPT: the script is sent again, the crawl does not notice."""

    def forget(crawler: Crawler) -> None:
        from twisted.internet import task

        loop = task.LoopingCall(server.command, "SCRIPT", "FLUSH")
        loop.start(0.1)
        from scrapy import signals

        crawler.signals.connect(lambda: loop.stop(), signal=signals.engine_stopped, weak=False)

    with OriginThread({HOST: steady(0.05)}) as origin:
        result = await crawl(pages(origin, HOST, 30), fleet(proxy.url), on_start=forget)
        record = origin.record(HOST)
    assert len(result.answers) == 30
    assert record.peak == 2
    assert "hostgate/fleet/outages" not in result.stats


@pytest_twisted.ensureDeferred
async def test_a_slow_server_blocks_nothing(proxy: RedisProxy) -> None:
    """300 ms each way: the loop turns, downloads end on time, no latency holds the wait."""
    proxy.delay_s = 0.3
    stalls: list[float] = []

    def watch(crawler: Crawler) -> None:
        from scrapy import signals
        from twisted.internet import task

        last = [time.monotonic()]

        def beat() -> None:
            now = time.monotonic()
            stalls.append(now - last[0] - 0.01)
            last[0] = now

        loop = task.LoopingCall(beat)
        crawler.signals.connect(lambda: loop.start(0.01), signals.engine_started, weak=False)
        crawler.signals.connect(lambda: loop.stop(), signals.engine_stopped, weak=False)

    settings = fleet(proxy.url, HOSTGATE_FLEET_TIMEOUT=2)
    with OriginThread({HOST: steady(0.1)}) as origin:
        result = await crawl(pages(origin, HOST, 12), settings, on_start=watch)
        record = origin.record(HOST)
    assert len(result.answers) == 12
    assert record.peak <= 2
    assert "hostgate/fleet/outages" not in result.stats
    # A loaded machine delays single beats; the wait of 600 ms would show in every departure.
    stalls.sort()
    assert stalls[int(len(stalls) * 0.98)] < 0.1
    assert all(answer.meta["download_latency"] < 0.5 for answer in result.answers)
    assert result.stats["hostgate/fleet/round_trips"] <= 2 * 12 + 2


@pytest_twisted.ensureDeferred
async def test_a_lease_is_renewed_while_the_download_goes_on(proxy: RedisProxy) -> None:
    """HG-40 (a): a download of twice the lease keeps its place: the other crawl waits for it."""
    settings = fleet(proxy.url, **pinned(1), HOSTGATE_FLEET_LEASE=1)
    with OriginThread({HOST: steady(2.2), "127.0.0.3": steady(0)}) as origin:
        both = [
            ensureDeferred(crawl(pages(origin, HOST, 1, f"/{name}"), settings, clean=False))
            for name in "ab"
        ]
        results = await DeferredList(both)
        record = origin.record(HOST)
    assert all(success for success, _ in results)
    assert len(record.arrivals) == 2
    assert record.peak == 1


@pytest_twisted.ensureDeferred
async def test_two_crawls_of_one_process_share_a_bound_in_memory() -> None:
    """``memory:NAME``: no Redis, one bound for both."""
    settings = fleet("memory:test")
    with OriginThread({HOST: steady(0.05)}) as origin:
        both = [
            ensureDeferred(crawl(pages(origin, HOST, 20, f"/{name}"), settings, clean=False))
            for name in "ab"
        ]
        results = await DeferredList(both)
        record = origin.record(HOST)
    assert all(success for success, _ in results), results
    assert len(record.arrivals) == 40
    assert record.peak == 2


@pytest_twisted.ensureDeferred
async def test_a_wrong_password_stops_the_start_and_is_not_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """HG-44 (e): one clear error, without the password."""
    server = RedisServer("--requirepass", "right").start()
    caplog.set_level(logging.DEBUG)
    url = f"redis://someone:{SECRET}@127.0.0.1:{server.port}/0"
    try:
        with pytest.raises(HostGateSettingsError, match="HOSTGATE_FLEET_URL") as caught:
            await crawl([], fleet(url))
    finally:
        server.stop()
    assert SECRET not in str(caught.value)
    assert "does not let us in" in str(caught.value)
    assert SECRET not in caplog.text


@pytest_twisted.ensureDeferred
async def test_a_right_password_is_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Not in a log, a stat, an error or a repr, whatever happens to the connection."""
    server = RedisServer("--requirepass", SECRET).start()
    caplog.set_level(logging.DEBUG)
    url = f"redis://:{SECRET}@127.0.0.1:{server.port}/0"

    def die(crawler: Crawler) -> None:
        from twisted.internet import reactor

        reactor.callLater(0.5, server.kill)  # type: ignore[attr-defined]

    with OriginThread({HOST: steady(0.1)}) as origin:
        try:
            result = await crawl(pages(origin, HOST, 15), fleet(url), on_start=die)
        finally:
            server.stop()
    assert len(result.answers) == 15
    assert result.stats["hostgate/fleet/outages"] == 1
    shown = [caplog.text, str(result.stats), repr(result.manager), repr(result.manager._settings)]
    shown += [repr(result.manager._fleet), repr(result.manager._fleet.fleet)]  # type: ignore[union-attr]
    assert not [text for text in shown if SECRET in text]


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1", "127.0.0.1:6379", "redis://", "redis+sentinel://h:1", "redis://h:x/"],
)
@pytest_twisted.ensureDeferred
async def test_what_is_no_fleet_url(url: str) -> None:
    """One error that names the setting and what is allowed."""
    with pytest.raises(HostGateSettingsError, match=r"HOSTGATE_FLEET_URL.* must be a URL"):
        await crawl([], fleet(url))


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}/x@127.0.0.1:6379/0",
        f"redis://:{SECRET}#x@127.0.0.1:6379/0",
        f"redis://someone:{SECRET}?x@127.0.0.1:6379/0",
        f"redis://:{SECRET}",
        f"redis://someone:{SECRET}",
        f"http://someone:{SECRET}/x@127.0.0.1",
        f"redis://someone:{SECRET}@127.0.0.1:6379/0?nonsense=1",
    ],
)
def test_an_error_about_a_url_shows_no_password(url: str) -> None:
    """Not even where a password that is not encoded makes the URL another one."""
    with pytest.raises(HostGateSettingsError, match="must be a URL") as caught:
        open_fleet("HOSTGATE_FLEET_URL", url, 0.5)
    assert SECRET not in str(caught.value)


def test_a_fleet_needs_asyncio() -> None:
    """On the select reactor one clear error, and no crawl."""
    result = run_child([], fleet(f"redis://127.0.0.1:{free_port()}"), reactor="select")
    assert result.returncode != 0
    assert "HOSTGATE_FLEET_URL is set, but a fleet needs an asyncio event loop" in result.log
