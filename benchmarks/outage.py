"""How often do we knock at a host that is down, and is every page got in the end?

    python benchmarks/outage.py [--seconds 20,60] [--pages 200] [--only NAME,...] [--json FILE]

A host on the loopback interface answers in 0.1 s. After its 50th page, when every contender has
found its pace, it answers 503 at once, for 20 s in one round and for 60 s in another. Each
contender crawls 200 pages in a process of its own, against a freshly started host, and is judged by
the host's record.

Exit status: 0 if ``hostgate`` got every page with at most a tenth of AutoThrottle's refusals (where
both ran), 1 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import scrapy
from scrapy.crawler import CrawlerProcess

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "example_project"))

from demo.behaviours import after, outage  # noqa: E402
from demo.origin import OriginThread  # noqa: E402

HOST = "127.0.0.2"
BEGINS_AFTER = 50
LATENCY_S = 0.1
CONTENDERS: dict[str, dict[str, Any]] = {
    "stock": {},
    "autothrottle": {"AUTOTHROTTLE_ENABLED": True},
    "hostgate": {"DOWNLOADER_MIDDLEWARES": {"scrapy_hostgate.HostGateMiddleware": 1000}},
}


class PagesSpider(scrapy.Spider):
    name = "pages"

    def __init__(self, base: str, count: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.urls = [f"{base}/{number}" for number in range(int(count))]

    async def start(self) -> AsyncIterator[scrapy.Request]:
        for url in self.urls:
            yield scrapy.Request(url)

    def parse(self, response: scrapy.http.Response, **kwargs: Any) -> None:
        """Nothing to do: the host writes down what it served."""


def crawl_here(contender: str, base: str, count: str) -> None:
    settings = {"LOG_LEVEL": "CRITICAL", "TELNETCONSOLE_ENABLED": False, "ROBOTSTXT_OBEY": False}
    process = CrawlerProcess({**settings, **CONTENDERS[contender]})
    process.crawl(PagesSpider, base=base, count=count)
    process.start()


def measure(contender: str, seconds: float, count: int) -> dict[str, Any]:
    host = after(BEGINS_AFTER, LATENCY_S, outage(0, seconds, LATENCY_S))
    with OriginThread({HOST: host}) as origin:
        base = origin.url(HOST, "").rstrip("/")
        started = time.monotonic()
        subprocess.run(
            [sys.executable, __file__, "--child", contender, base, str(count)],
            check=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
            # A proxy of the environment would stand between the crawler and the host.
            env={k: v for k, v in os.environ.items() if "_proxy" not in k.lower()},
        )
        wall_s = time.monotonic() - started
        record = origin.record(HOST)
    first = record.first_refusal_at
    during = [] if first is None else record.arrivals_between(first, first + seconds)
    return {
        "outage_s": seconds,
        "contender": contender,
        "pages": len(record.pages()),
        "asked": count,
        "refusals": record.refusals,
        "arrivals_per_s": round(len(during) / seconds, 2),
        "peak": record.peak,
        "wall_s": round(wall_s, 1),
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{'outage':>6}  {'contender':12}  {'pages':>10}  {'refusals':>8}  "
        f"{'arrivals/s in it':>16}  {'peak':>4}  {'wall':>7}"
    ]
    for row in rows:
        pages = f"{row['pages']} of {row['asked']}"
        lines.append(
            f"{row['outage_s']:>4.0f} s  {row['contender']:12}  {pages:>10}  "
            f"{row['refusals']:>8}  {row['arrivals_per_s']:>16.2f}  {row['peak']:>4}  "
            f"{row['wall_s']:>5.1f} s"
        )
    return "\n".join(lines)


def failures(rows: list[dict[str, Any]]) -> list[str]:
    """What ``hostgate`` did not keep, in words."""
    failed = []
    for row in rows:
        if row["contender"] != "hostgate":
            continue
        if row["pages"] < row["asked"]:
            failed.append(f"{row['outage_s']:.0f} s: {row['asked'] - row['pages']} pages lost")
        peers = [
            peer["refusals"]
            for peer in rows
            if peer["contender"] == "autothrottle" and peer["outage_s"] == row["outage_s"]
        ]
        if peers and row["refusals"] * 10 > peers[0]:
            failed.append(
                f"{row['outage_s']:.0f} s: {row['refusals']} refusals, more than a tenth of "
                f"AutoThrottle's {peers[0]}"
            )
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Knocks and pages over an outage.")
    parser.add_argument("--seconds", default="20,60", help="lengths of the outages (20,60)")
    parser.add_argument("--pages", type=int, default=200, help="pages asked for (200)")
    parser.add_argument("--only", default=",".join(CONTENDERS), help="contenders, by name")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        crawl_here(*options.child)
        return 0
    names = options.only.split(",")
    if unknown := set(names) - set(CONTENDERS):
        parser.error(f"--only {', '.join(unknown)}: choose from {', '.join(CONTENDERS)}")
    rows = [
        measure(name, float(seconds), options.pages)
        for seconds in options.seconds.split(",")
        for name in names
    ]
    print(f"Scrapy {scrapy.__version__}\n{table(rows)}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    failed = failures(rows)
    for failure in failed:
        print(f"FAILED: {failure}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
