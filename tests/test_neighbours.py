"""Beside Scrapy's other components, and some that projects add: short crawls, the host's record."""

from __future__ import annotations

import gzip
import io
import json
import os
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from harness import JobSpider, asyncio_only, crawl, pages, pinned
from redis_server import RedisServer
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule, SitemapSpider
from scrapy.utils.defer import maybe_deferred_to_future

from demo.behaviours import Behaviour, Reply, outage, scripted, steady
from demo.origin import Arrival, OriginThread

HOST = "127.0.0.2"
OTHER = "127.0.0.3"
GATED = {"scrapy_hostgate.HostGateMiddleware": 1000}


def by_path(replies: dict[str, Reply], latency: float = 0.05) -> Behaviour:
    """A page of its own for each path, and an ordinary one for all others."""
    return lambda number, arrival, now: replies.get(arrival.path, Reply(delay=latency))


# -- cookies and proxies -------------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_cookies_are_kept_through_a_refusal() -> None:
    """The cookie of the first page is sent with every later request, the retry of a refusal too."""
    replies = [Reply(headers={"Set-Cookie": "session=7"}), Reply(429, {"Retry-After": "1"})]
    with OriginThread({HOST: scripted(replies)}) as origin:
        result = await crawl(pages(origin, HOST, 4), pinned(1) | {"CONCURRENT_REQUESTS": 1})
        cookies = [arrival.headers.get("cookie") for arrival in origin.record(HOST).arrivals]
    assert result.statuses == [200] * 4
    assert cookies == [None] + ["session=7"] * 4


class RotatingProxies:
    """What packages for rotating proxies do: another proxy each time, also for a retry."""

    def __init__(self, proxies: list[str]) -> None:
        self.proxies = cycle(proxies)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> RotatingProxies:
        return cls(crawler.settings.getlist("PROXIES"))

    def process_request(self, request: Request) -> None:
        request.meta["proxy"] = next(self.proxies)


@pytest_twisted.ensureDeferred
async def test_changing_the_proxy_is_no_way_past_a_pause() -> None:
    """The target refuses one of three proxies: none of the others asks it before the time is over,
    because the host said no, and the proxy only carried it."""
    settings = {"DOWNLOADER_MIDDLEWARES": GATED | {RotatingProxies: 610}}
    refusal = scripted([Reply(), Reply(503, {"Retry-After": "1"})])
    with OriginThread({"shop.example": refusal}, ports=3) as origin:
        proxies = [f"http://127.0.0.5{number}:{port}" for number, port in enumerate(origin.ports)]
        job = [f"http://shop.example/{number}" for number in range(8)]
        result = await crawl(job, settings | pinned(1) | {"PROXIES": proxies})
        arrivals = origin.record("shop.example").arrivals
    assert result.statuses == [200] * 8
    assert all(arrival.proxied for arrival in arrivals)
    assert len({arrival.port for arrival in arrivals}) == 3
    assert arrivals[2].at - arrivals[1].at >= 0.99


@pytest_twisted.ensureDeferred
async def test_a_proxy_of_the_environment_carries_what_the_gate_lets_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``http_proxy``, which Scrapy's HttpProxyMiddleware reads: two at a time at the target."""
    with OriginThread({"shop.example": steady(0.1)}) as origin:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.9:{origin.port}")
        result = await crawl([f"http://shop.example/{number}" for number in range(8)])
        record = origin.record("shop.example")
    assert result.statuses == [200] * 8
    assert record.peak == 2
    assert all(arrival.proxied for arrival in record.arrivals)


# -- kinds of spiders ----------------------------------------------------------------------------


def html(*links: str) -> bytes:
    return "".join(f'<a href="{link}">.</a>' for link in links).encode()


class FollowingSpider(CrawlSpider):
    name = "following"
    rules = (Rule(LinkExtractor(allow="/deep"), callback="note", follow=True),)

    def __init__(self, job: list[str], **arguments: Any) -> None:
        super().__init__(**arguments)
        self.start_urls = job
        self.noted: list[str] = []

    def note(self, response: Response) -> None:
        self.noted.append(response.url.partition("/deep")[2])


@pytest_twisted.ensureDeferred
async def test_a_crawl_spider_follows_its_rules() -> None:
    """Every linked page that the rule allows comes, two at a time, one of them refused once."""
    refused: list[Arrival] = []
    links = {
        "/": html("/deep1", "/deep2", "/deep3", "/other"),
        "/deep1": html("/deep4", "/deep5"),
        "/deep5": html("/deep1", "/deep6"),
    }

    def behave(number: int, arrival: Arrival, now: float) -> Reply:
        if arrival.path == "/deep3" and not refused:
            refused.append(arrival)
            return Reply(429)
        return Reply(body=links.get(arrival.path, html()), delay=0.05)

    with OriginThread({HOST: behave}) as origin:
        result = await crawl([origin.url(HOST)], spider=FollowingSpider)
        record = origin.record(HOST)
    assert sorted(result.spider.noted) == ["1", "2", "3", "4", "5", "6"]
    assert record.peak <= 2
    assert "/other" not in {arrival.path for arrival in record.arrivals}


class MapSpider(SitemapSpider):
    name = "map"

    def __init__(self, job: list[str], **arguments: Any) -> None:
        self.sitemap_urls = job
        super().__init__(**arguments)
        self.noted: list[str] = []

    def parse(self, response: Response) -> Any:
        self.noted.append(response.url.rpartition("/")[2])


@pytest_twisted.ensureDeferred
async def test_a_sitemap_spider_finds_its_pages() -> None:
    """robots.txt names a packed index of maps: every page of them comes, two at a time."""
    with OriginThread() as origin:

        def listing(kind: str, entry: str, *paths: str) -> bytes:
            entries = "".join(
                f"<{entry}><loc>{origin.url(HOST, path)}</loc></{entry}>" for path in paths
            )
            space = "http://www.sitemaps.org/schemas/sitemap/0.9"
            return f'<{kind} xmlns="{space}">{entries}</{kind}>'.encode()

        index = gzip.compress(listing("sitemapindex", "sitemap", "/map1.xml", "/map2.xml"))
        xml = {"Content-Type": "text/xml"}
        origin.behaviours[HOST] = by_path(
            {
                "/robots.txt": Reply(body=f"Sitemap: {origin.url(HOST, '/all.xml.gz')}".encode()),
                "/all.xml.gz": Reply(headers={"Content-Type": "application/gzip"}, body=index),
                "/map1.xml": Reply(headers=xml, body=listing("urlset", "url", "/1", "/2", "/3")),
                "/map2.xml": Reply(headers=xml, body=listing("urlset", "url", "/4", "/5", "/6")),
            }
        )
        result = await crawl([origin.url(HOST, "/robots.txt")], spider=MapSpider)
        record = origin.record(HOST)
    assert sorted(result.spider.noted) == ["1", "2", "3", "4", "5", "6"]
    assert record.peak == 2
    assert len(record.arrivals) == 10


# -- downloads of one's own ----------------------------------------------------------------------


async def download(crawler: Crawler, url: str) -> Response:
    """``engine.download_async()``, or what older releases have in its place."""
    engine = crawler.engine
    assert engine is not None
    request = Request(url)
    if hasattr(engine, "download_async"):
        return await engine.download_async(request)
    return await maybe_deferred_to_future(engine.download(request))


class InlineSpider(JobSpider):
    async def parse(self, response: Response) -> Any:
        self.note(response)
        more = await download(self.crawler, response.url.replace("/p", "/callback"))
        yield {"status": more.status, "url": response.url}


class InlinePipeline:
    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> InlinePipeline:
        return cls(crawler)

    async def process_item(self, item: Any) -> Any:
        more = await download(self.crawler, item["url"].replace("/p", "/pipeline"))
        assert more.status == 200
        return item


class InlineMiddleware:
    """Asks for a token first, as logging-in middlewares do."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> InlineMiddleware:
        return cls(crawler)

    async def process_request(self, request: Request) -> None:
        if "/p" in request.url and "/pipeline" not in request.url:
            token = await download(self.crawler, request.url.replace("/p", "/token"))
            if token.status != 200:
                raise IgnoreRequest("no token")


@pytest_twisted.ensureDeferred
async def test_downloads_inside_callbacks_pipelines_and_middlewares_are_gated() -> None:
    """Each page needs three more downloads of the same host, whose limit is one: no deadlock, one
    at a time, all there."""
    settings = {
        "DOWNLOADER_MIDDLEWARES": GATED | {InlineMiddleware: 500},
        "ITEM_PIPELINES": {InlinePipeline: 1},
    }
    with OriginThread({HOST: steady(0.02)}) as origin:
        result = await crawl(pages(origin, HOST, 6), pinned(1) | settings, spider=InlineSpider)
        record = origin.record(HOST)
    assert record.peak == 1
    kinds = ("/p", "/token", "/callback", "/pipeline")
    assert record.pages() == {f"{kind}{number}" for kind in kinds for number in range(6)}
    assert len(record.arrivals) == 24
    assert result.stats["item_scraped_count"] == 6


class ImagesSpider(JobSpider):
    images: list[str]

    def parse(self, response: Response) -> Any:
        yield {"image_urls": self.images}


@pytest_twisted.ensureDeferred
async def test_the_images_of_a_page_go_through_the_gate(tmp_path: Path) -> None:
    """Six images, one of them refused once: two at a time, all stored."""
    image = pytest.importorskip("PIL.Image", reason="the images pipeline needs Pillow")
    data = io.BytesIO()
    image.new("RGB", (8, 8)).save(data, "PNG")
    png = Reply(headers={"Content-Type": "image/png"}, body=data.getvalue(), delay=0.05)
    settings = {
        "ITEM_PIPELINES": {"scrapy.pipelines.images.ImagesPipeline": 1},
        "IMAGES_STORE": str(tmp_path),
    }
    with OriginThread({OTHER: scripted([png, Reply(429)], png)}) as origin:
        images = pages(origin, OTHER, 6, "/image")
        await crawl(pages(origin, HOST, 1), settings, spider=ImagesSpider, images=images)
        record = origin.record(OTHER)
    assert record.peak <= 2
    assert len(record.arrivals) == 7
    assert len(os.listdir(tmp_path / "full")) == 6


# -- extensions that end or watch a crawl --------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_close_spider_ends_a_crawl_of_waiting_requests() -> None:
    """After five pages of sixty: no page is asked for after those in flight, no error."""
    with OriginThread({HOST: steady(0.05)}) as origin:
        result = await crawl(pages(origin, HOST, 60), {"CLOSESPIDER_PAGECOUNT": 5})
        record = origin.record(HOST)
    assert result.stats["finish_reason"] == "closespider_pagecount"
    assert 5 <= len(record.arrivals) <= 8
    assert not result.failures
    assert "log_count/ERROR" not in result.stats


# Elsewhere Scrapy's extension starts one more timer after it has stopped the crawl.
@asyncio_only
@pytest_twisted.ensureDeferred
async def test_memory_usage_ends_a_crawl_in_a_pause() -> None:
    """The limit is passed while the host is paused for minutes: the crawl ends at once."""
    settings = {"MEMUSAGE_LIMIT_MB": 1, "MEMUSAGE_CHECK_INTERVAL_SECONDS": 0.5}
    pytest.importorskip("resource")
    with OriginThread({HOST: outage(0, 600, 0, retry_after="300")}) as origin:
        result = await crawl(pages(origin, HOST, 5), settings)
        arrivals = len(origin.record(HOST).arrivals)
    assert result.stats["finish_reason"] == "memusage_exceeded"
    assert arrivals <= 2
    assert result.seconds < 20


@pytest_twisted.ensureDeferred
async def test_periodic_log_tells_our_stats_too() -> None:
    """What the gate counts can be written as JSON while the crawl runs."""
    settings = {
        "EXTENSIONS": {"scrapy.extensions.periodic_log.PeriodicLog": 0},
        "PERIODIC_LOG_STATS": {"include": ["hostgate/"]},
        "LOGSTATS_INTERVAL": 0.2,
    }
    with OriginThread({HOST: steady(0.1)}) as origin:
        result = await crawl(pages(origin, HOST, 12), settings)
    lines = [r.getMessage() for r in result.log if r.name == "scrapy.extensions.periodic_log"]
    told = [json.loads(line)["stats"] for line in lines]
    assert any("hostgate/departures" in stats for stats in told)
    assert "log_count/ERROR" not in result.stats


# -- a scheduler of another make -----------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
@pytest_twisted.ensureDeferred
async def test_the_scheduler_of_scrapy_redis() -> None:
    """Its queue is in Redis and knows no gates: two at a time, a refusal, every page once."""
    pytest.importorskip("scrapy_redis")
    server = RedisServer().start()
    try:
        settings = {
            "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
            "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
            "REDIS_URL": server.url,
        }
        refusal = Reply(429, {"Retry-After": "1"})
        with OriginThread({HOST: scripted([Reply(), refusal], Reply(delay=0.05))}) as origin:
            result = await crawl(pages(origin, HOST, 12), settings)
            record = origin.record(HOST)
    finally:
        server.stop()
    assert result.statuses == [200] * 12
    assert record.peak <= 2
    assert len(record.arrivals) == 13
