"""Faults of our own side: whatever the project's code does, the gate stays right."""

from __future__ import annotations

import time
from typing import Any

import pytest_twisted
from harness import JobSpider, assert_spaced, crawl, middleware_of, pages, pinned
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.http import Response

from demo.behaviours import steady
from demo.origin import OriginThread

HOST = "127.0.0.2"
BLOCKED_S = 5.0


@pytest_twisted.ensureDeferred
async def test_handlers_and_callbacks_that_raise_cost_no_slot() -> None:
    """Every signal of a download has a handler that raises, and so does every second callback."""
    raised: list[str] = []

    class Clumsy(JobSpider):
        def parse(self, response: Response) -> Any:
            self.note(response)
            if len(self.answers) % 2:
                raise ValueError("in a callback")

    def break_everything(crawler: Crawler) -> None:
        for signal in (
            signals.request_reached_downloader,
            signals.response_downloaded,
            signals.request_left_downloader,
        ):

            def handler(signal: object = signal) -> None:
                raised.append(str(signal))
                raise RuntimeError("in a handler")

            crawler.signals.connect(handler, signal, weak=False)

    with OriginThread({HOST: steady(0.02)}) as origin:
        result = await crawl(pages(origin, HOST, 20), spider=Clumsy, on_start=break_everything)
        record = origin.record(HOST)
    assert len(result.answers) == len(record.arrivals) == 20
    assert record.peak == 2
    assert len(raised) == 60
    assert result.stats["spider_exceptions/ValueError"] == 10


@pytest_twisted.ensureDeferred
async def test_a_loop_that_is_blocked_for_five_seconds_sends_nothing_too_soon() -> None:
    """A refusal that asks for a pause of 3 s, and a callback that blocks right after it for longer:
    what waited leaves one by one, at twice the spacing that was refused."""
    blocked: list[tuple[float, float]] = []

    class Blocking(JobSpider):
        def parse(self, response: Response) -> Any:
            self.note(response)
            if len(self.answers) == 4:
                began = time.monotonic()
                middleware_of(self.crawler).refuse(HOST, retry_after=3.0)
                time.sleep(BLOCKED_S)
                blocked.append((began, time.monotonic()))

    settings = {**pinned(2), "HOSTGATE_HOSTS": {HOST: {"rate": 4}}}
    with OriginThread({HOST: steady(0.05)}) as origin:
        job: list[Request | str] = [*pages(origin, HOST, 8)]
        result = await crawl(job, settings, spider=Blocking)
        record = origin.record(HOST)
    ((began, ended),) = blocked
    assert len(result.answers) == 8
    # One may have left in the turn before.
    assert len(record.arrivals_between(began + 0.02, ended - 0.02)) <= 1
    # Twice the refused spacing of 0.25 s.
    before = sum(at < ended for at in result.departures_to(HOST))
    assert_spaced(result, record, 0.5, skip=before)
    assert record.peak <= 2
