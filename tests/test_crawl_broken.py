"""What once broke the gate: each of these was found by somebody who tried to."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from child import run_child
from harness import JobSpider, assert_spaced, crawl, manager_of, middleware_of, pages
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.http import Response

from demo.behaviours import Reply, outage, scripted, steady
from demo.origin import OriginThread
from demo.origin_record import Arrival
from scrapy_hostgate import HostRefusedError

HOST, OTHER = "127.0.0.2", "127.0.0.3"


def test_a_hundred_waiters_do_not_hang_the_end_on_select() -> None:
    """Without asyncio each waiter that is handed back runs at once: not one inside the other."""
    with OriginThread({HOST: outage(0, 600, 0.05, retry_after="60")}) as origin:
        result = run_child(
            pages(origin, HOST, 150),
            {"CONCURRENT_REQUESTS": 150, "CLOSESPIDER_TIMEOUT": 2},
            reactor="select",
            timeout_s=30,
        )
        record = origin.record(HOST)
    assert result.returncode == 0, result.log
    assert result.left == {"active": 0}
    assert len(record.arrivals) <= 2
    assert result.stats["hostgate/handed_back"] >= 148


@pytest_twisted.ensureDeferred
async def test_a_grant_that_was_not_used_is_taken_back_by_a_pause() -> None:
    """An answer frees a slot and the next request is granted it; a refusal in the same turn of the
    loop pauses the host: what was granted has not left yet, and waits again."""
    refused_at: list[float] = []

    def watch(crawler: Crawler) -> None:
        def left(request: Request) -> None:
            if request.url.endswith("/p5"):
                middleware_of(crawler).refuse(HOST, retry_after=1.0)
                refused_at.append(time.monotonic())

        crawler.signals.connect(left, signals.request_left_downloader, weak=False)

    with OriginThread({HOST: steady(0.05)}) as origin:
        result = await crawl(pages(origin, HOST, 20), on_start=watch)
        record = origin.record(HOST)
    assert len(record.pages()) == len(result.answers) == 20
    (at,) = refused_at
    assert record.arrivals_between(at + 0.02, at + 0.99) == []


@pytest_twisted.ensureDeferred
async def test_dont_learn_keeps_the_pause(tmp_path: Path) -> None:
    """A refusal teaches such a request nothing, but the host is not knocked on at once either."""
    replies = [Reply(status=429, headers={"Retry-After": "1"})] * 2
    with OriginThread({HOST: scripted(replies, then=Reply())}) as origin:
        job = [Request(origin.url(HOST, "/x"), meta={"hostgate_dont_learn": True})]
        result = await crawl(job)
        record = origin.record(HOST)
    assert result.statuses == [200]
    assert len(record.arrivals) == 3
    assert min(record.gaps()) >= 0.99
    assert "hostgate/collapses" not in result.stats


def looks_blocked(response: Response) -> bool:
    return b"captcha" in response.body


@pytest_twisted.ensureDeferred
async def test_a_repeated_page_does_not_carry_our_slot() -> None:
    """What the detector sends back is copied only after our stamp is off its meta."""
    with OriginThread() as origin:
        origin.behaviours[HOST] = redirect_after_captcha(origin.port)
        result = await crawl(
            [origin.url(HOST, "/a")],
            {"HOSTGATE_REFUSAL_DETECTOR": looks_blocked, "HOSTGATE_MAX_PAUSE": 0.1},
        )
    (answer,) = result.answers
    assert answer.url.startswith(f"http://{OTHER}:")
    assert "download_slot" not in answer.meta


def redirect_after_captcha(port: int) -> Any:
    def behave(number: int, arrival: Arrival, now: float) -> Reply:
        if number == 1:
            return Reply(body=b"<html>captcha</html>")
        return Reply(status=302, headers={"Location": f"http://{OTHER}:{port}/there"})

    return behave


@pytest_twisted.ensureDeferred
async def test_a_page_refused_too_often_by_the_detector_reaches_the_errback() -> None:
    """Not the callback, which would take the captcha for the page."""
    with OriginThread({HOST: scripted([], then=Reply(body=b"captcha"))}) as origin:
        result = await crawl(
            [origin.url(HOST, "/a")],
            {
                "HOSTGATE_REFUSAL_DETECTOR": looks_blocked,
                "HOSTGATE_MAX_PAUSE": 0.05,
                "HOSTGATE_REFUSAL_RETRIES": 1,
                "RETRY_TIMES": 1,
            },
        )
        record = origin.record(HOST)
    assert result.answers == []
    ((_, error),) = result.failures
    assert isinstance(error, HostRefusedError)
    assert error.response.body == b"captcha"
    assert len(record.arrivals) == 3


@pytest_twisted.ensureDeferred
async def test_a_handler_cannot_have_a_gate_forgotten_between_two_steps() -> None:
    """With room for one host, a signal handler that touches another one changes no bound."""

    def touch(crawler: Crawler) -> None:
        def reached(request: Request) -> None:
            middleware_of(crawler).resize(OTHER, 1)

        crawler.signals.connect(reached, signals.request_reached_downloader, weak=False)

    with OriginThread({HOST: steady(0.05)}) as origin:
        result = await crawl(pages(origin, HOST, 20), {"HOSTGATE_MAX_HOSTS": 1}, on_start=touch)
        record = origin.record(HOST)
    assert record.peak == 2
    assert len(result.answers) == 20


@pytest_twisted.ensureDeferred
async def test_a_refusal_is_not_kept_in_the_http_cache(tmp_path: Path) -> None:
    """With Scrapy's cache a stored 503 would answer every retry, and the page be lost."""
    replies = [Reply(status=503), Reply(status=503)]
    with OriginThread({HOST: scripted(replies, then=Reply())}) as origin:
        settings = {
            "HTTPCACHE_ENABLED": True,
            "HTTPCACHE_DIR": str(tmp_path),
            "HOSTGATE_MAX_PAUSE": 0.1,
        }
        result = await crawl(pages(origin, HOST, 5), settings)
    assert result.statuses == [200] * 5
    assert all("_dont_cache" not in answer.meta for answer in result.answers)


@pytest_twisted.ensureDeferred
async def test_download_slots_of_a_users_own_slot_hold() -> None:
    """The host is the gate, but the slot's delay spaces it."""
    with OriginThread({HOST: steady(0.01)}) as origin:
        job = [
            Request(url, meta={"download_slot": "mine"}, dont_filter=True)
            for url in pages(origin, HOST, 4)
        ]
        slots = {"mine": {"concurrency": 1, "delay": 0.4, "randomize_delay": False}}
        result = await crawl(job, {"DOWNLOAD_SLOTS": slots})
        record = origin.record(HOST)
    assert record.peak == 1
    assert_spaced(result, record, 0.4)


@pytest_twisted.ensureDeferred
async def test_refuse_on_a_page_backs_off_like_a_refusal() -> None:
    """The page came with status 200, which must not start the backoff anew each time."""

    class Captchas(JobSpider):
        async def start(self) -> AsyncIterator[Request]:
            yield self.ask(self.job[0])  # type: ignore[index]

        def parse(self, response: Response) -> Any:
            self.note(response)
            if len(self.answers) < 4:
                middleware_of(self.crawler).refuse(response.request)
                yield response.request.replace(dont_filter=True)

    with OriginThread({HOST: steady(0.01)}) as origin:
        result = await crawl(pages(origin, HOST, 1), spider=Captchas)
        record = origin.record(HOST)
    assert len(result.answers) == 4
    first, second, third = record.gaps()
    assert first >= 0.8
    assert second >= 1.6
    assert third >= 3.2
    assert manager_of(result.crawler).registry.get(HOST) is not None


@pytest.mark.parametrize("kind", ["slot", "callable"])
@pytest_twisted.ensureDeferred
async def test_own_keys_are_matched_as_they_are_written(kind: str) -> None:
    """A rule for a user's own name holds for it, capitals and all."""
    with OriginThread({HOST: steady(0.05)}) as origin:
        job = [
            Request(url, meta={"download_slot": "Shop-A"}, dont_filter=True)
            for url in pages(origin, HOST, 6)
        ]
        result = await crawl(
            job,
            {
                "HOSTGATE_KEY": "slot" if kind == "slot" else shop,
                "HOSTGATE_HOSTS": {"Shop-A": {"concurrency": 1, "max_concurrency": 1}},
            },
        )
        record = origin.record(HOST)
    assert record.peak == 1
    assert list(middleware_of(result.crawler).gates()) == ["Shop-A"]


def shop(request: Request) -> str:
    return "Shop-A"
