"""Living inside Scrapy: what the rest of a project sees and does, in real crawls."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from harness import (
    TOLERANCE_S,
    JobSpider,
    assert_spaced,
    crawl,
    middleware_of,
    pages,
    pinned,
)
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.engine import format_engine_status
from twisted.internet.defer import Deferred, gatherResults

from demo.behaviours import Reply, scripted, steady
from demo.origin import Arrival, Origin, OriginThread
from scrapy_hostgate import HostGateMiddleware, HostGateSettingsError

HOST = "127.0.0.2"
OTHER = "127.0.0.3"
STOCK: dict[str, Any] = {"DOWNLOADER_MIDDLEWARES": {}}
NO_JITTER = {"DOWNLOAD_DELAY_JITTER": 0}
SLOT_SIGNALS = {
    "reached": signals.request_reached_downloader,
    "downloaded": signals.response_downloaded,
    "left": signals.request_left_downloader,
}


def overlap(arrivals: Iterable[Arrival]) -> int:
    """The most of these arrivals that were in flight at one time."""
    arrivals = list(arrivals)
    return max(
        sum(a.at <= moment.at and (a.ended is None or a.ended > moment.at) for a in arrivals)
        for moment in arrivals
    )


def connect(crawler: Crawler, receiver: Any, signal: object) -> None:
    """Connect a function that nothing else keeps alive."""
    crawler.signals.connect(receiver, signal=signal, weak=False)


# -- who goes next -------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2])
@pytest_twisted.ensureDeferred
async def test_a_newcomer_never_overtakes_who_waits(limit: int) -> None:
    """A request made at the very moment a slot is given back waits behind the others (HG-12)."""
    newcomers: list[Deferred[Response]] = []

    def meet(crawler: Crawler) -> None:
        def ask_for_more(request: Request) -> None:
            if len(newcomers) < 3 and "/p" in request.url:
                more = Request(request.url.replace("/p", "/newcomer"), dont_filter=True)
                assert crawler.engine is not None
                newcomers.append(deferred_from_coro(crawler.engine.download_async(more)))

        connect(crawler, ask_for_more, signals.request_left_downloader)

    with OriginThread({HOST: steady(0.1)}) as origin:
        await crawl(pages(origin, HOST, 8), pinned(limit), on_start=meet)
        record = origin.record(HOST)
    assert record.peak == limit
    paths = [arrival.path for arrival in record.arrivals]
    assert len(paths) == 11
    if limit == 1:
        assert [path[:2] for path in paths] == ["/p"] * 8 + ["/n"] * 3
    assert [(await newcomer).status for newcomer in newcomers] == [200, 200, 200]


class UrgentSpider(JobSpider):
    """Asks for an urgent page as soon as the first one has come."""

    urgent: Request

    def parse(self, response: Response) -> Any:
        self.note(response)
        if len(self.answers) == 1:
            self.urgent_asked_at = time.monotonic()
            yield self.ask(self.urgent)


@pytest_twisted.ensureDeferred
async def test_an_urgent_request_is_among_the_next_two_departures() -> None:
    """Six ordinary pages, then an urgent one: it does not wait for them, they keep their order
    (HG-15)."""
    with OriginThread({HOST: steady(0.3)}) as origin:
        urgent = Request(origin.url(HOST, "/urgent"), priority=100)
        result = await crawl(pages(origin, HOST, 6), pinned(1), spider=UrgentSpider, urgent=urgent)
        arrivals = origin.record(HOST).arrivals
    later = [a.path for a in arrivals if a.at > result.spider.urgent_asked_at]
    assert "/urgent" in later[:2]
    assert [a.path for a in arrivals if a.path != "/urgent"] == [f"/p{n}" for n in range(6)]


# -- robots.txt and files, which no scheduler sees -----------------------------------------------


@pytest_twisted.ensureDeferred
async def test_robots_txt_comes_first_and_is_gated_like_a_page() -> None:
    """Limit one, two departures a second: robots.txt, then three pages, each half a second after
    the one before: no deadlock, and robots.txt spends a token too (HG-16a)."""
    settings = pinned(1) | {"ROBOTSTXT_OBEY": True, "HOSTGATE_HOSTS": {HOST: {"rate": 2}}}
    with OriginThread({HOST: steady(0.05)}) as origin:
        result = await crawl(pages(origin, HOST, 3), settings)
        record = origin.record(HOST)
    first, *others = [a.path for a in record.arrivals]
    assert first == "/robots.txt"
    # Which of those that waited for it Scrapy wakes first depends on the reactor.
    assert sorted(others) == ["/p0", "/p1", "/p2"]
    assert record.peak == 1
    assert_spaced(result, record, 0.5)
    assert result.seconds < 5
    assert result.stats["hostgate/departures"] == 4


@pytest_twisted.ensureDeferred
async def test_a_refused_robots_txt_is_the_hosts_refusal() -> None:
    """robots.txt answered 503 with Retry-After 1: nothing departs in that second, then it is asked
    for again and the pages follow one at a time (HG-16a)."""
    refusal = Reply(503, {"Retry-After": "1"})
    with OriginThread({HOST: scripted([refusal], Reply(delay=0.1))}) as origin:
        result = await crawl(pages(origin, HOST, 3), {"ROBOTSTXT_OBEY": True})
        record = origin.record(HOST)
    paths = [a.path for a in record.arrivals]
    assert paths[:2] == ["/robots.txt", "/robots.txt"]
    assert sorted(paths[2:]) == ["/p0", "/p1", "/p2"]
    assert record.peak == 1
    assert record.arrivals[0].ended is not None
    assert record.arrivals[1].at >= record.arrivals[0].ended + 0.99
    assert result.stats["hostgate/refusals"] == 1
    assert result.manager.registry.gate(HOST).limit == 1


class FilesSpider(JobSpider):
    """Each page is an item with the same files."""

    files: list[str]

    def parse(self, response: Response) -> Any:
        self.note(response)
        yield {"file_urls": self.files}


def with_files(folder: Path) -> dict[str, Any]:
    return {
        "ITEM_PIPELINES": {"scrapy.pipelines.files.FilesPipeline": 1},
        "FILES_STORE": str(folder),
    }


def stored(folder: Path) -> int:
    """How many files the pipeline has stored."""
    return len(list(folder.glob("full/*")))


@pytest_twisted.ensureDeferred
async def test_the_files_of_a_page_go_through_the_gate_of_their_host(tmp_path: Path) -> None:
    """Twelve files on another host, fetched by a pipeline: two at a time, all stored (HG-16b)."""
    with OriginThread({HOST: steady(0), OTHER: steady(0.3)}) as origin:
        files = pages(origin, OTHER, 12, "/file")
        await crawl(pages(origin, HOST, 1), with_files(tmp_path), spider=FilesSpider, files=files)
        record = origin.record(OTHER)
    assert record.peak == 2
    assert len(record.arrivals) == len(record.pages()) == 12
    assert stored(tmp_path) == 12


@pytest_twisted.ensureDeferred
async def test_a_refused_file_stops_the_files_and_is_fetched_after_all(tmp_path: Path) -> None:
    """The third file is answered 429 with Retry-After 2: no file departs in those two seconds, and
    twelve are stored in the end (HG-16c)."""
    served = Reply(delay=0.05)
    script = scripted([served, served, Reply(429, {"Retry-After": "2"})], served)
    with OriginThread({HOST: steady(0), OTHER: script}) as origin:
        files = pages(origin, OTHER, 12, "/file")
        result = await crawl(
            pages(origin, HOST, 1),
            # One at a time, so that nothing can depart before the refusal is known.
            pinned(1) | with_files(tmp_path),
            spider=FilesSpider,
            files=files,
        )
        record = origin.record(OTHER)
    assert record.refusals == 1
    refused_at = record.first_refusal_at
    assert refused_at is not None
    assert record.arrivals_between(refused_at, refused_at + 1.99) == []
    assert len(record.pages()) == 12
    assert stored(tmp_path) == 12
    assert result.stats["hostgate/refusals"] == 1


# -- one request at a time -----------------------------------------------------------------------


class SerialSpider(JobSpider):
    """Asks for the next page only when it has the one before."""

    rest: list[str]

    def parse(self, response: Response) -> Any:
        self.note(response)
        if self.rest:
            yield self.ask(self.rest.pop(0))


@pytest_twisted.ensureDeferred
async def test_a_serial_crawl_is_not_forgotten_between_its_requests() -> None:
    """With one request at a time the host still is spaced, stays at one after its refusal, and
    every page served is one sample more (HG-18)."""
    limits: list[int] = []
    samples: list[int] = []

    def watch(crawler: Crawler) -> None:
        def reached(request: Request) -> None:
            gate = middleware_of(crawler)._manager.registry.gate(HOST)
            limits.append(gate.limit)
            samples.append(gate.controller.samples)

        connect(crawler, reached, signals.request_reached_downloader)

    settings = {"HOSTGATE_HOSTS": {HOST: {"rate": 5}}}
    with OriginThread({HOST: scripted([Reply(429)], Reply(delay=0.02))}) as origin:
        first, *rest = pages(origin, HOST, 8)
        result = await crawl([first], settings, spider=SerialSpider, rest=rest, on_start=watch)
        record = origin.record(HOST)
    assert result.statuses == [200] * 8
    assert len(record.arrivals) == 9
    assert record.arrivals[1].at >= record.arrivals[0].at + 0.8  # the backoff: 1 s ± 20 %
    assert_spaced(result, record, 0.4, skip=1)  # twice the interval that was refused
    assert limits == [2] + [1] * 8
    assert samples == [0, 0, *range(1, 8)]


# -- two crawls in one process -------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_two_crawls_in_one_process_share_nothing() -> None:
    """Each obeys its own settings and counts its own stats; the end of one does not disturb the
    other, and a third crawl afterwards works as well (HG-23)."""
    slow = pinned(1) | {"HOSTGATE_HOSTS": {HOST: {"rate": 2}}}
    with OriginThread({HOST: steady(0.1)}) as origin:
        a, b = await gatherResults(
            [
                Deferred.fromCoroutine(crawl(pages(origin, HOST, 5, "/a"), slow)),
                Deferred.fromCoroutine(crawl(pages(origin, HOST, 60, "/b"))),
            ]
        )
        record = origin.record(HOST)
        third = await crawl(pages(origin, HOST, 4, "/c"))
        all_arrivals = origin.record(HOST).arrivals
    of_a = [arrival for arrival in record.arrivals if arrival.path.startswith("/a")]
    of_b = [arrival for arrival in record.arrivals if arrival.path.startswith("/b")]
    assert (len(of_a), len(of_b)) == (5, 60)
    assert_spaced(a, replace(record, arrivals=of_a), 0.5)
    assert overlap(of_b) == 2
    assert a.ended < b.ended
    assert (a.statuses, b.statuses) == ([200] * 5, [200] * 60)
    assert (a.stats["hostgate/departures"], b.stats["hostgate/departures"]) == (5, 60)
    assert overlap(all_arrivals[65:]) == 2
    assert third.stats["hostgate/departures"] == 4


# -- engine.downloader.slots ---------------------------------------------------------------------


class SlotTuner:
    """An extension as users write them: on each response it sets something of the slot."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        crawler.signals.connect(self.downloaded, signal=signals.response_downloaded)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> SlotTuner:
        return cls(crawler)

    def downloaded(self, request: Request) -> None:
        assert self.crawler.engine is not None
        self.tune(self.crawler.engine.downloader.slots[request.meta["download_slot"]])

    def tune(self, slot: Any) -> None:
        raise NotImplementedError


class Reader(SlotTuner):
    def tune(self, slot: Any) -> None:
        assert slot.delay == 0
        assert slot.active


class Slower(SlotTuner):
    def tune(self, slot: Any) -> None:
        slot.delay = 0.4


class Faster(SlotTuner):
    def tune(self, slot: Any) -> None:
        slot.delay = 0
        slot.concurrency = 16


def with_extension(extension: type) -> dict[str, Any]:
    return {"EXTENSIONS": {extension: 500}}


def errors(log: Iterable[Any]) -> list[str]:
    return [record.getMessage() for record in log if record.levelname in ("ERROR", "CRITICAL")]


@pytest_twisted.ensureDeferred
async def test_a_delay_set_from_outside_spaces_departures() -> None:
    """An extension finds the slot by ``meta["download_slot"]`` and sets its delay, which holds
    from the very next departure on (HG-25a, f)."""
    settings = pinned(1) | NO_JITTER | with_extension(Slower)
    with OriginThread({HOST: steady(0.02)}) as origin:
        result = await crawl(pages(origin, HOST, 5), settings)
        record = origin.record(HOST)
    assert len(record.pages()) == 5
    assert_spaced(result, record, 0.4)
    assert errors(result.log) == []


@pytest_twisted.ensureDeferred
async def test_nothing_set_from_outside_speeds_a_host_up() -> None:
    """Delay 0 and concurrency 16 set on the slot: the project's delay and limit hold (HG-25f)."""
    settings = pinned(2) | NO_JITTER | with_extension(Faster) | {"DOWNLOAD_DELAY": 0.4}
    with OriginThread({HOST: steady(0.6)}) as origin:
        result = await crawl(pages(origin, HOST, 6), settings)
        record = origin.record(HOST)
    assert len(record.pages()) == 6
    assert record.peak == 2
    assert_spaced(result, record, 0.4)
    assert errors(result.log) == []


@pytest_twisted.ensureDeferred
async def test_autothrottle_and_the_gate_both_hold() -> None:
    """AutoThrottle's start delay spaces the first departures, it goes on to tune the slot, and
    there are never more than two in flight (HG-25b, f)."""
    settings = NO_JITTER | {"AUTOTHROTTLE_ENABLED": True, "AUTOTHROTTLE_START_DELAY": 0.6}
    settings |= {"AUTOTHROTTLE_TARGET_CONCURRENCY": 4.0}
    delays: list[float] = []

    def watch(crawler: Crawler) -> None:
        def left() -> None:
            assert crawler.engine is not None
            delays.append(crawler.engine.downloader.slots[HOST].delay)

        connect(crawler, left, signals.request_left_downloader)

    with OriginThread({HOST: steady(0.3)}) as origin:
        result = await crawl(pages(origin, HOST, 12), settings, on_start=watch)
        record = origin.record(HOST)
    assert len(record.pages()) == 12
    assert record.peak <= 2
    first, second, *_ = result.departures_to(HOST)
    assert second - first >= 0.6 - TOLERANCE_S
    assert all(0.075 <= delay <= 0.6 for delay in delays)
    assert delays[-1] < 0.3, "AutoThrottle has brought the delay down"
    assert errors(result.log) == []


class StatusSpider(JobSpider):
    """Takes Scrapy's own status report with every page."""

    def parse(self, response: Response) -> Any:
        self.note(response)
        assert self.crawler.engine is not None
        self.reports = [*getattr(self, "reports", []), format_engine_status(self.crawler.engine)]
        self.slots = [*getattr(self, "slots", []), str(self.crawler.engine.downloader.slots)]


@pytest_twisted.ensureDeferred
async def test_the_engine_status_can_be_read_at_any_time() -> None:
    """The telnet console's ``est()`` reports without a single exception (HG-25c)."""
    with OriginThread({HOST: steady(0.05)}) as origin:
        result = await crawl(pages(origin, HOST, 4), spider=StatusSpider)
    assert len(result.spider.reports) == 4
    assert "len(engine.downloader.active)" in result.spider.reports[0]
    assert not any("exception" in report for report in result.spider.reports)
    assert all(HOST in slots for slots in result.spider.slots)


@pytest_twisted.ensureDeferred
async def test_the_slot_view_tells_who_waits_and_who_is_in_flight() -> None:
    """Seven pages behind a limit of one: what the downloader-aware queue reads of the slot is the
    truth at every response, and the downloader backs out when it is full (HG-25d)."""
    seen: list[tuple[int, int, int, int]] = []
    full: list[bool] = []

    def watch(crawler: Crawler) -> None:
        def downloaded(request: Request) -> None:
            assert crawler.engine is not None
            downloader = crawler.engine.downloader
            slot = downloader.slots[downloader.get_slot_key(request)]
            assert request in slot.active
            assert request in slot.transferring
            counts = (len(slot.active), len(slot.transferring), len(slot.queue))
            seen.append((*counts, slot.concurrency))
            full.append(downloader.needs_backout())

        connect(crawler, downloaded, signals.response_downloaded)

    settings = pinned(1) | {"CONCURRENT_REQUESTS": 7}
    with OriginThread({HOST: steady(0.3)}) as origin:
        result = await crawl(pages(origin, HOST, 7), settings, on_start=watch)
        record = origin.record(HOST)
    assert record.peak == 1
    assert seen == [(left, 1, left - 1, 1) for left in range(7, 0, -1)]
    assert full[0] is True
    assert full[-1] is False
    assert errors(result.log) == []


class CleanUpSpider(SerialSpider):
    """Lets Scrapy clear its slot table after every page, and looks slots up afterwards."""

    def parse(self, response: Response) -> Any:
        assert self.crawler.engine is not None
        downloader = self.crawler.engine.downloader
        downloader._slot_gc(age=0)
        assert response.request is not None
        assert downloader.slots.get(downloader.get_slot_key(response.request)) is None
        assert not downloader.needs_backout()
        yield from super().parse(response)


@pytest_twisted.ensureDeferred
async def test_lookups_work_after_a_clean_up_removed_the_host() -> None:
    """Three hosts in turn, a table of one host, and Scrapy's own slot collector run after each
    page: whoever looks a slot up at a signal finds it (HG-25e)."""
    settings = {"HOSTGATE_MAX_HOSTS": 1} | with_extension(Reader)
    with OriginThread() as origin:
        hosts = [HOST, OTHER, "127.0.0.4"] * 2
        first, *rest = [origin.url(host, f"/{n}") for n, host in enumerate(hosts)]
        result = await crawl([first], settings, spider=CleanUpSpider, rest=rest)
        assert [len(origin.record(host).arrivals) for host in hosts[:3]] == [2, 2, 2]
    assert result.statuses == [200] * 6
    assert errors(result.log) == []


# -- as in a stock crawl -------------------------------------------------------------------------


def awkward_pages(origin: Origin) -> list[str]:
    """A page, a 404, a redirect on the same host, a 500 and a host nobody answers for."""
    return [
        origin.url(HOST, "/page"),
        origin.url(HOST, "/missing?s=404"),
        origin.url(HOST, f"/moved?to={origin.url(HOST, '/new')}"),
        origin.url(HOST, "/broken?s=500"),
        "http://127.0.0.9:1/nobody",
    ]


@pytest_twisted.ensureDeferred
async def test_signals_come_as_in_a_stock_crawl() -> None:
    """The same three signals in the same order, with the same slot in meta, also where a download
    fails."""

    async def signals_of(settings: dict[str, Any], *, clean: bool) -> list[tuple[str, str, Any]]:
        seen: list[tuple[str, str, Any]] = []

        def watch(crawler: Crawler) -> None:
            def note(name: str) -> Any:
                return lambda request: seen.append(
                    (name, request.url, request.meta.get("download_slot"))
                )

            for name, signal in SLOT_SIGNALS.items():
                connect(crawler, note(name), signal)

        one_by_one = {"CONCURRENT_REQUESTS": 1, "RETRY_TIMES": 0, "HOSTGATE_REFUSAL_RETRIES": 0}
        await crawl(awkward_pages(origin), one_by_one | settings, on_start=watch, clean=clean)
        return sorted(seen, key=lambda line: line[1])  # each request's own signals, in order

    with OriginThread() as origin:
        stock = await signals_of(STOCK, clean=False)
        gated = await signals_of({}, clean=True)
    assert [name for name, url, _ in stock if url.endswith("/page")] == list(SLOT_SIGNALS)
    assert [name for name, url, _ in stock if url.endswith("/nobody")] == ["reached", "left"]
    assert gated == stock


@pytest_twisted.ensureDeferred
async def test_meta_of_a_response_is_that_of_a_stock_crawl() -> None:
    """Nothing of ours is left in meta, and only the stamp of the slot is missing."""

    async def metas(settings: dict[str, Any], *, clean: bool) -> dict[str, dict[str, Any]]:
        once = {"RETRY_TIMES": 1, "HTTPERROR_ALLOW_ALL": True}
        result = await crawl(awkward_pages(origin)[:4], once | settings, clean=clean)
        return {answer.url: answer.meta for answer in result.answers}

    with OriginThread() as origin:
        stock = await metas(STOCK, clean=False)
        gated = await metas({}, clean=True)
    assert len(stock) == 4
    for meta in stock.values():
        del meta["download_slot"]
    for meta in [*stock.values(), *gated.values()]:
        assert meta.pop("download_latency") >= 0
    assert gated == stock


@pytest_twisted.ensureDeferred
async def test_meta_of_a_page_that_was_refused_is_clean_again() -> None:
    """Refused twice and then served: no count of ours and no longer retry budget is inherited by
    follow-ups, and the spider's own meta is kept."""
    refusal = Reply(429, {"Retry-After": "1"})
    with OriginThread({HOST: scripted([refusal, refusal])}) as origin:
        request = Request(origin.url(HOST, "/p"), meta={"mine": 7})
        result = await crawl([request])
        assert [a.status for a in origin.record(HOST).arrivals] == [429, 429, 200]
    meta = result.answers[0].meta
    scrapys = {"is_start_request", "depth", "download_timeout", "download_latency"}
    assert set(meta) - scrapys == {"mine"}
    assert meta["mine"] == 7


# -- switching it on, and leaving it out ---------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_the_add_on_works_like_the_line_in_the_middlewares() -> None:
    """``ADDONS`` alone: the same bound, the same run-time API."""
    settings = STOCK | {"ADDONS": {"scrapy_hostgate.HostGateAddon": 500}}
    with OriginThread({HOST: steady(0.1)}) as origin:
        result = await crawl(pages(origin, HOST, 20), settings)
        record = origin.record(HOST)
    assert record.peak == 2
    assert len(record.pages()) == 20
    assert middleware_of(result.crawler).gates()[HOST].departures == 20


@pytest_twisted.ensureDeferred
async def test_a_bypassing_request_meets_no_gate() -> None:
    """``hostgate_bypass``: five at once at a host with limit one, none of them counted."""
    with OriginThread({HOST: steady(0.5)}) as origin:
        job = [Request(url, meta={"hostgate_bypass": True}) for url in pages(origin, HOST, 5)]
        result = await crawl(job, pinned(1))
        record = origin.record(HOST)
    assert record.peak == 5
    assert result.statuses == [200] * 5
    assert middleware_of(result.crawler).gates() == {}
    assert "hostgate/departures" not in result.stats


@pytest_twisted.ensureDeferred
async def test_a_request_that_teaches_nothing_is_gated_all_the_same() -> None:
    """``hostgate_dont_learn``: two at a time, and neither its latency nor its 429 is remembered."""
    with OriginThread({HOST: scripted([Reply(429)], Reply(delay=0.1))}) as origin:
        meta = {"hostgate_dont_learn": True, "dont_retry": True}
        job = [Request(url, meta=dict(meta)) for url in pages(origin, HOST, 8)]
        result = await crawl(job)
        record = origin.record(HOST)
    assert record.peak == 2
    assert record.by_status == {429: 1, 200: 7}
    gate = result.manager.registry.gate(HOST)
    assert (gate.limit, gate.refusals, gate.controller.samples) == (2, 0, 0)
    assert gate.snapshot().paused_s == 0
    assert "hostgate/collapses" not in result.stats


@pytest_twisted.ensureDeferred
async def test_a_request_that_teaches_nothing_announces_no_quota_either() -> None:
    """``hostgate_dont_learn``: what one page says is left of a quota is not heard."""
    spent = Reply(headers={"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "60"})
    with OriginThread({HOST: scripted([], spent)}) as origin:
        meta = {"hostgate_dont_learn": True}
        result = await crawl([Request(url, meta=dict(meta)) for url in pages(origin, HOST, 3)])
    assert result.statuses == [200] * 3
    assert "hostgate/quota_waits" not in result.stats
    assert result.seconds < 30


@pytest_twisted.ensureDeferred
async def test_data_and_file_urls_go_the_stock_way(tmp_path: Path) -> None:
    """They have no host to protect: answered by Scrapy's own slots, no gate is made for them."""
    (tmp_path / "page.html").write_text("from a file")
    job = [Request(f"data:,{n}", dont_filter=True) for n in range(3)]
    job.append(Request((tmp_path / "page.html").as_uri()))
    result = await crawl(job, pinned(1))
    assert result.statuses == [200] * 4
    assert middleware_of(result.crawler).gates() == {}
    assert "hostgate/departures" not in result.stats


@pytest.mark.parametrize("order", ["file after page", "page after file", "together"])
@pytest_twisted.ensureDeferred
async def test_a_file_url_named_like_a_host_does_not_hang(tmp_path: Path, order: str) -> None:
    """Scrapy's queue would find our view of the host's gate under the same slot name, where nobody
    takes requests out: the file and the pages come all the same."""
    (tmp_path / "page.html").write_text("from a file")
    with OriginThread({HOST: steady(0.1)}) as origin:
        page = origin.url(HOST, "/p")
        files = [f"file://{HOST}{tmp_path}/page.html", "data:,x"]
        named = Request(files[1], meta={"download_slot": HOST}, dont_filter=True)
        job: list[Request | str]
        job = [page, files[0], named] if order == "file after page" else [files[0], named, page]
        if order == "together":
            result = await crawl(job)
        else:
            first, *rest = job
            result = await crawl([first], spider=SerialSpider, rest=rest)
        assert len(origin.record(HOST).arrivals) == 1
    assert result.statuses == [200] * 3
    assert result.seconds < 5


# -- the run-time API ----------------------------------------------------------------------------


class SoftBlockSpider(JobSpider):
    """Takes the first page for a captcha and says so."""

    def parse(self, response: Response) -> Any:
        self.note(response)
        if len(self.answers) == 1:
            gate = self.crawler.get_downloader_middleware(HostGateMiddleware)
            assert gate is not None
            assert response.request is not None
            self.refused_at = time.monotonic()
            gate.refuse(response.request, retry_after=1)
            self.snapshot = gate.gates()[HOST]


@pytest_twisted.ensureDeferred
async def test_a_soft_block_told_by_the_spider_acts_like_a_429() -> None:
    """``refuse(request, retry_after=1)``: whatever had not left by then leaves a second later, one
    at a time, and ``gates()`` shows it at once."""
    with OriginThread({HOST: steady(0.2)}) as origin:
        result = await crawl(pages(origin, HOST, 4), pinned(1), spider=SoftBlockSpider)
        arrivals = origin.record(HOST).arrivals
    snapshot = result.spider.snapshot
    later = arrivals[snapshot.departures :]
    assert len(later) >= 1
    assert later[0].at >= result.spider.refused_at + 1
    assert result.statuses == [200] * 4
    assert (snapshot.limit, snapshot.refusals) == (1, 1)
    assert 0.9 <= snapshot.paused_s <= 1
    assert result.stats["hostgate/refusals"] == 1


class ResizeSpider(JobSpider):
    """Lifts the host's limit before the first page and puts it down after the sixth."""

    async def start(self) -> Any:
        gate = self.crawler.get_downloader_middleware(HostGateMiddleware)
        assert gate is not None
        self.gate = gate
        gate.resize(HOST, 4)
        async for request in super().start():
            yield request

    def parse(self, response: Response) -> Any:
        self.note(response)
        if len(self.answers) == 6:
            assert response.request is not None
            self.gate.resize(response.request, 1)
            self.departed = self.gate.gates()[HOST].departures


@pytest_twisted.ensureDeferred
async def test_a_limit_set_by_hand_holds_at_once() -> None:
    """``resize(host, 4)`` lets four fly, ``resize(request, 1)`` drains to one: nothing is
    cancelled, nothing replaced until they are back."""
    with OriginThread({HOST: steady(0.2)}) as origin:
        result = await crawl(pages(origin, HOST, 16), spider=ResizeSpider)
        record = origin.record(HOST)
    assert record.peak == 4
    assert len(record.arrivals) == len(record.pages()) == 16
    later = record.arrivals[result.spider.departed :]
    assert len(later) >= 2
    assert [arrival.in_flight for arrival in later] == [1] * len(later)
    assert middleware_of(result.crawler).gates()[HOST].limit == 1


@pytest_twisted.ensureDeferred
async def test_the_api_refuses_what_makes_no_sense() -> None:
    """A limit outside 1 to the ceiling, a Retry-After that is no wait: ``ValueError``, and nothing
    has changed."""
    with OriginThread() as origin:
        result = await crawl(pages(origin, HOST, 1))
    gate = middleware_of(result.crawler)
    before = gate.gates()
    for limit in (0, 5, -1):
        with pytest.raises(ValueError, match="from 1 to 4"):
            gate.resize(HOST, limit)
    for retry_after in (0, -3, float("nan")):
        with pytest.raises(ValueError, match="more than 0"):
            gate.refuse(HOST, retry_after=retry_after)
    for limit in ("2", True, 1.5):
        with pytest.raises(ValueError, match="whole number"):
            gate.resize(HOST, limit)  # type: ignore[arg-type]
    for host in ("http://a.example/", "a.example:80", "", None):
        with pytest.raises(ValueError, match="host name"):
            gate.refuse(host)  # type: ignore[arg-type]
    assert gate.gates() == before


# -- start-up ------------------------------------------------------------------------------------


class Later:
    """A middleware that would have to see requests."""

    def process_request(self, request: Request) -> None:
        return None


class LaterButHarmless:
    """A middleware that only looks at responses, which it does wherever it stands."""

    seen = 0

    def process_response(self, request: Request, response: Response) -> Response:
        type(self).seen += 1
        return response


@pytest_twisted.ensureDeferred
async def test_a_middleware_behind_the_gate_is_refused_at_start() -> None:
    """Its ``process_request`` would never run: the error names it, its number and the way out."""
    middlewares = {
        "scrapy_hostgate.HostGateMiddleware": 543,
        "test_crawl_scrapy.Later": 1001,
        "scrapy.downloadermiddlewares.httpcache.HttpCacheMiddleware": None,
    }
    with OriginThread() as origin, pytest.raises(HostGateSettingsError) as told:
        await crawl(pages(origin, HOST, 1), {"DOWNLOADER_MIDDLEWARES": middlewares})
    assert origin.records() == {}
    text = str(told.value)
    assert text.startswith("HostGateMiddleware has the number 543 in DOWNLOADER_MIDDLEWARES")
    assert "test_crawl_scrapy.Later (1001)" in text
    assert "scrapy.downloadermiddlewares.retry.RetryMiddleware" not in text  # no process_request
    assert "scrapy.downloadermiddlewares.httpproxy.HttpProxyMiddleware (750)" in text
    assert "HttpCacheMiddleware" not in text  # switched off
    assert "must have the highest of all, 1000 by default: it downloads by itself" in text


@pytest_twisted.ensureDeferred
async def test_the_error_of_one_middleware_behind_is_exactly_this() -> None:
    """One middleware stands behind, at its place by import path."""
    middlewares = {
        "scrapy_hostgate.HostGateMiddleware": 1000,
        "test_crawl_scrapy.Later": 1100,
        "test_crawl_scrapy.LaterButHarmless": 1200,
    }
    with pytest.raises(HostGateSettingsError) as told:
        await crawl([], {"DOWNLOADER_MIDDLEWARES": middlewares})
    assert str(told.value) == (
        "HostGateMiddleware has the number 1000 in DOWNLOADER_MIDDLEWARES, but must have the "
        "highest of all, 1000 by default: it downloads by itself, so the process_request of what "
        "stands behind it would never be called. Give it a higher number, or give what stands "
        "behind it a lower one or None. Behind it: test_crawl_scrapy.Later (1100)."
    )


@pytest_twisted.ensureDeferred
async def test_the_middleware_and_the_add_on_say_where_they_belong() -> None:
    """Put in the wrong setting they would guard nothing: the start is refused instead."""
    for settings, words in (
        (
            {"DOWNLOADER_MIDDLEWARES": {"scrapy_hostgate.HostGateAddon": 1000}},
            "HostGateAddon is in DOWNLOADER_MIDDLEWARES, but belongs in ADDONS",
        ),
        (
            {
                "DOWNLOADER_MIDDLEWARES": {},
                "SPIDER_MIDDLEWARES": {"scrapy_hostgate.HostGateMiddleware": 1000},
            },
            "HostGateMiddleware is not in DOWNLOADER_MIDDLEWARES, and works only there",
        ),
    ):
        with pytest.raises(HostGateSettingsError, match=words):
            await crawl([], settings)


@pytest_twisted.ensureDeferred
async def test_a_middleware_behind_without_process_request_is_welcome() -> None:
    """It sees every response, as anywhere else."""
    LaterButHarmless.seen = 0
    middlewares = {"scrapy_hostgate.HostGateMiddleware": 1000, LaterButHarmless: 1100}
    with OriginThread() as origin:
        result = await crawl(pages(origin, HOST, 3), {"DOWNLOADER_MIDDLEWARES": middlewares})
    assert result.statuses == [200] * 3
    assert LaterButHarmless.seen == 3


PROJECT = """
BOT_NAME = "broken"
SPIDER_MODULES = ["broken"]
TELNETCONSOLE_ENABLED = False
DOWNLOADER_MIDDLEWARES = {"scrapy_hostgate.HostGateMiddleware": 1000}
"""
SPIDER = """
from scrapy import Spider

class BrokenSpider(Spider):
    name = "broken"
    start_urls = ["data:,started"]

    def parse(self, response):
        self.logger.info("the crawl has started")
"""
# What is wrong in the project's settings, and what the one line must say.
MISTAKES = {
    "HOSTGATE_CONCURENCY = 2": "HOSTGATE_CONCURENCY is not a setting of scrapy_hostgate "
    "(did you mean HOSTGATE_CONCURRENCY?)",
    "HOSTGATE_MAX_CONCURRENCY = 8": "HOSTGATE_MAX_CONCURRENCY is 8, but must be at most 4, or more "
    "with HOSTGATE_REASON",
    "HOSTGATE_HOSTS = {'a.example': {'max_concurrency': 8}}": "HOSTGATE_HOSTS['a.example']"
    "['max_concurrency'] is 8, but must be at most the project's 4, or more with a \"reason\"",
    "DOWNLOADER_MIDDLEWARES['broken_middleware.Later'] = 1100": "Behind it: "
    "broken_middleware.Later (1100)",
}


def test_scrapy_crawl_fails_visibly_on_every_start_up_error(tmp_path: Path) -> None:
    """Each mistake ends ``scrapy crawl`` with a code that is not 0 and its message in the log;
    nothing is crawled. Without a mistake the same project runs."""
    running: dict[str, subprocess.Popen[str]] = {}
    for number, mistake in enumerate(["", *MISTAKES]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "scrapy.cfg").write_text("[settings]\ndefault = broken_settings\n")
        (folder / "broken_settings.py").write_text(PROJECT + mistake + "\n")
        (folder / "broken.py").write_text(SPIDER)
        (folder / "broken_middleware.py").write_text(
            "class Later:\n    def process_request(self, request): return None\n"
        )
        running[mistake] = subprocess.Popen(
            [sys.executable, "-m", "scrapy", "crawl", "broken"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    logs = {mistake: process.communicate(timeout=60)[1] for mistake, process in running.items()}
    assert running[""].returncode == 0, logs[""]
    assert "the crawl has started" in logs[""]
    for mistake, message in MISTAKES.items():
        assert message in logs[mistake], mistake
        assert "the crawl has started" not in logs[mistake]
    codes = {mistake: running[mistake].returncode for mistake in MISTAKES}
    assert [mistake for mistake, code in codes.items() if code == 0] == []
