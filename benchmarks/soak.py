"""Two workers of one fleet against hosts and a Redis that misbehave, for as long as wanted.

    python benchmarks/soak.py --minutes 30

Thirty-two hosts at random serve, refuse (429 and 503, with every header there is), reset, hang, cut
the body, send what is not HTTP, redirect to each other, and change their latency. Every 20 s or so
the Redis is killed and started again, empty. At the end: every request has ended, nothing is in
flight or waits, no timer is set, no lease is left, open files and memory are where they were after
the first third, and no host ever saw more than its bound of 2, or 3 while Redis was gone (one for
each worker that is alone, beside what is still in flight). Loopback only. Exit status 1 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "example_project")]

from harness import SETTINGS, JobSpider, assert_idle, manager_of, pinned  # noqa: E402
from redis_server import RedisServer  # noqa: E402
from scrapy import Request  # noqa: E402
from scrapy.crawler import AsyncCrawlerProcess  # noqa: E402
from scrapy.http import Response  # noqa: E402
from twisted.python.failure import Failure  # noqa: E402

from demo.behaviours import Reply  # noqa: E402
from demo.origin import OriginThread  # noqa: E402
from demo.origin_record import Arrival  # noqa: E402

HOSTS = [f"127.0.9.{number}" for number in range(1, 33)]
WORKERS = 2
LIMIT = 2
LEASE_S = 4
KILL_EVERY_S = (10.0, 25.0)
AWAY_S = (0.5, 4.0)
MOST_GROWTH_MB = 25.0
MOST_MORE_FILES = 12
AT_ONCE = 48


class Moody:
    """One host: a mood of some seconds, and an answer that fits it."""

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.random = random.Random(seed)
        self.until = 0.0
        self.mood = "well"
        self.latency_s = 0.02

    def __call__(self, number: int, arrival: Arrival, now: float) -> Reply:
        draw = self.random
        if now >= self.until:
            self.until = now + draw.uniform(2, 8)
            self.mood = draw.choice(("well", "well", "well", "refusing", "broken", "elsewhere"))
            self.latency_s = draw.choice((0.005, 0.02, 0.05, 0.3))
        delay = self.latency_s * draw.uniform(0.5, 2)
        if self.mood == "refusing" and draw.random() < 0.5:
            return Reply(draw.choice((429, 503)), self._refusal(), delay)
        if self.mood == "broken" and draw.random() < 0.5:
            end: Any = draw.choice(("close", "mid", "garbage", "reset", "hang"))
            return Reply(end=end, delay=delay)
        if self.mood == "elsewhere" and draw.random() < 0.5:
            to = f"http://{draw.choice(HOSTS)}:{self.port}/r{number}"
            return Reply(302, {"Location": to}, delay)
        return Reply(delay=delay)

    def _refusal(self) -> dict[str, Any]:
        headers: list[dict[str, Any]] = [
            {},
            {"Retry-After": "1"},
            {"Retry-After": "0"},
            {"Retry-After": "garbage"},
            {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"},
            {"RateLimit": '"d";r=0;t=1'},
            {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"},
            {"RateLimit": "(((", "X-Filler": "x" * 4000},
        ]
        return self.random.choice(headers)


class SoakSpider(JobSpider):
    """Keeps so many requests going until its time is over, and counts how each of them ended."""

    name = "soak"

    def __init__(self, port: int = 0, seconds: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.port, self.seconds = port, seconds
        self.asked = self.came = self.failed_count = 0
        self.errors: Counter[str] = Counter()
        self.began = time.monotonic()
        self.warm: dict[str, float] = {}

    async def start(self) -> AsyncIterator[Request]:
        for _ in range(AT_ONCE):
            yield self.next_one()

    def next_one(self) -> Request:
        self.asked += 1
        url = f"http://{HOSTS[self.asked % len(HOSTS)]}:{self.port}/w{os.getpid()}-{self.asked}"
        return Request(url, callback=self.parse, errback=self.failed, dont_filter=True)

    def parse(self, response: Response) -> Any:
        self.came += 1
        yield from self._more()

    def failed(self, failure: Failure) -> Any:
        self.failed_count += 1
        self.errors[type(failure.value).__name__] += 1
        yield from self._more()

    def _more(self) -> Any:
        passed = time.monotonic() - self.began
        if passed > self.seconds / 3 and not self.warm:
            self.warm = resources()
        if passed < self.seconds:
            yield self.next_one()


def resources() -> dict[str, float]:
    """Open files, and resident memory in MB."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        pages = int(statm.read().split()[1])
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "mb": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1),
    }


def work(redis_url: str, port: int, seconds: float) -> None:
    """One worker, in a process of its own; prints how it ended."""
    process = AsyncCrawlerProcess(
        {
            **SETTINGS,
            **pinned(LIMIT),
            "SCHEDULER_PRIORITY_QUEUE": "scrapy_hostgate.HostGatePriorityQueue",
            "CONCURRENT_REQUESTS": AT_ONCE,
            "DOWNLOAD_TIMEOUT": 2,
            "RETRY_TIMES": 1,
            "HTTPERROR_ALLOW_ALL": True,
            "HOSTGATE_MAX_PAUSE": 2,
            "HOSTGATE_REFUSAL_RETRIES": 5,
            "HOSTGATE_FLEET_URL": redis_url,
            "HOSTGATE_FLEET_LEASE": LEASE_S,
            "HOSTGATE_FLEET_TIMEOUT": 1,
            "LOG_LEVEL": "ERROR",
            "MEMUSAGE_ENABLED": False,
        }
    )
    crawler = process.create_crawler(SoakSpider)
    process.crawl(crawler, port=port, seconds=seconds)
    process.start()
    spider = crawler.spider
    assert isinstance(spider, SoakSpider)
    assert crawler.engine is not None
    assert not crawler.engine.downloader.active
    assert_idle(manager_of(crawler))
    stats = crawler.stats.get_stats()
    told = {
        "asked": spider.asked,
        "came": spider.came,
        "failed": spider.failed_count,
        "errors": dict(spider.errors),
        "warm": spider.warm,
        "end": resources(),
        "refusals": stats.get("hostgate/refusals", 0),
        "outages": stats.get("hostgate/fleet/outages", 0),
        "log_errors": stats.get("log_count/ERROR", 0),
    }
    print(json.dumps(told), flush=True)


def check(workers: list[dict[str, Any]], peaks: dict[str, int], leases: int) -> list[str]:
    """What is wrong, in words."""
    wrong = []
    for number, told in enumerate(workers):
        if told["asked"] != told["came"] + told["failed"]:
            wrong.append(f"worker {number}: some requests have not ended")
        if told["end"]["files"] > told["warm"]["files"] + MOST_MORE_FILES:
            wrong.append(f"worker {number}: files are left open")
        if told["end"]["mb"] > told["warm"]["mb"] + MOST_GROWTH_MB:
            wrong.append(f"worker {number}: memory has grown")
    most = LIMIT + WORKERS - 1
    wrong += [f"{host} saw {peak} at a time" for host, peak in peaks.items() if peak > most]
    if leases:
        wrong.append(f"{leases} leases are left")
    return wrong


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--minutes", type=float, default=2.0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--worker", nargs=2, metavar=("URL", "PORT"), help=argparse.SUPPRESS)
    chosen = options.parse_args()
    seconds = 60 * chosen.minutes
    if chosen.worker:
        work(chosen.worker[0], int(chosen.worker[1]), seconds)
        return 0
    draw = random.Random(chosen.seed)
    server = RedisServer().start()
    kills = 0
    with OriginThread() as origin:
        for number, host in enumerate(HOSTS):
            origin.behaviours[host] = Moody(origin.port, chosen.seed + number)
        command = [sys.executable, __file__, "--minutes", str(chosen.minutes)]
        command += ["--worker", server.url, str(origin.port)]
        processes = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(WORKERS)
        ]
        try:
            # Redis is left alone for the last quarter minute, so that the leases can be looked at.
            quiet_at = time.monotonic() + seconds - 15
            while time.monotonic() < quiet_at:
                time.sleep(min(draw.uniform(*KILL_EVERY_S), max(0.0, quiet_at - time.monotonic())))
                if time.monotonic() < quiet_at:
                    server.kill()
                    time.sleep(draw.uniform(*AWAY_S))
                    server.start()
                    kills += 1
            outputs = [process.communicate(timeout=180)[0] for process in processes]
            leases = sum(
                int(server.command("ZCARD", f"hostgate:{{{host}}}:permits")) for host in HOSTS
            )
        finally:
            for process in processes:
                process.kill()
            server.stop()
        records = origin.records()
        peaks = {host: record.peak for host, record in records.items()}
        arrivals = sum(len(record.arrivals) for record in records.values())
    if any(process.returncode for process in processes):
        print("a worker did not end well")
        return 1
    workers = [json.loads(output.splitlines()[-1]) for output in outputs]
    for told in workers:
        print(json.dumps(told))
    seen = dict(sorted(Counter(peaks.values()).items()))
    print(f"{arrivals} arrivals, Redis killed {kills} times, leases left {leases}")
    print(f"hosts by the most that they saw at a time: {seen}")
    wrong = check(workers, peaks, leases)
    print("\n".join(wrong) or "clean")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
