"""What it costs to look on: a scrape of many hosts, an answer written down, a large report.

    python benchmarks/observe.py [--hosts 10000]

No network but one loopback port, no crawl: gates are driven by hand, on a clock that is moved by
hand. Prints milliseconds and microseconds; a scrape is measured from outside, over HTTP.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from scrapy.settings import Settings
from scrapy.utils.test import get_crawler

from scrapy_hostgate.gate import Gate
from scrapy_hostgate.observe.observer import Observer
from scrapy_hostgate.observe.prometheus import MetricsServer
from scrapy_hostgate.observe.report import write_report
from scrapy_hostgate.outcome import Outcome
from scrapy_hostgate.settings import HostGateSettings


class Clock:
    """Monotonic seconds that are set; its timers never run."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def call_later(self, delay_s: float, function: Callable[[], None]) -> Clock:
        return self

    def cancel(self) -> None:
        pass


class Bench:
    """An observer of ``hosts`` gates."""

    def __init__(self, hosts: int, **settings: Any) -> None:
        self.clock = Clock()
        checked = HostGateSettings.from_settings(Settings(settings))
        self.gates: list[Gate] = []
        self.observer = Observer(
            get_crawler(),
            checked,
            lambda: list(self.gates),
            clock=self.clock,
            call_later=self.clock.call_later,
        )
        self.observer._opened()
        for number in range(hosts):
            key = f"host{number}.example"
            gate = Gate(
                key,
                checked.law_for(key),
                checked.pace_for(key),
                clock=self.clock,
                call_later=self.clock.call_later,
                uniform=min,
                make_controller=self.observer.controller_for(key),
            )
            self.observer.made(gate)
            self.gates.append(gate)

    def answer(self, gate: Gate, outcome: Outcome, latency_s: float | None) -> None:
        self.clock.now += 0.001
        permit = gate.arrive()
        if not permit.granted:
            gate.leave(permit)
            return
        verdict = gate.record(permit, outcome, latency_s)
        self.observer.recorded(gate, outcome, verdict, "200", permit=permit)
        gate.leave(permit)

    def close(self) -> None:
        self.observer.closed()
        self.observer.stop()


def scrape_ms(hosts: int) -> tuple[float, float, int]:
    """Median and worst of twenty scrapes, and the series of the metric that has most.

    Every twentieth host is in trouble, every tenth has something in flight.
    """
    bench = Bench(hosts, HOSTGATE_WATCH=False)
    for number, gate in enumerate(bench.gates):
        for _ in range(25):
            bench.answer(gate, Outcome.OK, 0.1)
        if number % 20 == 0:
            bench.answer(gate, Outcome.REFUSED, None)
        if number % 10 == 0:
            gate.arrive()
    server = MetricsServer(bench.observer.board, "127.0.0.1", 0)
    times = []
    try:
        for _ in range(20):
            began = time.perf_counter()
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as page:
                text = page.read().decode()
            times.append((time.perf_counter() - began) * 1000)
    finally:
        server.stop()
    names = [line.partition("{")[0] for line in text.splitlines() if "{host=" in line]
    return median(times), max(times), max(map(names.count, set(names)))


def answer_us(answers: int, **settings: Any) -> float:
    """CPU per answer at twenty hosts."""
    bench = Bench(20, HOSTGATE_WATCH=False, **settings)
    began = time.process_time()
    for number in range(answers):
        bench.answer(bench.gates[number % 20], Outcome.OK, 0.1 + number % 7 * 0.01)
    used = time.process_time() - began
    bench.close()
    return used / answers * 1e6


def report_s(folder: Path, hosts: int, answers: int) -> tuple[float, float]:
    """Seconds that the report takes, and its megabytes."""
    events, report = folder / "many.jsonl", folder / "many.html"
    bench = Bench(hosts, HOSTGATE_EVENTS=str(events), HOSTGATE_WATCH=False)
    for number in range(answers):
        gate = bench.gates[number % hosts]
        refused = number % 977 == 0
        bench.answer(gate, Outcome.REFUSED if refused else Outcome.OK, None if refused else 0.1)
    bench.close()
    began = time.perf_counter()
    write_report(events, report)
    return time.perf_counter() - began, report.stat().st_size / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=10_000, help="hosts to scrape (10000)")
    hosts = parser.parse_args().hosts
    middle, worst, series = scrape_ms(hosts)
    print(f"scrape of {hosts} hosts: median {middle:.1f} ms, worst {worst:.1f} ms; "
          f"{series} labelled series at most", flush=True)  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs = [
            (answer_us(20_000), answer_us(20_000, HOSTGATE_EVENTS=str(folder / "events.jsonl")))
            for _ in range(5)
        ]
        bare, traced = (median(column) for column in zip(*pairs, strict=True))
        print(f"an answer: {bare:.1f} µs, written down {traced:.1f} µs", flush=True)
        seconds, megabytes = report_s(folder, 5_000, 50_000)
        print(f"report of 5000 hosts and 50000 answers: {seconds:.1f} s, {megabytes:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
