"""Crawl-delay and Request-rate, as the parsers that Scrapy brings understand a stranger's file."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from urllib.robotparser import RobotFileParser

import pytest
from fakes import FakeClock, middle
from hypothesis import given, settings
from hypothesis import strategies as st
from protego import Protego
from scrapy.robotstxt import ProtegoRobotParser, PythonRobotParser, RobotParser

from scrapy_hostgate.controller import Law
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.pacer import Pace
from scrapy_hostgate.robots import crawl_delay_of

Parse = Callable[[str], Any]


def with_protego(text: str) -> Any:
    return Protego.parse(text)


def with_python(text: str) -> Any:
    parser = RobotFileParser()
    parser.parse(text.splitlines())
    return parser


def with_scrapys_protego(text: str) -> Any:
    return ProtegoRobotParser(text.encode(), None)


def with_scrapys_python(text: str) -> Any:
    return PythonRobotParser(text.encode(), None)


hears_crawl_delay = pytest.mark.skipif(
    not hasattr(RobotParser, "crawl_delay"),
    reason="Scrapy's own parsers tell a Crawl-delay from 2.18 on",
)
BARE = [with_protego, with_python]
SCRAPYS = [with_scrapys_protego, with_scrapys_python]
on_every_parser = pytest.mark.parametrize(
    "parse", [*BARE, *(pytest.param(parse, marks=hears_crawl_delay) for parse in SCRAPYS)]
)

TWO_AGENTS = """
User-agent: gatebot
Crawl-delay: 3
Disallow: /private

User-agent: *
Crawl-delay: 7
"""


@on_every_parser
def test_a_crawl_delay_is_told_in_seconds(parse: Parse) -> None:
    """``Crawl-delay: 2`` for everybody is two seconds for us."""
    assert crawl_delay_of(parse("User-agent: *\nCrawl-delay: 2"), "gatebot") == 2.0


@on_every_parser
def test_the_crawl_delay_is_that_of_the_user_agent_in_use(parse: Parse) -> None:
    """Our own group if there is one, else the one for everybody."""
    robots = parse(TWO_AGENTS)
    assert crawl_delay_of(robots, "gatebot") == 3.0
    assert crawl_delay_of(robots, "otherbot") == 7.0


@pytest.mark.parametrize("parse", [pytest.param(p, marks=hears_crawl_delay) for p in SCRAPYS])
def test_the_user_agent_may_be_bytes(parse: Parse) -> None:
    """A request's User-Agent header is bytes, and not always ASCII."""
    robots = parse(TWO_AGENTS)
    assert crawl_delay_of(robots, b"gatebot") == 3.0
    assert crawl_delay_of(robots, b"gatebot/1.0 (+http://example.org)") == 3.0
    assert crawl_delay_of(robots, b"caf\xc3\xa9bot") == 7.0


@pytest.mark.parametrize("parse", [*BARE, *SCRAPYS])
def test_a_file_without_a_delay_asks_for_nothing(parse: Parse) -> None:
    """No delay, no group for us, an empty file, a file that is none: 0."""
    for text in (
        "",
        "User-agent: *\nDisallow: /private",
        "User-agent: otherbot\nCrawl-delay: 5",
        "<html><body>not found</body></html>",
    ):
        assert crawl_delay_of(parse(text), "gatebot") == 0.0


@pytest.mark.parametrize("parse", [*BARE, *SCRAPYS])
@pytest.mark.parametrize(("rate", "seconds"), [("1/10", 10.0), ("5/10", 2.0), ("10/5", 0.5)])
def test_a_request_rate_is_a_delay_too(parse: Parse, rate: str, seconds: float) -> None:
    """Five pages in ten seconds are one every two."""
    robots = parse(f"User-agent: *\nRequest-rate: {rate}")
    assert crawl_delay_of(robots, "gatebot") == seconds


@pytest.mark.parametrize("parse", [with_protego, with_scrapys_protego])
def test_a_request_rate_may_have_a_unit_and_hours(parse: Parse) -> None:
    """Ten a minute are one every six seconds; at which hours does not matter, it only slows."""
    assert crawl_delay_of(parse("User-agent: *\nRequest-rate: 10/1m"), "gatebot") == 6.0
    hours = parse("User-agent: *\nRequest-rate: 1/10 1800-1900")
    assert crawl_delay_of(hours, "gatebot") == 10.0


@on_every_parser
@pytest.mark.parametrize(("delay", "rate"), [("4", "1/2"), ("2", "1/4")])
def test_of_delay_and_rate_the_slower_holds(parse: Parse, delay: str, rate: str) -> None:
    """A host that says both means both."""
    robots = parse(f"User-agent: *\nCrawl-delay: {delay}\nRequest-rate: {rate}")
    assert crawl_delay_of(robots, "gatebot") == 4.0


HOSTILE = [
    *("0", "-1", "-0.0", "nan", "NaN", "inf", "-inf", "Infinity", "1e400", "0x10", "5s", "soon"),
    *("", " ", "1,5", "1_0", "\x00", "{}", "٣", "½", "9" * 400, "1" + "0" * 20),
]


@on_every_parser
@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_delay_is_finite_and_not_negative(parse: Parse, value: str) -> None:
    """Whatever it says, what comes out is a wait that a clock can be set to."""
    delay_s = crawl_delay_of(parse(f"User-agent: *\nCrawl-delay: {value}"), "gatebot")
    assert math.isfinite(delay_s)
    assert delay_s >= 0


@pytest.mark.parametrize("parse", [*BARE, *SCRAPYS])
@pytest.mark.parametrize(
    "value",
    [*HOSTILE, "1/0", "0/1", "0/0", "-1/5", "5/-1", "/", "1/", "1/2/3", f"1/{'9' * 400}"],
)
def test_a_hostile_rate_is_finite_and_not_negative(parse: Parse, value: str) -> None:
    """Division by nothing included."""
    delay_s = crawl_delay_of(parse(f"User-agent: *\nRequest-rate: {value}"), "gatebot")
    assert math.isfinite(delay_s)
    assert delay_s >= 0


class Telling:
    """A parser that says what it is told to say."""

    def __init__(self, delay: object = None, rate: object = None) -> None:
        self.crawl_delay = lambda user_agent: delay
        self.request_rate = lambda user_agent: rate


@pytest.mark.parametrize(
    "delay", [-1, -0.5, 0, math.nan, math.inf, -math.inf, "5", b"5", [5], {}, 5j, object(), 10**400]
)
def test_what_a_parser_makes_up_is_nothing(delay: object) -> None:
    """A user's own parser may return anything; only a finite number above zero counts."""
    assert crawl_delay_of(Telling(delay=delay), "gatebot") == 0.0


@pytest.mark.parametrize(
    ("requests", "seconds"),
    [(0, 1), (-1, 5), (1, -5), (math.nan, 1), (1, math.nan), (1, math.inf), ("1", "5"), (1, None)],
)
def test_a_rate_that_a_parser_makes_up_is_nothing(requests: object, seconds: object) -> None:
    """Likewise for a rate, whose parts are the parser's own."""
    rate = SimpleNamespace(requests=requests, seconds=seconds)
    assert crawl_delay_of(Telling(rate=rate), "gatebot") == 0.0
    assert crawl_delay_of(Telling(delay=3, rate=rate), "gatebot") == 3.0


class Raising:
    """A parser that fails at everything it is asked."""

    def crawl_delay(self, user_agent: object) -> float:
        raise RuntimeError("no delay today")

    def request_rate(self, user_agent: object) -> float:
        raise RuntimeError("no rate today")


class RaisingAtItsLibrary(Raising):
    """One that keeps its library's parser in ``rp``, as Scrapy's do, and fails even there."""

    @property
    def rp(self) -> object:
        raise RuntimeError("not parsed yet")


@pytest.mark.parametrize("parser", [Raising(), RaisingAtItsLibrary(), object(), None])
def test_a_parser_that_raises_asks_for_nothing(parser: object) -> None:
    """Third-party code that reads a stranger's file must not end the crawl."""
    assert crawl_delay_of(parser, "gatebot") == 0.0


def test_half_a_parser_is_heard_with_its_other_half() -> None:
    """One that fails at the delay is still asked for the rate, and the other way round."""

    class NoDelay(Raising):
        def request_rate(self, user_agent: object) -> Any:
            return SimpleNamespace(requests=1, seconds=4)

    class NoRate(Raising):
        def crawl_delay(self, user_agent: object) -> float:
            return 3.0

    assert crawl_delay_of(NoDelay(), "gatebot") == 4.0
    assert crawl_delay_of(NoRate(), "gatebot") == 3.0


def departures_with(asked_s: float, **pace: Any) -> list[float]:
    """When three requests may leave a gate that hears of ``asked_s`` at 0."""
    clock = FakeClock()
    gate = Gate(
        "host.example",
        Law(),
        Pace(**pace),
        clock=clock,
        call_later=clock.call_later,
        uniform=middle,
    )
    gate.crawl_delay(asked_s)
    times = []
    for _ in range(3):
        clock.run_until(gate.pacer.next_departure(clock.now))
        gate.leave(gate.arrive())
        times.append(clock.now)
    return times


def test_a_long_crawl_delay_is_crawled_slowly_and_never_skipped() -> None:
    """DESIGN 5: an hour is kept; ten million seconds are cut to a day."""
    assert departures_with(3600) == [0, 3600, 7200]
    assert departures_with(1e7) == [0, 86_400, 172_800]


def test_a_crawl_delay_only_ever_slows() -> None:
    """A delay of the project's that is longer stays in force."""
    assert departures_with(2, delay_s=5, jitter=0) == [0, 5, 10]
    assert departures_with(2, rate=0.25) == [0, 4, 8]


@given(
    text=st.lists(
        st.sampled_from(
            ["User-agent: *", "User-agent: gatebot", "Crawl-delay:", "Request-rate:", "\n", " "]
        )
        | st.text(max_size=12)
        | st.floats().map(str)
        | st.tuples(st.integers(), st.integers()).map(lambda pair: f"{pair[0]}/{pair[1]}"),
        max_size=12,
    ).map(" ".join),
    agent=st.text(max_size=12) | st.binary(max_size=12),
)
@settings(deadline=None, max_examples=200)
def test_no_robots_txt_can_do_harm(text: str, agent: str | bytes) -> None:
    """No exception, and after the cap no wait that is negative, NaN or too long."""
    delay_s = crawl_delay_of(with_scrapys_protego(text.encode("utf-8", "ignore").decode()), agent)
    assert math.isfinite(delay_s)
    assert delay_s >= 0
    first, second, _ = departures_with(delay_s)
    assert 0 <= second - first <= 900
