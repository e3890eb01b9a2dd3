"""The scheduler queue that knows the gates: no closed host holds up an open one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from child import run_child
from harness import JobSpider, Result, assert_spaced, crawl, pages, pinned
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider
from scrapy.http import Response
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.settings import default_settings
from scrapy.squeues import PickleFifoDiskQueue

from demo.behaviours import Behaviour, Reply, outage, scripted, steady
from demo.origin import OriginThread
from scrapy_hostgate import HostGatePriorityQueue, HostGateSettingsError

SLOW, FAST = "127.0.0.2", "127.0.0.3"
OURS: dict[str, Any] = {"SCHEDULER_PRIORITY_QUEUE": HostGatePriorityQueue}
STOCK: dict[str, Any] = {"SCHEDULER_PRIORITY_QUEUE": DownloaderAwarePriorityQueue}
PLAIN: dict[str, Any] = {"SCHEDULER_PRIORITY_QUEUE": ScrapyPriorityQueue}

# Scrapy 2.14 leaves the file of an empty disk queue open when it resumes a crawl.
resumes = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <_io.FileIO name=.*requests.queue"
    ":pytest.PytestUnraisableExceptionWarning"
)


class UntilSpider(JobSpider):
    """Stops as soon as ``until`` pages of the host named ``of`` have come."""

    def __init__(self, of: str = "", until: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.of = of
        self.until = until

    def parse(self, response: Response) -> Any:
        self.note(response)
        if sum(self.of in answer.url for answer in self.answers) >= self.until:
            raise CloseSpider("enough")


def last_answer(result: Result, host: str) -> float:
    """When the last page of a host came, monotonic seconds."""
    return max(answer.at for answer in result.answers if host in answer.url)


async def slow_then_fast(
    settings: dict[str, Any], slow: str, fast: str, behaviour: Behaviour, **arguments: Any
) -> tuple[float, list[float]]:
    """HG-14: 20 pages of a slow host pinned to one, then 20 of a fast one, eight in all.

    Gives the seconds in which the fast host was done, and when the slow one was asked.
    """
    with OriginThread({slow: behaviour, fast: steady(0.02)}) as origin:
        result = await crawl(
            [*pages(origin, slow, 20), *pages(origin, fast, 20)],
            {**pinned(1), "CONCURRENT_REQUESTS": 8, **settings},
            spider=UntilSpider,
            **{"of": fast, "until": 20, **arguments},
        )
        assert origin.record(slow).peak == 1
        asked = [arrival.at for arrival in origin.record(slow).arrivals]
        assert len(origin.record(fast).pages()) == 20
    return last_answer(result, fast) - asked[0], asked


@pytest.mark.parametrize(("slow", "fast"), [(SLOW, FAST), (FAST, SLOW)], ids=["a", "d"])
@pytest_twisted.ensureDeferred
async def test_a_slow_host_does_not_hold_up_a_fast_one(slow: str, fast: str) -> None:
    """The fast host's twenty pages come within 1.5 s, whichever name sorts first, and the slow
    host never has more than its one request outside the queue (HG-14 a and d)."""
    most = 0

    def look(crawler: Crawler) -> None:
        def sent(request: Request) -> None:
            nonlocal most
            assert crawler.engine is not None
            here = [r for r in crawler.engine.downloader.active if slow in r.url]
            most = max(most, len(here))

        crawler.signals.connect(sent, signals.request_reached_downloader, weak=False)

    fast_done, _ = await slow_then_fast(OURS, slow, fast, steady(0.3), on_start=look)
    assert fast_done <= 1.5
    assert most == 1


@pytest_twisted.ensureDeferred
async def test_with_scrapys_plain_queue_a_slow_host_may_hold_up_others(
    record_property: Any,
) -> None:
    """Nothing is promised with ScrapyPriorityQueue but the bound: how long the fast host takes is
    recorded (HG-14 b)."""
    fast_done, _ = await slow_then_fast(PLAIN, SLOW, FAST, steady(0.1))
    record_property("fast_host_done_s", fast_done)


@pytest_twisted.ensureDeferred
async def test_a_paused_host_holds_nothing() -> None:
    """Its first answer is a 429 with Retry-After 2: nothing of it is outside the queue in the
    pause, the fast host is done in 1.5 s, and it is asked again when the pause ends: the engine is
    woken and does not wait for its heartbeat (HG-14 c)."""
    active: list[int] = []

    def look(crawler: Crawler) -> None:
        def answered(response: Response) -> None:
            assert crawler.engine is not None
            if FAST in response.url:
                active.append(sum(SLOW in r.url for r in crawler.engine.downloader.active))

        crawler.signals.connect(answered, signals.response_received, weak=False)

    refuses_once = scripted([Reply(429, {"Retry-After": "2"})], Reply(delay=0.05))
    fast_done, asked = await slow_then_fast(
        OURS, SLOW, FAST, refuses_once, of=SLOW, until=1, on_start=look
    )
    assert fast_done <= 1.5
    # All but the very first answers came in the pause.
    assert active[3:] == [0] * 17
    assert 1.9 <= asked[1] - asked[0] <= 3.5


@pytest_twisted.ensureDeferred
async def test_a_broad_crawl_is_as_fast_as_its_healthy_hosts() -> None:
    """Twenty healthy hosts, four that let every client hang, three that refuse for a while: every
    page comes; a tarpit has one request outside the queue at a time and a paused host none, so
    eight places leave at least four for the healthy hosts."""
    healthy = [f"127.0.1.{n}" for n in range(1, 21)]
    tarpits = [f"127.0.2.{n}" for n in range(1, 5)]
    sick = [f"127.0.3.{n}" for n in range(1, 4)]
    behaviours = {
        **dict.fromkeys(healthy, steady(0.05)),
        **dict.fromkeys(tarpits, steady(1.5)),
        **dict.fromkeys(sick, outage(0.0, 1.5, 0.05, retry_after="1")),
    }
    settings = {**OURS, "CONCURRENT_REQUESTS": 8, "HOSTGATE_SLOW_LATENCY": 1.0}
    with OriginThread(behaviours) as origin:
        job = [
            origin.url(host, f"/{n}")
            for n in range(5)
            for host in [*tarpits, *sick, *healthy]
            if n < 2 or host not in tarpits
        ]
        outside: list[int] = []

        def look(crawler: Crawler) -> None:
            def sent() -> None:
                assert crawler.engine is not None
                urls = [request.url for request in crawler.engine.downloader.active]
                outside.append(max(sum(f"{host}:" in url for url in urls) for host in tarpits))

            crawler.signals.connect(sent, signals.request_reached_downloader, weak=False)

        result = await crawl(job, settings, on_start=look)
        records = {host: origin.record(host) for host in [*healthy, *tarpits, *sick]}
    assert len(result.answers) == len(job) == 100 + 8 + 15
    assert result.failures == []
    assert max(outside) == 1
    assert [records[host].peak for host in tarpits] == [1] * 4
    for host in sick:
        refused = [a.at for a in records[host].arrivals if a.status == 503]
        assert not any(records[host].arrivals_between(at + 0.01, at + 0.9) for at in refused)
    began = min(record.arrivals[0].at for record in records.values())
    # 100 pages of 0.05 s in four places take 1.25 s; the machine may be busy.
    assert max(last_answer(result, host) for host in healthy) - began <= 6.0


@pytest_twisted.ensureDeferred
async def test_the_engine_is_woken_when_a_spaced_host_may_be_asked() -> None:
    """One host, two requests a second, nothing else to do: each leaves in time, none early, and
    none waits outside the queue."""
    settings = {**OURS, "HOSTGATE_HOSTS": {SLOW: {"rate": 2}}}
    with OriginThread({SLOW: steady(0.01)}) as origin:
        result = await crawl(pages(origin, SLOW, 4), settings)
        record = origin.record(SLOW)
    assert_spaced(result, record, 0.5)
    assert max(record.gaps()) <= 1.5
    # Those that came a moment early waited the rest at the gate.
    assert result.stats.get("hostgate/waits", 0) <= 3


@pytest_twisted.ensureDeferred
async def test_a_host_that_opens_by_itself_is_noticed() -> None:
    """One request a second apart at limit two, answers of 2.5 s: the next departs a second after
    the last one, not when it is answered."""
    settings = {**OURS, "HOSTGATE_HOSTS": {SLOW: {"rate": 2}}}
    replies = scripted([Reply(delay=0.01)], Reply(delay=1.2))
    with OriginThread({SLOW: replies}) as origin:
        result = await crawl(pages(origin, SLOW, 5), settings)
        record = origin.record(SLOW)
    assert record.peak == 2
    assert_spaced(result, record, 0.5)
    assert record.gaps()[1] <= 0.9


# -- what never comes to a gate -------------------------------------------------------------------


class Answers:
    """A middleware that answers, drops or breaks some requests before they come to a gate."""

    def process_request(self, request: Request) -> Response | None:
        if "/cached" in request.url:
            return Response(request.url, body=b"from a cache", request=request)
        if "/broken" in request.url:
            raise ValueError("a bug in a middleware")
        return None


@pytest_twisted.ensureDeferred
async def test_requests_that_others_answer_hold_no_place() -> None:
    """Forty pages from a cache and four that fail on the way leave the host open for the rest."""
    settings = {
        **OURS,
        "DOWNLOADER_MIDDLEWARES": {"scrapy_hostgate.HostGateMiddleware": 1000, Answers: 500},
    }
    with OriginThread({SLOW: steady(0.01)}) as origin:
        job = [
            *pages(origin, SLOW, 20, "/cached"),
            *pages(origin, SLOW, 4, "/broken"),
            *pages(origin, SLOW, 4),
            *pages(origin, SLOW, 20, "/cached-too"),
        ]
        result = await crawl(job, settings)
        record = origin.record(SLOW)
    assert len(result.answers) == 44
    assert len(result.failures) == 4
    assert len(record.arrivals) == 4
    assert result.seconds <= 4
    assert repr(result.manager.dispatch) == "<Dispatch sent=0 listeners=0>"


@pytest_twisted.ensureDeferred
async def test_bypassing_requests_do_not_wait_for_the_gate_of_their_host() -> None:
    """The host is paused; what bypasses its gate, and data: URLs, go at once."""
    with OriginThread({}) as origin:
        refused = Request(origin.url(SLOW, "/refused?s=429&ra=2"), meta={"dont_retry": True})
        job = [refused, *pages(origin, SLOW, 3)]
        past = [
            Request(url, meta={"hostgate_bypass": True}) for url in pages(origin, SLOW, 5, "/past")
        ]
        result = await crawl([*job, *past, *(f"data:,{n}" for n in range(5))], OURS)
    times = {answer.url: answer.at - result.started for answer in result.answers}
    assert len(times) == 13
    assert max(times[request.url] for request in past) <= 1.5
    assert max(at for url, at in times.items() if url.startswith("data:")) <= 1.5
    assert min(times[str(url)] for url in job[1:]) >= 1.9


def wrong_key(request: Request) -> str:
    raise LookupError("no such team")


@pytest_twisted.ensureDeferred
async def test_a_key_function_that_fails_costs_only_the_download() -> None:
    """The queue keeps such requests, on disk too, and the errback hears what was wrong."""
    with OriginThread({SLOW: steady(0.01)}) as origin:
        result = await crawl(pages(origin, SLOW, 5), {**OURS, "HOSTGATE_KEY": wrong_key})
    assert [type(error) for _, error in result.failures] == [LookupError] * 5


@pytest.mark.parametrize("off", [{"HOSTGATE_ENABLED": False}, {"DOWNLOADER_MIDDLEWARES": {}}])
@pytest_twisted.ensureDeferred
async def test_without_the_middleware_it_is_scrapys_own_queue(off: dict[str, Any]) -> None:
    """Said once in the log; every page comes."""
    with OriginThread({SLOW: steady(0.01), FAST: steady(0.01)}) as origin:
        job = [*pages(origin, SLOW, 10), *pages(origin, FAST, 10)]
        result = await crawl(job, {**OURS, **off}, clean=False)
    assert len(result.answers) == 20
    said = [line for line in result.gate_log if "works as DownloaderAwarePriorityQueue" in line]
    assert len(said) == 1


@pytest_twisted.ensureDeferred
async def test_the_add_on_brings_the_queue_unless_the_project_has_its_own() -> None:
    """ADDONS alone: our queue; with SCHEDULER_PRIORITY_QUEUE set: that one."""
    settings = {"DOWNLOADER_MIDDLEWARES": {}, "ADDONS": {"scrapy_hostgate.HostGateAddon": 500}}
    result = await crawl(["data:,"], settings)
    assert result.crawler.settings["SCHEDULER_PRIORITY_QUEUE"] is HostGatePriorityQueue
    result = await crawl(["data:,"], {**settings, **PLAIN})
    assert result.crawler.settings["SCHEDULER_PRIORITY_QUEUE"] is ScrapyPriorityQueue


@pytest.mark.parametrize("reactor", ["select", "none"])
def test_it_works_on_other_reactors(reactor: str) -> None:
    """A refusal of one second among ten pages: all come, on time, and no timer is left."""
    if reactor == "none" and not hasattr(default_settings, "TWISTED_REACTOR_ENABLED"):
        pytest.skip("this Scrapy needs a reactor")
    with OriginThread({SLOW: scripted([Reply(429, {"Retry-After": "1"})])}) as origin:
        job = [*pages(origin, SLOW, 5), *pages(origin, FAST, 5)]
        settings = {"SCHEDULER_PRIORITY_QUEUE": "scrapy_hostgate.HostGatePriorityQueue"}
        result = run_child(job, settings, reactor=reactor)
        record = origin.record(SLOW)
    assert result.returncode == 0, result.log
    assert len(result.answers) == 10
    assert 0.94 <= record.gaps()[0] <= 2.5


# -- idle, closing, JOBDIR ------------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_a_request_behind_a_pause_keeps_the_spider_open() -> None:
    """One page, refused for two seconds, and nothing else to do (HG-21 b)."""
    with OriginThread({SLOW: scripted([Reply(429, {"Retry-After": "2"})])}) as origin:
        result = await crawl(pages(origin, SLOW, 1), OURS)
        assert 1.9 <= origin.record(SLOW).gaps()[0] <= 3.5
    assert result.statuses == [200]
    assert result.stats["finish_reason"] == "finished"


@pytest_twisted.ensureDeferred
async def test_closing_does_not_wait_for_a_pause_and_the_disk_keeps_the_rest(
    tmp_path: Path,
) -> None:
    """A pause of a minute, ten pages behind it, the spider closes after a second: it has closed
    soon after, nothing was sent in the pause, and all ten are in the JOBDIR (HG-21 a)."""
    settings = {**OURS, "JOBDIR": str(tmp_path), "CLOSESPIDER_TIMEOUT": 1}
    with OriginThread({SLOW: scripted([Reply(429, {"Retry-After": "60"})])}) as origin:
        result = await crawl(pages(origin, SLOW, 10), settings)
        assert len(origin.record(SLOW).arrivals) == 1
    assert result.seconds <= 6
    state = json.loads((tmp_path / "requests.queue" / "active.json").read_text())
    # The refused one's priority was lowered by its retry.
    assert {name: set(levels) for name, levels in state.items()} == {SLOW: {0, 1}}
    assert result.stats["scheduler/enqueued/disk"] - result.stats["scheduler/dequeued/disk"] == 10


@resumes
@pytest.mark.parametrize(("first", "second"), [(STOCK, OURS), (OURS, STOCK), (OURS, OURS)])
@pytest_twisted.ensureDeferred
async def test_a_crawl_resumes_with_either_queue(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    """Begun with one and stopped in the middle, a second run with the other fetches the rest: pages
    of two hosts, under a slot of the user's that holds both, bypassing ones and data: URLs."""
    jobdir = {"JOBDIR": str(tmp_path), **pinned(1)}
    with OriginThread({SLOW: steady(0.03), FAST: steady(0.03)}) as origin:
        job = [
            *(Request(url) for url in pages(origin, SLOW, 8)),
            *(Request(url) for url in pages(origin, FAST, 8)),
            *(Request(url, meta={"download_slot": "mine"}) for url in pages(origin, FAST, 5, "/m")),
            *(Request(url, meta={"download_slot": "mine"}) for url in pages(origin, SLOW, 5, "/m")),
            *(Request(url, meta={"hostgate_bypass": True}) for url in pages(origin, SLOW, 5, "/b")),
            *(Request(f"data:,{n}") for n in range(5)),
        ]
        jobs = [request.replace(dont_filter=False) for request in job]

        def push_all(crawler: Crawler) -> None:
            # All at once, so that they are in the queue when the spider closes.
            def opened() -> None:
                assert crawler.engine is not None
                assert crawler.spider is not None
                for request in jobs:
                    crawler.engine.crawl(crawler.spider.ask(request))  # type: ignore[attr-defined]

            crawler.signals.connect(opened, signals.spider_opened, weak=False)

        began = await crawl(
            [], {**jobdir, **first}, spider=UntilSpider, of="", until=8, on_start=push_all
        )
        resumed = await crawl([], {**jobdir, **second})
        assert origin.record(SLOW).peak <= 1 + 5
        assert origin.record(FAST).peak == 1
    urls = [answer.url for answer in [*began.answers, *resumed.answers]]
    assert sorted(urls) == sorted(request.url for request in job)
    assert len(resumed.answers) >= 10


@pytest_twisted.ensureDeferred
async def test_what_cannot_be_written_to_disk_waits_in_memory(tmp_path: Path) -> None:
    """Requests with a callback that cannot be pickled, among others of the same host, limit one."""
    answers: list[str] = []
    with OriginThread({SLOW: steady(0.01)}) as origin:
        job = [
            Request(url, callback=lambda response: answers.append(response.url))
            for url in pages(origin, SLOW, 5, "/memory")
        ]
        settings = {**OURS, **pinned(1), "JOBDIR": str(tmp_path)}
        result = await crawl([*pages(origin, SLOW, 5), *job], settings)
    assert len(result.answers) == len(answers) == 5
    assert result.stats["scheduler/unserializable"] == 5
    assert result.stats["scheduler/enqueued/memory"] == 5
    assert json.loads((tmp_path / "requests.queue" / "active.json").read_text()) == {}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
@resumes
@pytest_twisted.ensureDeferred
async def test_few_hosts_have_their_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty hosts with requests on disk and files for four: all are asked, in one run or the next,
    and there are never more files open than for four (two each: one of start requests)."""
    monkeypatch.setattr("scrapy_hostgate.pqueue._most_open", lambda: 4)
    hosts = [f"127.0.1.{n}" for n in range(1, 31)]
    most = 0

    def look(crawler: Crawler) -> None:
        def scheduled() -> None:
            nonlocal most
            files = [os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()]
            most = max(
                most, sum(file.startswith(str(tmp_path / "requests.queue")) for file in files)
            )

        crawler.signals.connect(scheduled, signals.request_scheduled, weak=False)

    with OriginThread({"*": steady(0.02)}) as origin:
        job = [origin.url(host, f"/{n}") for n in range(3) for host in hosts]
        settings = {**OURS, "JOBDIR": str(tmp_path), "CONCURRENT_REQUESTS": 4}
        began = await crawl(job, settings, spider=UntilSpider, of="", until=20, on_start=look)
        resumed = await crawl([], settings, on_start=look)
    left = began.stats["scheduler/enqueued/disk"] - began.stats["scheduler/dequeued/disk"]
    assert len(resumed.answers) == left > 0
    assert 0 < most <= 8


def test_the_state_of_another_kind_of_queue_is_refused() -> None:
    """What ScrapyPriorityQueue leaves is a list: it cannot be resumed, and the error says why."""
    state: Any = [0, -1]
    with pytest.raises(HostGateSettingsError, match="queued by another SCHEDULER_PRIORITY_QUEUE"):
        HostGatePriorityQueue(Crawler(JobSpider), PickleFifoDiskQueue, "jobs/requests", state)


@pytest_twisted.ensureDeferred
async def test_priorities_hold_within_a_host() -> None:
    """The urgent page of a host with limit one is the next after those that have departed."""
    with OriginThread({SLOW: steady(0.05)}) as origin:
        job = [Request(url, priority=n) for n, url in enumerate(pages(origin, SLOW, 8))]

        def push_all(crawler: Crawler) -> None:
            def opened() -> None:
                assert crawler.engine is not None
                assert crawler.spider is not None
                for request in job:
                    crawler.engine.crawl(crawler.spider.ask(request))  # type: ignore[attr-defined]

            crawler.signals.connect(opened, signals.spider_opened, weak=False)

        await crawl([], {**OURS, **pinned(1)}, on_start=push_all)
        order = [arrival.path for arrival in origin.record(SLOW).arrivals]
    assert order == [f"/p{n}" for n in reversed(range(8))]
