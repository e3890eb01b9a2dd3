"""The metrics, judged by prometheus-client's own parser and by the host's own record."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from fakes import FakeClock, middle
from harness import crawl, manager_of, middleware_of, pages
from prometheus_client.parser import text_string_to_metric_families
from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.threads import deferToThread

from demo.behaviours import refuse_above, steady
from demo.origin import OriginThread
from demo.origin_record import HostRecord
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.observe.observer import Observer
from scrapy_hostgate.observe.prometheus import OTHERS, MetricsServer
from scrapy_hostgate.outcome import Outcome
from scrapy_hostgate.settings import HostGateSettings

HOST, OTHER = "127.0.0.2", "127.0.0.3"
# Generous: a busy machine notices an answer late, and the pause below is six times as long.
TRANSIT_S = 0.5
DOCS = Path(__file__).resolve().parent.parent / "docs"


def in_flight_at(record: HostRecord, since: float, until: float) -> set[int]:
    """Every number of requests that the host had at any time from ``since`` to ``until``."""
    steps = [(arrival.at, 1) for arrival in record.arrivals]
    steps += [(arrival.ended, -1) for arrival in record.arrivals if arrival.ended is not None]
    counts, count = set(), 0
    for at, step in sorted(steps):
        if at >= since:
            counts.add(count)
        if at > until:
            return counts
        count += step
    return counts | {count}


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()  # type: ignore[no-any-return]


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Values by name and host (an empty text for totals)."""
    return {
        (sample.name, sample.labels.get("host", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class ManyGates:
    """An observer of as many gates as you like, each with something to tell."""

    def __init__(self, count: int) -> None:
        clock = FakeClock()
        settings = HostGateSettings.from_settings(Settings())
        self.gates: list[Gate] = []
        self.observer = Observer(
            get_crawler(),
            settings,
            lambda: list(self.gates),
            clock=clock,
            call_later=clock.call_later,
        )
        for number in range(count):
            key = f"host{number}.example"
            gate = Gate(
                key, settings.law_for(key), settings.pace_for(key), clock=clock,
                call_later=clock.call_later, uniform=middle,
            )  # fmt: skip
            self.observer.made(gate)
            self.gates.append(gate)
            permits = [gate.arrive() for _ in range(number % 4)]
            if number % 100 == 3:
                verdict = gate.record(permits[0], Outcome.REFUSED, None, 60.0)
                self.observer.recorded(gate, Outcome.REFUSED, verdict, "429", permit=permits[0])


def test_ten_thousand_hosts_are_a_hundred_series() -> None:
    """The troubled and the busy by name, the rest as one; sums over both are the truth."""
    many = ManyGates(10_000)
    server = MetricsServer(many.observer.board, "127.0.0.1", 0)
    try:
        text = scrape(server.port)
    finally:
        server.stop()
    families = list(text_string_to_metric_families(text))
    for family in families:
        assert len(family.samples) <= 100, family.name
    values = parsed(text)
    for name, attribute in (("limit", "limit"), ("in_flight", "in_flight")):
        series = {host: v for (metric, host), v in values.items()
                  if metric == f"hostgate_host_{name}"}  # fmt: skip
        assert len(series) == 100
        assert OTHERS in series
        assert sum(series.values()) == sum(getattr(gate, attribute) for gate in many.gates)
    refused = {gate.key for gate in many.gates if gate.refusals}
    named = {host for metric, host in values if metric == "hostgate_host_refusals_total"}
    assert len(refused) == 100
    assert len(named) == 99
    assert named <= refused
    assert values["hostgate_refusals_total", ""] == 100
    assert values["hostgate_hosts_paused", ""] == 100
    assert values["hostgate_hosts", ""] == 10_000


def test_the_dashboard_shows_what_there_is() -> None:
    """Every metric that a panel asks for is served, and every one that is served is shown."""
    server = MetricsServer(ManyGates(10).observer.board, "127.0.0.1", 0)
    try:
        served = {name for name, _ in parsed(scrape(server.port))}
    finally:
        server.stop()
    # Unknown before there are samples, and about the crawl rather than its hosts.
    served |= {f"hostgate_host_latency_{which}_seconds" for which in ("baseline", "median")}
    served -= {"hostgate_age_seconds", "hostgate_crawl_info"}
    dashboard = json.loads((DOCS / "grafana-dashboard.json").read_text(encoding="utf-8"))
    panels = dashboard["panels"]
    asked = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    # The rate over all hosts is the sum; departures of single hosts are for the curious.
    assert set(re.findall(r"hostgate_\w+", asked)) == served - {"hostgate_host_departures_total"}
    for panel in panels:
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]


def test_odd_keys_are_valid_labels() -> None:
    """A key function may make anything of a host."""
    many = ManyGates(1)
    many.gates[0].key = 'a"b\\c\nd\ud800'
    server = MetricsServer(many.observer.board, "127.0.0.1", 0)
    try:
        values = parsed(scrape(server.port))
    finally:
        server.stop()
    assert values["hostgate_host_limit", repr(many.gates[0].key)] == 2


@pytest_twisted.ensureDeferred
async def test_gauges_agree_with_the_hosts_own_record() -> None:
    """Scraped throughout a crawl: what is in flight is what the host has then, give or take what is
    in transit; everything is at 0 after it, and the counters are the host's own."""
    pages_seen: list[tuple[float, float, str]] = []
    at_the_end: list[dict[tuple[str, str], float]] = []

    def watch(crawler: Crawler) -> None:
        crawler.signals.connect(look, signals.response_received)
        crawler.signals.connect(look_at_the_end, signals.spider_closed)
        crawlers.append(crawler)

    crawlers: list[Crawler] = []
    scraping: list[Deferred[None]] = []

    def port() -> int:
        metrics: Any = manager_of(crawlers[0])._observer._views._metrics
        return metrics.port  # type: ignore[no-any-return]

    def look() -> None:
        began = time.monotonic()

        def keep(text: str) -> None:
            pages_seen.append((began, time.monotonic(), text))

        scraping.append(deferToThread(scrape, port()).addCallback(keep))

    def look_at_the_end() -> None:
        # After the middleware's own last word, and from this thread: nothing moves meanwhile.
        at_the_end.append(parsed(scrape(port())))

    with OriginThread({HOST: steady(0.1), OTHER: refuse_above(1, 0.05, retry_after="3")}) as origin:
        result = await crawl(
            pages(origin, HOST, 60) + pages(origin, OTHER, 15),
            {"HOSTGATE_PROMETHEUS_PORT": 0, "HOSTGATE_RECOVERY_DELAY": 0.3},
            on_start=watch,
        )
        await DeferredList(scraping)
        records = {host: origin.record(host) for host in (HOST, OTHER)}
    assert result.statuses.count(200) == 75
    scrapes = [(since, until, parsed(text)) for since, until, text in pages_seen]
    assert len(scrapes) >= 75
    for host, record in records.items():
        seen = [
            (since, until, values.get(("hostgate_host_in_flight", host), 0))
            for since, until, values in scrapes
        ]
        assert {value for _, _, value in seen} >= ({0, 1} if host == OTHER else {2})
        assert [
            (since, until, value)
            for since, until, value in seen
            if value not in in_flight_at(record, since - TRANSIT_S, until + TRANSIT_S)
        ] == []
        last = at_the_end[0]
        for gauge in ("in_flight", "waiting_for_slot", "waiting_for_token"):
            assert last[f"hostgate_host_{gauge}", host] == 0
            assert last[f"hostgate_{gauge}", ""] == 0
        assert last["hostgate_host_refusals_total", host] == record.refusals
        assert last["hostgate_host_departures_total", host] == len(record.arrivals)
    assert records[OTHER].refusals > 0


@pytest_twisted.ensureDeferred
async def test_a_port_that_is_taken_ends_no_crawl() -> None:
    """One clear message, and every page."""
    taken = MetricsServer(ManyGates(0).observer.board, "127.0.0.1", 0)
    try:
        with OriginThread({HOST: steady(0.01)}) as origin:
            result = await crawl(pages(origin, HOST, 3), {"HOSTGATE_PROMETHEUS_PORT": taken.port})
    finally:
        taken.stop()
    assert result.statuses == [200] * 3
    told = [line for line in result.gate_log if "metrics" in line.lower()]
    assert told == [
        f"No metrics on 127.0.0.1:{taken.port} (Address already in use): "
        "the crawl goes on without them"
    ]


@pytest_twisted.ensureDeferred
async def test_a_missing_extra_ends_no_crawl(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names it."""
    import sys

    monkeypatch.setitem(sys.modules, "scrapy_hostgate.observe.prometheus", None)
    with OriginThread({HOST: steady(0.01)}) as origin:
        result = await crawl(pages(origin, HOST, 1), {"HOSTGATE_PROMETHEUS_PORT": 0})
    assert result.statuses == [200]
    assert any("scrapy-hostgate[prometheus]" in line for line in result.gate_log)
    assert middleware_of(result.crawler).gates()[HOST].departures == 1
