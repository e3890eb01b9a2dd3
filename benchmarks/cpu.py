"""CPU per request: the gate against Scrapy's own slots.

    python benchmarks/cpu.py
    python benchmarks/cpu.py --b stock-again        # how much of a ratio is noise?

Every request is answered from memory after one turn of the event loop: no socket, no DNS, no
waiting. What is left is Scrapy's own work, so this is the *hardest* case for the gate: with a
real network in it, the same extra microseconds are a smaller share of each request.

Sides (``--a``, ``--b``):

- ``stock``: plain Scrapy;
- ``hostgate``: the same, with ``scrapy_hostgate.HostGateMiddleware`` at 1000 and nothing else;
- ``observed``: the gate with everything on that looks at it: events, metrics, live view
  (``--a hostgate --b observed`` is what that costs);
- ``stock-again``: plain Scrapy under another name; ``--b stock-again`` shows the noise floor.

Each measurement is a fresh process that counts user and system time from ``spider_opened`` to
``spider_closed``: imports and start-up are left out. The two of a pair run *at the same time on
the same CPU*, which takes turns between them every few milliseconds: whatever slows the machine
down, for a second or for a minute, burdens both alike. Run one after the other, two identical
sides differed by up to a tenth here; like this by half a percent. The verdict is on the median of
the ratios B / A within each pair. Figures in microseconds are higher than those of a process that
has a CPU and its caches for itself.

Scrapy's default ``DownloaderAwarePriorityQueue`` is kept on both sides. It looks at every host
it has requests for, each time it hands one out, so a pop costs O(hosts). With 1,000 hosts this
shared cost is a large part of each request and brings the ratio nearer to 1: the row with few
hosts says more about the gate's own cost, the row with many whether that cost grows with hosts
(the queue also asks the downloader's slots about each of them).

``CONCURRENT_ITEMS`` is Scrapy's default of 100 on both sides, for which Scrapy starts a hundred
tasks per response on the asyncio reactor: much of what is measured. ``--items 1`` leaves them out.
CPU seconds of a shared machine wander by several percent; callgrind's count of instructions does
not (run it on ``--child stock --requests N`` and ``--child hostgate --requests N`` for two N).

Exit status: 0 within ``--limit``, 1 above it, 2 when something could not be measured (a missing
package, a crawl that failed or left a request unanswered).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

import scrapy
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler, CrawlerProcess
from scrapy.http import HtmlResponse, Response
from scrapy.utils.misc import load_object

try:
    import resource
except ImportError:  # not on Windows
    sys.exit("benchmarks/cpu.py needs the resource module, which this platform does not have")

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from twisted.python.failure import Failure

GATE = "scrapy_hostgate.HostGateMiddleware"
SIDES: dict[str, dict[str, Any]] = {
    "stock": {},
    "stock-again": {},
    "hostgate": {"DOWNLOADER_MIDDLEWARES": {GATE: 1000}, "HOSTGATE_WATCH": False},
    "observed": {
        "DOWNLOADER_MIDDLEWARES": {GATE: 1000},
        "HOSTGATE_EVENTS": "events-%(pid)s.jsonl",
        "HOSTGATE_PROMETHEUS_PORT": 0,
    },
}
BODY = b"<html><head><title>page</title></head><body><p>text</p></body></html>"
CHILD_TIMEOUT_S = 600


class NotMeasuredError(Exception):
    """A measurement is missing or not comparable; the message says why."""


# --- one crawl, in a process of its own ---------------------------------------------------


class MemoryHandler:
    """A download handler that answers at once, from memory."""

    lazy = False

    async def download_request(self, request: Request) -> Response:
        start = monotonic()
        # One turn of the loop, as the fastest real download takes at least one: an answer
        # within the same turn would never leave two requests in flight.
        await asyncio.sleep(0)
        # Scrapy's own handlers set it, and AutoThrottle and the gate read it.
        request.meta["download_latency"] = monotonic() - start
        return HtmlResponse(request.url, body=BODY, encoding="utf-8", request=request)

    async def close(self) -> None:
        pass


class ManyHosts(Spider):
    """Asks for ``requests`` pages, spread evenly over ``hosts`` hosts."""

    # A backlog is what a broad crawl has. Scrapy takes from start() only as much as it can
    # send, so the requests come from a callback: the queue then really holds every host.
    # "data:" goes Scrapy's own way on every side.

    name = "many_hosts"

    def __init__(self, requests: int, hosts: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.requests = requests
        self.hosts = hosts
        self.answered = 0

    async def start(self) -> AsyncIterator[Any]:
        yield Request("data:,", callback=self.parse_seed)

    def parse_seed(self, response: Response) -> Iterator[Request]:
        for n in range(self.requests):
            yield Request(f"http://h{n % self.hosts}.test/{n}")

    def parse(self, response: Response, **kwargs: Any) -> None:
        self.answered += response.status == 200


def cpu_s() -> float:
    """User and system seconds that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Meter:
    """Reads both clocks when the spider opens and when it closes."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.begun: tuple[float, float] | None = None
        self.used: tuple[float, float] | None = None
        crawler.signals.connect(self.opened, signal=signals.spider_opened)
        crawler.signals.connect(self.closed, signal=signals.spider_closed)

    def opened(self) -> None:
        # Start-up garbage differs between the sides; its collection is not the crawl's cost.
        gc.collect()
        self.begun = cpu_s(), perf_counter()

    def closed(self) -> None:
        if self.begun is not None:
            self.used = cpu_s() - self.begun[0], perf_counter() - self.begun[1]


@dataclass(frozen=True)
class Measurement:
    """One crawl: microseconds per request, of CPU and of wall clock."""

    cpu_us: float
    wall_us: float


def crawl_settings(side: str, items: int) -> dict[str, Any]:
    """Scrapy's defaults, but for what would measure something else."""
    return {
        "CONCURRENT_ITEMS": items,
        "CONCURRENT_REQUESTS": 32,
        "DOWNLOAD_HANDLERS": {"http": MemoryHandler, "https": MemoryHandler},
        "LOG_FILE": os.devnull,
        "LOG_LEVEL": "INFO",
        "ROBOTSTXT_OBEY": False,
        "TELNETCONSOLE_ENABLED": False,
        **SIDES[side],
    }


def pin_to_one_cpu() -> None:
    """Stay on one CPU, where the platform can: moves between CPUs cost cold caches."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def print_failure(failure: Failure) -> None:
    # The log goes to devnull, so a crawl that cannot start must say so here.
    sys.stderr.write(failure.getTraceback())


def crawl(side: str, requests: int, hosts: int, items: int) -> Measurement:
    """Crawl once in this process; raise NotMeasuredError if not every request was answered."""
    process = CrawlerProcess(crawl_settings(side, items))
    crawler = process.create_crawler(ManyHosts)
    meter = Meter(crawler)
    process.crawl(crawler, requests=requests, hosts=hosts).addErrback(print_failure)
    process.start()
    check_crawl(crawler, side, requests)
    if meter.used is None:
        raise NotMeasuredError("the spider never closed")
    cpu, wall = meter.used
    return Measurement(cpu_us=cpu / requests * 1e6, wall_us=wall / requests * 1e6)


def check_crawl(crawler: Crawler, side: str, requests: int) -> None:
    """Raise NotMeasuredError unless the crawl did the whole work, on the side it claims."""
    spider = crawler.spider
    if not isinstance(spider, ManyHosts) or crawler.stats is None:
        raise NotMeasuredError("the crawl did not start")
    if spider.answered != requests:
        raise NotMeasuredError(f"answered {spider.answered} of {requests} requests")
    errors = crawler.stats.get_value("log_count/ERROR", 0)
    if errors:
        raise NotMeasuredError(f"the crawl logged {errors} errors")
    # Scrapy drops a middleware that raises NotConfigured: that would be stock against stock.
    for path in SIDES[side].get("DOWNLOADER_MIDDLEWARES", {}):
        if crawler.get_downloader_middleware(load_object(path)) is None:
            raise NotMeasuredError(f"{path} is not enabled")


def run_child(side: str, requests: int, hosts: int, items: int) -> int:
    """The hidden ``--child``: one crawl, one line of JSON on stdout."""
    pin_to_one_cpu()
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            measurement = crawl(side, requests, hosts, items)
            os.chdir("/")
    except NotMeasuredError as exc:
        print(exc, file=sys.stderr)
        return 2
    print(json.dumps(asdict(measurement)))
    return 0


# --- the comparison -----------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """All pairs of one host count, in the order they ran."""

    hosts: int
    a: list[Measurement]
    b: list[Measurement]

    @property
    def ratios(self) -> list[float]:
        return [b.cpu_us / a.cpu_us for a, b in zip(self.a, self.b, strict=True)]

    @property
    def added_us(self) -> list[float]:
        return [b.cpu_us - a.cpu_us for a, b in zip(self.a, self.b, strict=True)]

    def within(self, limit: float) -> bool:
        return median(self.ratios) <= limit

    def summary(self, limit: float) -> dict[str, Any]:
        return {
            "hosts": self.hosts,
            "a_cpu_us": median(m.cpu_us for m in self.a),
            "b_cpu_us": median(m.cpu_us for m in self.b),
            "a_wall_us": median(m.wall_us for m in self.a),
            "b_wall_us": median(m.wall_us for m in self.b),
            "added_cpu_us": median(self.added_us),
            "ratio": median(self.ratios),
            "ratio_min": min(self.ratios),
            "ratio_max": max(self.ratios),
            "pass": self.within(limit),
        }


def start(side: str, args: argparse.Namespace, hosts: int, seed: int) -> subprocess.Popen[str]:
    """Begin one crawl of ``side`` in a fresh process."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", side]
    command += ["--requests", str(args.requests), "--hosts", str(hosts)]
    command += ["--items", str(args.items)]
    # The hash seed decides how sets and dicts collide: equal within a pair, varied between.
    env = {**os.environ, "PYTHONHASHSEED": str(seed)}
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(child: subprocess.Popen[str], where: str) -> Measurement:
    """Wait for what was started. Raises NotMeasuredError."""
    try:
        output, errors = child.communicate(timeout=CHILD_TIMEOUT_S)
    except subprocess.TimeoutExpired as exc:
        child.kill()
        child.communicate()
        raise NotMeasuredError(f"{where}: no end after {CHILD_TIMEOUT_S} s") from exc
    if child.returncode != 0:
        raise NotMeasuredError(f"{where}: {errors.strip() or f'exit {child.returncode}'}")
    return Measurement(**json.loads(output))


def compare(args: argparse.Namespace, hosts: int) -> Comparison:
    """Run the pairs, the two of each at once; the first pair only warms the machine up."""
    result = Comparison(hosts, [], [])
    for pair in range(args.pairs + 1):
        sides = [args.a, args.b] if pair % 2 == 0 else [args.b, args.a]
        started = [(side, start(side, args, hosts, seed=pair)) for side in sides]
        try:
            measured = [(side, finish(child, f"{side}, {hosts} hosts")) for side, child in started]
        finally:
            for _, child in started:
                if child.poll() is None:
                    child.kill()
                    child.communicate()
        if pair == 0:
            # It writes bytecode and fills the file cache.
            continue
        if pair % 2:
            measured.reverse()
        result.a.append(measured[0][1])
        result.b.append(measured[1][1])
    return result


def header(args: argparse.Namespace) -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return (
        f"Scrapy {scrapy.__version__}, {python}: A = {args.a}, B = {args.b}; "
        f"{args.requests} requests, {args.pairs} pairs, limit {args.limit}\n"
        "CPU, wall, B-A: median µs per request; B-A and B/A: CPU, within pairs\n"
        f"{'hosts':>6} {'A CPU':>8} {'B CPU':>8} {'A wall':>8} {'B wall':>8} "
        f"{'B-A':>8} {'B/A':>8}  {'min..max':<14} verdict"
    )


def row(comparison: Comparison, limit: float) -> str:
    s = comparison.summary(limit)
    spread = f"{s['ratio_min']:.3f}..{s['ratio_max']:.3f}"
    verdict = "pass" if s["pass"] else "FAIL"
    return (
        f"{s['hosts']:>6} {s['a_cpu_us']:>8.1f} {s['b_cpu_us']:>8.1f} "
        f"{s['a_wall_us']:>8.1f} {s['b_wall_us']:>8.1f} "
        f"{s['added_cpu_us']:>8.1f} {s['ratio']:>8.3f}  {spread:<14} {verdict}"
    )


def write_json(path: Path, args: argparse.Namespace, comparisons: Sequence[Comparison]) -> None:
    """Every single measurement, and what the table says of them."""
    report = {
        "scrapy": scrapy.__version__,
        "python": platform.python_version(),
        "a": args.a,
        "b": args.b,
        "requests": args.requests,
        "pairs": args.pairs,
        "limit": args.limit,
        "results": [{**c.summary(args.limit), **asdict(c)} for c in comparisons],
    }
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def check_importable(side: str) -> None:
    """Raise NotMeasuredError once and early, rather than from the first crawl's traceback."""
    for path in SIDES[side].get("DOWNLOADER_MIDDLEWARES", {}):
        module, _, name = path.rpartition(".")
        try:
            getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as exc:
            raise NotMeasuredError(
                f"side {side!r} needs {path}, not importable here: {exc}"
            ) from exc


def run(args: argparse.Namespace) -> int:
    """Compare at every host count, print the table, return the exit status."""
    for side in (args.a, args.b):
        check_importable(side)
    print(header(args), flush=True)
    comparisons = []
    for hosts in args.hosts:
        comparisons.append(compare(args, hosts))
        print(row(comparisons[-1], args.limit), flush=True)
    if args.json is not None:
        write_json(args.json, args, comparisons)
    return 0 if all(c.within(args.limit) for c in comparisons) else 1


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text}")
    return number


def positives(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="CPU per request: the gate against Scrapy's own slots."
    )
    sides = sorted(SIDES)
    parser.add_argument("--requests", type=positive, default=6000, help="requests per crawl")
    parser.add_argument(
        "--hosts", type=positives, default=[20, 1000], metavar="N,N", help="host counts"
    )
    parser.add_argument("--items", type=positive, default=100, help="CONCURRENT_ITEMS (100)")
    parser.add_argument("--pairs", type=positive, default=7, help="pairs per host count")
    parser.add_argument("--a", choices=sides, default="stock")
    parser.add_argument("--b", choices=sides, default="hostgate")
    parser.add_argument(
        "--limit", type=float, default=1.03, help="highest median ratio B / A that passes"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements here")
    parser.add_argument("--child", choices=sides, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.child is not None:
        return run_child(args.child, args.requests, args.hosts[0], args.items)
    try:
        return run(args)
    except NotMeasuredError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
