"""Looking at a fleet without taking part in it."""

from __future__ import annotations

import asyncio
import time

from scrapy_hostgate.fleet.join import open_fleet
from scrapy_hostgate.fleet.protocol import FleetError, HostRow
from scrapy_hostgate.observe.board import Board, board_of, sum_up
from scrapy_hostgate.observe.board import HostRow as BoardRow

TIMEOUT_S = 5.0


def look_at(url: str) -> list[HostRow]:
    """Every host that the fleet at ``url`` has been asked about lately.

    Raises ``HostGateSettingsError`` for what is no URL of a fleet, and ``FleetError``.
    """
    fleet = open_fleet("--url", url, TIMEOUT_S)

    async def look() -> list[HostRow]:
        try:
            return await fleet.hosts()
        finally:
            await fleet.close()

    return asyncio.run(look())


class FleetBoards:
    """Boards of a fleet for the live view, for as long as somebody looks."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._began = time.monotonic()
        self._limits: dict[str, list[tuple[float, int]]] = {}

    def board(self) -> Board | None:
        """The board of now. Raises ``ValueError`` if the fleet cannot be asked."""
        try:
            hosts = look_at(self._url)
        except FleetError as error:
            raise ValueError(f"The fleet cannot be asked: {error}") from error
        now = time.monotonic()
        rows = [self._row(host, now) for host in hosts]
        return board_of(
            "fleet",
            sum_up(rows),
            rows,
            age_s=now - self._began,
            refusals=sum(row.refusals for row in rows),
        )

    def leave(self) -> None:
        """Nothing is kept open between two looks."""

    def _row(self, host: HostRow, now: float) -> BoardRow:
        limits = self._limits.setdefault(host.host, [(now, host.limit)])
        if limits[-1][1] != host.limit:
            limits.append((now, host.limit))
        return BoardRow(
            host=host.host,
            limit=host.limit,
            start=host.start,
            ceiling=host.ceiling,
            in_flight=host.in_flight,
            waiting_for_slot=host.waiting,
            paused_s=host.pause_s,
            refusals=host.refusals,
            reason=host.reason,
            limits=tuple((now - at, limit) for at, limit in limits),
        )
