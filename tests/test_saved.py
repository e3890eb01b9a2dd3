"""What one run has learnt of a host, as plain numbers and back: never anything too early."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from fakes import FakeClock, middle
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_hostgate.controller import Law
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.outcome import Outcome
from scrapy_hostgate.pacer import Pace
from scrapy_hostgate.saved import LONGEST_S, Saved

WALL = 1_800_000_000.0
"""Unix seconds at zero of the first run's clock."""
LAW, PACE = Law(), Pace()


def gate_of(clock: FakeClock, law: Law = LAW, pace: Pace = PACE) -> Gate:
    return Gate("h", law, pace, clock=clock, call_later=clock.call_later, uniform=middle)


def visit(gate: Gate, outcome: Outcome = Outcome.OK, *, asked_s: float | None = None) -> None:
    """One request, alone, as soon as the gate lets it go; it takes half a second."""
    clock = gate._clock
    assert isinstance(clock, FakeClock)
    permit = gate.arrive()
    while not permit.granted:
        assert clock.next_at is not None
        clock.run_until(clock.next_at)
    clock.advance(0.5)
    gate.record(permit, outcome, 0.1 if outcome is Outcome.OK else None, asked_s)
    gate.leave(permit)


def export(gate: Gate) -> dict[str, Any]:
    """What a file would give back."""
    told = json.loads(json.dumps(gate.export(gate._clock(), WALL)))
    assert isinstance(told, dict)
    return told


def resume(
    told: object,
    at: float,
    law: Law = LAW,
    pace: Pace = PACE,
    *,
    booted_at: float = 0.0,
) -> tuple[Gate, bool]:
    """The next run's gate ``at`` seconds of the first run's clock; its own began at another."""
    clock = FakeClock(at - booted_at)
    gate = gate_of(clock, law, pace)
    fresh = gate.restore(Saved(told, now=clock(), offset_s=WALL + booted_at))
    return gate, fresh


def test_of_a_host_that_did_nothing_special_nothing_is_saved() -> None:
    """Neither of a gate that was never used nor of one that served a few pages."""
    gate = gate_of(FakeClock())
    assert export(gate) == {}
    visit(gate)
    assert export(gate) == {}


@pytest.mark.parametrize("booted_at", [0.0, -5e5, 50.0])
def test_a_pause_goes_on_to_its_end(booted_at: float) -> None:
    """Asked to wait 300 s, resumed after 100: 200 are left, whatever the new clock shows."""
    clock = FakeClock()
    gate = gate_of(clock)
    visit(gate, Outcome.REFUSED, asked_s=300)
    again, fresh = resume(export(gate), clock() + 100, booted_at=booted_at)
    assert fresh
    snapshot = again.snapshot()
    assert snapshot.paused_s == pytest.approx(200)
    assert (snapshot.limit, snapshot.epoch) == (1, 1)
    assert not again.arrive().granted


def test_a_refused_host_comes_back_as_if_nothing_had_been_interrupted() -> None:
    """Backoff, spacing and recovery delay go on: the same events give the same state."""
    clock = FakeClock()
    gate = gate_of(clock)
    for _ in range(30):
        visit(gate)
    for outcome in (Outcome.REFUSED, Outcome.OK, Outcome.REFUSED, Outcome.REFUSED):
        visit(gate, outcome)
    again, _ = resume(export(gate), clock())
    assert again.snapshot().spacing_s == gate.snapshot().spacing_s > 0
    assert again.controller.recovery_delay_s == gate.controller.recovery_delay_s == 60
    assert again.pacer.refusals_in_a_row == 2
    for each in (gate, again):
        visit(each, Outcome.REFUSED)
        for _ in range(12):
            visit(each)
    assert again.snapshot().paused_s == gate.snapshot().paused_s
    assert again.limit == gate.limit == 1
    for each in (gate, again):
        while each.limit == 1:
            visit(each)
    assert again._clock() == gate._clock()


def test_a_baseline_is_kept_and_still_grows_slowly() -> None:
    """Learnt from a full window at 0.1 s, resumed at a host that now takes 0.14 s: usual it is
    not, not even after a hundred samples."""
    gate = gate_of(FakeClock())
    for _ in range(70):
        visit(gate)
    again, fresh = resume(export(gate), gate._clock())
    assert fresh
    assert again.controller.baseline_s == gate.controller.baseline_s == 0.1
    for _ in range(100):
        permit = again.arrive()
        again.record(permit, Outcome.OK, 0.14)
        again.leave(permit)
    assert 0.1 <= again.controller.baseline_s < 0.11


def test_what_the_limit_had_risen_to_is_kept_only_under_the_same_start() -> None:
    """Widened to 4: still 4 in the next run; 3 if that is the ceiling now; 1 if it starts at 1."""
    gate = gate_of(FakeClock())
    gate.resize(4)
    told = export(gate)
    assert resume(told, 1)[0].limit == 4
    assert resume(told, 1, Law(ceiling=3))[0].limit == 3
    assert resume(told, 1, Law(start=1, ceiling=4))[0].limit == 1
    assert resume(told, 1, Law(start=1, ceiling=1))[0].semaphore.limit == 1


def test_a_start_that_was_raised_counts_where_nothing_was_wrong() -> None:
    """Baseline learnt at start 1, then the project starts at 2: two, at once."""
    gate = gate_of(FakeClock(), Law(start=1))
    for _ in range(30):
        visit(gate)
    assert resume(export(gate), gate._clock())[0].limit == 2


def test_old_news_is_dropped() -> None:
    """Ten minutes after the last word nothing of it counts, except a pause that still runs."""
    gate = gate_of(FakeClock(), pace=Pace(max_pause_s=7200))
    visit(gate, Outcome.REFUSED, asked_s=3600)
    assert resume(export(gate), 3000, pace=Pace(max_pause_s=7200))[1]
    assert not resume(export(gate), 3601, pace=Pace(max_pause_s=7200))[1]
    other = gate_of(FakeClock())
    visit(other, Outcome.REFUSED)
    assert resume(export(other), 599)[1]
    assert not resume(export(other), 601)[1]
    other._clock.advance(601)  # type: ignore[attr-defined]
    assert export(other) == {}


def test_a_delay_between_departures_spans_the_break() -> None:
    """One departure a minute, stopped after 1 s, resumed after 2: the next leaves at 60."""
    gate = gate_of(FakeClock(), pace=Pace(delay_s=60, jitter=0))
    visit(gate)
    again, _ = resume(export(gate), 2, pace=Pace(delay_s=60, jitter=0))
    assert again.pacer.next_departure(2) == pytest.approx(60)
    rated = gate_of(FakeClock(), pace=Pace(rate=0.1))
    visit(rated)
    assert resume(export(rated), 2, pace=Pace(rate=0.1))[0].pacer.next_departure(2) == 10
    # The rate was raised since: the debt of the old one is not carried on.
    assert resume(export(rated), 2, pace=Pace(rate=2))[0].pacer.next_departure(2) <= 2.5


def test_a_restored_host_leaves_the_others_alone() -> None:
    """Its spacing, pause and backoff are its own: a host met for the first time has none."""
    gate = gate_of(FakeClock())
    for outcome in (Outcome.OK, Outcome.OK, Outcome.REFUSED):
        visit(gate, outcome)
    again, _ = resume(export(gate), gate._clock())
    assert again.snapshot().spacing_s > 0
    other = gate_of(FakeClock()).snapshot()
    assert (other.spacing_s, other.paused_s, other.limit, other.epoch) == (0, 0, 2, 0)


def test_a_stalled_host_stays_stalled() -> None:
    """As long as it would have without the break."""
    gate = gate_of(FakeClock())
    while not gate.stalled:
        visit(gate, Outcome.REFUSED)
    now = gate._clock()
    assert resume(export(gate), now + 1)[0].stalled
    assert not resume(export(gate), now + 901)[0].stalled


def test_a_lowered_longest_pause_shortens_what_is_left() -> None:
    """HOSTGATE_MAX_PAUSE is the user's, and may be lowered between two runs."""
    gate = gate_of(FakeClock())
    visit(gate, Outcome.REFUSED, asked_s=800)
    assert resume(export(gate), 1, pace=Pace(max_pause_s=20))[0].snapshot().paused_s == 20


# -- files that somebody broke -------------------------------------------------------------------


def troubled() -> dict[str, Any]:
    """A gate's export with every key in it."""
    gate = gate_of(FakeClock(), pace=Pace(rate=1, delay_s=5))
    for _ in range(70):
        visit(gate)
    for _ in range(3):
        permit = gate.arrive()
        gate._clock.advance(20)  # type: ignore[attr-defined]
        gate.record(permit, Outcome.SLOW, None)
        gate.leave(permit)
    for outcome in (Outcome.REFUSED, Outcome.OK, Outcome.REFUSED):
        visit(gate, outcome)
    return export(gate)


def keys_of(told: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    keys: list[tuple[str, ...]] = []
    for name, value in told.items():
        keys.append((*path, name))
        if isinstance(value, dict):
            keys += keys_of(value, (*path, name))
    return keys


TROUBLED = troubled()
PATHS = keys_of(TROUBLED)


def broken(path: tuple[str, ...], change: Callable[[Any], Any]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(TROUBLED))
    part = told
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = change(part[path[-1]])
    return told


def test_the_example_has_every_key() -> None:
    """Or the tests below would leave some out."""
    assert {path[-1] for path in PATHS} == {
        *("controller", "pacer", "changed_at", "departed_at", "refusing_since"),
        *("baseline_s", "baseline_at", "settled", "epoch", "limit", "start", "recovery_delay_s"),
        *("refused_at", "refused_level", "served_since_refusal", "shrunk_at"),
        *("pause_until", "not_before", "tat", "refusals_in_a_row", "penalty"),
        *("interval_s", "refused_s", "stepped_at", "lowered_at"),
    }


@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_what_is_no_number_is_refused(path: tuple[str, ...]) -> None:
    """Texts, nothing, lists and, where a number is meant, NaN and the infinite."""
    for wrong in ("1", None, [1], math.nan, math.inf):
        with pytest.raises(ValueError, match=r"is n|is not"):
            resume(broken(path, lambda _, wrong=wrong: wrong), 100)


WHOLE = [p for p in PATHS if p[-1] in ("epoch", "limit", "refused_level", "refusals_in_a_row")]
LENGTHS = [p for p in PATHS if p[-1].endswith("_s")]


@pytest.mark.parametrize("path", WHOLE + LENGTHS, ids=".".join)
def test_what_is_negative_is_refused(path: tuple[str, ...]) -> None:
    """Counts and durations, not times."""
    with pytest.raises(ValueError, match=path[-1]):
        resume(broken(path, lambda value: -1 - value), 100)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=3,
)


@settings(max_examples=300, deadline=None)
@given(
    path=st.sampled_from(PATHS),
    value=anything | st.floats(0, 4e9) | st.integers(0, 10**400),
    at=st.floats(0, 5000),
)
def test_whatever_stands_in_the_file_the_gate_is_usable_or_refused(
    path: tuple[str, ...], value: object, at: float
) -> None:
    """A limit within the law, no wait beyond a day, and requests that go through."""
    law, pace = Law(ceiling=3), Pace(rate=5)
    try:
        gate, _ = resume(broken(path, lambda _: value), at, law, pace)
    except ValueError:
        return
    assert 1 <= gate.limit == gate.semaphore.limit <= law.ceiling
    assert gate.pacer.next_departure(at) <= at + LONGEST_S
    assert gate.snapshot().spacing_s <= LONGEST_S
    assert law.recovery_delay_s <= gate.controller.recovery_delay_s <= 600
    for outcome in (Outcome.OK, Outcome.REFUSED, Outcome.OK):
        visit(gate, outcome)


# -- never earlier than without the break --------------------------------------------------------

events = st.lists(
    st.tuples(
        st.sampled_from([Outcome.OK, Outcome.OK, Outcome.SLOW, Outcome.NEUTRAL, Outcome.REFUSED]),
        st.none() | st.floats(1, 2000),
        st.floats(0, 30),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(
    events=events,
    pace=st.sampled_from([Pace(), Pace(rate=0.5, burst=3), Pace(delay_s=3, jitter=0.5)]),
    break_s=st.floats(0, 500),
)
def test_a_break_never_brings_a_departure_forward(
    events: list[tuple[Outcome, float | None, float]], pace: Pace, break_s: float
) -> None:
    """The next departure after any history is as late as if the crawl had not been stopped, with
    the same limit, backoff, spacing and recovery delay."""
    clock = FakeClock()
    gate = gate_of(clock, pace=pace)
    for outcome, asked_s, then_s in events:
        visit(gate, outcome, asked_s=asked_s)
        clock.advance(then_s)
    told = export(gate)
    clock.advance(break_s)
    now = clock()
    again, fresh = resume(told, now, pace=pace, booted_at=-1000)
    assert again.pacer.next_departure(now + 1000) - 1000 == pytest.approx(
        gate.pacer.next_departure(now), abs=1e-5
    )
    if told and fresh:
        assert again.limit == gate.limit
        assert again.controller.epoch == gate.controller.epoch
        assert again.controller.recovery_delay_s == gate.controller.recovery_delay_s
        assert again.pacer.refusals_in_a_row == gate.pacer.refusals_in_a_row
        assert again.pacer.penalty.interval_s == gate.pacer.penalty.interval_s


def test_one_decision_after_the_break_is_the_one_without_it() -> None:
    """Ten good answers and the recovery delay bring a host back, and the delay spans the break."""
    gate = gate_of(FakeClock())
    for _ in range(30):
        visit(gate)
    visit(gate, Outcome.REFUSED)
    again, _ = resume(export(gate), gate._clock() + 40)
    for _ in range(9):
        visit(again)
    assert again.limit == 1
    visit(again)
    assert again.limit == 2
