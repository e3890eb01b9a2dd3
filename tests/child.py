"""Runs a crawl in a process of its own: for other reactors, signals and process ends.

As a program: reads a job as JSON from the file named by its only argument and prints one JSON line
with the answers. As a module: :func:`run_child` writes the job and reads the line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scrapy_hostgate

HERE = Path(__file__).resolve().parent
REACTORS = {
    "asyncio": {},
    "uvloop": {"ASYNCIO_EVENT_LOOP": "uvloop.Loop"},
    "select": {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"},
    "epoll": {"TWISTED_REACTOR": "twisted.internet.epollreactor.EPollReactor"},
    "none": {"TWISTED_REACTOR_ENABLED": False},
}


@dataclass
class ChildResult:
    """How the child ended. ``answers`` are (url, status) pairs, ``failures`` (url, error) pairs."""

    returncode: int
    log: str
    answers: list[list[Any]]
    failures: list[list[Any]]
    stats: dict[str, Any]
    left: dict[str, int]


class Child:
    """A crawl that runs; see :func:`start_child`."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.folder = folder

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8")

    def wait(self, timeout_s: float = 60) -> ChildResult:
        """Wait for its end, killing it (and failing) after ``timeout_s`` seconds."""
        try:
            output, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise AssertionError(f"the crawl did not end in {timeout_s} s:\n{self.log}") from None
        lines = [line for line in output.splitlines() if line.startswith("{")]
        told = json.loads(lines[-1]) if lines else {}
        return ChildResult(
            self.process.returncode,
            self.log,
            told.get("answers", []),
            told.get("failures", []),
            told.get("stats", {}),
            told.get("left", {}),
        )


def start_child(
    urls: Iterable[str],
    settings: dict[str, Any] | None = None,
    *,
    reactor: str = "asyncio",
    folder: Path | None = None,
) -> Child:
    """Start a crawl of ``urls`` in a new process. ``settings`` must be JSON."""
    folder = folder or Path(tempfile.mkdtemp(prefix="hostgate-test-"))
    job = folder / "job.json"
    job.write_text(
        json.dumps({"urls": list(urls), "settings": settings or {}, "reactor": reactor}),
        encoding="utf-8",
    )
    # The package that this process tests, be it the source or an installed wheel.
    package = Path(scrapy_hostgate.__file__).parent.parent
    path = os.pathsep.join([str(HERE), str(HERE.parent / "example_project"), str(package)])
    with (folder / "log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "child.py"), str(job)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
    return Child(process, folder)


def run_child(
    urls: Iterable[str],
    settings: dict[str, Any] | None = None,
    *,
    reactor: str = "asyncio",
    timeout_s: float = 60,
) -> ChildResult:
    """Run a crawl of ``urls`` in a new process to its end."""
    return start_child(urls, settings, reactor=reactor).wait(timeout_s)


def main(job_file: str) -> None:
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    from harness import SETTINGS, JobSpider, assert_idle, manager_of
    from scrapy.crawler import AsyncCrawlerProcess, CrawlerProcess

    if shift_s := job["settings"].get("JOB_CLOCK_SHIFT"):
        real_time = time.time
        time.time = lambda: real_time() + shift_s
    settings = {**SETTINGS, **REACTORS[job["reactor"]], **job["settings"]}
    process = (AsyncCrawlerProcess if job["reactor"] == "none" else CrawlerProcess)(settings)
    crawler = process.create_crawler(JobSpider)
    process.crawl(crawler, job=job["urls"])
    process.start()
    if crawler.spider is None or crawler.engine is None:
        sys.exit(1)
    assert_idle(manager_of(crawler))
    spider = crawler.spider
    assert isinstance(spider, JobSpider)
    told = {
        "answers": [(answer.url, answer.status) for answer in spider.answers],
        "failures": [(url, repr(error)) for url, error in spider.failures],
        "stats": crawler.stats.get_stats(),
        "left": {"active": len(crawler.engine.downloader.active)},
    }
    print(json.dumps(told, default=str), flush=True)
    if job["reactor"] == "none" and "twisted.internet.reactor" in sys.modules:
        sys.exit("twisted.internet.reactor was imported")


if __name__ == "__main__":
    main(sys.argv[1])
