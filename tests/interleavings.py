"""One gate under every order of events: its moves, and what must hold after each of them.

Shared by the state machine of ``test_interleavings.py``, which shrinks what it finds, and by
``benchmarks/interleavings.py``, which walks at random and is much faster. The model keeps a record
of its own of what the host has said and of when requests really left, and judges the gate by that.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace

from fakes import FakeClock, middle

from scrapy_hostgate.controller import Decision, Law
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.outcome import Outcome
from scrapy_hostgate.pacer import Pace
from scrapy_hostgate.quota import Quota
from scrapy_hostgate.semaphore import Permit

MAX_PAUSE_S = 60.0
LEAST_BACKOFF_S = 0.8
_TINY = 1e-6


@dataclass(frozen=True)
class Setting:
    """The conditions of one example."""

    start: int = 2
    ceiling: int = 4
    rate: float | None = None
    burst: int = 1
    delay_s: float = 0.0
    fleet: bool = False


class MoodyAdmission:
    """A fleet that says yes, later, or nothing at all, and may take back what it granted."""

    def __init__(self) -> None:
        self.opens_at = 0.0
        self.keeps_word = True
        self.held: set[Permit] = set()

    def earliest(self, now: float) -> float:
        return max(now, self.opens_at)

    def departing(self, permit: Permit) -> None:
        assert self.opens_at != math.inf
        assert permit not in self.held
        self.held.add(permit)

    def valid(self, permit: Permit) -> bool:
        return self.keeps_word

    def left(self, permit: Permit) -> None:
        self.held.discard(permit)

    def decided(self, decision: Decision) -> None:
        assert decision.limit_to >= 1


class World:
    """A gate, the requests at it, and a record of what has really happened."""

    def __init__(self, setting: Setting) -> None:
        self.clock = FakeClock(1000.0)
        self.admission = MoodyAdmission() if setting.fleet else None
        self.gate = Gate(
            "a.test",
            Law(start=setting.start, ceiling=setting.ceiling, recovery_delay_s=2.0),
            Pace(
                rate=setting.rate,
                burst=setting.burst,
                delay_s=setting.delay_s,
                jitter=0.0,
                max_pause_s=MAX_PAUSE_S,
            ),
            clock=self.clock,
            call_later=self.clock.call_later,
            uniform=middle,
            stall_timeout_s=100.0,
            admission=None if self.admission is None else self._admission,
        )
        self._watch_grants()
        self.waiting: list[Permit] = []
        self.ready: deque[Permit] = deque()
        """Granted, and not gone yet: their turn of the event loop has not come."""
        self.flying: list[Permit] = []
        self.left_at: list[float] = []
        self.paused_until = -math.inf
        self.need_s = 0.0
        """How far from the last departure the next must stay."""
        self.never_left = 0
        """Granted, and dropped before they went."""
        self.ended = 0
        self.arrived = 0
        self.epoch = 0
        self.checks = 0

    def _admission(self, gate: Gate) -> MoodyAdmission:
        assert self.admission is not None
        return self.admission

    def _watch_grants(self) -> None:
        semaphore = self.gate.semaphore
        departing = semaphore._owner.departing

        def watched(permit: Permit, now: float) -> None:
            assert permit.in_flight <= self.gate.limit, "granted beyond the limit"
            assert now >= self.paused_until - _TINY, "granted in a pause"
            departing(permit, now)

        semaphore._owner = SimpleNamespace(departing=watched)

    # -- moves ----------------------------------------------------------------------------------

    def arrive(self, priority: int, at_once: bool) -> None:
        """A request comes; if it is granted it may leave in the same turn of the loop."""
        permit = self.gate.arrive(priority)
        self.arrived += 1
        if not permit.granted:
            self._wait(permit)
        elif at_once:
            self._go(permit)
        else:
            self.ready.append(permit)

    def turn(self) -> None:
        """The event loop turns once: who has been granted leaves, or waits again."""
        for _ in range(len(self.ready)):
            self._go(self.ready.popleft())

    def _settle(self) -> None:
        while self.ready:
            self.turn()

    def finish(self, which: int, outcome: Outcome, latency_s: float | None, asked_s: float) -> None:
        """A download ends; ``asked_s`` is the Retry-After of a refusal, 0 for none."""
        if not self.flying:
            return
        permit = self.flying.pop(which % len(self.flying))
        now, gate = self.clock.now, self.gate
        current = permit.epoch == gate.controller.epoch
        gate.answered(latency_s or 0.0)
        if outcome is Outcome.REFUSED:
            latency_s = None
        gate.record(permit, outcome, latency_s, asked_s or None)
        if outcome is Outcome.REFUSED:
            if current:
                assert gate.limit == 1, "a refusal did not collapse the limit"
            self._refused(now, asked_s, current)
        gate.leave(permit)
        self.ended += 1

    def cancel(self, which: int) -> None:
        """A request is dropped, wherever it is."""
        everybody = [*self.waiting, *self.ready, *self.flying]
        if not everybody:
            return
        permit = everybody[which % len(everybody)]
        for place in (self.waiting, self.ready, self.flying):
            if permit in place:
                place.remove(permit)
                self.never_left += place is self.ready
        self.gate.leave(permit)
        self.ended += 1

    def close(self) -> None:
        """The spider closes: whoever waits is handed back."""
        for permit in list(self.waiting):
            assert self.gate.semaphore.withdraw(permit)
            self.waiting.remove(permit)
            self.gate.leave(permit)
            self.ended += 1

    def resize(self, limit: int) -> None:
        self.gate.resize(min(limit, self.gate.controller.law.ceiling))

    def refuse(self, asked_s: float, old: bool) -> None:
        """The user's word; ``old`` says that it is about a departure of an earlier epoch."""
        epoch = self.gate.controller.epoch
        about = epoch - 1 if old else None
        self.gate.refuse(asked_s or None, epoch=about)
        if not old:
            assert self.gate.limit == 1
        self._refused(self.clock.now, asked_s, not old)

    def obey(self, asked_s: float) -> None:
        """A refusal from which nothing is to be learnt."""
        self.gate.obey(asked_s or None)
        self._paused(self.clock.now + min(asked_s or 1.0, MAX_PAUSE_S))

    # Whoever was granted before one of the next three goes by the pace of that moment.

    def tighten(self, concurrency: int, delay_s: float) -> None:
        self._settle()
        self.gate.tighten(concurrency, delay_s, 0.0)
        assert self.gate.limit <= concurrency

    def announce(self, remaining: int, reset_s: float) -> None:
        """The host tells what it will still serve before a reset."""
        if not self.flying:
            return
        others = len(self.flying) + len(self.ready) - 1
        self.gate.announced(self.flying[0], [Quota(remaining, reset_s, 100)])
        if remaining <= others:
            self._paused(self.clock.now + min(reset_s, MAX_PAUSE_S))

    def crawl_delay(self, delay_s: float) -> None:
        self._settle()
        self.gate.crawl_delay(delay_s)
        self.need_s = max(self.need_s, delay_s)

    def delay_from_outside(self, delay_s: float) -> None:
        """AutoThrottle's way: it only ever adds to what is configured."""
        self._settle()
        pacer = self.gate.pacer
        pacer.delay_from_outside(delay_s)
        self.need_s = max(self.need_s, delay_s)

    def time_passes(self, seconds: float) -> None:
        """The loop turns, sleeps until the next timer, and so on."""
        until = self.clock.now + seconds
        self.turn()
        while (at := self.clock.next_at) is not None and at <= until:
            self.clock.run_until(at)
            self.turn()
        self.clock.run_until(until)

    def stall(self, seconds: float, *, noticed: bool) -> None:
        """Somebody's callback blocks the loop; then come whoever was ready, and late timers."""
        self.clock.stall(seconds)
        if noticed:
            self.gate.stood_still(self.clock.now, seconds)
        self.turn()
        self.clock.run_until(self.clock.now)
        self.turn()

    def fleet_says(self, opens_in_s: float, keeps_word: bool) -> None:
        if self.admission is None:
            return
        self.admission.opens_at = self.clock.now + opens_in_s
        self.admission.keeps_word = keeps_word
        self.gate.semaphore.reconsider()

    def serve(self, count: int, latency_s: float) -> None:
        """A good spell: requests come one after the other and are served."""
        for _ in range(count):
            self.arrive(0, at_once=True)
            self.time_passes(latency_s)
            if self.flying:
                self.finish(0, Outcome.OK, latency_s, 0.0)
            self.time_passes(1.0)

    # -- what must hold -------------------------------------------------------------------------

    def check(self) -> None:
        self.checks += 1
        gate, clock = self.gate, self.clock
        semaphore, now = gate.semaphore, clock.now
        borrowers = [*self.ready, *self.flying]
        assert set(semaphore._borrowers) == set(borrowers)
        assert semaphore.in_flight == len(borrowers)
        assert semaphore.waiting == len(self.waiting)
        assert gate.departures == len(self.left_at) + len(self.ready) + self.never_left
        assert 1 <= gate.limit == gate.controller.limit <= gate.controller.law.ceiling
        assert gate.controller.epoch >= self.epoch
        self.epoch = gate.controller.epoch
        assert gate.pacer.pause_until >= self.paused_until - _TINY
        assert gate.pacer.pause_until <= now + MAX_PAUSE_S + _TINY
        if self.admission is not None:
            assert self.admission.held == set(borrowers)
        self._no_lost_wake_up(now)

    def _no_lost_wake_up(self, now: float) -> None:
        gate, clock = self.gate, self.clock
        if not self.waiting or gate.in_flight >= gate.limit:
            assert clock.pending == 0
            return
        at = gate.pacer.next_departure(now)
        if self.admission is not None:
            at = max(at, self.admission.opens_at)
        assert at > now, "somebody could go, and nobody went"
        if at == math.inf:
            # The fleet will say when.
            return
        assert clock.pending == 1, "nothing is due to wake the first"
        assert clock.next_at is not None
        assert clock.next_at <= max(at, now) + _TINY

    def end(self) -> None:
        """Everybody comes to an end in bounded time, and nothing is left behind."""
        self.fleet_says(0.0, True)
        for _ in range(10_000):
            if not (self.waiting or self.ready or self.flying):
                break
            self.turn()
            while self.flying:
                self.finish(0, Outcome.NEUTRAL, None, 0.0)
            at = self.clock.next_at
            if at is not None:
                self.time_passes(max(0.0, at - self.clock.now))
            self.check()
        assert self.ended == self.arrived, "somebody is still there"
        assert self.gate.in_flight == self.gate.waiting == self.clock.pending == 0
        assert self.admission is None or not self.admission.held

    # -- the record -----------------------------------------------------------------------------

    def _wait(self, permit: Permit) -> None:
        def granted() -> None:
            self.waiting.remove(permit)
            self.ready.append(permit)

        permit.on_grant = granted
        self.waiting.append(permit)

    def _go(self, permit: Permit) -> None:
        now, gate = self.clock.now, self.gate
        if not gate.left(permit):
            self._wait(permit)
            return
        assert now >= self.paused_until - _TINY, "left in a pause"
        assert gate.in_flight <= gate.limit, "left beyond the limit"
        pace = gate.pacer.pace
        if self.left_at:
            assert now - self.left_at[-1] >= self.need_s - _TINY, "left too close"
        if pace.rate:
            for back in range(pace.burst, min(len(self.left_at), 8) + 1):
                least_s = (back + 1 - pace.burst) / pace.rate
                assert now - self.left_at[-back] >= least_s - _TINY, "left faster than the rate"
        self.left_at.append(now)
        self.flying.append(permit)
        pacer = gate.pacer
        self.need_s = max(pacer.delay_s, pacer.crawl_delay_s, pacer.penalty.interval_s)

    def _refused(self, now: float, asked_s: float, incident: bool) -> None:
        wait_s = asked_s or (LEAST_BACKOFF_S if incident else 0.0)
        if wait_s:
            self._paused(now + min(wait_s, MAX_PAUSE_S))

    def _paused(self, until: float) -> None:
        self.paused_until = max(self.paused_until, until)


# -- a walk at random --------------------------------------------------------------------------

PRIORITIES = (0, 0, 0, 1, 5)
LATENCIES_S = (0.01, 0.1, 0.1, 1.0, 6.0)
ASKED_S = (0.0, 0.0, 1.0, 7.0, 600.0)
STEPS_S = (0.001, 0.1, 0.5, 1.0, 3.0, 20.0)
STALLS_S = (0.01, 0.5, 5.0)
OUTCOMES = tuple(Outcome)
RATES = (None, None, 0.5, 5.0)
DELAYS_S = (0.0, 0.0, 0.5, 2.0)


def any_setting(random: Random) -> Setting:
    ceiling = random.randint(1, 5)
    return Setting(
        start=random.randint(1, min(2, ceiling)),
        ceiling=ceiling,
        rate=random.choice(RATES),
        burst=random.randint(1, 3),
        delay_s=random.choice(DELAYS_S),
        fleet=random.random() < 0.4,
    )


def walk(seed: int, most_steps: int = 40) -> World:
    """One example: any setting, any moves, to the end. The same seed is the same walk."""
    random = Random(seed)
    pick = random.choice
    world = World(any_setting(random))
    moves: list[tuple[int, Callable[[], None]]] = [
        (20, lambda: world.arrive(pick(PRIORITIES), random.random() < 0.5)),
        (8, world.turn),
        (
            12,
            lambda: world.finish(
                random.randrange(8), pick(OUTCOMES), pick((None, *LATENCIES_S)), pick(ASKED_S)
            ),
        ),
        (4, lambda: world.cancel(random.randrange(8))),
        (1, world.close),
        (3, lambda: world.resize(random.randint(1, 5))),
        (2, lambda: world.refuse(pick(ASKED_S), random.random() < 0.5)),
        (1, lambda: world.obey(pick(ASKED_S))),
        (1, lambda: world.tighten(random.randint(1, 3), pick(DELAYS_S))),
        (3, lambda: world.announce(random.randint(0, 3), pick((1.0, 5.0, 500.0)))),
        (1, lambda: world.crawl_delay(pick((0.5, 2.0)))),
        (1, lambda: world.delay_from_outside(pick((0.0, 0.5, 2.0)))),
        (12, lambda: world.time_passes(pick(STEPS_S))),
        (3, lambda: world.stall(pick(STALLS_S), noticed=random.random() < 0.5)),
        (4, lambda: world.fleet_says(pick((0.0, 0.0, 1.0, math.inf)), random.random() < 0.7)),
        (1, lambda: world.serve(12, 0.1)),
    ]
    weights = [weight for weight, _ in moves]
    for _, move in random.choices(moves, weights, k=random.randint(1, most_steps)):
        move()
        world.check()
    world.end()
    return world


def walk_many(count: int) -> None:
    """The first ``count`` examples."""
    for seed in range(count):
        walk(seed)
