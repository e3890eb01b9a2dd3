"""What ``downloader.slots`` shows of gates: the truth under every key, in bounded memory."""

from __future__ import annotations

from typing import Any

from fakes import FakeClock, middle
from scrapy import Request

from scrapy_hostgate.controller import Law
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.pacer import Pace
from scrapy_hostgate.slotview import SlotTable, SlotView


def a_gate(key: str, clock: FakeClock, **pace: Any) -> Gate:
    return Gate(key, Law(), Pace(**pace), clock=clock, call_later=clock.call_later, uniform=middle)


def test_a_slot_name_shows_every_host_behind_it() -> None:
    """Room of all of them, the longest delay, and each request once."""
    clock, slots, table = FakeClock(100.0), {}, SlotTable(10)
    gates = [a_gate("a.example", clock), a_gate("b.example", clock, delay_s=3.0, jitter=0.5)]
    requests = [Request(f"http://{gate.key}/") for gate in gates]
    visits = [table.enter(slots, gate, request, "mine") for gate, request in zip(gates, requests)]
    view = slots["mine"]
    assert view.gates == tuple(gates)
    assert view.active == set(requests)
    assert view.free_transfer_slots() == 4
    assert (view.delay, view.download_delay()) == (3.0, 3.0)
    assert view.randomize_delay
    assert {request for request, _ in view.queue} == set(requests)
    visits[0].departed()
    assert [request for request, _ in view.queue] == [requests[1]]
    visits[0].landed()
    for visit in visits:
        visit.leave()
    assert not view.active
    assert not view.transferring
    assert "download_slot" not in requests[0].meta


def test_a_forgotten_host_leaves_the_names_that_others_share() -> None:
    """And takes with it those that showed nothing else."""
    clock, slots, table = FakeClock(100.0), {}, SlotTable(10)
    one, other = a_gate("a.example", clock), a_gate("b.example", clock)
    for gate, name in ((one, "shared"), (other, "shared"), (one, "own")):
        table.enter(slots, gate, Request(f"http://{gate.key}/"), name).leave()
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
    clock, slots, table = FakeClock(100.0), {}, SlotTable(2)
    gate = a_gate("a.example", clock)
    busy = table.enter(slots, gate, Request("http://a.example/"), "busy")
    table.enter(slots, gate, Request("http://a.example/"), "idle").leave()
    taken = slots["idle"] = object()
    table.enter(slots, gate, Request("http://a.example/"), "new").leave()
    assert isinstance(slots["busy"], SlotView)
    assert slots["idle"] is taken
    assert isinstance(slots["new"], SlotView)
    busy.leave()
    table.enter(slots, gate, Request("http://a.example/"), "newer").leave()
    assert sorted(slots) == ["a.example", "idle", "newer"]
    table.forget(slots, gate)
    assert slots == {"idle": taken}


def test_what_cannot_be_a_key_is_none() -> None:
    """A list as download_slot: the request goes through its gate, and no slot is made of it."""
    slots: dict[Any, Any] = {}
    table = SlotTable(2)
    request = Request("http://a.example/", meta={"download_slot": ["odd"]})
    table.enter(slots, a_gate("a.example", FakeClock(1.0)), request, ["odd"]).leave()
    assert list(slots) == ["a.example"]
    assert request.meta == {"download_slot": ["odd"]}
    assert not table.owns(slots, ["odd"])


def test_an_empty_download_slot_is_as_it_was_afterwards() -> None:
    """The stamp is for listeners while the request is here, and no longer."""
    slots: dict[Any, Any] = {}
    request = Request("http://a.example/", meta={"download_slot": None})
    gate = a_gate("a.example", FakeClock(1.0))
    visit = SlotTable(2).enter(slots, gate, request, "a.example")
    assert request.meta["download_slot"] == "a.example"
    visit.leave()
    assert request.meta == {"download_slot": None}


def test_a_stamp_that_somebody_has_changed_is_theirs() -> None:
    """A listener that sets another slot meanwhile is not undone."""
    request = Request("http://a.example/")
    visit = SlotTable(2).enter({}, a_gate("a.example", FakeClock(1.0)), request, "a.example")
    request.meta["download_slot"] = "theirs"
    visit.leave()
    assert request.meta["download_slot"] == "theirs"


def test_whoever_sets_a_view_can_only_tighten() -> None:
    """As AutoThrottle and others do: more concurrency is ignored, less than one is one."""
    clock = FakeClock(100.0)
    gate = a_gate("a.example", clock)
    view = SlotView("a.example", gate)
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
