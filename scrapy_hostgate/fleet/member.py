"""One process's membership of the fleet: its name, its heartbeat, and what it does when alone."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from scrapy_hostgate.controller import Decision
from scrapy_hostgate.fleet.link import HostLink
from scrapy_hostgate.fleet.protocol import Bounds, Fleet, FleetError, Told
from scrapy_hostgate.fleet.within import within
from scrapy_hostgate.fleetrules import FleetRules
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.observe.log import printable
from scrapy_hostgate.observe.observer import Observer
from scrapy_hostgate.semaphore import CallLater, Timer

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

logger = logging.getLogger("scrapy_hostgate")

BEATS_PER_LEASE = 3
RETRY_S = 1.0
RETRY_JITTER = 0.5
# Within this every worker that lives has found the fleet again, and told it what is in flight.
WARY_S = 4.0
TOLD_EVERY_S = 60.0
CANCELLATIONS = 10


class FleetMember:
    """Lets the gates of one crawler depart only as the whole fleet may.

    When the fleet cannot be asked, the crawl goes on alone: one request in flight at each host, at
    the pace divided by the number of workers there were (or none, if it ``stays_closed``). It tries
    again every second or so, and heals by itself.
    """

    # All mutable state: the links, whether the fleet is gone and since when it is back, how many
    # workers there were, and the tasks that listen, beat and try again.
    def __init__(
        self,
        fleet: Fleet,
        rules: FleetRules,
        crawler: Crawler,
        observer: Observer,
        *,
        clock: Callable[[], float],
        call_later: CallLater,
    ) -> None:
        self.fleet = fleet
        self.name = secrets.token_hex(6)
        self.timeout_s = rules.timeout_s
        self.stays_closed = rules.stays_closed
        self.ids = itertools.count(1)
        self.alone = False
        self.workers = 1
        self._rules = rules
        self._crawler = crawler
        self._observer = observer
        self._stats = observer.stats
        self._clock = clock
        self._call_later = call_later
        self._links: dict[str, HostLink] = {}
        self._wary_timer: Timer | None = None
        self._told_at: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __repr__(self) -> str:
        state = "alone" if self.alone else f"workers={self.workers}"
        return f"<FleetMember {self.name} {state} hosts={len(self._links)}>"

    @property
    def wary(self) -> bool:
        return self._wary_timer is not None

    def admission(self, gate: Gate) -> HostLink:
        """The fleet's say over ``gate``."""
        if not self._tasks:
            self._start(self._listen())
            self._start(self._beat())
        link = self._links[gate.key] = HostLink(
            self,
            gate,
            clock=self._clock,
            call_later=self._call_later,
            uniform=random.uniform,
        )
        return link

    def forget(self, gate: Gate) -> None:
        """The gate is no more."""
        self._links.pop(gate.key, None)

    async def close(self) -> None:
        """Give every lease back, now. Never raises, never takes longer than two time-outs."""
        self._closed = True
        await self._end_tasks()
        self._stop_wary_timer()
        await asyncio.gather(*(link.close() for link in self._links.values()))
        await self.fleet.close()

    # -- what links need -------------------------------------------------------------------------

    def bounds(self, gate: Gate) -> Bounds:
        law, pacer = gate.controller.law, gate.pacer
        return Bounds(
            start=law.start,
            ceiling=law.ceiling,
            spacing_s=pacer.draw_spacing_s() if pacer.spaced else 0.0,
            rate_s=pacer.pace.rate_interval_s,
            burst=pacer.pace.burst,
            lease_s=self._rules.lease_s,
            ttl_s=self._rules.ttl_s,
            wait_s=self._rules.lease_s / BEATS_PER_LEASE,
        )

    def heard(self, told: Told) -> None:
        self.workers = max(1, told.workers)
        self._stats.round_trip()

    def adopted(self, gate: Gate, decision: Decision) -> None:
        self._observer.adopted(gate, decision)

    def leases_lost(self, gate: Gate, count: int) -> None:
        self._stats.leases_lost(count)
        self._log(
            logging.WARNING,
            "%(host)s: %(count)d leases had been lost while their downloads went on; renewed",
            host=printable(gate.key),
            count=count,
        )

    def lost(self, error: FleetError) -> None:
        """The fleet could not be asked: from now on every host has one request in flight here."""
        if self.alone or self._closed:
            return
        self.alone = True
        self._stats.fleet_lost()
        now = self._clock()
        if self._told_at is None or now - self._told_at >= TOLD_EVERY_S:
            self._told_at = now
            self._log(
                logging.WARNING,
                "the fleet cannot be asked (%(error)s): until it is back %(until)s",
                error=error,
                until="no request departs"
                if self.stays_closed
                else f"each host has one request in flight here, at 1/{self.workers} of its pace",
            )
        for link in list(self._links.values()):
            link.forsaken()
        self._start(self._find_again())

    # -- tasks -----------------------------------------------------------------------------------

    def _start(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_tasks(self) -> None:
        # Before 3.12 asyncio.wait_for, which closes connections, can lose a cancellation.
        for _ in range(CANCELLATIONS):
            if not self._tasks:
                return
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=self.timeout_s / CANCELLATIONS)

    async def _listen(self) -> None:
        while True:
            began = self._clock()
            try:
                await self.fleet.listen(self.name, self._woken)
            except FleetError:
                # Whoever waits asks again by itself; being woken only makes it sooner. But a server
                # that has hung up may have been started anew, sooner than anybody asked it.
                if not self.alone and self._clock() - began > RETRY_S:
                    self._be_wary()
                await asyncio.sleep(self._retry_s())

    def _woken(self, host: str, after_s: float) -> None:
        link = self._links.get(host)
        if link is not None:
            link.woken(after_s)

    async def _beat(self) -> None:
        period_s = self._rules.lease_s / BEATS_PER_LEASE
        while True:
            # Half a period: a lease is renewed before a third of it and a half have passed.
            await asyncio.sleep(period_s / 2)
            for link in list(self._links.values()):
                link.beat(period_s / 2)

    async def _find_again(self) -> None:
        while True:
            await asyncio.sleep(self._retry_s())
            try:
                await within(self.timeout_s, self.fleet.ping())
            except FleetError:
                continue
            break
        self.alone = False
        self._stats.fleet_found()
        self._log(logging.INFO, "the fleet can be asked again")
        self._be_wary()

    def _be_wary(self) -> None:
        """The fleet may have forgotten everything: say first what is in flight here."""
        self._stop_wary_timer()
        self._wary_timer = self._call_later(min(WARY_S, self._rules.lease_s), self._trusting)
        for link in list(self._links.values()):
            link.rejoin()

    def _stop_wary_timer(self) -> None:
        if self._wary_timer is not None:
            self._wary_timer.cancel()
            self._wary_timer = None

    def _trusting(self) -> None:
        self._wary_timer = None
        for link in list(self._links.values()):
            link.gate.semaphore.reconsider()

    def _retry_s(self) -> float:
        return RETRY_S * random.uniform(1 - RETRY_JITTER, 1)

    def _log(self, level: int, message: str, **values: object) -> None:
        arguments = (values,) if values else ()
        logger.log(level, message, *arguments, extra={"spider": self._crawler.spider})
