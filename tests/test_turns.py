"""Whose turn is it: fewest in use first, in turns among equals, nobody before its time."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scrapy_hostgate.turns import Turns

PARKED = math.inf


class Hosts:
    """What a test says of each host: places in use, and when it opens."""

    def __init__(self, **said: tuple[int, float]) -> None:
        self.said = dict(said)
        self.asked: Counter[str] = Counter()
        self.turns = Turns(self._opening)
        for name in said:
            self.turns.put(name, 0.0)

    def _opening(self, name: str, now: float) -> tuple[int, float]:
        self.asked[name] += 1
        return self.said[name]

    def serve(self, now: float = 0.0) -> str | None:
        """Send the first one a request, as a queue does."""
        name = self.turns.first(now)
        if name is not None:
            used, at = self.said[name]
            self.turns.drop(name)
            self.said[name] = (used + 1, at)
            self.turns.put(name, now)
        return name


def test_equals_take_turns() -> None:
    """Three hosts with nothing in use: each once before any goes twice."""
    hosts = Hosts(a=(0, 0), b=(0, 0), c=(0, 0))
    assert [hosts.serve() for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]


def test_who_uses_less_goes_first() -> None:
    """A host that has two in use waits for those that have none and one."""
    hosts = Hosts(busy=(2, 0), idle=(0, 0), one=(1, 0))
    assert [hosts.serve() for _ in range(4)] == ["idle", "one", "idle", "busy"]


def test_who_comes_down_goes_before_who_has_more() -> None:
    """Told that a request has ended, the host is placed by what it uses now."""
    hosts = Hosts(a=(2, 0), b=(1, 0))
    hosts.said["a"] = (0, 0)
    assert hosts.turns.put("a", 0.0)
    assert hosts.serve() == "a"


def test_being_told_of_again_does_not_lose_a_turn() -> None:
    """An event that changes nothing leaves the order as it is."""
    hosts = Hosts(a=(0, 0), b=(0, 0))
    hosts.turns.put("a", 0.0)
    assert hosts.serve() == "a"


def test_nobody_goes_before_its_time() -> None:
    """A paused host goes when its time has come, and is the last of its equals then."""
    hosts = Hosts(paused=(0, 5), open=(0, 0))
    assert hosts.turns.next_due() == 5
    assert [hosts.serve(4.9) for _ in range(2)] == ["open", "open"]
    hosts.said["open"] = (0, 0)
    hosts.turns.put("open", 4.9)
    assert [hosts.serve(5.0) for _ in range(2)] == ["open", "paused"]


def test_a_time_that_moved_is_waited_for_again() -> None:
    """The pause was lengthened meanwhile: found out when the first time has come."""
    hosts = Hosts(a=(0, 5))
    hosts.said["a"] = (0, 9)
    assert hosts.serve(5.0) is None
    assert hosts.turns.next_due() == 9
    assert hosts.serve(9.0) == "a"


def test_what_closes_tells_nobody_and_is_found_out() -> None:
    """A host that was open when placed is asked once more before it goes."""
    hosts = Hosts(a=(0, 0), b=(0, 0))
    hosts.said["a"] = (0, PARKED)
    assert hosts.serve() == "b"
    assert hosts.turns.next_due() is None
    hosts.said["a"] = (0, 0)
    hosts.turns.put("a", 0.0)
    assert hosts.serve() == "a"


def test_who_needs_a_level_that_is_not_there_yet_is_still_found() -> None:
    """Its use has gone up since it was placed, and nobody else is there."""
    hosts = Hosts(a=(0, 0))
    hosts.said["a"] = (7, 0)
    assert hosts.serve() == "a"
    hosts.said["a"] = (700, 0)
    assert hosts.serve() == "a"


def test_who_is_dropped_is_gone() -> None:
    """From the ready, from the timed, from nowhere; the same name may come back."""
    hosts = Hosts(a=(0, 0), b=(0, 5), c=(0, PARKED))
    for name in "abc":
        hosts.turns.drop(name)
    assert hosts.serve(10.0) is None
    assert hosts.turns.next_due() is None
    hosts.turns.put("b", 0.0)
    assert hosts.serve(10.0) == "b"
    assert repr(hosts.turns) == "<Turns ready=1 timed=0>"


def test_a_pause_lengthened_for_ever_keeps_no_trail() -> None:
    """A thousand changes of one host's time leave about one entry."""
    hosts = Hosts(a=(0, 5))
    for at in range(6, 1006):
        hosts.said["a"] = (0, at)
        hosts.turns.put("a", 0.0)
    assert len(hosts.turns._times) <= 100
    assert hosts.turns.next_due() == 1005


def test_a_choice_looks_at_few_however_many_there_are() -> None:
    """Ten thousand open hosts and as many paused: a hundred choices look at about two each."""
    said = {f"open{n}": (0, 0.0) for n in range(10_000)}
    said |= {f"paused{n}": (0, 1000.0 + n) for n in range(10_000)}
    hosts = Hosts(**said)
    hosts.asked.clear()
    for _ in range(100):
        hosts.serve()
    assert hosts.asked.total() <= 400


states = st.tuples(st.integers(0, 40), st.sampled_from([0.0, 1.0, 2.0, 3.0, PARKED]))
steps = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["set", "tell", "drop", "later"]), states)
)


@given(steps)
def test_whatever_happens_the_first_is_open_and_uses_least(
    steps: list[tuple[str, str, tuple[int, float]]],
) -> None:
    """Never one that is closed; never ``None`` while one that was told of is open; none forgotten
    that uses less than the chosen one, if its last change was told."""
    hosts = Hosts(a=(0, 0.0), b=(0, 0.0), c=(0, 1.0), d=(0, PARKED))
    now, told = 0.0, dict(hosts.said)
    for name, step, state in steps:
        if step == "later":
            now += 0.5
        elif step == "drop":
            hosts.turns.drop(name)
            told.pop(name, None)
        else:
            hosts.said[name] = state
            if step == "tell":
                hosts.turns.put(name, now)
                told[name] = state
        first = hosts.turns.first(now)
        sure = [n for n in told if told[n] == hosts.said[n] and hosts.said[n][1] <= now]
        if first is None:
            assert sure == []
        else:
            assert hosts.said[first][1] <= now
            used = min(hosts.said[first][0], 31)
            assert all(used <= min(hosts.said[n][0], 31) for n in sure)
