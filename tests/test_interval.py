"""The longer interval after a refusal, earned back by bisection."""

from __future__ import annotations

from scrapy_hostgate.interval import PenaltyInterval


def relaxed_at(penalty: PenaltyInterval, times: list[float]) -> list[float]:
    """The interval after each of ``times``, with a recovery delay of 30 s."""
    intervals = []
    for now in times:
        penalty.relax(now, 30)
        intervals.append(penalty.interval_s)
    return intervals


def test_without_a_refusal_there_is_no_interval() -> None:
    """Nothing to ask for, nothing to earn back."""
    penalty = PenaltyInterval()
    assert (penalty.interval_s, penalty.refused_s) == (0, 0)
    assert not penalty.relax(1e6, 30)


def test_a_refusal_doubles_the_interval_that_was_refused() -> None:
    """Refused at one per 0.5 s: one per second."""
    penalty = PenaltyInterval()
    penalty.refused(100, 0.5)
    assert (penalty.interval_s, penalty.refused_s) == (1.0, 0.5)


def test_it_is_earned_back_by_bisection_one_step_per_recovery_delay() -> None:
    """To the middle between the refused and the present one: 1, 0.75, 0.625, 0.5625 s."""
    penalty = PenaltyInterval()
    penalty.refused(100, 0.5)
    assert relaxed_at(penalty, [129.9, 130, 159.9, 160, 190]) == [1.0, 0.75, 0.75, 0.625, 0.5625]


def test_a_late_step_is_one_step_and_the_next_waits_for_it() -> None:
    """Five delays without an answer earn one step, not five."""
    penalty = PenaltyInterval()
    penalty.refused(0, 0.5)
    assert relaxed_at(penalty, [150, 151, 179.9, 180]) == [0.75, 0.75, 0.75, 0.625]


def test_the_refused_interval_is_not_tried_before_600_quiet_seconds() -> None:
    """It settles just beneath what the host bears; what was refused is tried again after 600 s."""
    penalty = PenaltyInterval()
    penalty.refused(0, 0.5)
    intervals = relaxed_at(penalty, [30.0 * step for step in range(1, 20)] + [599.9])
    assert intervals[:3] == [0.75, 0.625, 0.5625]
    assert all(0.5 < interval <= 0.75 for interval in intervals)
    assert relaxed_at(penalty, [600]) == [0.5]


def test_what_is_borne_then_is_searched_below_in_the_same_way() -> None:
    """From 0.5 s towards 0.25 s by bisection, which is itself tried after 600 s more."""
    penalty = PenaltyInterval()
    penalty.refused(0, 0.5)
    assert relaxed_at(penalty, [600, 629.9, 630, 660]) == [0.5, 0.5, 0.375, 0.3125]
    assert 0.25 < relaxed_at(penalty, [1199.9])[0] < 0.3125
    assert relaxed_at(penalty, [1229.9]) == [0.25]


def test_a_penalty_ends_where_it_means_nothing() -> None:
    """Halved every 600 s; below 5 ms there is none left, and nothing more to earn."""
    penalty = PenaltyInterval()
    penalty.refused(0, 0.5)
    assert relaxed_at(penalty, [600.0 * step for step in range(1, 9)]) == [
        *(0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125),
        0,
    ]
    assert not penalty.relax(1e6, 30)


def test_five_milliseconds_still_mean_something() -> None:
    """What takes less is a turn of the event loop; exactly so much is kept."""
    penalty = PenaltyInterval()
    penalty.refused(0, 0.01)
    assert relaxed_at(penalty, [600, 1200, 1800]) == [0.01, 0.005, 0]


def test_a_second_refusal_starts_from_the_interval_then_in_use() -> None:
    """Refused again at 0.75 s: 1.5 s, down towards 0.75 s and not towards 0.5 s; 600 s anew."""
    penalty = PenaltyInterval()
    penalty.refused(0, 0.5)
    penalty.relax(30, 30)
    penalty.refused(40, penalty.interval_s)
    assert penalty.interval_s == 1.5
    assert relaxed_at(penalty, [69.9, 70, 100]) == [1.5, 1.125, 0.9375]
    assert relaxed_at(penalty, [600])[0] > 0.75
    assert relaxed_at(penalty, [640]) == [0.75]


def test_a_longer_recovery_delay_slows_the_steps() -> None:
    """The delay is the controller's, which repeated refusals double."""
    penalty = PenaltyInterval()
    penalty.refused(0, 0.5)
    assert not penalty.relax(119.9, 120)
    assert penalty.relax(120, 120)
