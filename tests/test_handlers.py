"""Downloads by handlers of every make: HTTP/2 on one connection, httpx, aiohttp."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from harness import crawl, pages, pinned
from scrapy import Request
from scrapy.utils.reactor import is_asyncio_reactor_installed

from demo.behaviours import Behaviour, Reply, scripted, steady
from demo.origin import OriginThread

HOST = "127.0.0.2"
LOCAL = "127.0.0.1"  # the name of the certificate
HANDLERS = "scrapy.core.downloader.handlers"
H2 = f"{HANDLERS}.http2.H2DownloadHandler"
HTTPX = f"{HANDLERS}._httpx.HttpxDownloadHandler"
AIOHTTP = f"{HANDLERS}._aiohttp.AiohttpDownloadHandler"


def handler(path: str) -> dict[str, Any]:
    """Settings with a handler for http and https, if this Scrapy and its libraries have it."""
    module = path.rpartition(".")[0]
    needs = {H2: ("h2", "priority"), HTTPX: ("httpx2",), AIOHTTP: ("aiohttp",)}[path]
    for name in (module, *needs):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not there")
    if path != H2 and not is_asyncio_reactor_installed():
        pytest.skip(f"{path} needs asyncio")
    return {"DOWNLOAD_HANDLERS": {"http": path, "https": path}}


def h2_origin(behaviour: Behaviour, folder: Path) -> OriginThread:
    """An origin that speaks HTTP/2 and nothing else."""
    pytest.importorskip("h2")
    from h2_server import H2Connection, h2_context

    return OriginThread({LOCAL: behaviour}, ssl_context=h2_context(folder), talk=H2Connection)


@pytest.mark.parametrize("limit", [2, 4])
@pytest.mark.parametrize("path", [H2, HTTPX])
@pytest_twisted.ensureDeferred
async def test_a_stream_of_http2_is_one_in_flight(path: str, limit: int, tmp_path: Path) -> None:
    """Multiplexed on few connections: several at once, never more than the limit, every page."""
    settings = handler(path) | pinned(limit) | {"HTTPX_HTTP2_ENABLED": True}
    with h2_origin(steady(0.1), tmp_path) as origin:
        result = await crawl(pages(origin, LOCAL, 20), settings)
        record = origin.record(LOCAL)
    assert result.statuses == [200] * 20
    assert 2 <= record.peak <= limit
    assert len(record.arrivals) == 20
    # More than one only where several began before the first connection stood.
    assert len({arrival.connection for arrival in record.arrivals}) <= limit


@pytest_twisted.ensureDeferred
async def test_a_refusal_over_http2_pauses_every_stream(tmp_path: Path) -> None:
    """The third request is refused: nothing more on the same connection for a second."""
    replies = [Reply(delay=0.05)] * 2 + [Reply(429, {"Retry-After": "1"})]
    with h2_origin(scripted(replies, Reply(delay=0.05)), tmp_path) as origin:
        result = await crawl(pages(origin, LOCAL, 10), handler(H2))
        record = origin.record(LOCAL)
    assert result.statuses == [200] * 10
    assert len(record.arrivals) == 11
    refused = next(a for a in record.arrivals if a.status == 429)
    assert refused.ended is not None
    # The other stream may have been used once more before the refusal was heard.
    assert len(record.arrivals_between(refused.ended, refused.ended + 0.99)) <= 1
    assert result.stats["hostgate/collapses"] == 1


@pytest.mark.parametrize("path", [HTTPX, AIOHTTP])
@pytest_twisted.ensureDeferred
async def test_other_handlers_are_gated_and_understood(path: str) -> None:
    """The bound, a refusal with its pause, and errors: a closed port is a refusal, a broken
    connection is not."""
    settings = handler(path) | {"RETRY_TIMES": 0, "HOSTGATE_REFUSAL_RETRIES": 1}
    replies = [Reply(delay=0.05)] * 2 + [Reply(503, {"Retry-After": "1"})]
    with OriginThread({HOST: scripted(replies, Reply(delay=0.05))}) as origin:
        broken = [origin.url("127.0.0.3", "/?end=close"), "http://127.0.0.9:1/"]
        result = await crawl([*broken, *pages(origin, HOST, 10)], settings)
        record = origin.record(HOST)
    assert result.statuses == [200] * 10
    assert record.peak == 2
    assert len(record.arrivals) == 11
    refused = next(a for a in record.arrivals if a.status == 503)
    assert refused.ended is not None
    assert len(record.arrivals_between(refused.ended, refused.ended + 0.99)) <= 1
    assert sorted(url for url, _ in result.failures) == sorted(broken)
    assert result.stats["hostgate/host/127.0.0.9/refusals"] == 2
    assert "hostgate/host/127.0.0.3/refusals" not in result.stats


# -- pools ---------------------------------------------------------------------------------------

RAISED = {"HOSTGATE_MAX_CONCURRENCY": 12, "HOSTGATE_REASON": "a test's own host"}
HOST_RAISED = {"HOSTGATE_HOSTS": {"big.example": {"max_concurrency": 20, "reason": "agreed"}}}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, []),
        (
            RAISED,
            [
                "HOSTGATE_MAX_CONCURRENCY allows 12 in flight, but CONCURRENT_REQUESTS_PER_DOMAIN "
                "is 8, and only as many connections per host are kept alive: set it to 12 or more"
            ],
        ),
        (RAISED | {"CONCURRENT_REQUESTS_PER_DOMAIN": 12}, []),
        # Set by the project it tightens the ceiling too, so nothing is wasted.
        (RAISED | {"CONCURRENT_REQUESTS_PER_DOMAIN": 6}, []),
        (
            HOST_RAISED | {"CONCURRENT_REQUESTS_PER_DOMAIN": 20, "CONCURRENT_REQUESTS": 16},
            [
                "HOSTGATE_HOSTS['big.example'] allows 20 in flight, but CONCURRENT_REQUESTS is 16, "
                "and only as many requests are in flight over all hosts: set it to 20 or more"
            ],
        ),
        (RAISED | {"CONCURRENT_REQUESTS_PER_DOMAIN": 12, "CONCURRENT_REQUESTS": 0}, []),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_pool_that_is_too_small_is_told_at_start(
    settings: dict[str, Any], told: list[str]
) -> None:
    """One warning that names the setting to raise, and none where everything fits."""
    result = await crawl(["data:,"], settings)
    assert [r.getMessage() for r in result.log if "allows" in r.getMessage()] == told


@pytest_twisted.ensureDeferred
async def test_a_pool_as_large_as_the_ceiling_keeps_every_connection() -> None:
    """Twelve in flight: with the pool that the warning asks for, twelve connections do for all."""
    settings = pinned(12) | {"CONCURRENT_REQUESTS_PER_DOMAIN": 12, "CONCURRENT_REQUESTS": 24}
    with OriginThread({HOST: steady(0.4)}) as origin:
        await crawl(pages(origin, HOST, 36), settings)
        record = origin.record(HOST)
    assert record.peak == 12
    assert len({arrival.connection for arrival in record.arrivals}) == 12


# -- a browser -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("default")  # whatever the browser's driver warns of
@pytest_twisted.ensureDeferred
async def test_pages_of_a_browser_are_gated() -> None:
    """scrapy-playwright with the system's Chromium: what is limited and paused are the pages; what
    a page itself loads (none here) is the browser's."""
    pytest.importorskip("scrapy_playwright")
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("there is no chromium")
    path = "scrapy_playwright.handler.ScrapyPlaywrightDownloadHandler"
    settings = {
        "DOWNLOAD_HANDLERS": {"http": path, "https": path},
        "PLAYWRIGHT_LAUNCH_OPTIONS": {"executable_path": browser, "args": ["--no-sandbox"]},
    }
    replies = [Reply(delay=0.1), Reply(429, {"Retry-After": "1"})]
    with OriginThread({HOST: scripted(replies, Reply(delay=0.1))}) as origin:
        job = [Request(url, meta={"playwright": True}) for url in pages(origin, HOST, 6)]
        result = await crawl(job, settings)
        record = origin.record(HOST)
    assert result.statuses == [200] * 6
    arrivals = [arrival for arrival in record.arrivals if arrival.path != "/favicon.ico"]
    assert len(arrivals) == 7
    assert record.peak <= 2
    refused = next(a for a in arrivals if a.status == 429)
    assert refused.ended is not None
    times = [a.at for a in arrivals]
    assert len([t for t in times if refused.ended < t < refused.ended + 0.99]) <= 1
