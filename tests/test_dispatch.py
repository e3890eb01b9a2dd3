"""Between queues and gates: what is on its way counts, what never arrives does not for long."""

from __future__ import annotations

import math

from fakes import FakeClock, middle

from scrapy_hostgate.controller import Law
from scrapy_hostgate.dispatch import UNGATED, Dispatch
from scrapy_hostgate.gate import LEAD_S, Gate
from scrapy_hostgate.outcome import Outcome
from scrapy_hostgate.pacer import Pace
from scrapy_hostgate.registry import Registry


class Office:
    """A dispatch on a fake clock, with what the downloader holds and who has been told."""

    def __init__(self, pace: Pace = Pace()) -> None:  # noqa: B008 - frozen
        self.clock = FakeClock(100.0)
        self.registry = Registry(
            lambda key: Gate(
                key,
                Law(),
                pace,
                clock=self.clock,
                call_later=self.clock.call_later,
                uniform=middle,
                stall_timeout_s=50,
            ),
            max_hosts=100,
            clock=self.clock,
        )
        self.downloader: set[str] = set()
        self.woken: list[float] = []
        self.told: list[str] = []
        self.dispatch = Dispatch(
            self.registry,
            clock=self.clock,
            call_later=self.clock.call_later,
            in_downloader=lambda: self.downloader,
            wake=lambda: self.woken.append(self.clock.now),
        )
        self.dispatch.listen(self.told.append)

    def send(self, request: str, name: str = "a") -> None:
        self.dispatch.send(request, name)
        self.downloader.add(request)

    def opening(self, name: str = "a") -> tuple[int, float]:
        """Places used, and seconds until it opens."""
        used, at = self.dispatch.opening(name, self.clock.now)
        return used, round(at - self.clock.now, 3)

    def serve(self, name: str = "a", latency_s: float = 0.1) -> Gate:
        """One request that comes, is answered and leaves."""
        gate = self.registry.gate(name)
        permit = gate.arrive()
        assert permit.granted
        gate.answered(latency_s)
        gate.leave(permit)
        return gate


def test_a_new_host_gets_one_request_until_it_has_answered() -> None:
    """Then as many as its limit."""
    office = Office()
    assert office.opening() == (0, 0)
    office.send("first")
    assert office.opening() == (1, math.inf)
    gate = office.registry.gate("a")
    permit = gate.arrive()
    office.dispatch.arrived("first")
    assert office.opening() == (1, math.inf)
    gate.answered(0.1)
    assert office.opening() == (1, 0)
    office.send("second")
    assert office.opening() == (2, math.inf)
    gate.leave(permit)
    assert office.opening() == (1, 0)


def test_a_host_that_let_us_wait_gets_one_at_a_time() -> None:
    """A tarpit costs one place; a good answer gives it its limit back."""
    office = Office()
    gate = office.serve(latency_s=5.1)
    permit = gate.arrive()
    assert office.opening() == (1, math.inf)
    gate.answered(5.0)
    assert office.opening() == (1, 0)
    gate.leave(permit)


def test_a_paused_host_opens_a_moment_before_the_pause_ends() -> None:
    """Early enough for the way to the gate, which lets nothing depart before."""
    office = Office()
    gate = office.serve()
    gate.refuse(10)
    assert office.opening() == (0, 10 - LEAD_S)
    office.clock.advance(10 - LEAD_S)
    assert office.opening() == (0, 0)


def test_a_spaced_host_has_one_on_its_way() -> None:
    """When the next may leave is known only when this one has departed."""
    office = Office(Pace(delay_s=2, jitter=0))
    gate = office.serve()
    assert office.opening() == (0, 2 - LEAD_S)
    office.clock.advance(2)
    office.send("next")
    assert office.opening() == (1, math.inf)
    permit = gate.arrive()
    office.dispatch.arrived("next")
    assert office.opening() == (1, 2 - LEAD_S)
    gate.leave(permit)


def test_requests_that_come_another_way_count_too() -> None:
    """What waits at the gate (a media pipeline's) leaves no place to a queue's."""
    office = Office()
    gate = office.serve()
    permits = [gate.arrive() for _ in range(4)]
    assert office.opening() == (4, math.inf)
    for permit in reversed(permits):
        gate.leave(permit)
    assert office.opening() == (0, 0)


def test_a_stalled_host_is_open_so_that_its_requests_can_fail() -> None:
    """Its pause is no reason to keep them."""
    office = Office()
    gate = office.serve()
    for _ in range(2):
        office.clock.advance(61)
        permit = gate.arrive()
        gate.record(permit, Outcome.REFUSED, None, 60)
        gate.leave(permit)
    assert gate.stalled
    assert gate.snapshot().paused_s == 60
    assert office.opening() == (0, 0)


def test_what_no_gate_holds_is_always_open_and_counted() -> None:
    """Until it has left the downloader."""
    office = Office()
    name = UNGATED + "a"
    office.send("bypass", name)
    assert office.opening(name) == (1, 0)
    assert office.dispatch.admits(name)
    assert office.opening("a") == (0, 0)
    assert "a" not in office.registry
    office.downloader.clear()
    office.dispatch.look_for_gone()
    assert office.opening(name) == (0, 0)


def test_what_never_arrives_is_found_out_and_told() -> None:
    """A cache answered one; the other is still on its way."""
    office = Office()
    office.send("cached")
    office.send("coming", "b")
    office.downloader.remove("cached")
    office.dispatch.look_for_gone()
    assert office.told == ["a"]
    assert office.opening() == (0, 0)
    assert office.opening("b") == (1, math.inf)


def test_it_is_found_out_also_while_others_are_sent() -> None:
    """Nobody has to ask: each request that is sent has the oldest looked at."""
    office = Office()
    for n in range(20):
        office.send(f"cached{n}", f"host{n}")
    office.downloader.clear()
    for n in range(10):
        office.send(f"new{n}", f"other{n}")
    assert set(office.told) == {f"host{n}" for n in range(20)}


def test_one_object_sent_twice_counts_once() -> None:
    """A spider may yield the same request again; its host must not stay closed for that."""
    office = Office()
    office.send("same")
    office.send("same")
    assert office.opening() == (1, math.inf)
    office.dispatch.arrived("same")
    assert office.opening() == (0, 0)


def test_the_gate_is_made_where_it_has_to_be_asked() -> None:
    """For a name that is about to be sent a request, not for one that only waits."""
    office = Office()
    office.opening("a")
    assert "a" not in office.registry
    assert office.dispatch.admits("a")
    assert "a" in office.registry
    office.registry.gate("a").refuse(10)
    assert not office.dispatch.admits("a")


def test_there_is_one_timer_and_the_earliest_time_wins() -> None:
    """Whichever queue waits; after it has run the next may be set; none is left at the end."""
    office = Office()
    office.dispatch.wake_at(110)
    office.dispatch.wake_at(105)
    office.dispatch.wake_at(107)
    assert office.clock.pending == 1
    office.clock.run_until(120)
    assert office.woken == [105]
    office.dispatch.wake_at(119)
    office.clock.advance(0)
    assert office.woken == [105, 120]
    office.dispatch.wake_at(130)
    office.dispatch.stop()
    assert office.clock.pending == 0
    assert repr(office.dispatch) == "<Dispatch sent=0 listeners=0>"
