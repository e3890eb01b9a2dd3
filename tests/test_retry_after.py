"""Retry-After in its legal forms, and in every other."""

from __future__ import annotations

import math
import time
from datetime import datetime, timezone

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scrapy.http import Headers

from scrapy_hostgate.retry_after import parse_retry_after

# Sun, 06 Nov 1994 08:49:37 GMT, the instant of RFC 9110's examples, less 90 s.
ASKED = datetime(1994, 11, 6, 8, 49, 37, tzinfo=timezone.utc)
NOW = ASKED.timestamp() - 90


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        (" 120 ", 120),
        ("\t120", 120),
        (b"120", 120),
        ("1", 1),
        ("00120", 120),
        ("86400", 86400),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 90),  # IMF-fixdate
        ("Sunday, 06-Nov-94 08:49:37 GMT", 90),  # RFC 850
        ("Sun Nov  6 08:49:37 1994", 90),  # asctime
        ("Sun, 06 Nov 1994 08:49:37 -0000", 90),  # naive in Python
        ("Sun, 06 Nov 1994 09:49:37 +0100", 90),
        (b"Sun, 06 Nov 1994 08:49:37 GMT", 90),
    ],
)
def test_what_can_be_used(value: str | bytes, seconds: float) -> None:
    """HG-32: delta-seconds and the three forms of a date, 90 s from now."""
    assert parse_retry_after(value, wall_now_s=NOW) == seconds


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        " ",
        "0",
        "000",
        "-1",
        "+5",
        "1.5",
        "1e3",
        "0x10",
        "inf",
        "nan",
        "12 s",
        "1, 2",
        "soon",
        "٣",
        "Sun, 06 Nov 1994 08:48:07 GMT",  # now
        "Sun, 06 Nov 1994 08:48:06 GMT",  # past
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "Sun, 99 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 99999 08:49:37 GMT",
        "Sun, 06 Nov 99999999999999999999 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 +9999",
        "9" * 65,
        b"\xff\xfe",
        b"\x00",
    ],
)
def test_what_cannot_be_used_is_absent(value: str | bytes | None) -> None:
    """HG-32: zero, negative, past or malformed: absent, so that backoff applies."""
    assert parse_retry_after(value, wall_now_s=NOW) is None


@pytest.mark.parametrize("value", ["Sun Nov  6 08:49:37 1994", "Sun, 06 Nov 1994 08:49:37 -0000"])
def test_our_own_time_zone_plays_no_part(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """HG-32: Python reads these as naive; an HTTP date is GMT all the same."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC-9")
        time.tzset()
        assert parse_retry_after(value, wall_now_s=NOW) == 90
    time.tzset()


def test_a_date_is_judged_by_the_hosts_own_clock() -> None:
    """An hour off, a host still means the 90 s that it wrote; its Date may have any form."""
    asked = "Sun, 06 Nov 1994 08:49:37 GMT"
    for date in ("Sun, 06 Nov 1994 08:48:07 GMT", b"Sun Nov  6 08:48:07 1994"):
        for our_clock in (NOW - 3600, NOW, NOW + 3600):
            assert parse_retry_after(asked, wall_now_s=our_clock, date=date) == 90


def test_an_unreadable_date_leaves_our_own_clock() -> None:
    """Better than nothing; and a number of seconds needs no Date at all."""
    asked = "Sun, 06 Nov 1994 08:49:37 GMT"
    for date in (None, "", "yesterday", b"\xff"):
        assert parse_retry_after(asked, wall_now_s=NOW, date=date) == 90
    assert parse_retry_after("7", wall_now_s=NOW, date="Thu, 01 Jan 1970 00:00:00 GMT") == 7


def test_a_long_time_is_not_capped_here() -> None:
    """The pacer caps, and logs what was asked for; here it is a finite number."""
    assert parse_retry_after("9999999999999999999", wall_now_s=NOW) == 1e19
    assert parse_retry_after("Sun, 06 Nov 2094 08:49:37 GMT", wall_now_s=NOW) == 3155760090


def test_the_name_of_the_header_may_have_any_case() -> None:
    """HG-32: Scrapy's headers find it."""
    headers = Headers({"retry-after": "120"})
    assert parse_retry_after(headers.get("Retry-After"), wall_now_s=NOW) == 120


WORDS = st.sampled_from(
    [
        *("Sun", "Nov", "06", "1994", "94", "08:49:37", "25:61:61", "GMT", "Z", "AM", "am"),
        *("+0100", "-0000", "0", "1", "99999999999", ",", "-", ":", "(", ")", ".", "é"),
        *("\x00", "\n"),
    ]
)


@given(
    value=st.text(max_size=70)
    | st.binary(max_size=70)
    | st.lists(WORDS, max_size=12).map(" ".join)
    | st.lists(WORDS, max_size=12).map("".join),
    date=st.none() | st.text(max_size=40) | st.lists(WORDS, max_size=8).map(" ".join),
    now=st.floats(0, 4e9),
)
@example(value="Sun, 06 Nov 0001 00:00:00 +2359", date="Fri, 31 Dec 9999 23:59:59 -2359", now=0)
@settings(deadline=None, max_examples=120)
def test_no_text_can_do_harm(value: str | bytes, date: str | None, now: float) -> None:
    """HG-32: no exception, and nothing but ``None`` or a finite number above zero."""
    seconds = parse_retry_after(value, wall_now_s=now, date=date)
    assert seconds is None or (math.isfinite(seconds) and seconds > 0)
