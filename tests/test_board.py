"""What is shown of all hosts at one moment: the board, its order, and its table."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from fakes import FakeClock, middle

from scrapy_hostgate.controller import Law
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.observe.board import (
    STATES,
    Board,
    HostRow,
    board_of,
    order,
    row_of,
    sum_up,
    survey,
)
from scrapy_hostgate.observe.table import duration, shortened, text_table, trend
from scrapy_hostgate.outcome import Outcome
from scrapy_hostgate.pacer import Pace

NOW = 1_000_000.0


def make_gate(clock: FakeClock, key: str, pace: Pace | None = None) -> Gate:
    return Gate(
        key, Law(), pace or Pace(), clock=clock, call_later=clock.call_later, uniform=middle
    )


def row(host: str = "host.example", **values: object) -> HostRow:
    return replace(HostRow(host, 2, 2, 4, 0), **values)  # type: ignore[arg-type]


def board(*rows: HostRow, age_s: float = 600.0) -> Board:
    refusals = sum(r.refusals for r in rows)
    return board_of(
        "crawl", sum_up(rows), rows, age_s=age_s, refusals=refusals, wall_clock=lambda: math.inf
    )


# -- rows and totals ----------------------------------------------------------------------------


def test_waiting_is_for_a_slot_or_for_a_token() -> None:
    """For a slot while all are taken; for a token while one is free but the clock says no."""
    clock = FakeClock()
    full, spaced = make_gate(clock, "full"), make_gate(clock, "spaced", Pace(rate=1.0))
    for gate in (full, spaced):
        for _ in range(5):
            gate.arrive()
    rows = [row_of(gate, clock.now) for gate in (full, spaced)]
    assert [(r.in_flight, r.waiting_for_slot, r.waiting_for_token) for r in rows] == [
        (2, 3, 0),
        (1, 0, 4),
    ]


def test_a_survey_counts_what_the_rows_show() -> None:
    """The quick way over all gates and the plain sum of their rows agree."""
    clock = FakeClock()
    gates = [make_gate(clock, f"host{n}") for n in range(6)]
    for number, gate in enumerate(gates):
        permits = [gate.arrive() for _ in range(number)]
        if number % 2:
            gate.record(permits[0], Outcome.REFUSED, None)
    totals, shown = survey(gates, clock.now)
    assert totals == sum_up(row_of(gate, clock.now) for gate in gates)
    assert (totals.hosts, totals.in_flight, totals.paused) == (6, 9, 3)
    assert set(shown) == set(gates)


def test_the_troubled_are_shown_before_the_busy_and_the_busy_before_the_rest() -> None:
    """Of many hosts only some have room."""
    clock = FakeClock()
    gates = [make_gate(clock, f"host{n}") for n in range(50)]
    permit = gates[7].arrive()
    gates[7].record(permit, Outcome.REFUSED, None)
    gates[7].leave(permit)
    gates[31].resize(1)
    gates[19].arrive()
    _, shown = survey(gates, clock.now, most=3)
    assert [gate.key for gate in shown] == ["host7", "host31", "host19"]


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({}, "ok"),
        ({"limit": 4}, "ok"),
        ({"penalty_s": 0.5}, "spaced"),
        ({"limit": 1, "reason": "recovered"}, "recovering"),
        ({"limit": 1, "reason": "slowed"}, "slowed"),
        ({"limit": 1, "reason": "refused"}, "collapsed"),
        ({"limit": 1, "reason": "refused", "paused_s": 3.0}, "paused"),
    ],
)
def test_a_state_is_one_word(values: dict[str, object], state: str) -> None:
    """The worst that is true."""
    assert row(**values).state == state
    assert state in STATES


def test_rows_are_in_order_of_trouble() -> None:
    """The longer paused first, then by state, then the busier, then by name."""
    rows = [
        row("f"),
        row("e", departures=5),
        row("d", in_flight=2),
        row("c", limit=1, reason="slowed"),
        row("b", paused_s=2.0),
        row("a", paused_s=900.0),
    ]
    assert [r.host for r in sorted(rows, key=order)] == ["a", "b", "c", "d", "e", "f"]


def test_a_board_survives_json() -> None:
    """That is how another process sees it."""
    told = board_of(
        "crawl",
        sum_up([row()]),
        [row(limits=((9.5, 2), (9.5, 1)), median_s=0.25)],
        age_s=1.5,
        wall_clock=lambda: NOW,
    )
    assert Board.from_json(json.loads(json.dumps(told.to_json()))) == told
    with pytest.raises(TypeError):
        Board.from_json({**told.to_json(), "surprise": 1})


# -- the table ----------------------------------------------------------------------------------


def test_the_table_says_it_all_in_eighty_columns() -> None:
    """Long names lose their middle, numbers stand below each other."""
    text = text_table(
        board(
            row("a-rather-long-subdomain.of-some.example.org", paused_s=899.0, limit=1,
                reason="refused", waiting_for_token=1234, median_s=12.3, refusals=54321),
            row("b.example", in_flight=2, waiting_for_slot=3, median_s=0.021),
        )
    )  # fmt: skip
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert (
        lines[0]
        == (
            "crawl: 2 hosts, 1 in trouble, 2 in flight, 1237 waiting, 54,321 refusals, after 10 min"
        )[:80]
    )
    assert lines[2:5] == [
        "host                     state   flight  wait   pause  median  refused  limit",
        "a-rather-lo…example.org  paused     0/1  1234  15 min    12 s    54321  ▁▁▁▁▁▁▁▁",
        "b.example                           2/2     3           21 ms        0  ▃▃▃▃▃▃▃▃",
    ]


def test_hosts_that_have_no_room_are_counted() -> None:
    """Nobody should think that these were all."""
    assert "and 3 more hosts" in text_table(board(*[row(f"h{n}") for n in range(5)]), most=2)


def test_no_host_is_a_table_too() -> None:
    """Of a crawl that has not begun."""
    assert text_table(board()).startswith("crawl: 0 hosts, 0 in trouble, 0 in flight")


def test_the_trend_shows_a_dip_however_short() -> None:
    """Each bar is the lowest limit of its stretch; before the first change it is what changed."""
    dipped = row(limit=2, limits=((45.0, 4), (45.0, 1), (44.0, 2)))
    assert trend(dipped, 80.0) == "███▁▃▃▃▃"
    assert trend(row(limit=4), 80.0) == "████████"
    assert trend(row(limit=1, ceiling=1), 80.0) == "▁▁▁▁▁▁▁▁"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0204, "20 ms"),
        (0.9996, "1.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (99.4, "99 s"),
        (99.6, "2 min"),
        (5969, "99 min"),
        (5971, "2 h"),
        (360_000, "100 h"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_both_ends_of_a_long_name_stay() -> None:
    assert shortened("abcdefghij", 10) == "abcdefghij"
    assert shortened("abcdefghij", 7) == "abc…hij"
