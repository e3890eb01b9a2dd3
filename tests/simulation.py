"""A closed loop: a model of a host, the real gate, a fake clock, and work that never runs out.

Event-driven and seeded: ten minutes of a crawl take a fraction of a second, and a seed always gives
the same crawl. What the host sees is counted by the host.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from fakes import FakeClock

from scrapy_hostgate.controller import Controller, Law, Reason
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.outcome import Outcome
from scrapy_hostgate.pacer import Pace
from scrapy_hostgate.semaphore import Permit

REFUSAL_TAKES_S = 0.01


class Answer(NamedTuple):
    outcome: Outcome
    latency_s: float
    retry_after_s: float | None = None


class Change(NamedTuple):
    at: float
    limit_from: int
    limit_to: int
    reason: Reason


# (now, how many it has in flight with this one, luck) -> what the host answers.
Host = Callable[[float, int, random.Random], Answer]


def served(latency_s: float) -> Answer:
    return Answer(Outcome.OK, latency_s)


def refused(retry_after_s: float | None = None) -> Answer:
    return Answer(Outcome.REFUSED, REFUSAL_TAKES_S, retry_after_s)


def spread(base_s: float, sigma: float, luck: random.Random) -> float:
    """A log-normal latency with median ``base_s``."""
    return base_s * math.exp(sigma * luck.gauss(0, 1)) if sigma else base_s


class Simulation:
    """Crawls ``host`` through one gate, with ``backlog`` requests always at the gate."""

    def __init__(
        self,
        host: Host,
        *,
        seed: int,
        law: Law = Law(),  # noqa: B008 - frozen
        pace: Pace = Pace(),  # noqa: B008 - frozen
        backlog: int = 8,
        make_controller: Callable[[Law, float], Controller] = Controller,
    ) -> None:
        self.clock = FakeClock()
        self.luck = random.Random(seed)
        self.gate = Gate(
            "host.example",
            law,
            pace,
            clock=self.clock,
            call_later=self.clock.call_later,
            uniform=self.luck.uniform,
            make_controller=make_controller,
        )
        self.changes: list[Change] = []
        self.departures: list[tuple[float, int]] = []
        """(when, how many the host then had in flight, this one included)."""
        self.answered_at: list[float] = []
        self.refused_at: list[float] = []
        self._host = host
        self._host_in_flight = 0
        for _ in range(backlog):
            self._arrive()

    def run(self, until: float) -> Simulation:
        self.clock.run_until(until)
        return self

    @property
    def path(self) -> list[int]:
        """Every limit there was, in order."""
        return [self.gate.controller.law.start, *(change.limit_to for change in self.changes)]

    def limit_at(self, at: float) -> int:
        before = [change.limit_to for change in self.changes if change.at <= at]
        return before[-1] if before else self.gate.controller.law.start

    def share_of_time(self, holds: Callable[[int], bool]) -> float:
        """The share of the time so far in which ``holds(limit)``."""
        borders = [0.0, *(change.at for change in self.changes), self.clock.now]
        spans = zip(self.path, borders, borders[1:])
        return sum(end - begin for limit, begin, end in spans if holds(limit)) / self.clock.now

    def host_peak(self, begin: float, end: float) -> int:
        """The most that the host had in flight from ``begin`` to ``end``."""
        return max(in_flight for at, in_flight in self.departures if begin <= at <= end)

    def _arrive(self) -> None:
        permit = self.gate.arrive()
        if permit.granted:
            self._depart(permit)
        else:
            permit.on_grant = partial(self._depart, permit)

    def _depart(self, permit: Permit) -> None:
        self._host_in_flight += 1
        self.departures.append((self.clock.now, self._host_in_flight))
        answer = self._host(self.clock.now, self._host_in_flight, self.luck)
        self.clock.call_later(answer.latency_s, partial(self._land, permit, answer))

    def _land(self, permit: Permit, answer: Answer) -> None:
        self._host_in_flight -= 1
        self.answered_at.append(self.clock.now)
        if answer.outcome is Outcome.REFUSED:
            self.refused_at.append(self.clock.now)
        latency_s = answer.latency_s if answer.outcome is Outcome.OK else None
        decision = self.gate.record(
            permit, answer.outcome, latency_s, answer.retry_after_s
        ).decision
        if decision is not None and decision.limit_from != decision.limit_to:
            change = Change(self.clock.now, decision.limit_from, decision.limit_to, decision.reason)
            self.changes.append(change)
        self.gate.leave(permit)
        self._arrive()
