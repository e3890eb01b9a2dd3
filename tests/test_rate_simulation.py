"""An hour with a host that allows so many requests a second, and says so only by 429.

In a closed loop with the real gate, on a fake clock, with work that never runs out. The bounds:
at most ten refusals in the first minute, from then on at most one in four minutes, and
at least three quarters of what the host allows. Each is a mean over the same five seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from simulation import Answer, Host, Simulation, refused, served, spread

SEEDS = range(5)
MINUTE_S = 60
HOUR_S = 3600
SIGMA = 0.2


def bucket(rate: float, burst: float, latency_s: float) -> Host:
    """A token bucket; what it refuses costs no token."""
    tokens, filled_at = burst, 0.0

    def host(now: float, in_flight: int, luck: Random) -> Answer:
        nonlocal tokens, filled_at
        tokens = min(burst, tokens + (now - filled_at) * rate)
        filled_at = now
        # A departure at the very instant of a token is in time, whatever the last bit says.
        if tokens < 1 - 1e-9:
            return refused()
        tokens -= 1
        return served(spread(latency_s, SIGMA, luck))

    return host


@dataclass
class Hour:
    """Means over the seeds; ``used`` is a share of what the host would have allowed."""

    refused_in_first_minute: float
    refused_in_four_minutes: float
    used: float


def an_hour_with(rate: float, burst: float, latency_s: float) -> Hour:
    crawls = [Simulation(bucket(rate, burst, latency_s), seed=seed).run(HOUR_S) for seed in SEEDS]
    first = [sum(at < MINUTE_S for at in crawl.refused_at) for crawl in crawls]
    later = [len(crawl.refused_at) - early for crawl, early in zip(crawls, first)]
    served_pages = [len(crawl.answered_at) - len(crawl.refused_at) for crawl in crawls]
    return Hour(
        sum(first) / len(crawls),
        sum(later) / len(crawls) / ((HOUR_S - MINUTE_S) / 240),
        sum(served_pages) / len(crawls) / (rate * HOUR_S),
    )


@pytest.mark.parametrize(
    ("rate", "burst", "latency_s"),
    [
        # A longer latency only makes it easier, so it is tried where it costs little.
        (1, 1, 0.02),
        (1, 1, 0.1),
        (3, 1, 0.1),
        (3, 3, 0.02),
        (5, 1, 0.02),
        (5, 5, 0.1),
        (20, 20, 0.02),
    ],
)
def test_a_host_that_only_says_429_is_asked_at_its_own_pace(
    rate: float, burst: float, latency_s: float
) -> None:
    """At most 10 refusals in the first minute, one in four minutes later, 75 % used."""
    hour = an_hour_with(rate, burst, latency_s)
    assert hour.refused_in_first_minute <= 10, hour
    assert hour.refused_in_four_minutes <= 1, hour
    assert hour.used >= 0.75, hour
