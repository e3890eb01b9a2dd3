"""What a host announces in its headers and the wait that comes of it, hostile values included."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from fakes import FakeClock, middle
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scrapy_hostgate.controller import Law
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.outcome import Outcome
from scrapy_hostgate.pacer import Pace
from scrapy_hostgate.quota import Quota, parse_quotas
from scrapy_hostgate.retry_after import parse_retry_after

# Thu, 28 May 2026 20:26:40 GMT
NOW = 1_780_000_000
CAP_S = 900.0
# The pause of a first refusal that asks for nothing, with a draw from the middle.
BACKOFF_S = 1.0

Headers = dict[str, str]


def quotas(headers: Mapping[str, str]) -> list[Quota]:
    """What is read from headers, whose names may be spelt as in HTTP."""
    low = {name.lower(): value for name, value in headers.items()}
    return parse_quotas(low, answered_s=NOW)


def gate_on(clock: FakeClock, **pace: float) -> Gate:
    return Gate(
        "host.example",
        Law(),
        Pace(max_pause_s=CAP_S, **pace),  # type: ignore[arg-type]
        clock=clock,
        call_later=clock.call_later,
        uniform=middle,
    )


def wait_after(headers: Mapping[str, str], *, answered_s: float = NOW) -> float:
    """Seconds until the next departure after one answer; a refusal if it has a Retry-After."""
    low = {name.lower(): value for name, value in headers.items()}
    clock = FakeClock(5000.0)
    gate = gate_on(clock)
    permit = gate.arrive()
    if "retry-after" in low:
        asked_s = parse_retry_after(low["retry-after"], wall_now_s=answered_s, date=low.get("date"))
        gate.record(permit, Outcome.REFUSED, None, asked_s)
    else:
        gate.record(permit, Outcome.OK, 0.1)
    gate.announced(permit, parse_quotas(low, answered_s=answered_s))
    gate.leave(permit)
    return gate.pacer.next_departure(clock.now) - clock.now


# -- the IETF fields ------------------------------------------------------------------------------


def test_the_list_form_is_read() -> None:
    """draft-ietf-httpapi-ratelimit-headers of today: a name, ``r`` left, ``t`` seconds to go."""
    assert quotas({"RateLimit": '"default";r=50;t=30'}) == [Quota(50, 30)]
    assert quotas({"RateLimit": "default;r=0;t=30"}) == [Quota(0, 30)]
    assert quotas({"RateLimit": '"default"; r=3; t=9; pk=:cHJvamVjdA==:'}) == [Quota(3, 9)]


def test_each_item_of_the_list_is_a_quota_of_its_own() -> None:
    """A host may have a limit for the burst and one for the day."""
    headers = {"RateLimit": '"burst";r=0;t=3, "day";r=900;t=5000'}
    assert quotas(headers) == [Quota(0, 3), Quota(900, 5000)]
    assert wait_after(headers) == 3


def test_a_policy_tells_the_limit_and_the_window_of_its_name() -> None:
    """``q`` of the policy is the limit; its ``w`` is the longest a missing ``t`` can be."""
    policy = '"burst";q=100;w=60,"day";q=1000;w=86400'
    headers = {"RateLimit-Policy": policy, "RateLimit": '"burst";r=20;t=30'}
    assert quotas(headers) == [Quota(20, 30, 100)]
    assert quotas({"RateLimit-Policy": policy, "RateLimit": '"day";r=2'}) == [Quota(2, 86400, 1000)]
    assert quotas({"RateLimit-Policy": policy, "RateLimit": '"other";r=2;t=4'}) == [Quota(2, 4)]


def test_without_any_time_there_is_nothing_to_wait_for() -> None:
    """Neither ``t`` nor a policy that knows the window; and no policy alone."""
    assert quotas({"RateLimit": '"default";r=0'}) == []
    assert quotas({"RateLimit-Policy": '"default";q=10;w=60'}) == []


def test_the_name_of_a_policy_may_be_any_text() -> None:
    """An equals sign, a comma or a semicolon in a quoted name belongs to the name."""
    for name in ("a,b", "a;b", "plan=free"):
        assert quotas({"RateLimit": f'"{name}";r=0;t=30'}) == [Quota(0, 30)], name


def test_the_dictionary_form_of_draft_7_is_read() -> None:
    """``limit=…, remaining=…, reset=…`` in one field, with or without parameters."""
    assert quotas({"RateLimit": "limit=100, remaining=50, reset=30"}) == [Quota(50, 30, 100)]
    assert quotas({"RateLimit": "remaining=0,reset=7"}) == [Quota(0, 7)]
    assert quotas({"RateLimit": "limit=10;w=60, remaining=2, reset=7"}) == [Quota(2, 7, 10)]
    both = {"RateLimit": "limit=100, remaining=50, reset=30", "RateLimit-Policy": "100;w=60"}
    assert quotas(both) == [Quota(50, 30, 100)]


def test_half_a_dictionary_is_nothing() -> None:
    """Both what is left and until when are needed."""
    assert quotas({"RateLimit": "limit=100, remaining=0"}) == []
    assert quotas({"RateLimit": "limit=100, reset=30"}) == []


def test_the_three_fields_of_the_early_drafts_are_read() -> None:
    """``RateLimit-Limit`` may carry policies behind its number, which is the limit."""
    headers = {
        "RateLimit-Limit": "100, 100;w=60, 1000;w=3600",
        "RateLimit-Remaining": "20",
        "RateLimit-Reset": "30",
    }
    assert quotas(headers) == [Quota(20, 30, 100)]


# -- the families with an X -----------------------------------------------------------------------

FAMILIES = ("RateLimit", "X-RateLimit", "X-Rate-Limit")
on_every_family = pytest.mark.parametrize("family", FAMILIES)


@on_every_family
def test_each_family_is_read_on_its_own(family: str) -> None:
    """Limit, Remaining and Reset, the limit being optional."""
    headers = {f"{family}-Remaining": "4", f"{family}-Reset": "30"}
    assert quotas(headers) == [Quota(4, 30)]
    assert quotas({**headers, f"{family}-Limit": "60"}) == [Quota(4, 30, 60)]
    for name in headers:
        assert quotas({name: headers[name]}) == []


@on_every_family
def test_families_are_not_mixed(family: str) -> None:
    """What is left of one and the reset of another are no quota."""
    other = FAMILIES[FAMILIES.index(family) - 1]
    assert quotas({f"{family}-Remaining": "0", f"{other}-Reset": "30"}) == []


@on_every_family
@pytest.mark.parametrize(
    "reset",
    [
        "30",
        " 30 ",
        "30;w=60",
        "30, 60",
        f"{NOW + 30}",  # epoch seconds, as GitHub sends them
        f"{NOW + 30}.000",
        f"{NOW + 30}000",  # epoch milliseconds
    ],
)
def test_a_reset_may_be_a_wait_or_a_date(family: str, reset: str) -> None:
    """Thirty seconds from the answer, by the host's own clock, in every usual spelling."""
    assert quotas({f"{family}-Remaining": "0", f"{family}-Reset": reset}) == [Quota(0, 30)]


def test_a_reset_may_have_a_fraction() -> None:
    """Neither a wait nor a date is cut off to whole seconds."""
    assert quotas({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "2.25"}) == [Quota(0, 2.25)]
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": f"{NOW + 30}.5"}
    assert quotas(headers) == [Quota(0, 30.5)]


@on_every_family
def test_a_reset_after_goes_before_a_reset(family: str) -> None:
    """Discord sends both; the wait needs no clock."""
    headers = {
        f"{family}-Remaining": "0",
        f"{family}-Reset-After": "1.5",
        f"{family}-Reset": f"{NOW + 30}.5",
    }
    assert quotas(headers) == [Quota(0, 1.5)]
    del headers[f"{family}-Reset"]
    assert quotas(headers) == [Quota(0, 1.5)]


def test_no_time_left_may_be_almost_a_second() -> None:
    """Whole seconds are cut off below, so 0 is taken for 1."""
    assert quotas({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "0"}) == [Quota(0, 1)]
    assert quotas({"RateLimit": '"default";r=0;t=0'}) == [Quota(0, 1)]


def test_every_way_of_saying_it_is_heard_at_once() -> None:
    """The longest wait of all that a host says is kept."""
    headers = {
        "RateLimit": '"default";r=0;t=4',
        "RateLimit-Remaining": "0",
        "RateLimit-Reset": "5",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": "9",
        "X-Rate-Limit-Remaining": "0",
        "X-Rate-Limit-Reset": "2",
    }
    assert [quota.reset_s for quota in quotas(headers)] == [4, 5, 9, 2]
    assert wait_after(headers) == 9


# -- what becomes of it ---------------------------------------------------------------------------


def test_with_nothing_left_departures_wait_for_the_reset() -> None:
    """DESIGN 5: before any 429 comes."""
    assert wait_after({"RateLimit": '"default";r=0;t=30'}) == 30


@pytest.mark.parametrize(
    ("remaining", "limit", "wait_s"),
    [
        (1, None, 15),  # one more at half-time, and the reset after it
        (2, None, 10),
        (10, None, 30 / 11),
        (11, None, 0),  # plenty, as far as we know
        (25, 100, 30 / 26),
        (26, 100, 0),  # more than a quarter
        (2, 8, 10),
        (3, 8, 0),
    ],
)
def test_when_little_is_left_it_is_spread_over_the_window(
    remaining: int, limit: int | None, wait_s: float
) -> None:
    """A quarter of the limit, or ten of an unknown one, is little."""
    headers = {"X-RateLimit-Remaining": str(remaining), "X-RateLimit-Reset": "30"}
    if limit is not None:
        headers["X-RateLimit-Limit"] = str(limit)
    assert wait_after(headers) == pytest.approx(wait_s)


def test_what_is_in_flight_will_take_its_share() -> None:
    """One left and one still on its way: it is spoken for, so the next waits for the reset."""
    clock = FakeClock()
    gate = gate_on(clock)
    first, second = gate.arrive(), gate.arrive()
    gate.record(first, Outcome.OK, 0.1)
    assert gate.announced(first, [Quota(1, 30)])
    gate.leave(first)
    assert gate.pacer.next_departure(clock.now) == 30
    gate.leave(second)


def test_a_later_answer_with_more_left_does_not_shorten_the_wait() -> None:
    """DESIGN 5: always the longer one; and only what lengthens is said to hold us up."""
    clock = FakeClock()
    gate = gate_on(clock)
    permit = gate.arrive()
    assert gate.announced(permit, [Quota(0, 30)])
    assert not gate.announced(permit, [Quota(50, 5)])
    assert not gate.announced(permit, [Quota(0, 5)])
    assert not gate.announced(permit, [])
    gate.leave(permit)
    assert gate.pacer.next_departure(clock.now) == 30


def test_a_quota_and_a_refusal_both_hold() -> None:
    """A 429 with Retry-After 5 and a reset in 30 s: 30 s; and the other way round."""
    rate = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}
    assert wait_after({**rate, "Retry-After": "5"}) == 30
    assert wait_after({**rate, "Retry-After": "50"}) == 50


def test_a_quota_holds_nobody_longer_than_the_longest_pause() -> None:
    """A limit for the day is asked again after HOSTGATE_MAX_PAUSE."""
    assert wait_after({"RateLimit": '"day";r=0;t=86400'}) == CAP_S
    assert wait_after({"RateLimit": '"day";r=1;t=86400'}) == CAP_S


# -- a table of values ----------------------------------------------------------------------------

MEGABYTE = 1_000_000

# What stands for the number in a header, and the seconds until the next departure where it is
# (a Retry-After, the Reset of a family with nothing left). ``None``: it says nothing usable.
NUMBERS: list[tuple[str, float | None, float | None]] = [
    ("1", 1, 1),
    ("30", 30, 30),
    ("030", 30, 30),
    (" 30 ", 30, 30),
    ("899", 899, 899),
    ("900", 900, 900),
    ("901", CAP_S, CAP_S),
    ("86400", CAP_S, CAP_S),
    ("999999999", CAP_S, CAP_S),
    ("9999999999999999", CAP_S, CAP_S),
    ("0", None, 1),
    ("0.5", None, 1),
    ("1.5", None, 1.5),
    (str(NOW + 30), CAP_S, 30),
    (f"{NOW + 30}000", CAP_S, 30),
    (str(NOW + 86400), CAP_S, CAP_S),
    (str(NOW - 30), CAP_S, None),
    (f"{NOW - 30}000", CAP_S, None),
    ("30;w=60", None, 30),
    ("30, 60", None, 30),
    ("Thu, 28 May 2026 20:27:10 GMT", 30, None),
    ("Thursday, 28-May-26 20:27:10 GMT", 30, None),
    ("Thu May 28 20:27:10 2026", 30, None),
    ("Thu, 28 May 2026 20:26:10 GMT", None, None),
    ("Fri, 31 Dec 9999 23:59:59 GMT", CAP_S, None),
    ("Mon, 01 Jan 0001 00:00:00 GMT", None, None),
    ("-1", None, None),
    ("-30", None, None),
    ("-9999999999999999", None, None),
    ("-0", None, 1),
    ("+30", None, None),
    ("1e9", None, None),
    ("1e400", None, None),
    ("0x1E", None, None),
    ("1_000", None, None),
    (".5", None, None),
    ("30.", None, None),
    ("nan", None, None),
    ("NaN", None, None),
    ("inf", None, None),
    ("-inf", None, None),
    ("Infinity", None, None),
    ("9" * MEGABYTE, None, None),
    ("0" * MEGABYTE, None, None),
    (" " * MEGABYTE + "30", None, None),
    ("30;" + "x" * MEGABYTE, None, None),
    ("", None, None),
    (" ", None, None),
    ("soon", None, None),
    ("30 s", None, None),
    ("٣٠", None, None),
    ("３０", None, None),
    ("½", None, None),
    ("30\u2028", None, 30),
    ("\x00", None, None),
    ("3\x000", None, None),
    ("30\x1b[2J", None, None),
    ("\r\nSet-Cookie: a=b", None, None),
    ("{}", None, None),
    ('{"seconds": 30}', None, None),
    ("[30]", None, None),
    ("(30)", None, None),
    ("((((30))))", None, None),
    ("%s%n{0}{x}", None, None),
    ('"30"', None, None),
    ("null", None, None),
    ("true", None, None),
    ("?1", None, None),
    (":MzA=:", None, None),
    ("@1780000030", None, None),
]

# Whole values of RateLimit, with the seconds until the next departure.
FIELDS: list[tuple[str, float]] = [
    ('"default";r=0;t=30', 30),
    ('"default";r=0;t=999999999999999', CAP_S),
    ('"default";r=0;t=9999999999999999', 0),  # more digits than a structured field may have
    ('"default";r=0;t=-30', 0),
    ('"default";r=-1;t=30', 0),
    ('"default";r=999999999999999;t=30', 0),
    ('"default";r=0.0;t=30', 0),
    ('"default";r=0;t=30.5', 0),
    ('"default";r=0;t=nan', 0),
    ('"default";r=0;t=inf', 0),
    ('"default";r=?0;t=?1', 0),
    ('"default";r="0";t="30"', 0),
    ('"default";r=:MA==:;t=30', 0),
    ('"default";r;t', 0),
    ('"default";r=;t=', 0),
    ('"default";r=0;t=30;r=5;t=10', 10 / 6),  # the last of two parameters counts
    ('"default";r=0;t=30,', 0),
    ('"default"', 0),
    ('"default', 0),
    ('"dé";r=0;t=30', 0),
    ('"d\x00";r=0;t=30', 0),
    ('"d\\";r=0;t=30', 0),
    ('("a" "b");r=0;t=30', 30),
    ('(("a"));r=0;t=30', 0),
    ("(" * 1000, 0),
    ("(" * 500 + ")" * 500, 0),
    ("{}", 0),
    ('{"r": 0, "t": 30}', 0),
    ("r=0;t=30", 0),
    ("remaining=0, reset=30", 30),
    ("remaining=0, reset=-30", 0),
    ("remaining=0, reset=nan", 0),
    ("remaining=-1, reset=30", 0),
    ("remaining=0.5, reset=30", 0),
    ("remaining=(0 1), reset=(30)", 0),
    ("remaining, reset", 0),
    ("remaining=, reset=", 0),
    ("Remaining=0, Reset=30", 0),  # keys of a structured field are lower case
    ("remaining=0, reset=999999999999999", CAP_S),
    ("limit=-5, remaining=1, reset=30", 15),
    ("limit=0, remaining=1, reset=30", 15),
    ("=", 0),
    (",", 0),
    (";", 0),
    ('"a";r=0;t=30,' * 100_000, 0),
    ("a=" + "1" * MEGABYTE, 0),
    ("@1780000030;r=0;t=30", 30),
    ('%"caf%c3%a9";r=0;t=30', 30),
    ('%"%ff";r=0;t=30', 0),
]


EVERY_VALUE = [row[0] for row in NUMBERS] + [row[0] for row in FIELDS]


def shown(value: object) -> str:
    """A test id that a terminal can bear."""
    return ascii(value)[:40]


def test_the_tables_are_long_enough() -> None:
    """At least sixty values."""
    assert len({value for value, _, _ in NUMBERS}) >= 60
    assert len({value for value, _ in FIELDS}) >= 40


@pytest.mark.parametrize(("value", "wait_s"), [row[:2] for row in NUMBERS], ids=shown)
def test_the_wait_after_a_retry_after(value: str, wait_s: float | None) -> None:
    """What it asks for up to the cap; where that is nothing, the backoff."""
    waited_s = wait_after({"Retry-After": value})
    assert waited_s == pytest.approx(BACKOFF_S if wait_s is None else wait_s)


@on_every_family
@pytest.mark.parametrize(("value", "wait_s"), [row[::2] for row in NUMBERS], ids=shown)
def test_the_wait_after_a_reset(family: str, value: str, wait_s: float | None) -> None:
    """With nothing left, the time to the reset up to the cap, or nothing."""
    waited_s = wait_after({f"{family}-Remaining": "0", f"{family}-Reset": value})
    assert waited_s == pytest.approx(wait_s or 0)


@on_every_family
@pytest.mark.parametrize("value", [row[0] for row in NUMBERS], ids=shown)
def test_what_is_left_may_be_anything(family: str, value: str) -> None:
    """Whatever the Remaining or the Limit is, the reset of 30 s is the longest wait."""
    for name in ("Remaining", "Limit"):
        headers = {f"{family}-Remaining": "0", f"{family}-Reset": "30", f"{family}-{name}": value}
        assert wait_after(headers) in (0, *(pytest.approx(30 / share) for share in range(1, 12)))


@pytest.mark.parametrize(("value", "wait_s"), FIELDS, ids=shown)
def test_the_wait_after_a_ratelimit_field(value: str, wait_s: float) -> None:
    """What is malformed is as if it were not there."""
    assert wait_after({"RateLimit": value}) == pytest.approx(wait_s)


@pytest.mark.parametrize("value", EVERY_VALUE, ids=shown)
def test_a_policy_may_be_anything(value: str) -> None:
    """A hostile policy does not spoil the field beside it."""
    headers = {"RateLimit": '"default";r=0;t=30', "RateLimit-Policy": value}
    assert wait_after(headers) == 30


# -- and any other value --------------------------------------------------------------------------

NAMES = [
    "retry-after",
    "date",
    "ratelimit",
    "ratelimit-policy",
    *(
        f"{family.lower()}-{name}"
        for family in FAMILIES
        for name in ("limit", "remaining", "reset", "reset-after")
    ),
]
PIECES = st.sampled_from(
    [
        *("limit", "remaining", "reset", "default", "r", "t", "q", "w", "pk", '"', "=", ";", ","),
        *(" ", "\t", "(", ")", "{", "}", "?1", "@", "%", ":", "\\", "\x00", "é", "٣", "🕷"),
        *("0", "1", "30", "-1", "1.5", "-0", "1e9", "nan", "inf", "9" * 15, "9" * 400, str(NOW)),
    ]
)
VALUES = (
    st.sampled_from([value for value in EVERY_VALUE if len(value) < 2000])
    | st.lists(PIECES, max_size=24).map("".join)
    | st.text(max_size=60)
    | st.integers().map(str)
    | st.floats().map(str)
    | st.binary(max_size=60).map(lambda raw: raw.decode("latin-1"))
)


@given(
    headers=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6),
    answered_s=st.floats(-1e12, 1e12),
)
@example(headers={"ratelimit": '"d";r=0;t=0', "retry-after": "0"}, answered_s=0.0)
@settings(deadline=None, max_examples=400)
def test_no_header_can_do_harm(headers: Headers, answered_s: float) -> None:
    """No exception, and no wait that is negative, NaN or over the cap."""
    for quota in parse_quotas(headers, answered_s=answered_s):
        assert quota.remaining >= 0
        assert math.isfinite(quota.reset_s)
        assert quota.reset_s > 0
        assert 0 <= quota.interval_s <= quota.reset_s
    waited_s = wait_after(headers, answered_s=answered_s)
    assert 0 <= waited_s <= CAP_S


@given(
    answers=st.lists(
        st.tuples(
            st.floats(0, 60),
            st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4),
        ),
        max_size=8,
    )
)
@settings(deadline=None, max_examples=100)
def test_no_run_of_answers_can_do_harm(answers: list[tuple[float, Headers]]) -> None:
    """Likewise for one after the other; and none of them brings the next departure forward."""
    clock = FakeClock(5000.0)
    gate = gate_on(clock)
    due = clock.now
    for after_s, headers in answers:
        clock.advance(after_s)
        permit = gate.arrive()
        if "retry-after" in headers:
            asked_s = parse_retry_after(headers["retry-after"], wall_now_s=NOW)
            gate.pacer.refused(clock.now, asked_s, incident=True)
        gate.announced(permit, parse_quotas(headers, answered_s=NOW))
        gate.leave(permit)
        now_due = gate.pacer.next_departure(clock.now)
        assert max(due, clock.now) <= now_due <= clock.now + CAP_S
        due = now_due
