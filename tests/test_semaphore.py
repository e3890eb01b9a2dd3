"""Who may be in flight, and who goes next: every grant counted at the moment it is made."""

from __future__ import annotations

from functools import partial
from random import Random
from types import SimpleNamespace

import pytest
from fakes import FakeClock
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from scrapy_hostgate.semaphore import (
    WAITING,
    WITHDRAWN,
    AdaptiveSemaphore,
    Permit,
)


class Desk:
    """A semaphore on a fake clock, whose departures cannot be before ``not_before``."""

    def __init__(self, limit: int) -> None:
        self.clock = FakeClock()
        self.not_before = 0.0
        self.spacing_s = 0.0
        self.departed: list[Permit] = []
        self.semaphore = AdaptiveSemaphore(
            limit,
            clock=self.clock,
            call_later=self.clock.call_later,
            earliest=lambda now: max(now, self.not_before),
            owner=self,
        )

    def departing(self, permit: Permit, now: float) -> None:
        self.departed.append(permit)
        if self.spacing_s:
            self.not_before = now + self.spacing_s

    def acquire(self, count: int, priority: int = 0) -> list[Permit]:
        return [self.semaphore.acquire(priority) for _ in range(count)]

    @property
    def counts(self) -> tuple[int, int]:
        """(in flight, waiting)."""
        return self.semaphore.in_flight, self.semaphore.waiting


# -- the bound ----------------------------------------------------------------------------------


def test_the_limit_is_granted_and_no_more() -> None:
    """Three ask, two go at once; the third goes when one comes back."""
    desk = Desk(2)
    first, second, third = desk.acquire(3)
    assert [first.granted, second.granted, third.granted] == [True, True, False]
    assert (first.in_flight, second.in_flight) == (1, 2)
    assert desk.counts == (2, 1)
    desk.semaphore.release(first)
    assert third.granted
    assert third.in_flight == 2
    assert desk.counts == (2, 0)


def test_a_newcomer_never_overtakes_a_woken_waiter() -> None:
    """HG-12: in one turn one comes back and one more asks: who waited goes, the newcomer waits."""
    desk = Desk(2)
    first, _ = desk.acquire(2)
    (waiter,) = desk.acquire(1)
    woken: list[int] = []
    waiter.on_grant = lambda: woken.append(desk.semaphore.in_flight)
    desk.semaphore.release(first)
    newcomer = desk.semaphore.acquire(priority=9)
    # The waiter was counted when it was granted, not when somebody gets round to running it.
    assert woken == [2]
    assert waiter.granted
    assert not newcomer.granted
    assert desk.counts == (2, 1)


def test_a_newcomer_never_overtakes_one_whose_time_has_come() -> None:
    """The loop is late: the waiter may go since 5 s, its timer has not run, and somebody asks at
    6 s. The waiter is first, and it has its time and its count from its own grant."""
    desk = Desk(1)
    desk.not_before = 5
    (waiter,) = desk.acquire(1)
    assert (waiter.in_flight, waiter.granted_at) == (0, 0)
    desk.clock.stall(6)
    newcomer = desk.semaphore.acquire()
    assert not newcomer.granted
    desk.clock.run_until(6)
    assert (waiter.granted, newcomer.granted) == (True, False)
    assert (waiter.in_flight, waiter.granted_at) == (1, 6)


def test_giving_a_permit_back_twice_is_an_error_and_changes_nothing() -> None:
    """HG-12: the second release raises; the count is not lowered and nobody is let in by it."""
    desk = Desk(2)
    first, _second, third, fourth = desk.acquire(4)
    desk.semaphore.release(first)
    assert third.granted
    with pytest.raises(RuntimeError, match=r"<Permit released .*> is not borrowed from <Adaptive"):
        desk.semaphore.release(first)
    assert not fourth.granted
    assert desk.counts == (2, 1)


def test_a_permit_that_is_not_out_cannot_be_given_back() -> None:
    """One that waits, one that was withdrawn, and one of another semaphore."""
    desk, other = Desk(1), Desk(1)
    _, waiting = desk.acquire(2)
    (foreign,) = other.acquire(1)
    with pytest.raises(RuntimeError, match="waiting"):
        desk.semaphore.release(waiting)
    desk.semaphore.withdraw(waiting)
    with pytest.raises(RuntimeError, match="withdrawn"):
        desk.semaphore.release(waiting)
    with pytest.raises(RuntimeError, match="granted"):
        desk.semaphore.release(foreign)
    assert (desk.counts, other.counts) == ((1, 0), (1, 0))


def test_release_from_inside_the_callback_of_a_grant() -> None:
    """HG-12: the callback that a release triggers gives others back: each once, and all counted."""
    desk = Desk(2)
    first, second = desk.acquire(2)
    waiters = desk.acquire(3)
    errors: list[RuntimeError] = []

    def again() -> None:
        desk.semaphore.release(second)
        try:
            desk.semaphore.release(first)
        except RuntimeError as error:
            errors.append(error)

    waiters[0].on_grant = again
    desk.semaphore.release(first)
    assert len(errors) == 1
    assert [waiter.granted for waiter in waiters] == [True, True, False]
    assert desk.counts == (2, 1)
    assert all(permit.in_flight <= 2 for permit in desk.departed)


def test_a_chain_of_callbacks_is_no_recursion() -> None:
    """Ten thousand that each leave as soon as they are let in: one after the other, in order."""
    desk = Desk(1)
    (first,) = desk.acquire(1)
    waiters = desk.acquire(10_000)
    for waiter in waiters:
        waiter.on_grant = partial(desk.semaphore.release, waiter)
    desk.semaphore.release(first)
    assert desk.counts == (0, 0)
    assert desk.departed == [first, *waiters]
    assert {permit.in_flight for permit in desk.departed} == {1}


def test_a_callback_runs_once_and_only_for_who_had_to_wait() -> None:
    """It is called at the grant; whoever was granted at once had none to call."""
    desk = Desk(1)
    calls: list[str] = []
    (first,) = desk.acquire(1)
    first.on_grant = partial(calls.append, "never")
    second, third = desk.acquire(2)
    second.on_grant = partial(calls.append, "second")
    third.on_grant = partial(calls.append, "third")
    desk.semaphore.release(first)
    assert calls == ["second"]
    desk.semaphore.release(second)
    assert calls == ["second", "third"]


def test_a_callback_that_raises_does_not_jam_the_gate() -> None:
    """Its error reaches the caller; the next change grants as ever."""
    desk = Desk(1)
    first, second, third = desk.acquire(3)

    def broken() -> None:
        raise LookupError

    second.on_grant = broken
    with pytest.raises(LookupError):
        desk.semaphore.release(first)
    assert second.granted
    desk.semaphore.release(second)
    assert third.granted
    assert desk.counts == (1, 0)


def test_idle_is_nobody_out_and_nobody_waiting() -> None:
    """One that waits for its time is enough, and so is one that is out."""
    desk = Desk(1)
    assert desk.semaphore.idle
    desk.not_before = 5
    (only,) = desk.acquire(1)
    assert (desk.counts, desk.semaphore.idle) == ((0, 1), False)
    desk.clock.run_until(5)
    assert (desk.counts, desk.semaphore.idle) == ((1, 0), False)
    desk.semaphore.release(only)
    assert desk.semaphore.idle


def test_it_drains_while_more_are_out_than_allowed() -> None:
    """Three out and three allowed: no; one allowed: until two have come back, or may be out."""
    desk = Desk(3)
    first, second, third = desk.acquire(3)
    assert not desk.semaphore.drains
    desk.semaphore.resize(1)
    assert desk.semaphore.drains
    desk.semaphore.release(first)
    assert desk.semaphore.drains
    desk.semaphore.resize(2)
    assert not desk.semaphore.drains
    desk.semaphore.resize(1)
    desk.semaphore.requeue(second)
    assert (desk.counts, desk.semaphore.drains) == ((1, 1), False)
    desk.semaphore.release(third)
    assert (second.granted, desk.semaphore.drains) == (True, False)


# -- the order ----------------------------------------------------------------------------------


def test_priority_first_then_first_come_first_served() -> None:
    """The higher ``request.priority`` goes first, equals in the order of their arrival."""
    desk = Desk(1)
    (running,) = desk.acquire(1)
    waiters = [desk.semaphore.acquire(priority) for priority in (0, 5, 0, -1, 5, 0)]
    while desk.semaphore.waiting:
        desk.semaphore.release(running)
        running = desk.departed[-1]
    assert [waiters.index(permit) for permit in desk.departed[1:]] == [1, 4, 0, 2, 5, 3]


def test_who_asks_without_a_priority_asks_with_none() -> None:
    """First come, first served among those of priority 0, said or not."""
    desk = Desk(1)
    (running,) = desk.acquire(1)
    said, unsaid = desk.semaphore.acquire(0), desk.semaphore.acquire()
    desk.semaphore.release(running)
    assert (said.granted, unsaid.granted) == (True, False)


# -- resize -------------------------------------------------------------------------------------


def test_shrinking_drains_and_does_not_cancel() -> None:
    """10 → 2 → 3 with ten borrowers admits nobody until two are left."""
    desk = Desk(10)
    borrowers = desk.acquire(10)
    waiters = desk.acquire(5)
    desk.semaphore.resize(2)
    desk.semaphore.resize(3)
    assert desk.counts == (10, 5)
    for borrower in borrowers[:7]:
        desk.semaphore.release(borrower)
        assert not waiters[0].granted
    assert desk.counts == (3, 5)
    desk.semaphore.release(borrowers[7])
    assert desk.counts == (3, 4)
    assert waiters[0].granted
    assert waiters[0].in_flight == 3


def test_growing_wakes_as_many_as_there_is_room_for() -> None:
    """1 → 3 with four waiting: two go, now."""
    desk = Desk(1)
    _, *waiters = desk.acquire(5)
    desk.semaphore.resize(3)
    assert [waiter.granted for waiter in waiters] == [True, True, False, False]
    assert desk.semaphore.limit == 3
    assert [permit.in_flight for permit in desk.departed] == [1, 2, 3]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_an_error(limit: int) -> None:
    """It would be a gate that never opens; the limit stays as it was."""
    desk = Desk(2)
    with pytest.raises(ValueError, match=f"at least 1, not {limit}"):
        desk.semaphore.resize(limit)
    assert desk.semaphore.limit == 2


# -- withdrawing --------------------------------------------------------------------------------


def test_who_withdraws_is_passed_over() -> None:
    """A request dropped while it waits: not granted, not called, not counted."""
    desk = Desk(1)
    first, second, third = desk.acquire(3)
    calls: list[str] = []
    second.on_grant = partial(calls.append, "second")
    assert desk.semaphore.withdraw(second)
    assert desk.counts == (1, 1)
    desk.semaphore.release(first)
    assert (second.state, calls) == (WITHDRAWN, [])
    assert third.granted


def test_only_who_waits_can_withdraw() -> None:
    """Neither a granted permit nor a released one, nor a second time: ``False``, no change."""
    desk = Desk(1)
    first, second = desk.acquire(2)
    assert not desk.semaphore.withdraw(first)
    assert desk.semaphore.withdraw(second)
    assert not desk.semaphore.withdraw(second)
    assert desk.counts == (1, 0)
    desk.semaphore.release(first)
    assert not desk.semaphore.withdraw(first)
    assert desk.counts == (0, 0)


def test_thousands_may_withdraw() -> None:
    """The queue is cleared of them, and those who stayed keep their order."""
    desk = Desk(1)
    (first,) = desk.acquire(1)
    waiters = desk.acquire(3000)
    for position, waiter in enumerate(waiters):
        if position % 1000:
            desk.semaphore.withdraw(waiter)
    assert desk.counts == (1, 3)
    assert len(desk.semaphore._waiters or ()) < 100
    running = first
    for stayed in (waiters[0], waiters[1000], waiters[2000]):
        desk.semaphore.release(running)
        assert stayed.granted
        running = stayed


def test_withdrawing_from_inside_the_callback_of_a_grant() -> None:
    """The next in the queue is gone when its turn comes; the one after it goes."""
    desk = Desk(2)
    first, second = desk.acquire(2)
    one, two, three = desk.acquire(3)

    def both() -> None:
        desk.semaphore.withdraw(two)
        desk.semaphore.release(second)

    one.on_grant = both
    desk.semaphore.release(first)
    assert [one.granted, two.granted, three.granted] == [True, False, True]
    assert desk.counts == (2, 0)


def test_whoever_withdraws_the_others_keep_their_order() -> None:
    """Priorities at random, most withdraw at random: the rest leave by priority and arrival."""
    random = Random(1)
    desk = Desk(1)
    (first,) = desk.acquire(1)
    waiting = [desk.semaphore.acquire(random.randint(-50, 50)) for _ in range(400)]
    random.shuffle(waiting)
    for permit in waiting[60:]:
        desk.semaphore.withdraw(permit)
    desk.semaphore.resize(100)
    assert desk.departed == [first, *sorted(waiting[:60], key=lambda permit: permit.place)]


# -- a grant that is not used -------------------------------------------------------------------


def test_a_grant_that_is_not_used_waits_again_at_its_old_place() -> None:
    """Before whoever came after it, but not before its time; its callback is called again."""
    desk = Desk(1)
    first, second = desk.acquire(2)
    desk.not_before = 9
    desk.semaphore.requeue(first)
    assert (first.state, first.granted, desk.counts) == (WAITING, False, (0, 2))
    calls: list[str] = []
    first.on_grant = partial(calls.append, "first")
    assert (desk.clock.pending, desk.clock.next_at) == (1, 9)
    desk.clock.run_until(9)
    assert (first.granted_at, second.granted, calls) == (9, False, ["first"])
    assert desk.counts == (1, 1)


def test_a_grant_that_is_not_used_may_go_again_at_once() -> None:
    """If nothing is in its way it is a new departure, of this moment."""
    desk = Desk(2)
    (first,) = desk.acquire(1)
    desk.clock.advance(3)
    desk.semaphore.requeue(first)
    assert (first.granted, first.granted_at) == (True, 3)
    assert desk.departed == [first, first]
    assert desk.counts == (1, 0)


def test_only_what_is_out_can_be_taken_back() -> None:
    """Neither one that waits nor one that was given back: an error, and nothing has changed."""
    desk = Desk(1)
    first, waiting = desk.acquire(2)
    with pytest.raises(RuntimeError, match="waiting"):
        desk.semaphore.requeue(waiting)
    desk.semaphore.release(first)
    with pytest.raises(RuntimeError, match="released"):
        desk.semaphore.requeue(first)
    assert desk.counts == (1, 0)


# -- the departure clock ------------------------------------------------------------------------


def test_waiting_for_time_holds_no_slot() -> None:
    """No slot is held and no departure counted by whoever waits for a token."""
    desk = Desk(2)
    desk.not_before = 5
    first, second, third = desk.acquire(3)
    assert desk.counts == (0, 3)
    assert desk.departed == []
    desk.clock.run_until(4.9)
    assert desk.counts == (0, 3)
    desk.clock.run_until(5)
    assert desk.departed == [first, second]
    assert (first.granted_at, third.granted_at) == (5, 0)
    assert desk.counts == (2, 1)


def test_waiting_for_a_slot_spends_no_token() -> None:
    """A departure is counted at the grant: the spacing runs from there, not from the arrival."""
    desk = Desk(1)
    desk.spacing_s = 10
    first, second = desk.acquire(2)
    desk.clock.advance(60)
    assert desk.departed == [first]
    desk.semaphore.release(first)
    assert second.granted_at == 60
    assert desk.not_before == 70


def test_spaced_departures_leave_one_by_one() -> None:
    """Room for all, one per two seconds."""
    desk = Desk(9)
    desk.spacing_s = 2
    desk.acquire(4)
    desk.clock.advance(60)
    assert [permit.granted_at for permit in desk.departed] == [0, 2, 4, 6]


def test_there_is_one_timer_and_only_while_time_is_what_is_missing() -> None:
    """However many wait: one. None when they wait for a slot, when all are gone, or withdrawn."""
    desk = Desk(1)
    assert desk.clock.pending == 0
    desk.not_before = 5
    first, second, third = desk.acquire(3)
    assert (desk.clock.pending, desk.clock.next_at) == (1, 5)
    desk.clock.run_until(5)
    assert first.granted
    assert desk.clock.pending == 0  # the others wait for a slot
    desk.not_before = 9
    desk.semaphore.release(first)
    assert (desk.clock.pending, desk.clock.next_at) == (1, 9)
    desk.semaphore.withdraw(second)
    assert desk.clock.pending == 1
    desk.semaphore.withdraw(third)
    assert desk.clock.pending == 0


def test_a_shrink_takes_the_timer_with_it() -> None:
    """With no room below the new limit it is not time that is missing."""
    desk = Desk(2)
    desk.acquire(1)
    desk.not_before = 5
    desk.acquire(1)
    assert desk.clock.pending == 1
    desk.semaphore.resize(1)
    assert desk.clock.pending == 0
    desk.semaphore.resize(2)
    assert (desk.clock.pending, desk.clock.next_at) == (1, 5)


def test_a_longer_pause_moves_the_timer() -> None:
    """Told to look again, it waits for the new time and not for the old; sooner counts too."""
    desk = Desk(1)
    desk.not_before = 5
    (first,) = desk.acquire(1)
    desk.not_before = 20
    desk.semaphore.reconsider()
    assert (desk.clock.pending, desk.clock.next_at) == (1, 20)
    desk.not_before = 7
    desk.semaphore.reconsider()
    assert (desk.clock.pending, desk.clock.next_at) == (1, 7)
    desk.clock.run_until(7)
    assert first.granted_at == 7


def test_a_timer_that_fires_early_is_set_again() -> None:
    """Event loops round: nobody is let out a millisecond too soon, nor forgotten."""
    desk = Desk(1)
    desk.not_before = 5
    (first,) = desk.acquire(1)
    desk.clock.now = 4.999
    desk.semaphore._on_timer()
    assert not first.granted
    desk.clock.run_until(5)
    assert first.granted_at == 5


def test_the_state_is_readable_in_one_line() -> None:
    """``repr`` shows in flight, limit and waiting."""
    desk = Desk(2)
    permits = desk.acquire(3, priority=4)
    assert repr(desk.semaphore) == "<AdaptiveSemaphore 2/2 waiting=1>"
    assert repr(permits[2]) == "<Permit waiting priority=4 epoch=0>"


def test_those_who_withdrew_take_no_room_and_the_others_keep_their_order() -> None:
    """All but every twentieth of 301 withdraw: the queue shrinks, the order stays."""
    desk = Desk(1)
    (first,) = desk.acquire(1)
    waiting = [desk.semaphore.acquire(number * 7 % 30) for number in range(301)]
    kept = waiting[::20]
    for permit in waiting:
        permit.on_grant = list
        if permit not in kept:
            assert desk.semaphore.withdraw(permit)
            assert permit.on_grant is None
            assert desk.semaphore._waiters is not None
            assert len(desk.semaphore._waiters) <= 2 * desk.semaphore.waiting + 64
    desk.departed.clear()
    desk.semaphore.resize(100)
    assert desk.departed == sorted(kept, key=lambda permit: permit.place)
    assert desk.semaphore._waiters is None
    desk.semaphore.release(first)


def test_whoever_was_granted_takes_no_room_either() -> None:
    """Four of ten go: six are kept, and no more."""
    desk = Desk(1)
    desk.acquire(11)
    desk.semaphore.resize(5)
    assert desk.counts == (5, 6)
    assert desk.semaphore._waiters is not None
    assert len(desk.semaphore._waiters) == 6


def test_a_few_who_withdraw_do_not_have_the_queue_made_anew() -> None:
    """That would cost as much as there are who wait, each time."""
    desk = Desk(1)
    desk.acquire(1)
    waiting = desk.acquire(50)
    before = desk.semaphore._waiters
    for permit in waiting[:10]:
        desk.semaphore.withdraw(permit)
    assert desk.semaphore._waiters is before


def test_told_the_same_time_again_the_timer_stays() -> None:
    """A timer that is set anew at each look would cost as much as the look."""
    desk = Desk(1)
    desk.not_before = 5
    desk.acquire(1)
    timer = desk.semaphore._timer
    assert timer is not None
    desk.semaphore.reconsider()
    assert desk.semaphore._timer is timer


def test_a_retired_semaphore_lets_nobody_out() -> None:
    """Its host is forgotten: a grant there would be counted by nobody."""
    desk = Desk(1)
    assert not desk.semaphore.retired
    desk.semaphore.retire()
    assert desk.semaphore.retired
    with pytest.raises(RuntimeError, match="forgotten"):
        desk.semaphore.acquire()


# -- whatever happens ---------------------------------------------------------------------------


class AnySemaphore(RuleBasedStateMachine):
    """Arrivals, departures, resizes, pauses and time in any order; see the invariants."""

    @initialize(limit=st.integers(1, 4), spacing=st.sampled_from([0.0, 0.5]))
    def begin(self, limit: int, spacing: float) -> None:
        self.desk = Desk(limit)
        self.desk.spacing_s = spacing
        self.waiting: list[Permit] = []
        self.granted: list[Permit] = []
        record = self.desk.departing

        def departing(permit: Permit, now: float) -> None:
            # At each grant there is room, time allows it, and nobody with a better claim waits.
            assert permit.in_flight <= self.desk.semaphore.limit
            assert self.desk.not_before <= now
            assert permit.granted_at == now
            best = max(self.waiting, key=lambda one: -one.place[0], default=permit)
            assert permit.place[0] <= best.place[0]
            if permit.place[0] == best.place[0] and best in self.waiting:
                assert permit is best
            record(permit, now)
            self.granted.append(permit)
            if permit in self.waiting:
                self.waiting.remove(permit)

        self.desk.semaphore._owner = SimpleNamespace(departing=departing)

    @rule(priority=st.integers(0, 2))
    def arrive(self, priority: int) -> None:
        permit = self.desk.semaphore.acquire(priority)
        if not permit.granted:
            self.waiting.append(permit)

    @rule(priority=st.integers(0, 2))
    def arrive_and_leave_when_granted(self, priority: int) -> None:
        permit = self.desk.semaphore.acquire(priority)
        if permit.granted:
            return
        self.waiting.append(permit)

        def leave() -> None:
            self.granted.remove(permit)
            self.desk.semaphore.release(permit)

        permit.on_grant = leave

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        permit = data.draw(st.sampled_from(self.granted))
        self.granted.remove(permit)
        self.desk.semaphore.release(permit)
        with pytest.raises(RuntimeError):
            self.desk.semaphore.release(permit)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        permit = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(permit)
        assert self.desk.semaphore.withdraw(permit)

    @rule(limit=st.integers(1, 5))
    def resize(self, limit: int) -> None:
        self.desk.semaphore.resize(limit)

    @rule(seconds=st.sampled_from([0.25, 1.0, 4.0]))
    def pause(self, seconds: float) -> None:
        self.desk.not_before = max(self.desk.not_before, self.desk.clock.now + seconds)
        self.desk.semaphore.reconsider()

    @rule(seconds=st.sampled_from([0.1, 0.5, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.desk.clock.advance(seconds)

    @invariant()
    def the_counts_are_those_of_the_permits(self) -> None:
        if hasattr(self, "desk"):
            assert self.desk.counts == (len(self.granted), len(self.waiting))
            assert all(permit.granted for permit in self.granted)
            assert all(permit.state == WAITING for permit in self.waiting)

    @invariant()
    def no_wake_up_is_lost(self) -> None:
        """If somebody could go, somebody has gone, or a timer is set for when time allows it."""
        if hasattr(self, "desk"):
            semaphore, clock = self.desk.semaphore, self.desk.clock
            if semaphore.waiting and semaphore.in_flight < semaphore.limit:
                assert self.desk.not_before > clock.now
                assert clock.pending == 1
                assert clock.next_at == pytest.approx(self.desk.not_before)
            else:
                assert clock.pending == 0


def test_no_order_of_events_breaks_the_bound_or_loses_a_wake_up() -> None:
    """HG-12, for all orders: the state machine above holds its invariants after every step."""
    run_state_machine_as_test(
        AnySemaphore, settings=settings(deadline=None, max_examples=40, stateful_step_count=25)
    )
