"""Scrapy stats under ``hostgate/``: totals always, single hosts only where something changed."""

from __future__ import annotations

import math

from scrapy.statscollectors import StatsCollector

from scrapy_hostgate.controller import Reason
from scrapy_hostgate.gate import Gate, Verdict
from scrapy_hostgate.outcome import Outcome

_CHANGE_STAT = {
    Reason.REFUSED: "collapses",
    Reason.SLOWED: "shrinks",
    Reason.RECOVERED: "widenings",
    Reason.FASTER: "widenings",
    Reason.RESIZED: "resizes",
}


FLUSH_EVERY = 50


class GateStats:
    """Counts into a crawler's stats collector; at most ``max_hosts`` hosts get own keys."""

    def __init__(self, stats: StatsCollector, max_hosts: int) -> None:
        self._stats = stats
        self._max_hosts = max_hosts
        self._own: set[str] = set()
        self._others: set[str] = set()
        self.departures = 0
        self.refusals = 0
        self._waits = 0
        self.spoiled = 0
        self._peak = 0

    def departed(self, in_flight: int, *, waited: bool) -> None:
        # A stats collector is slow beside everything else that a departure does.
        self.departures += 1
        self._waits += waited
        if in_flight > self._peak:
            self._peak = in_flight
            self._stats.max_value("hostgate/peak_in_flight", in_flight)
        if self.departures % FLUSH_EVERY == 1:
            self.flush()

    def flush(self) -> None:
        """Write what is counted here: every 50th departure, and at the end."""
        if self.departures:
            self._stats.set_value("hostgate/departures", self.departures)
        if self._waits:
            self._stats.set_value("hostgate/waits", self._waits)
        if self.spoiled:
            self._stats.set_value("hostgate/samples_spoiled_by_loop_lag", self.spoiled)

    def recorded(self, gate: Gate, outcome: Outcome, verdict: Verdict) -> None:
        if outcome is Outcome.REFUSED:
            self.refusals += 1
            self._count(gate, "refusals")
        if verdict.pause is not None and verdict.pause.added_s:
            self._count(gate, "paused_s", math.ceil(verdict.pause.added_s))
        self.changed(gate, verdict)

    def changed(self, gate: Gate, verdict: Verdict) -> None:
        decision = verdict.decision
        if decision is not None and decision.limit_from != decision.limit_to:
            self._count(gate, _CHANGE_STAT[decision.reason])
            self._show(gate, limit=decision.limit_to, peak_in_flight=gate.peak)

    def closed(self, gate: Gate) -> None:
        """The last word on a host that has stats of its own."""
        told = gate.snapshot()
        self._show(
            gate,
            limit=told.limit,
            peak_in_flight=told.peak,
            departures=told.departures,
            spacing_s=round(told.spacing_s, 3),
        )

    def handed_back(self) -> None:
        self._stats.inc_value("hostgate/handed_back")

    def dropped_at_close(self) -> None:
        self._stats.inc_value("hostgate/dropped_at_close")

    def given_up(self) -> None:
        self._stats.inc_value("hostgate/refusal_retries_exhausted")

    def quota_wait(self) -> None:
        self._stats.inc_value("hostgate/quota_waits")

    def stalled(self, gate: Gate) -> None:
        self._count(gate, "stalled")

    def capped(self, gate: Gate) -> None:
        self._count(gate, "pauses_capped")

    def round_trip(self) -> None:
        self._stats.inc_value("hostgate/fleet/round_trips")

    def adopted(self) -> None:
        self._stats.inc_value("hostgate/fleet/changes_by_others")

    def leases_lost(self, count: int) -> None:
        self._stats.inc_value("hostgate/fleet/leases_lost", count)

    def fleet_lost(self) -> None:
        self._stats.inc_value("hostgate/fleet/outages")
        self._stats.set_value("hostgate/fleet/alone", 1)

    def fleet_found(self) -> None:
        self._stats.set_value("hostgate/fleet/alone", 0)

    def _show(self, gate: Gate, **values: float) -> None:
        if gate.key in self._own:
            for name, value in values.items():
                self._stats.set_value(f"hostgate/host/{gate.key}/{name}", value)

    def _count(self, gate: Gate, name: str, by: int = 1) -> None:
        self._stats.inc_value(f"hostgate/{name}", by)
        if gate.key not in self._own:
            if len(self._own) >= self._max_hosts:
                self._count_without_own_keys(gate.key)
                return
            self._own.add(gate.key)
        self._stats.inc_value(f"hostgate/host/{gate.key}/{name}", by)

    def _count_without_own_keys(self, key: str) -> None:
        # Bounded too: beyond this the figure is a lower bound, and the log has the names.
        if key not in self._others and len(self._others) < 100_000:
            self._others.add(key)
            self._stats.set_value("hostgate/hosts_without_own_stats", len(self._others))
