"""The live table of a terminal, drawn with rich."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scrapy_hostgate.observe.board import (
    COLLAPSED,
    FINE,
    PAUSED,
    RECOVERING,
    SLOWED,
    SPACED,
    Board,
    BoardSource,
    HostRow,
)
from scrapy_hostgate.observe.table import (
    HEADINGS,
    cells,
    footnote,
    headline,
    shortened,
)

# Every state is also a word: colour is never alone in telling them apart.
_STYLES = {
    PAUSED: "bold yellow",
    COLLAPSED: "bold red",
    SLOWED: "magenta",
    RECOVERING: "cyan",
    SPACED: "cyan",
    FINE: "",
}


def show_live(
    source: BoardSource,
    interval_s: float,
    *,
    console: Console | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Draw the table anew every ``interval_s`` seconds until the crawl is over."""
    console = console or Console()
    last: Board | None = None
    board = source.board()
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while board is not None:
            last = board
            live.update(screenful(board, console.width, console.height), refresh=True)
            sleep(interval_s)
            board = source.board()
    if last is not None:
        console.print(screenful(last, console.width, console.height))
    console.print("The crawl is over.")
    return 0


def screenful(board: Board, width: int, height: int) -> Group:
    """As much of the board as fits."""
    room = max(1, height - 7)
    shown = board.rows[:room]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    rows = [(row, cells(row, board)) for row in shown]
    others = sum(
        max([len(heading), *(len(values[column]) for _, values in rows)]) + 2
        for column, heading in enumerate(HEADINGS)
        if column
    )
    host_width = max(8, width - others)
    for column, heading in enumerate(HEADINGS):
        numbers = 1 < column < len(HEADINGS) - 1
        table.add_column(heading, justify="right" if numbers else "left", no_wrap=True)
    for row, values in rows:
        table.add_row(*_styled(row, values, host_width))
    return Group(
        Text(headline(board), style="bold", overflow="ellipsis", no_wrap=True),
        Text(""),
        table,
        Text(""),
        Text(footnote(board, len(shown)), style="dim", overflow="ellipsis", no_wrap=True),
        Text("Ctrl-C ends the view, not the crawl", style="dim"),
    )


def _styled(row: HostRow, values: tuple[str, ...], host_width: int) -> list[Text]:
    style = _STYLES[row.state]
    host = Text(shortened(values[0], host_width), style=style)
    return [host, Text(values[1], style=style), *(Text(value) for value in values[2:])]
