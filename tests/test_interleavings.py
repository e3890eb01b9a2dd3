"""A gate under any order of events: whatever happens, the bound holds and nobody is forgotten."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from interleavings import (
    ASKED_S,
    DELAYS_S,
    LATENCIES_S,
    OUTCOMES,
    PRIORITIES,
    RATES,
    STALLS_S,
    STEPS_S,
    Setting,
    World,
    walk_many,
)

WALKS = 2_000
which = st.integers(0, 7)
asked = st.sampled_from(ASKED_S)


class AnyGate(RuleBasedStateMachine):
    """The moves of :class:`interleavings.World` as rules, so that a failure is shrunk."""

    world: World

    @initialize(
        start=st.integers(1, 2),
        more=st.integers(0, 3),
        rate=st.sampled_from(RATES),
        burst=st.integers(1, 3),
        delay_s=st.sampled_from(DELAYS_S),
        fleet=st.booleans(),
    )
    def begin(
        self, start: int, more: int, rate: float | None, burst: int, delay_s: float, fleet: bool
    ) -> None:
        self.world = World(Setting(start, start + more, rate, burst, delay_s, fleet))

    @rule(priority=st.sampled_from(PRIORITIES), at_once=st.booleans())
    def arrive(self, priority: int, at_once: bool) -> None:
        self.world.arrive(priority, at_once)

    @rule()
    def turn(self) -> None:
        self.world.turn()

    @rule(
        which=which,
        outcome=st.sampled_from(OUTCOMES),
        latency_s=st.sampled_from((None, *LATENCIES_S)),
        asked_s=asked,
    )
    def finish(self, which: int, outcome: object, latency_s: float | None, asked_s: float) -> None:
        self.world.finish(which, outcome, latency_s, asked_s)  # type: ignore[arg-type]

    @rule(which=which)
    def cancel(self, which: int) -> None:
        self.world.cancel(which)

    @rule()
    def close(self) -> None:
        self.world.close()

    @rule(limit=st.integers(1, 5))
    def resize(self, limit: int) -> None:
        self.world.resize(limit)

    @rule(asked_s=asked, old=st.booleans())
    def refuse(self, asked_s: float, old: bool) -> None:
        self.world.refuse(asked_s, old)

    @rule(asked_s=asked)
    def obey(self, asked_s: float) -> None:
        self.world.obey(asked_s)

    @rule(concurrency=st.integers(1, 3), delay_s=st.sampled_from(DELAYS_S))
    def tighten(self, concurrency: int, delay_s: float) -> None:
        self.world.tighten(concurrency, delay_s)

    @rule(remaining=st.integers(0, 3), reset_s=st.sampled_from((1.0, 5.0, 500.0)))
    def announce(self, remaining: int, reset_s: float) -> None:
        self.world.announce(remaining, reset_s)

    @rule(delay_s=st.sampled_from((0.5, 2.0)), robots=st.booleans())
    def slow_down(self, delay_s: float, robots: bool) -> None:
        if robots:
            self.world.crawl_delay(delay_s)
        else:
            self.world.delay_from_outside(delay_s)

    @rule(seconds=st.sampled_from(STEPS_S))
    def time_passes(self, seconds: float) -> None:
        self.world.time_passes(seconds)

    @rule(seconds=st.sampled_from(STALLS_S), noticed=st.booleans())
    def stall(self, seconds: float, noticed: bool) -> None:
        self.world.stall(seconds, noticed=noticed)

    @rule(opens_in_s=st.sampled_from((0.0, 1.0, math.inf)), keeps_word=st.booleans())
    def fleet_says(self, opens_in_s: float, keeps_word: bool) -> None:
        self.world.fleet_says(opens_in_s, keeps_word)

    @rule()
    def serve(self) -> None:
        self.world.serve(12, 0.1)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.end()


def test_no_order_of_events_breaks_a_gate() -> None:
    """HG-12 for everything that can happen to a gate, in examples that hypothesis makes up."""
    run_state_machine_as_test(
        AnyGate,
        settings=settings(
            deadline=None,
            max_examples=200,
            stateful_step_count=25,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_two_thousand_walks_at_random() -> None:
    """The same moves, many more examples; benchmarks/interleavings.py walks as long as wanted."""
    walk_many(WALKS)


def test_the_model_notices_a_gate_that_lets_one_more_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model that cannot fail proves nothing: here the look at a late grant is left out."""
    from scrapy_hostgate.gate import Gate

    monkeypatch.setattr(Gate, "left", lambda gate, permit: True)
    with pytest.raises(AssertionError, match="left "):
        walk_many(WALKS)
