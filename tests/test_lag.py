"""Whose fault was it? A latency measured while our own loop stood still is not the host's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fakes import FakeClock, FakeTimer

from scrapy_hostgate.lag import LoopLag


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now=100)


@pytest.fixture
def lag(clock: FakeClock) -> LoopLag:
    lag = LoopLag(clock, clock.call_later)
    lag.start()
    return lag


def stand_still(clock: FakeClock, seconds: float) -> None:
    """The loop beats for a second, stops for ``seconds``, and beats on."""
    clock.advance(1)
    assert clock.next_at is not None
    clock.run_until(clock.next_at)
    clock.stall(seconds)
    clock.advance(1)


def test_a_loop_that_runs_spoils_nothing(clock: FakeClock, lag: LoopLag) -> None:
    """Ten seconds of regular beats: every sample is good."""
    clock.advance(10)
    assert not lag.spoils(100, 10, clock.now)
    assert not lag.spoils(109.999, 0.001, clock.now)


def test_a_standstill_spoils_the_samples_in_flight(clock: FakeClock, lag: LoopLag) -> None:
    """200 ms of it: too much for a sample of 0.25 s or 1 s, not for one of 10 s."""
    stand_still(clock, 0.2)
    assert lag.spoils(100, 0.25, clock.now)
    assert lag.spoils(100, 1, clock.now)
    assert not lag.spoils(100, 10, clock.now)


def test_a_standstill_does_not_spoil_what_left_after_it(clock: FakeClock, lag: LoopLag) -> None:
    """The loop was fine again: that sample is the host's."""
    stand_still(clock, 0.2)
    departed_at = clock.now
    clock.advance(1)
    assert not lag.spoils(departed_at, 0.25, clock.now)


@pytest.mark.parametrize(("seconds", "spoils"), [(0.045, False), (0.08, True)])
def test_50_ms_is_the_least_that_counts(
    clock: FakeClock, lag: LoopLag, seconds: float, spoils: bool
) -> None:
    """Shorter standstills are ordinary, even for a sample of a few milliseconds."""
    stand_still(clock, seconds)
    assert lag.spoils(100, 0.005, clock.now) is spoils


def test_a_standstill_that_is_not_over_counts(clock: FakeClock, lag: LoopLag) -> None:
    """The sample may be looked at before the next beat has had its turn."""
    clock.advance(1)
    departed_at = clock.now
    clock.stall(0.3)
    assert lag.spoils(departed_at, 0.3, clock.now)
    assert not lag.spoils(departed_at, 5, clock.now)


def test_it_beats_only_while_told_to(clock: FakeClock, lag: LoopLag) -> None:
    """One timer however often it is started, none once stopped; an idle crawl is left in peace."""
    lag.start()
    assert clock.pending == 1
    lag.stop()
    lag.stop()
    assert clock.pending == 0
    assert not lag.spoils(100, 0.001, clock.now)


def test_a_standstill_while_stopped_is_nobodys(clock: FakeClock, lag: LoopLag) -> None:
    """Nothing was in flight then."""
    lag.stop()
    clock.stall(5)
    lag.start()
    departed_at = clock.now
    clock.advance(1)
    assert not lag.spoils(departed_at, 0.25, clock.now)


def test_it_beats_fifty_times_a_second_and_no_more(clock: FakeClock) -> None:
    """Watching must not be the load that it watches for."""
    beats: list[float] = []

    def counted(delay_s: float, function: Callable[[], None]) -> FakeTimer:
        beats.append(delay_s)
        return clock.call_later(delay_s, function)

    lag = LoopLag(clock, counted)
    lag.start()
    clock.advance(10)
    assert 490 <= len(beats) <= 502
