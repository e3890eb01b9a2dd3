"""The gates as Prometheus metrics: read at each scrape, so that no gauge can go stale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from scrapy_hostgate.observe.board import Board, HostRow
from scrapy_hostgate.observe.log import printable

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

OTHERS = "(others)"
"""The label of all hosts that have no series of their own."""


class GateCollector(Collector):
    """Makes the metrics of one crawl from its board.

    At most 99 hosts, the troubled and the busiest, have series of their own. The others are one
    more series, where a sum says something.
    """

    def __init__(self, board: Callable[[], Board]) -> None:
        self._board = board

    def describe(self) -> list[Metric]:
        """Nothing: or the registry would ask for the whole board to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        board = self._board()
        yield InfoMetricFamily("hostgate_crawl", "The crawl.", value={"spider": board.name})
        yield from _of_all(board)
        yield from _of_hosts(board)


def _of_all(board: Board) -> Iterator[Metric]:
    totals = board.totals
    for name, text, value in (
        ("hosts", "Hosts that are known now.", totals.hosts),
        ("hosts_below_start", "Hosts whose limit is below its start.", totals.below_start),
        ("hosts_paused", "Hosts that are paused.", totals.paused),
        ("in_flight", "Requests in flight, over all hosts.", totals.in_flight),
        ("waiting_for_slot", "Requests that wait for a slot.", totals.waiting_for_slot),
        (
            "waiting_for_token",
            "Requests that wait for a pause or a spacing to end.",
            totals.waiting_for_token,
        ),
        ("age_seconds", "Seconds since the crawl began.", board.age_s),
    ):
        yield GaugeMetricFamily(f"hostgate_{name}", text, value=value)
    for name, text, value in (
        ("departures", "Requests that have departed.", board.departures),
        ("refusals", "Refusals by any host.", board.refusals),
    ):
        yield CounterMetricFamily(f"hostgate_{name}", text, value=value)


# Name, help, value of a row, and the total from which that of the others follows.
_GAUGES: tuple[tuple[str, str, Callable[[HostRow], float | None], str | None], ...] = (
    ("limit", "How many requests may be in flight.", lambda row: row.limit, "limit"),
    ("in_flight", "Requests in flight.", lambda row: row.in_flight, "in_flight"),
    (
        "waiting_for_slot",
        "Requests that wait for a slot.",
        lambda row: row.waiting_for_slot,
        "waiting_for_slot",
    ),
    (
        "waiting_for_token",
        "Requests that wait for a pause or a spacing to end.",
        lambda row: row.waiting_for_token,
        "waiting_for_token",
    ),
    ("spacing_seconds", "Seconds between departures.", lambda row: row.spacing_s, None),
    (
        "latency_baseline_seconds",
        "The p95 latency that is usual here.",
        lambda row: row.baseline_s,
        None,
    ),
    (
        "latency_median_seconds",
        "Median of the latest latencies.",
        lambda row: row.median_s,
        None,
    ),
)


def _of_hosts(board: Board) -> Iterator[Metric]:
    totals = board.totals
    unnamed = totals.hosts - len(board.rows)
    for name, text, of_row, summed in _GAUGES:
        metric = GaugeMetricFamily(f"hostgate_host_{name}", text, labels=["host"])
        values = [(printable(row.host), of_row(row)) for row in board.rows]
        for host, value in values:
            if value is not None:
                metric.add_metric([host], value)
        if summed is not None and unnamed > 0:
            rest = getattr(totals, summed) - sum(value or 0 for _, value in values)
            metric.add_metric([OTHERS], max(0, rest))
        yield metric
    paused = GaugeMetricFamily(
        "hostgate_host_paused_until_timestamp_seconds",
        "Unix time at which the pause ends, 0 without one.",
        labels=["host"],
    )
    for row in board.rows:
        paused.add_metric([printable(row.host)], board.at + row.paused_s if row.paused_s > 0 else 0)
    yield paused
    # No series for the others here: hosts join and leave them, and a counter must never fall.
    for name, text in (
        ("departures", "Requests that have departed."),
        ("refusals", "Refusals."),
    ):
        counter = CounterMetricFamily(f"hostgate_host_{name}", text, labels=["host"])
        for row in board.rows:
            counter.add_metric([printable(row.host)], getattr(row, name))
        yield counter


class MetricsServer:
    """Serves the metrics of one crawl over HTTP, from a thread of its own."""

    def __init__(self, board: Callable[[], Board], address: str, port: int) -> None:
        """Port 0 is any free one. Raises ``OSError`` if it cannot be had."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(GateCollector(board))
        server, thread = start_http_server(port, address, registry)
        self._server: Any = server
        self._thread = thread
        self.port: int = server.server_port

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
