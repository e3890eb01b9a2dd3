"""A host that means harm: what it may choose (headers, timing, redirects, names) and what it gains.

``docs/security.md`` is the list of these, with one test for each line.
"""

from __future__ import annotations

import time
import tracemalloc

import pytest
import pytest_twisted
from fakes import FakeClock, middle
from harness import crawl, pages
from scrapy import Request

from demo.behaviours import Reply, steady
from demo.origin import OriginThread
from demo.origin_record import Arrival
from scrapy_hostgate.controller import Controller, Law
from scrapy_hostgate.fleet.redisfleet import keys_of
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.hostkey import MAX_HOST_CHARS, normalise_host
from scrapy_hostgate.observe.log import printable
from scrapy_hostgate.outcome import Outcome, Sample
from scrapy_hostgate.pacer import Pace
from scrapy_hostgate.quota import parse_quotas
from scrapy_hostgate.registry import Registry
from scrapy_hostgate.retry_after import parse_retry_after

HOST, OTHER = "127.0.0.2", "127.0.0.3"
MAX_PAUSE_S = 900.0
LONG_NAME = ".".join(["a" * 60] * 50)
ODD_NAMES = [
    "x{y}.test",
    "}{.test",
    "a\nFAKE LINE: limit 1 -> 999",
    "a\r\nb",
    "\x1b[2Jclear",
    "a\u202eb",
    'a"} 1\nhostgate_limit{host="b',
    "%s%d%(host)s",
    "a b:c",
    "a" * 1000,
    "{" * 1000,
]


def gate_of(clock: FakeClock, pace: Pace | None = None, key: str = HOST) -> Gate:
    return Gate(
        key,
        Law(),
        pace or Pace(max_pause_s=MAX_PAUSE_S),
        clock=clock,
        call_later=clock.call_later,
        uniform=middle,
    )


def test_a_host_that_answers_in_no_time_is_never_above_the_ceiling() -> None:
    """Ten thousand answers of a microsecond, after a slow beginning, at any number in flight."""
    controller = Controller(Law(), 0.0)
    highest = 0
    for number in range(10_000):
        latency_s = 1.0 if number < 64 else 1e-6
        sample = Sample(Outcome.OK, latency_s, controller.epoch, controller.limit)
        controller.observe(sample, float(number))
        highest = max(highest, controller.limit)
    assert highest == Law().ceiling


@pytest.mark.parametrize("size", [10_000, 1_000_000])
def test_a_long_header_costs_nothing_and_says_nothing(size: int) -> None:
    """Digits, commas or brackets by the million are no number, and are not even looked at."""
    began = time.process_time()
    for text in ("9" * size, "," * size, "(" * size, "a;" * size, '"' * size):
        assert parse_retry_after(text.encode(), wall_now_s=0.0) is None
        headers = {
            "ratelimit": text,
            "ratelimit-policy": text,
            "x-ratelimit-remaining": text,
            "x-ratelimit-reset": text,
        }
        assert parse_quotas(headers, answered_s=0.0) == []
    assert time.process_time() - began < 1


@pytest.mark.parametrize("header", ["99999999999", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_no_refusal_pauses_longer_than_the_cap(header: str) -> None:
    """However often it is said, from now on it is fifteen minutes at most."""
    clock = FakeClock(10_000.0)
    gate = gate_of(clock)
    for _ in range(50):
        permit = gate.arrive()
        while not permit.granted:
            assert clock.next_at is not None
            assert clock.next_at <= clock.now + MAX_PAUSE_S
            clock.run_until(clock.next_at)
        asked_s = parse_retry_after(header, wall_now_s=time.time())
        gate.record(permit, Outcome.REFUSED, None, asked_s)
        gate.leave(permit)


@pytest.mark.parametrize("served", [1, 2, 11])
def test_no_mixture_of_answers_spaces_further_than_the_cap(served: int) -> None:
    """A host that serves just enough to be refused anew doubles its spacing, up to the cap."""
    clock = FakeClock(10_000.0)
    gate = gate_of(clock)
    longest_s = 0.0
    for number in range(600):
        permit = gate.arrive()
        while not permit.granted:
            assert clock.next_at is not None
            longest_s = max(longest_s, clock.next_at - clock.now)
            clock.run_until(clock.next_at)
        clock.advance(1)
        refused = number % (served + 1) == served
        gate.record(permit, Outcome.REFUSED if refused else Outcome.OK, 1.0)
        gate.leave(permit)
    assert longest_s <= MAX_PAUSE_S


def test_names_without_end_do_not_fill_the_table() -> None:
    """Redirects to twenty thousand hosts: no more gates than there is room for."""
    clock = FakeClock()
    registry = Registry(lambda key: gate_of(clock, key=key), max_hosts=100, clock=clock)
    for number in range(20_000):
        gate = registry.gate(f"h{number}.evil.example")
        gate.leave(gate.arrive())
    assert len(registry) == 100


def test_a_name_that_is_too_long_is_kept_short() -> None:
    """The key has 255 characters at most, one for each name, and no memory is held for the rest."""
    keys = {normalise_host("a" * 1000 + str(number)) for number in range(100)}
    assert len(keys) == 100
    assert max(map(len, keys)) <= MAX_HOST_CHARS
    assert normalise_host("A" * 1000) == normalise_host("a" * 1000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(1000):
            normalise_host("b" * 16_000 + str(number))
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 2_000_000


@pytest.mark.parametrize("name", ODD_NAMES)
def test_no_name_breaks_a_log_line(name: str) -> None:
    """One line, nothing that a terminal acts on."""
    shown = printable(normalise_host(name))
    assert shown.isprintable()
    assert len(shown.splitlines()) == 1


def test_no_name_leaves_its_redis_keys() -> None:
    """Braces, spaces and newlines cannot break the hash tag, nor make two hosts share a key."""
    families = [keys_of(normalise_host(name)) for name in ODD_NAMES]
    assert len({key for keys in families for key in keys}) == 5 * len(ODD_NAMES)
    for keys in families:
        tags = {key[key.index("{") + 1 : key.index("}")] for key in keys}
        assert len(tags) == 1
        for key in keys:
            assert key.count("{") == key.count("}") == 1
            assert key.isascii()
            assert key.isprintable()
            assert " " not in key
            assert len(key) < 300


@pytest_twisted.ensureDeferred
async def test_a_hostile_host_does_not_stop_the_others() -> None:
    """Garbage, resets, stalls, truncation and refusals with absurd headers from one host; the pages
    of the other arrive as if it were alone, and every request ends."""
    absurd = {
        "Retry-After": "9" * 400,
        "RateLimit": '"a";r=0;t=999999999999999',
        "X-RateLimit-Remaining": "-1",
        "X-RateLimit-Reset": "1e999",
        "X-Filler": "x" * 8_000,
    }
    replies = [
        Reply(end="garbage"),
        Reply(end="reset"),
        Reply(body=b"x" * 1000, end="mid"),
        Reply(status=429, headers=absurd),
        Reply(status=503, headers=absurd),
        Reply(status=302, headers={"Location": f"http://{LONG_NAME}/"}),
        Reply(status=302, headers={"Location": "http://[::1"}),
    ]

    def hostile(number: int, arrival: Arrival, now: float) -> Reply:
        return replies[number % len(replies)]

    with OriginThread({HOST: hostile, OTHER: steady(0.02)}) as origin:
        job: list[Request | str] = [*pages(origin, HOST, 14), *pages(origin, OTHER, 30)]
        result = await crawl(
            job,
            {
                "HOSTGATE_MAX_PAUSE": 0.2,
                "HOSTGATE_REFUSAL_RETRIES": 2,
                "DOWNLOAD_TIMEOUT": 2,
                "RETRY_TIMES": 1,
                "SCHEDULER_PRIORITY_QUEUE": "scrapy_hostgate.HostGatePriorityQueue",
            },
        )
        record, other = origin.record(HOST), origin.record(OTHER)
    assert record.peak <= 2
    assert len(other.arrivals) == 30
    assert other.peak == 2
    good = [answer for answer in result.answers if OTHER in answer.url]
    assert len(good) == 30
    assert max(answer.at for answer in good) - result.started < 20
    assert len(result.answers) + len(result.failures) == 44
    assert all(line.isprintable() for line in result.gate_log)
