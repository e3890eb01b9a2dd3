"""``scrapy hostgate watch``: the hosts of a running crawl, again and again."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from scrapy_hostgate.fleet.look import FleetBoards
from scrapy_hostgate.observe.beacon import Sighting, running_crawls
from scrapy_hostgate.observe.board import BoardSource
from scrapy_hostgate.observe.table import text_table

HELP = "show what every host of a running crawl is doing, the hosts in trouble first"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "crawl",
        nargs="?",
        metavar="CRAWL",
        help="name of a spider or number of a process (default: the crawl that began last)",
    )
    parser.add_argument(
        "--url", metavar="URL", help="a fleet's HOSTGATE_FLEET_URL: all of its hosts instead"
    )
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="seconds between looks (1)"
    )
    parser.add_argument("--once", action="store_true", help="look once")


def run(options: argparse.Namespace) -> int:
    source: BoardSource
    try:
        source = FleetBoards(options.url) if options.url else find_crawl(options.crawl)
    except (LookupError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    try:
        return show(source, options.interval, once=options.once)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):
        return 0
    finally:
        source.leave()


def find_crawl(wanted: str | None) -> Sighting:
    """The crawl that is meant. Raises ``LookupError`` that says which there are."""
    crawls = running_crawls()
    named = [(crawl, _name(crawl)) for crawl in crawls]
    for crawl, name in named:
        if wanted is None or wanted in (name, str(crawl.pid)):
            return crawl
    if not named:
        raise LookupError(
            "No crawl of this user runs on this machine with scrapy_hostgate switched on "
            "(HOSTGATE_WATCH = False hides one)."
        )
    there = ", ".join(f"{name} (process {crawl.pid})" for crawl, name in named)
    raise LookupError(f"There is no crawl {wanted!r}. There are: {there}.")


def show(source: BoardSource, interval_s: float, *, once: bool = False) -> int:
    """Show boards until there are no more: live on a terminal, line by line elsewhere."""
    live = None if once or not sys.stdout.isatty() else _live()
    if live is not None:
        return live(source, interval_s)
    shown = False
    while (board := source.board()) is not None:
        print(("\n" if shown else "") + text_table(board), flush=True)
        shown = True
        if once:
            return 0
        time.sleep(interval_s)
    print("The crawl is over.", flush=True)
    return 0


def _live() -> Callable[[BoardSource, float], int] | None:
    try:
        from scrapy_hostgate.observe.live import show_live
    except ImportError:
        print("For a live table: pip install 'scrapy-hostgate[watch]'", file=sys.stderr)
        return None
    return show_live


def _name(crawl: Sighting) -> str:
    try:
        return crawl.name() or "?"
    except ValueError:
        return "?"


def _seconds(text: str) -> float:
    number = float(text)
    if not 0.1 <= number <= 3600:
        raise argparse.ArgumentTypeError(f"must be from 0.1 to 3600 seconds, not {text}")
    return number
