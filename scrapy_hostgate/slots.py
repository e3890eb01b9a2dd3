"""The slot manager: gated downloads in place of Scrapy's download slots.

The only file that touches Scrapy's downloader. What it leans on there: ``engine.downloader`` with
``handlers.download_request_async()``, ``get_slot_key()``, ``slots`` and ``active``; and the
engine's own slot, whose ``closing`` is the only sign that the spider is about to close, and whose
``nextcall`` is the only way to have the engine ask its scheduler now.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from scrapy import Request, signals
from scrapy.http import Response
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import maybe_deferred_to_future

from scrapy_hostgate.answers import LATENCY, Answers
from scrapy_hostgate.dispatch import UNGATED, Dispatch
from scrapy_hostgate.errors import HostStalledError
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.keys import HostKeys, has_host
from scrapy_hostgate.lag import LoopLag
from scrapy_hostgate.observe.log import printable
from scrapy_hostgate.observe.observer import Observer
from scrapy_hostgate.outcome import Outcome
from scrapy_hostgate.registry import Registry
from scrapy_hostgate.robots import CrawlDelays
from scrapy_hostgate.semaphore import CallLater, Permit, Timer
from scrapy_hostgate.settings import HostGateSettings
from scrapy_hostgate.slotview import SlotTable
from scrapy_hostgate.state import LearntState
from scrapy_hostgate.waiting import WaitingRoom

if TYPE_CHECKING:
    from scrapy.core.downloader import Downloader
    from scrapy.core.engine import ExecutionEngine
    from scrapy.crawler import Crawler

    from scrapy_hostgate.fleet.member import FleetMember

logger = logging.getLogger(__name__)

# robots.txt is read once only, so its delays are remembered for more hosts than anything else.
DELAYS_PER_HOST = 10


class SlotManager:
    """Downloads requests through their hosts' gates, for one crawler."""

    # All mutable state: the gates, the views of them in ``downloader.slots``, who waits, who is in
    # flight, the robots.txt delays heard, and what closing has done so far.
    def __init__(self, crawler: Crawler, settings: HostGateSettings) -> None:
        self._crawler = crawler
        self._settings = settings
        self._clock: Callable[[], float] = time.monotonic
        self._call_later: CallLater = _call_later
        self._observer = Observer(
            crawler, settings, self._gates, clock=self._clock, call_later=self._call_later
        )
        self._stats = self._observer.stats
        self._lag = LoopLag(self._clock, self._call_later, self._stood_still)
        self.registry = Registry(
            self._make_gate,
            max_hosts=settings.max_hosts,
            clock=self._clock,
            on_evict=self._evicted,
        )
        self.keys = HostKeys(settings, self.registry)
        self.dispatch = Dispatch(
            self.registry,
            clock=self._clock,
            call_later=self._call_later,
            in_downloader=lambda: self._get_downloader().active,
            wake=self._wake_engine,
        )
        self._in_flight: dict[Request, Gate] = {}
        self._views = SlotTable(settings.max_hosts, self._in_flight)
        self._waiting = WaitingRoom(
            self._clock, self._call_later, self._closing_began, self._stats.dropped_at_close
        )
        self._send = crawler.signals.send_catch_log
        self._spider = crawler.spider
        self._closing_since: float | None = None
        self._handed_back: WeakSet[Request] = WeakSet()
        # Of each request that departed, for as long as somebody holds it; meta is no place for it.
        # A WeakKeyDictionary would do the same, but in Python, twice for every request.
        self._epochs: dict[ref[Request], int] = {}
        self._forget_epoch = self._epochs.pop
        self._engine: ExecutionEngine | None = None
        self._downloader: Downloader | None = None
        self._crawl_delays = CrawlDelays(DELAYS_PER_HOST * settings.max_hosts)
        self._fleet: FleetMember | None = None
        if settings.fleet.url:
            # Here, and other rare things likewise: every object that is loaded is looked at by the
            # garbage collector all through the crawl, which shows in its CPU time.
            from scrapy_hostgate.fleet.join import join_fleet

            self._fleet = join_fleet(
                settings.fleet,
                crawler,
                self._observer,
                clock=self._clock,
                call_later=self._call_later,
            )
        self._answers = Answers(
            crawler, settings, self._observer, self._lag, self._clock, self._fail_waiters_of
        )

    def __repr__(self) -> str:
        return (
            f"<SlotManager hosts={len(self.registry)} in_flight={len(self._in_flight)} "
            f"waiting={len(self._waiting)}>"
        )

    async def download(self, request: Request) -> Response | Request | None:
        """Download ``request`` when its host's gate lets it go.

        Returns the response; or the request itself, to be scheduled again, when the spider closes
        first; or ``None`` where Scrapy's own slots should take it. Raises whatever the download
        raises, :exc:`HostStalledError`, :exc:`SpiderClosingError` and :exc:`HostRefusedError`.
        """
        key = self.keys.of_gated(request)
        if key is None:
            return await self._ungated(request)
        if self._closing_began() is not None and request not in self._handed_back:
            return self._hand_back(request)
        downloader = self._downloader or self._get_downloader()
        slot_key = downloader.get_slot_key(request)
        gate = self.registry.gate(key)
        if gate.stalled_at is not None and gate.stalled:
            self._stats.stalled(gate)
            raise _stalled(gate)
        if self._settings.slots:
            self._tighten_by_slot(gate, slot_key)
        # Before anybody else's code runs: a gate with a claim on it cannot be forgotten meanwhile.
        permit = gate.arrive(request.priority)
        meta, visit, response, refused = request.meta, None, None, False
        try:
            if self.dispatch.listeners:
                self.dispatch.arrived(request)
            visit = self._views.enter(downloader.slots, gate, request, meta, slot_key)
            self._send(
                signal=signals.request_reached_downloader, request=request, spider=self._spider
            )
            at_once = gate.left(permit)
            if at_once or await self._wait(gate, permit, request):
                # Retries and follow-ups copy meta: an old figure must not pass for this download's.
                meta.pop(LATENCY, None)
                self._epochs[ref(request, self._forget_epoch)] = permit.epoch
                self._stats.departed(permit.in_flight, waited=not at_once)
                self._in_flight[request] = gate
                if not self._lag.watching:
                    self._lag.start()
                started = self._clock()
                try:
                    response = await downloader.handlers.download_request_async(request)
                except Exception as error:
                    self._answers.failed(gate, permit, request, error, started)
                    raise
                refused = self._answers.came(gate, permit, request, response, started)
                self._send(
                    signal=signals.response_downloaded,
                    response=response,
                    request=request,
                    spider=self._spider,
                )
        finally:
            in_flight = self._in_flight
            in_flight.pop(request, None)
            if not in_flight:
                self._lag.rest()
            try:
                # Before the slot is given back, or the release would send the next one off.
                if self._waiting.waiters:
                    self._waiting.look_for_close()
            finally:
                gate.leave(permit)
                if self.dispatch.listeners:
                    self.dispatch.changed(gate.key)
                self._send(
                    signal=signals.request_left_downloader, request=request, spider=self._spider
                )
                if visit is not None:
                    self._views.leave(request, meta, visit)
        if response is None:
            return self._hand_back(request)
        return self._answers.again(request, response) if refused else response

    def refuse(self, key: str, retry_after_s: float | None, request: Request | None = None) -> None:
        """The user's word that the host of ``key`` refuses, by its answer to ``request`` if given.

        One incident, however many requests that left together are reported.
        """
        gate = self.registry.gate(key)
        epoch = None if request is None else self._epochs.get(ref(request))
        verdict = gate.refuse(retry_after_s, epoch=epoch)
        self._observer.recorded(gate, Outcome.REFUSED, verdict, "refuse()", asked_by="refuse()")
        if verdict.stalled:
            self._fail_waiters_of(gate)
            self.dispatch.changed(key)

    def resize(self, key: str, limit: int) -> None:
        """Set the limit of the host of ``key``. Raises ``ValueError`` out of its range."""
        gate = self.registry.gate(key)
        self._observer.resized(gate, gate.resize(limit))
        self.dispatch.changed(key)

    def queue_name(self, request: Request) -> str:
        """The name under which a scheduler's queue keeps ``request``: its host key, if any."""
        # Where the user's function fails the download will too, and there somebody hears of it.
        with suppress(Exception):
            key = self.keys.of_gated(request)
            if key is not None:
                return key
        return f"{UNGATED}{self._slot_key(request)}"

    def crawl_delay(self, request: Request, delay_s: float) -> None:
        """The robots.txt that ``request`` met asks for ``delay_s`` seconds between requests."""
        key = self.keys.of_request(request)
        self._crawl_delays.hear(key, delay_s)
        gate = self.registry.get(key)
        if gate is not None:
            gate.crawl_delay(delay_s)
            self._observer.looked(gate, "crawl_delay")

    def learnt_state(self, folder: str) -> LearntState:
        """What the gates learn, to be kept in ``folder`` from one run of a job to the next."""
        return LearntState(
            Path(folder),
            self.registry,
            max_hosts=self._settings.max_hosts,
            clock=self._clock,
            wall_clock=time.time,
            call_later=self._call_later,
            spider=self._crawler.spider,
        )

    def sum_up(self) -> None:
        """The spider has closed: write the last stats, also of each host that has its own."""
        self._observer.closed()

    async def close(self) -> None:
        """Cancel every timer. Nothing may be in flight or waiting any more."""
        self._lag.stop()
        self._waiting.stop()
        self.dispatch.stop()
        self._observer.stop()
        if self._in_flight or self._waiting:
            logger.error("closed with requests at the gates: %r", self)
        if self._fleet is not None:
            await self._fleet.close()

    # -- one download ---------------------------------------------------------------------------

    def _tighten_by_slot(self, gate: Gate, slot_key: Any) -> None:
        """DOWNLOAD_SLOTS of the request's own slot: the host is the gate, but they hold too."""
        rule = self._settings.slots.get(slot_key) if isinstance(slot_key, str) else None
        if rule is not None and slot_key != gate.key:
            gate.tighten(rule.concurrency, rule.delay_s, rule.jitter)
            self._observer.looked(gate, "download_slots")

    def _stood_still(self, now: float, seconds: float) -> None:
        for gate in set(self._in_flight.values()):
            gate.stood_still(now, seconds)

    async def _ungated(self, request: Request) -> Response | None:
        """A request that no gate holds: for Scrapy's own slot, unless a view is in its place."""
        bypass = request.meta.get("hostgate_bypass") and has_host(request)
        if not bypass and not self._views.owns(self._slots(), self._slot_key(request)):
            return None
        self._send(signal=signals.request_reached_downloader, request=request, spider=self._spider)
        try:
            handlers = self._get_downloader().handlers
            response: Response = await handlers.download_request_async(request)
            self._send(
                signal=signals.response_downloaded,
                response=response,
                request=request,
                spider=self._spider,
            )
            return response
        finally:
            self._send(signal=signals.request_left_downloader, request=request, spider=self._spider)

    # -- waiting and closing --------------------------------------------------------------------

    async def _wait(self, gate: Gate, permit: Permit, request: Request) -> bool:
        """Wait until the host lets it go; ``False`` if it should be handed back instead."""
        while not gate.left(permit):
            wakes = self._waiting.enter(gate, permit, came_back=request in self._handed_back)
            try:
                if not await maybe_deferred_to_future(wakes):
                    return False
            finally:
                self._waiting.leave(permit)
        self.dispatch.changed(gate.key)
        return True

    def _fail_waiters_of(self, gate: Gate) -> None:
        """The host is stalled: nobody waits for it any longer."""
        logger.warning(
            "%(host)s is stalled: it refused every request for %(seconds)g s "
            "(HOSTGATE_STALL_TIMEOUT); its requests fail for as long again",
            {"host": printable(gate.key), "seconds": self._settings.stall_timeout_s},
            extra={"spider": self._crawler.spider},
        )
        for _ in range(self._waiting.fail(gate, _stalled(gate))):
            self._stats.stalled(gate)

    def _hand_back(self, request: Request) -> Request:
        """A copy for the scheduler to keep; one that comes back at once had no scheduler."""
        again = request.replace(dont_filter=True)
        self._handed_back.add(again)
        self._stats.handed_back()
        return again

    def _closing_began(self) -> float | None:
        """When the spider was first seen to be closing, monotonic seconds; ``None`` if it is not.

        Scrapy sends no signal for it.
        """
        if self._closing_since is None:
            slot = (self._engine or self._get_engine())._slot
            if slot is not None and slot.closing is not None:
                self._closing_since = self._clock()
        return self._closing_since

    def _wake_engine(self) -> None:
        """Have the engine ask its scheduler soon; without this it does every 5 s."""
        slot = self._get_engine()._slot
        if slot is not None and slot.closing is None:
            slot.nextcall.schedule()

    # -- Scrapy's downloader --------------------------------------------------------------------

    def _get_engine(self) -> ExecutionEngine:
        if self._engine is None:
            self._engine = self._crawler.engine
            assert self._engine is not None
        return self._engine

    def _get_downloader(self) -> Downloader:
        if self._downloader is None:
            self._downloader = self._get_engine().downloader
        return self._downloader

    def _slots(self) -> dict[str, Any]:
        return self._get_downloader().slots

    def _slot_key(self, request: Request) -> Any:
        return self._get_downloader().get_slot_key(request)

    # -- gates ----------------------------------------------------------------------------------

    def _make_gate(self, key: str) -> Gate:
        gate = Gate(
            key,
            self._settings.law_for(key),
            self._settings.pace_for(key),
            clock=self._clock,
            call_later=self._call_later,
            uniform=random.uniform,
            stall_timeout_s=self._settings.stall_timeout_s,
            make_controller=self._observer.controller_for(key),
            admission=None if self._fleet is None else self._fleet.admission,
        )
        gate.pacer.outside_delay_s = self._settings.start_delay_s
        if delay_s := self._crawl_delays.of(key):
            gate.crawl_delay(delay_s)
        self._observer.made(gate)
        return gate

    def _gates(self) -> list[Gate]:
        # A copy, made in one step: the metrics' thread must not iterate over what this one changes.
        return list(self.registry)

    def _evicted(self, gate: Gate) -> None:
        self._views.forget(self._slots(), gate)
        self._observer.forgotten(gate)
        if self._fleet is not None:
            self._fleet.forget(gate)


def _stalled(gate: Gate) -> HostStalledError:
    return HostStalledError(f"{printable(gate.key)} is stalled: it refuses every request")


def _call_later(delay_s: float, function: Callable[[], None]) -> Timer:
    return call_later(delay_s, function)
