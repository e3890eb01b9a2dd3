"""The user's own words, taken as they are meant: detectors, names of hosts, numbers in meta."""

from __future__ import annotations

import gzip
import math
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import HtmlResponse, Response
from scrapy.utils.test import get_crawler

from scrapy_hostgate.detector import RefusalDetector
from scrapy_hostgate.keys import HostKeys
from scrapy_hostgate.retries import REFUSALS, RetryBudget
from scrapy_hostgate.settings import HostGateSettings

PAGE = Request("http://a.example/")


@pytest.mark.parametrize(
    ("said", "refused", "pause_s"),
    [
        (True, True, None),
        (False, False, None),
        (None, False, None),
        (30, True, 30.0),
        (0.5, True, 0.5),
        (0, False, None),
        (-1, True, None),
        (math.inf, True, None),
        (math.nan, True, None),
        ("captcha", True, None),
        ("", False, None),
    ],
)
def test_whatever_a_detector_says_is_a_yes_a_no_or_seconds(
    said: Any, refused: bool, pause_s: float | None
) -> None:
    """What is no usable number of seconds is as true or false as Python has it."""
    detector = RefusalDetector(get_crawler(), lambda response: said)
    assert detector.looks_refused(PAGE, HtmlResponse(PAGE.url)) == (refused, pause_s)


def test_a_detector_sees_words_and_not_gzip() -> None:
    """The response itself stays as it came: Scrapy unpacks it later, and counts it then."""
    packed = gzip.compress(b"<p>slow down</p>")
    headers = {"Content-Encoding": "gzip", "Content-Type": "text/html"}
    response = Response(PAGE.url, headers=headers, body=packed)
    detector = RefusalDetector(get_crawler(), lambda response: b"slow down" in response.body)
    assert detector.looks_refused(PAGE, response) == (True, None)
    assert response.body == packed


@pytest.mark.parametrize("kind", ["slot", "key"])
def test_a_users_own_name_is_taken_as_it_is_written(kind: str) -> None:
    """Unless there is none of it, and one of the host that it spells."""
    keys = HostKeys(HostGateSettings(key=kind), {"Mine", "www.example.org"})
    assert keys.of_name("Mine") == "Mine"
    assert keys.of_name("WWW.Example.org.") == "www.example.org"
    assert keys.of_name("Nobody's") == "Nobody's"


@pytest.mark.parametrize(("kind", "key"), [("host", "www.example.org"), ("domain", "example.org")])
def test_else_a_name_is_a_host(kind: str, key: str) -> None:
    """In any spelling; a URL is none."""
    keys = HostKeys(HostGateSettings(key=kind), ())
    assert keys.of_name("WWW.Example.org.") == key
    with pytest.raises(ValueError, match="a host name without scheme, port or path is needed"):
        keys.of_name("http://www.example.org/")


@pytest.mark.parametrize("odd", ["three", None, 0, 2.5])
def test_a_count_of_refusals_that_is_none_changes_no_budget(odd: object) -> None:
    """Meta is the user's: an odd figure in it is taken away, and nothing is reckoned with it."""
    budget = RetryBudget(get_crawler(), 20)
    request = PAGE.replace(meta={REFUSALS: odd, "max_retry_times": 7, "retry_times": 1})
    budget.answered(request, 200)
    assert request.meta == {"max_retry_times": 7, "retry_times": 1}


def test_refusals_leave_no_trace_in_an_answered_request() -> None:
    """Three refusals, then a page: follow-ups inherit neither the longer budget nor its use."""
    budget = RetryBudget(get_crawler(settings_dict={"RETRY_TIMES": 2}), 20)
    request = PAGE.replace()
    for _ in range(3):
        assert budget.refused(request)
        request.meta["retry_times"] = request.meta.get("retry_times", 0) + 1
    assert request.meta["max_retry_times"] == 5
    budget.answered(request, 429)
    assert request.meta[REFUSALS] == 3
    budget.answered(request, 200)
    assert request.meta == {}
