"""A whole fleet, judged by the host's own record: real workers, a real Redis."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from child import Child, ChildResult
from fleet_crawl import start_workers, worker_of
from harness import pinned
from redis_server import RedisServer

from demo.behaviours import Reply, outage, steady
from demo.origin import Arrival, OriginThread

HOST = "127.0.0.2"
LEASE_S = 2


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.stop()


def fleet(server: RedisServer, **settings: Any) -> dict[str, Any]:
    return {
        "HOSTGATE_FLEET_URL": server.url,
        "HOSTGATE_FLEET_LEASE": LEASE_S,
        "HOSTGATE_FLEET_TTL": 6,
        "HOSTGATE_FLEET_TIMEOUT": 1,
        **settings,
    }


def ended(workers: list[Child]) -> list[ChildResult]:
    results = [worker.wait() for worker in workers]
    for result in results:
        assert result.returncode == 0, result.log
        for word in ("Traceback", "Unhandled", "never retrieved"):
            assert word not in result.log, result.log
        assert not result.failures
    return results


def state(server: RedisServer, name: str) -> float:
    """A number of the host's shared state."""
    return float(server.command("HGET", "hostgate:{127.0.0.2}:state", name) or "nan")


def until(what: Any, timeout_s: float = 30) -> None:
    """Wait until ``what()`` is true."""
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_six_workers_share_one_bound(server: RedisServer) -> None:
    """6 x 20 pages of 0.1 s: the peak is 2, every page comes, and everybody gets a fair share."""
    with OriginThread({HOST: steady(0.1)}) as origin:
        workers = start_workers(origin, HOST, [20] * 6, fleet(server, **pinned(2)))
        results = ended(workers)
        record = origin.record(HOST)
    assert record.peak == 2
    assert len(record.pages()) == sum(len(result.answers) for result in results) == 120
    arrivals = sorted(record.arrivals, key=lambda arrival: arrival.at)
    # Two streams of 0.1 s need 6 s; a slot that stands empty between two workers would double it.
    assert arrivals[-1].at - arrivals[0].at < 10
    first = Counter(worker_of(arrival.path) for arrival in arrivals[:60])
    assert all(6 <= first[number] <= 15 for number in range(6)), first
    trips = sum(result.stats["hostgate/fleet/round_trips"] for result in results)
    assert trips / 120 < 2.3


@pytest.mark.parametrize("limit", [1, 4])
def test_three_workers_share_one_bound(server: RedisServer, limit: int) -> None:
    """HG-47: the bound is reached and never passed, and nobody starves."""
    with OriginThread({HOST: steady(0.1)}) as origin:
        results = ended(start_workers(origin, HOST, [20] * 3, fleet(server, **pinned(limit))))
        record = origin.record(HOST)
    assert record.peak == limit
    assert len(record.pages()) == sum(len(result.answers) for result in results) == 60
    for number in range(3):
        own = sorted(a.at for a in record.arrivals if worker_of(a.path) == number)
        gaps = [later - sooner for sooner, later in pairwise(own)]
        assert max(gaps) < 10 * sum(gaps) / len(gaps)


def test_workers_whose_clocks_are_a_minute_apart(server: RedisServer) -> None:
    """HG-42: only Redis's own clock counts: one bound, fair shares, leases of full length."""
    shifts = [{"JOB_CLOCK_SHIFT": shift} for shift in (-30, 0, 30)]
    with OriginThread({HOST: steady(0.1)}) as origin:
        workers = start_workers(origin, HOST, [20] * 3, fleet(server, **pinned(2)), each=shifts)
        until(lambda: len(origin.record(HOST).arrivals) >= 10)
        left = [float(at) for at in server.command(*_LEASES_LEFT)]
        results = ended(workers)
        record = origin.record(HOST)
    assert record.peak == 2
    assert sum(len(result.answers) for result in results) == 60
    first = Counter(worker_of(a.path) for a in sorted(record.arrivals, key=lambda a: a.at)[:40])
    assert all(first[number] >= 8 for number in range(3)), first
    # Each is renewed or given back within a third of it.
    assert all(LEASE_S * 2 / 3 - 0.3 < seconds <= LEASE_S for seconds in left), left


# Seconds left of each lease, by Redis's own clock.
_LEASES_LEFT = (
    "EVAL",
    """local t = redis.call('TIME')
    local left = {}
    local leases = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
    for i = 2, #leases, 2 do
      left[#left + 1] = tostring(leases[i] / 1000 - t[1] - t[2] / 1000000)
    end
    return left""",
    "1",
    "hostgate:{127.0.0.2}:permits",
)


def test_one_refusal_collapses_them_all(server: RedisServer) -> None:
    """An outage of 3 s: one incident, nobody departs in the pause, all are at one, pages come."""
    with OriginThread({HOST: outage(1, 3, 0.1, retry_after="3")}) as origin:
        # The state is looked at after the workers' ends, which may take a while.
        late = {"HOSTGATE_FLEET_TTL": 60, "HOSTGATE_RECOVERY_DELAY": 120}
        workers = start_workers(origin, HOST, [25] * 3, fleet(server, **late))
        until(lambda: state(server, "limit") == 1)
        assert state(server, "incidents") == 1
        results = ended(workers)
        record = origin.record(HOST)
    assert sum(len(result.answers) for result in results) == 75
    assert all(status == 200 for result in results for _, status in result.answers)
    refused = sorted(a.at for a in record.arrivals if a.status == 503)
    assert 1 <= len(refused) <= 4
    # What was allowed to leave before the fleet heard of the refusal may still arrive after it.
    late = [a.at - refused[0] for a in record.arrivals if refused[0] < a.at < refused[0] + 3]
    assert len(late) <= 2
    assert max(late, default=0.0) < 1, late
    assert record.peak <= 2
    assert state(server, "limit") == 1


def test_a_killed_worker_gives_its_places_back_when_its_leases_lapse(server: RedisServer) -> None:
    """HG-39: SIGKILL with two in flight: nobody departs before the lapse, somebody soon after."""

    def slow_for_the_first(number: int, arrival: Arrival, now: float) -> Reply:
        return Reply(delay=30 if arrival.path.startswith("/w0/") else 0.05)

    with OriginThread({HOST: slow_for_the_first}) as origin:
        first, second = start_workers(origin, HOST, [2, 30], fleet(server, **pinned(2)))
        until(lambda: sum(worker_of(a.path) == 0 for a in origin.record(HOST).arrivals) == 2)
        until(lambda: origin.record(HOST).overlap == 2)
        killed_at = time.monotonic()
        first.process.kill()
        first.process.communicate()
        seen = []
        while second.process.poll() is None:
            seen += server.keys().items()
            time.sleep(0.1)
        result = second.wait()
        record = origin.record(HOST)
    assert len(result.answers) == 30
    later = [a.at - killed_at for a in record.arrivals if a.at > killed_at]
    assert min(later) > LEASE_S * 2 / 3 - 0.2
    assert min(later) < LEASE_S + 2
    assert seen
    assert all(left > 0 or left == -2 for _, left in seen), seen


def test_an_orderly_end_gives_its_places_back_at_once(server: RedisServer) -> None:
    """HG-39: after SIGTERM nothing is held, and every key goes within twice its time to live."""
    with OriginThread({HOST: steady(0.2)}) as origin:
        workers = start_workers(origin, HOST, [50], fleet(server, HOSTGATE_FLEET_TTL=4))
        until(lambda: len(origin.record(HOST).arrivals) >= 4)
        workers[0].process.send_signal(signal.SIGTERM)
        workers[0].wait()
    last_use = time.monotonic()
    assert server.command("ZCARD", "hostgate:{127.0.0.2}:permits") == 0
    assert server.command("ZCARD", "hostgate:{127.0.0.2}:queue") == 0
    assert all(left > 0 for left in server.keys().values())
    until(lambda: not server.keys(), timeout_s=8)
    assert time.monotonic() - last_use < 8


def test_a_redis_that_dies_and_comes_back_empty(server: RedisServer) -> None:
    """HG-44: no page is lost, one at a time each meanwhile, and one bound again afterwards."""
    with OriginThread({HOST: steady(0.1)}) as origin:
        workers = start_workers(origin, HOST, [90] * 3, fleet(server, **pinned(2)))
        until(lambda: len(origin.record(HOST).arrivals) >= 20)
        server.kill()
        dead_at = time.monotonic()
        time.sleep(4)  # how long it is away is what this is about
        server.start()
        back_at = time.monotonic()
        results = ended(workers)
        record = origin.record(HOST)
    assert sum(len(result.answers) for result in results) == 270
    # The two of the fleet's own last moment, and the first of each worker that had none of them.
    assert record.peak <= 4
    alone = [a.in_flight for a in record.arrivals if dead_at + 1 < a.at < back_at]
    assert alone
    assert max(alone) <= 3
    whole_again = back_at + LEASE_S + 2
    assert max(a.in_flight for a in record.arrivals if a.at < dead_at) == 2
    later = [a.in_flight for a in record.arrivals if a.at > whole_again]
    assert later, "the crawl ended too soon to tell"
    assert max(later) <= 2
    for result in results:
        assert result.stats["hostgate/fleet/outages"] >= 1
        assert result.log.count("the fleet cannot be asked (") == 1
