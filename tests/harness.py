"""Runs real crawls for tests, in this process, and checks that each of them left nothing behind."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.python import global_object_name
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from demo.origin import Origin
from demo.origin_record import HostRecord
from scrapy_hostgate import HostGateMiddleware
from scrapy_hostgate.slots import SlotManager

GATED = {"scrapy_hostgate.HostGateMiddleware": 1000}
SETTINGS: dict[str, Any] = {
    "DOWNLOADER_MIDDLEWARES": GATED,
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "CONCURRENT_REQUESTS": 32,
    "LOG_LEVEL": "DEBUG",
}
# The suite can be run on another reactor than asyncio's, see tests/conftest.py.
asyncio_only = pytest.mark.skipif(
    os.environ.get("HOSTGATE_TEST_REACTOR") in ("select", "epoll"),
    reason="needs asyncio",
)
# What a busy machine may put between a look at the clock and the next.
TOLERANCE_S = 0.03
BARRIER_TIMEOUT_S = 90.0
# What Scrapy, Twisted and asyncio log when something was dropped on the floor.
DROPPED = ("Unhandled error", "never retrieved", "was destroyed but it is pending")


@dataclass
class Answer:
    """A page that reached the spider. ``at`` is monotonic seconds."""

    url: str
    status: int
    at: float
    meta: dict[str, Any]
    flags: list[str]


class JobSpider(Spider):
    """Asks for a list of requests and writes down what comes back."""

    name = "job"

    def __init__(self, job: Iterable[Request | str] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.answers: list[Answer] = []
        self.failures: list[tuple[str, BaseException]] = []

    async def start(self) -> Any:
        if barrier := self.settings.get("JOB_BARRIER"):
            await stand_at(Path(barrier))
        for request in self.job:
            yield self.ask(request)

    def ask(self, request: Request | str) -> Request:
        if isinstance(request, str):
            request = Request(request, dont_filter=True)
        if request.callback is not None:
            return request
        return request.replace(callback=self.parse, errback=self.failed)

    def parse(self, response: Response) -> Any:
        self.note(response)

    def note(self, response: Response) -> None:
        self.answers.append(
            Answer(
                response.url,
                response.status,
                time.monotonic(),
                dict(response.meta),
                list(response.flags),
            )
        )

    def failed(self, failure: Failure) -> None:
        assert failure.value is not None
        request: Request = failure.request  # type: ignore[attr-defined]
        self.failures.append((request.url, failure.value))


@dataclass
class Result:
    """A crawl that has ended. ``started`` and ``ended`` are monotonic seconds.

    ``departures`` are when each request was handed to its download handler, and its host.
    """

    crawler: Crawler
    spider: Any
    started: float
    ended: float
    log: list[logging.LogRecord] = field(default_factory=list)
    departures: list[tuple[float, str | None]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.ended - self.started

    @property
    def answers(self) -> list[Answer]:
        return self.spider.answers  # type: ignore[no-any-return]

    @property
    def failures(self) -> list[tuple[str, BaseException]]:
        return self.spider.failures  # type: ignore[no-any-return]

    @property
    def statuses(self) -> list[int]:
        return [answer.status for answer in self.answers]

    @property
    def stats(self) -> dict[str, Any]:
        return dict(self.crawler.stats.get_stats())

    def departures_to(self, host: str) -> list[float]:
        return [at for at, key in self.departures if key == host]

    @property
    def gate_log(self) -> list[str]:
        """The lines of the ``scrapy_hostgate`` logger."""
        return [r.getMessage() for r in self.log if r.name.startswith("scrapy_hostgate")]

    @property
    def manager(self) -> SlotManager:
        return manager_of(self.crawler)


def manager_of(crawler: Crawler) -> SlotManager:
    """The slot manager of a crawler that has been started."""
    return middleware_of(crawler)._manager


def middleware_of(crawler: Crawler) -> HostGateMiddleware:
    assert crawler.engine is not None
    for middleware in crawler.engine.downloader.middleware.middlewares:
        if isinstance(middleware, HostGateMiddleware):
            return middleware
    raise LookupError("no HostGateMiddleware is enabled")


class _Keep(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def note_departures(crawler: Crawler) -> list[tuple[float, str | None]]:
    """Have every hand-over to a download handler written down, from the start of the crawl on."""
    departures: list[tuple[float, str | None]] = []

    def watch() -> None:
        assert crawler.engine is not None
        handlers: Any = crawler.engine.downloader.handlers
        download = handlers.download_request_async

        async def noted(request: Request) -> Any:
            departures.append((time.monotonic(), urlsplit(request.url).hostname))
            return await download(request)

        handlers.download_request_async = noted

    crawler.signals.connect(watch, signals.engine_started, weak=False)
    return departures


async def crawl(
    job: Iterable[Request | str] = (),
    settings: dict[str, Any] | None = None,
    *,
    spider: type[Spider] = JobSpider,
    on_start: Callable[[Crawler], object] | None = None,
    clean: bool = True,
    **arguments: Any,
) -> Result:
    """Run one crawl to its end and, unless told otherwise, check that it left nothing behind.

    ``on_start`` is called with the crawler just before it starts, to connect signals.
    """
    keep = _Keep()
    root = logging.getLogger()
    level = root.level
    root.addHandler(keep)
    root.setLevel(logging.DEBUG)
    try:
        # Scrapy insists on its own default otherwise, whatever the tests run on.
        reactor = {"TWISTED_REACTOR": global_object_name(type(running_reactor()))}
        crawler = Crawler(spider, {**SETTINGS, **reactor, **(settings or {})})
        departures = note_departures(crawler)
        if on_start is not None:
            on_start(crawler)
        started = time.monotonic()
        await crawler.crawl(job=job, **arguments)
        ended = time.monotonic()
        result = Result(crawler, crawler.spider, started, ended, keep.records, departures)
        if clean:
            await assert_clean(result)
        return result
    finally:
        root.setLevel(level)
        root.removeHandler(keep)


async def assert_clean(result: Result) -> None:
    """Nothing in flight, no timer of ours alive, nothing left in Scrapy, nothing dropped."""
    engine = result.crawler.engine
    assert engine is not None
    assert not engine.downloader.active
    assert_idle(result.manager)
    learnt = middleware_of(result.crawler)._learnt
    assert learnt is None or learnt._timer is None
    # What nobody awaited complains when it is collected, on the next turn of the loop.
    gc.collect()
    await next_turn()
    text = [record.getMessage() + str(record.exc_text or "") for record in result.log]
    assert [line for line in text if any(word in line for word in DROPPED)] == []


async def stand_at(barrier: Path) -> None:
    """Say that we are there, and wait until the barrier is lifted: a file of that name.

    Whoever should lift it may have given up, and a crawl must not wait for ever.
    """
    barrier.with_name(f"{barrier.name}.{os.getpid()}").touch()
    deadline = time.monotonic() + BARRIER_TIMEOUT_S
    while not barrier.exists():  # noqa: ASYNC240
        if time.monotonic() > deadline:
            raise TimeoutError(f"{barrier} was not lifted")
        await maybe_deferred_to_future(next_turn_deferred(0.01))


def running_reactor() -> Any:
    # Whoever imports it installs it, and a child process has a choice of its own.
    from twisted.internet import reactor

    return reactor


def next_turn_deferred(delay_s: float) -> Deferred[None]:
    return deferLater(running_reactor(), delay_s)


async def next_turn(delay_s: float = 0) -> None:
    """Let the event loop turn."""
    await next_turn_deferred(delay_s)


def assert_idle(manager: SlotManager) -> None:
    """No request of this manager is anywhere, and no timer is set."""
    for gate in manager.registry:
        assert gate.in_flight == 0, gate
        assert gate.waiting == 0, gate
        assert gate.semaphore._timer is None, gate
    assert not manager._in_flight
    assert not manager._waiting
    assert manager._lag._timer is None
    assert manager._waiting._watch is None
    if manager._fleet is not None:
        assert all(link.idle for link in manager._fleet._links.values())
        assert not manager._fleet._tasks
        assert manager._fleet._wary_timer is None
    for view in manager._slots().values():
        assert not view.active, view
        assert not view.transferring, view


def pages(origin: Origin, host: str, count: int, path: str = "/p") -> list[str]:
    """``count`` different URLs of a host."""
    return [origin.url(host, f"{path}{number}") for number in range(count)]


def pinned(limit: int) -> dict[str, Any]:
    """Settings that hold every host at exactly ``limit``."""
    return {
        "HOSTGATE_CONCURRENCY": limit,
        "HOSTGATE_MAX_CONCURRENCY": limit,
        "HOSTGATE_REASON": "a test's own host",
    }


def assert_spaced(result: Result, record: HostRecord, least_s: float, *, skip: int = 0) -> None:
    """The departures of a crawl to a host are ``least_s`` apart, and no arrival is ahead of them.

    One arrival can be held up on its way and the next not (connecting, a busy machine), so the gaps
    between two arrivals say little. But no arrival can be ahead of the pace that the first
    departure began. ``skip`` leaves out that many of the first.
    """
    departures = result.departures_to(record.host)[skip:]
    arrivals = [arrival.at for arrival in record.arrivals][-len(departures) :]
    assert len(arrivals) == len(departures) > 1
    gaps = [later - sooner for sooner, later in pairwise(departures)]
    # Between the gate's own look at the clock and the hand-over there is very little.
    assert min(gaps) >= least_s - TOLERANCE_S, gaps
    ahead = [
        departures[0] + number * least_s - at
        for number, at in enumerate(arrivals)
        if at < departures[0] + number * least_s - TOLERANCE_S
    ]
    assert ahead == []
