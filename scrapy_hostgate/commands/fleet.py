"""``scrapy hostgate fleet --url redis://…``: the hosts of a whole fleet, from any machine."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from scrapy_hostgate.checks import HostGateSettingsError
from scrapy_hostgate.fleet.look import look_at
from scrapy_hostgate.fleet.protocol import FleetError, HostRow
from scrapy_hostgate.observe.log import printable

HELP = "show what every host of a fleet is doing: limit, in flight, who waits, pause and refusals"
HEADINGS = ("host", "limit", "in flight", "waiting", "workers", "pause", "refusals", "last reason")
URL_VARIABLE = "HOSTGATE_FLEET_URL"
_CLEAR = "\x1b[H\x1b[2J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        default=os.environ.get(URL_VARIABLE),
        metavar="URL",
        # A default that was shown could show a password.
        help=f"the fleet's HOSTGATE_FLEET_URL (default: the environment's {URL_VARIABLE})",
    )
    parser.add_argument("--watch", action="store_true", help="look again and again")
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="seconds between looks (1)"
    )


def run(options: argparse.Namespace) -> int:
    if not options.url:
        print(f"Which fleet? --url redis://HOST:PORT/0, or {URL_VARIABLE}.", file=sys.stderr)
        return 2
    try:
        while True:
            table = text_table(look_at(options.url))
            if options.watch and sys.stdout.isatty():
                table = _CLEAR + table
            print(table, flush=True)
            if not options.watch:
                return 0
            time.sleep(options.interval)
    except HostGateSettingsError as error:
        print(error, file=sys.stderr)
        return 2
    except FleetError as error:
        print(f"The fleet cannot be asked: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):
        return 0


def text_table(rows: Sequence[HostRow]) -> str:
    """The hosts in trouble first: paused, collapsed, refused."""
    if not rows:
        return "No worker has asked for a host lately."
    ordered = sorted(rows, key=lambda row: (-row.pause_s, row.limit, -row.refusals, row.host))
    table = [HEADINGS, *(_cells(row) for row in ordered)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEADINGS))]
    lines = []
    for line in table:
        numbers = [cell.rjust(width) for cell, width in zip(line[1:-1], widths[1:-1])]
        lines.append("  ".join([line[0].ljust(widths[0]), *numbers, line[-1]]).rstrip())
    return "\n".join(lines)


def _cells(row: HostRow) -> tuple[str, ...]:
    return (
        printable(row.host),
        str(row.limit),
        str(row.in_flight),
        str(row.waiting),
        str(row.workers),
        f"{row.pause_s:.0f} s" if row.pause_s else "",
        str(row.refusals),
        row.reason,
    )


def _seconds(text: str) -> float:
    number = float(text)
    if not 0.1 <= number <= 3600:
        raise argparse.ArgumentTypeError(f"must be from 0.1 to 3600 seconds, not {text}")
    return number
