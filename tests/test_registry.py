"""Host key to gate: made late, kept while it matters, forgotten otherwise."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
from fakes import FakeClock, middle

from scrapy_hostgate.controller import Law
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.outcome import Outcome
from scrapy_hostgate.pacer import Pace
from scrapy_hostgate.registry import Registry


class WeakGate(Gate):
    """One that can be watched."""

    __slots__ = ("__weakref__",)


class Town:
    """A registry of hosts on a fake clock."""

    def __init__(self, max_hosts: int, pace: Pace = Pace()) -> None:  # noqa: B008 - frozen
        self.clock = FakeClock()
        self.pace = pace
        self.kind: type[Gate] = Gate
        self.made: list[str] = []
        self.evicted: list[str] = []
        self.registry = Registry(
            self._make,
            max_hosts=max_hosts,
            clock=self.clock,
            on_evict=lambda gate: self.evicted.append(gate.key),
        )

    def _make(self, key: str) -> Gate:
        self.made.append(key)
        return self.kind(
            key,
            Law(),
            self.pace,
            clock=self.clock,
            call_later=self.clock.call_later,
            uniform=middle,
        )

    def visit(self, *keys: str) -> None:
        for key in keys:
            self.registry.gate(key)

    @property
    def keys(self) -> list[str]:
        return [gate.key for gate in self.registry]


def test_a_gate_is_made_when_first_asked_for() -> None:
    """Once for each key, and the same one from then on."""
    town = Town(10)
    assert town.made == []
    first = town.registry.gate("a")
    assert town.registry.gate("a") is first
    assert town.registry.gate("b") is not first
    assert town.made == ["a", "b"]
    assert len(town.registry) == 2


def test_looking_makes_nothing() -> None:
    """``get`` and ``in`` only look."""
    town = Town(10)
    assert town.registry.get("a") is None
    assert "a" not in town.registry
    assert town.made == []
    gate = town.registry.gate("a")
    assert town.registry.get("a") is gate
    assert "a" in town.registry


def test_the_longest_unused_is_forgotten_first() -> None:
    """At three, the fourth host takes the place of the one not asked for longest; it is told."""
    town = Town(3)
    town.visit("a", "b", "c", "a", "d")
    assert town.evicted == ["b"]
    assert town.keys == ["c", "a", "d"]
    town.visit("b")
    assert town.evicted == ["b", "c"]
    assert town.made == ["a", "b", "c", "d", "b"]


def test_looking_is_not_use() -> None:
    """A telnet console that looks at every host keeps none alive."""
    town = Town(2)
    town.visit("a", "b")
    town.registry.get("a")
    town.visit("c")
    assert town.evicted == ["a"]


def in_use(gate: Gate) -> None:
    gate.arrive()


def waited_at(gate: Gate) -> None:
    gate.pacer.pause(0, 1000)
    gate.arrive()


def paused(gate: Gate) -> None:
    gate.pacer.pause(0, 1000)


def collapsed(gate: Gate) -> None:
    permit = gate.arrive()
    gate.record(permit, Outcome.REFUSED, None, None)
    gate.leave(permit)


def shrunk(gate: Gate) -> None:
    for _ in range(3):
        permit = gate.arrive()
        gate.record(permit, Outcome.SLOW, None)
        gate.leave(permit)


def resized(gate: Gate) -> None:
    gate.resize(3)


def spaced(gate: Gate) -> None:
    gate.pacer.pace = Pace(delay_s=1000, jitter=0)
    gate.leave(gate.arrive())


def told_to_crawl_slowly(gate: Gate) -> None:
    gate.crawl_delay(500)
    gate.leave(gate.arrive())


@pytest.mark.parametrize(
    "trouble",
    [in_use, waited_at, paused, collapsed, shrunk, resized, spaced, told_to_crawl_slowly],
    ids=lambda trouble: trouble.__name__,
)
def test_what_matters_is_never_forgotten(trouble: Callable[[Gate], None]) -> None:
    """In use, paused, spaced, shrunk, refused, within a Crawl-delay: it outlives a hundred."""
    town = Town(5)
    trouble(town.registry.gate("kept"))
    town.clock.advance(60)
    town.visit(*(f"host{n}" for n in range(100)))
    assert "kept" not in town.evicted
    assert "kept" in town.registry
    assert len(town.registry) == 5


def learn(gate: Gate) -> None:
    for _ in range(50):
        permit = gate.arrive()
        gate.record(permit, Outcome.OK, 0.1)
        gate.leave(permit)


def test_the_least_telling_are_forgotten_first() -> None:
    """A host with a baseline outlives any number of those that were seen once; among hosts that
    have one, the longest unused goes first."""
    town = Town(3)
    for name in ("first", "second"):
        learn(town.registry.gate(name))
    town.visit(*(f"once{n}" for n in range(20)))
    assert [name for name in town.evicted if not name.startswith("once")] == []
    assert set(town.keys) == {"first", "second", "once19"}
    learn(town.registry.gate("once19"))
    town.visit("first", "new")
    assert town.evicted[-1] == "second"
    assert set(town.keys) == {"first", "once19", "new"}


def test_a_forgotten_gate_is_freed_at_once() -> None:
    """Not when cycles are collected: in a broad crawl that would be thousands of gates later."""
    town = Town(1)
    town.kind = WeakGate
    gone = weakref.ref(town.registry.gate("a"))
    gc.disable()
    try:
        town.visit("b")
        assert town.evicted == ["a"]
        assert gone() is None
    finally:
        gc.enable()


def test_a_pause_that_is_over_is_forgotten() -> None:
    """It matters while it runs."""
    town = Town(1)
    paused(town.registry.gate("a"))
    town.visit("b")
    assert town.evicted == []
    town.clock.run_until(1000)
    town.visit("c")
    assert set(town.evicted) == {"a", "b"}


def test_the_table_is_bounded_otherwise() -> None:
    """Five thousand idle hosts: never more than the maximum, all others told of."""
    town = Town(100)
    for n in range(5000):
        town.visit(f"host{n}")
        assert len(town.registry) <= 100
    assert len(town.evicted) == 4900


def test_hosts_in_trouble_may_exceed_the_bound_and_it_comes_back() -> None:
    """Thirty in use at a maximum of ten: all kept; given back, new hosts take their places."""
    town = Town(10)
    permits = []
    for n in range(30):
        gate = town.registry.gate(f"busy{n}")
        permits.append((gate, gate.arrive()))
    assert len(town.registry) == 30
    assert town.evicted == []
    for gate, permit in permits:
        gate.leave(permit)
    town.visit(*(f"host{n}" for n in range(10)))
    assert len(town.registry) == 10


def test_making_room_does_not_look_at_the_whole_table() -> None:
    """With a thousand hosts in trouble a new one costs a look at twenty of them."""
    town = Town(1000)
    looked: list[str] = []

    class Watched(Gate):
        __slots__ = ()

        def forgettable(self, now: float) -> bool:
            looked.append(self.key)
            return False

    def make(key: str) -> Gate:
        return Watched(
            key,
            Law(),
            Pace(),
            clock=town.clock,
            call_later=town.clock.call_later,
            uniform=middle,
        )

    town.registry._make_gate = make
    town.visit(*(f"host{n}" for n in range(1001)))
    assert 0 < len(looked) <= 20


def test_the_state_is_readable_in_one_line() -> None:
    """How many of how many."""
    town = Town(10)
    town.visit("a", "b")
    assert repr(town.registry) == "<Registry 2/10 hosts>"
