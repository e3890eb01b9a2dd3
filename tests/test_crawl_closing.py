"""The end of a crawl: nothing is sent any more, nothing is lost, nothing hangs."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from child import start_child
from harness import JobSpider, Result, crawl, middleware_of, next_turn, pages, pinned
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider
from scrapy.http import Response
from scrapy.settings import default_settings
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred

from demo.behaviours import Behaviour, Reply, scripted, steady
from demo.origin import Arrival, OriginThread
from scrapy_hostgate import SpiderClosingError

HOST = "127.0.0.2"
OTHER = "127.0.0.3"
A_MINUTE = Reply(429, {"Retry-After": "60"})
# Scrapy 2.14 leaves the file of an empty disk queue open when it resumes a crawl.
resumes = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <_io.FileIO name=.*requests.queue"
    ":pytest.PytestUnraisableExceptionWarning"
)


def always(reply: Reply) -> Behaviour:
    return scripted([], reply)


def served(arrivals: Iterable[Arrival]) -> Counter[str]:
    """How often each page was served."""
    return Counter(arrival.path for arrival in arrivals if arrival.status == 200)


def waiting(host: str, count: int) -> Callable[[Crawler], bool]:
    """The condition that exactly ``count`` requests wait at the gate of ``host``."""

    def condition(crawler: Crawler) -> bool:
        gate = middleware_of(crawler).gates().get(host)
        return gate is not None and gate.waiting == count

    return condition


async def crawl_until(
    when: Callable[[Crawler], bool],
    job: Iterable[Request | str],
    settings: dict[str, Any] | None = None,
    **arguments: Any,
) -> tuple[Result, float]:
    """Run a crawl and stop it, as one Ctrl-C does, as soon as ``when`` holds.

    Gives the crawl and the seconds that the stopping took.
    """
    begun: list[Crawler] = []
    running = Deferred.fromCoroutine(crawl(job, settings, on_start=begun.append, **arguments))
    crawler = begun[0]
    try:
        patience = time.monotonic() + 20
        while crawler.engine is None or not when(crawler):
            assert time.monotonic() < patience, "the moment to stop never came"
            assert not running.called, "the crawl ended before it could be stopped"
            await next_turn(0.02)
    finally:
        asked_at = time.monotonic()
        stopping = deferred_from_coro(crawler.stop_async())
    result = await running
    await stopping
    return result, result.ended - asked_at


# -- pauses --------------------------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_a_spider_that_closes_in_a_long_pause_ends_at_once() -> None:
    """Ten pages behind a pause of a minute, ``CLOSESPIDER_TIMEOUT`` of 2 s: it ends then, nothing
    is sent in the pause and each request handed back is counted (HG-21a)."""
    with OriginThread({HOST: always(A_MINUTE)}) as origin:
        result = await crawl(pages(origin, HOST, 10), {"CLOSESPIDER_TIMEOUT": 2})
        record = origin.record(HOST)
    assert 1 <= len(record.arrivals) <= 2
    assert result.seconds < 7
    assert middleware_of(result.crawler).gates()[HOST].paused_s > 40
    assert result.stats["finish_reason"] == "closespider_timeout"
    assert result.stats["hostgate/handed_back"] == 10


@pytest_twisted.ensureDeferred
async def test_a_short_pause_is_waited_for() -> None:
    """One page, refused for two seconds, and nothing else to do: the spider stays open and gets it
    (HG-21b)."""
    script = scripted([Reply(429, {"Retry-After": "2"})])
    with OriginThread({HOST: script}) as origin:
        result = await crawl(pages(origin, HOST, 1))
        refused, got = origin.record(HOST).arrivals
    assert refused.ended is not None
    assert got.at >= refused.ended + 1.99
    assert got.at <= refused.ended + 4
    assert result.statuses == [200]
    assert result.stats["finish_reason"] == "finished"


# -- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reactor", ["asyncio", "select", "none"])
def test_one_interrupt_in_a_pause_ends_the_crawl_cleanly(reactor: str, tmp_path: Path) -> None:
    """One Ctrl-C while all wait behind a pause of a minute: a clean end, nothing sent (HG-21a), and
    the pause is on record for the next run."""
    if reactor == "none" and not hasattr(default_settings, "TWISTED_REACTOR_ENABLED"):
        pytest.skip("this Scrapy always runs a reactor")
    # Slow to refuse, so that all requests are at the gate by then.
    with OriginThread({HOST: always(Reply(429, {"Retry-After": "60"}, delay=0.5))}) as origin:
        settings = {"JOBDIR": str(tmp_path)}
        child = start_child(pages(origin, HOST, 10), settings, reactor=reactor)
        # Scrapy logs in its signal handler. In the middle of another line Python's log would raise
        # there, and the interrupt would be lost.
        log = child.folder / "log"
        wait_for(
            lambda: "pause 60.0 s" in child.log and time.time() - log.stat().st_mtime > 0.3, child
        )
        interrupted_at = time.monotonic()
        child.process.send_signal(signal.SIGINT)
        result = child.wait(30)
        took = time.monotonic() - interrupted_at
        record = origin.record(HOST)
    assert 1 <= len(record.arrivals) <= 2
    assert took < 20  # the end of a process takes its time on a busy machine
    assert result.returncode == 0, result.log
    assert result.stats["finish_reason"] == "shutdown"
    # The two that were refused may still be on their way back to the gate.
    assert result.stats["hostgate/handed_back"] >= 8
    assert "Unhandled" not in result.log
    _, (host, learnt) = map(json.loads, (tmp_path / "hostgate.jsonl").read_text().splitlines())
    assert host == HOST
    assert 40 < learnt["pacer"]["pause_until"] - time.time() < 60


def test_two_interrupts_end_even_a_download() -> None:
    """Ctrl-C once: what waits is handed back, but the page in flight is waited for. Twice: the
    process ends within three seconds, and nothing more was sent (HG-21c)."""
    with OriginThread({HOST: steady(60)}) as origin:
        child = start_child(pages(origin, HOST, 10), pinned(1))
        wait_for(lambda: origin.record(HOST).overlap == 1, child)
        child.process.send_signal(signal.SIGINT)
        wait_for(lambda: "shutting down gracefully" in child.log, child)
        assert child.process.poll() is None
        interrupted_at = time.monotonic()
        child.process.send_signal(signal.SIGINT)
        child.wait(30)
        took = time.monotonic() - interrupted_at
        record = origin.record(HOST)
    assert [arrival.path for arrival in record.arrivals] == ["/p0"]
    # Three seconds on a machine that has nothing else to do; the page would take sixty.
    assert took < 15


def wait_for(condition: Callable[[], bool], child: Any, timeout_s: float = 30) -> None:
    """Wait for something that a child process does."""
    patience = time.monotonic() + timeout_s
    while not condition():
        assert child.process.poll() is None, child.log
        assert time.monotonic() < patience, child.log
        time.sleep(0.02)


# -- JOBDIR --------------------------------------------------------------------------------------


@resumes
@pytest_twisted.ensureDeferred
async def test_a_second_run_fetches_what_waited_when_the_first_was_closed(tmp_path: Path) -> None:
    """Three pages served, then a pause of 4 s with ten requests behind it. Closing does not wait
    for its end; the second run, begun at once, does, and fetches the rest: no page lost, none
    twice (HG-21a, HG-22)."""
    settings = pinned(1) | {"JOBDIR": str(tmp_path)}
    refusal = Reply(429, {"Retry-After": "4"})
    with OriginThread({HOST: scripted([Reply(), Reply(), Reply(), refusal])}) as origin:
        job = pages(origin, HOST, 13)
        first, _ = await crawl_until(waiting(HOST, 10), job, settings)
        in_first_run = origin.record(HOST).arrivals
        second = await crawl([], settings)
        arrivals = origin.record(HOST).arrivals
    assert [arrival.status for arrival in in_first_run] == [200, 200, 200, 429]
    assert_pause_was_kept(arrivals[3], arrivals[4], 4, first)
    assert served(arrivals) == dict.fromkeys((f"/p{n}" for n in range(13)), 1)
    assert len(arrivals) == 14
    assert sorted(a.url for a in first.answers + second.answers) == sorted(job)
    assert first.stats["hostgate/handed_back"] == 10
    assert_all_on_disk(first)


def assert_pause_was_kept(refused: Arrival, then: Arrival, pause_s: float, first: Result) -> None:
    """The first run ended within the pause, and nothing came from the second before its end."""
    assert refused.ended is not None
    assert first.ended < refused.ended + pause_s
    assert refused.ended + pause_s - 0.01 <= then.at < refused.ended + pause_s + 4


class StoppingSpider(JobSpider):
    """Closes itself after a number of answers."""

    stop_after = 8

    def parse(self, response: Response) -> Any:
        self.note(response)
        if len(self.answers) == self.stop_after:
            raise CloseSpider("enough")


@resumes
@pytest_twisted.ensureDeferred
async def test_a_crawl_of_retries_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    """Thirty pages that each fail first, one of them with a refusal, stopped after eight answers:
    nothing is unpicklable, the second run fetches the others, one at a time (HG-22)."""
    failed: set[str] = set()

    def fail_first(number: int, arrival: Arrival, now: float) -> Reply:
        if arrival.path in failed:
            return Reply(delay=0.02)
        failed.add(arrival.path)
        # A refusal among them, so that a request carries its refusal count into the queue.
        return Reply(503, {"Retry-After": "1"}) if arrival.path == "/p12" else Reply(500)

    settings = pinned(1) | {"JOBDIR": str(tmp_path)}
    with OriginThread({HOST: fail_first}) as origin:
        job = pages(origin, HOST, 30)
        first = await crawl(job, settings, spider=StoppingSpider)
        in_first_run = len(origin.record(HOST).arrivals)
        second = await crawl([], settings)
        record = origin.record(HOST)
    assert record.peak == 1
    assert served(record.arrivals) == dict.fromkeys((f"/p{n}" for n in range(30)), 1)
    assert in_first_run < len(record.arrivals)
    assert sorted(a.url for a in first.answers + second.answers) == sorted(job)
    assert first.failures == second.failures == []
    assert_all_on_disk(first)
    assert_all_on_disk(second)


def assert_all_on_disk(result: Result) -> None:
    """Every request that was ever queued could be pickled."""
    assert "scheduler/unserializable" not in result.stats
    assert "scheduler/enqueued/memory" not in result.stats


@pytest.mark.parametrize(
    "queue", ["scrapy.pqueues.ScrapyPriorityQueue", "scrapy_hostgate.HostGatePriorityQueue"]
)
def test_an_ipv6_address_can_be_kept_in_a_jobdir(queue: str, tmp_path: Path) -> None:
    """``http://[::1]`` with JOBDIR: stopped after the first page, finished by a second run; the
    folder that our queue names after the host is a valid one (HG-22)."""
    settings = pinned(1) | {
        "SCHEDULER_PRIORITY_QUEUE": queue,
        "JOBDIR": str(tmp_path / "job"),
        "DNS_RESOLVER": "scrapy.resolver.CachingHostnameResolver",
    }
    with OriginThread({"::1": steady(0.1)}, hosts=("::1",)) as origin:
        job = pages(origin, "::1", 6)
        (tmp_path / "1").mkdir()
        (tmp_path / "2").mkdir()
        stop = settings | {"CLOSESPIDER_PAGECOUNT": 1}
        first = start_child(job, stop, folder=tmp_path / "1").wait()
        in_first_run = len(origin.record("::1").arrivals)
        second = start_child([], settings, folder=tmp_path / "2").wait()
        record = origin.record("::1")
    assert first.returncode == second.returncode == 0, first.log + second.log
    assert record.peak == 1
    assert in_first_run < 6
    assert served(record.arrivals) == dict.fromkeys((f"/p{n}" for n in range(6)), 1)
    assert sorted(url for url, _ in first.answers + second.answers) == sorted(job)
    assert "scheduler/unserializable" not in first.stats


# -- requests that no scheduler can keep ---------------------------------------------------------


class FilesSpider(JobSpider):
    """Each page is an item with files, which a pipeline downloads."""

    files: list[str]
    items: list[dict[str, Any]]

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Any:
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.items = []
        crawler.signals.connect(spider.scraped, signal=signals.item_scraped)
        return spider

    def parse(self, response: Response) -> Any:
        self.note(response)
        yield {"file_urls": self.files}

    def scraped(self, item: dict[str, Any]) -> None:
        self.items.append(item)


def with_files(folder: Path) -> dict[str, Any]:
    return {
        "ITEM_PIPELINES": {"scrapy.pipelines.files.FilesPipeline": 1},
        "FILES_STORE": str(folder),
    }


@pytest_twisted.ensureDeferred
async def test_files_that_wait_at_a_paused_gate_are_given_up_at_closing(tmp_path: Path) -> None:
    """Six files behind a pause of a minute: closing ends their item without them, within seconds,
    each handed back at most once, and nothing is sent."""
    with OriginThread({HOST: steady(0), OTHER: always(A_MINUTE)}) as origin:
        result, took = await crawl_until(
            waiting(OTHER, 6),
            pages(origin, HOST, 1),
            with_files(tmp_path),
            spider=FilesSpider,
            files=pages(origin, OTHER, 6, "/file"),
        )
        record = origin.record(OTHER)
    assert 1 <= len(record.arrivals) <= 2
    assert took < 8
    assert [item["files"] for item in result.spider.items] == [[]]
    assert result.stats["hostgate/dropped_at_close"] == 6
    assert result.stats["hostgate/handed_back"] <= 6


@pytest_twisted.ensureDeferred
async def test_files_that_wait_at_an_open_gate_still_come_at_closing(tmp_path: Path) -> None:
    """Six files, one at a time, closed while five of them wait: the item is completed."""
    with OriginThread({HOST: steady(0), OTHER: steady(0.2)}) as origin:
        result, took = await crawl_until(
            waiting(OTHER, 5),
            pages(origin, HOST, 1),
            pinned(1) | with_files(tmp_path),
            spider=FilesSpider,
            files=pages(origin, OTHER, 6, "/file"),
        )
        record = origin.record(OTHER)
    assert record.peak == 1
    assert served(record.arrivals) == dict.fromkeys((f"/file{n}" for n in range(6)), 1)
    assert took < 8
    assert [len(item["files"]) for item in result.spider.items] == [6]
    assert "hostgate/dropped_at_close" not in result.stats


class InlineSpider(JobSpider):
    """Each callback downloads another page by itself before it goes on."""

    more: list[str]

    async def parse(self, response: Response) -> None:
        self.note(response)
        request = Request(self.more.pop(), dont_filter=True)
        assert self.crawler.engine is not None
        try:
            self.note(await self.crawler.engine.download_async(request))
        except SpiderClosingError as error:
            self.failures.append((request.url, error))


@pytest_twisted.ensureDeferred
async def test_a_callback_that_waits_at_a_paused_gate_gets_an_error_at_closing() -> None:
    """``engine.download_async`` in four callbacks, behind a pause of a minute: each raises
    ``SpiderClosingError`` within seconds, and nothing is sent."""
    with OriginThread({HOST: steady(0), OTHER: always(A_MINUTE)}) as origin:
        result, took = await crawl_until(
            waiting(OTHER, 4),
            pages(origin, HOST, 4),
            spider=InlineSpider,
            more=pages(origin, OTHER, 4, "/more"),
        )
        record = origin.record(OTHER)
    assert 1 <= len(record.arrivals) <= 2
    assert took < 8
    assert len(result.failures) == 4
    assert all(isinstance(error, SpiderClosingError) for _, error in result.failures)
    assert HOST not in str(result.failures[0][1])
    assert OTHER in str(result.failures[0][1])
    assert result.stats["hostgate/dropped_at_close"] == 4
    assert result.stats["hostgate/handed_back"] <= 4


@pytest_twisted.ensureDeferred
async def test_a_callback_that_waits_at_an_open_gate_gets_its_page_at_closing() -> None:
    """``engine.download_async`` in four callbacks, one at a time: all four come."""
    with OriginThread({HOST: steady(0), OTHER: steady(0.3)}) as origin:
        result, took = await crawl_until(
            waiting(OTHER, 3),
            pages(origin, HOST, 4),
            pinned(1),
            spider=InlineSpider,
            more=pages(origin, OTHER, 4, "/more"),
        )
        record = origin.record(OTHER)
    assert record.peak == 1
    assert served(record.arrivals) == dict.fromkeys((f"/more{n}" for n in range(4)), 1)
    assert took < 8
    assert result.failures == []
    assert result.statuses == [200] * 8


@resumes
@pytest_twisted.ensureDeferred
async def test_pages_that_wait_for_a_paused_robots_txt_are_kept_at_closing(tmp_path: Path) -> None:
    """robots.txt is refused for 7 s and five pages wait for it: closing sends nothing and does not
    wait, and a second run asks for robots.txt, after the pause, and all five (HG-16, HG-21a)."""
    settings = pinned(1) | {"JOBDIR": str(tmp_path), "ROBOTSTXT_OBEY": True}
    # Longer than the 5 s for which closing waits for what no scheduler keeps.
    with OriginThread({HOST: scripted([Reply(429, {"Retry-After": "7"})])}) as origin:
        job = pages(origin, HOST, 5)

        def all_are_in(crawler: Crawler) -> bool:
            assert crawler.stats is not None
            enqueued = crawler.stats.get_value("scheduler/enqueued", 0)
            return waiting(HOST, 1)(crawler) and enqueued >= len(job)

        first, _ = await crawl_until(all_are_in, job, settings)
        in_first_run = [arrival.path for arrival in origin.record(HOST).arrivals]
        second = await crawl([], settings)
        arrivals = origin.record(HOST).arrivals
    paths = [arrival.path for arrival in arrivals]
    assert in_first_run == ["/robots.txt"]
    assert_pause_was_kept(arrivals[0], arrivals[1], 7, first)
    assert paths[1] == "/robots.txt"
    assert sorted(paths[2:]) == [f"/p{n}" for n in range(5)]
    assert first.answers == []
    assert sorted(answer.url for answer in second.answers) == sorted(job)
    assert_all_on_disk(first)
