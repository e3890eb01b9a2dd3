"""Spacing and pauses: exact times of departures on a clock that is only a number."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from fakes import highest, lowest, middle
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_hostgate.interval import PenaltyInterval
from scrapy_hostgate.pacer import Pace, Pacer, Pause
from scrapy_hostgate.saved import Saved

Draw = Callable[[float, float], float]


def no_draw(low: float, high: float) -> float:
    raise AssertionError("no draw is needed here")


def pacer_of(draw: Draw = middle, **pace: float) -> Pacer:
    return Pacer(Pace(**pace), draw)  # type: ignore[arg-type]


def take(pacer: Pacer, now: float) -> float:
    """Depart as early as allowed from ``now`` on; when that was."""
    at = pacer.next_departure(now)
    assert at >= now
    pacer.departed(at)
    return at


def take_many(pacer: Pacer, count: int, now: float) -> list[float]:
    """As many departures as early as possible; when they were, counted from ``now``."""
    begins, taken = now, []
    for _ in range(count):
        now = take(pacer, now)
        taken.append(now - begins)
    return taken


# -- the rate (GCRA) ----------------------------------------------------------------------------


def test_nothing_set_means_no_spacing() -> None:
    """A plain pace lets everything go at once; the gate is the bound."""
    assert take_many(pacer_of(no_draw), 5, 3.0) == [0, 0, 0, 0, 0]


def test_idling_earns_no_burst() -> None:
    """HG-36: rate 2 per second, idle for 600 s, five takes: +0, 0.5, 1.0, 1.5, 2.0 s."""
    pacer = pacer_of(rate=2)
    take(pacer, 0)
    assert take_many(pacer, 5, 600.0) == [0, 0.5, 1.0, 1.5, 2.0]


def test_a_low_rate_is_not_rounded() -> None:
    """HG-36: 0.1 per second is one in ten seconds; 0.8 per second one in 1.25 s."""
    assert take_many(pacer_of(rate=0.1), 4, 0) == [0, 10, 20, 30]
    assert take_many(pacer_of(rate=0.8), 4, 0) == [0, 1.25, 2.5, 3.75]


def test_a_burst_leaves_at_once_and_then_one_by_one() -> None:
    """HG-36: rate 10 per second, capacity 3, after idling: 3 at once, then one per 0.1 s."""
    pacer = pacer_of(rate=10, burst=3)
    take_many(pacer, 7, 0)
    assert take_many(pacer, 6, 600) == pytest.approx([0, 0, 0, 0.1, 0.2, 0.3])


def test_many_takes_do_not_drift() -> None:
    """HG-36: 10,000 takes at 3 per second end within one interval of where they should."""
    last = take_many(pacer_of(rate=3), 10_000, 0)[-1]
    assert last == pytest.approx(9_999 / 3, abs=1 / 3 / 1000)


waits = st.lists(st.one_of(st.just(0.0), st.floats(0, 0.2), st.floats(0, 30)), max_size=80)


@given(waits=waits, rate=st.floats(0.1, 50), burst=st.integers(1, 5))
@settings(deadline=None, max_examples=50)
def test_every_window_holds_at_most_burst_and_rate(
    waits: list[float], rate: float, burst: int
) -> None:
    """HG-36: in every window of T seconds ≤ burst + rate × T departures, whatever the arrivals."""
    pacer, now, departures = pacer_of(rate=rate, burst=burst), 0.0, []
    for wait in waits:
        now = take(pacer, now + wait)
        departures.append(now)
    assert_window_property(departures, rate, burst)


@given(
    turns=st.lists(
        st.tuples(st.floats(0, 3), st.sampled_from([0.0, 0.0, 0.01, 0.3, 2.0])), max_size=40
    ),
    rate=st.floats(0.1, 50),
    burst=st.integers(1, 5),
)
@settings(deadline=None, max_examples=50)
def test_every_window_holds_though_the_loop_lags(
    turns: list[tuple[float, float]], rate: float, burst: int
) -> None:
    """HG-36: the same, when all that were granted in one step leave late together."""
    pacer, now, departures = pacer_of(rate=rate, burst=burst), 0.0, []
    for wait, lag in turns:
        now = pacer.next_departure(now + wait)
        granted: list[float] = []
        while len(granted) < burst and pacer.next_departure(now) <= now:
            pacer.departed(now)
            granted.append(now)
        now += lag
        for granted_at in granted:
            pacer.left_late(granted_at, now)
            departures.append(now)
    assert_window_property(departures, rate, burst)


def assert_window_property(departures: list[float], rate: float, burst: int) -> None:
    for first, begins in enumerate(departures):
        for last in range(first, len(departures)):
            allowed = burst + rate * (departures[last] - begins)
            assert last - first + 1 <= allowed + 1e-6


# -- delays -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("draw", "gap"), [(lowest, 5.0), (middle, 10.0), (highest, 15.0)])
def test_the_delay_has_scrapys_jitter(draw: Draw, gap: float) -> None:
    """A delay of 10 s is 5 to 15 s, drawn anew for each departure."""
    assert take_many(pacer_of(draw, delay_s=10), 3, 0) == [0, gap, 2 * gap]


def test_the_jitter_is_drawn_anew_for_each_departure() -> None:
    """All gaps lie within ± 50 %, and they are not all the same."""
    pacer = pacer_of(random.Random(1).uniform, delay_s=10)
    taken = take_many(pacer, 200, 0)
    gaps = [later - earlier for earlier, later in pairwise(taken)]
    assert 5 <= min(gaps) < 6
    assert 14 < max(gaps) <= 15


def test_without_jitter_the_delay_is_exact() -> None:
    """RANDOMIZE_DOWNLOAD_DELAY = False: 10 s are 10 s, and no draw is made."""
    assert take_many(pacer_of(no_draw, delay_s=10, jitter=0), 3, 0) == [0, 10, 20]


@pytest.mark.parametrize("draw", [lowest, middle, highest])
def test_a_crawl_delay_is_never_undercut(draw: Draw) -> None:
    """robots.txt says 12 s: jitter of a shorter delay may lengthen that, never shorten it."""
    pacer = pacer_of(draw, delay_s=10)
    pacer.crawl_delay(0, 12)
    gap = 15 if draw is highest else 12
    assert take_many(pacer, 3, 0) == [0, gap, 2 * gap]


def test_a_crawl_delay_alone_is_exact() -> None:
    """With no delay of our own there is nothing to vary."""
    pacer = pacer_of(no_draw)
    pacer.crawl_delay(0, 12)
    assert take_many(pacer, 3, 0) == [0, 12, 24]


def test_a_crawl_delay_counts_from_the_last_departure() -> None:
    """robots.txt itself left at 100 s and is read at 101 s: the first page at 112 s."""
    pacer = pacer_of()
    take(pacer, 100)
    pacer.crawl_delay(101, 12)
    assert pacer.next_departure(101) == 112
    # It never shortens what was longer.
    pacer.crawl_delay(102, 3)
    assert pacer.crawl_delay_s == 12
    assert pacer.next_departure(102) == 112


def test_a_long_crawl_delay_is_crawled_slowly() -> None:
    """The cap is one for pauses: one page an hour, if that is what robots.txt asks for."""
    pacer = pacer_of(max_pause_s=900)
    pacer.crawl_delay(0, 3600)
    assert take_many(pacer, 3, 0) == [0, 3600, 7200]


def test_more_than_a_page_a_day_is_a_mistake() -> None:
    """Whatever robots.txt asks for, it gets no more than a day between two pages."""
    pacer = pacer_of()
    pacer.crawl_delay(0, 1e9)
    assert take_many(pacer, 2, 0) == [0, 86_400]


def test_rate_and_delay_both_hold() -> None:
    """Two clocks: the longer of the two decides each gap."""
    assert take_many(pacer_of(rate=2, delay_s=3), 3, 0) == [0, 3, 6]
    assert take_many(pacer_of(rate=0.2, delay_s=3), 3, 0) == [0, 5, 10]


def test_a_delay_from_outside_can_only_add() -> None:
    """AutoThrottle may set a longer delay than the configured one; a shorter one is no matter."""
    pacer = pacer_of(delay_s=5)
    for outside, delay in [(None, 5), (0.0, 5), (1.0, 5), (8.0, 8)]:
        pacer.outside_delay_s = outside
        assert pacer.delay_s == delay
    assert take_many(pacer, 2, 0) == [0, 8]


def test_a_delay_from_outside_counts_from_the_last_departure() -> None:
    """Left at 10 s, then told 8 s: the next at 18 s; told 2 s, which replaces it: no sooner, but
    from then on 5 s apart, which is configured."""
    pacer = pacer_of(delay_s=5, jitter=0)
    take(pacer, 10)
    pacer.delay_from_outside(8)
    assert (pacer.delay_s, pacer.next_departure(11)) == (8, 18)
    pacer.delay_from_outside(2)
    assert (pacer.delay_s, pacer.next_departure(11)) == (5, 18)
    assert take_many(pacer, 2, 18) == [0, 5]


def test_a_short_delay_is_exact_too() -> None:
    """A quarter of a second is not rounded up to anything."""
    assert take_many(pacer_of(delay_s=0.25, jitter=0), 3, 0) == [0, 0.25, 0.5]


# -- leaving late -------------------------------------------------------------------------------


def test_a_late_departure_moves_the_delay_on() -> None:
    """Granted at 0 s, left at 0.25 s: the next with a delay of 1 s at 1.25 s."""
    pacer = pacer_of(delay_s=1)
    take(pacer, 0)
    pacer.left_late(0, 0.25)
    assert pacer.next_departure(0.25) == 1.25


def test_a_late_departure_moves_the_rate_on() -> None:
    """The same for a rate of one per second."""
    pacer = pacer_of(rate=1)
    take(pacer, 0)
    pacer.left_late(0, 0.25)
    assert pacer.next_departure(0.25) == 1.25


@pytest.mark.parametrize("pace", [Pace(rate=1), Pace(delay_s=1), Pace(rate=1, delay_s=1)])
def test_where_departures_are_spaced_a_millisecond_counts(pace: Pace) -> None:
    """Left 4 ms late, the next leaves 4 ms later; by a rate, by a delay and by both."""
    pacer = Pacer(pace, middle)
    take(pacer, 0)
    pacer.left_late(0, 0.004)
    assert pacer.next_departure(0.5) == 1.004


def test_a_burst_that_leaves_late_is_still_a_burst() -> None:
    """Three granted at 0 s all leave at 0.5 s, at 10 per second: the fourth not before 0.6 s."""
    pacer = pacer_of(rate=10, burst=3)
    take_many(pacer, 3, 0)
    for _ in range(3):
        pacer.left_late(0, 0.5)
    assert pacer.next_departure(0.5) == pytest.approx(0.6)


def test_leaving_in_time_corrects_nothing() -> None:
    """Nor does word of a departure that is not the last, nor of one that never was."""
    pacer = pacer_of(rate=1, delay_s=2)
    pacer.left_late(0, 9)
    assert pacer.next_departure(0) == 0
    take_many(pacer, 2, 0)
    pacer.left_late(2, 2)
    pacer.left_late(0, 2)
    assert pacer.next_departure(2) == 4


def test_leaving_late_lengthens_the_gap_that_was_borne() -> None:
    """Granted 3 s after the other but sent after 5: five seconds is what a refusal then judges."""
    pacer = pacer_of()
    take_many(pacer, 2, 0)
    pacer.pause(0, 1)
    take(pacer, 1)
    pacer.departed(4)
    pacer.left_late(4, 6)
    assert pacer.refused(6, None, incident=True).interval_s == 10


# -- pauses -------------------------------------------------------------------------------------


def test_a_pause_holds_every_departure() -> None:
    """Until it ends, and then at once."""
    pacer = pacer_of()
    pacer.pause(100, 7)
    assert pacer.next_departure(100) == 107
    assert pacer.paused(106.9)
    assert not pacer.paused(107)
    assert pacer.next_departure(107.5) == 107.5


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(-5, 2000)), max_size=30))
@settings(deadline=None, max_examples=50)
def test_pauses_only_lengthen(steps: list[tuple[float, float]]) -> None:
    """Always the later end of the old and the new, and never more than the maximum from now."""
    pacer, now = pacer_of(max_pause_s=900), 0.0
    for after, wait in steps:
        now += after
        before = pacer.pause_until
        pacer.pause(now, wait)
        assert pacer.pause_until >= before
        assert pacer.next_departure(now) == max(now, before, now + min(wait, 900))
        pacer.served()
        assert pacer.pause_until >= before


def test_a_pause_tells_by_how_much_it_lengthened_another() -> None:
    """7 s, made 10 s with 4 over: by 7; one that ends with it or sooner: by nothing."""
    pacer = pacer_of()
    assert pacer.pause(100, 7) == 7
    assert pacer.pause(104, 10) == 7
    assert pacer.pause(105, 9) == 0
    assert pacer.pause(105, 2) == 0


def test_no_tokens_accrue_in_a_pause() -> None:
    """Rate 1, burst 3, all spent: after a pause of 100 s the fourth waits its second as before."""
    pacer = pacer_of(rate=1, burst=3)
    assert take_many(pacer, 3, 0) == [0, 0, 0]
    pacer.pause(0, 100)
    assert take_many(pacer, 3, 0) == [101, 102, 103]


def test_a_pause_that_is_extended_accrues_no_tokens_either() -> None:
    """10 s, made 20 s when 5 are over: the same as 20 s at once; and so in an overlap."""
    pacer = pacer_of(rate=1, burst=3)
    take_many(pacer, 3, 0)
    pacer.pause(0, 10)
    pacer.pause(5, 15)
    pacer.pause(6, 2)
    assert take_many(pacer, 2, 6) == [15, 16]


def test_a_full_bucket_stays_full_and_no_more() -> None:
    """What was there before a pause is there after it: three at once, then one per second."""
    pacer = pacer_of(rate=1, burst=3)
    pacer.pause(0, 100)
    assert take_many(pacer, 4, 100) == [0, 0, 0, 1]


# -- announced quotas ---------------------------------------------------------------------------


def test_with_nothing_remaining_departures_wait_for_the_reset() -> None:
    """Before a refusal comes: 30 s to the reset are 30 s without a departure."""
    pacer = pacer_of()
    pacer.quota(100, 0, 30, 0)
    assert pacer.next_departure(101) == 130
    assert pacer.paused(129)


def test_what_remains_may_be_spread() -> None:
    """The next one 5 s from now, which is no pause; and 0 s holds nobody."""
    pacer = pacer_of()
    pacer.quota(100, 5, 30, 5)
    assert pacer.next_departure(101) == 105
    assert not pacer.paused(101)
    pacer.quota(200, 5, 30, 0)
    assert pacer.next_departure(200) == 200


def test_a_quota_never_shortens_a_wait_and_is_capped() -> None:
    """A pause and a spacing that run go on; a reset next year is 900 s."""
    pacer = pacer_of(delay_s=20, max_pause_s=900)
    take(pacer, 0)
    pacer.quota(1, 3, 8, 2)
    assert pacer.next_departure(1) == 20
    pacer.pause(1, 100)
    pacer.quota(2, 0, 3, 0)
    assert pacer.next_departure(2) == 101
    pacer.quota(2, 0, 1e7, 0)
    assert pacer.next_departure(2) == 902
    pacer.quota(3, 1, 1e7, 1e7)
    assert pacer.next_departure(3) == 903


# -- refusals -----------------------------------------------------------------------------------


def refusal_waits(pacer: Pacer, count: int) -> list[float]:
    now, waited = 0.0, []
    for _ in range(count):
        waited.append(pacer.refused(now, None, incident=True).wait_s)
        now = pacer.pause_until
    return waited


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (middle, [1, 2, 4, 8, 16, 32, 60, 60]),
        (lowest, [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 48, 48]),
        (highest, [1.2, 2.4, 4.8, 9.6, 19.2, 38.4, 60, 60]),
    ],
)
def test_the_backoff_doubles_to_a_minute(draw: Draw, expected: list[float]) -> None:
    """1 s × 2^(n - 1) ± 20 %, at most 60 s."""
    assert refusal_waits(pacer_of(draw), 8) == pytest.approx(expected)


def test_a_thousand_refusals_are_no_overflow() -> None:
    """An outage of a day is still knocked on once a minute."""
    assert refusal_waits(pacer_of(), 1500)[-1] == 60


def test_being_served_starts_the_backoff_anew() -> None:
    """n counts refusals in a row; the pause that runs goes on."""
    pacer = pacer_of()
    assert refusal_waits(pacer, 3) == [1, 2, 4]
    pacer.refused(100, None, incident=True)
    pacer.served()
    assert pacer.pause_until == 108
    assert pacer.refused(200, None, incident=True).wait_s == 1


def test_a_success_that_was_none_does_not_end_the_row() -> None:
    """Two refusals, a page, and the spider's word that it was a refusal too: 4 s as the third."""
    pacer = pacer_of()
    assert refusal_waits(pacer, 2) == [1, 2]
    pacer.served()
    pacer.unserved()
    assert pacer.refused(100, None, incident=True).wait_s == 4
    # Said of a host that has served nothing, it changes nothing.
    other = pacer_of()
    other.unserved()
    assert other.refused(0, None, incident=True).wait_s == 1


def test_retry_after_is_taken_at_its_word() -> None:
    """Seconds asked for are seconds paused, without jitter, and the refusal still counts."""
    pacer = pacer_of(highest)
    pause = pacer.refused(100, 7, incident=True)
    assert pause == Pause(until=107, wait_s=7, added_s=7, asked_s=7, capped=False, interval_s=0)
    assert pacer.refusals_in_a_row == 1


def test_more_than_the_maximum_is_capped() -> None:
    """5,000 s asked: 900 s paused, and the pause says that it was capped; 900 s are not."""
    pause = pacer_of(max_pause_s=900).refused(0, 5000, incident=True)
    assert pause == Pause(
        until=900, wait_s=900, added_s=900, asked_s=5000, capped=True, interval_s=0
    )
    assert not pacer_of(max_pause_s=900).refused(0, 900, incident=True).capped


def test_the_backoff_is_capped_too() -> None:
    """HOSTGATE_MAX_PAUSE = 10: no pause is longer."""
    pacer = pacer_of(max_pause_s=10)
    refusal_waits(pacer, 5)
    now = pacer.pause_until
    pacer.refused(now, None, incident=True)
    assert pacer.pause_until == now + 10


def test_an_echo_only_lengthens() -> None:
    """Refusals that were on their way already are no news; only a longer Retry-After is."""
    pacer = pacer_of(rate=2)
    pacer.refused(0, 20, incident=True)
    for retry_after in (None, 3, 19.5):
        pacer.refused(0.25, retry_after, incident=False)
        assert pacer.pause_until == 20
    pacer.refused(0.25, 30, incident=False)
    assert pacer.pause_until == 30.25
    assert pacer.refusals_in_a_row == 1
    assert pacer.penalty.interval_s == 1.0


def test_an_echo_that_asks_for_nothing_gets_nothing() -> None:
    """Half a second before the end of the pause it adds none; nor does it forget the pace."""
    pacer = pacer_of()
    pacer.refused(0, 2, incident=True)
    assert pacer.refused(1.5, None, incident=False).added_s == 0
    assert pacer.pause_until == 2
    pacer.served()
    for departed_at in (10, 13, 16):
        pacer.departed(departed_at)
    pacer.refused(17, None, incident=False)
    assert pacer.refused(17, None, incident=True).interval_s == 6


def test_a_refusal_halves_the_rate() -> None:
    """Rate 2 per second refused: one per second after the pause."""
    pacer = pacer_of(rate=2)
    take_many(pacer, 3, 0)
    assert pacer.refused(1.5, 10, incident=True).interval_s == 1.0
    assert take_many(pacer, 4, 11.5) == [0, 1, 2, 3]


def test_the_refused_interval_is_the_longest_of_those_set() -> None:
    """Rate 2, delay 3 s, Crawl-delay 4 s: four seconds were refused, eight it becomes."""
    pacer = pacer_of(rate=2, delay_s=3)
    pacer.crawl_delay(0, 4)
    assert pacer.refused(0, None, incident=True).interval_s == 8


def test_the_refused_interval_is_the_real_one_if_that_is_longer() -> None:
    """No interval set, departures 3 s apart: six seconds it becomes."""
    pacer = pacer_of()
    for n in range(5):
        pacer.departed(3.0 * n)
    assert pacer.refused(13, None, incident=True).interval_s == 6


def test_the_real_interval_is_that_of_the_last_sixteen() -> None:
    """Fifty at once, then sixteen 2 s apart: four seconds."""
    pacer = pacer_of()
    for _ in range(50):
        pacer.departed(0)
    for n in range(16):
        pacer.departed(100 + 2.0 * n)
    assert pacer.refused(131, None, incident=True).interval_s == 4


def test_the_oldest_of_the_sixteen_counts() -> None:
    """Sixteen departures have fifteen gaps: one of 17 s and fourteen of 2 s, on average 3 s."""
    pacer = pacer_of()
    for departed_at in (0, 1, 18, *range(20, 47, 2)):
        pacer.departed(departed_at)
    assert pacer.refused(46, None, incident=True).interval_s == 6


def test_the_gap_of_a_pause_is_no_spacing() -> None:
    """After a pause of 500 s and two departures 1 s apart, one second was refused, not 250."""
    pacer = pacer_of()
    pacer.departed(0)
    pacer.pause(0, 500)
    pacer.departed(500)
    pacer.departed(501)
    assert pacer.refused(501.5, None, incident=True).interval_s == 2


def test_what_was_before_a_pause_is_not_the_present_pace() -> None:
    """3 s apart, then a pause, then 1 s apart: one second was refused."""
    pacer = pacer_of()
    for departed_at in (0, 3, 6, 9):
        pacer.departed(departed_at)
    pacer.pause(9, 10)
    pacer.departed(19)
    pacer.departed(20)
    assert pacer.refused(20, None, incident=True).interval_s == 2


def test_an_interval_is_capped_like_a_pause() -> None:
    """A host that refuses every second page would double it for ever: 900 s and no more."""
    pacer = pacer_of(delay_s=2000, max_pause_s=900)
    assert pacer.refused(0, None, incident=True).interval_s == 900
    pacer = pacer_of()
    pacer.departed(0)
    pacer.departed(40_000)
    assert pacer.refused(40_000, None, incident=True).interval_s == 900


def test_a_second_refusal_doubles_the_interval_then_in_use() -> None:
    """Served at one per second and refused again: one in two seconds."""
    pacer = pacer_of(rate=2)
    pacer.refused(0, None, incident=True)
    pacer.served()
    assert pacer.refused(10, None, incident=True).interval_s == 2.0


def test_an_outage_does_not_stretch_the_interval_for_ever() -> None:
    """Twenty refusals with nothing served between say nothing about the pace of the knocks."""
    pacer = pacer_of(rate=2)
    refusal_waits(pacer, 20)
    assert pacer.penalty.interval_s == 1.0


# -- at rest ------------------------------------------------------------------------------------


def test_a_new_pacer_is_at_rest() -> None:
    """Forgetting it would lose nothing."""
    assert pacer_of(rate=1, delay_s=1).at_rest(0)


@pytest.mark.parametrize("pace", [Pace(rate=1.0), Pace(delay_s=1.0)])
def test_a_spaced_pacer_rests_when_its_spacing_is_over(pace: Pace) -> None:
    """Forgotten sooner, the host would be sent the next request too early."""
    pacer = Pacer(pace, middle)
    take(pacer, 0)
    assert not pacer.at_rest(0.9)
    assert pacer.at_rest(1)


def test_a_bucket_that_is_not_full_is_not_at_rest() -> None:
    """Two of three spent: the third may go now, but a new bucket would hold three."""
    pacer = pacer_of(rate=1, burst=3)
    take_many(pacer, 2, 0)
    assert pacer.next_departure(1.5) == 1.5
    assert not pacer.at_rest(1.5)
    assert pacer.at_rest(2)


def test_a_paused_pacer_is_not_at_rest() -> None:
    """Nor is one with refusals that no success has followed, or with a penalty."""
    pacer = pacer_of()
    pacer.pause(0, 5)
    assert not pacer.at_rest(4)
    assert pacer.at_rest(5)
    pacer.refused(10, 1, incident=True)
    assert not pacer.at_rest(20)
    pacer.served()
    assert pacer.at_rest(20)
    pacer.penalty = PenaltyInterval()
    pacer.penalty.refused(20, 0.5)
    assert not pacer.at_rest(50)


def test_what_is_over_is_not_exported() -> None:
    """A pause that ends now holds nobody up; and a lesson that is empty leaves no refusals."""
    pacer = pacer_of()
    pacer.pause(0, 5)
    assert pacer.export(4, 1000) == {"pause_until": 1005}
    assert pacer.export(5, 1000) == {}
    pacer.refused(5, None, incident=True)
    pacer.adopt(Saved({}, now=6, offset_s=1000))
    assert (pacer.refusals_in_a_row, pacer.penalty.interval_s) == (0, 0)


def test_a_gap_is_never_less_than_none() -> None:
    """Left at 0 s and done at 0.5 s, in one turn of the loop that took until 1 s: the rest began
    before the departure is said to have been. No gap is 0 s, and the mean of it and 3 s is 1.5."""
    pacer = pacer_of()
    pacer.departed(0)
    pacer.rests(0.5)
    pacer.left_late(0, 1)
    pacer.departed(2)
    pacer.departed(5)
    assert pacer.refused(5, None, incident=True).interval_s == 3


def test_a_rest_before_the_first_departure_is_none() -> None:
    """Somebody came and went without a departure; what follows is spaced from the first."""
    pacer = pacer_of()
    pacer.rests(1)
    for departed_at in (5, 8):
        pacer.departed(departed_at)
    assert pacer.refused(8, None, incident=True).interval_s == 6


def test_the_state_is_readable_in_one_line() -> None:
    """``repr`` shows every clock."""
    pacer = pacer_of(rate=2, delay_s=1)
    pacer.refused(0, 7, incident=True)
    assert repr(pacer) == (
        "<Pacer rate=2 burst=1 delay=1.000s crawl_delay=0.000s penalty=2.000s "
        "pause_until=7.000 refusals_in_a_row=1>"
    )
    assert pacer_of().pause_until == -math.inf


@pytest.mark.parametrize(
    ("pace", "keeps_apart"),
    [(Pace(), False), (Pace(rate=1), True), (Pace(delay_s=1), True), (Pace(1, 1, 1), True)],
)
def test_whatever_spaces_departures_keeps_them_apart(pace: Pace, keeps_apart: bool) -> None:
    """A rate, a delay, or both."""
    assert Pacer(pace, middle).keeps_apart is keeps_apart


def test_a_quiet_spell_shortens_one_gap_only() -> None:
    """An hour in which nobody asked is no spacing; the gap after it counts in full again."""
    pacer = Pacer(Pace(), middle)
    pacer.departed(0)
    pacer.rests(0)
    pacer.departed(3600)
    pacer.departed(3610)
    # Gaps of 0 and 10 seconds.
    assert pacer.refused(3611, None, incident=True).interval_s == 10
