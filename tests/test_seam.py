"""What this package leans on in Scrapy that its documentation does not promise.

Nothing of ours is at work here: when a release of Scrapy changes one of these, the test that names
it fails before a crawl behaves oddly. ``ours`` in a docstring says which file leans on it.
"""

from __future__ import annotations

import ast
import inspect
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from harness import JobSpider, crawl
from scrapy import Request, Spider, signals
from scrapy.core.downloader import Downloader
from scrapy.core.downloader.handlers import DownloadHandlers
from scrapy.core.engine import ExecutionEngine
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.httpcache import HttpCacheMiddleware
from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.exceptions import StopDownload
from scrapy.http import Response, TextResponse
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.robotstxt import ProtegoRobotParser, PythonRobotParser
from scrapy.settings import SETTINGS_PRIORITIES, Settings
from scrapy.utils.asyncio import call_later
from scrapy.utils.conf import build_component_list
from scrapy.utils.job import job_dir
from scrapy.utils.misc import load_object
from scrapy.utils.test import get_crawler

import scrapy_hostgate
from demo.origin import OriginThread

HOST = "127.0.0.2"
STOCK: dict[str, Any] = {"DOWNLOADER_MIDDLEWARES": {}}

# Names that the package imports from Scrapy beyond its documented classes. A new one belongs into
# this list and into a test below.
HALF_PRIVATE = {
    "scrapy.core.downloader.Downloader",
    "scrapy.core.engine.ExecutionEngine",
    "scrapy.downloadermiddlewares.httpcompression.HttpCompressionMiddleware",
    "scrapy.downloadermiddlewares.retry.RetryMiddleware",
    "scrapy.downloadermiddlewares.retry.get_retry_request",
    "scrapy.extensions.telnet.update_telnet_vars",
    "scrapy.pqueues.DownloaderAwarePriorityQueue",
    "scrapy.pqueues.QueueProtocol",
    "scrapy.pqueues.ScrapyPriorityQueue",
    "scrapy.settings.SETTINGS_PRIORITIES",
    "scrapy.utils.asyncio.call_later",
    "scrapy.utils.asyncio.is_asyncio_available",
    "scrapy.utils.conf.build_component_list",
    "scrapy.utils.defer.maybe_deferred_to_future",
    "scrapy.utils.httpobj.urlparse_cached",
    "scrapy.utils.job.job_dir",
    "scrapy.utils.misc.load_object",
}
DOCUMENTED = {
    "scrapy.Request",
    "scrapy.signals",
    "scrapy.commands.ScrapyCommand",
    "scrapy.crawler.Crawler",
    "scrapy.exceptions.IgnoreRequest",
    "scrapy.exceptions.NotConfigured",
    "scrapy.exceptions.UsageError",
    "scrapy.http.Response",
    "scrapy.settings.BaseSettings",
    "scrapy.statscollectors.StatsCollector",
}


def test_every_name_that_is_imported_from_scrapy_is_listed() -> None:
    """All of ours: the lists above are what the package imports, no more and no less."""
    imported = set()
    for file in Path(scrapy_hostgate.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "scrapy":
                imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    assert imported == HALF_PRIVATE | DOCUMENTED


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


# -- the downloader and the engine ---------------------------------------------------------------


def test_a_download_is_a_coroutine_of_the_handlers() -> None:
    """slots.py: ``engine.downloader.handlers.download_request_async(request)``."""
    assert inspect.iscoroutinefunction(DownloadHandlers.download_request_async)
    assert parameters(DownloadHandlers.download_request_async) == ["self", "request"]


def test_the_key_of_a_slot_is_told_by_the_downloader() -> None:
    """slots.py: ``get_slot_key()`` takes ``meta["download_slot"]``, else the host of the URL."""
    assert Downloader.DOWNLOAD_SLOT == "download_slot"
    downloader = Downloader(_started(get_crawler()))
    assert downloader.get_slot_key(Request("http://WWW.example.org:8080/")) == "www.example.org"
    mine = Request("http://example.org/", meta={"download_slot": "mine"})
    assert downloader.get_slot_key(mine) == "mine"
    assert downloader.slots == {}
    assert downloader.active == set()


def _started(crawler: Crawler) -> Crawler:
    crawler.spider = crawler._create_spider("seam")
    return crawler


class Probe:
    """Stands where the gate stands in a stock crawl, and writes down what it finds."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.seen: dict[str, Any] = {"spider": crawler.spider}
        crawler.signals.connect(self.closed, signal=signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Probe:
        return cls(crawler)

    async def process_request(self, request: Request) -> Response | Request | None:
        engine = self.crawler.engine
        assert engine is not None
        downloader = engine.downloader
        self.seen.setdefault("active", []).append(request in downloader.active)
        self.seen["slots"] = downloader.slots
        self.seen["closing_before"] = engine._slot.closing  # type: ignore[union-attr]
        self.seen["schedule"] = engine._slot.nextcall.schedule  # type: ignore[union-attr]
        if request.url.endswith("/again") and not request.meta.get("again"):
            return request.replace(meta={"again": True}, dont_filter=True)
        return await downloader.handlers.download_request_async(request)

    def closed(self) -> None:
        engine = self.crawler.engine
        assert engine is not None
        self.seen["closing_after"] = engine._slot.closing  # type: ignore[union-attr]


class ProbedQueue(ScrapyPriorityQueue):
    """A scheduler's queue that looks for the middleware as soon as it is made."""

    found: list[object] = []

    def __init__(self, crawler: Crawler, *arguments: Any, **more: Any) -> None:
        self.found.append(crawler.get_downloader_middleware(Probe))
        super().__init__(crawler, *arguments, **more)


@pytest_twisted.ensureDeferred
async def test_a_middleware_may_download_by_itself() -> None:
    """slots.py, middleware.py, pqueue.py, in one stock crawl: when the middlewares are made the
    spider is there; the engine, its slot and the downloader's table are where they are looked for;
    a request stays in ``active`` while a middleware has it; a response and a request may be
    returned; the handler tells its latency in meta; ``closing`` tells that the spider closes; and
    the scheduler's queue is made when the middlewares are."""
    ProbedQueue.found.clear()
    settings = {"DOWNLOADER_MIDDLEWARES": {Probe: 1000}, "SCHEDULER_PRIORITY_QUEUE": ProbedQueue}
    with OriginThread() as origin:
        urls = [origin.url(HOST, "/page"), origin.url(HOST, "/again")]
        result = await crawl(urls, settings, clean=False)
    probe = result.crawler.get_downloader_middleware(Probe)
    assert isinstance(probe, Probe)
    seen = probe.seen
    assert isinstance(seen["spider"], Spider)
    assert isinstance(result.crawler.engine, ExecutionEngine)
    assert seen["active"] == [True] * 3
    assert seen["slots"] == {}  # nobody but Scrapy's own queue makes a slot
    assert seen["closing_before"] is None
    assert seen["closing_after"] is not None
    assert callable(seen["schedule"])
    assert ProbedQueue.found == [probe]
    assert result.statuses == [200, 200]
    assert all(0 < answer.meta["download_latency"] < 30 for answer in result.answers)


class WakingSpider(JobSpider):
    """Its scheduler has a request of which the engine hears nothing but by ``nextcall``."""

    async def start(self) -> Any:
        engine = self.crawler.engine
        assert engine is not None
        assert engine._slot is not None
        for request in self.job:
            engine._slot.scheduler.enqueue_request(self.ask(request))
        engine._slot.nextcall.schedule()
        return
        yield


@pytest_twisted.ensureDeferred
async def test_the_engine_can_be_told_to_ask_its_scheduler() -> None:
    """slots.py: ``engine._slot.nextcall.schedule()``; left alone the engine asks every 5 s."""
    with OriginThread() as origin:
        result = await crawl([origin.url(HOST)], STOCK, spider=WakingSpider, clean=False)
    assert result.statuses == [200]


# -- signals, errors and meta --------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["request_reached_downloader", "response_downloaded", "request_left_downloader"]
)
def test_signals_of_the_downloader(name: str) -> None:
    """slots.py sends them in Scrapy's place, with ``send_catch_log``."""
    assert hasattr(signals, name)
    assert parameters(get_crawler().signals.send_catch_log) == ["signal", "kwargs"]


class StoppingSpider(JobSpider):
    fail = True

    @classmethod
    def from_crawler(cls, crawler: Crawler, *arguments: Any, **more: Any) -> StoppingSpider:
        spider: StoppingSpider = super().from_crawler(crawler, *arguments, **more)  # type: ignore[assignment]
        crawler.signals.connect(spider.stop, signal=signals.headers_received)
        return spider

    def stop(self, request: Request) -> None:
        raise StopDownload(fail=request.url.endswith("/fail"))


@pytest_twisted.ensureDeferred
async def test_a_stopped_download_tells_its_response() -> None:
    """slots.py: ``StopDownload`` has the response it came with, or the response has a flag."""
    with OriginThread() as origin:
        urls = [origin.url(HOST, "/fail?s=429"), origin.url(HOST, "/keep")]
        result = await crawl(urls, STOCK, spider=StoppingSpider, clean=False)
    assert result.answers[0].flags == ["download_stopped"]
    (_, error) = result.failures[0]
    assert error.response.status == 429  # type: ignore[attr-defined]


def test_retrying_counts_in_meta() -> None:
    """retries.py: ``max_retry_times`` in meta is the limit, ``retry_times`` the count."""
    crawler = _started(get_crawler())
    spider = crawler.spider
    assert spider is not None
    request = Request("http://example.org/", meta={"max_retry_times": 1})
    again = get_retry_request(request, spider=spider, reason="seam")
    assert again is not None
    assert again.meta["retry_times"] == 1
    assert get_retry_request(again, spider=spider, reason="seam") is None


def test_the_cache_can_be_told_to_keep_a_response_out(tmp_path: Path) -> None:
    """slots.py: ``meta["_dont_cache"]`` makes HttpCacheMiddleware store nothing."""
    settings = {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(tmp_path)}
    crawler = _started(get_crawler(settings_dict=settings))
    cache = HttpCacheMiddleware.from_crawler(crawler)
    stored: list[Response] = []
    cache.storage.store_response = lambda *arguments: stored.append(arguments[-1])
    for meta in ({"_dont_cache": True}, {}):
        request = Request("http://example.org/", meta=meta)
        response = Response(request.url, headers={"Date": "Thu, 01 Jan 2026 00:00:00 GMT"})
        cache.process_response(request, response)
    assert len(stored) == 1


def test_a_packed_body_can_be_unpacked_without_counting() -> None:
    """detector.py: HttpCompressionMiddleware works outside the manager, and without stats."""
    import gzip

    decoder = HttpCompressionMiddleware(crawler=_started(get_crawler()))
    decoder.stats = None
    packed = TextResponse(
        "http://example.org/",
        body=gzip.compress(b"slow down"),
        headers={"Content-Encoding": "gzip"},
    )
    unpacked = decoder.process_response(Request(packed.url), packed)
    assert isinstance(unpacked, Response)
    assert unpacked.body == b"slow down"


def test_robots_parsers_know_a_delay() -> None:
    """robots.py: ``crawl_delay(user_agent)`` where Scrapy has it, Request-rate in ``rp``."""
    body = b"User-agent: *\nCrawl-delay: 3\nRequest-rate: 1/7\n"
    crawler = _started(get_crawler())
    for parser_class in (ProtegoRobotParser, PythonRobotParser):
        parser = parser_class.from_crawler(crawler, body)
        rate = parser.rp.request_rate("any")
        assert rate is None or rate.seconds == 7  # the oldest Protego does not know it
        if hasattr(signals, "robots_parsed"):
            assert parser.crawl_delay("any") == 3


# -- the scheduler's queue -----------------------------------------------------------------------


def test_the_queue_that_is_subclassed() -> None:
    """pqueue.py: how ``DownloaderAwarePriorityQueue`` is made, kept, asked and closed."""
    given = ["self", "crawler", "downstream_queue_cls", "key", "slot_startprios", "start_queue_cls"]
    assert parameters(DownloaderAwarePriorityQueue.__init__) == given
    crawler = _started(get_crawler())
    crawler.engine = crawler._create_engine()
    queue = DownloaderAwarePriorityQueue.from_crawler(
        crawler, load_object("scrapy.squeues.FifoMemoryQueue"), ""
    )
    assert queue.pqueues == {}
    assert queue.key == ""
    request = Request("http://example.org/", priority=5)
    queue.push(request)
    assert list(queue.pqueues) == ["example.org"]
    assert "example.org" in queue
    one = queue.pqfactory("other.example", ())
    assert isinstance(one, ScrapyPriorityQueue)
    assert not one
    one.push(request)
    with suppress(NotImplementedError):  # queuelib before 1.6 has no such thing
        assert one.peek() is request
    assert one.key
    assert queue.close() == {"example.org": [-5]}
    assert one.close() == [-5]


# -- settings, components and helpers ------------------------------------------------------------


def test_settings_tell_who_set_them() -> None:
    """tightening.py, addon.py: priorities, and where a component stands."""
    settings = Settings({"DOWNLOAD_DELAY": 1})
    assert settings.getpriority("DOWNLOAD_DELAY") == SETTINGS_PRIORITIES["project"]
    assert settings.getpriority("CONCURRENT_REQUESTS_PER_DOMAIN") == SETTINGS_PRIORITIES["default"]
    settings.setdefault_in_component_priority_dict("DOWNLOADER_MIDDLEWARES", Probe, 1000)
    assert settings.getdict("DOWNLOADER_MIDDLEWARES") == {Probe: 1000}


def test_the_order_of_middlewares_can_be_worked_out() -> None:
    """middleware.py: the project's components over Scrapy's own, in order, innermost last."""
    settings = Settings({"DOWNLOADER_MIDDLEWARES": {Probe: 1000}})
    if hasattr(settings, "get_component_priority_dict_with_base"):
        merged = settings.get_component_priority_dict_with_base("DOWNLOADER_MIDDLEWARES")
    else:
        merged = settings.getwithbase("DOWNLOADER_MIDDLEWARES")
    order = [load_object(component) for component in build_component_list(merged)]
    assert order[-1] is Probe
    assert HttpCacheMiddleware in order


def test_the_folder_of_a_job(tmp_path: Path) -> None:
    """middleware.py: ``job_dir()`` makes it and returns its path, ``None`` without ``JOBDIR``."""
    assert job_dir(Settings()) is None
    folder = tmp_path / "job"
    assert job_dir(Settings({"JOBDIR": str(folder)})) == str(folder)
    assert folder.is_dir()


@pytest_twisted.ensureDeferred
async def test_a_timer_can_be_cancelled() -> None:
    """slots.py: ``call_later(seconds, function)`` works on any reactor and has ``cancel()``."""
    from harness import next_turn

    rung: list[str] = []
    call_later(0, rung.append, "first")
    call_later(0, rung.append, "second").cancel()
    await next_turn(0.05)
    assert rung == ["first"]


def test_the_telnet_console_asks_for_variables() -> None:
    """observe/views.py: the signal is sent with ``telnet_vars``."""
    from scrapy.extensions import telnet

    assert "update_telnet_vars" in inspect.getsource(telnet.TelnetConsole)
    assert "telnet_vars" in inspect.getsource(telnet.TelnetConsole)
