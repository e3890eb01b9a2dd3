"""Many hosts: the table, the timers, the stats and the memory stay small."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from harness import JobSpider, crawl, manager_of
from scrapy import Request
from scrapy.http import Response
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet import defer

from scrapy_hostgate import HostGatePriorityQueue

HOSTS = 1500
REFUSING = [f"h{n}.test" for n in range(100, HOSTS, 100)]
KEPT = 100
BENCHMARK = Path(__file__).resolve().parent.parent / "benchmarks" / "many_hosts.py"


class MemoryHandler:
    """A download handler that answers from memory; some hosts refuse for a minute."""

    lazy = False

    async def download_request(self, request: Request) -> Response:
        waited: defer.Deferred[None] = defer.Deferred()
        from twisted.internet import reactor

        reactor.callLater(0, waited.callback, None)  # type: ignore[attr-defined]
        await maybe_deferred_to_future(waited)
        status = 429 if request.url.split("/")[2] in REFUSING else 200
        headers = {"Retry-After": "60"} if status == 429 else {}
        return Response(request.url, status, headers, request=request)

    async def close(self) -> None:
        pass


class Watch(JobSpider):
    """Looks at the manager at every hundredth page, and at the memory half-way and at the end."""

    async def start(self) -> Any:
        self.hosts: list[int] = []
        self.views: list[int] = []
        self.timers: list[int] = []
        self.megabytes: list[float] = []
        self.seen = 0
        async for request in super().start():
            yield request

    def ask(self, request: Request | str) -> Request:
        assert isinstance(request, str)
        return Request(request, self.look, errback=self.look, meta={"dont_retry": True})

    def look(self, _: object) -> None:
        self.seen += 1
        if self.seen % (HOSTS // 2) == 0:
            gc.collect()
            self.megabytes.append(resident_mb())
        if self.seen % 100:
            return
        manager = manager_of(self.crawler)
        self.hosts.append(len(manager.registry))
        self.views.append(len(manager._slots()))
        self.timers.append(sum(gate.semaphore._timer is not None for gate in manager.registry))


def resident_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")
@pytest_twisted.ensureDeferred
async def test_thousands_of_hosts_leave_little_behind() -> None:
    """1,500 hosts, a page each, 14 of them paused: at most 100 gates and the paused ones are kept,
    as many views, no timer for any of them, no stats for each, and no memory that grows (HG-19)."""
    settings = {
        "SCHEDULER_PRIORITY_QUEUE": HostGatePriorityQueue,
        "DOWNLOAD_HANDLERS": {"http": MemoryHandler},
        "HOSTGATE_MAX_HOSTS": KEPT,
        "CONCURRENT_ITEMS": 1,
        "LOG_LEVEL": "INFO",
    }
    result = await crawl([f"http://h{n}.test/" for n in range(HOSTS)], settings, spider=Watch)
    watch = result.spider
    assert watch.seen == HOSTS
    assert max(watch.hosts) <= KEPT + len(REFUSING) + 16
    assert max(watch.views) <= KEPT + len(REFUSING) + 16
    assert max(watch.timers) == 0
    kept = list(result.manager.registry)
    assert sum(gate.limit == 1 for gate in kept) == len(REFUSING)
    assert len([name for name in result.stats if name.startswith("hostgate/host/")]) <= 50 * 8
    assert watch.megabytes[1] - watch.megabytes[0] < 10


@pytest.mark.parametrize(
    ("what", "size", "figure"),
    [
        ("memory", {"hosts": 20, "visits": 5, "kept": 100}, "bytes"),
        ("cpu", {"queue": "hostgate", "hosts": 20, "rounds": 100, "closed": 0.5}, "us"),
    ],
)
def test_the_benchmark_still_measures(what: str, size: dict[str, Any], figure: str) -> None:
    """It calls the gates as the slot manager does, so it has to change when that does."""
    command = [sys.executable, str(BENCHMARK), "child", what, json.dumps(size)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)[figure] > 0
