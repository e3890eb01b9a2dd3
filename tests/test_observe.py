"""What the gates tell people and programs."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from fakes import FakeClock, middle
from scrapy import Spider
from scrapy.utils.test import get_crawler

from scrapy_hostgate.controller import Decision, Law, Reason
from scrapy_hostgate.gate import Gate, Verdict
from scrapy_hostgate.observe.log import log_verdict, printable
from scrapy_hostgate.observe.stats import GateStats
from scrapy_hostgate.outcome import Outcome
from scrapy_hostgate.pacer import Pace, Pause


def gate_of(key: str = "host.example") -> Gate:
    clock = FakeClock()
    return Gate(key, Law(), Pace(), clock=clock, call_later=clock.call_later, uniform=middle)


def change(limit_from: int, limit_to: int, reason: Reason, **numbers: float) -> Verdict:
    return Verdict(Decision(reason, limit_from, limit_to, epoch=1, **numbers))


# -- the log ------------------------------------------------------------------------------------


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "scrapy_hostgate")
    return caplog


def pause(wait_s: float, asked_s: float | None = None, **more: Any) -> Pause:
    return Pause(wait_s, wait_s, wait_s, asked_s, **{"capped": False, "interval_s": 0.0, **more})


COLLAPSE = Decision(
    Reason.REFUSED, 2, 1, epoch=1, median_s=0.1, baseline_s=0.2, recovery_delay_s=30.0
)
NUMBERS = "median 0.100 s, p95 baseline 0.200 s, a step up after 30 s at the earliest"


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        (
            Verdict(COLLAPSE, pause(1.04, interval_s=0.5)),
            f"limit 2 -> 1 (refused); 429; {NUMBERS}; "
            "pause 1.0 s (backoff), then 0.5 s between departures",
        ),
        (
            Verdict(COLLAPSE, pause(7, 7)),
            f"limit 2 -> 1 (refused); 429; {NUMBERS}; pause 7.0 s (Retry-After)",
        ),
        (
            Verdict(COLLAPSE, pause(900, 5000, capped=True)),
            f"limit 2 -> 1 (refused); 429; {NUMBERS}; pause 900.0 s (Retry-After 5000 s, capped)",
        ),
        (
            change(2, 1, Reason.SLOWED, latency_s=3.0, baseline_s=0.2),
            "limit 2 -> 1 (slowed); latency 3.000 s, p95 baseline 0.200 s",
        ),
        (change(2, 4, Reason.RESIZED), "limit 2 -> 4 (resized)"),
    ],
)
def test_a_change_is_one_line_with_its_grounds(
    lines: pytest.LogCaptureFixture, verdict: Verdict, line: str
) -> None:
    """Host, old and new limit, why, the numbers, and the pause: at INFO, of our logger."""
    spider = Spider("s")
    log_verdict(gate_of(), verdict, "429", spider)
    (record,) = lines.records
    assert record.getMessage() == f"host.example: {line}"
    assert (record.levelno, record.name) == (logging.INFO, "scrapy_hostgate")
    assert record.__dict__["spider"] is spider


def test_an_incident_is_news_and_its_echoes_are_not(lines: pytest.LogCaptureFixture) -> None:
    """A refusal at limit 1 is told at INFO, or a host that is down looks like a hang; the others
    that come back from the same moment are for DEBUG."""
    at_floor = Decision(Reason.REFUSED, 1, 1, epoch=2, recovery_delay_s=30.0)
    log_verdict(gate_of(), Verdict(at_floor, pause(2)), "503", None)
    log_verdict(gate_of(), Verdict(None, pause(9, 9)), "503", None)
    assert [record.levelno for record in lines.records] == [logging.INFO, logging.DEBUG]
    assert [record.getMessage() for record in lines.records] == [
        "host.example: limit stays 1 (refused); 503; a step up after 30 s at the earliest; "
        "pause 2.0 s (backoff)",
        "host.example: refused again by a request sent before; pause 9.0 s (Retry-After)",
    ]


def test_nothing_is_said_where_nothing_happened(lines: pytest.LogCaptureFixture) -> None:
    """Most samples change nothing."""
    log_verdict(gate_of(), Verdict(), "200", None)
    assert lines.records == []


@pytest.mark.parametrize(
    ("key", "printed"), [("host.example", "host.example"), ("a\nb", r"'a\nb'"), ("\x1b", r"'\x1b'")]
)
def test_a_key_cannot_break_a_line(lines: pytest.LogCaptureFixture, key: str, printed: str) -> None:
    """A user's key function may make anything of it; the log stays one line per change."""
    assert printable(key) == printed
    log_verdict(gate_of(key), change(2, 4, Reason.RESIZED), "", None)
    assert lines.records[0].getMessage() == f"{printed}: limit 2 -> 4 (resized)"


# -- the stats ----------------------------------------------------------------------------------


class Collected:
    """A real stats collector and what is in it under ``hostgate/``."""

    def __init__(self, max_hosts: int = 50) -> None:
        self._collector = get_crawler().stats
        assert self._collector is not None
        self.stats = GateStats(self._collector, max_hosts)

    @property
    def values(self) -> dict[str, Any]:
        assert self._collector is not None
        return {
            name.removeprefix("hostgate/"): value
            for name, value in self._collector.get_stats().items()
            if name.startswith("hostgate/")
        }


def test_departures_waits_and_the_peak_are_counted() -> None:
    """Over all hosts; a peak is a maximum and not the last one. The counts are written at the first
    departure, every fiftieth from then on, and when they are asked for."""
    collected = Collected()
    for in_flight, waited in [(1, False), (3, True), (2, True)]:
        collected.stats.departed(in_flight, waited=waited)
    assert collected.values == {"departures": 1, "peak_in_flight": 3}
    collected.stats.flush()
    assert collected.values == {"departures": 3, "waits": 2, "peak_in_flight": 3}
    for _ in range(48):
        collected.stats.departed(1, waited=False)
    assert collected.values == {"departures": 51, "waits": 2, "peak_in_flight": 3}


def test_a_host_that_is_fine_has_no_stats_of_its_own() -> None:
    """A crawl of a million hosts must not be a million stats."""
    collected, gate = Collected(), gate_of()
    for outcome in (Outcome.OK, Outcome.NEUTRAL, Outcome.SLOW):
        collected.stats.recorded(gate, outcome, Verdict())
    assert collected.values == {}


def test_each_kind_of_change_is_counted() -> None:
    """In total and for the host, with the limit that it left there."""
    collected, gate = Collected(), gate_of()
    gate.peak = 4
    collected.stats.recorded(gate, Outcome.REFUSED, change(4, 1, Reason.REFUSED))
    collected.stats.recorded(gate, Outcome.REFUSED, Verdict())
    collected.stats.recorded(gate, Outcome.OK, change(1, 2, Reason.RECOVERED))
    collected.stats.recorded(gate, Outcome.OK, change(2, 3, Reason.FASTER))
    collected.stats.recorded(gate, Outcome.OK, change(3, 2, Reason.SLOWED))
    collected.stats.changed(gate, change(2, 4, Reason.RESIZED))
    counts = {"refusals": 2, "collapses": 1, "widenings": 2, "shrinks": 1, "resizes": 1}
    assert collected.values == {
        **counts,
        **{f"host/host.example/{name}": count for name, count in counts.items()},
        "host/host.example/limit": 4,
        "host/host.example/peak_in_flight": 4,
    }


def test_a_refusal_at_the_floor_is_no_collapse() -> None:
    """It is a refusal, and the limit was 1 already."""
    collected, gate = Collected(), gate_of()
    collected.stats.recorded(gate, Outcome.REFUSED, change(1, 1, Reason.REFUSED))
    assert collected.values == {"refusals": 1, "host/host.example/refusals": 1}


def test_only_so_many_hosts_get_their_own() -> None:
    """Beyond the maximum the totals go on, and how many were left out is told, each once."""
    collected = Collected(max_hosts=1)
    for key in ("a", "b", "c", "b", "a"):
        collected.stats.recorded(gate_of(key), Outcome.REFUSED, change(2, 1, Reason.REFUSED))
    assert collected.values == {
        "refusals": 5,
        "collapses": 5,
        "host/a/refusals": 2,
        "host/a/collapses": 2,
        "host/a/limit": 1,
        "host/a/peak_in_flight": 0,
        "hosts_without_own_stats": 2,
    }


def test_what_else_is_counted() -> None:
    """One name each."""
    collected, gate = Collected(max_hosts=0), gate_of()
    collected.stats.handed_back()
    collected.stats.dropped_at_close()
    collected.stats.given_up()
    collected.stats.spoiled += 1
    collected.stats.departed(1, waited=False)
    collected.stats.quota_wait()
    collected.stats.stalled(gate)
    collected.stats.capped(gate)
    collected.stats.leases_lost(2)
    collected.stats.leases_lost(1)
    assert collected.values == {
        "fleet/leases_lost": 3,
        "handed_back": 1,
        "dropped_at_close": 1,
        "refusal_retries_exhausted": 1,
        "samples_spoiled_by_loop_lag": 1,
        "departures": 1,
        "peak_in_flight": 1,
        "quota_waits": 1,
        "stalled": 1,
        "pauses_capped": 1,
        "hosts_without_own_stats": 1,
    }
