"""Tells what the demo is about to do and, from the hosts' own record, what came of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.utils.asyncio import create_looping_call

from demo.hosts import HOSTS
from demo.limits import LimitHistory
from demo.origin_record import HostRecord
from demo.spiders.demo import DemoSpider
from scrapy_hostgate import HostGateMiddleware

if TYPE_CHECKING:
    from typing_extensions import Self

SAMPLE_INTERVAL_S = 0.1

_HEAD = ("host", "what it does", "limit over time", "peak", "refusals", "asked", "got")
_LEGEND = (
    "limit over time: how many requests the gate allowed in flight; peak: the most that the host\n"
    "saw in flight; refusals: how often the host said 429 or 503; asked, got: pages."
)


class DemoReport:
    """A Scrapy extension; the pattern of reading ``gates()`` is one to take along.

    Mutable state: ``_histories`` by address, and the running ``_sampling`` that fills them.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._histories: dict[str, LimitHistory] = {}
        self._began_at = time.monotonic()
        crawler.signals.connect(self._opened, signal=signals.spider_opened)
        crawler.signals.connect(self._closed, signal=signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def _opened(self) -> None:
        # Gates tell nobody of a change, so they are asked often; a change lasts for seconds.
        self._sampling = create_looping_call(self._sample)
        self._sampling.start(SAMPLE_INTERVAL_S)
        print(announcement(), flush=True)

    def _sample(self) -> None:
        gate = self._crawler.get_downloader_middleware(HostGateMiddleware)
        if gate is None:  # switched off, to see how Scrapy does without it
            return
        for address, snapshot in gate.gates().items():
            history = self._histories.setdefault(address, LimitHistory(snapshot.start))
            history.note(snapshot.limit, time.monotonic())

    def _closed(self, spider: DemoSpider, reason: str) -> None:
        self._sampling.stop()
        self._sample()
        if spider.origin is None:
            return
        try:
            records = spider.origin.records()
        finally:
            spider.origin.stop()
        print(table(records, self._histories, spider.delivered))
        complete, sentence = verdict(records, self._histories, spider.delivered)
        seconds = time.monotonic() - self._began_at
        stopped = "" if reason == "finished" else f" It was stopped early ({reason})."
        print(f"\n{sentence}{stopped} It took {seconds:.0f} s.", flush=True)
        if self._histories:
            print("The same without the gate: scrapy crawl demo -s HOSTGATE_ENABLED=0", flush=True)
        spider.exitcode = 0 if complete else 1


def announcement() -> str:
    """What is about to happen, for whoever sees the demo for the first time."""
    hosts = [f"  {host.address}  {host.name:9} {host.what}; {host.pages} pages" for host in HOSTS]
    return "\n".join(
        [
            "",
            f"This crawls {len(HOSTS)} hosts, which run on this machine only and for this demo:",
            *hosts,
            "It takes about 40 seconds. A line tells when a host's limit changes, and why; what",
            "came of it is told at the end. Ctrl-C stops early.",
            "",
        ]
    )


def table(
    records: Mapping[str, HostRecord],
    histories: Mapping[str, LimitHistory],
    delivered: Mapping[str, Set[str]],
) -> str:
    """One line for each host; how many were in flight or refused is the host's own count."""
    rows: list[Sequence[str]] = [_HEAD]
    for host in HOSTS:
        record = records.get(host.address, HostRecord(host.address))
        history = histories.get(host.address)
        rows.append(
            (
                f"{host.address} {host.name}",
                host.what,
                "no gate" if history is None else history.path,
                str(record.peak),
                str(record.refusals),
                str(host.pages),
                str(len(delivered.get(host.address, ()))),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join(["", lines[0], rule, *lines[1:], "", _LEGEND])


def verdict(
    records: Mapping[str, HostRecord],
    histories: Mapping[str, LimitHistory],
    delivered: Mapping[str, Set[str]],
) -> tuple[bool, str]:
    """Whether all went well, and one sentence that says so or what went wrong."""
    asked = sum(host.pages for host in HOSTS)
    missing = sum(len(set(host.paths) - delivered.get(host.address, set())) for host in HOSTS)
    delivery = f"{missing} of {asked} pages are missing"
    if not missing:
        delivery = f"All {asked} pages were delivered"
    ungated = [host.name for host in HOSTS if host.address not in histories]
    exceeded = [
        host.name
        for host in HOSTS
        if host.address in histories
        and host.address in records
        and histories[host.address].exceeded_by(records[host.address])
    ]
    if exceeded:
        bounds = f"more were in flight than the limit allowed at: {', '.join(exceeded)}"
    elif ungated:
        bounds = f"there was no gate at: {', '.join(ungated)}"
    else:
        bounds = "no host ever had more in flight than its limit allowed"
    return not (missing or exceeded or ungated), f"{delivery}, and {bounds}."
