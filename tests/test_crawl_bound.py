"""The bound that really holds, judged by the host's own record of real crawls."""

from __future__ import annotations

import pytest
import pytest_twisted
from child import run_child
from harness import crawl, pages, pinned

from demo.behaviours import outage, refuse_above, steady
from demo.origin import OriginThread

HOST = "127.0.0.2"


@pytest_twisted.ensureDeferred
async def test_the_host_never_sees_more_than_the_start() -> None:
    """150 pages of 0.1 s with default settings and 32 requests in all: two in flight, all got."""
    with OriginThread({HOST: steady(0.1)}) as origin:
        result = await crawl(pages(origin, HOST, 150))
        record = origin.record(HOST)
    assert record.peak == 2
    assert len(record.pages()) == len(result.answers) == 150
    # With two always in flight it takes 7.5 s; more would mean a slot stood empty.
    assert result.seconds < 15
    assert result.stats["hostgate/departures"] == 150
    assert result.stats["hostgate/peak_in_flight"] == 2


@pytest.mark.parametrize("limit", [1, 4])
@pytest.mark.parametrize("reactor", ["asyncio", "select"])
def test_a_pinned_limit_is_reached_and_never_passed(limit: int, reactor: str) -> None:
    """Pinned to one and to four, on both reactors: exactly that many at a time, all pages got."""
    count = 150 if limit == 4 else 40
    with OriginThread({HOST: steady(0.1)}) as origin:
        result = run_child(pages(origin, HOST, count), pinned(limit), reactor=reactor)
        record = origin.record(HOST)
    assert result.returncode == 0, result.log
    assert record.peak == limit
    assert len(record.pages()) == len(result.answers) == count
    assert result.left == {"active": 0}


def test_the_default_bound_holds_on_the_select_reactor() -> None:
    """The same bound on a reactor without asyncio."""
    with OriginThread({HOST: steady(0.05)}) as origin:
        result = run_child(pages(origin, HOST, 60), reactor="select")
        record = origin.record(HOST)
    assert result.returncode == 0, result.log
    assert record.peak == 2
    assert len(result.answers) == 60


@pytest_twisted.ensureDeferred
async def test_a_host_that_refuses_its_fourth_is_not_refused_at_all() -> None:
    """The default start is below what the host refuses: 150 of 150 pages, no refusal."""
    with OriginThread({HOST: refuse_above(3, 0.1)}) as origin:
        result = await crawl(pages(origin, HOST, 150))
        record = origin.record(HOST)
    assert sorted(set(result.statuses)) == [200]
    assert len(record.pages()) == 150
    assert record.refusals <= 3


@pytest_twisted.ensureDeferred
async def test_a_start_that_is_refused_collapses_once() -> None:
    """Started at four, the fourth is refused: one collapse, and every page is delivered."""
    with OriginThread({HOST: refuse_above(3, 0.1)}) as origin:
        result = await crawl(pages(origin, HOST, 60), pinned(4))
        record = origin.record(HOST)
    assert len(record.pages()) == 60
    assert result.statuses == [200] * 60
    assert record.refusals <= 3
    assert result.stats["hostgate/collapses"] == 1


@pytest_twisted.ensureDeferred
async def test_an_outage_costs_few_knocks_and_no_page() -> None:
    """503 from second 3 to 8: 150 of 150 delivered, at most 12 refusals, 3 arrivals in 2 s."""
    with OriginThread({HOST: outage(3, 5, 0.1)}) as origin:
        result = await crawl(pages(origin, HOST, 150))
        record = origin.record(HOST)
    assert result.statuses == [200] * 150
    assert len(record.pages()) == 150
    assert 1 <= record.refusals <= 12
    first = record.first_refusal_at
    assert first is not None
    assert len(record.arrivals_between(first, first + 2)) <= 3


@pytest_twisted.ensureDeferred
async def test_nothing_arrives_before_the_retry_after_is_over() -> None:
    """503 with Retry-After 5: no arrival in those five seconds, and all pages after them."""
    with OriginThread({HOST: outage(2, 5, 0.1, retry_after="5")}) as origin:
        result = await crawl(pages(origin, HOST, 60))
        record = origin.record(HOST)
    assert result.statuses == [200] * 60
    refused = [a for a in record.arrivals if a.status == 503]
    assert 1 <= len(refused) <= 3
    last = max(a.ended or a.at for a in refused)
    assert record.arrivals_between(last + 0.001, last + 4.99) == []
