"""What ``downloader.slots`` shows of gates: the truth under every key, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fakes import FakeClock, middle
from scrapy import Request

from scrapy_hostgate.controller import Law
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.pacer import Pace
from scrapy_hostgate.slotview import SlotTable, SlotView


def a_gate(key: str, clock: FakeClock, **pace: Any) -> Gate:
    return Gate(key, Law(), Pace(**pace), clock=clock, call_later=clock.call_later, uniform=middle)


class Town:
    """A table of views, and the requests that are in flight."""

    def __init__(self, max_aliases: int = 10) -> None:
        self.departed: set[Request] = set()
        self.slots: dict[Any, Any] = {}
        self.table = SlotTable(max_aliases, self.departed)

    def enter(self, gate: Gate, request: Request, slot_key: Any) -> Callable[[], None]:
        """Show ``request``; call what comes back when it leaves."""
        visit = self.table.enter(self.slots, gate, request, request.meta, slot_key)
        return lambda: self.table.leave(request, request.meta, visit)


def test_a_slot_name_shows_every_host_behind_it() -> None:
    """Room of all of them, the longest delay, and each request once."""
    clock, town = FakeClock(100.0), Town()
    gates = [a_gate("a.example", clock), a_gate("b.example", clock, delay_s=3.0, jitter=0.5)]
    requests = [Request(f"http://{gate.key}/") for gate in gates]
    leaving = [town.enter(gate, request, "mine") for gate, request in zip(gates, requests)]
    view = town.slots["mine"]
    assert view.gates == tuple(gates)
    assert view.active == set(requests)
    assert view.free_transfer_slots() == 4
    assert (view.delay, view.download_delay()) == (3.0, 3.0)
    assert view.randomize_delay
    assert {request for request, _ in view.queue} == set(requests)
    town.departed.add(requests[0])
    assert view.transferring == {requests[0]}
    assert [request for request, _ in view.queue] == [requests[1]]
    town.departed.clear()
    for leave in leaving:
        leave()
    assert not view.active
    assert not view.transferring
    assert "download_slot" not in requests[0].meta


def test_a_forgotten_host_leaves_the_names_that_others_share() -> None:
    """And takes with it those that showed nothing else."""
    clock, town = FakeClock(100.0), Town()
    slots, table = town.slots, town.table
    one, other = a_gate("a.example", clock), a_gate("b.example", clock)
    for gate, name in ((one, "shared"), (other, "shared"), (one, "own")):
        town.enter(gate, Request(f"http://{gate.key}/"), name)()
    shared = slots["shared"]
    table.forget(slots, one)
    assert sorted(slots) == ["b.example", "shared"]
    assert shared.gates == (other,)
    table.forget(slots, other)
    table.forget(slots, other)
    assert slots == {}
    assert (shared.concurrency, shared.delay, shared.jitter, shared.lastseen) == (1, 0.0, 0.0, 0.0)


def test_names_without_end_take_no_memory_without_end() -> None:
    """Beyond the bound the idle ones go; one in use stays, and so does somebody else's slot."""
    town = Town(2)
    slots, table = town.slots, town.table
    gate = a_gate("a.example", FakeClock(100.0))
    leave = town.enter(gate, Request("http://a.example/"), "busy")
    town.enter(gate, Request("http://a.example/"), "idle")()
    taken = slots["idle"] = object()
    town.enter(gate, Request("http://a.example/"), "new")()
    assert isinstance(slots["busy"], SlotView)
    assert slots["idle"] is taken
    assert isinstance(slots["new"], SlotView)
    leave()
    town.enter(gate, Request("http://a.example/"), "newer")()
    assert sorted(slots) == ["a.example", "idle", "newer"]
    table.forget(slots, gate)
    assert slots == {"idle": taken}


def test_what_cannot_be_a_key_is_none() -> None:
    """A list as download_slot: the request goes through its gate, and no slot is made of it."""
    town = Town()
    request = Request("http://a.example/", meta={"download_slot": ["odd"]})
    town.enter(a_gate("a.example", FakeClock(1.0)), request, ["odd"])()
    assert list(town.slots) == ["a.example"]
    assert request.meta == {"download_slot": ["odd"]}
    assert not town.table.owns(town.slots, ["odd"])


def test_an_empty_download_slot_is_as_it_was_afterwards() -> None:
    """The stamp is for listeners while the request is here, and no longer."""
    request = Request("http://a.example/", meta={"download_slot": None})
    leave = Town().enter(a_gate("a.example", FakeClock(1.0)), request, "a.example")
    assert request.meta["download_slot"] == "a.example"
    leave()
    assert request.meta == {"download_slot": None}


def test_a_stamp_that_somebody_has_changed_is_theirs() -> None:
    """A listener that sets another slot meanwhile is not undone."""
    request = Request("http://a.example/")
    leave = Town().enter(a_gate("a.example", FakeClock(1.0)), request, "a.example")
    request.meta["download_slot"] = "theirs"
    leave()
    assert request.meta["download_slot"] == "theirs"


def test_whoever_sets_a_view_can_only_tighten() -> None:
    """As AutoThrottle and others do: more concurrency is ignored, less than one is one."""
    clock = FakeClock(100.0)
    gate = a_gate("a.example", clock)
    view = SlotView("a.example", gate, set())
    view.concurrency = 9
    assert (view.concurrency, gate.limit) == (2, 2)
    view.concurrency = 0
    assert (view.concurrency, gate.limit) == (1, 1)
    view.delay = -1.0
    assert view.delay == 0.0
    view.delay = 2.5
    assert (view.delay, gate.pacer.spacing_s) == (2.5, 2.5)
    view.close()
    assert repr(view) == "SlotView(concurrency=1, delay=2.50)"
    assert str(view).startswith("<hostgate slot 'a.example' concurrency=1 delay=2.50 ")
