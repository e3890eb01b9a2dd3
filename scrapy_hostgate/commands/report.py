"""``scrapy hostgate report events.jsonl``: the report of a crawl that is over, or still runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scrapy_hostgate.observe.report import can_draw, summary, write_report

HELP = "write an HTML report of the events file that HOSTGATE_EVENTS kept"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("events", type=Path, metavar="EVENTS", help="the newest part of the file")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="where to write it (default: EVENTS with .html in place of its last ending)",
    )


def run(options: argparse.Namespace) -> int:
    output: Path = options.output or options.events.with_suffix(".html")
    if output == options.events:
        print(f"{output} would be overwritten: give another --output", file=sys.stderr)
        return 2
    if not can_draw():
        print("There will be no timelines: pip install 'scrapy-hostgate[report]'", file=sys.stderr)
    try:
        crawl = write_report(options.events, output)
    except (OSError, ValueError) as error:
        print(f"No report: {error}", file=sys.stderr)
        return 1
    print(f"{summary(crawl)}\nThe report is in {output}.")
    return 0
