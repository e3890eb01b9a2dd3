"""One host: what a sample does to the limit, the pause, the spacing and whoever waits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from fakes import FakeClock, middle
from interleavings import MoodyAdmission

from scrapy_hostgate.controller import Decision, Law, Reason
from scrapy_hostgate.gate import JUST_BEFORE_S, Gate, GateSnapshot, Verdict
from scrapy_hostgate.outcome import Outcome
from scrapy_hostgate.pacer import Pace
from scrapy_hostgate.quota import Quota
from scrapy_hostgate.saved import Saved
from scrapy_hostgate.semaphore import Permit


class Fleet(MoodyAdmission):
    """A fleet that remembers what this process has decided."""

    def __init__(self) -> None:
        super().__init__()
        self.decisions: list[Decision] = []

    def decided(self, decision: Decision) -> None:
        self.decisions.append(decision)


class Host:
    """A gate on a fake clock, and requests that go through it."""

    def __init__(
        self,
        law: Law = Law(),  # noqa: B008 - frozen
        pace: Pace = Pace(),  # noqa: B008 - frozen
        *,
        key: str = "host.example",
        clock: FakeClock | None = None,
        fleet: Fleet | None = None,
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
            admission=None if fleet is None else lambda gate: fleet,
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


def test_who_waits_for_a_place_cannot_leave() -> None:
    """Limit 2, both out: the third stays where it is, and nothing of the two changes."""
    host = Host()
    first, _second = host.depart(2)
    waiter = host.gate.arrive()
    assert not host.gate.left(waiter)
    assert (host.gate.departures, host.gate.in_flight, host.gate.waiting) == (2, 2, 1)
    host.land(first)
    assert host.gate.left(waiter)


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


def test_the_answer_that_earns_a_step_back_says_so() -> None:
    """Rate 2, refused: a step for each 30 s of service, the first along with the limit's own."""
    host = Host(pace=Pace(rate=2))
    host.visit(Outcome.REFUSED)
    verdicts = [host.visit() for _ in range(100)]
    steps = [verdict for verdict in verdicts if verdict.relaxed]
    assert [verdict.decision is not None for verdict in steps] == [True, False]


def test_an_answer_that_changes_nothing_says_nothing() -> None:
    """No decision, no pause, not stalled, no step back; and an echo stalls nobody either."""
    host = Host(Law(start=3))
    first, second, third = host.depart(3)
    quiet = host.land(first)
    incident, echo = (host.land(permit, Outcome.REFUSED) for permit in (second, third))
    assert (quiet.decision, quiet.pause, quiet.stalled, quiet.relaxed) == (None, None, False, False)
    assert (incident.stalled, incident.relaxed) == (False, False)
    assert (echo.stalled, echo.relaxed) == (False, False)


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
    stalled_at = host.gate.stalled_at
    assert stalled_at is not None
    assert 900 <= stalled_at < 970
    host.clock.run_until(stalled_at + 899.9)
    assert host.gate.stalled
    host.clock.run_until(stalled_at + 900)
    assert not host.gate.stalled
    # The new chance is a whole one: the next refusal does not stall it at once.
    assert not host.visit(Outcome.REFUSED).stalled
    assert not host.gate.stalled


def test_a_second_chance_that_is_lost_too_stalls_again() -> None:
    """Another 900 s of nothing but refusals, from the first after the chance."""
    host = Host()
    host.refuse_until(1000)
    assert host.gate.stalled
    host.clock.advance(900)
    assert not host.gate.stalled
    begins = host.clock.now
    verdicts = host.refuse_until(begins + 890)
    assert not any(verdict.stalled for verdict in verdicts)
    verdicts = host.refuse_until(begins + 1000)
    assert [verdict.stalled for verdict in verdicts].count(True) == 1


def test_900_seconds_are_the_stall_timeout_unless_set() -> None:
    """Refused at 0 s and at 900 s: stalled; at 899 s: not yet."""
    for until, stalled in ((899, False), (900, True)):
        clock = FakeClock()
        gate = Gate("h", Law(), Pace(), clock=clock, call_later=clock.call_later, uniform=middle)
        assert not gate.refuse(1).stalled
        clock.run_until(until)
        assert gate.refuse(1).stalled is stalled


def test_a_success_that_was_a_captcha_does_not_end_the_stalling() -> None:
    """Refused since 100 s; at 500 s a page comes that the spider takes for a refusal: stalled at
    1,000 s, as if the page had not come; and the backoff goes on as well."""
    host = Host(clock=FakeClock(100))
    host.visit(Outcome.REFUSED)
    host.clock.run_until(500)
    permit = host.gate.arrive()
    host.land(permit)
    pause = host.gate.refuse(epoch=permit.epoch).pause
    assert pause is not None
    assert pause.wait_s == 2
    host.clock.run_until(1000)
    assert host.visit(Outcome.REFUSED).stalled
    # Without the spider's word the page would have ended it.
    other = Host(clock=FakeClock(100))
    other.visit(Outcome.REFUSED)
    other.clock.run_until(500)
    other.visit()
    other.gate.refuse()
    other.clock.run_until(1000)
    assert not other.visit(Outcome.REFUSED).stalled


def test_the_spiders_word_on_an_older_answer_is_an_echo() -> None:
    """It departed before the collapse: no second one, and no row goes on because of it."""
    host = Host()
    old, other = host.depart(2)
    host.land(other, Outcome.REFUSED)
    host.land(old)
    host.clock.advance(2)
    host.visit()
    verdict = host.gate.refuse(epoch=old.epoch)
    assert verdict.decision is None
    assert host.gate.controller.epoch == 1
    assert host.gate.pacer.refusals_in_a_row == 0


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


# -- when a scheduler may send the next ---------------------------------------------------------


def test_a_host_that_has_not_answered_yet_is_sent_one() -> None:
    """The second would only hang, if the first does; answered in time, as many as the limit."""
    gate = Host().gate
    assert gate.opens_at(7) == 7
    assert gate.opens_at(7, 1) == math.inf
    gate.answered(5.0)
    assert gate.opens_at(7, 1) == 7
    assert gate.opens_at(7, 2) == math.inf
    gate.answered(5.1)
    assert gate.opens_at(7, 1) == math.inf


def test_whoever_is_here_takes_a_place() -> None:
    """In flight, waiting, or on the way: two of two are taken."""
    host = Host()
    host.gate.answered(0.1)
    (first,) = host.depart(1)
    assert host.gate.opens_at(0) == 0
    assert host.gate.opens_at(0, 1) == math.inf
    host.depart(1)
    assert host.gate.opens_at(0) == math.inf
    waiter = host.gate.arrive()
    host.gate.pacer.pause(0, 9)
    host.land(first)
    assert host.gate.opens_at(0) == math.inf
    host.gate.leave(waiter)
    assert host.gate.opens_at(0) < 9


def test_a_spaced_host_is_sent_one_at_a_time() -> None:
    """Two would have to wait for each other here, and others could be served meanwhile."""
    host = Host(pace=Pace(delay_s=2, jitter=0))
    host.gate.answered(0.1)
    assert host.gate.opens_at(0, 1) == math.inf
    host.depart(1)
    assert host.gate.opens_at(0) == 2 - 0.02


def test_a_request_may_leave_its_queue_a_little_before_its_time() -> None:
    """20 ms, for the way to the gate; and when less than that is missing, now."""
    host = Host()
    host.gate.pacer.pause(0, 10)
    assert host.gate.opens_at(0) == 10 - 0.02
    assert host.gate.opens_at(9.97) == 10 - 0.02
    assert host.gate.opens_at(9.99) == 9.99
    assert host.gate.opens_at(11) == 11


def test_requests_of_a_stalled_host_are_wanted_at_once() -> None:
    """They fail at the gate instead of waiting, whatever the pause."""
    host = Host()
    host.refuse_until(1000)
    host.gate.obey(800)
    now = host.clock.now
    assert host.gate.stalled
    assert host.gate.opens_at(now, 9) == now


# -- by hand ------------------------------------------------------------------------------------


def test_a_refusal_from_which_nothing_is_learnt_is_a_pause() -> None:
    """As long as was asked for, or one second; limit, epoch and count stay."""
    for asked_s, until in ((7, 7), (None, 1)):
        host = Host()
        host.gate.obey(asked_s)
        assert host.gate.snapshot().paused_s == until
        assert (host.gate.limit, host.gate.controller.epoch, host.gate.refusals) == (2, 0, 0)


@pytest.mark.parametrize(
    ("concurrency", "start", "ceiling", "limit"),
    [(None, 2, 4, 4), (5, 2, 4, 4), (4, 2, 4, 4), (3, 2, 3, 3), (1, 1, 1, 1)],
)
def test_a_bound_that_comes_with_a_slot_only_tightens(
    concurrency: int | None, start: int, ceiling: int, limit: int
) -> None:
    """From start 2, ceiling 4, 4 at present: never above any of these, and one change at most."""
    gate = Host().gate
    gate.resize(4)
    gate.tighten(concurrency, None, None)
    law = gate.controller.law
    assert (law.start, law.ceiling, gate.limit, gate.controller.limit) == (
        start,
        ceiling,
        limit,
        limit,
    )
    assert gate.controller.epoch == (1 if limit == 4 else 2)
    assert gate.pacer.pace == Pace()


def test_a_limit_below_the_bound_stays() -> None:
    """A slot that allows three does not widen a host to three, nor is that a change."""
    gate = Host().gate
    gate.tighten(3, None, None)
    assert (gate.limit, gate.controller.epoch) == (2, 0)
    gate.tighten(2, None, None)
    assert (gate.limit, gate.controller.epoch, gate.controller.law.ceiling) == (2, 0, 2)


@pytest.mark.parametrize(
    ("delay_s", "jitter", "expected"),
    [
        (None, 0.1, (3, 0.5)),
        (2, 0.1, (3, 0.5)),
        (3, 0.1, (3, 0.5)),
        (5, 0.1, (5, 0.1)),
        (5, 0.0, (5, 0.0)),
        (5, None, (5, 0.5)),
    ],
)
def test_a_delay_that_comes_with_a_slot_only_lengthens(
    delay_s: float | None, jitter: float | None, expected: tuple[float, float]
) -> None:
    """Beside 3 s ± 50 %: a longer one replaces it, with its own jitter if it has any."""
    gate = Host(pace=Pace(delay_s=3)).gate
    gate.tighten(None, delay_s, jitter)
    assert (gate.pacer.pace.delay_s, gate.pacer.pace.jitter) == expected
    assert gate.controller.law == Law()


def test_the_users_word_counts_as_many_as_are_in_flight() -> None:
    """What was too much is what is out now; of an idle host, one."""
    for count, level in ((0, 1), (1, 1), (3, 3)):
        host = Host(Law(start=3))
        host.depart(count)
        host.gate.refuse()
        assert exported(host)["controller"]["refused_level"] == level


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


def test_who_asks_without_a_priority_asks_with_none() -> None:
    """First come, first served among those of priority 0, said or not."""
    host = Host(Law(start=1))
    (first,) = host.depart(1)
    said, unsaid = host.gate.arrive(0), host.gate.arrive()
    host.gate.leave(first)
    assert (said.granted, unsaid.granted) == (True, False)


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


def test_leaving_in_time_is_leaving() -> None:
    """At the limit, spaced, and at once: it goes, and nothing is counted twice."""
    host = Host(Law(start=1), Pace(delay_s=2, jitter=0))
    (only,) = host.depart(1)
    assert host.gate.left(only)
    assert host.gate.departures == 1
    assert host.gate.pacer.next_departure(0) == 2


def test_who_is_granted_as_a_pause_ends_may_leave_in_that_moment() -> None:
    """A pause until 10 s is over at 10 s; nobody waits for a second turn, nor for the spacing."""
    host = Host(pace=Pace(delay_s=2, jitter=0))
    host.gate.obey(10)
    waiter = host.gate.arrive()
    host.clock.run_until(10)
    assert waiter.granted
    assert host.gate.left(waiter)


def test_leaving_late_is_a_longer_gap_though_nothing_is_spaced() -> None:
    """Granted at 3 s and sent at 5: five seconds is what a refusal then doubles."""
    host = Host(Law(start=4))
    first, *_ = host.depart(1)
    host.clock.advance(3)
    (late,) = host.depart(1)
    host.clock.stall(2)
    assert host.gate.left(late)
    host.land(first, Outcome.REFUSED)
    assert host.gate.snapshot().spacing_s == 10


def test_who_may_not_leave_after_all_waits_and_is_no_departure() -> None:
    """Granted, and refused before it went: one departure less, and the next after the pause."""
    host = Host()
    first, second = host.depart(2)
    assert host.gate.departures == 2
    host.land(first, Outcome.REFUSED)
    assert not host.gate.left(second)
    assert (host.gate.departures, host.gate.waiting, host.gate.in_flight) == (1, 1, 0)
    host.clock.advance(1)
    assert second.granted
    assert host.gate.departures == 2


@pytest.mark.parametrize(
    ("departed_at", "next_at"), [(1.0, 3.5), (0.97, 3.5), (1 - JUST_BEFORE_S, 3.5), (0.93, 2.93)]
)
def test_a_standstill_holds_up_what_left_just_before(departed_at: float, next_at: float) -> None:
    """From 1 s to 1.5 s the loop stands still: what left 50 ms before that or later has really
    left at the end of it, and the next keeps its 2 s from there; what left sooner is gone."""
    host = Host(pace=Pace(delay_s=2, jitter=0), clock=FakeClock(departed_at))
    host.depart(1)
    waiter = host.gate.arrive()
    host.clock.now = 1.5
    host.gate.stood_still(1.5, 0.5)
    assert host.clock.next_at == pytest.approx(next_at)
    host.clock.run_until(next_at - 0.01)
    assert not waiter.granted


def test_a_quiet_spell_is_no_spacing() -> None:
    """Nothing in flight and nobody waiting from 1 s to 3601 s: the gap is of one second."""
    host = Host()
    (first,) = host.depart(1)
    host.clock.advance(1)
    host.land(first)
    host.clock.run_until(3601)
    host.visit(Outcome.REFUSED)
    assert host.gate.snapshot().spacing_s == 2


def test_while_one_is_in_flight_the_host_has_no_rest() -> None:
    """Two left at 0 s, the third at 5 s: gaps of 0 and 5 s, though one had come back at 1 s."""
    host = Host()
    first, second = host.depart(2)
    host.clock.advance(1)
    host.land(first)
    host.clock.run_until(5)
    host.depart(1)
    host.land(second, Outcome.REFUSED)
    assert host.gate.snapshot().spacing_s == 5


# -- beside a fleet -----------------------------------------------------------------------------


def test_the_fleet_has_a_say_in_each_departure() -> None:
    """Not before 5 s; and our own pause and spacing hold beside it, whichever is later."""
    fleet = Fleet()
    host = Host(pace=Pace(delay_s=3, jitter=0), fleet=fleet)
    fleet.opens_at = 5
    first = host.gate.arrive()
    assert (first.granted, host.clock.next_at) == (False, 5)
    host.clock.run_until(5)
    assert first.granted
    assert fleet.held == {first}
    second = host.gate.arrive()
    assert host.clock.next_at == 8
    host.clock.run_until(8)
    assert fleet.held == {first, second}


def test_what_leaves_is_given_back_to_the_fleet() -> None:
    """Each that is done, and each that waits no more."""
    fleet = Fleet()
    host = Host(fleet=fleet)
    first, second = host.depart(2)
    host.land(first)
    assert fleet.held == {second}
    host.land(second)
    assert fleet.held == set()


def test_a_place_that_the_fleet_has_lost_is_asked_for_anew() -> None:
    """Three granted at 0 s, sent at 5 s, and the first one's lease has lapsed: it waits its turn
    behind the two others, at one per second."""
    fleet = Fleet()
    host = Host(Law(start=3), Pace(rate=1, burst=3), fleet=fleet)
    lapsed, *others = host.depart(3)
    host.clock.stall(5)
    fleet.keeps_word = False
    assert not host.gate.left(lapsed)
    assert fleet.held == set(others)
    assert (host.gate.departures, host.gate.in_flight, host.gate.waiting) == (2, 2, 1)
    fleet.keeps_word = True
    assert all(host.gate.left(other) for other in others)
    assert host.clock.next_at == 6
    host.clock.run_until(6)
    assert lapsed.granted
    assert host.gate.left(lapsed)


def test_the_fleet_is_told_what_this_process_decides() -> None:
    """A collapse, and a limit set by hand, each before anybody goes by it."""
    fleet = Fleet()
    host = Host(fleet=fleet)
    host.gate.resize(3)
    host.visit(Outcome.REFUSED)
    assert [(one.reason, one.limit_to) for one in fleet.decisions] == [
        (Reason.RESIZED, 3),
        (Reason.REFUSED, 1),
    ]


def exported(host: Host) -> dict[str, Any]:
    return host.gate.export(host.clock.now, 1000.0)


def test_what_another_process_learnt_is_taken_up() -> None:
    """Its limit, epoch, spacing and row of refusals; of latencies nothing; and whoever waits for
    the room goes."""
    first, second = Host(Law(start=4)), Host()
    for _ in range(30):
        first.visit(latency_s=0.25)
    first.gate.tighten(None, 3, 0.0)
    first.visit(Outcome.REFUSED)
    lesson = first.gate.lesson(first.clock.now, 1000.0)
    assert "baseline_s" not in lesson["controller"]  # type: ignore[operator]
    saved = Saved(lesson, now=second.clock.now, offset_s=1000.0)
    decision = second.gate.adopt(saved, 1, 5, Reason.REFUSED)
    assert (decision.limit_from, decision.limit_to, decision.epoch) == (2, 1, 5)
    snapshot = second.gate.snapshot()
    assert (snapshot.limit, snapshot.epoch, snapshot.spacing_s) == (1, 5, 6)
    assert second.gate.pacer.refusals_in_a_row == 1


def test_a_limit_of_another_process_wakes_who_waits_within_our_ceiling() -> None:
    """It allows itself eight, we no more than four: two of three go."""
    host = Host()
    host.depart(2)
    waiters = [host.gate.arrive() for _ in range(3)]
    saved = Saved({}, now=0.0, offset_s=1000.0)
    assert host.gate.adopt(saved, 8, 1, Reason.FASTER).limit_to == 4
    assert [waiter.granted for waiter in waiters] == [True, True, False]
    assert (host.gate.limit, host.gate.controller.limit) == (4, 4)


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


def test_what_happened_ten_minutes_ago_is_old_news() -> None:
    """Nothing of it is told, and the gate may be forgotten; a second earlier neither."""
    host = Host(clock=FakeClock(50))
    host.visit(Outcome.REFUSED)
    assert host.gate.export(649, 0)
    assert not host.gate.forgettable(649)
    assert host.gate.export(650, 0) == {}
    assert host.gate.forgettable(650)


def test_times_are_told_in_unix_seconds() -> None:
    """Our clock plus 1000: the last departure, the last change, the first refusal, the stalling."""
    host = Host(clock=FakeClock(50))
    (first,) = host.depart(1)
    host.clock.advance(3)
    host.land(first, Outcome.REFUSED)
    told = exported(host)
    assert (told["departed_at"], told["changed_at"], told["refusing_since"]) == (1050, 1053, 1053)
    assert "stalled_at" not in told
    host.refuse_until(1000)
    host.visit(Outcome.REFUSED)
    assert exported(host)["stalled_at"] == host.gate.stalled_at + 1000  # type: ignore[operator]


def test_slots_help_only_those_who_wait_for_one() -> None:
    """At the limit one waits for a slot; in a pause it would not help."""
    host = Host()
    permits = host.depart(2)
    host.gate.arrive()
    assert host.gate.snapshot().waiting_for_slot == 1
    host.gate.pacer.pause(0, 9)
    for permit in permits:
        host.land(permit)
    snapshot = host.gate.snapshot()
    assert (snapshot.waiting, snapshot.waiting_for_slot) == (1, 0)


def test_a_new_gate_has_counted_nothing() -> None:
    """No departure, no refusal, no peak, and nothing told."""
    gate = Host().gate
    assert (gate.departures, gate.refusals, gate.peak) == (0, 0, 0)
    assert (gate.prompt, gate.cap_told, gate.stalled) == (False, False, False)


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
