"""``scrapy fleet``: several crawls of one host at once, and how many requests *the host* saw.

The crawls are ``scrapy crawl pages`` in processes of their own, which share nothing but Redis: the
bound, and with ``--queue`` the queue as well.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError

from demo.fleet_report import AGENT, FleetReport
from demo.origin_process import start_process
from demo.redis_process import NoServerError, RedisProcess
from demo.workers import Workers
from scrapy_hostgate.checks import HostGateSettingsError
from scrapy_hostgate.fleet.look import look_at
from scrapy_hostgate.fleet.protocol import FleetError

HOST = "127.0.0.1"
LATENCY_S = 0.1
URL_VARIABLE = "HOSTGATE_FLEET_URL"
QUEUE_SCHEMES = ("redis://", "rediss://", "unix://")
INSTALL = "pip install 'scrapy-hostgate[example]'"


class Command(ScrapyCommand):
    requires_crawler_process = False
    default_settings = {"LOG_ENABLED": False}

    def syntax(self) -> str:
        return "[options]"

    def short_desc(self) -> str:
        return "Crawl one host of the demo with several processes that share one bound"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        whole = _whole_number
        parser.add_argument("--workers", type=whole, default=3, metavar="N", help="processes (3)")
        parser.add_argument(
            "--pages", type=whole, default=40, metavar="N", help="pages for each worker (40)"
        )
        parser.add_argument(
            "--bound", type=whole, default=2, metavar="N", help="in flight over all workers (2)"
        )
        parser.add_argument(
            "--url",
            default=os.environ.get(URL_VARIABLE),
            help=f"where they meet, e.g. redis://127.0.0.1:6379/0 (default: the environment's "
            f"{URL_VARIABLE}, else a server that is started for this)",
        )
        parser.add_argument(
            "--queue",
            action="store_true",
            help="share the queue as well, by scrapy-redis: one crawl by all workers",
        )

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        if args:
            raise UsageError(f"not understood: {' '.join(args)}")
        _check_extras(queue=opts.queue)
        # Without this a SIGTERM would end this process and leave the others behind.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _interrupt)
        try:
            self.exitcode = _run(opts)
        except KeyboardInterrupt:
            print("Stopped.", flush=True)
            self.exitcode = 1
        except (NoServerError, RuntimeError) as error:
            raise UsageError(str(error), print_help=False) from error


def _run(opts: argparse.Namespace) -> int:
    # What all workers crawl together is one section of the host's pages, else each has its own.
    sections = ["all"] if opts.queue else [f"w{n}" for n in range(1, opts.workers + 1)]
    pages = opts.pages * opts.workers // len(sections)
    paths = {f"/{section}/{n}" for section in sections for n in range(1, pages + 1)}
    site = {"behaviour": "site", "pages": pages, "latency": LATENCY_S}
    host = {"behaviour": "refuse_above", "n": opts.bound, "latency": site}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hostgate-fleet-")))
        url = opts.url or stack.enter_context(RedisProcess()).url
        _check_url(url, queue=opts.queue)
        origin = stack.enter_context(start_process({"listen": [HOST], "hosts": {HOST: host}}))
        environment = {URL_VARIABLE: url}
        bound = {"concurrency": opts.bound, "max_concurrency": opts.bound, "reason": "our own"}
        shared = ["-s", f"HOSTGATE_HOSTS={json.dumps({HOST: bound})}", "-s", "HTTPPROXY_ENABLED=0"]
        # What one run taught about the host is not for the next, which may have another bound.
        shared += ["-s", "HOSTGATE_FLEET_TTL=30"]
        if opts.queue:
            environment["SCRAPY_SETTINGS_MODULE"] = "demo.queue_settings"
            shared += stack.enter_context(_queue(url))
        workers = stack.enter_context(Workers(folder))
        print(
            f"{opts.workers} workers crawl {len(paths)} pages of one host, which answers in "
            f"{LATENCY_S} s and refuses more than {opts.bound} at a time.",
            flush=True,
        )
        for number in range(1, opts.workers + 1):
            first = f"urls={origin.url(HOST, f'/{sections[(number - 1) % len(sections)]}/1')}"
            agent = f"USER_AGENT={AGENT.format(number=number)}"
            own = [word for setting in opts.set for word in ("-s", setting)]
            workers.start(["pages", "-a", first, "-s", agent, *shared, *own], environment)
        statuses = workers.wait()
        report = FleetReport(origin.record(HOST), opts.bound, paths, workers.delivered())
        print(f"\n{report}", flush=True)
        if report.complete:
            return 0
        for number, status in enumerate(statuses, start=1):
            print(f"\nWorker {number} ended with status {status}. The end of its log:")
            print(workers.last_words(number), flush=True)
        return 1


@contextlib.contextmanager
def _queue(url: str) -> Iterator[list[str]]:
    """Settings of a queue that only this crawl uses, and that is gone when it is over."""
    import redis

    name = f"hostgate-demo:{secrets.token_hex(4)}"
    keys = {
        "SCHEDULER_QUEUE_KEY": f"{name}:requests",
        "SCHEDULER_DUPEFILTER_KEY": f"{name}:dupefilter",
    }
    try:
        yield [word for setting, key in keys.items() for word in ("-s", f"{setting}={key}")]
    finally:
        with contextlib.suppress(redis.RedisError), redis.Redis.from_url(url) as client:
            client.delete(*keys.values())


def _check_extras(*, queue: bool) -> None:
    needed = {"redis": "redis-py"} | ({"scrapy_redis": "scrapy-redis"} if queue else {})
    for module, name in needed.items():
        if find_spec(module) is None:
            raise UsageError(f"this needs {name}: {INSTALL}", print_help=False)


def _check_url(url: str, *, queue: bool) -> None:
    """Raises ``UsageError`` unless workers in processes of their own can meet there now."""
    if url.startswith("memory:"):
        raise UsageError("--url: memory: is known to one process only; it must be Redis")
    if queue and not url.startswith(QUEUE_SCHEMES):
        raise UsageError(f"--url: scrapy-redis understands {', '.join(QUEUE_SCHEMES)} only")
    try:
        look_at(url)
    except (HostGateSettingsError, FleetError) as error:
        raise UsageError(f"there is no fleet to be had: {error}", print_help=False) from error


def _whole_number(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, not {text}")
    return number


def _interrupt(number: int, frame: FrameType | None) -> Any:
    raise KeyboardInterrupt
