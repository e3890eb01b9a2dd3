"""Which host is it? Every spelling, port, redirect and slot name of a host shares its one gate."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
import pytest_twisted
from harness import Result, crawl, middleware_of, pages
from scrapy import Request
from scrapy.pqueues import ScrapyPriorityQueue

from demo.behaviours import Reply, steady
from demo.origin import Arrival, HostRecord, Origin, OriginThread
from demo.origin_record import Recorder
from scrapy_hostgate import GateSnapshot

HOST = "127.0.0.2"
TARGET = "127.0.0.200"
SOURCES = [f"127.0.0.{number}" for number in range(10, 22)]


def gates_of(result: Result) -> dict[str, GateSnapshot]:
    """What the product says of each host key, after the crawl."""
    return middleware_of(result.crawler).gates()


def peak_of(records: Iterable[HostRecord]) -> int:
    """The most requests that several hosts of an origin had in flight together."""
    arrivals = [arrival for record in records for arrival in record.arrivals]
    return max(sum(_meets(other, arrival.at) for other in arrivals) for arrival in arrivals)


def _meets(arrival: Arrival, at: float) -> bool:
    return arrival.at <= at and (arrival.ended is None or arrival.ended > at)


def through(origin: Origin, host: str, path: str, **meta: Any) -> Request:
    """A request for a host that no DNS knows, with the origin as its HTTP proxy."""
    meta["proxy"] = origin.url("127.0.0.1")
    return Request(f"http://{host}{path}", meta=meta, dont_filter=True)


def test_the_overlap_of_several_hosts_is_counted_together() -> None:
    """The measure of these tests itself: one request at each of two hosts are two in flight."""
    recorder = Recorder()
    first, _ = recorder.arrive("a", "/", 1)
    recorder.arrive("b", "/", 1)
    recorder.leave(first, completed=True)
    recorder.arrive("b", "/", 1)
    assert peak_of([recorder.snapshot("a"), recorder.snapshot("b")]) == 2


# -- redirects ------------------------------------------------------------------------------------


def to_target(origin: Origin, **meta: Any) -> list[Request]:
    """One request to each source host, which redirects to a page of 0.3 s on the target."""
    return [
        Request(
            origin.url(source, f"/from?to={origin.url(TARGET, f'/t{number}')}%3Fd=300"),
            meta=dict(meta),
        )
        for number, source in enumerate(SOURCES)
    ]


@pytest_twisted.ensureDeferred
async def test_a_redirect_to_another_host_waits_at_that_hosts_gate() -> None:
    """Twelve hosts redirect to one: it sees two at a time, counted under its own key (HG-01)."""
    with OriginThread() as origin:
        result = await crawl(to_target(origin))
        target, source = origin.record(TARGET), origin.record(SOURCES[0])
    assert target.peak == 2
    assert len(target.pages()) == 12
    assert len(source.arrivals) == 1
    assert result.statuses == [200] * 12
    assert gates_of(result)[TARGET].departures == 12
    assert [gates_of(result)[key].departures for key in SOURCES] == [1] * 12
    assert [answer.meta.get("download_slot") for answer in result.answers] == [None] * 12


@pytest_twisted.ensureDeferred
async def test_a_redirect_with_a_slot_of_the_user_waits_at_the_host_all_the_same() -> None:
    """The same with download_slot set by the user: the bound holds and the slot stays (HG-01)."""
    with OriginThread() as origin:
        result = await crawl(to_target(origin, download_slot="mine"))
        target = origin.record(TARGET)
    assert target.peak == 2
    assert len(target.pages()) == 12
    assert gates_of(result)[TARGET].departures == 12
    assert "mine" not in gates_of(result)
    assert [answer.meta["download_slot"] for answer in result.answers] == ["mine"] * 12


@pytest_twisted.ensureDeferred
async def test_a_hop_inside_one_host_is_two_departures_and_no_more() -> None:
    """Six pages that redirect on their own host: two at a time, twelve departures (HG-01)."""
    with OriginThread() as origin:
        hops = [origin.url(HOST, f"/from{n}?d=50&to=/t{n}%3Fd=100") for n in range(6)]
        result = await crawl(hops)
        record = origin.record(HOST)
    assert record.peak == 2
    assert record.by_status == {302: 6, 200: 6}
    assert gates_of(result)[HOST].departures == len(record.arrivals) == 12


# -- spellings ------------------------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_ports_and_letter_case_do_not_split_a_host() -> None:
    """Two ports, three spellings of localhost: two in flight for each of both hosts (HG-02)."""
    with OriginThread({"*": steady(0.3)}, ports=2) as origin:
        first, second = origin.ports
        places = [(HOST, first), (HOST, second)]
        places += [("localhost", first), ("LOCALHOST", first), ("LocalHost", second)]
        result = await crawl(
            origin.url(host, f"/{host}/{number}", port)
            for number, (host, port) in product(range(6), places)
        )
        address, name = origin.record(HOST), origin.record("localhost")
    assert (address.peak, len(address.arrivals)) == (2, 12)
    assert (name.peak, len(name.arrivals)) == (2, 18)
    assert {arrival.port for arrival in address.arrivals} == {first, second}
    assert result.statuses == [200] * 30
    assert set(gates_of(result)) == {HOST, "localhost"}


@pytest_twisted.ensureDeferred
async def test_a_location_header_cannot_spell_a_host_anew() -> None:
    """Redirects to a host in capitals, with a final dot or a port: still two at it (HG-02)."""
    spellings = ["shop.example", "SHOP.Example", "shop.example.", "shop.example:80"]
    spellings.append("Shop.EXAMPLE.:80")

    def moved(number: int, arrival: Arrival, now: float) -> Reply:
        spelling = spellings[number % len(spellings)]
        return Reply(status=302, headers={"Location": f"http://{spelling}/t{number}"})

    with OriginThread({"from.example": moved, "*": steady(0.2)}) as origin:
        result = await crawl(through(origin, "from.example", f"/{n}") for n in range(10))
        shop = [r for host, r in origin.records().items() if host.startswith("shop")]
    assert peak_of(shop) == 2
    assert sum(len(record.arrivals) for record in shop) == 10
    assert result.statuses == [200] * 10
    assert set(gates_of(result)) == {"from.example", "shop.example"}


@pytest_twisted.ensureDeferred
async def test_spellings_of_one_address_share_a_gate() -> None:
    """127.0.0.2 written short, in hexadecimal and as one number is one host (HG-02)."""
    spellings = [HOST, "127.2", "0x7f.0.0.2", "2130706434"]
    with OriginThread({"*": steady(0.2)}) as origin:
        result = await crawl(
            through(origin, host, f"/{number}") for number in range(3) for host in spellings
        )
        records = origin.records()
    assert set(records) == set(spellings)
    assert peak_of(records.values()) == 2
    assert result.statuses == [200] * 12
    assert set(gates_of(result)) == {HOST}


@pytest_twisted.ensureDeferred
async def test_credentials_in_a_url_reach_no_key_no_log_line_and_no_stat() -> None:
    """Scrapy sends http://user:pw@host/ only through a proxy; a refusal to it is logged and
    counted under the bare host (HG-02)."""
    with OriginThread() as origin:
        plain = origin.url("localhost", "/unsent")
        unsent = plain.replace("localhost", "user:pw@localhost")
        refused = through(origin, "user:pw@shop.example", "/refused?s=429&ra=1")
        result = await crawl([unsent, plain, refused], {"RETRY_ENABLED": False})
        assert len(origin.record("localhost").arrivals) == 1
        assert origin.record("shop.example").by_status == {429: 1}
    assert {url for url, _ in result.failures} == {unsent, refused.url}
    assert set(gates_of(result)) == {"localhost", "shop.example"}
    assert result.stats["hostgate/host/shop.example/refusals"] == 1
    assert any(line.startswith("shop.example: limit 2 -> 1") for line in result.gate_log)
    told = [*result.gate_log, *result.stats, *map(str, result.stats.values())]
    told += [repr(gate) for gate in result.manager.registry]
    told += [f"{key!r} {view} {view!r}" for key, view in result.manager._slots().items()]
    assert [line for line in told if "pw" in line or "user:" in line] == []


# -- slots of the user ----------------------------------------------------------------------------


class SlotPerProxy:
    """What proxy middlewares do: ten proxies in turn, and the proxy as the slot.

    The origin is the proxy, under ten of its addresses.
    """

    def process_request(self, request: Request) -> None:
        number = int(request.url.rpartition("/")[2])
        proxy = f"http://127.0.0.{50 + number % 10}:{request.meta['port']}"
        request.meta["proxy"] = request.meta["download_slot"] = proxy


SLOT_PER_PROXY = {
    "DOWNLOADER_MIDDLEWARES": {
        "scrapy_hostgate.HostGateMiddleware": 1000,
        SlotPerProxy: 610,
    }
}


def for_proxies(origin: Origin) -> list[Request]:
    return [
        Request(f"http://shop.example/{number}", meta={"port": origin.port}) for number in range(40)
    ]


@pytest_twisted.ensureDeferred
async def test_a_slot_per_proxy_does_not_multiply_the_load_on_the_target() -> None:
    """40 requests through ten proxies, each a slot: two at the target (HG-04)."""
    with OriginThread({"shop.example": steady(0.1)}) as origin:
        result = await crawl(for_proxies(origin), SLOT_PER_PROXY)
        record = origin.record("shop.example")
    assert record.peak == 2
    assert len(record.pages()) == 40
    assert all(arrival.proxied for arrival in record.arrivals)
    assert gates_of(result)["shop.example"].departures == 40
    assert set(gates_of(result)) == {"shop.example"}


@pytest_twisted.ensureDeferred
async def test_a_slot_per_proxy_is_the_key_if_the_user_says_so() -> None:
    """With HOSTGATE_KEY = "slot" each of the ten proxies has its own two (HG-04)."""
    with OriginThread({"shop.example": steady(0.3)}) as origin:
        result = await crawl(for_proxies(origin), {**SLOT_PER_PROXY, "HOSTGATE_KEY": "slot"})
        record = origin.record("shop.example")
        proxies = {f"http://127.0.0.{50 + number}:{origin.port}" for number in range(10)}
    assert 2 < record.peak <= 20
    assert len(record.pages()) == 40
    assert set(gates_of(result)) == proxies
    assert {gate.departures for gate in gates_of(result).values()} == {4}
    assert {gate.peak for gate in gates_of(result).values()} <= {1, 2}


ODD_SLOTS: list[Any] = [None, "", 5, ("a", 1), ["b"]]
# With the default queue Scrapy itself fails on a slot that is not a text.
PLAIN_QUEUE = {"SCHEDULER_PRIORITY_QUEUE": ScrapyPriorityQueue}


def with_odd_slots(origin: Origin) -> list[Request]:
    odd = [
        Request(url, meta={"download_slot": slot})
        for url, slot in zip(pages(origin, HOST, len(ODD_SLOTS), "/odd"), ODD_SLOTS)
    ]
    return odd + [Request(url) for url in pages(origin, HOST, 4, "/plain")]


@pytest_twisted.ensureDeferred
async def test_an_odd_download_slot_harms_nothing() -> None:
    """None, an empty text, a number, a tuple, a list: all are answered, two at a time (HG-05)."""
    with OriginThread({HOST: steady(0.3)}) as origin:
        result = await crawl(with_odd_slots(origin), PLAIN_QUEUE)
        record = origin.record(HOST)
    assert record.peak == 2
    assert len(record.pages()) == len(result.answers) == 9
    assert result.failures == []
    assert set(gates_of(result)) == {HOST}
    slots = {a.url.rpartition("/")[2]: a.meta.get("download_slot", "none") for a in result.answers}
    assert [slots[f"odd{number}"] for number in range(5)] == ODD_SLOTS
    assert [slots[f"plain{number}"] for number in range(4)] == ["none"] * 4


@pytest_twisted.ensureDeferred
async def test_an_odd_download_slot_can_be_the_key() -> None:
    """With HOSTGATE_KEY = "slot" None and an empty text mean the host (HG-05)."""
    with OriginThread({HOST: steady(0.1)}) as origin:
        result = await crawl(with_odd_slots(origin), {**PLAIN_QUEUE, "HOSTGATE_KEY": "slot"})
        record = origin.record(HOST)
    assert record.peak <= 2 + 3
    assert len(record.pages()) == len(result.answers) == 9
    departures = {key: gate.departures for key, gate in gates_of(result).items()}
    assert departures == {HOST: 6, "5": 1, "('a', 1)": 1, "['b']": 1}


# -- other keys -----------------------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_the_key_may_be_the_registrable_domain() -> None:
    """With HOSTGATE_KEY = "domain" all names below one share its two, and no others do."""
    ours = ["shop.co.uk", "www.shop.co.uk", "img.www.shop.co.uk"]
    hosts = [*ours, "other.co.uk", "localhost"]
    with OriginThread({"*": steady(0.2)}) as origin:
        result = await crawl(
            (through(origin, host, f"/{number}") for number in range(4) for host in hosts),
            {"HOSTGATE_KEY": "domain"},
        )
        records = origin.records()
    assert peak_of(records[host] for host in ours) == 2
    assert {len(record.arrivals) for record in records.values()} == {4}
    assert result.statuses == [200] * 20
    departures = {key: gate.departures for key, gate in gates_of(result).items()}
    assert departures == {"shop.co.uk": 12, "other.co.uk": 4, "localhost": 4}


def team_key(request: Request) -> str:
    """A user's own key: two hosts are one machine; nothing to say of others; one is a mistake."""
    if "/mistake" in request.url:
        return 7  # type: ignore[return-value]
    if "/bug" in request.url:
        raise LookupError("no such team")
    ours = ("http://127.0.0.2:", "http://127.0.0.3:")
    return "one machine" if request.url.startswith(ours) else ""


@pytest.mark.parametrize("key", [team_key, f"{__name__}.team_key"], ids=["callable", "path"])
@pytest_twisted.ensureDeferred
async def test_the_key_may_be_a_function_of_the_user(key: Any) -> None:
    """Two hosts that the function calls one share two; where it says nothing the host is it."""
    hosts = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    with OriginThread({"*": steady(0.2)}) as origin:
        job = [origin.url(host, f"/{number}") for number in range(4) for host in hosts]
        result = await crawl(job, {"HOSTGATE_KEY": key})
        records = [origin.record(host) for host in hosts]
    assert peak_of(records[:2]) == 2
    assert [len(record.arrivals) for record in records] == [4, 4, 4]
    assert result.statuses == [200] * 12
    departures = {key: gate.departures for key, gate in gates_of(result).items()}
    assert departures == {"one machine": 8, "127.0.0.4": 4}


@pytest_twisted.ensureDeferred
async def test_a_key_function_that_fails_costs_only_its_own_request() -> None:
    """No text or an exception: that request fails unsent with the reason, the others go on."""
    with OriginThread({"*": steady(0.05)}) as origin:
        bad = [origin.url(HOST, "/mistake"), origin.url(HOST, "/bug")]
        result = await crawl([*bad, *pages(origin, HOST, 4)], {"HOSTGATE_KEY": team_key})
        record = origin.record(HOST)
    assert record.pages() == {f"/p{number}" for number in range(4)}
    assert len(record.arrivals) == 4
    errors = dict(result.failures)
    assert set(errors) == set(bad)
    assert isinstance(errors[bad[0]], TypeError)
    assert "7" in str(errors[bad[0]])
    assert isinstance(errors[bad[1]], LookupError)
