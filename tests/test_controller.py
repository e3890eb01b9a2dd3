"""The law by hand: plain numbers, no clock, no host (HG-29)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import cycle, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_hostgate.controller import Controller, Decision, Law, Reason, SortedWindow, Window
from scrapy_hostgate.outcome import Outcome, Sample
from scrapy_hostgate.saved import Saved

# p95 0.25 s, median 0.125 s: faster than 0.6 × p95 = 0.15 s. All three are exact in binary.
FASTER = (0.125, 0.125, 0.125, 0.25)
# p95 0.25 s, median exactly 0.6 × p95.
EXACTLY_AT_WIDEN_BOUND = (0.15, 0.15, 0.15, 0.25)
# The bound of one too slow: 1.5 × 0.25 s.
EXACTLY_AT_SHRINK_BOUND = 0.375


class Trace:
    """Feeds one controller; every sample departs in the present epoch, with the limit full."""

    def __init__(self, law: Law = Law(), now: float = 0.0) -> None:  # noqa: B008 - frozen
        self.now = now
        self.controller = Controller(law, now)

    def sample(
        self,
        outcome: Outcome,
        latency_s: float | None = None,
        *,
        after: float = 1.0,
        in_flight: int | None = None,
        epoch: int | None = None,
        paused: bool = False,
    ) -> Decision | None:
        controller = self.controller
        self.now += after
        sample = Sample(
            outcome,
            latency_s,
            controller.epoch if epoch is None else epoch,
            controller.limit if in_flight is None else in_flight,
        )
        return controller.observe(sample, self.now, paused=paused)

    def ok(self, latency_s: float | None, **how: float) -> Decision | None:
        return self.sample(Outcome.OK, latency_s, **how)  # type: ignore[arg-type]

    def served(
        self, count: int, *, in_flight: int | None = None, paused: bool = False
    ) -> list[tuple[float, int, Reason]]:
        """So many OKs whose latency is not to be trusted, one per second; what they changed."""
        changes, controller = [], self.controller
        for _ in range(count):
            self.now += 1
            many = controller.limit if in_flight is None else in_flight
            sample = Sample(Outcome.OK, None, controller.epoch, many)
            if found := controller.observe_served(sample, self.now, paused=paused):
                assert found.latency_s is None
                changes.append((self.now, found.limit_to, found.reason))
        return changes

    def run(self, latencies: Iterable[float], **how: float) -> list[Decision]:
        return [found for one in latencies if (found := self.ok(one, **how))]

    def changes(self, latencies: Iterable[float], **how: float) -> list[tuple[float, int, Reason]]:
        """(when, new limit, why) of every change."""
        return [
            (self.now, found.limit_to, found.reason)
            for one in latencies
            if (found := self.ok(one, **how))
        ]

    def refuse(self, after: float = 1.0) -> Decision:
        self.now += after
        return self.controller.refuse(self.now, self.controller.limit)


def state(controller: Controller) -> dict[str, object]:
    """Everything a controller knows, comparable."""
    known: dict[str, object] = {}
    for name in Controller.__slots__:
        value = getattr(controller, name)
        known[name] = list(value._ring) if isinstance(value, Window) else value
    return known


def times(count: int, latencies: float | tuple[float, ...]) -> list[float]:
    pattern = latencies if isinstance(latencies, tuple) else (latencies,)
    return list(islice(cycle(pattern), count))


# -- the window -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "rank"), [(1, 1), (2, 2), (19, 19), (20, 19), (21, 20), (40, 38), (60, 57), (64, 61)]
)
def test_the_percentile_is_the_nearest_rank(count: int, rank: int) -> None:
    """HG-29: p95 of 1 … n is the ⌈0.95 n⌉-th, whatever the order of arrival."""
    window = Window(64)
    for value in reversed(range(1, count + 1)):
        window.push(value)
    assert window.quantile(0.95) == rank
    assert window.quantile(0.5) == math.ceil(count / 2)


@given(
    st.sampled_from([Window, SortedWindow]),
    st.lists(st.floats(0, 5000), min_size=1, max_size=60),
    st.integers(1, 8),
)
@settings(deadline=None, max_examples=100)
def test_a_window_keeps_the_last_numbers_only(
    kind: type[Window], values: list[float], size: int
) -> None:
    """Its quantiles are those of the last ``size`` numbers, to a microsecond, up to 4294 s."""
    window = kind(size)
    for value in values:
        window.push(value)
    last = sorted(min(round(value * 1e6), 2**32 - 1) / 1e6 for value in values[-size:])
    assert len(window) == len(last)
    assert [window.quantile(rank / len(last)) for rank in range(1, len(last) + 1)] == last


def test_a_window_tells_what_it_holds_by_arrival() -> None:
    """The oldest first, in seconds, before it is full and after."""
    window = Window(3)
    seen = []
    for value in (5.5, 0.25, 1.0, 2.0):
        window.push(value)
        seen.append(window.in_order())
    assert seen == [[5.5], [5.5, 0.25], [5.5, 0.25, 1.0], [0.25, 1.0, 2.0]]


@pytest.mark.parametrize("kind", [Window, SortedWindow])
def test_a_window_is_exact_to_a_microsecond_and_holds_an_hour(kind: type[Window]) -> None:
    """5 s are 5 s; more than 4294.967295 s, which fit in 32 bits, are as much as that."""
    window = kind(3)
    window.push(5.0)
    assert window.quantile(0.5) == 5.0
    window.push(5000.0)
    assert window.quantile(1.0) == 4294.967295


# -- samples that decide nothing ----------------------------------------------------------------


@given(st.lists(st.floats(0.001, 1), min_size=19, max_size=19))
@settings(deadline=None, max_examples=50)
def test_nothing_is_decided_before_twenty_samples(latencies: list[float]) -> None:
    """HG-29, point 1: 19 samples of 1 ms to 1 s in any order: limit 2, and no baseline yet."""
    trace = Trace()
    assert trace.controller.median_s is None
    assert trace.run(latencies) == []
    assert trace.controller.limit == 2
    assert trace.controller.baseline_s is None
    assert trace.controller.samples == 19


def test_the_baseline_begins_as_p95_of_twenty() -> None:
    """The 20th sample makes it: the 19th of them in order of size."""
    trace = Trace()
    trace.run([0.1 + n / 1000 for n in range(20)])
    assert trace.controller.baseline_s == 0.118


def test_a_steady_host_changes_nothing() -> None:
    """HG-29, point 2: 2,000 × 50 ms over 600 s: no change at all."""
    trace = Trace()
    assert trace.run(times(2000, 0.05), after=0.3) == []
    assert (trace.controller.limit, trace.controller.epoch) == (2, 0)
    assert trace.controller.baseline_s == 0.05


@pytest.mark.parametrize("latency", [0.0, -0.0, -0.001, -math.inf, math.inf, math.nan, None])
def test_a_latency_that_is_none_is_ignored(latency: float | None) -> None:
    """HG-29, point 4: zero, negative, NaN, infinite or missing: the state is unchanged."""
    trace = Trace()
    trace.run(times(25, 0.25))
    before = state(trace.controller)
    assert [trace.ok(latency) for _ in range(5)] == [None] * 5
    assert state(trace.controller) == before


def test_a_neutral_answer_is_ignored() -> None:
    """A 404 is often small and fast: it teaches nothing, whatever its latency."""
    trace = Trace()
    trace.run(times(25, 0.25))
    before = state(trace.controller)
    assert [trace.sample(Outcome.NEUTRAL, 9.0) for _ in range(5)] == [None] * 5
    assert state(trace.controller) == before


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_sample_from_an_older_epoch_changes_nothing(outcome: Outcome) -> None:
    """HG-29: what departed before a collapse and arrives after it finds the state as it was."""
    trace = Trace()
    trace.run(times(25, 0.25))
    trace.refuse()
    before = state(trace.controller)
    assert [trace.sample(outcome, 9.0, epoch=0) for _ in range(5)] == [None] * 5
    assert state(trace.controller) == before


def test_hosts_are_independent() -> None:
    """HG-29, point 7: host X's samples never move host Y."""
    x, y = Trace(), Trace()
    y.run(times(25, 0.25))
    before = state(y.controller)
    x.run(times(25, 0.1))
    x.run(times(3, 9.0))
    x.refuse()
    assert state(y.controller) == before


# -- the baseline -------------------------------------------------------------------------------


def test_the_baseline_follows_improvement_by_a_twentieth_of_the_gap() -> None:
    """5 % of the gap per sample downwards: 0.2 s, then 0.1975 s, then 0.195125 s."""
    trace = Trace()
    trace.run(times(64, 0.2))
    # 61 faster ones are needed before p95 of the 64 is a faster one.
    trace.run(times(60, 0.15))
    assert trace.controller.baseline_s == 0.2
    trace.ok(0.15)
    assert trace.controller.baseline_s == pytest.approx(0.1975, rel=1e-12)
    trace.ok(0.15)
    assert trace.controller.baseline_s == pytest.approx(0.195125, rel=1e-12)


@pytest.mark.parametrize("step", [0.1, 1.0, 60.0])
def test_the_baseline_follows_worsening_by_five_percent_a_minute(step: float) -> None:
    """At most 5 % per minute once the window is full, however many samples a minute brings."""
    trace = Trace()
    trace.run(times(64, 0.1))
    trace.run(times(4, 0.14), after=0.001)  # p95 is a worse one from the fourth on
    before = trace.controller.baseline_s
    assert before is not None
    assert before == pytest.approx(0.1, rel=1e-4)
    trace.run(times(round(60 / step), 0.14), after=step)
    after = trace.controller.baseline_s
    assert after is not None
    assert 1.045 <= after / before <= 1.05 + 1e-9


def test_a_minute_is_worth_five_percent_exactly() -> None:
    """One sample a minute after the last: 1.05 times what it was; after an hour no more than ten
    minutes' worth."""
    trace = Trace()
    trace.run(times(64, 0.1))
    trace.run(times(10, 0.5), in_flight=1, after=1e-9)
    for after, growth in ((60.0, 1.05), (3600.0, 1.05**10)):
        trace.controller.resize(2, trace.now)
        baseline_s = trace.controller.baseline_s
        assert baseline_s is not None
        trace.ok(0.5, after=after)
        assert trace.controller.baseline_s == pytest.approx(baseline_s * growth, rel=1e-9)


def test_the_baseline_never_passes_what_was_measured() -> None:
    """Growing, it stops at the p95 it grows to."""
    trace = Trace()
    trace.run(times(64, 0.1))
    trace.run(times(200, 0.12), after=30.0)
    assert trace.controller.baseline_s == 0.12


def test_the_first_filling_of_the_window_corrects_itself_upwards() -> None:
    """Before 64 samples a first estimate may grow by a twentieth of the gap per sample."""
    trace = Trace()
    trace.run(times(20, 0.1))
    trace.run(times(2, 0.14), after=0.001)
    assert trace.controller.baseline_s == pytest.approx(0.1 + 0.05 * 0.04, rel=1e-12)


def test_a_sample_beyond_the_start_does_not_teach_the_baseline() -> None:
    """What our own load may have slowed is no measure of the host: only in flight ≤ start is."""
    trace = Trace()
    trace.run(times(30, 0.25))
    trace.run(times(30, 0.3), in_flight=3)
    assert trace.controller.samples == 30
    assert trace.controller.baseline_s == 0.25
    # The median is what the host does now, under whatever load.
    assert trace.controller.median_s == 0.3
    trace.ok(0.3, in_flight=2)
    assert trace.controller.samples == 31


def test_the_median_is_that_of_the_last_32() -> None:
    """Sixteen of them quicker than the others: that is the median; with fifteen it is not."""
    trace = Trace()
    trace.run(times(40, 0.3))
    trace.run(times(15, 0.25))
    assert trace.controller.median_s == 0.3
    trace.ok(0.25)
    assert trace.controller.median_s == 0.25


# -- collapse -----------------------------------------------------------------------------------


def test_a_refusal_collapses_and_is_no_sample() -> None:
    """HG-29, point 3: one refusal at limit 4: 1 at once; its latency is in no window."""
    trace = Trace()
    trace.run(times(30, 0.05))
    trace.controller.resize(4, trace.now)
    decision = trace.sample(Outcome.REFUSED, 9.0)
    assert decision == Decision(
        reason=Reason.REFUSED,
        limit_from=4,
        limit_to=1,
        epoch=2,
        baseline_s=0.05,
        recovery_delay_s=30.0,
    )
    assert (trace.controller.limit, trace.controller.epoch) == (1, 2)
    assert trace.controller.samples == 30
    assert trace.controller.median_s is None


def test_a_steady_host_is_back_after_the_recovery_delay() -> None:
    """HG-29, point 3: then steady 50 ms: 2 after 30 s, not before, and not never."""
    trace = Trace()
    trace.run(times(30, 0.05))
    trace.refuse()
    refused_at = trace.now
    assert trace.changes(times(200, 0.05)) == [(refused_at + 30, 2, Reason.RECOVERED)]


def test_a_refusal_at_the_floor_raises_the_epoch_only() -> None:
    """1 stays 1, and what departed before it is outdated all the same."""
    trace = Trace(Law(start=1))
    decision = trace.refuse()
    assert (decision.limit_from, decision.limit_to, decision.epoch) == (1, 1, 1)
    assert trace.controller.limit == 1


def refuse_and_serve(trace: Trace) -> float:
    """One refusal, a quarter of a minute of service: the recovery delay it left behind."""
    delay = trace.refuse().recovery_delay_s
    trace.run(times(15, 0.05))
    assert delay is not None
    return delay


def test_repeated_refusals_double_the_recovery_delay() -> None:
    """30, 60, 120 … up to 600 s and no further."""
    trace = Trace()
    delays = [refuse_and_serve(trace) for _ in range(7)]
    assert delays == [30, 60, 120, 240, 480, 600, 600]


def test_the_longer_delay_is_what_a_recovery_waits_for() -> None:
    """After a second refusal it takes 60 s, not 30."""
    trace = Trace()
    trace.run(times(30, 0.05))
    refuse_and_serve(trace)
    trace.refuse()
    refused_at = trace.now
    assert trace.changes(times(100, 0.05)) == [(refused_at + 60, 2, Reason.RECOVERED)]


def test_an_outage_is_one_complaint() -> None:
    """A host that refuses every knock, with nothing served between, does not double the delay."""
    trace = Trace()
    assert [trace.refuse(60).recovery_delay_s for _ in range(10)] == [30.0] * 10


@pytest.mark.parametrize(("quiet", "delay"), [(600, 30), (599, 240)])
def test_a_refusal_after_600_quiet_seconds_starts_anew(quiet: float, delay: float) -> None:
    """The doubled delay is forgiven after 600 s without a refusal or a change, and not before."""
    trace = Trace()
    trace.run(times(30, 0.05))
    assert [refuse_and_serve(trace) for _ in range(3)] == [30, 60, 120]
    assert trace.changes(times(200, 0.05))[-1][1:] == (2, Reason.RECOVERED)
    trace.now = trace.controller.changed_at  # the step up is the last that happened
    assert trace.refuse(after=quiet).recovery_delay_s == delay


def test_a_shrink_after_600_quiet_seconds_recovers_as_quickly_as_the_first() -> None:
    """Forgiven is forgiven: refused thrice an hour ago, a host that is merely slow for a moment
    gets its second slot back 30 s later, not 120 s."""
    trace = Trace()
    trace.run(times(30, 0.25))
    assert [refuse_and_serve(trace) for _ in range(3)] == [30, 60, 120]
    trace.run(times(3600, 0.25))
    assert trace.controller.limit == 2
    assert [one.limit_to for one in trace.run(times(3, 1.0))] == [1]
    shrunk_at = trace.now
    assert trace.changes(times(200, 0.25)) == [(shrunk_at + 30, 2, Reason.RECOVERED)]


@pytest.mark.parametrize(("quiet", "delay"), [(600, 30), (599, 120)])
def test_a_shrink_is_forgiven_like_a_refusal(quiet: float, delay: float) -> None:
    """Refused thrice, and at its start since; slow 600 s later it recovers as the first time."""
    trace = Trace()
    trace.run(times(30, 0.25))
    assert [refuse_and_serve(trace) for _ in range(3)] == [30, 60, 120]
    trace.controller.resize(2, trace.now)
    trace.now += quiet - 3
    (decision,) = trace.run(times(3, 1.0))
    assert decision.recovery_delay_s == delay


def test_only_refusals_and_other_limits_are_worth_remembering() -> None:
    """``troubled`` keeps a gate from being forgotten: not a baseline, but these, for 600 s."""
    trace = Trace()
    trace.run(times(100, 0.05))
    assert not trace.controller.troubled(trace.now)
    trace.refuse()
    refused_at = trace.now
    trace.controller.resize(2, refused_at)
    assert trace.controller.troubled(refused_at + 599)
    assert not trace.controller.troubled(refused_at + 600)
    other = Trace()
    other.controller.resize(3, 0)
    assert other.controller.troubled(1e6)


# -- shrink -------------------------------------------------------------------------------------


def test_exactly_the_shrink_bound_is_not_above_it() -> None:
    """HG-29, point 5: samples at exactly 1.5 × p95 change nothing; a hair more, and three do."""
    trace = Trace()
    trace.run(times(64, 0.25))
    assert trace.run(times(3, EXACTLY_AT_SHRINK_BOUND)) == []
    trace = Trace()
    trace.run(times(64, 0.25))
    above = math.nextafter(EXACTLY_AT_SHRINK_BOUND, 1)
    assert trace.run(times(2, above)) == []
    decision = trace.ok(above)
    assert decision == Decision(
        reason=Reason.SLOWED,
        limit_from=2,
        limit_to=1,
        epoch=1,
        latency_s=above,
        baseline_s=0.25,
        median_s=0.25,
        recovery_delay_s=30.0,
    )


def test_a_sample_is_judged_before_it_is_learnt() -> None:
    """HG-29: the third slow one would lift p95, and with it the bound that it is measured by."""
    trace = Trace()
    trace.run(times(38, 0.25))
    assert trace.run(times(2, 0.376)) == []
    assert trace.controller.baseline_s == 0.25
    decision = trace.ok(0.376)
    assert decision is not None
    assert decision.reason is Reason.SLOWED
    # It was learnt, though.
    assert trace.controller.baseline_s == pytest.approx(0.25 + 0.05 * 0.126, rel=1e-12)


def test_three_slow_ones_must_be_in_a_row() -> None:
    """A quick one between them begins the count anew; a 404 between them does not."""
    trace = Trace()
    trace.run(times(40, 0.25))
    assert trace.run((1.0, 1.0, 0.25, 1.0, 1.0)) == []
    assert trace.sample(Outcome.NEUTRAL, 0.001) is None
    assert [one.limit_to for one in trace.run((1.0,))] == [1]


def test_each_step_down_needs_its_own_three() -> None:
    """Shrinking is by one, once per epoch: 4, 3, 2, 1 after 3, 6 and 9 slow ones; then no lower."""
    trace = Trace()
    trace.run(times(64, 0.25))
    trace.controller.resize(4, trace.now)
    begins = trace.now
    assert trace.changes(times(30, 4.0)) == [
        (begins + 3, 3, Reason.SLOWED),
        (begins + 6, 2, Reason.SLOWED),
        (begins + 9, 1, Reason.SLOWED),
    ]


def test_slow_ones_of_an_older_epoch_do_not_shrink_twice() -> None:
    """Four in flight turn slow together: the first three cost one slot, the fourth none."""
    trace = Trace()
    trace.run(times(64, 0.25))
    trace.controller.resize(4, trace.now)
    found = [trace.ok(4.0, epoch=1) for _ in range(4)]
    assert [one and one.limit_to for one in found] == [None, None, 3, None]
    assert [trace.ok(4.0) for _ in range(2)] == [None, None]


def test_a_quick_host_is_not_judged_by_our_own_jitter() -> None:
    """Above also means ``latency_noise_s`` above: exactly so much counts, a hair less does not."""
    law = Law(latency_noise_s=0.0625)
    trace = Trace(law)
    trace.run(times(64, 0.03125))
    assert trace.run(times(3, math.nextafter(0.09375, 0))) == []
    trace = Trace(law)
    trace.run(times(64, 0.03125))
    assert [one.limit_to for one in trace.run(times(3, 0.09375))] == [1]


def test_50_ms_is_the_noise_unless_set() -> None:
    """A host that answers in 2 ms may take 50 ms; 53 ms thrice is too much."""
    trace = Trace()
    trace.run(times(64, 0.002))
    assert trace.run(times(10, 0.050)) == []
    trace = Trace()
    trace.run(times(64, 0.002))
    assert [one.limit_to for one in trace.run(times(3, 0.053))] == [1]


def test_timeouts_count_before_there_is_a_baseline() -> None:
    """SLOW has no latency and needs none: three of them as the very first samples shrink."""
    trace = Trace()
    assert [trace.sample(Outcome.SLOW) for _ in range(2)] == [None, None]
    decision = trace.sample(Outcome.SLOW)
    assert decision is not None
    assert (decision.limit_to, decision.reason, decision.latency_s) == (1, Reason.SLOWED, None)
    assert trace.controller.samples == 0


def test_timeouts_and_slow_answers_make_one_row() -> None:
    """One timeout counts as one sample above the bound, beside slow answers."""
    trace = Trace()
    trace.run(times(30, 0.25))
    assert trace.ok(1.0) is None
    assert trace.sample(Outcome.SLOW) is None
    assert [one.limit_to for one in trace.run((1.0,))] == [1]


def test_a_timeout_s_own_time_never_teaches() -> None:
    """HG-29: timeouts of constant length would otherwise become the baseline and grow the limit."""
    trace = Trace()
    trace.run(times(64, 0.25))
    for _ in range(100):
        trace.sample(Outcome.SLOW, 0.3)
    assert trace.controller.samples == 64
    assert trace.controller.baseline_s == 0.25
    assert trace.controller.limit == 1


def test_a_tarpit_needs_no_baseline() -> None:
    """Above 5 s is always above the bound; exactly 5 s is not."""
    trace = Trace()
    assert trace.run(times(3, 5.0)) == []
    assert trace.run(times(2, 15.0)) == []
    assert [one.limit_to for one in trace.run((15.0,))] == [1]


def test_five_seconds_are_slow_unless_set() -> None:
    """Before there is any baseline, 5.1 s thrice is too much."""
    assert [one.limit_to for one in Trace().run(times(3, 5.1))] == [1]


def test_a_slow_host_is_never_widened() -> None:
    """A median above 5 s: 1 stays 1, though it is the host's own baseline and nothing else is
    wrong; at 5 s exactly the same host has its two back."""
    slow, better = Trace(Law(slow_latency_s=5.0)), Trace(Law(slow_latency_s=5.0))
    assert [one.limit_to for one in slow.run(times(300, 6.0), after=6.0)] == [1]
    assert [one.limit_to for one in slow.run(times(300, 5.5), after=6.0)] == []
    better.run(times(3, 6.0), after=6.0)
    assert [one.limit_to for one in better.run(times(300, 5.0), after=5.0)] == [2]


# -- widen --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("baseline_s", "to"), [(0.049, []), (0.08, [3])])
def test_a_host_is_widened_only_for_more_than_noise(baseline_s: float, to: list[int]) -> None:
    """49 ms cannot fall by the 50 ms that count, 80 ms can."""
    trace = Trace()
    trace.run(times(64, baseline_s))
    found = trace.run(times(20, baseline_s / 10))
    assert [(one.limit_to, one.reason) for one in found] == [(n, Reason.FASTER) for n in to]


def test_a_host_as_fast_as_the_noise_finds_back_to_the_start() -> None:
    """Answers in 5 ms: collapsed to 1, it is at 2 again after the recovery delay, and not above."""
    trace = Trace()
    trace.run(times(64, 0.005))
    trace.refuse()
    found = trace.run(times(100, 0.005))
    assert [(one.limit_to, one.reason) for one in found] == [(2, Reason.RECOVERED)]


def test_exactly_the_widen_bound_is_not_below_it() -> None:
    """HG-29, point 5: a median of exactly 0.6 × p95 changes nothing; a hair less does at once."""
    trace = Trace()
    assert trace.run(times(400, EXACTLY_AT_WIDEN_BOUND)) == []
    assert trace.controller.baseline_s == 0.25
    assert trace.controller.median_s == 0.6 * 0.25
    trace = Trace()
    # Latencies are kept to a microsecond.
    below = tuple(one - 1e-6 if one == 0.15 else one for one in EXACTLY_AT_WIDEN_BOUND)
    assert trace.changes(times(20, below)) == [(20.0, 3, Reason.FASTER)]


def test_a_step_up_is_not_for_milliseconds() -> None:
    """Above start the median must be ``latency_noise_s`` below p95 too: so much exactly is enough,
    a hair less is our own loop's jitter."""
    enough, too_little = Law(latency_noise_s=0.125), Law(latency_noise_s=math.nextafter(0.125, 1))
    assert [one.limit_to for one in Trace(enough).run(times(20, FASTER))] == [3]
    assert Trace(too_little).run(times(400, FASTER)) == []


def test_a_limit_that_is_never_reached_is_never_widened() -> None:
    """HG-29, point 6: one at a time for ten minutes proves nothing about three."""
    trace = Trace()
    assert trace.run(times(600, FASTER), in_flight=1) == []
    # One sample that found two in flight is enough.
    assert [one.limit_to for one in trace.run((0.125,))] == [3]


def widened_since_change(*, after: float) -> tuple[int, float]:
    """How many samples, and seconds, after a change the first step up comes."""
    trace = Trace()
    trace.run(times(40, FASTER), in_flight=1)
    trace.controller.resize(2, trace.now)
    begins = trace.now
    for count, latency_s in enumerate(times(100, FASTER), 1):
        if trace.ok(latency_s, after=after):
            return count, trace.now - begins
    raise AssertionError("never widened")


def test_a_step_up_needs_ten_samples_and_ten_seconds() -> None:
    """Whichever comes last: the tenth sample of a slow crawl, the tenth second of a quick one."""
    assert widened_since_change(after=16.0) == (10, 160.0)
    assert widened_since_change(after=0.5) == (20, 10.0)
    assert widened_since_change(after=0.9375) == (11, 10.3125)


def test_only_ok_samples_count_towards_the_ten() -> None:
    """Nine answers and a hundred 404s are not ten answers."""
    trace = Trace()
    trace.run(times(40, FASTER), in_flight=1)
    trace.controller.resize(2, trace.now)
    assert trace.run(times(9, FASTER)) == []
    assert [trace.sample(Outcome.NEUTRAL, 0.1) for _ in range(100)] == [None] * 100
    assert [one.limit_to for one in trace.run((0.125,))] == [3]


def test_nothing_is_widened_in_a_pause() -> None:
    """Everything else holds; only the end of the pause is missing."""
    trace = Trace()
    assert trace.run(times(100, FASTER), paused=True) == []
    assert [one.limit_to for one in trace.run((0.125,))] == [3]


def test_steps_are_by_one_and_end_at_the_ceiling() -> None:
    """2, 3, 4 at 20, 30 s, and then no more: the ceiling is small on purpose."""
    trace = Trace()
    assert trace.changes(times(2000, FASTER)) == [
        (20.0, 3, Reason.FASTER),
        (30.0, 4, Reason.FASTER),
    ]


def test_a_step_up_tells_its_grounds() -> None:
    """The decision carries the numbers that it was made by."""
    trace = Trace()
    (decision,) = trace.run(times(20, FASTER))
    assert decision == Decision(
        reason=Reason.FASTER,
        limit_from=2,
        limit_to=3,
        epoch=1,
        latency_s=0.25,
        baseline_s=0.25,
        median_s=0.125,
        recovery_delay_s=30.0,
    )


def test_the_way_back_needs_a_median_within_the_baseline() -> None:
    """Below start a host must be as quick as it was, if not quicker."""
    trace = Trace()
    trace.run(times(64, 0.25))
    trace.refuse()
    assert trace.run(times(60, 0.3), after=1.0, in_flight=3) == []
    # Seventeen of the last 32 are as before: the median is.
    assert [one.limit_to for one in trace.run(times(17, 0.25))] == [2]


def test_a_step_up_must_be_reached_before_the_next() -> None:
    """Three are allowed, two are used: that proves nothing about four."""
    trace = Trace()
    assert [one.limit_to for one in trace.run(times(20, FASTER))] == [3]
    assert trace.run(times(400, FASTER), in_flight=2) == []


def test_a_refused_level_is_not_tried_again_for_600_seconds() -> None:
    """Refused at 4: 2 after 30 s, 3 after 10 more, 4 only 600 s after the refusal."""
    trace = Trace()
    trace.run(times(40, FASTER), in_flight=1)
    trace.controller.resize(4, trace.now)
    trace.refuse()
    refused_at = trace.now
    assert trace.changes(times(700, FASTER)) == [
        (refused_at + 30, 2, Reason.RECOVERED),
        (refused_at + 40, 3, Reason.FASTER),
        (refused_at + 600, 4, Reason.FASTER),
    ]


def test_a_refused_level_below_the_limit_counts_too() -> None:
    """Refused with two in flight: not three either, for 600 s."""
    trace = Trace()
    trace.run(times(40, FASTER), in_flight=1)
    trace.controller.refuse(trace.now, 2)
    refused_at = trace.now
    assert trace.changes(times(700, FASTER)) == [
        (refused_at + 30, 2, Reason.RECOVERED),
        (refused_at + 600, 3, Reason.FASTER),
        (refused_at + 610, 4, Reason.FASTER),
    ]


def test_a_shrink_below_start_is_earned_back_after_the_recovery_delay() -> None:
    """A host that was slow for a moment: 2 again 30 s after the shrink."""
    trace = Trace()
    trace.run(times(64, 0.25))
    trace.run(times(3, 1.0))
    shrunk_at = trace.now
    assert trace.changes(times(60, 0.25)) == [(shrunk_at + 30, 2, Reason.RECOVERED)]


def test_a_shrink_above_start_is_not_undone_for_a_minute() -> None:
    """A heavy-tailed host would otherwise go up and down by the luck of its draws."""
    trace = Trace()
    assert [one.limit_to for one in trace.run(times(30, FASTER))] == [3, 4]
    trace.run(times(3, 4.0))
    shrunk_at = trace.now
    assert trace.changes(times(100, FASTER)) == [(shrunk_at + 60, 4, Reason.FASTER)]


def test_unless_told_so_no_pause_is_running() -> None:
    """The same sample that widens when no pause is running widens when nothing is said of it."""
    trace = Trace()
    trace.run(times(40, FASTER), in_flight=1)
    sample = Sample(Outcome.OK, 0.125, trace.controller.epoch, 2)
    decision = trace.controller.observe(sample, trace.now)
    assert decision is not None
    assert decision.limit_to == 3


# -- answers whose latency is not to be trusted -------------------------------------------------


def test_served_without_a_latency_a_host_finds_back_by_time_and_count() -> None:
    """Our own busy loop spoils every latency: 2 again 30 s after the refusal, and no more."""
    trace = Trace()
    trace.refuse()
    refused_at = trace.now
    assert trace.served(200) == [(refused_at + 30, 2, Reason.RECOVERED)]
    assert trace.controller.samples == 0
    assert trace.controller.median_s is None


def test_served_without_a_latency_it_takes_ten() -> None:
    """A minute after the refusal nine are not enough; a 200 that teaches counts among them."""
    trace = Trace()
    trace.refuse()
    trace.now += 60
    assert trace.served(9) == []
    assert [one for _, one, _ in trace.served(1)] == [2]
    trace.refuse()
    trace.now += 60
    assert trace.ok(0.25) is None
    assert trace.served(8) == []
    assert [one for _, one, _ in trace.served(1)] == [2]


def test_served_without_a_latency_in_a_pause_or_below_the_limit_proves_nothing() -> None:
    """From 2 of 3: not while a pause runs, and not with one in flight at a time."""
    trace = Trace(Law(start=3))
    trace.refuse()
    trace.controller.resize(2, trace.now)
    assert trace.served(100, in_flight=1) == []
    assert trace.served(100, in_flight=2, paused=True) == []
    assert [one for _, one, _ in trace.served(1, in_flight=1)] == [3]


def test_a_limit_at_the_start_is_not_widened_without_latencies() -> None:
    """Nor above it: what is beyond the start has to be earned by being quick."""
    trace = Trace()
    assert trace.served(1000) == []
    trace.controller.resize(3, trace.now)
    assert trace.served(1000) == []


def test_a_latency_that_is_known_has_the_last_word() -> None:
    """One trusted answer since the refusal, slower than usual: those without a latency wait for
    others to say that it is quick again. Before there is a baseline they need not."""
    trace = Trace()
    trace.run(times(30, 0.25))
    trace.refuse()
    trace.ok(0.3)
    assert trace.served(100) == []
    young = Trace()
    young.run(times(5, 0.25))
    young.refuse()
    young.ok(0.3)
    assert [one for _, one, _ in young.served(100)] == [2]
    other = Trace()
    other.run(times(30, 0.25))
    other.refuse()
    assert [one for _, one, _ in other.served(100)] == [2]


def test_served_without_a_latency_in_an_older_epoch_changes_nothing() -> None:
    """It departed before the refusal: it does not say that the host has served since."""
    trace = Trace()
    trace.refuse()
    before = state(trace.controller)
    sample = Sample(Outcome.OK, None, 0, 1)
    assert trace.controller.observe_served(sample, trace.now + 99, paused=False) is None
    assert state(trace.controller) == before


def test_served_without_a_latency_is_served() -> None:
    """Refused again after it is a second complaint: 60 s."""
    trace = Trace()
    trace.refuse()
    trace.served(1)
    assert trace.refuse().recovery_delay_s == 60


# -- by hand ------------------------------------------------------------------------------------


def test_a_limit_set_by_hand_is_a_change_like_others() -> None:
    """The epoch rises, and ten seconds must pass before the law moves on from there."""
    trace = Trace()
    trace.run(times(40, FASTER), in_flight=1)
    decision = trace.controller.resize(3, trace.now)
    assert (decision.reason, decision.limit_from, decision.limit_to) == (Reason.RESIZED, 2, 3)
    assert decision.epoch == trace.controller.epoch == 1
    begins = trace.now
    assert trace.changes(times(20, FASTER)) == [(begins + 10, 4, Reason.FASTER)]


@pytest.mark.parametrize("limit", [0, -1, 5])
def test_a_limit_out_of_range_is_refused(limit: int) -> None:
    """From the floor to the ceiling; the error names the range, and nothing has changed."""
    trace = Trace()
    before = state(trace.controller)
    with pytest.raises(ValueError, match=rf"from 1 to 4, not {limit}"):
        trace.controller.resize(limit, 0)
    assert state(trace.controller) == before


# -- told to others -----------------------------------------------------------------------------


def test_times_are_told_in_unix_seconds() -> None:
    """1000 is what has to be added to our clock: a shrink at 73 s, a refusal at 80 s."""
    trace = Trace(now=40)
    trace.run(times(30, 0.25))
    trace.run(times(3, 1.0))
    trace.refuse(after=7)
    told = trace.controller.export(81, 1000)
    assert (told["shrunk_at"], told["refused_at"]) == (1073, 1080)
    assert told["baseline_at"] == 1073
    assert "recovery_delay_s" not in told
    assert "baseline_s" not in trace.controller.export(81, 1000, latencies=False)


def test_of_nothing_nothing_is_told_and_nothing_comes_of_it() -> None:
    """A new controller tells nothing; restored from nothing it is a new one, as new as ever."""
    trace = Trace()
    assert trace.controller.export(0, 1000) == {}
    before = state(trace.controller)
    trace.controller.restore(Saved({}, now=5.0, offset_s=1000.0))
    assert state(trace.controller) == before


def test_a_decision_of_another_process_goes_on_here() -> None:
    """Refused there at 50 s, adopted here at 51 with its epoch: 2 again 30 s after the refusal;
    and samples of that epoch count from then on."""
    there, here = Trace(now=49), Trace(now=51)
    there.refuse()
    told = there.controller.export(50, 1000, latencies=False)
    saved = Saved(told, now=51.0, offset_s=1000.0)
    decision = here.controller.adopt(saved, 1, 7, Reason.REFUSED)
    assert (decision.reason, decision.limit_from, decision.limit_to) == (Reason.REFUSED, 2, 1)
    assert decision.epoch == 7
    assert (here.controller.limit, here.controller.epoch) == (1, 7)
    assert here.served(100) == [(80, 2, Reason.RECOVERED)]


def test_the_state_is_readable_in_one_line() -> None:
    """``repr`` shows limit, ceiling, epoch, baseline and how much it rests on."""
    trace = Trace()
    assert repr(trace.controller) == "<Controller limit=2/4 epoch=0 baseline=? samples=0>"
    trace.run(times(25, 0.25))
    assert repr(trace.controller) == "<Controller limit=2/4 epoch=0 baseline=0.250s samples=25>"


def test_the_same_samples_give_the_same_decisions() -> None:
    """Deterministic: a recorded trace replays."""
    latencies = [*times(60, FASTER), *times(9, 3.0), *times(200, 0.2)]
    first, again = Trace(), Trace()
    assert first.run(latencies) == again.run(latencies) != []
    assert state(first.controller) == state(again.controller)
