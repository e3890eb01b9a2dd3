"""The table of DESIGN.md, section 4, in a closed loop with the real gate (HG-29, point 8).

Start 2, ceiling 4, base latency 0.1 s, always work queued. σ is the log-normal spread.
"""

from __future__ import annotations

from random import Random

import pytest
from simulation import Answer, Host, Simulation, refused, served, spread

from scrapy_hostgate.controller import Reason

SEEDS = range(5)
# Without spread a seed draws next to nothing, so one of them is enough there.
LUCK = [(seed, 0.2 if seed else 0.0) for seed in SEEDS]
on_every_luck = pytest.mark.parametrize(("seed", "sigma"), LUCK)

BASE_S = 0.1


def steady(sigma: float) -> Host:
    return lambda now, in_flight, luck: served(spread(BASE_S, sigma, luck))


@on_every_luck
def test_a_steady_host_is_left_alone(seed: int, sigma: float) -> None:
    """HG-29: σ 0 or 0.2 for 600 s: no change of limit at all, and the host is kept busy."""
    crawl = Simulation(steady(sigma), seed=seed).run(600)
    assert crawl.changes == []
    assert crawl.gate.controller.epoch == 0
    assert crawl.host_peak(0, 600) == 2
    assert len(crawl.answered_at) > 11_000


@pytest.mark.parametrize("seed", SEEDS)
def test_a_heavy_tailed_host_keeps_its_start(seed: int) -> None:
    """HG-29: σ 1.0 for 600 s: at or above start at least 95 % of the time, at most 12 changes."""
    crawl = Simulation(steady(1.0), seed=seed).run(600)
    assert crawl.share_of_time(lambda limit: limit >= 2) >= 0.95
    assert len(crawl.changes) <= 12


@on_every_luck
def test_one_burst_of_refusals_is_one_incident(seed: int, sigma: float) -> None:
    """HG-29: 429 from t = 30 s on for 0.3 s: 1 at once, and 2 again about 30 s later."""
    calm = steady(sigma)

    def host(now: float, in_flight: int, luck: Random) -> Answer:
        return refused() if 30 <= now < 30.3 else calm(now, in_flight, luck)

    crawl = Simulation(host, seed=seed).run(120)
    collapse, recovery = crawl.changes
    assert collapse[1:] == (2, 1, Reason.REFUSED)
    # "At once": with the very first refusal that came back.
    assert collapse.at == crawl.refused_at[0]
    assert recovery[1:] == (1, 2, Reason.RECOVERED)
    assert 30 <= recovery.at - collapse.at < 31
    assert len(crawl.refused_at) <= 2
    # The pause is the first backoff, and nothing left in it.
    assert not [at for at, _ in crawl.departures if collapse.at < at < collapse.at + 0.8]


@on_every_luck
def test_a_host_that_degrades_is_spared_until_it_recovers(seed: int, sigma: float) -> None:
    """HG-29: 0.1 s → 3 s for 10 min: 1 within 4 answers per slot, to the end; then 2 in seconds."""

    def host(now: float, in_flight: int, luck: Random) -> Answer:
        return served(spread(3 if 60 <= now < 660 else BASE_S, sigma, luck))

    crawl = Simulation(host, seed=seed).run(720)
    shrink, recovery = crawl.changes
    assert shrink[1:] == (2, 1, Reason.SLOWED)
    slow = [at for at in crawl.answered_at if 61 < at <= shrink.at]
    assert 3 <= len(slow) <= 4 * 2
    assert recovery[1:] == (1, 2, Reason.RECOVERED)
    assert 660 < recovery.at < 670


@on_every_luck
def test_a_tarpit_gets_one_at_a_time(seed: int, sigma: float) -> None:
    """HG-29: a host that always takes 15 s: 1 after the third answer, and there it stays."""

    def host(now: float, in_flight: int, luck: Random) -> Answer:
        return served(spread(15, sigma, luck))

    crawl = Simulation(host, seed=seed).run(900)
    (shrink,) = crawl.changes
    assert shrink[1:] == (2, 1, Reason.SLOWED)
    assert shrink.at == crawl.answered_at[2]
    assert crawl.host_peak(shrink.at + 60, 900) == 1


@on_every_luck
def test_a_slow_drift_does_not_become_normal(seed: int, sigma: float) -> None:
    """HG-29: 10 × slower over 30 min: shrinks to 1 within the first quarter and stays there."""

    def host(now: float, in_flight: int, luck: Random) -> Answer:
        return served(spread(BASE_S * (1 + 9 * now / 1800), sigma, luck))

    crawl = Simulation(host, seed=seed).run(1800)
    (shrink,) = crawl.changes
    assert shrink[1:] == (2, 1, Reason.SLOWED)
    assert shrink.at <= 1800 / 4


@on_every_luck
def test_a_host_that_got_faster_is_widened_step_by_step(seed: int, sigma: float) -> None:
    """HG-29: 0.5 s → 0.15 s: 3, then 4, at least 10 s apart, and not beyond the ceiling."""

    def host(now: float, in_flight: int, luck: Random) -> Answer:
        return served(spread(0.5 if now < 60 else 0.15, sigma, luck))

    crawl = Simulation(host, seed=seed).run(180)
    assert [change[1:] for change in crawl.changes] == [
        (2, 3, Reason.FASTER),
        (3, 4, Reason.FASTER),
    ]
    third, fourth = (change.at for change in crawl.changes)
    assert 60 < third < 75
    assert 10 <= fourth - third < 12
    assert crawl.host_peak(0, 180) == 4


@on_every_luck
def test_a_refused_level_is_not_sawn_at(seed: int, sigma: float) -> None:
    """HG-29: a host that refuses the 4th in flight: one collapse, then below 4 for 600 s."""

    def host(now: float, in_flight: int, luck: Random) -> Answer:
        if in_flight >= 4:
            return refused()
        return served(spread(0.5 if now < 60 else 0.15, sigma, luck))

    crawl = Simulation(host, seed=seed).run(680)
    assert crawl.path[:5] == [2, 3, 4, 1, 2]
    (collapse,) = [change for change in crawl.changes if change.reason is Reason.REFUSED]
    assert 70 < collapse.at < 80
    # Several may have been on their way in that instant: they are the same incident.
    assert all(collapse.at <= at < collapse.at + 0.05 for at in crawl.refused_at)
    assert crawl.host_peak(collapse.at + 1, collapse.at + 600) < 4
    assert crawl.limit_at(collapse.at + 600) >= 2


# The whole hour for two, for the others until the fifth probe is over.
@pytest.mark.parametrize(
    ("seed", "sigma", "until"),
    [(0, 0.0, 3600), (1, 0.2, 3600), (2, 0.2, 1300), (3, 0.2, 1300), (4, 0.2, 1300)],
)
def test_a_host_that_bears_one_is_probed_ever_more_seldom(
    seed: int, sigma: float, until: int
) -> None:
    """HG-29: refuses the 2nd in flight, for an hour: about 10 probes, each twice as far apart.

    Until 600 s are reached; from then on one in 600 s.
    """
    calm = steady(sigma)

    def host(now: float, in_flight: int, luck: Random) -> Answer:
        return refused() if in_flight >= 2 else calm(now, in_flight, luck)

    crawl = Simulation(host, seed=seed).run(until)
    refusals = [change.at for change in crawl.changes if change.reason is Reason.REFUSED]
    probes = [change.at for change in crawl.changes if change.reason is Reason.RECOVERED]
    assert 7 <= len(probes) <= 11 if until == 3600 else len(probes) == 5
    # From being refused to being sent two again.
    waits = [probe - refusal for refusal, probe in zip(refusals, probes)]
    assert all(
        expected <= wait < expected + 20
        for expected, wait in zip((30, 60, 120, 240, 480, *[600] * 6), waits)
    )
    assert len(crawl.refused_at) <= len(probes) + 2
    # A pause and half the pace for a while is what each probe costs; the pages still flow.
    assert len(crawl.answered_at) > 3 * until


def test_a_seed_gives_the_same_crawl_again() -> None:
    """The simulation is worth its numbers only if they can be had again."""
    first, again = (Simulation(steady(1.0), seed=7).run(60) for _ in range(2))
    assert first.departures == again.departures
    assert first.changes == again.changes
