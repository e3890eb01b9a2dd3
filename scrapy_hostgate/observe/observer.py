"""The one whom the slot manager tells what happens, and who passes it on.

To the stats, the log, the signal and the events file as it happens; to the live view, the metrics
and the telnet console when they ask.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy import signals

from scrapy_hostgate.controller import Controller, Decision, Law
from scrapy_hostgate.gate import Gate, Verdict
from scrapy_hostgate.observe.board import MAX_ROWS, Board, board_of, row_of, survey
from scrapy_hostgate.observe.events import GateEvent
from scrapy_hostgate.observe.log import (
    log_adopted,
    log_capped,
    log_spoiled,
    log_trouble,
    log_verdict,
)
from scrapy_hostgate.observe.stats import GateStats
from scrapy_hostgate.observe.views import Views
from scrapy_hostgate.outcome import Outcome
from scrapy_hostgate.semaphore import CallLater, Permit, Timer
from scrapy_hostgate.settings import HostGateSettings
from scrapy_hostgate.signals import hostgate_limit_changed

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_hostgate.observe.journal import Journal

TICK_S = 1.0
SPOILED_BEFORE_WARNING = 100
LIMITS_KEPT = 32
TROUBLED_NAMED = 5
_PAUSE_REASONS = {
    "Retry-After": "retry_after",
    "the detector": "detector",
    "refuse()": "refuse",
}


class _Known:
    """What has been told of one host so far. Of most hosts it is nothing, and there is none."""

    __slots__ = ("limits", "pause_until", "reason", "spacing_s")

    def __init__(self) -> None:
        self.spacing_s = 0.0
        self.pause_until = -math.inf
        self.reason = ""
        self.limits: deque[tuple[float, int]] | None = None


class Observer:
    """Everything that looks on at one crawl.

    ``stats`` counts what needs no more than that; ``keeps_all`` says that :meth:`recorded` wants to
    hear of answers that change nothing, too.
    """

    # All mutable state: what has been told of each host, the events file, the views, and the one
    # timer that drives them while the spider is open.
    def __init__(
        self,
        crawler: Crawler,
        settings: HostGateSettings,
        gates: Callable[[], list[Gate]],
        *,
        clock: Callable[[], float],
        call_later: CallLater,
    ) -> None:
        assert crawler.stats is not None
        self.stats = GateStats(crawler.stats, settings.stats_hosts)
        self._crawler = crawler
        self._gates = gates
        self._clock = clock
        self._call_later = call_later
        self._known: dict[str, _Known] = {}
        self._began = clock()
        self._timer: Timer | None = None
        self._trouble_every_s = crawler.settings.getfloat("LOGSTATS_INTERVAL")
        self._trouble_at = self._began + self._trouble_every_s
        self._journal: Journal | None = None
        if settings.observing.events or settings.observing.report:
            from scrapy_hostgate.observe.journal import Journal

            self._journal = Journal(crawler, settings.observing, clock)
        self.keeps_all = self._journal is not None
        self._views = Views(crawler, settings.observing, self.board)
        crawler.signals.connect(self._opened, signal=signals.spider_opened)

    # -- what the slot manager tells ------------------------------------------------------------

    def controller_for(self, key: str) -> Callable[[Law, float], Controller]:
        """Makes the controller of a new gate: one that is written down if there is a file."""
        return Controller if self._journal is None else self._journal.controller_for(key)

    def made(self, gate: Gate) -> None:
        """There is a new gate, set up as it is to be."""
        self._known.pop(gate.key, None)
        if gate.pacer.spacing_s or gate.pacer.pause_until > -math.inf:
            known = self._known[gate.key] = _Known()
            known.spacing_s, known.pause_until = gate.pacer.spacing_s, gate.pacer.pause_until

    def forgotten(self, gate: Gate) -> None:
        """The gate is no more."""
        self._known.pop(gate.key, None)
        if self._journal is not None:
            self._journal.end(gate)

    def recorded(
        self,
        gate: Gate,
        outcome: Outcome,
        verdict: Verdict,
        cause: str,
        *,
        permit: Permit | None = None,
        asked_by: str = "Retry-After",
    ) -> None:
        """An answer came to ``permit``; ``cause`` is what the host said, such as ``"429"``."""
        echo = outcome is Outcome.REFUSED and verdict.decision is None
        if echo and permit is not None and self._journal is not None:
            self._journal.echo(gate, permit)
        self.stats.recorded(gate, outcome, verdict)
        self._tell(gate, verdict, cause, asked_by)

    def resized(self, gate: Gate, verdict: Verdict) -> None:
        """Somebody set the limit."""
        self.stats.changed(gate, verdict)
        self._tell(gate, verdict, "", "")

    def adopted(self, gate: Gate, decision: Decision) -> None:
        """Another process of the fleet has decided on the limit."""
        if decision.limit_from != decision.limit_to:
            self.stats.adopted()
            log_adopted(gate, decision, self._crawler.spider)
        self._decided(gate, decision, "another worker")
        self._look(gate, "fleet", "fleet")

    def looked(self, gate: Gate, reason: str) -> None:
        """A pause or a spacing may have changed, for ``reason`` (a code)."""
        self._look(gate, reason, reason)

    def spoiled(self) -> None:
        """A latency could not be used, because our own event loop stood still."""
        self.stats.spoiled += 1
        if self.stats.spoiled == SPOILED_BEFORE_WARNING:
            log_spoiled(self.stats.spoiled, self._crawler.spider)

    def closed(self) -> None:
        """The spider has closed: the last stats and the last word on each host."""
        self.stats.flush()
        for gate in self._gates():
            self.stats.closed(gate)
            if self._journal is not None:
                self._journal.end(gate)

    def stop(self) -> None:
        """The engine has stopped: no timer and no server may be left, and the report is made."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._views.stop()
        if self._journal is not None:
            self._journal.close()

    # -- what others ask ------------------------------------------------------------------------

    def board(self, most: int = MAX_ROWS) -> Board:
        """All hosts now. May be called from another thread."""
        now = self._clock()
        totals, gates = survey(self._gates(), now, most)
        rows = []
        for gate in gates:
            known = self._known.get(gate.key)
            limits = tuple(known.limits or ()) if known is not None else ()
            rows.append(row_of(gate, now, known.reason if known is not None else "", limits))
        return board_of(
            getattr(self._crawler.spider, "name", None) or "crawl",
            totals,
            rows,
            age_s=now - self._began,
            departures=self.stats.departures,
            refusals=self.stats.refusals,
        )

    # -- once a second --------------------------------------------------------------------------

    def _opened(self) -> None:
        for gate in self._gates():
            # What an earlier run has learnt of it was taken up after it was made, and is no news.
            self.made(gate)
        if self._journal is not None:
            self._journal.open()
        self._views.start()
        self._timer = self._call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = self._call_later(TICK_S, self._tick)
        if self._journal is not None:
            self._journal.flush()
        self._views.tick()
        now = self._clock()
        if self._trouble_every_s and now >= self._trouble_at:
            self._trouble_at = now + self._trouble_every_s
            log_trouble(self.board(TROUBLED_NAMED), self._crawler.spider)

    # -- telling --------------------------------------------------------------------------------

    def _tell(self, gate: Gate, verdict: Verdict, cause: str, asked_by: str) -> None:
        decision, pause = verdict.decision, verdict.pause
        if pause is not None and pause.capped:
            self.stats.capped(gate)
            if not gate.cap_told:
                gate.cap_told = True
                log_capped(gate, pause, self._crawler.spider)
        log_verdict(gate, verdict, cause, self._crawler.spider, asked_by=asked_by)
        spacing_reason = "earned_back" if verdict.relaxed else "outside"
        pause_reason = "refused"
        if decision is not None:
            spacing_reason = "refused" if decision.reason.value == "refused" else spacing_reason
            self._decided(gate, decision, cause)
        if pause is not None:
            pause_reason = (
                "backoff" if pause.asked_s is None else _PAUSE_REASONS.get(asked_by, asked_by)
            )
        asked_s = None if pause is None else pause.asked_s
        self._look(gate, pause_reason, spacing_reason, asked_s)

    def _decided(self, gate: Gate, decision: Decision, cause: str) -> None:
        self._note_limit(gate, decision.limit_from, decision.limit_to, decision.reason.value)
        numbers = {
            "epoch": decision.epoch,
            "cause": cause or None,
            "latency_s": decision.latency_s,
            "baseline_s": decision.baseline_s,
            "median_s": decision.median_s,
            "recovery_delay_s": decision.recovery_delay_s,
        }
        self._send(
            gate,
            "limit",
            decision.limit_from,
            decision.limit_to,
            decision.reason.value,
            {name: value for name, value in numbers.items() if value is not None},
        )

    def _note_limit(self, gate: Gate, before: int, after: int, reason: str) -> None:
        known = self._known_of(gate)
        if known is None:
            return
        known.reason = reason
        if before != after:
            now = self._clock()
            if known.limits is None:
                known.limits = deque([(now, before)], LIMITS_KEPT)
            known.limits.append((now, after))

    def _known_of(self, gate: Gate) -> _Known | None:
        """What has been told of a host; ``None`` if the host is forgotten: a fleet may be late."""
        known = self._known.get(gate.key)
        if known is None and not gate.semaphore.retired:
            known = self._known[gate.key] = _Known()
        return known

    def _look(
        self, gate: Gate, pause_reason: str, spacing_reason: str, asked_s: float | None = None
    ) -> None:
        """Tell of a pause and a spacing that are not what was told last."""
        known, pacer = self._known_of(gate), gate.pacer
        if known is None:
            return
        if pacer.pause_until != known.pause_until:
            now = self._clock()
            before, known.pause_until = known.pause_until, pacer.pause_until
            self._send(
                gate,
                "pause",
                round(max(0.0, before - now), 3),
                round(max(0.0, pacer.pause_until - now), 3),
                pause_reason,
                {} if asked_s is None else {"asked_s": asked_s},
            )
        spacing_s = pacer.spacing_s
        if spacing_s != known.spacing_s:
            before, known.spacing_s = known.spacing_s, spacing_s
            self._send(
                gate,
                "spacing",
                before,
                spacing_s,
                spacing_reason,
                {"penalty_s": pacer.penalty.interval_s, "refused_s": pacer.penalty.refused_s},
            )

    def _send(
        self,
        gate: Gate,
        kind: str,
        before: float,
        after: float,
        reason: str,
        numbers: dict[str, Any],
    ) -> None:
        event = GateEvent(kind, gate.key, time.time(), before, after, reason, numbers)
        if self._journal is not None:
            self._journal.event(event)
        self._crawler.signals.send_catch_log(
            signal=hostgate_limit_changed, spider=self._crawler.spider, event=event
        )
