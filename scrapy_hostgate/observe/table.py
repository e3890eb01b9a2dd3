"""A board as text: for the telnet console, for files, and for terminals without more."""

from __future__ import annotations

import time
from collections.abc import Sequence

from scrapy_hostgate.observe.board import FINE, Board, HostRow
from scrapy_hostgate.observe.log import printable

TREND_WIDTH = 8
TREND_S = 600.0
STALE_S = 5.0
_BARS = "▁▂▃▄▅▆▇█"
HEADINGS = ("host", "state", "flight", "wait", "pause", "median", "refused", "limit")


def headline(board: Board) -> str:
    """One line about the whole."""
    totals = board.totals
    old_s = time.time() - board.at
    seen = f" (seen {duration(old_s)} ago)" if old_s > STALE_S else ""
    return (
        f"{printable(board.name)}: {counted(totals.hosts, 'host')}, {totals.troubled} in trouble, "
        f"{totals.in_flight} in flight, "
        f"{totals.waiting_for_slot + totals.waiting_for_token} waiting, "
        f"{counted(board.refusals, 'refusal')}, after {duration(board.age_s)}{seen}"
    )


def footnote(board: Board, shown: int) -> str:
    """What the table does not show, and how to read it."""
    left = board.totals.hosts - shown
    more = f"and {counted(left, 'more host')}; " if left > 0 else ""
    return (
        f"{more}flight: of the limit; limit: 1 to ceiling, over the last "
        f"{duration(_trend_s(board))}"
    )


def cells(row: HostRow, board: Board) -> tuple[str, ...]:
    """A row of ``board`` under :data:`HEADINGS`."""
    return (
        printable(row.host),
        "" if row.state == FINE else row.state,
        f"{row.in_flight}/{row.limit}",
        str(row.waiting),
        duration(row.paused_s) if row.paused_s > 0 else "",
        "" if row.median_s is None else duration(row.median_s),
        str(row.refusals),
        trend(row, _trend_s(board)),
    )


def trend(row: HostRow, window_s: float) -> str:
    """The limit over the last ``window_s`` seconds as a line of bars, the present on the right."""
    bars = []
    step_s = window_s / TREND_WIDTH
    for place in range(TREND_WIDTH):
        since_s, until_s = (TREND_WIDTH - place) * step_s, (TREND_WIDTH - place - 1) * step_s
        limit = lowest_limit(row, since_s, until_s)
        bars.append(_BARS[round((limit - 1) / max(1, row.ceiling - 1) * (len(_BARS) - 1))])
    return "".join(bars)


def lowest_limit(row: HostRow, since_s: float, until_s: float) -> int:
    """The lowest limit between ``since_s`` and ``until_s`` seconds ago."""
    before = row.limits[0][1] if row.limits else row.limit
    lowest: int | None = None
    for ago_s, limit in row.limits:
        if ago_s >= since_s:
            before = limit
        elif ago_s > until_s:
            lowest = limit if lowest is None else min(lowest, limit)
    return before if lowest is None else min(before, lowest)


def text_table(board: Board, width: int = 80, most: int | None = None) -> str:
    """The board in lines of at most ``width`` characters, ``most`` hosts of it."""
    shown = board.rows if most is None else board.rows[:most]
    table: list[tuple[str, ...]] = [HEADINGS]
    table += [cells(row, board) for row in shown]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    spare = width - (sum(widths[1:]) + 2 * (len(widths) - 1))
    widths[0] = max(8, min(widths[0], spare))
    lines = [headline(board)[:width], ""]
    lines += [_line(line, widths)[:width] for line in table]
    lines += ["", footnote(board, len(shown))[:width]]
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """Seconds as a person would say them, in at most six characters."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    if seconds < 5970:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"


def shortened(host: str, width: int) -> str:
    """A host name cut in the middle: both of its ends tell."""
    if len(host) <= width:
        return host
    left = (width - 1) // 2
    return f"{host[:left]}…{host[len(host) - (width - 1 - left) :]}"


def _trend_s(board: Board) -> float:
    return min(TREND_S, board.age_s)


def _line(values: Sequence[str], widths: Sequence[int]) -> str:
    first = shortened(values[0], widths[0]).ljust(widths[0])
    state = values[1].ljust(widths[1])
    numbers = [value.rjust(width) for value, width in zip(values[2:-1], widths[2:-1])]
    return "  ".join([first, state, *numbers, values[-1]]).rstrip()


def counted(number: int, thing: str, many: str | None = None) -> str:
    """A number of things; ``many`` where their plural is not formed by an s."""
    return f"{number:,} {thing if number == 1 else many or f'{thing}s'}"
