"""Every way a host can say "slower", judged by when the next request reached that host.

A departure before the instant asked for is always a failure. Lateness is bounded too, generously:
these crawls share a machine with whatever else runs on it.
"""

from __future__ import annotations

import gc
import gzip
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from email.utils import formatdate
from itertools import pairwise
from typing import Any

import pytest
import pytest_twisted
from child import start_child
from harness import JobSpider, assert_spaced, crawl, middleware_of, pages, pinned
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.utils.asyncio import call_later
from twisted.python.failure import Failure

from demo.behaviours import (
    Behaviour,
    Reply,
    rate_limit,
    ratelimit_headers,
    scripted,
    steady,
    x_ratelimit_headers,
)
from demo.origin import Arrival, HostRecord, OriginThread
from scrapy_hostgate import HostStalledError

HOST = "127.0.0.2"
OTHER = "127.0.0.3"
LATE_S = 1.0
PAGE = Reply(delay=0.1)


def refusal(retry_after: str | None = None, *, status: int = 429, delay: float = 0.0) -> Reply:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return Reply(status=status, headers=headers, delay=delay)


def refused(record: HostRecord) -> list[Arrival]:
    return [arrival for arrival in record.arrivals if arrival.status in (429, 503)]


def told(arrival: Arrival) -> float:
    """When the host answered: nobody can have known before."""
    assert arrival.ended is not None
    return arrival.ended


def after(record: HostRecord, at: float) -> list[Arrival]:
    """What arrived later than ``at``, monotonic seconds."""
    return [arrival for arrival in record.arrivals if arrival.at > at]


def last_in_flight(record: HostRecord, no: Arrival) -> float:
    """When the last one arrived that may have been on its way when ``no`` was answered."""
    # One at most: it would be sent before the client could hear of the refusal.
    way = [arrival.at for arrival in record.arrivals if no.at < arrival.at < told(no) + 0.2]
    assert len(way) <= 1
    return max([told(no), *way])


def assert_resumes(record: HostRecord, told_at: float, due: float, cut_off_s: float = 0.0) -> None:
    """Nothing after ``told_at`` until ``due``; then soon one, alone until it is answered.

    It may come ``cut_off_s`` before, where the host itself cuts off the fractions of seconds.
    """
    first, *rest = after(record, told_at)
    assert due - cut_off_s <= first.at < due + LATE_S, (first.at - due, record)
    assert first.in_flight == 1
    assert not rest or rest[0].at >= told(first)


# -- Retry-After ----------------------------------------------------------------------------------


def seconds_ahead(wait_s: int) -> dict[str, str]:
    return {"Retry-After": str(wait_s)}


def date_ahead(
    form: str, *, date: bool = True, host_clock_s: int = 0
) -> Callable[[int], dict[str, str | None]]:
    """A Retry-After of the given ``strftime`` form, by a clock that is off by ``host_clock_s``."""

    def headers(wait_s: int) -> dict[str, str | None]:
        now = int(time.time()) + host_clock_s
        asked = datetime.fromtimestamp(now + wait_s, tz=timezone.utc)
        own = formatdate(now, usegmt=True) if date else None
        return {"Retry-After": asked.strftime(form), "Date": own}

    return headers


IMF = "%a, %d %b %Y %H:%M:%S GMT"
RFC_850 = "%A, %d-%b-%y %H:%M:%S GMT"
ASCTIME = "%a %b %d %H:%M:%S %Y"
# Host, status, what it says, and by how much less than the wait that may be, in whole seconds.
FORMS: list[tuple[str, int, Callable[[int], Any], float]] = [
    ("127.0.0.10", 429, seconds_ahead, 0.0),
    ("127.0.0.11", 503, seconds_ahead, 0.0),
    ("127.0.0.12", 429, date_ahead(IMF), 0.0),
    ("127.0.0.13", 503, date_ahead(IMF), 0.0),
    ("127.0.0.14", 429, date_ahead(RFC_850), 0.0),
    ("127.0.0.15", 503, date_ahead(ASCTIME), 0.0),
    ("127.0.0.16", 429, date_ahead(IMF, host_clock_s=-3600), 0.0),
    ("127.0.0.17", 503, date_ahead(IMF, host_clock_s=3600), 0.0),
    ("127.0.0.18", 503, date_ahead(IMF, date=False), 1.0),
]


ASKED_S = 2


def refuse_first(status: int, headers: Callable[[int], Any]) -> Behaviour:
    def behave(number: int, arrival: Arrival, now: float) -> Reply:
        return Reply(status=status, headers=headers(ASKED_S)) if number == 1 else PAGE

    return behave


@pytest_twisted.ensureDeferred
async def test_retry_after_is_kept_in_every_form_on_429_and_on_503() -> None:
    """2 s as a number or a date: nothing before, one within 1 s after, alone (HG-32).

    The page that was refused is asked for again and delivered.
    """
    hosts = {host: refuse_first(status, headers) for host, status, headers, _ in FORMS}
    with OriginThread(hosts) as origin:
        job = [url for host in hosts for url in pages(origin, host, 4)]
        # A date that is misjudged by an hour should fail the test and not make it last as long.
        result = await crawl(job, {"HOSTGATE_MAX_PAUSE": 10})
        records = {host: origin.record(host) for host in hosts}
    for host, status, _, cut_off_s in FORMS:
        record = records[host]
        (no,) = refused(record)
        assert no.status == status
        told_at = last_in_flight(record, no)
        assert_resumes(record, told_at, told(no) + ASKED_S, cut_off_s)
        assert len(record.pages()) == 4
        assert middleware_of(result.crawler).gates()[host].limit == 1
    assert result.statuses == [200] * len(job)
    assert result.stats["hostgate/refusals"] == len(FORMS)
    assert result.stats["hostgate/collapses"] == len(FORMS)


@pytest_twisted.ensureDeferred
async def test_retry_after_on_anything_but_a_refusal_is_ignored() -> None:
    """On 200, 404, 301 and 302 it holds nobody up, not even with an hour (HG-32)."""
    with OriginThread() as origin:
        target = origin.url(HOST, "/target")
        job = [
            Request(origin.url(HOST, f"/{status}/{number}?s={status}&ra=3600{to}"))
            for status, to in ((200, ""), (404, ""), (301, f"&to={target}"), (302, f"&to={target}"))
            for number in range(2)
        ]
        result = await crawl(job, {"DUPEFILTER_CLASS": "scrapy.dupefilters.BaseDupeFilter"})
        record = origin.record(HOST)
    assert len(record.arrivals) == 12
    assert max(record.gaps()) < LATE_S
    assert result.statuses == [200] * 6
    assert [type(error).__name__ for _, error in result.failures] == ["HttpError"] * 2
    assert "hostgate/refusals" not in result.stats


FOUR_IN_FLIGHT_S = 0.5


@pytest_twisted.ensureDeferred
async def test_four_refusals_at_once_are_one_incident() -> None:
    """Four in flight say 429: limit 1 and one collapse, not four (HG-30 a, c).

    With 2 s the next comes 2 s after the last of them. With 0 s, which counts as absent, it comes
    after the first backoff. Neither sends more than one at a time.
    """
    hosts = {
        HOST: scripted([refusal("2", delay=FOUR_IN_FLIGHT_S)] * 4, PAGE),
        OTHER: scripted([refusal("0", delay=FOUR_IN_FLIGHT_S)] * 4, PAGE),
    }
    with OriginThread(hosts) as origin:
        job = [url for host in hosts for url in pages(origin, host, 6)]
        result = await crawl(job, pinned(4))
        records = {host: origin.record(host) for host in hosts}
    for host, record in records.items():
        four, later = record.arrivals[:4], record.arrivals[4:]
        assert [arrival.in_flight for arrival in four] == [1, 2, 3, 4]
        assert len(refused(record)) == 4
        assert all(second.at >= told(first) for first, second in pairwise(later))
        assert len(record.pages()) == 6
        gate = middleware_of(result.crawler).gates()[host]
        assert (gate.refusals, gate.limit) == (4, 1)
        assert result.stats[f"hostgate/host/{host}/collapses"] == 1
    four = records[HOST].arrivals[:4]
    assert_resumes(records[HOST], four[-1].at, max(map(told, four)) + 2)
    four = records[OTHER].arrivals[:4]
    # The backoff of 1 s varies by a fifth.
    assert_resumes(records[OTHER], four[-1].at, min(map(told, four)) + 1, 0.2)
    assert result.statuses == [200] * 12


SHORTER_LATER = [
    refusal("5", delay=FOUR_IN_FLIGHT_S),
    refusal("1", delay=FOUR_IN_FLIGHT_S + 0.1),
    refusal(None, delay=FOUR_IN_FLIGHT_S + 0.2),
    refusal("3", delay=FOUR_IN_FLIGHT_S + 0.3),
]
SERVED_LATER = [
    refusal("5", delay=FOUR_IN_FLIGHT_S),
    Reply(delay=FOUR_IN_FLIGHT_S + 0.1),
    refusal("1", delay=FOUR_IN_FLIGHT_S + 0.2),
    Reply(delay=FOUR_IN_FLIGHT_S + 1.5),
]


@pytest_twisted.ensureDeferred
async def test_no_later_answer_shortens_a_pause() -> None:
    """After 429 with 5 s: 1 s, none and 3 s at one host, a 200, 1 s and a later 200 at another.

    Neither sees anybody for five seconds from the first on (HG-30 b).
    """
    hosts = {HOST: scripted(SHORTER_LATER, PAGE), OTHER: scripted(SERVED_LATER, PAGE)}
    with OriginThread(hosts) as origin:
        job = [url for host in hosts for url in pages(origin, host, 6)]
        result = await crawl(job, pinned(4))
        records = {host: origin.record(host) for host in hosts}
    for record in records.values():
        four = record.arrivals[:4]
        assert [arrival.in_flight for arrival in four] == [1, 2, 3, 4]
        assert_resumes(record, four[-1].at, told(four[0]) + 5)
        assert len(record.pages()) == 6
    assert result.statuses == [200] * 12
    assert result.stats["hostgate/collapses"] == 2


# -- when the pause is over -----------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_there_is_no_burst_when_a_pause_ends() -> None:
    """The fifth is refused for 2 s at four a second, burst 4: then one by one (HG-34)."""
    script = [Reply(delay=0.2)] * 4 + [refusal("2")]
    with OriginThread({HOST: scripted(script, Reply(delay=0.2))}) as origin:
        result = await crawl(
            pages(origin, HOST, 7), {"HOSTGATE_HOSTS": {HOST: {"rate": 4, "burst": 4}}}
        )
        record = origin.record(HOST)
    (no,) = refused(record)
    told_at = last_in_flight(record, no)
    assert_resumes(record, told_at, told(no) + 2)
    later = after(record, told_at)
    assert all(second.at >= told(first) for first, second in pairwise(later))
    assert len([arrival for arrival in later if arrival.at < told(no) + 3]) <= 2
    times = [arrival.at for arrival in record.arrivals]
    for first in range(len(times)):
        for last in range(first, len(times)):
            assert last - first + 1 <= 4 + 4 * (times[last] - times[first] + 0.06)
    assert len(record.pages()) == 7
    assert result.statuses == [200] * 7


FIFTY = [f"127.0.1.{number}" for number in range(1, 51)]


class LoopWatch:
    """How much the loop works between two of its turns, in seconds of its own CPU time.

    Unlike a lag by the clock on the wall this does not depend on what else the machine does.
    """

    def __init__(self, crawler: Crawler) -> None:
        self.longest_s = 0.0
        self._last = time.thread_time()
        self._timer: Any = None
        crawler.signals.connect(self.beat, signal=signals.engine_started)
        crawler.signals.connect(self.stop, signal=signals.spider_closed)

    def beat(self) -> None:
        now = time.thread_time()
        if self._timer is not None:
            self.longest_s = max(self.longest_s, now - self._last)
        self._last = now
        self._timer = call_later(0.01, self.beat)

    def stop(self) -> None:
        self._timer.cancel()


@pytest.fixture
def without_collections() -> Iterator[None]:
    """A full collection of a test session's heap takes a quarter of a second by itself."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collections")
@pytest_twisted.ensureDeferred
async def test_fifty_pauses_that_end_at_once_send_one_request_to_each_host() -> None:
    """Fifty hosts paused to the same instant: one each, the loop stays responsive (HG-34)."""
    watches: list[LoopWatch] = []
    due: list[float] = []

    def pause_all(crawler: Crawler) -> None:
        def refuse() -> None:
            due.append(time.monotonic() + 2)
            for host in FIFTY:
                middleware_of(crawler).refuse(host, retry_after=due[0] - time.monotonic())

        crawler.signals.connect(refuse, signal=signals.engine_started, weak=False)
        watches.append(LoopWatch(crawler))

    with OriginThread({"*": steady(0.2)}) as origin:
        job = [url for number in range(3) for url in pages_of_all(origin.url, number)]
        result = await crawl(job, {"CONCURRENT_REQUESTS": 200}, on_start=pause_all)
        records = {host: origin.record(host) for host in FIFTY}
    first = [records[host].arrivals[0].at for host in FIFTY]
    assert min(first) >= due[0]
    assert max(first) < due[0] + 2 * LATE_S
    for record in records.values():
        assert [arrival.in_flight for arrival in record.arrivals] == [1, 1, 1]
        assert all(later.at >= told(sooner) for sooner, later in pairwise(record.arrivals))
    assert result.statuses == [200] * 150
    assert watches[0].longest_s < 0.2


def pages_of_all(url: Callable[[str, str], str], number: int) -> list[str]:
    return [url(host, f"/p{number}") for host in FIFTY]


# -- retries --------------------------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_refusals_do_not_use_up_the_retries() -> None:
    """Three 429 with 1 s, then 200: five of five pages with RETRY_TIMES 2 (HG-35 a)."""
    with OriginThread({HOST: scripted([refusal("1")] * 3, PAGE)}) as origin:
        result = await crawl(pages(origin, HOST, 5), {"RETRY_TIMES": 2})
        record = origin.record(HOST)
    assert len(record.pages()) == 5
    assert len(record.arrivals) == 8
    assert 2 <= told(record.arrivals[-1]) - record.arrivals[0].at <= 8
    assert result.statuses == [200] * 5
    assert "retry/max_reached" not in result.stats
    assert "hostgate/refusal_retries_exhausted" not in result.stats


@pytest_twisted.ensureDeferred
async def test_a_host_that_refuses_for_ever_ends_the_crawl() -> None:
    """Always 429 with 1 s, three pages, in three crawls at a time (HG-35 b).

    No extra retries: nine arrivals. Two: fifteen. Twenty and a stall timeout of 5 s: ends within
    10 s and says that the host is stalled. Never two in the second that was asked for.
    """
    hosts = ["127.0.0.21", "127.0.0.22", "127.0.0.23"]
    with OriginThread({"*": scripted([], refusal("1"))}) as origin:
        children = [
            start_child(
                pages(origin, host, 3), {"RETRY_TIMES": 2, "HOSTGATE_REFUSAL_RETRIES": retries}
            )
            for host, retries in zip(hosts, (0, 2))
        ]
        stalling = {"HOSTGATE_REFUSAL_RETRIES": 20, "HOSTGATE_STALL_TIMEOUT": 5}
        stalls = await crawl(pages(origin, hosts[2], 3), stalling)
        none, two = (child.wait() for child in children)
        records = [origin.record(host) for host in hosts]
    for record in records:
        for sooner, later in pairwise(record.arrivals[1:]):
            assert later.at >= told(sooner) + 1
            assert later.in_flight == 1
    took_s = [told(record.arrivals[-1]) - record.arrivals[0].at for record in records]
    assert [len(record.arrivals) for record in records[:2]] == [9, 15]
    assert took_s[0] <= 15
    for child in (none, two):
        assert child.returncode == 0, child.log
        assert child.answers == []
        assert all("HttpError" in error for _, error in child.failures)
        assert child.stats["retry/max_reached"] == len(child.failures) == 3
    assert 6 <= len(records[2].arrivals) <= 8
    assert took_s[2] < stalls.seconds <= 10
    assert len(stalls.failures) == 3
    # The one that was refused last may have had no retry left to fail in.
    waited = [error for _, error in stalls.failures if isinstance(error, HostStalledError)]
    assert stalls.stats["hostgate/stalled"] == len(waited) >= 2
    assert len([line for line in stalls.gate_log if f"{hosts[2]} is stalled" in line]) == 1


@pytest_twisted.ensureDeferred
async def test_a_host_that_refuses_without_a_word_is_knocked_on_one_at_a_time() -> None:
    """Always 429, no header: it ends, at limit 1, with no two overlapping (HG-35 c)."""
    settings = {"HOSTGATE_REFUSAL_RETRIES": 0, "RETRY_TIMES": 1, "HOSTGATE_MAX_PAUSE": 0.4}
    with OriginThread({HOST: scripted([], refusal(delay=0.1))}) as origin:
        result = await crawl(pages(origin, HOST, 3), settings)
        record = origin.record(HOST)
    first = record.first_refusal_at
    assert first is not None
    knocks = after(record, first)
    # The first two are sent before anything is known of this host.
    assert len(record.arrivals) == len(knocks) + 2 == 3 * 2
    assert [arrival.in_flight for arrival in knocks] == [1] * len(knocks)
    assert all(later.at >= told(sooner) for sooner, later in pairwise(knocks))
    assert result.stats["retry/max_reached"] == len(result.failures) == 3
    assert middleware_of(result.crawler).gates()[HOST].limit == 1


class TolerantSpider(JobSpider):
    """One that wants to see refused pages in its callback."""

    handle_httpstatus_list = [429]


@pytest.mark.parametrize("spider", [JobSpider, TolerantSpider])
@pytest.mark.parametrize("retries", [0, 2])
@pytest_twisted.ensureDeferred
async def test_a_page_given_up_on_is_always_visible(spider: type[JobSpider], retries: int) -> None:
    """It comes to the callback with its 429, or to the errback, and is counted."""
    settings = {
        "HOSTGATE_REFUSAL_RETRIES": retries,
        "RETRY_TIMES": 1,
        "HOSTGATE_MAX_PAUSE": 0.1,
    }
    with OriginThread({HOST: scripted([], refusal())}) as origin:
        urls = pages(origin, HOST, 3)
        result = await crawl(urls, settings, spider=spider)
        record = origin.record(HOST)
    assert len(record.arrivals) == 3 * (1 + 1 + retries)
    if spider is TolerantSpider:
        assert sorted(answer.url for answer in result.answers) == urls
        assert result.statuses == [429] * 3
    else:
        assert sorted(url for url, _ in result.failures) == urls
        assert {type(error).__name__ for _, error in result.failures} == {"HttpError"}
        assert result.answers == []
    assert result.stats["retry/max_reached"] == 3
    if retries:
        assert result.stats["hostgate/refusal_retries_exhausted"] >= 3


class InsistingSpider(JobSpider):
    """Asks for one more page of a host that has just failed."""

    asked_again = False

    def failed(self, failure: Failure) -> Any:
        super().failed(failure)
        if not self.asked_again:
            self.asked_again = True
            request: Request = failure.request  # type: ignore[attr-defined]
            yield self.ask(request.url + "-again")


@pytest_twisted.ensureDeferred
async def test_a_stalled_host_fails_its_requests_and_holds_up_nobody() -> None:
    """Refused for STALL_TIMEOUT: HostStalledError to the errback, one log line.

    Whoever waits fails, whoever comes now is not sent, and the other host is served to the end.
    """
    hosts = {HOST: scripted([], refusal("1")), OTHER: steady(0.1)}
    with OriginThread(hosts) as origin:
        job = [*pages(origin, HOST, 5), *pages(origin, OTHER, 60)]
        result = await crawl(job, {"HOSTGATE_STALL_TIMEOUT": 2}, spider=InsistingSpider)
        stalled, other = origin.record(HOST), origin.record(OTHER)
    # Two at the start, then one a second until the two seconds are full.
    assert 3 <= len(stalled.arrivals) <= 5
    assert not any("again" in arrival.path for arrival in stalled.arrivals)
    assert len(other.pages()) == 60
    assert max(other.gaps()) < LATE_S
    assert other.arrivals[-1].at > stalled.arrivals[-1].at
    failed = result.failures
    assert all(isinstance(error, HostStalledError) for _, error in failed)
    at_host = [answer for answer in result.answers if HOST in answer.url]
    assert len(failed) + len(at_host) == 5 + 1
    assert len(failed) >= 5
    assert result.stats["hostgate/stalled"] == len(failed)
    assert len([line for line in result.gate_log if f"{HOST} is stalled" in line]) == 1


def closed_port(host: str) -> int:
    with socket.socket() as sock:
        sock.bind((host, 0))
        port: int = sock.getsockname()[1]
        return port


@pytest_twisted.ensureDeferred
async def test_a_port_that_is_closed_for_a_while_costs_no_page() -> None:
    """Connection refused is a refusal: knocked on ever more seldom, all delivered (DESIGN 4)."""
    port = closed_port(HOST)
    server = OriginThread({HOST: steady(0.05)}, hosts=[HOST], ports=[port])
    opened_at: list[float] = []

    def open_later(crawler: Crawler) -> None:
        def start() -> None:
            server.start()
            opened_at.append(time.monotonic())

        crawler.signals.connect(
            lambda: call_later(1.5, start), signal=signals.engine_started, weak=False
        )

    urls = [f"http://{HOST}:{port}/p{number}" for number in range(2)]
    try:
        result = await crawl(urls, {"RETRY_TIMES": 1}, on_start=open_later)
        record = server.origin.record(HOST)
    finally:
        server.stop()
    assert len(record.pages()) == len(record.arrivals) == 2
    assert record.peak == 1
    assert result.statuses == [200] * 2
    assert result.failures == []
    # Two at the start, one of them again after about 1 s (which its one retry alone would not
    # allow it to survive), and the next after 2 s more finds it open.
    assert result.stats["hostgate/refusals"] == 3
    assert result.stats["hostgate/departures"] == 5


# -- announced quotas -----------------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_a_host_that_announces_its_quota_never_has_to_refuse() -> None:
    """Five or twenty a second, told by headers alone: no 429 at all, and no dawdling."""
    hosts = {
        "127.0.0.31": rate_limit(5, 5, 0.05, headers=ratelimit_headers),
        "127.0.0.32": rate_limit(20, 20, 0.05, headers=ratelimit_headers),
        "127.0.0.33": rate_limit(20, 20, 0.05, headers=x_ratelimit_headers),
    }
    counts = dict(zip(hosts, (40, 80, 80)))
    with OriginThread(hosts) as origin:
        job = [url for host, count in counts.items() for url in pages(origin, host, count)]
        result = await crawl(job, {"CONCURRENT_REQUESTS": 400})
        records = {host: origin.record(host) for host in hosts}
    for host, count in counts.items():
        assert records[host].refusals == 0
        assert len(records[host].pages()) == len(records[host].arrivals) == count
        assert records[host].peak <= 2
    took_s = told(records["127.0.0.31"].arrivals[-1]) - records["127.0.0.31"].arrivals[0].at
    # At five a second it takes seven seconds; twice that would be dawdling.
    assert took_s < 14
    assert result.statuses == [200] * len(job)
    assert result.stats["hostgate/quota_waits"] > 0


def announce_first(headers: Callable[[], Any]) -> Behaviour:
    """The first answer announces something, all others nothing.

    The second is answered last, so that nobody can leave in its place before the first is heard.
    """

    def behave(number: int, arrival: Arrival, now: float) -> Reply:
        if number == 1:
            return Reply(headers=headers(), delay=0.3)
        return Reply(delay=0.8 if number == 2 else 0.3)

    return behave


def x_rate_limit(reset: object) -> dict[str, Any]:
    return {"X-Rate-Limit-Remaining": "0", "X-Rate-Limit-Reset": str(reset)}


# What is announced for at least two seconds ahead, and less than three.
ANNOUNCED: dict[str, Callable[[], dict[str, Any]]] = {
    "127.0.0.41": lambda: {"RateLimit": '"default";r=0;t=2'},
    "127.0.0.42": lambda: {"RateLimit": "limit=9, remaining=0, reset=2"},
    "127.0.0.43": lambda: {
        "RateLimit": '"default";r=0',
        "RateLimit-Policy": '"default";q=9;w=2',
    },
    "127.0.0.44": lambda: {"RateLimit-Remaining": "0", "RateLimit-Reset": "2"},
    "127.0.0.45": lambda: x_rate_limit(2),
    # Dates, by the host's own clock, which in the last case is years behind.
    "127.0.0.46": lambda: x_rate_limit(int(time.time()) + 3),
    "127.0.0.47": lambda: x_rate_limit(f"{int(time.time()) + 3}000"),
    "127.0.0.48": lambda: {**x_rate_limit(1_700_000_002), "Date": date_of(1_700_000_000)},
}


def date_of(epoch_s: int) -> str:
    return formatdate(epoch_s, usegmt=True)


def assert_held(record: HostRecord) -> None:
    """After the first answer nothing but what is on its way arrives for two seconds."""
    first = record.arrivals[0]
    later = after(record, max(told(first), record.arrivals[1].at))
    assert later[0].at >= told(first) + 2, (later[0].at - told(first), record)
    assert later[0].at < told(first) + 3 + LATE_S


@pytest_twisted.ensureDeferred
async def test_with_nothing_left_nobody_comes_before_the_reset() -> None:
    """The first answer says so in one of eight ways: two seconds of silence."""
    hosts = {host: announce_first(headers) for host, headers in ANNOUNCED.items()}
    with OriginThread(hosts) as origin:
        job = [url for host in hosts for url in pages(origin, host, 4)]
        result = await crawl(job)
        records = {host: origin.record(host) for host in hosts}
    for record in records.values():
        assert_held(record)
        assert len(record.pages()) == 4
    assert result.statuses == [200] * len(job)
    assert "hostgate/collapses" not in result.stats


@pytest_twisted.ensureDeferred
async def test_a_quota_in_two_header_lines_is_one_list() -> None:
    """RFC 9651: lines of the same name are one list; the first of two is not lost."""
    lines = ('"burst";r=0;t=2', '"day";r=900;t=5000')
    with OriginThread({HOST: announce_first(lambda: {"RateLimit": lines})}) as origin:
        result = await crawl(pages(origin, HOST, 4))
        record = origin.record(HOST)
    assert_held(record)
    assert result.statuses == [200] * 4


# -- robots.txt -----------------------------------------------------------------------------------

ROBOTS = b"User-agent: gatebot\nCrawl-delay: 1\n\nUser-agent: *\nCrawl-delay: 30\n"
OBEDIENT = {"ROBOTSTXT_OBEY": True, "USER_AGENT": "gatebot"}


def with_robots(number: int, arrival: Arrival, now: float) -> Reply:
    body = ROBOTS if arrival.path == "/robots.txt" else None
    return Reply(delay=0.05, body=body, headers={"Content-Type": "text/plain"} if body else {})


hears_robots = pytest.mark.skipif(
    not hasattr(signals, "robots_parsed"), reason="Scrapy tells of robots.txt from 2.18 on"
)


@hears_robots
@pytest_twisted.ensureDeferred
async def test_a_crawl_delay_is_kept_and_no_jitter_undercuts_it() -> None:
    """Crawl-delay 1 for our agent, alone and beside a jittered delay of 0.8 s.

    The robots.txt itself is the first departure; the pace is not slower than asked either.
    """
    hosts = {HOST: with_robots, OTHER: with_robots}
    settings = {**OBEDIENT, "DOWNLOAD_SLOTS": {OTHER: {"delay": 0.8}}}
    with OriginThread(hosts) as origin:
        job = [url for host in hosts for url in pages(origin, host, 3)]
        result = await crawl(job, settings)
        records = {host: origin.record(host) for host in hosts}
    for record in records.values():
        assert record.arrivals[0].path == "/robots.txt"
        assert len(record.pages()) == 4
        assert_spaced(result, record, 1)
        assert record.peak == 1
    # Without jitter the mean is the delay; late ones may push it, early ones cannot pull it.
    alone = records[HOST].gaps()
    assert sum(alone) / len(alone) < 1.3
    assert result.statuses == [200] * 6


@pytest.mark.skipif(hasattr(signals, "robots_parsed"), reason="this Scrapy tells of robots.txt")
@pytest_twisted.ensureDeferred
async def test_an_older_scrapy_is_told_that_crawl_delay_is_not_heard() -> None:
    """One clear warning with the version it takes, and the crawl goes on."""
    with OriginThread({HOST: with_robots}) as origin:
        result = await crawl(pages(origin, HOST, 5), OBEDIENT)
        quiet = await crawl(pages(origin, HOST, 1), {"ROBOTSTXT_OBEY": False})
        record = origin.record(HOST)
    assert len(record.pages()) == 6
    warnings = [line for line in result.gate_log if "Crawl-delay" in line]
    assert len(warnings) == 1
    assert "2.18" in warnings[0]
    assert [line for line in quiet.gate_log if "Crawl-delay" in line] == []


# -- refusals in disguise -------------------------------------------------------------------------

CAPTCHA = gzip.compress(b"<html><body>Please solve this captcha</body></html>")
PACKED = {"Content-Encoding": "gzip"}


def looks_blocked(response: Response) -> bool | float:
    """For HOSTGATE_REFUSAL_DETECTOR: a captcha asks for two seconds."""
    return 2.0 if b"captcha" in response.body else False


def looks_blocked_plainly(response: Response) -> bool:
    return b"captcha" in response.body


def always_fails(response: Response) -> bool:
    raise KeyError("no such header")


class ReadingSpider(JobSpider):
    """Keeps the texts too."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.texts: list[bytes] = []

    def parse(self, response: Response) -> Any:
        self.texts.append(response.body)
        return super().parse(response)


@pytest.mark.parametrize(
    ("detector", "least_s"),
    [("test_crawl_slower.looks_blocked", 2.0), (looks_blocked_plainly, 0.8)],
    ids=["seconds", "yes"],
)
@pytest_twisted.ensureDeferred
async def test_a_packed_captcha_is_a_refusal_and_its_page_is_asked_for_again(
    detector: object, least_s: float
) -> None:
    """Status 200, gzip: collapse, the pause it asks for or the backoff, delivered."""
    captcha = Reply(headers=PACKED, body=CAPTCHA, delay=0.1)
    with OriginThread({HOST: scripted([Reply(delay=0.2), captcha], PAGE)}) as origin:
        urls = pages(origin, HOST, 5)
        result = await crawl(urls, {"HOSTGATE_REFUSAL_DETECTOR": detector}, spider=ReadingSpider)
        record = origin.record(HOST)
    asked = record.arrivals[1]
    assert_resumes(record, asked.at, told(asked) + least_s)
    again = [arrival for arrival in record.arrivals if arrival.path == asked.path]
    assert len(again) == 2
    assert [arrival.in_flight for arrival in record.arrivals[2:]] == [1] * 4
    assert sorted(answer.url for answer in result.answers) == urls
    assert not any(b"captcha" in text for text in result.spider.texts)
    assert result.stats["hostgate/refusals"] == result.stats["hostgate/collapses"] == 1
    for answer in result.answers:
        assert not {"hostgate_refusals", "max_retry_times", "retry_times"} & set(answer.meta)


@pytest_twisted.ensureDeferred
async def test_a_detector_that_raises_changes_nothing() -> None:
    """Every page is delivered, packed or not, two at a time; one line in the log."""
    packed = Reply(headers=PACKED, body=CAPTCHA, delay=0.1)
    with OriginThread({HOST: scripted([packed] * 5, PAGE)}) as origin:
        result = await crawl(pages(origin, HOST, 10), {"HOSTGATE_REFUSAL_DETECTOR": always_fails})
        record = origin.record(HOST)
    assert len(record.arrivals) == len(record.pages()) == 10
    assert record.peak == 2
    assert result.statuses == [200] * 10
    assert "hostgate/refusals" not in result.stats
    errors = [line for line in result.log if "HOSTGATE_REFUSAL_DETECTOR" in line.getMessage()]
    assert len(errors) == 1
    assert errors[0].levelno == logging.ERROR
    assert errors[0].exc_info is not None


class RefusingSpider(JobSpider):
    """Finds out by itself that a page is a captcha, and asks for it again."""

    refused_at: float

    def parse(self, response: Response) -> Any:
        if b"captcha" in response.body:
            assert response.request is not None
            self.refused_at = time.monotonic()
            middleware_of(self.crawler).refuse(response.request, retry_after=2)
            yield response.request.replace(dont_filter=True)
        else:
            self.note(response)


@pytest_twisted.ensureDeferred
async def test_a_spider_may_say_that_a_host_refuses() -> None:
    """refuse() from a callback: silence for two seconds from the call on, then one.

    Half a second between departures keeps the next from leaving before the spider has looked.
    """
    with OriginThread({HOST: scripted([Reply(body=b"a captcha")], PAGE)}) as origin:
        urls = pages(origin, HOST, 2)
        result = await crawl(urls, {"HOSTGATE_HOSTS": {HOST: {"rate": 2}}}, spider=RefusingSpider)
        record = origin.record(HOST)
    refused_at = result.spider.refused_at
    assert len([arrival for arrival in record.arrivals if arrival.at < refused_at]) == 1
    assert_resumes(record, refused_at, refused_at + 2)
    assert sorted(answer.url for answer in result.answers) == urls
    assert result.stats["hostgate/collapses"] == 1
    assert middleware_of(result.crawler).gates()[HOST].limit == 1


# -- the clock on the wall ------------------------------------------------------------------------


class SteppedClock:
    """Steps the time of day, for everybody in this process who reads it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._real = time.time
        self.offset_s = 0.0

    def step(self, offset_s: float) -> None:
        self.offset_s = offset_s
        # Many have imported the function and not the module.
        for module in list(sys.modules.values()):
            if vars(module).get("time") is self._real and module.__name__ != __name__:
                self._patch.setattr(module, "time", self)

    def __call__(self) -> float:
        return self._real() + self.offset_s


class SteppingSpider(JobSpider):
    """Calls ``step`` at its fifth answer, and asks for one more page, which makes its gate look."""

    def __init__(self, step: Callable[[], None], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.step = step

    def parse(self, response: Response) -> Any:
        self.note(response)
        if len(self.answers) == 5:
            self.step()
            yield self.ask(response.url + "-more")


@pytest_twisted.ensureDeferred
async def test_a_clock_set_back_by_an_hour_changes_no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set back after the fifth of 20 pages: five a second all the same (HG-38)."""
    clock = SteppedClock(monkeypatch)
    with OriginThread({HOST: steady(0.05)}) as origin:
        result = await crawl(
            pages(origin, HOST, 19),
            # What such a clock used to do to crawlers is to hold them up for an hour.
            {"HOSTGATE_HOSTS": {HOST: {"rate": 5}}, "CLOSESPIDER_TIMEOUT": 15},
            spider=SteppingSpider,
            step=lambda: clock.step(-3600),
        )
        record = origin.record(HOST)
        gate = middleware_of(result.crawler).gates()[HOST]
    assert clock.offset_s == -3600
    assert_spaced(result, record, 0.2)
    # Twenty at five a second take 3.8 s.
    assert record.arrivals[-1].at - record.arrivals[0].at <= 6
    assert result.statuses == [200] * 20
    assert_sane_latency(gate.baseline_s, gate.median_s)


def assert_sane_latency(*latencies_s: float | None) -> None:
    for latency_s in latencies_s:
        assert latency_s is not None
        assert 0.04 < latency_s < LATE_S


@pytest_twisted.ensureDeferred
async def test_a_clock_set_forth_by_an_hour_ends_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set forth while a Retry-After of 3 s runs: three seconds it is (HG-38).

    The fifth page is answered 0.3 s after the refusal, so that the step falls into the pause.
    """
    clock = SteppedClock(monkeypatch)
    script = [PAGE] * 4 + [refusal("3", delay=0.3), Reply(delay=0.6)]
    with OriginThread({HOST: scripted(script, PAGE)}) as origin:
        result = await crawl(
            pages(origin, HOST, 9), spider=SteppingSpider, step=lambda: clock.step(3600)
        )
        record = origin.record(HOST)
        gate = middleware_of(result.crawler).gates()[HOST]
    assert clock.offset_s == 3600
    no, last = record.arrivals[4:6]
    assert told(no) < told(last) < told(no) + 3
    assert_resumes(record, last.at, told(no) + 3)
    assert result.statuses == [200] * 10
    assert_sane_latency(gate.median_s)
