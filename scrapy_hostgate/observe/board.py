"""What all hosts are doing at one moment, in plain numbers: for every view, wherever it is from.

The live view, the metrics and the telnet console show a :class:`Board`. It is read from the gates
of a crawl here, and can be filled from anywhere else.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from scrapy_hostgate.gate import Gate

MAX_ROWS = 99

FINE, SPACED, RECOVERING = "ok", "spaced", "recovering"
SLOWED, COLLAPSED, PAUSED = "slowed", "collapsed", "paused"
STATES = (FINE, SPACED, RECOVERING, SLOWED, COLLAPSED, PAUSED)
"""From the least to the most trouble."""
_BELOW_START = {"refused": COLLAPSED, "slowed": SLOWED}


@dataclass(frozen=True, slots=True)
class HostRow:
    """One host at one moment. Times are seconds; ``None`` where a number is not known.

    ``limits`` are the last changes of the limit as (seconds ago, limit from then on), the oldest
    first and before it the limit that it changed; ``reason`` is the code of the last one.
    """

    host: str
    limit: int
    start: int
    ceiling: int
    in_flight: int
    waiting_for_slot: int = 0
    waiting_for_token: int = 0
    paused_s: float = 0.0
    spacing_s: float = 0.0
    penalty_s: float = 0.0
    baseline_s: float | None = None
    median_s: float | None = None
    departures: int = 0
    refusals: int = 0
    reason: str = ""
    limits: tuple[tuple[float, int], ...] = ()

    @property
    def state(self) -> str:
        """What is wrong with the host, the worst first; one of :data:`STATES`."""
        if self.paused_s > 0:
            return PAUSED
        if self.limit < self.start:
            return _BELOW_START.get(self.reason, RECOVERING)
        return SPACED if self.penalty_s > 0 else FINE

    @property
    def waiting(self) -> int:
        return self.waiting_for_slot + self.waiting_for_token


@dataclass(frozen=True, slots=True)
class Totals:
    """Over all hosts. ``below_start`` counts limits below their start, ``troubled`` those and the
    paused."""

    hosts: int = 0
    in_flight: int = 0
    waiting_for_slot: int = 0
    waiting_for_token: int = 0
    paused: int = 0
    below_start: int = 0
    troubled: int = 0
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Board:
    """All hosts in sum, and the troubled and the busiest of them by name, in this order.

    ``name`` says what it is about (a spider, a fleet), ``at`` is Unix time, ``age_s`` how long that
    runs; ``departures`` and ``refusals`` count also hosts that have been forgotten since.
    """

    name: str
    at: float
    age_s: float
    totals: Totals
    rows: tuple[HostRow, ...]
    departures: int = 0
    refusals: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Board:
        """The board that :meth:`to_json` told of. Raises ``TypeError`` or ``KeyError``."""
        rows = tuple(
            HostRow(**{**row, "limits": tuple((ago, limit) for ago, limit in row["limits"])})
            for row in value["rows"]
        )
        return cls(**{**value, "totals": Totals(**value["totals"]), "rows": rows})


class BoardSource(Protocol):
    """Where a live view gets its boards from."""

    def board(self) -> Board | None:
        """The board of now; ``None`` when there will be no more. Raises ``ValueError``."""

    def leave(self) -> None:
        """Nobody looks any more."""


def order(row: HostRow) -> tuple[int, float, int, int, str]:
    """Sorts rows: the troubled first, the longer paused and the busier before the others."""
    busy = row.waiting + row.in_flight
    return (-STATES.index(row.state), -row.paused_s, -busy, -row.departures, row.host)


def sum_up(rows: Iterable[HostRow]) -> Totals:
    """The totals of rows that come from elsewhere than from gates."""
    rows = list(rows)
    return Totals(
        hosts=len(rows),
        in_flight=sum(row.in_flight for row in rows),
        waiting_for_slot=sum(row.waiting_for_slot for row in rows),
        waiting_for_token=sum(row.waiting_for_token for row in rows),
        paused=sum(row.paused_s > 0 for row in rows),
        below_start=sum(row.limit < row.start for row in rows),
        troubled=sum(row.paused_s > 0 or row.limit < row.start for row in rows),
        limit=sum(row.limit for row in rows),
    )


def survey(gates: Sequence[Gate], now: float, most: int = MAX_ROWS) -> tuple[Totals, list[Gate]]:
    """All gates in sum, and ``most`` of them: troubled, busy, or else lately asked.

    ``gates`` are in order of use, the latest last. A scrape of ten thousand hosts must be quick, so
    nothing is made for those that are not shown.
    """
    in_flight = for_slot = for_token = paused = below = troubled = limits = 0
    ranked: list[tuple[int, int, int, Gate]] = []
    for number, gate in enumerate(gates):
        semaphore = gate.semaphore
        limit, busy, waiting = semaphore.limit, semaphore.in_flight, semaphore.waiting
        limits += limit
        trouble = 0
        if limit < gate.controller.law.start:
            below += 1
            trouble = 1
        if gate.pacer.pause_until > now:
            paused += 1
            trouble = 2
        if trouble:
            troubled += 1
        in_flight += busy
        if waiting:
            if busy >= limit:
                for_slot += waiting
            else:
                for_token += waiting
        if trouble or busy or waiting:
            # The number makes every entry different, so that gates are never compared.
            ranked.append((trouble, busy + waiting, number, gate))
    shown = [entry[-1] for entry in heapq.nlargest(most, ranked)]
    if len(shown) < most:
        named = set(shown)
        idle = (gate for gate in reversed(gates) if gate not in named)
        shown += itertools.islice(idle, most - len(shown))
    totals = Totals(len(gates), in_flight, for_slot, for_token, paused, below, troubled, limits)
    return totals, shown


def row_of(
    gate: Gate, now: float, reason: str = "", limits: Iterable[tuple[float, int]] = ()
) -> HostRow:
    """One gate as a row. ``limits`` are its changes as (monotonic seconds, limit)."""
    told = gate.snapshot()
    return HostRow(
        host=told.key,
        limit=told.limit,
        start=told.start,
        ceiling=told.ceiling,
        in_flight=told.in_flight,
        waiting_for_slot=told.waiting_for_slot,
        waiting_for_token=told.waiting - told.waiting_for_slot,
        paused_s=told.paused_s,
        spacing_s=told.spacing_s,
        penalty_s=gate.pacer.penalty.interval_s,
        baseline_s=told.baseline_s,
        median_s=told.median_s,
        departures=told.departures,
        refusals=told.refusals,
        reason=reason,
        limits=tuple((now - at, limit) for at, limit in limits),
    )


def board_of(
    name: str,
    totals: Totals,
    rows: Iterable[HostRow],
    *,
    age_s: float,
    departures: int = 0,
    refusals: int = 0,
    wall_clock: Callable[[], float] = time.time,
) -> Board:
    """A board of rows in any order."""
    return Board(
        name=name,
        at=wall_clock(),
        age_s=age_s,
        totals=totals,
        rows=tuple(sorted(rows, key=order)),
        departures=departures,
        refusals=refusals,
    )
