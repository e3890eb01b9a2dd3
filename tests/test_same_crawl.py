"""A project with the one line added gets what it got before: items, order, errors and stats.

Each site is crawled with the gate and by stock Scrapy, and both are compared.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_twisted
from harness import JobSpider, Result, crawl, pages, pinned
from scrapy import Request
from scrapy.http import Response, TextResponse

from demo.behaviours import Behaviour, Reply, query_controls
from demo.origin import Arrival, OriginThread

HOST = "127.0.0.2"
OTHER = "127.0.0.3"
STOCK: dict[str, Any] = {"DOWNLOADER_MIDDLEWARES": {}}
OURS = {"SCHEDULER_PRIORITY_QUEUE": "scrapy_hostgate.HostGatePriorityQueue"}
# Whatever Scrapy counts of requests and answers. What is left out are times, memory and the log.
COUNTED = (
    "downloader/",
    "retry/",
    "httperror/",
    "dupefilter/",
    "scheduler/",
    "httpcompression/",
    "redirect/",
    "response_received_count",
    "item_scraped_count",
    "request_depth_max",
    "finish_reason",
)
LINKS = {
    "/": ["/a", "/b", "/c", "/missing?s=404", "/broken?s=500", "/a"],
    "/a": ["/a/1", "/a/2", "/a/3"],
    "/b": ["/b/1", "/moved?to=/b/2", "/half?end=mid"],
    "/c": ["/c/1", "/refused", "/c/2"],
    "/b/1": ["/urgent", "/late", "/b/3"],
}
PRIORITIES = {"/urgent": 10, "/late": -10}


def site(other: str) -> Behaviour:
    """Pages with links (as JSON), a redirect, errors, and one page that is refused once.

    ``other`` is the address of a second host to which one page links.
    """
    refused: set[str] = set()

    def behave(number: int, arrival: Arrival, now: float) -> Reply | None:
        path = arrival.path
        if path == "/refused" and path not in refused:
            refused.add(path)
            return Reply(429, {"Retry-After": "1"})
        if "?" in path:
            return query_controls(number, arrival, now)
        links = LINKS.get(path, [])
        if path == "/a":
            links = [*links, f"{other}x", f"{other}y"]
        return Reply(headers={"Content-Type": "application/json"}, body=json.dumps(links).encode())

    return behave


class SiteSpider(JobSpider):
    """Follows every link and makes an item of every page."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.items: list[str] = []

    async def start(self) -> Any:
        for url in self.job:
            yield Request(str(url), errback=self.failed)

    def parse(self, response: Response) -> Any:
        assert isinstance(response, TextResponse)
        self.items.append(urlsplit(response.url).path)
        yield {"url": response.url, "depth": response.meta["depth"]}
        if response.headers.get("Content-Type") == b"application/json":
            for link in response.json():
                priority = PRIORITIES.get(link, 0)
                yield response.follow(link, errback=self.failed, priority=priority)


def counted(result: Result) -> dict[str, Any]:
    return {name: value for name, value in result.stats.items() if name.startswith(COUNTED)}


async def both(
    settings: dict[str, Any], gated: dict[str, Any]
) -> tuple[Result, list[str], Result, list[str]]:
    """The site crawled by stock Scrapy and with the gate, and the paths that its host saw."""
    told: list[Any] = []
    for own in (STOCK, gated):
        with OriginThread() as origin:
            origin.behaviours[HOST] = site(origin.url(OTHER))
            told.append(
                await crawl(
                    [origin.url(HOST)], settings | own, spider=SiteSpider, clean=own is gated
                )
            )
            told.append([arrival.path for arrival in origin.record(HOST).arrivals])
            assert len(origin.record(OTHER).arrivals) == 2
    return told[0], told[1], told[2], told[3]


def failed(result: Result) -> list[tuple[str, str]]:
    """What reached the errback: (path and query, type of the error)."""
    return [(url.rpartition("/")[2], type(error).__name__) for url, error in result.failures]


@pytest.mark.parametrize("queue", [{}, OURS], ids=["scrapys-queue", "our-queue"])
@pytest_twisted.ensureDeferred
async def test_several_at_a_time_items_errors_and_counts_are_the_same(
    queue: dict[str, Any],
) -> None:
    """Two hosts and 16 requests in all: the same items and errors, and all of Scrapy's counts."""
    settings = {"CONCURRENT_REQUESTS": 16, "RETRY_TIMES": 1}
    stock, stock_paths, gated, paths = await both(settings, queue)
    assert sorted(paths) == sorted(stock_paths)
    assert sorted(gated.spider.items) == sorted(stock.spider.items)
    assert len(gated.spider.items) == 17
    assert sorted(failed(gated)) == sorted(failed(stock))
    assert len(failed(gated)) == 3
    assert counted(gated) == counted(stock)
    assert gated.stats["retry/reason_count/429 Unknown Status"] == 1


def by_priority(paths: list[str]) -> dict[str, list[str]]:
    """The paths of each priority, in their order: a repeated one is a retry, below the others."""
    order: dict[str, list[str]] = {"ordinary": [], "retries": []}
    for number, path in enumerate(paths):
        if path in paths[:number]:
            order["retries"].append(path)
        elif path not in PRIORITIES and path != "/b/2":  # a redirect goes before the others
            order["ordinary"].append(path)
    return order


@pytest_twisted.ensureDeferred
async def test_one_at_a_time_the_order_is_the_same() -> None:
    """One request at a time: within each priority the host sees the same requests in the same
    order, and all of Scrapy's counts are the same."""
    # Whether a callback's follow-ups come before the next request is taken depends on turns of the
    # event loop. In a queue that is first in, first out it changes nothing within a priority.
    settings = {
        "CONCURRENT_REQUESTS": 1,
        "RETRY_TIMES": 1,
        "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
    }
    stock, stock_paths, gated, paths = await both(settings, {})
    assert by_priority(paths) == by_priority(stock_paths)
    assert sorted(paths) == sorted(stock_paths)
    assert len(by_priority(paths)["ordinary"]) == 16
    assert failed(gated) == failed(stock)
    assert counted(gated) == counted(stock)


@pytest.mark.parametrize("queue", [{}, OURS], ids=["scrapys-queue", "our-queue"])
@pytest_twisted.ensureDeferred
async def test_among_equals_who_was_first_goes_first(queue: dict[str, Any]) -> None:
    """Twenty start requests of one priority, sixteen of them in the downloader, limit 1: they
    leave in the order of the spider, as in a stock crawl."""

    async def order(settings: dict[str, Any], *, clean: bool) -> list[str]:
        with OriginThread() as origin:
            urls = pages(origin, HOST, 20)
            await crawl(urls, {"CONCURRENT_REQUESTS": 16, **settings}, clean=clean)
            arrivals = origin.record(HOST).arrivals
        return [arrival.path for arrival in arrivals]

    stock = await order({**STOCK, "CONCURRENT_REQUESTS": 1}, clean=False)
    assert stock == [f"/p{number}" for number in range(20)]
    assert await order(pinned(1) | queue, clean=True) == stock
