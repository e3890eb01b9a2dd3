"""One host: what a sample does to the limit, the pause, the spacing and whoever waits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import FakeClock, middle

from scrapy_hostgate.controller import Law, Reason
from scrapy_hostgate.gate import Gate, GateSnapshot, Verdict
from scrapy_hostgate.outcome import Outcome
from scrapy_hostgate.pacer import Pace
from scrapy_hostgate.quota import Quota
from scrapy_hostgate.semaphore import Permit


class Host:
    """A gate on a fake clock, and requests that go through it."""

    def __init__(
        self,
        law: Law = Law(),  # noqa: B008 - frozen
        pace: Pace = Pace(),  # noqa: B008 - frozen
        *,
        key: str = "host.example",
        clock: FakeClock | None = None,
    ) -> None:
        self.clock = clock or FakeClock()
        self.gate = Gate(
            key,
            law,
            pace,
            clock=self.clock,
            call_later=self.clock.call_later,
            uniform=middle,
            stall_timeout_s=900,
        )

    def depart(self, count: int) -> list[Permit]:
        permits = [self.gate.arrive() for _ in range(count)]
        assert all(permit.granted for permit in permits)
        return permits

    def land(
        self, permit: Permit, outcome: Outcome = Outcome.OK, latency_s: float | None = 0.125
    ) -> Verdict:
        verdict = self.gate.record(permit, outcome, latency_s)
        self.gate.leave(permit)
        return verdict

    def visit(self, outcome: Outcome = Outcome.OK, latency_s: float | None = 0.125) -> Verdict:
        """One request, alone, when the gate lets it go."""
        permit = self.gate.arrive()
        while not permit.granted:
            assert self.clock.next_at is not None
            self.clock.run_until(self.clock.next_at)
        return self.land(permit, outcome, latency_s)

    def refuse_until(self, until: float) -> list[Verdict]:
        """Every request is refused, as soon as it is allowed to go."""
        verdicts = []
        while self.clock.now < until:
            verdicts.append(self.visit(Outcome.REFUSED))
            self.clock.run_until(max(self.clock.now + 1, self.gate.pacer.pause_until))
        return verdicts


# -- refusals -----------------------------------------------------------------------------------


def test_a_refusal_acts_before_its_slot_is_free() -> None:
    """Limit 2, both out, one waits: the 429 lowers the limit first, so nobody takes its place."""
    host = Host()
    first, _second = host.depart(2)
    waiter = host.gate.arrive()
    verdict = host.gate.record(first, Outcome.REFUSED, 0.01)
    assert (host.gate.limit, host.gate.in_flight) == (1, 2)
    assert verdict.decision is not None
    assert verdict.decision.reason is Reason.REFUSED
    assert verdict.pause is not None
    assert verdict.pause.wait_s == 1
    host.gate.leave(first)
    assert not waiter.granted
    assert host.gate.in_flight == 1


def test_after_the_pause_one_goes_and_the_rest_wait() -> None:
    """The pause of 1 s runs from the refusal; when it ends there is room for one."""
    host = Host()
    first, second = host.depart(2)
    waiters = [host.gate.arrive() for _ in range(2)]
    host.clock.advance(0.5)
    host.land(first, Outcome.REFUSED)
    host.land(second)
    host.clock.run_until(1.49)
    assert host.gate.in_flight == 0
    host.clock.run_until(1.5)
    assert [waiter.granted for waiter in waiters] == [True, False]
    assert waiters[0].epoch == 1


def test_many_refused_in_flight_are_one_incident() -> None:
    """Four out, four refused: one collapse, one epoch, the first backoff; four counted."""
    host = Host(Law(start=4))
    permits = host.depart(4)
    host.clock.advance(1)
    first, *others = [host.land(permit, Outcome.REFUSED) for permit in permits]
    assert first.decision is not None
    assert (first.decision.limit_from, first.decision.limit_to) == (4, 1)
    assert [verdict.decision for verdict in others] == [None] * 3
    assert host.gate.controller.epoch == 1
    assert host.gate.refusals == 4
    assert host.gate.pacer.refusals_in_a_row == 1
    assert host.gate.pacer.pause_until == 2


def test_a_longer_retry_after_of_the_same_incident_extends_the_pause() -> None:
    """2 s, then 1 s, then 30 s asked: 30 s it is, and whoever waits waits for that."""
    host = Host(Law(start=4))
    permits = host.depart(4)
    waiter = host.gate.arrive()
    for permit, asked_s in zip(permits, (2, 1, 30)):
        host.gate.record(permit, Outcome.REFUSED, 0.01, asked_s)
        host.gate.leave(permit)
    host.land(permits[3])
    assert (host.clock.pending, host.clock.next_at) == (1, 30)
    host.clock.run_until(29.9)
    assert not waiter.granted
    host.clock.run_until(30)
    assert waiter.granted


def test_a_200_from_before_a_collapse_changes_nothing() -> None:
    """HG-29: it departed before and arrived after: neither limit, pause, backoff nor baseline."""
    host = Host(Law(start=3, ceiling=4))
    first, *others = host.depart(3)
    host.land(first, Outcome.REFUSED)
    before = host.gate.snapshot()
    assert [host.land(permit) for permit in others] == [Verdict(), Verdict()]
    assert host.gate.snapshot() == replace(before, in_flight=0)
    assert host.gate.controller.samples == 0
    # The backoff goes on where it was: the next refusal is the second in a row.
    host.clock.advance(5)
    pause = host.visit(Outcome.REFUSED).pause
    assert pause is not None
    assert pause.wait_s == 2


def test_a_200_of_the_present_epoch_ends_the_row() -> None:
    """Served since: the next refusal begins with one second again, and doubles the delay."""
    host = Host()
    host.visit(Outcome.REFUSED)
    host.visit()
    verdict = host.visit(Outcome.REFUSED)
    assert verdict.pause is not None
    assert verdict.pause.wait_s == 1
    assert verdict.decision is not None
    assert verdict.decision.recovery_delay_s == 60


def test_hosts_are_independent() -> None:
    """HG-29, point 7: X refuses; Y's limit, pause and whoever waits there are untouched."""
    clock = FakeClock()
    x, y = Host(key="x", clock=clock), Host(key="y", clock=clock)
    y.depart(1)
    before = y.gate.snapshot()
    x.visit(Outcome.REFUSED)
    assert y.gate.snapshot() == before
    y.depart(1)


def test_a_refused_interval_is_doubled_and_earned_back() -> None:
    """Rate 2: one per second after a refusal, 0.75 s after 30 s of service, then 0.625 s."""
    host = Host(pace=Pace(rate=2))
    host.visit(Outcome.REFUSED)
    spacings = []
    for _ in range(75):
        host.visit()
        spacings.append(host.gate.snapshot().spacing_s)
    assert sorted(set(spacings), reverse=True) == [1.0, 0.75, 0.625]
    assert spacings.index(0.75) == 30 - 1


# -- the law at the gate ------------------------------------------------------------------------


def widening_host() -> Host:
    """A host that got faster, one sample short of being widened."""
    host = Host()
    for _ in range(40):
        host.visit(latency_s=0.25)
    for _ in range(19):
        for permit in host.depart(2):
            host.land(permit, latency_s=0.125)
    host.clock.advance(10)
    return host


def test_a_widening_lets_the_next_one_go() -> None:
    """2 → 3 by a sample: the slot that came with it is taken before the sample has left."""
    host = widening_host()
    first, second = host.depart(2)
    waiters = [host.gate.arrive() for _ in range(2)]
    verdict = host.gate.record(second, Outcome.OK, 0.125)
    assert verdict.decision is not None
    assert (verdict.decision.limit_to, verdict.decision.reason) == (3, Reason.FASTER)
    assert verdict.pause is None
    assert [waiter.granted for waiter in waiters] == [True, False]
    host.gate.leave(second)
    assert [waiter.granted for waiter in waiters] == [True, True]
    assert (host.gate.in_flight, host.gate.peak) == (3, 3)
    # The one that left before the change is of the old epoch.
    assert host.land(first, Outcome.REFUSED).decision is None


def test_a_pause_holds_a_widening_back() -> None:
    """The same sample while a pause runs: no change; the first one after it: 3."""
    host = widening_host()
    first, second = host.depart(2)
    host.gate.pacer.pause(host.clock.now, 5)
    assert [host.land(permit) for permit in (first, second)] == [Verdict(), Verdict()]
    host.clock.advance(5)
    decision = host.visit().decision
    assert decision is not None
    assert decision.limit_to == 3


def test_timeouts_shrink() -> None:
    """Three in a row without a latency: 2 → 1."""
    host = Host()
    verdicts = [host.visit(Outcome.SLOW, None) for _ in range(3)]
    assert verdicts[:2] == [Verdict(), Verdict()]
    assert verdicts[2].decision is not None
    assert host.gate.limit == 1
    assert host.gate.refusals == 0


# -- stalling -----------------------------------------------------------------------------------


def test_a_host_that_refuses_everything_is_stalled() -> None:
    """After 900 s of nothing but refusals, told once; it lasts as long again, then a new chance."""
    host = Host()
    verdicts = host.refuse_until(890)
    assert not any(verdict.stalled for verdict in verdicts)
    assert not host.gate.stalled
    verdicts = host.refuse_until(1100)
    assert [verdict.stalled for verdict in verdicts].count(True) == 1
    assert host.gate.stalled
    stalled_at = host.gate._stalled_at
    assert stalled_at is not None
    assert 900 <= stalled_at < 970
    host.clock.run_until(stalled_at + 899.9)
    assert host.gate.stalled
    host.clock.run_until(stalled_at + 900)
    assert not host.gate.stalled
    # The new chance is a whole one: the next refusal does not stall it at once.
    assert not host.visit(Outcome.REFUSED).stalled
    assert not host.gate.stalled


def test_a_host_that_serves_now_and_then_is_not_stalled() -> None:
    """One 200 among 900 s of refusals starts the count anew."""
    host = Host()
    host.refuse_until(600)
    host.visit()
    assert not any(verdict.stalled for verdict in host.refuse_until(1400))
    assert not host.gate.stalled


def test_a_stalled_host_that_serves_is_stalled_no_more() -> None:
    """What was in flight comes back with 200: that is a host that can be asked."""
    host = Host()
    host.refuse_until(1000)
    assert host.gate.stalled
    host.visit()
    assert not host.gate.stalled


def test_a_host_that_answers_with_redirects_has_not_refused_everything() -> None:
    """Refused at 0 s, redirects all the time since, refused again at 1,000 s: not stalled."""
    host = Host()
    host.visit(Outcome.REFUSED)
    for _ in range(99):
        host.clock.advance(10)
        host.visit(Outcome.NEUTRAL)
    host.clock.advance(10)
    assert not host.visit(Outcome.REFUSED).stalled
    assert not host.gate.stalled


# -- what the host announces --------------------------------------------------------------------


def test_a_quota_that_is_spent_is_waited_for() -> None:
    """Remaining 0, reset in 30 s: nobody goes before, and no limit has changed."""
    host = Host()
    (first,) = host.depart(1)
    host.clock.advance(1)
    assert host.gate.announced(first, [Quota(0, 30)])
    waiter = host.gate.arrive()
    assert (host.clock.pending, host.clock.next_at) == (1, 31)
    host.clock.run_until(31)
    assert waiter.granted
    assert (host.gate.limit, host.gate.controller.epoch, host.gate.refusals) == (2, 0, 0)


def test_a_quota_moves_those_who_wait_already() -> None:
    """Spaced to 2 s, told to wait until 30 s: the timer is moved."""
    host = Host(pace=Pace(delay_s=2, jitter=0))
    (first,) = host.depart(1)
    waiter = host.gate.arrive()
    assert host.clock.next_at == 2
    assert host.gate.announced(first, [Quota(0, 30)])
    assert (host.clock.pending, host.clock.next_at) == (1, 30)
    host.clock.run_until(29)
    assert not waiter.granted


def test_requests_in_flight_take_their_share_of_a_quota() -> None:
    """Two remaining and two others on their way: nothing is left for a fourth."""
    host = Host(Law(start=3, ceiling=4))
    first, *_ = host.depart(3)
    assert host.gate.announced(first, [Quota(2, 30, limit=100)])
    assert host.gate.snapshot().paused_s == 30


@pytest.mark.parametrize(
    ("quota", "next_at"),
    [
        (Quota(1, 30, limit=20), 15),
        (Quota(5, 30, limit=20), 5),
        (Quota(6, 30, limit=20), 0),
        (Quota(10, 33), 3),
        (Quota(11, 33), 0),
        (Quota(0, 5000), 900),
    ],
)
def test_a_little_is_spread_and_plenty_is_not(quota: Quota, next_at: float) -> None:
    """A quarter of the limit, or ten of an unknown one, are spread over the time to the reset."""
    host = Host()
    (first,) = host.depart(1)
    assert host.gate.announced(first, [quota]) is (next_at > 0)
    assert host.gate.pacer.next_departure(0) == next_at


def test_the_strictest_of_several_quotas_holds() -> None:
    """Per second and per day: the longer wait, in either order; none at all holds nobody."""
    for quotas in ([Quota(0, 2), Quota(0, 60)], [Quota(0, 60), Quota(0, 2)]):
        host = Host()
        (first,) = host.depart(1)
        assert not host.gate.announced(first, [])
        assert host.gate.announced(first, quotas)
        assert host.gate.pacer.next_departure(0) == 60


def test_a_crawl_delay_moves_those_who_wait_already() -> None:
    """robots.txt left at 0 s; read at 1 s, it asks for 10 s: the first page at 10 s."""
    host = Host(Law(start=1), Pace(delay_s=2, jitter=0))
    (robots,) = host.depart(1)
    page = host.gate.arrive()
    host.clock.advance(1)
    host.land(robots)
    assert host.clock.next_at == 2
    host.gate.crawl_delay(10)
    assert (host.clock.pending, host.clock.next_at) == (1, 10)
    host.clock.run_until(10)
    assert page.granted
    assert host.gate.snapshot().spacing_s == 10


# -- by hand ------------------------------------------------------------------------------------


def test_the_users_word_is_a_refusal() -> None:
    """``refuse()``: limit 1, a pause, a new epoch; what is in flight is outdated."""
    host = Host()
    first, second = host.depart(2)
    verdict = host.gate.refuse(retry_after_s=7)
    assert verdict.decision is not None
    assert (verdict.decision.reason, verdict.decision.limit_to) == (Reason.REFUSED, 1)
    assert verdict.pause is not None
    assert (verdict.pause.until, verdict.pause.asked_s) == (7, 7)
    assert (host.gate.limit, host.gate.refusals) == (1, 1)
    assert host.land(first, Outcome.REFUSED).decision is None
    assert host.land(second) == Verdict()
    assert host.gate.controller.epoch == 1


def test_the_users_word_about_an_idle_host() -> None:
    """Nothing in flight: one at a time was too much, so it backs off all the same."""
    host = Host()
    assert host.gate.refuse().decision is not None
    assert not host.gate.arrive().granted
    assert host.clock.next_at == 1


def test_resize_by_hand_wakes_and_drains() -> None:
    """Up: waiters go now. Down: nobody until there is room."""
    host = Host()
    host.depart(2)
    waiters = [host.gate.arrive() for _ in range(3)]
    decision = host.gate.resize(4).decision
    assert decision is not None
    assert (decision.reason, decision.limit_from, decision.limit_to) == (Reason.RESIZED, 2, 4)
    assert [waiter.granted for waiter in waiters] == [True, True, False]
    host.gate.resize(1)
    assert (host.gate.limit, host.gate.in_flight) == (1, 4)


@pytest.mark.parametrize("limit", [0, 5])
def test_resize_by_hand_stays_in_range(limit: int) -> None:
    """Below 1 or above the ceiling: an error, and both limits are as they were."""
    host = Host()
    with pytest.raises(ValueError, match="from 1 to 4"):
        host.gate.resize(limit)
    assert (host.gate.limit, host.gate.controller.limit) == (2, 2)


# -- leaving ------------------------------------------------------------------------------------


def test_leaving_gives_back_what_there_is() -> None:
    """A granted permit frees its slot, one that waits its place; each once."""
    host = Host()
    first, second = host.depart(2)
    waits, stays = host.gate.arrive(), host.gate.arrive()
    host.gate.leave(waits)
    assert host.gate.waiting == 1
    host.gate.leave(first)
    assert (waits.granted, stays.granted) == (False, True)
    with pytest.raises(RuntimeError, match="not borrowed"):
        host.gate.leave(first)
    host.gate.leave(second)
    assert (host.gate.in_flight, host.gate.waiting) == (1, 0)


def test_a_withdrawn_permit_may_leave_as_well() -> None:
    """Whoever ended the wait has taken it out already; leaving then is no error."""
    host = Host()
    host.depart(2)
    waits = host.gate.arrive()
    host.gate.semaphore.withdraw(waits)
    host.gate.leave(waits)
    assert (host.gate.in_flight, host.gate.waiting) == (2, 0)


def test_a_departure_that_leaves_late_is_told_to_the_clock() -> None:
    """Granted at 0 s, sent at 0.25 s because the loop was busy: the next at 2.25 s, not 2 s."""
    host = Host(pace=Pace(delay_s=2, jitter=0))
    (first,) = host.depart(1)
    host.clock.stall(0.25)
    host.gate.left(first)
    waiter = host.gate.arrive()
    host.clock.run_until(2.2)
    assert not waiter.granted
    host.clock.run_until(2.25)
    assert waiter.granted


# -- what it tells ------------------------------------------------------------------------------


def test_a_grant_that_outlives_a_whole_pause_is_not_used() -> None:
    """The loop stands still from the grant through a refusal's pause: it is a new departure then,
    of the new epoch and at the new spacing."""
    host = Host()
    (first,) = host.depart(1)
    host.clock.advance(1)
    (late,) = host.depart(1)
    host.land(first)
    host.gate.refuse(2)
    host.clock.stall(5)
    assert host.gate.left(late)
    assert (late.epoch, late.granted_at) == (1, 6)
    host.gate.leave(late)
    assert not host.gate.arrive().granted
    assert host.clock.next_at == 6 + 2


def test_a_gate_is_forgettable_when_nothing_would_be_lost() -> None:
    """Not in flight, not waiting, not spaced, not paused."""
    host = Host(pace=Pace(delay_s=2, jitter=0))
    assert host.gate.forgettable(0)
    (first,) = host.depart(1)
    assert not host.gate.forgettable(9)  # in flight
    waits = host.gate.arrive()
    host.land(first)
    assert not host.gate.forgettable(9)  # waiting
    host.gate.leave(waits)
    assert not host.gate.forgettable(1.9)  # spaced
    assert host.gate.forgettable(2)
    host.gate.pacer.pause(2, 10)
    assert not host.gate.forgettable(11)  # paused
    assert host.gate.forgettable(12)


def test_a_snapshot_is_the_whole_state_in_plain_numbers() -> None:
    """One collapse at 5 s, one in flight, one waiting."""
    host = Host(Law(start=3, ceiling=4), Pace(rate=2, burst=3))
    host.clock.advance(5)
    first, _second, _third = host.depart(3)
    host.gate.arrive()
    host.land(first, Outcome.REFUSED)
    host.clock.advance(0.25)
    assert host.gate.snapshot() == GateSnapshot(
        key="host.example",
        limit=1,
        start=3,
        ceiling=4,
        in_flight=2,
        waiting=1,
        peak=3,
        epoch=1,
        paused_s=0.75,
        spacing_s=1.0,
        baseline_s=None,
        median_s=None,
        departures=3,
        refusals=1,
    )
    assert host.gate.pacer.last_departure == 5
    assert repr(host.gate).startswith("<Gate 'host.example' <AdaptiveSemaphore 2/1 waiting=1> <P")
