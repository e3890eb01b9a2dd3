"""The benchmark against peers: what it makes of a host's record, and that its verdict can fail."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from demo.behaviours import Reply
from demo.origin_config import parse_config
from demo.origin_record import Arrival, HostRecord

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
HOST = "127.0.0.2"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module("peers")


def arrival(path: str, at: float, status: int, *, host: str = HOST, number: int = 1) -> Arrival:
    return Arrival(
        host=host,
        number=number,
        at=at,
        since_start=at,
        path=path,
        in_flight=1,
        port=80,
        status=status,
        ended=at + 0.1,
        completed=True,
    )


def test_figures_are_read_from_the_record(peers: Any) -> None:
    """Three pages asked for; one got, one got twice, one refused to the end; and a stray one."""
    scenario = peers.scenarios(quick=True)["steady"]
    seen = [("/0", 10.0, 429), ("/0", 10.2, 200), ("/1", 11.0, 200), ("/1", 12.2, 200)]
    seen += [("/2", 12.3, 429), ("/favicon.ico", 13.0, 200)]
    record = HostRecord(HOST, [arrival(*each) for each in seen], peak=3)
    figures = peers.judge(scenario, "hostgate", {HOST: record})
    assert (figures.pages, figures.asked, figures.refusals, figures.peak) == (2, 24, 2, 3)
    assert figures.rush == 2
    assert figures.wall_s == pytest.approx(3.1)


@pytest.mark.parametrize(
    "change", [{"pages": 59}, {"peak": 5}, {"failed": "timed out"}], ids=lambda change: str(change)
)
def test_what_our_client_does_not_keep_fails_the_benchmark(peers: Any, change: Any) -> None:
    """A lost page, a fifth request at a time, a crawl without an end; of others no matter."""
    good = peers.Figures("steady", "hostgate", 60, 60, 6.1, 4, 0, 0, 6.1)
    assert peers.failures([good]) == []
    assert len(peers.failures([good, replace(good, **change)])) == 1
    assert peers.failures([replace(good, client="stock", **change)]) == []


def test_sick_hosts_that_hold_up_healthy_ones_fail_the_benchmark(peers: Any) -> None:
    """1.1 times as long is allowed, 1.3 times is not; the median of three counts."""
    row = peers.Figures("broad", "hostgate-addon", 730, 730, 30, 2, 20, 0, 5.0)
    slow, fine = replace(row, healthy_s=6.5), replace(row, healthy_s=5.5)
    assert peers.lengthened([slow, fine, fine], [row] * 3) == pytest.approx(1.1)
    assert peers.lengthened([slow, slow, fine], [row] * 3) > peers.HEALTHY_WITHIN
    # A reference crawl that got nothing proves nothing.
    assert peers.lengthened([fine], [replace(row, healthy_s=0)]) > peers.HEALTHY_WITHIN


@pytest.mark.parametrize("quick", [True, False])
def test_every_scenario_is_one_that_the_host_can_play(peers: Any, quick: bool) -> None:
    """Their configurations are accepted; the broad one is 80 hosts and 730 pages."""
    for scenario in peers.scenarios(quick=quick).values():
        parse_config(scenario.origin_config())
        assert len(set(scenario.urls(80))) == scenario.asked
    broad = peers.scenarios(quick=False)["broad"]
    assert (len(broad.hosts), broad.asked, broad.in_all) == (80, 730, 16)
    healthy = broad.healthy_only()
    assert (len(healthy.hosts), healthy.asked, healthy.in_all) == (60, 600, 6)


def test_trouble_after_a_number_of_pages_has_a_clock_of_its_own() -> None:
    """Two pages served, then an outage of 5 s that begins with the third, whenever that comes; for
    each host by itself."""
    spell = {"behaviour": "outage", "start": 0, "length": 5, "latency": 0.2}
    config = {"behaviour": "after", "number": 2, "latency": 0.1, "then": spell}
    behave = parse_config({"hosts": {"*": config}}).behaviours["*"]
    for host in ("a", "b"):
        replies = [
            behave(number, arrival("/", at, 0, host=host, number=number), at)
            for number, at in ((1, 0.0), (2, 30.0), (3, 60.0), (4, 64.9), (5, 65.1))
        ]
        assert all(isinstance(reply, Reply) for reply in replies)
        told = [(reply.status, reply.delay) for reply in replies if reply is not None]
        assert told == [(200, 0.1), (200, 0.1), (503, 0), (503, 0), (200, 0.2)]
