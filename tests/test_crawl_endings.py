"""However a download ends, its slot comes back and nothing wrong is learnt from it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from harness import (
    JobSpider,
    Result,
    assert_spaced,
    asyncio_only,
    crawl,
    middleware_of,
    pages,
    pinned,
)
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import StopDownload
from scrapy.http import Response

from demo.behaviours import Reply, page, scripted, steady
from demo.origin import Arrival, HostRecord, Origin, OriginThread
from scrapy_hostgate import GateSnapshot, HostGateMiddleware, HostGateSettingsError
from scrapy_hostgate import controller as law

HOST = "127.0.0.2"
# One at a time, so that a single slot that is not given back stops everything.
ONE_AT_A_TIME: dict[str, Any] = {
    **pinned(1),
    "RETRY_ENABLED": False,
    "HTTPERROR_ALLOW_ALL": True,
    "DNS_TIMEOUT": 1,
}


def gate_of(result: Result, key: str = HOST) -> GateSnapshot:
    """What the product says of a host, after the crawl."""
    return middleware_of(result.crawler).gates()[key]


def learnt(result: Result, key: str = HOST) -> int:
    """How many latencies were learnt of a host, and those lost only because this process lagged.

    The latter are counted for all hosts together, so no other may have been served.
    """
    gate = result.manager.registry.get(key)
    assert gate is not None
    spoiled = result.stats.get("hostgate/samples_spoiled_by_loop_lag", 0)
    return gate.controller.samples + int(spoiled)


async def six_bad_then_three_good(
    bad: Callable[[int], Request],
    good: list[Request],
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> Result:
    """Crawl the bad requests, then the good ones, one at a time; all the good are answered."""
    first = [bad(number).replace(priority=1, dont_filter=True) for number in range(6)]
    result = await crawl([*first, *good], {**ONE_AT_A_TIME, **(settings or {})}, **options)
    answered = [answer.url for answer in result.answers if answer.status == 200]
    assert {request.url for request in good} <= set(answered)
    assert result.seconds < 10
    assert result.stats["finish_reason"] == "finished"
    return result


def good_ones(origin: Origin, host: str = HOST) -> list[Request]:
    return [Request(url) for url in pages(origin, host, 3, "/good")]


def errors(result: Result) -> list[str]:
    """The names of the errors that reached the errback. Some were renamed between releases."""
    return [type(error).__name__ for _, error in result.failures]


def assert_six(result: Result, *names: str) -> None:
    """All six errbacks were called, with an error of one of these names."""
    assert len(result.failures) == 6
    assert set(errors(result)) <= set(names)


# -- eleven ways for a download to end badly ------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_a_host_name_that_does_not_resolve() -> None:
    """No such name: six errors, nothing learnt, the limit stays, other hosts go on (HG-09.1)."""
    with OriginThread() as origin:
        result = await six_bad_then_three_good(
            lambda number: Request(f"http://nope.invalid/{number}"), good_ones(origin)
        )
        assert set(origin.records()) == {HOST}
    assert_six(result, "DNSLookupError", "CannotResolveHostError")
    assert learnt(result) == 3
    gate = gate_of(result, "nope.invalid")
    assert (gate.departures, gate.in_flight, gate.refusals) == (6, 0, 0)
    assert gate.median_s is None
    assert "hostgate/collapses" not in result.stats


@pytest_twisted.ensureDeferred
async def test_a_connection_that_is_refused() -> None:
    """Nothing listens: a refusal of the host each time, and no latency of it is learnt (HG-09.2).

    The backoff between them would take a minute, so its pauses are cut short.
    """
    with OriginThread() as origin:
        result = await six_bad_then_three_good(
            lambda number: Request(f"http://{HOST}:1/{number}"),
            good_ones(origin),
            {"HOSTGATE_MAX_PAUSE": 0.1},
        )
        record = origin.record(HOST)
    assert (record.peak, len(record.arrivals)) == (1, 3)
    assert_six(result, "ConnectionRefusedError", "DownloadConnectionRefusedError")
    assert gate_of(result).refusals == 6
    assert learnt(result) == 3


@pytest_twisted.ensureDeferred
async def test_a_url_that_scrapy_cannot_send() -> None:
    """Credentials in the URL fail before connecting: no connection, nothing learnt (HG-09.3)."""
    with OriginThread() as origin:
        result = await six_bad_then_three_good(
            lambda number: Request(f"http://user:pw@localhost:{origin.port}/{number}"),
            good_ones(origin, "localhost"),
        )
        record = origin.record("localhost")
    assert (record.peak, len(record.arrivals)) == (1, 3)
    assert_six(result, "ValueError")
    assert learnt(result, "localhost") == 3
    assert gate_of(result, "localhost").refusals == 0


@pytest_twisted.ensureDeferred
async def test_a_scheme_without_a_handler() -> None:
    """foo:// goes Scrapy's own way and fails there; no gate is made for it (HG-09.4)."""
    with OriginThread() as origin:
        result = await six_bad_then_three_good(
            lambda number: Request(f"foo://x/{number}"), good_ones(origin)
        )
        assert len(origin.record(HOST).arrivals) == 3
    assert_six(result, "NotSupported")
    assert set(middleware_of(result.crawler).gates()) == {HOST}
    assert learnt(result) == 3


@pytest.mark.parametrize("end", ["close", "reset", "garbage"])
@pytest_twisted.ensureDeferred
async def test_a_host_that_hangs_up_before_the_headers(end: str) -> None:
    """Closed, reset or answered with noise: one at a time, nothing learnt (HG-09.5)."""
    with OriginThread() as origin:
        result = await six_bad_then_three_good(
            lambda number: Request(origin.url(HOST, f"/bad{number}?d=20&end={end}")),
            good_ones(origin),
        )
        record = origin.record(HOST)
    assert (record.peak, len(record.arrivals)) == (1, 9)
    assert_six(
        result,
        *("ResponseNeverReceived", "ConnectionLost", "ResponseFailed", "ParseError"),
        *("DownloadFailedError", "_WrapperException"),
    )
    assert learnt(result) == 3
    assert gate_of(result).refusals == 0


@pytest_twisted.ensureDeferred
async def test_a_host_that_hangs_up_in_the_middle_of_the_body() -> None:
    """Half a page is a lost connection, not a served one (HG-09.6)."""
    with OriginThread() as origin:
        result = await six_bad_then_three_good(
            lambda number: Request(origin.url(HOST, f"/bad{number}?n=4000&end=mid")),
            good_ones(origin),
        )
        record = origin.record(HOST)
    assert (record.peak, len(record.arrivals)) == (1, 9)
    assert_six(result, "ResponseFailed", "DownloadFailedError", "ResponseDataLossError")
    assert learnt(result) == 3


def without_length(number: int, arrival: Arrival, now: float) -> Reply | None:
    """A page of 0.5 s whose size is known only at its end."""
    headers = {"Content-Length": None, "Connection": "close"}
    bad = arrival.path.startswith("/bad")
    return Reply(headers=headers, body=page(5000), body_time=0.5) if bad else None


@pytest.mark.parametrize("told", [True, False], ids=["told by the header", "found by counting"])
@pytest_twisted.ensureDeferred
async def test_a_page_that_is_too_large(told: bool) -> None:
    """Broken off for DOWNLOAD_MAXSIZE: the host sees us leave before the next comes (HG-09.7)."""
    with OriginThread({} if told else {HOST: without_length}) as origin:
        result = await six_bad_then_three_good(
            lambda number: Request(origin.url(HOST, f"/bad{number}?n=5000&bd=5000")),
            good_ones(origin),
            {"DOWNLOAD_MAXSIZE": 2000},
        )
        record = origin.record(HOST)
    assert (record.peak, len(record.arrivals)) == (1, 9)
    assert [arrival.completed for arrival in record.arrivals] == [False] * 6 + [True] * 3
    assert_six(result, "CancelledError", "DownloadCancelledError")
    assert learnt(result) == 3
    assert gate_of(result).refusals == 0


def stop_bad_ones(signal: object, fail: bool) -> Callable[[Crawler], None]:
    def stop(request: Request) -> None:
        if "/bad" in request.url:
            raise StopDownload(fail=fail)

    def connect(crawler: Crawler) -> None:
        crawler.signals.connect(stop, signal=signal, weak=False)

    return connect


STOPS = [signals.headers_received, signals.bytes_received]


@pytest.mark.parametrize("signal", STOPS, ids=["at the headers", "at the body"])
@pytest_twisted.ensureDeferred
async def test_a_download_that_the_user_stops_and_fails(signal: object) -> None:
    """StopDownload(fail=True): six errbacks, and the host is not judged by them (HG-09.8)."""
    with OriginThread() as origin:
        result = await six_bad_then_three_good(
            lambda number: Request(origin.url(HOST, f"/bad{number}?n=5000&bd=5000")),
            good_ones(origin),
            on_start=stop_bad_ones(signal, fail=True),
        )
        record = origin.record(HOST)
    assert (record.peak, len(record.arrivals)) == (1, 9)
    assert_six(result, "StopDownload")
    assert learnt(result) == 3


@pytest.mark.parametrize("signal", STOPS, ids=["at the headers", "at the body"])
@pytest_twisted.ensureDeferred
async def test_a_download_that_the_user_stops_and_keeps(signal: object) -> None:
    """StopDownload(fail=False): six callbacks with what there is, nothing learnt (HG-09.8)."""
    with OriginThread() as origin:
        result = await six_bad_then_three_good(
            lambda number: Request(origin.url(HOST, f"/bad{number}?n=5000&bd=5000")),
            good_ones(origin),
            on_start=stop_bad_ones(signal, fail=False),
        )
        record = origin.record(HOST)
    assert (record.peak, len(record.arrivals)) == (1, 9)
    assert result.failures == []
    stopped = [answer for answer in result.answers if "download_stopped" in answer.flags]
    assert len(stopped) == 6
    assert all("/bad" in answer.url for answer in stopped)
    assert learnt(result) == 3


@pytest.mark.parametrize("fail", [True, False])
@pytest_twisted.ensureDeferred
async def test_a_refusal_that_the_user_stops_holds_the_host_as_long_as_it_asks(fail: bool) -> None:
    """Its headers had come before StopDownload: the pause is the Retry-After, not a backoff."""
    refusal = Reply(429, {"Retry-After": "2"})
    with OriginThread({HOST: scripted([refusal], Reply())}) as origin:
        result = await crawl(
            [
                Request(origin.url(HOST, "/bad"), meta={"dont_retry": True}),
                origin.url(HOST, "/good"),
            ],
            {**pinned(1), "HTTPERROR_ALLOW_ALL": True},
            on_start=stop_bad_ones(signals.headers_received, fail),
        )
        first, second = [arrival.at for arrival in origin.record(HOST).arrivals]
    assert second - first >= 1.9
    assert result.stats["hostgate/refusals"] == 1
    assert len(result.failures) == fail
    assert [answer.status for answer in result.answers] == ([200] if fail else [429, 200])


@pytest_twisted.ensureDeferred
async def test_a_download_that_times_out() -> None:
    """Six time-outs of 0.4 s are no fast samples, and for those that wait 2.4 s at the gate a
    DOWNLOAD_TIMEOUT of 1 s has not begun (HG-09.9)."""
    with OriginThread() as origin:
        result = await six_bad_then_three_good(
            lambda number: Request(
                origin.url(HOST, f"/bad{number}?d=5000"), meta={"download_timeout": 0.4}
            ),
            good_ones(origin),
            {"DOWNLOAD_TIMEOUT": 1},
        )
        record = origin.record(HOST)
    assert record.peak == 1
    assert record.pages() == {"/good0", "/good1", "/good2"}
    assert_six(result, "TimeoutError", "DownloadTimeoutError")
    assert learnt(result) == 3


class RaisesAtResponses:
    def process_response(self, request: Request, response: Response) -> Response:
        if "/bad" in request.url:
            raise LookupError("a middleware's own mistake")
        return response


@pytest_twisted.ensureDeferred
async def test_a_middleware_that_raises_at_the_response() -> None:
    """The download was over: its slot is back, and the host did serve all nine (HG-09.10)."""
    middlewares = {"scrapy_hostgate.HostGateMiddleware": 1000, RaisesAtResponses: 800}
    with OriginThread() as origin:
        result = await six_bad_then_three_good(
            lambda number: Request(origin.url(HOST, f"/bad{number}")),
            good_ones(origin),
            {"DOWNLOADER_MIDDLEWARES": middlewares},
        )
        record = origin.record(HOST)
    assert (record.peak, record.by_status) == (1, {200: 9})
    assert_six(result, "LookupError")
    assert learnt(result) == 9


@pytest_twisted.ensureDeferred
async def test_a_proxy_that_refuses_to_connect() -> None:
    """A 503 to CONNECT is the proxy's word: the target host does not collapse (HG-09.11)."""
    with OriginThread() as origin:
        proxy = {"proxy": origin.url("127.0.0.50")}
        good = [Request(f"http://shop.example/good{number}", meta=proxy) for number in range(3)]
        result = await six_bad_then_three_good(
            lambda number: Request(f"https://shop.example/{number}", meta=dict(proxy)), good
        )
        tunnels, record = origin.connects("shop.example"), origin.record("shop.example")
    assert (tunnels.peak, tunnels.by_status) == (1, {503: 6})
    assert record.by_status == {200: 3}
    assert_six(result, "TunnelError")
    assert gate_of(result, "shop.example").refusals == 0
    assert "hostgate/collapses" not in result.stats
    assert learnt(result, "shop.example") == 3


# -- cancelled, closed, interrupted ---------------------------------------------------------------


class ScriptSpider(JobSpider):
    """Runs a script of its own before it asks for anything."""

    def __init__(self, script: Callable[[ScriptSpider], Awaitable[None]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.script = script

    async def start(self) -> Any:
        await self.script(self)
        async for request in super().start():
            yield request

    @property
    def middleware(self) -> HostGateMiddleware:
        return middleware_of(self.crawler)

    def task(self, request: Request) -> asyncio.Task[Any]:
        """A download of the spider's own, as ``engine.download_async`` gives one."""
        assert self.crawler.engine is not None
        return asyncio.create_task(self.crawler.engine.download_async(request))

    async def until(self, in_flight: int, waiting: int) -> None:
        """Wait until the host has so many in flight and waiting."""

        def reached() -> bool:
            gate = self.middleware.gates().get(HOST)
            return gate is not None and (gate.in_flight, gate.waiting) == (in_flight, waiting)

        await until(reached)


async def until(condition: Callable[[], object]) -> None:
    """Wait until it holds, at most ten seconds."""
    deadline = time.monotonic() + 10
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        await asyncio.sleep(0.002)


async def after(
    script: Callable[[ScriptSpider], Awaitable[None]], origin: Origin
) -> tuple[Result, HostRecord]:
    """Run the script, then three good requests, one at a time."""
    result = await crawl(good_ones(origin), ONE_AT_A_TIME, spider=ScriptSpider, script=script)
    assert result.stats["finish_reason"] == "finished"
    assert "log_count/ERROR" not in result.stats
    assert result.statuses == [200] * 3
    record = origin.record(HOST)
    assert record.peak == 1
    return result, record


@asyncio_only
@pytest_twisted.ensureDeferred
async def test_a_download_cancelled_in_flight_leaves_its_slot_to_the_next() -> None:
    """The host sees the connection end, then the good ones; nothing is learnt of it (HG-09)."""

    async def script(spider: ScriptSpider) -> None:
        task = spider.task(Request(origin.url(HOST, "/cancelled?d=5000")))
        await spider.until(in_flight=1, waiting=0)
        await until(lambda: origin.record(HOST).arrivals)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    with OriginThread() as origin:
        result, record = await after(script, origin)
    assert [arrival.completed for arrival in record.arrivals] == [False, True, True, True]
    assert learnt(result) == 3
    assert gate_of(result).limit == 1


@asyncio_only
@pytest_twisted.ensureDeferred
async def test_a_request_cancelled_while_it_waits_is_never_sent() -> None:
    """One in flight, three wait, two of them are cancelled: the third is the next (HG-09)."""

    async def script(spider: ScriptSpider) -> None:
        first = spider.task(Request(origin.url(HOST, "/first?d=200")))
        await spider.until(in_flight=1, waiting=0)
        waiting = [spider.task(Request(url)) for url in pages(origin, HOST, 3, "/waiting")]
        await spider.until(in_flight=1, waiting=3)
        waiting[0].cancel()
        waiting[1].cancel()
        await spider.until(in_flight=1, waiting=1)
        assert (await first).status == (await waiting[2]).status == 200

    with OriginThread() as origin:
        result, record = await after(script, origin)
    assert [arrival.path for arrival in record.arrivals[:2]] == ["/first?d=200", "/waiting2"]
    assert len(record.arrivals) == 5
    assert gate_of(result).departures == 5
    assert learnt(result) == 5


@asyncio_only
@pytest_twisted.ensureDeferred
async def test_a_request_cancelled_between_grant_and_departure_gives_its_grant_back() -> None:
    """Cancelled in the very turn that granted it: it is not sent, and the next one is (HG-09)."""

    async def script(spider: ScriptSpider) -> None:
        first = spider.task(Request(origin.url(HOST, "/first?d=50")))
        await spider.until(in_flight=1, waiting=0)
        granted = asyncio.create_task(
            spider.middleware.process_request(Request(origin.url(HOST, "/granted")))
        )
        await spider.until(in_flight=1, waiting=1)

        def cancel(request: Request) -> None:
            # The slot of the first has just been given to the second, which has not moved yet.
            if "/first" in request.url:
                gate = spider.middleware.gates()[HOST]
                assert (gate.in_flight, gate.waiting) == (1, 0)
                granted.cancel()

        spider.crawler.signals.connect(cancel, signal=signals.request_left_downloader)
        await asyncio.wait([first, granted])
        assert granted.cancelled()
        await spider.until(in_flight=0, waiting=0)

    with OriginThread() as origin:
        result, record = await after(script, origin)
    assert record.pages() == {"/first?d=50", "/good0", "/good1", "/good2"}
    assert learnt(result) == 4


@asyncio_only
@pytest_twisted.ensureDeferred
async def test_a_request_whose_coroutine_is_closed_leaves_the_queue() -> None:
    """What waits at a gate and is thrown away does not stand in the way of others (HG-09)."""

    async def script(spider: ScriptSpider) -> None:
        first = spider.task(Request(origin.url(HOST, "/first?d=100")))
        await spider.until(in_flight=1, waiting=0)
        coroutine = spider.middleware.process_request(Request(origin.url(HOST, "/closed")))
        coroutine.send(None)
        await spider.until(in_flight=1, waiting=1)
        coroutine.close()
        await spider.until(in_flight=1, waiting=0)
        await first

    with OriginThread() as origin:
        _, record = await after(script, origin)
    assert record.pages() == {"/first?d=100", "/good0", "/good1", "/good2"}


class Interruption(BaseException):
    """Like KeyboardInterrupt, no ``Exception``."""


INTERRUPTIONS = [Interruption, KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit]


@asyncio_only
@pytest.mark.parametrize("interruption", INTERRUPTIONS)
@pytest_twisted.ensureDeferred
async def test_a_download_that_ends_in_no_ordinary_exception(
    interruption: type[BaseException],
) -> None:
    """Six interruptions come out as they went in, teach nothing and leave the slot (HG-09)."""
    caught: list[type[BaseException]] = []

    async def interrupt(request: Request) -> Response:
        raise interruption

    async def script(spider: ScriptSpider) -> None:
        assert spider.crawler.engine is not None
        handlers: Any = spider.crawler.engine.downloader.handlers
        usual, handlers.download_request_async = handlers.download_request_async, interrupt
        for url in pages(origin, HOST, 6, "/bad"):
            try:
                await spider.middleware.process_request(Request(url))
            except BaseException as error:
                caught.append(type(error))
            assert spider.middleware.gates()[HOST].in_flight == 0
        handlers.download_request_async = usual

    with OriginThread() as origin:
        result, record = await after(script, origin)
    assert record.pages() == {"/good0", "/good1", "/good2"}
    assert caught == [interruption] * 6
    assert learnt(result) == 3
    assert gate_of(result).limit == 1


# -- refusals that RetryMiddleware hides ----------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_every_refusal_reaches_the_gate_though_retries_hide_it_from_others() -> None:
    """Two 429 at one host, two 503 at another: three outcomes each, 1 from the first on (HG-06)."""
    seen: dict[str, list[tuple[int, int]]] = {HOST: [], "127.0.0.3": []}

    def connect(crawler: Crawler) -> None:
        def downloaded(response: Response, request: Request) -> None:
            key = middleware_of(crawler)._manager.keys.of_request(request)
            seen[key].append((response.status, middleware_of(crawler).gates()[key].limit))

        crawler.signals.connect(downloaded, signal=signals.response_downloaded, weak=False)

    def refuse_twice(status: int) -> Any:
        return scripted([Reply(status=status, headers={"Retry-After": "1"})] * 2)

    with OriginThread({HOST: refuse_twice(429), "127.0.0.3": refuse_twice(503)}) as origin:
        job = [origin.url(host, "/x") for host in seen]
        result = await crawl(job, {"RETRY_TIMES": 2}, on_start=connect)
        records = {host: origin.record(host) for host in seen}
    for status, host in ((429, HOST), (503, "127.0.0.3")):
        record, gate = records[host], gate_of(result, host)
        assert [arrival.status for arrival in record.arrivals] == [status, status, 200]
        ended = [arrival.ended or 0 for arrival in record.arrivals]
        assert record.arrivals[1].at - ended[0] >= 1
        assert record.arrivals[2].at - ended[1] >= 1
        assert seen[host] == [(status, 1), (status, 1), (200, 1)]
        assert (gate.departures, gate.in_flight, gate.refusals, gate.limit) == (3, 0, 2, 1)
    assert result.statuses == [200, 200]
    assert result.stats["retry/count"] == 4
    assert result.stats["hostgate/refusals"] == 4
    for answer in result.answers:
        assert not {"hostgate_refusals", "max_retry_times", "download_slot"} & set(answer.meta)


@pytest_twisted.ensureDeferred
async def test_a_gate_that_is_not_innermost_refuses_to_start() -> None:
    """At the template's 543 it names those that stand behind it, and sends nothing (HG-06)."""
    wrong = {"DOWNLOADER_MIDDLEWARES": {"scrapy_hostgate.HostGateMiddleware": 543}}
    with OriginThread() as origin:
        with pytest.raises(HostGateSettingsError) as raised:
            await crawl(pages(origin, HOST, 3), wrong)
        assert origin.records() == {}
    for name in ("HttpCompressionMiddleware", "HttpProxyMiddleware", "HttpCacheMiddleware", "1000"):
        assert name in str(raised.value)


# -- answers that must not be taken for samples ---------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_fast_errors_are_not_taken_for_a_fast_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """404, 410, 500 and 302 in 2 ms between pages of 0.1 s widen nothing; then eight time-outs
    take the limit to 1 within five, for good (HG-26)."""
    # Else a crawl of a few seconds could not be widened, whatever it took for a sample.
    monkeypatch.setattr(law, "WIDEN_INTERVAL_S", 0.0)

    def answer(number: int, arrival: Arrival, now: float) -> Reply:
        kind, step = arrival.path.split("/")[1:]
        if kind == "page":
            return Reply(delay=0.1)
        if kind == "stuck":
            return Reply(end="hang")
        location = {"Location": f"/page/after{step}"} if kind == "302" else {}
        return Reply(status=int(kind), delay=0.002, headers=location)

    limits: list[tuple[str, int]] = []

    def connect(crawler: Crawler) -> None:
        def left(request: Request) -> None:
            limits.append((request.url, middleware_of(crawler).gates()[HOST].limit))

        crawler.signals.connect(left, signal=signals.request_left_downloader, weak=False)

    paths: list[str] = []
    for step in range(10):
        # What a 302 leads to is the page after it.
        paths.append(f"/302/{step}")
        for kind in ("404", "410", "500"):
            paths += [f"/{kind}/{step}", f"/page/{step}-{kind}"]
    with OriginThread({HOST: answer}) as origin:
        # Falling priorities keep them in order.
        job = [Request(origin.url(HOST, path), priority=-n) for n, path in enumerate(paths)]
        job += [
            Request(origin.url(HOST, f"/stuck/{n}"), priority=-200, meta={"download_timeout": 0.3})
            for n in range(8)
        ]
        settings = {"RETRY_ENABLED": False, "HTTPERROR_ALLOW_ALL": True}
        result = await crawl(job, settings, on_start=connect)
        record = origin.record(HOST)
    assert record.peak == 2
    answered = {status: count for status, count in record.by_status.items() if status}
    assert answered == {200: 40, 404: 10, 410: 10, 500: 10, 302: 10}
    assert len(result.failures) == 8
    stuck = [arrival for arrival in record.arrivals if "/stuck" in arrival.path]
    assert {arrival.in_flight for arrival in stuck[5:]} == {1}
    assert max(limit for _, limit in limits) == 2
    after_stuck = [limit for url, limit in limits if "/stuck" in url]
    assert after_stuck == sorted(after_stuck, reverse=True)
    assert after_stuck[4:] == [1] * 4
    gate = gate_of(result)
    assert gate.baseline_s is not None
    assert gate.baseline_s >= 0.09
    assert learnt(result) <= 40


def cached(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "HTTPCACHE_ENABLED": True,
        "HTTPCACHE_DIR": str(folder),
        "HTTPERROR_ALLOW_ALL": True,
        "RETRY_ENABLED": False,
        "HOSTGATE_MAX_PAUSE": 0.1,
        **more,
    }


@pytest_twisted.ensureDeferred
async def test_cached_answers_take_no_slot_and_teach_nothing(tmp_path: Path) -> None:
    """Twenty cached pages and two cached refusals come at once; three new ones a second apart are
    all that departs and all that is learnt, by their own latency (HG-27)."""
    with OriginThread({HOST: steady(0.02)}) as origin:
        known = pages(origin, HOST, 20)
        first = await crawl(known, cached(tmp_path))
        origin.behaviours = {}
        refusals = [origin.url(HOST, f"/no?s={status}") for status in (429, 503)]
        # By a crawl without the gate, which would keep refusals out of the cache.
        await crawl(refusals, cached(tmp_path, DOWNLOADER_MIDDLEWARES={}), clean=False)
        before = len(origin.record(HOST).arrivals)

        old = {answer.url: answer.meta for answer in first.answers}
        assert all("download_latency" in meta for meta in old.values())
        stale = {**old[known[0]], "download_latency": 77.0}
        job = [Request(url, meta=dict(old[url])) for url in known[:10]]
        job += [Request(url) for url in known[10:] + refusals]
        job += [
            Request(url, meta=dict(stale), priority=-1) for url in pages(origin, HOST, 3, "/new")
        ]
        rate = {"HOSTGATE_HOSTS": {HOST: {"rate": 1}}}
        result = await crawl(job, cached(tmp_path, **rate))
        record = origin.record(HOST)
        arrivals = record.arrivals[before:]
    assert [arrival.path.startswith("/new") for arrival in arrivals] == [True] * 3
    assert_spaced(result, record, 1)
    at_once = [answer for answer in result.answers if "cached" in answer.flags]
    assert sorted(answer.status for answer in at_once) == [200] * 20 + [429, 503]
    # A token for each would have taken 22 s.
    assert max(answer.at for answer in at_once) < arrivals[2].at
    assert len(result.answers) == 25
    gate = gate_of(result)
    assert (gate.departures, gate.refusals, gate.limit) == (3, 0, 2)
    assert learnt(result) == 3
    assert gate.median_s is None or gate.median_s < 10
