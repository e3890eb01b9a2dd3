"""What many hosts cost: CPU per scheduled request, and memory per host.

    python benchmarks/many_hosts.py cpu                  # the scheduler's queue and the gates
    python benchmarks/many_hosts.py cpu --queue stock    # Scrapy's DownloaderAwarePriorityQueue
    python benchmarks/many_hosts.py memory               # of a learnt host, and of a forgotten one
    python benchmarks/many_hosts.py growth               # a whole crawl over 200,000 hosts

``cpu``: a scheduler holds a request for each of so many hosts, and a few thousand go round: taken
out as the engine takes them, 16 at a time at their gates, given back, and the next page of the same
host put in. Nothing is downloaded and the rest of Scrapy is left out, so a small cost shows. It
counts the creation of the requests too. ``--closed 0.9`` pauses that share of the hosts. Exit
status 1 if the largest number of hosts costs more than ``--limit`` times what 100 cost.

``memory``: gates as the middleware keeps them, with their views in ``downloader.slots``; bytes as
tracemalloc counts them. A learnt host has full windows of latencies; the forgotten ones were seen
once each and did not fit into the table. Exit status 1 above 2,048 and 307 bytes.

``growth``: one page of each host, answered from memory; the resident memory of the process at every
tenth of the way, with and without the middleware and its queue. Takes minutes. Exit status 1 if,
after the first tenth, the crawl with them grows by more than 10 MB more than the one without.

Each measurement is a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import AsyncIterator
from statistics import median
from typing import Any

from scrapy import Request, Spider
from scrapy.core.downloader import Slot
from scrapy.core.scheduler import Scheduler
from scrapy.crawler import CrawlerProcess
from scrapy.http import HtmlResponse, Response

from scrapy_hostgate import HostGateMiddleware, hostkey
from scrapy_hostgate.outcome import Outcome

IN_FLIGHT = 16
GATED: dict[str, Any] = {
    "DOWNLOADER_MIDDLEWARES": {"scrapy_hostgate.HostGateMiddleware": 1000},
    "SCHEDULER_PRIORITY_QUEUE": "scrapy_hostgate.HostGatePriorityQueue",
}
QUIET: dict[str, Any] = {
    "LOG_LEVEL": "ERROR",
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "DUPEFILTER_CLASS": "scrapy.dupefilters.BaseDupeFilter",
}


class MemoryHandler:
    """A download handler that answers from memory, after one turn of the event loop."""

    lazy = False

    async def download_request(self, request: Request) -> Response:
        await asyncio.sleep(0)
        request.meta["download_latency"] = 0.001
        return HtmlResponse(request.url, body=b"<p>page</p>", encoding="utf-8", request=request)

    async def close(self) -> None:
        pass


class Measure(Spider):
    """Calls ``task`` with its crawler where the engine is ready and has nothing to do."""

    name = "measure"
    task: Any

    async def start(self) -> AsyncIterator[Any]:
        self.told = type(self).task(self.crawler)
        return
        yield


def in_a_crawler(task: Any, settings: dict[str, Any]) -> Any:
    process = CrawlerProcess({**QUIET, **settings})
    crawler = process.create_crawler(type("Task", (Measure,), {"task": staticmethod(task)}))
    process.crawl(crawler)
    process.start()
    return crawler.spider.told


# --- cpu ----------------------------------------------------------------------------------


def cpu(hosts: int, rounds: int, queue: str, closed: float) -> dict[str, float]:
    """Microseconds of CPU per request, the median of ten parts of the run."""

    def task(crawler: Any) -> dict[str, float]:
        scheduler = Scheduler.from_crawler(crawler)
        scheduler.open(crawler.spider)
        downloader = crawler.engine.downloader
        gated = crawler.get_downloader_middleware(HostGateMiddleware)
        manager = gated.manager if gated else None
        names = [f"host{n}.example" for n in range(hosts)]
        if manager is not None:
            for name in names[: int(closed * hosts)]:
                manager.refuse(name, 900)
        numbers = iter(range(10**9))
        for n in range(max(hosts, 2 * IN_FLIGHT)):
            scheduler.enqueue_request(page(names[n % hosts], next(numbers)))
        flying: deque[Any] = deque()

        def depart(request: Request) -> None:
            downloader.active.add(request)
            if manager is None:
                key = downloader.get_slot_key(request)
                slot = downloader.slots.setdefault(key, Slot(8, 0, 0.0))
                slot.active.add(request)
                flying.append((request, key, slot))
                return
            gate = manager.registry.gate(manager.keys.of_request(request))
            permit = gate.arrive()
            manager.dispatch.arrived(request)
            flying.append((request, gate, permit))

        def land() -> None:
            request, at, claim = flying.popleft()
            if manager is None:
                claim.active.remove(request)
                if not claim.active:
                    del downloader.slots[at]
                host = at
            else:
                at.answered(0.1)
                at.leave(claim)
                manager.dispatch.changed(at.key)
                host = at.key
            downloader.active.remove(request)
            scheduler.enqueue_request(page(host, next(numbers)))

        def go_round(times: int) -> None:
            done = 0
            while done < times:
                request = scheduler.next_request() if len(flying) < IN_FLIGHT else None
                if request is None:
                    land()
                else:
                    depart(request)
                    done += 1

        go_round(rounds)
        parts = []
        for _ in range(10):
            began = time.process_time()
            go_round(rounds // 10)
            parts.append((time.process_time() - began) / (rounds // 10) * 1e6)
        downloader.active.clear()
        downloader.slots.clear()
        return {"us": median(parts)}

    settings = {} if queue == "stock" else GATED
    return in_a_crawler(task, settings)  # type: ignore[no-any-return]


def page(host: str, number: int) -> Request:
    return Request(f"http://{host}/{number}", dont_filter=True)


# --- memory -------------------------------------------------------------------------------


def memory(hosts: int, visits: int, kept: int) -> dict[str, float]:
    """Bytes per host after so many visits to each, in a table of ``kept``."""

    def task(crawler: Any) -> dict[str, float]:
        manager = crawler.get_downloader_middleware(HostGateMiddleware).manager
        visit(manager, 20, 1, "warm")
        hostkey._remembered.cache_clear()
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        visit(manager, hosts, visits, "host")
        # The last few thousand names are cached, however many hosts there are.
        hostkey._remembered.cache_clear()
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        return {"bytes": used / hosts, "kept": len(manager.registry)}

    return in_a_crawler(task, {**GATED, "HOSTGATE_MAX_HOSTS": kept})  # type: ignore[no-any-return]


def visit(manager: Any, hosts: int, visits: int, name: str) -> None:
    """What the manager does with each download, without the download."""
    slots = manager._slots()
    for n in range(hosts):
        for number in range(visits):
            request = page(f"{name}{n}.example", number)
            gate = manager.registry.gate(manager.keys.of_request(request))
            permit = gate.arrive()
            shown = manager._views.enter(slots, gate, request, request.meta, gate.key)
            gate.answered(0.1)
            gate.record(permit, Outcome.OK, 0.1 + number % 7 / 1000)
            gate.leave(permit)
            manager._views.leave(request, request.meta, shown)


# --- growth -------------------------------------------------------------------------------


def growth(hosts: int, gated: bool) -> dict[str, Any]:
    """Resident megabytes at each tenth of a crawl of one page for each host."""
    told: list[float] = []

    class Broad(Spider):
        name = "broad"
        seen = 0

        async def start(self) -> AsyncIterator[Any]:
            for n in range(hosts):
                yield page(f"host{n}.example", 0)

        def parse(self, response: Response) -> None:
            self.seen += 1
            if self.seen % (hosts // 10) == 0:
                gc.collect()
                told.append(resident_mb())

    settings = {
        **QUIET,
        **(GATED if gated else {}),
        "DOWNLOAD_HANDLERS": {"http": f"{__name__}.MemoryHandler"},
        "CONCURRENT_ITEMS": 1,
        "COOKIES_ENABLED": False,
    }
    process = CrawlerProcess(settings)
    process.crawl(Broad)
    process.start()
    return {"mb": told}


def resident_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


# --- processes and tables -----------------------------------------------------------------

MEASUREMENTS = {"cpu": cpu, "memory": memory, "growth": growth}


def child(what: str, **arguments: Any) -> dict[str, Any]:
    """Run one measurement in a process of its own."""
    told = subprocess.run(
        [sys.executable, __file__, "child", what, json.dumps(arguments)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=3600,
    )
    return json.loads(told.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def report_cpu(options: argparse.Namespace) -> bool:
    cost = {}
    for hosts in sorted({100, *options.hosts}):
        cost[hosts] = child(
            "cpu", hosts=hosts, rounds=options.rounds, queue=options.queue, closed=options.closed
        )["us"]
        print(f"{hosts:>8,} hosts pending: {cost[hosts]:7.1f} µs of CPU per request", flush=True)
    ratio = cost[max(cost)] / cost[100]
    print(f"{max(cost):,} hosts cost {ratio:.2f} times what 100 cost (limit {options.limit})")
    return ratio <= options.limit


def report_memory(options: argparse.Namespace) -> bool:
    learnt = child("memory", hosts=2000, visits=100, kept=10_000)
    once = child("memory", hosts=20_000, visits=1, kept=100)
    print(f"a learnt host: {learnt['bytes']:.0f} bytes ({learnt['kept']} kept)")
    print(f"a host seen once and forgotten: {once['bytes']:.1f} bytes ({once['kept']} kept)")
    return bool(learnt["bytes"] <= 2048 and once["bytes"] <= 307)


def report_growth(options: argparse.Namespace) -> bool:
    grown = {}
    for gated in (False, True):
        told = child("growth", hosts=options.total, gated=gated)["mb"]
        grown[gated] = told[-1] - told[0]
        print(f"{'gated' if gated else 'stock'}: {' '.join(f'{mb:.0f}' for mb in told)} MB")
    print(f"after the first tenth: stock {grown[False]:+.1f} MB, gated {grown[True]:+.1f} MB")
    return grown[True] - grown[False] <= 10


def main() -> int:
    if sys.argv[1:2] == ["child"]:
        print(json.dumps(MEASUREMENTS[sys.argv[2]](**json.loads(sys.argv[3]))))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=MEASUREMENTS)
    parser.add_argument("--queue", choices=["hostgate", "stock"], default="hostgate")
    parser.add_argument("--hosts", type=int, nargs="+", default=[10, 100, 1000, 100_000])
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--closed", type=float, default=0.0)
    parser.add_argument("--limit", type=float, default=1.5)
    parser.add_argument("--total", type=int, default=200_000)
    options = parser.parse_args()
    report = {"cpu": report_cpu, "memory": report_memory, "growth": report_growth}
    return 0 if report[options.what](options) else 1


if __name__ == "__main__":
    sys.exit(main())
