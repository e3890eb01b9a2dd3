"""One host: its semaphore, its pacer and its controller, kept in step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from scrapy_hostgate.controller import Controller, Decision, Law, Reason
from scrapy_hostgate.outcome import NEUTRAL, OK, REFUSED, Outcome, Sample
from scrapy_hostgate.pacer import BACKOFF_BASE_S, Pace, Pacer, Pause
from scrapy_hostgate.quota import Quota
from scrapy_hostgate.saved import Plain, Saved
from scrapy_hostgate.semaphore import (
    GRANTED,
    WAITING,
    WITHDRAWN,
    AdaptiveSemaphore,
    CallLater,
    Permit,
)

# How long before a standstill a request may have departed and still be held up by it: connecting
# takes a few turns of the loop.
JUST_BEFORE_S = 0.05
FORGET_AFTER_S = 600.0
# A request may leave its queue so long before its time: the way to the gate takes a few turns.
LEAD_S = 0.02


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one sample changed: a limit, a pause, the spacing, or nothing of it."""

    decision: Decision | None = None
    pause: Pause | None = None
    stalled: bool = False
    """The host has now refused everything for the stall timeout."""
    relaxed: bool = False
    """The longer spacing after a refusal took a step back."""


NOTHING = Verdict()
RELAXED = Verdict(relaxed=True)


class Admission(Protocol):
    """Who else has a say when a request of this host may depart: the fleet, where there is one."""

    def earliest(self, now: float) -> float:
        """When the next may depart; ``inf``: not before the semaphore is told to reconsider."""

    def departing(self, permit: Permit) -> None:
        """``permit`` departs, as :meth:`earliest` allowed."""

    def valid(self, permit: Permit) -> bool:
        """Whether what was granted still holds, now that the request really leaves."""

    def left(self, permit: Permit) -> None:
        """``permit`` does not depart after all, or its download has ended, or it waits no more."""

    def decided(self, decision: Decision) -> None:
        """This process has decided on a limit."""


@dataclass(frozen=True, slots=True)
class GateSnapshot:
    """A host's state at one moment, in plain numbers. Times and latencies are seconds."""

    key: str
    limit: int
    start: int
    ceiling: int
    in_flight: int
    waiting: int
    peak: int
    epoch: int
    paused_s: float
    spacing_s: float
    baseline_s: float | None
    median_s: float | None
    departures: int
    refusals: int

    @property
    def waiting_for_slot(self) -> int:
        """How many of ``waiting`` a slot would help; the others wait for pause or spacing."""
        return self.waiting if self.in_flight >= self.limit else 0


class Gate:
    """Everything known about one host key.

    A request arrives (:meth:`arrive`), waits until its permit is granted, downloads, is recorded
    (:meth:`record`) and leaves (:meth:`leave`): in this order, so that a refusal lowers the limit
    before the slot it frees could be given to the next.
    """

    # All mutable state, besides that of the three parts: the counters below.
    __slots__ = (
        "_clock",
        "_refusing_before",
        "_refusing_since",
        "_stall_timeout_s",
        "admission",
        "cap_told",
        "controller",
        "departures",
        "key",
        "pacer",
        "peak",
        "prompt",
        "refusals",
        "semaphore",
        "stalled_at",
    )

    def __init__(
        self,
        key: str,
        law: Law,
        pace: Pace,
        *,
        clock: Callable[[], float],
        call_later: CallLater,
        uniform: Callable[[float, float], float],
        stall_timeout_s: float = 900.0,
        make_controller: Callable[[Law, float], Controller] = Controller,
        admission: Callable[[Gate], Admission] | None = None,
    ) -> None:
        self.key = key
        self._clock = clock
        self.controller = make_controller(law, clock())
        self.pacer = Pacer(pace, uniform)
        self.semaphore = AdaptiveSemaphore(
            law.start,
            clock=clock,
            call_later=call_later,
            earliest=self.pacer if admission is None else self._earliest,
            owner=self,
        )
        self.departures = 0
        self.refusals = 0
        self.peak = 0
        self.prompt = False
        """Whether the last answer began in good time; not before there was one."""
        self.cap_told = False
        """Whether the log has been told that this host asks for longer pauses than we make."""
        self._stall_timeout_s = stall_timeout_s
        self._refusing_since: float | None = None
        self._refusing_before: float | None = None
        self.stalled_at: float | None = None
        """When the host was found stalled, in seconds of the clock; see :attr:`stalled`."""
        self.admission = None if admission is None else admission(self)

    def __repr__(self) -> str:
        return f"<Gate {self.key!r} {self.semaphore!r} {self.pacer!r} {self.controller!r}>"

    @property
    def limit(self) -> int:
        return self.semaphore.limit

    @property
    def in_flight(self) -> int:
        return self.semaphore.in_flight

    @property
    def stalled(self) -> bool:
        """Whether requests should fail now instead of waiting for this host.

        True from the refusal with which the host has refused everything for the stall timeout, for
        as long again; then it is given another chance.
        """
        if self.stalled_at is None:
            return False
        if self._clock() - self.stalled_at >= self._stall_timeout_s:
            self._refusing_since = self.stalled_at = None
            return False
        return True

    @property
    def waiting(self) -> int:
        return self.semaphore.waiting

    @property
    def claims(self) -> int:
        """How many requests are here, in flight or waiting."""
        return self.in_flight + self.waiting

    def opens_at(self, now: float, coming: int = 0) -> float:
        """When a scheduler may send the next request here, if ``coming`` others are on their way.

        ``now`` or a time; infinity if not before one of them departs or ends. A host that has not
        answered yet, or that let us wait the last time, gets one request: whoever sends it more
        only has them hang, where others could be answered.
        """
        if self.stalled:
            # To fail at once, pause or not.
            return now
        coming += self.waiting
        places = self.limit if self.prompt else 1
        if self.in_flight + coming >= places or (coming and self.pacer.keeps_apart):
            return math.inf
        at = self.pacer.next_departure(now)
        return now if at <= now + LEAD_S else at - LEAD_S

    def answered(self, latency_s: float) -> None:
        """A download has ended; ``latency_s`` is to the first byte, or to the error."""
        self.prompt = latency_s <= self.controller.law.slow_latency_s

    def arrive(self, priority: int = 0) -> Permit:
        """A request asks to depart; its permit may be granted at once. See :meth:`leave`."""
        return self.semaphore.acquire(priority)

    def departing(self, permit: Permit, now: float) -> None:
        """The semaphore has granted ``permit`` at ``now``."""
        permit.epoch = self.controller.epoch
        if self.admission is not None:
            self.admission.departing(permit)
        self.pacer.departed(now)
        self.departures += 1
        if permit.in_flight > self.peak:
            self.peak = permit.in_flight

    def left(self, permit: Permit) -> bool:
        """The request of ``permit`` wants to leave now, perhaps later than it was granted.

        ``False`` if it has to wait: for its grant, or again, because the host has said no since the
        grant, and what it was granted for must not happen.
        """
        if permit.state is not GRANTED:
            return False
        now = self._clock()
        admission, pacer = self.admission, self.pacer
        if (
            # The pause of a refusal may be over by now, if the event loop stood still meanwhile.
            self.controller.refused_at >= permit.granted_at
            or now < pacer.pause_until
            or self.semaphore.drains
            or (admission is not None and not admission.valid(permit))
        ):
            self.departures -= 1
            # Others may have been granted with it, and leave only now as well.
            pacer.left_late(permit.granted_at, now)
            if admission is not None:
                admission.left(permit)
            self.semaphore.requeue(permit)
            return permit.granted
        pacer.left_late(permit.granted_at, now)
        return True

    def stood_still(self, now: float, seconds: float) -> None:
        """Our event loop stood still for ``seconds`` until ``now``.

        What was handed to it just before leaves only now, and the next has to keep its distance.
        """
        last = self.pacer.last_departure
        if last >= now - seconds - JUST_BEFORE_S:
            self.pacer.left_late(last, now)
            self.semaphore.reconsider()

    def record(
        self,
        permit: Permit,
        outcome: Outcome,
        latency_s: float | None,
        retry_after_s: float | None = None,
    ) -> Verdict:
        """Learn from the end of ``permit``'s download; call before :meth:`leave`.

        ``latency_s`` is ``None`` where there is none to trust.
        """
        now = self._clock()
        if outcome is REFUSED:
            return self._refused(permit.epoch, permit.in_flight, retry_after_s, now)
        controller, pacer = self.controller, self.pacer
        relaxed = False
        if outcome is OK and permit.epoch == controller.epoch:
            pacer.served()
            self._refusing_before = self._refusing_since
            self._refusing_since = self.stalled_at = None
            if pacer.penalty.interval_s:
                relaxed = pacer.penalty.relax(now, controller.law.recovery_delay_s)
        elif outcome is NEUTRAL:
            self._refusing_since = self.stalled_at = None
        sample = Sample(outcome, latency_s, permit.epoch, permit.in_flight)
        paused = now < pacer.pause_until
        if latency_s is None and outcome is OK:
            decision = controller.observe_served(sample, now, paused=paused)
        else:
            decision = controller.observe(sample, now, paused=paused)
        if decision is None:
            return RELAXED if relaxed else NOTHING
        self._obey(decision)
        return Verdict(decision, relaxed=relaxed)

    def announced(self, permit: Permit, quotas: Iterable[Quota]) -> bool:
        """The host announced quotas with the answer to ``permit``; say whether they hold us up.

        Requests still in flight will take their share, so it is not there to be taken again.
        """
        now = self._clock()
        others = max(0, self.in_flight - 1)
        before = self.pacer.next_departure(now)
        for quota in quotas:
            left = Quota(max(0, quota.remaining - others), quota.reset_s, quota.limit)
            self.pacer.quota(
                now, left.remaining, left.reset_s, left.interval_s if left.little else 0.0
            )
        held = self.pacer.next_departure(now) > before
        if held:
            self.semaphore.reconsider()
        return held

    def crawl_delay(self, delay_s: float) -> None:
        """robots.txt asks for ``delay_s`` seconds between departures. It only ever slows."""
        self.pacer.crawl_delay(self._clock(), delay_s)
        self.semaphore.reconsider()

    def leave(self, permit: Permit) -> None:
        """Give the permit back, whether it was granted or still waits. Once for each permit."""
        semaphore = self.semaphore
        if permit.state is WAITING:
            semaphore.withdraw(permit)
        elif permit.state is not WITHDRAWN:
            semaphore.release(permit)
        if self.admission is not None:
            self.admission.left(permit)
        if semaphore.idle:
            self.pacer.rests(self._clock())

    def obey(self, retry_after_s: float | None) -> None:
        """A refusal from which nothing is to be learnt: only the pause is kept."""
        self.pacer.pause(self._clock(), retry_after_s or BACKOFF_BASE_S)

    def tighten(self, concurrency: int | None, delay_s: float | None, jitter: float | None) -> None:
        """Bounds of Scrapy's that come with a request's own slot: they may only tighten."""
        law, pace = self.controller.law, self.pacer.pace
        if concurrency is not None and concurrency < law.ceiling:
            self.controller.law = replace(
                law, start=min(law.start, concurrency), ceiling=concurrency
            )
            if self.limit > concurrency:
                self.resize(concurrency)
        if delay_s is not None and delay_s > pace.delay_s:
            jitter = pace.jitter if jitter is None else jitter
            self.pacer.pace = replace(pace, delay_s=delay_s, jitter=jitter)

    def refuse(self, retry_after_s: float | None = None, *, epoch: int | None = None) -> Verdict:
        """The user's word that the host refuses.

        ``epoch`` is that of the departure of the request it is about (``None``: it is about now).
        """
        current = self.controller.epoch
        if epoch == current:
            # Its answer was taken for a success when it came in.
            self.pacer.unserved()
            self._refusing_since = self._refusing_since or self._refusing_before
        return self._refused(
            current if epoch is None else epoch,
            max(1, self.in_flight),
            retry_after_s,
            self._clock(),
        )

    def resize(self, limit: int) -> Verdict:
        """Set the limit by hand. Raises ``ValueError`` below 1 or above the ceiling."""
        decision = self.controller.resize(limit, self._clock())
        self._obey(decision)
        return Verdict(decision)

    def forgettable(self, now: float) -> bool:
        """Whether nothing is in flight, waiting, paused, spaced, shrunk or lately refused.

        Then a gate made anew would treat its host the same, but for a baseline to be learnt again.
        """
        if self.in_flight or self.waiting or self.pacer.next_departure(now) > now:
            return False
        return self._old_news(now) or (
            self.pacer.at_rest(now) and not self.controller.troubled(now)
        )

    def export(self, now: float, offset_s: float) -> Plain:
        """What has been learnt, as plain numbers for :meth:`restore`; empty if nothing has.

        ``now`` is monotonic seconds; times become Unix seconds, for which ``offset_s`` is added.
        """
        if self._old_news(now):
            return {}
        parts = {
            "controller": self.controller.export(now, offset_s),
            "pacer": self.pacer.export(now, offset_s),
        }
        told: Plain = {name: part for name, part in parts.items() if part}
        if told:
            told["changed_at"] = self.controller.changed_at + offset_s
            if self.pacer.last_departure > -math.inf:
                told["departed_at"] = self.pacer.last_departure + offset_s
            if self._refusing_since is not None:
                told["refusing_since"] = self._refusing_since + offset_s
            if self.stalled_at is not None:
                told["stalled_at"] = self.stalled_at + offset_s
        return told

    def lesson(self, now: float, offset_s: float) -> Plain:
        """What another process that crawls this host should know of our decisions; for
        :meth:`adopt`. Times are Unix seconds, as in :meth:`export`.
        """
        return {
            "controller": self.controller.export(now, offset_s, latencies=False),
            "pacer": self.pacer.lesson(offset_s),
        }

    def adopt(self, saved: Saved, limit: int, epoch: int, reason: Reason) -> Decision:
        """Take up a decision of another process, with its :meth:`lesson`.

        Raises ``ValueError`` for what cannot be a lesson.
        """
        # A worker with a lower ceiling than the one that decided keeps to its own.
        limit = min(limit, self.controller.law.ceiling)
        decision = self.controller.adopt(saved.part("controller"), limit, epoch, reason)
        self.pacer.adopt(saved.part("pacer"))
        self.semaphore.resize(limit)
        return decision

    def restore(self, saved: Saved) -> bool:
        """Go on from what was exported; ``False`` if it is old news. Only for a new gate.

        Raises ``ValueError`` for what cannot have been exported; the gate is of no use then.
        """
        self.controller.restore(saved.part("controller"))
        self.controller.changed_at = saved.past("changed_at")
        self.pacer.restore(saved.part("pacer"))
        self.pacer.last_departure = saved.past("departed_at")
        if "refusing_since" in saved:
            self._refusing_since = saved.past("refusing_since")
        if "stalled_at" in saved:
            self.stalled_at = saved.past("stalled_at")
        self.semaphore.resize(self.controller.limit)
        return not self._old_news(saved.now)

    def snapshot(self) -> GateSnapshot:
        now = self._clock()
        law, pacer = self.controller.law, self.pacer
        return GateSnapshot(
            key=self.key,
            limit=self.limit,
            start=law.start,
            ceiling=law.ceiling,
            in_flight=self.in_flight,
            waiting=self.waiting,
            peak=self.peak,
            epoch=self.controller.epoch,
            paused_s=max(0.0, pacer.pause_until - now),
            spacing_s=pacer.spacing_s,
            baseline_s=self.controller.baseline_s,
            median_s=self.controller.median_s,
            departures=self.departures,
            refusals=self.refusals,
        )

    def _earliest(self, now: float) -> float:
        at = self.pacer.next_departure(now)
        return at if at > now or self.admission is None else self.admission.earliest(now)

    def _old_news(self, now: float) -> bool:
        """Whether nothing has happened with the host for ten minutes, nor holds it up now."""
        last = max(self.pacer.last_departure, self.controller.changed_at)
        return now - last >= FORGET_AFTER_S and self.pacer.next_departure(now) <= now

    def _refused(
        self, epoch: int, in_flight: int, retry_after_s: float | None, now: float
    ) -> Verdict:
        self.refusals += 1
        # Several in-flight requests that come back refused are one incident: the first raises the
        # epoch, and of the others only a longer Retry-After is news.
        incident = epoch == self.controller.epoch
        pause = self.pacer.refused(now, retry_after_s, incident=incident)
        if not incident:
            return Verdict(None, pause)
        return self._collapse(in_flight, pause, now)

    def _collapse(self, in_flight: int, pause: Pause, now: float) -> Verdict:
        stalled = False
        if self._refusing_since is None:
            self._refusing_since = now
        elif self.stalled_at is None and now - self._refusing_since >= self._stall_timeout_s:
            self.stalled_at = now
            stalled = True
        decision = self.controller.refuse(now, in_flight)
        assert decision.reason is Reason.REFUSED
        self._obey(decision)
        return Verdict(decision, pause, stalled)

    def _obey(self, decision: Decision) -> None:
        if self.admission is not None:
            self.admission.decided(decision)
        self.semaphore.resize(decision.limit_to)
