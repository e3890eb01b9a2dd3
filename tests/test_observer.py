"""What the observer passes on: every change once, with its reason, to the signal and the file."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from child import run_child
from fakes import FakeClock, middle
from harness import crawl, pages
from scrapy.extensions.telnet import update_telnet_vars
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler

from demo.behaviours import refuse_above, steady
from demo.origin import OriginThread
from scrapy_hostgate.controller import Reason
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.observe.events import GateEvent
from scrapy_hostgate.observe.observer import Observer
from scrapy_hostgate.observe.replay import read_events, replay
from scrapy_hostgate.outcome import Outcome
from scrapy_hostgate.quota import Quota
from scrapy_hostgate.saved import Saved
from scrapy_hostgate.settings import HostGateSettings
from scrapy_hostgate.signals import hostgate_limit_changed

HOST = "127.0.0.2"


class Watched:
    """One gate with an observer, on a clock of its own, and the events that were heard."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.crawler = get_crawler(settings_dict=settings)
        checked = HostGateSettings.from_settings(Settings(settings))
        self.observer = Observer(
            self.crawler,
            checked,
            lambda: [self.gate],
            clock=self.clock,
            call_later=self.clock.call_later,
        )
        self.gate = Gate(
            "host.example",
            checked.law_for("host.example"),
            checked.pace_for("host.example"),
            clock=self.clock,
            call_later=self.clock.call_later,
            uniform=middle,
            make_controller=self.observer.controller_for("host.example"),
        )
        self.observer.made(self.gate)
        self.heard: list[tuple[str, float, float, str]] = []
        self.crawler.signals.connect(self._hear, signal=hostgate_limit_changed)

    def _hear(self, event: GateEvent) -> None:
        assert event.host == "host.example"
        self.heard.append((event.kind, event.before, event.after, event.reason))

    def answer(self, outcome: Outcome, retry_after_s: float | None = None, **more: Any) -> None:
        permit = self.gate.arrive()
        assert permit.granted
        latency_s = 0.1 if outcome is Outcome.OK else None
        verdict = self.gate.record(permit, outcome, latency_s, retry_after_s)
        self.observer.recorded(self.gate, outcome, verdict, "429", permit=permit, **more)
        self.gate.leave(permit)

    def news(self) -> list[tuple[str, float, float, str]]:
        """What was heard since the last look."""
        news, self.heard[:] = list(self.heard), []
        return news


# -- events -------------------------------------------------------------------------------------


def test_a_refusal_is_a_limit_a_pause_and_a_spacing() -> None:
    """Each with where it was, where it is, and why; an answer that changes nothing is none."""
    host = Watched(HOSTGATE_HOSTS={"host.example": {"rate": 1.0}})
    for _ in range(3):
        host.answer(Outcome.OK)
        host.clock.advance(1.0)
    assert host.news() == []
    host.answer(Outcome.REFUSED, 7.0)
    assert host.news() == [
        ("limit", 2, 1, "refused"),
        ("pause", 0.0, 7.0, "retry_after"),
        ("spacing", 1.0, 2.0, "refused"),
    ]


def test_a_backoff_and_a_detector_are_told_apart() -> None:
    """The reason of a pause is what its length came from."""
    host = Watched()
    host.answer(Outcome.REFUSED)
    assert ("pause", 0.0, 1.0, "backoff") in host.news()
    host.clock.advance(5.0)
    host.answer(Outcome.REFUSED, 9.0, asked_by="the detector")
    assert ("pause", 0.0, 9.0, "detector") in host.news()


def test_a_spacing_that_is_earned_back_is_an_event() -> None:
    """Every step of it, though no limit changes."""
    host = Watched(HOSTGATE_HOSTS={"host.example": {"rate": 1.0}})
    for _ in range(3):
        host.answer(Outcome.OK)
        host.clock.advance(1.0)
    host.answer(Outcome.REFUSED, 1.0)
    host.news()
    host.clock.advance(40.0)
    host.answer(Outcome.OK)
    assert host.news() == [("spacing", 2.0, 1.5, "earned_back")]


def test_what_comes_from_elsewhere_is_told_too() -> None:
    """A quota, robots.txt, and somebody's hand."""
    host = Watched()
    permit = host.gate.arrive()
    host.gate.announced(permit, [Quota(0, 30.0, None)])
    host.observer.looked(host.gate, "quota")
    host.gate.crawl_delay(3.0)
    host.observer.looked(host.gate, "crawl_delay")
    host.observer.resized(host.gate, host.gate.resize(1))
    host.observer.looked(host.gate, "quota")
    assert host.news() == [
        ("pause", 0.0, 30.0, "quota"),
        ("spacing", 0.0, 3.0, "crawl_delay"),
        ("limit", 2, 1, "resized"),
    ]


def test_a_pause_that_grows_says_from_what_to_what() -> None:
    """Seconds that were left, and that are left now."""
    host = Watched()
    first, second = host.gate.arrive(), host.gate.arrive()
    for permit, asked_s in ((first, 5.0), (second, 20.0)):
        verdict = host.gate.record(permit, Outcome.REFUSED, None, asked_s)
        host.observer.recorded(host.gate, Outcome.REFUSED, verdict, "503", permit=permit)
        host.clock.advance(2.0)
    pauses = [event for event in host.news() if event[0] == "pause"]
    assert pauses == [("pause", 0.0, 5.0, "retry_after"), ("pause", 3.0, 20.0, "retry_after")]


def test_a_pause_that_is_capped_is_told_once_and_counted_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A host that asks for more than HOSTGATE_MAX_PAUSE does so at every refusal."""
    host = Watched(HOSTGATE_MAX_PAUSE=10)
    for _ in range(2):
        host.answer(Outcome.REFUSED, 5000.0)
        host.clock.advance(11.0)
    told = [line for line in caplog.messages if "asked for a pause of 5000 s" in line]
    assert len(told) == 1
    assert host.crawler.stats is not None
    assert host.crawler.stats.get_value("hostgate/pauses_capped") == 2


def test_another_worker_that_only_confirms_is_no_change(caplog: pytest.LogCaptureFixture) -> None:
    """A limit that stays what it was is neither counted nor logged; one that moves is both."""
    caplog.set_level(logging.INFO, "scrapy_hostgate")
    host = Watched()
    stats = host.crawler.stats
    assert stats is not None
    for limit in (2, 1):
        known = Saved({}, now=host.clock(), offset_s=0.0)
        epoch = host.gate.controller.epoch + 1
        host.observer.adopted(host.gate, host.gate.adopt(known, limit, epoch, Reason.REFUSED))
        assert stats.get_value("hostgate/fleet/changes_by_others", 0) == 2 - limit
    assert sum("by another worker" in line for line in caplog.messages) == 1


def test_what_comes_after_a_host_was_forgotten_takes_no_memory() -> None:
    """A fleet's answer may be late: the change is passed on, and nothing is kept of it."""
    host = Watched()
    host.observer.forgotten(host.gate)
    permit = host.gate.arrive()
    host.gate.semaphore.retire()
    verdict = host.gate.record(permit, Outcome.REFUSED, None, 7.0)
    host.observer.recorded(host.gate, Outcome.REFUSED, verdict, "429", permit=permit)
    assert host.news() == [("limit", 2, 1, "refused")]
    (row,) = host.observer.board().rows
    assert (row.limit, row.reason, row.limits) == (1, "", ())
    assert not host.observer._known


@pytest.mark.parametrize("usable", [True, False])
def test_a_report_without_matplotlib_or_without_a_folder_is_told_at_the_start(
    usable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The one costs the timelines, the other the report; neither costs the crawl."""
    folder = tmp_path / "running"
    if not usable:
        folder.write_text("a file where the folder should be")
    monkeypatch.setattr("scrapy_hostgate.observe.beacon.runtime_folder", lambda: folder)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    report = tmp_path / "report.html"
    host = Watched(HOSTGATE_REPORT=str(report), HOSTGATE_WATCH=False)
    host.observer._opened()
    host.answer(Outcome.REFUSED, 7.0)
    host.observer.closed()
    host.observer.stop()
    assert any("will have no timelines" in line for line in caplog.messages)
    lost = [line for line in caplog.messages if "events file for the report cannot be" in line]
    assert bool(lost) is not usable
    assert report.exists() is usable
    if usable:
        assert "1 request" in report.read_text(encoding="utf-8")
        assert list(folder.iterdir()) == []


def test_an_echo_is_in_the_file_as_an_answer(tmp_path: Path) -> None:
    """Refusals that change nothing any more are counted all the same."""
    path = tmp_path / "events.jsonl"
    host = Watched(HOSTGATE_EVENTS=str(path), HOSTGATE_WATCH=False)
    host.observer._opened()
    permits = [host.gate.arrive(), host.gate.arrive()]
    for permit in permits:
        verdict = host.gate.record(permit, Outcome.REFUSED, None)
        host.observer.recorded(host.gate, Outcome.REFUSED, verdict, "429", permit=permit)
        host.gate.leave(permit)
    host.observer.closed()
    host.observer.stop()
    events = list(read_events(path))
    assert [e["event"] for e in events] == [
        "open", "host", "sample", "limit", "pause", "sample", "end",
    ]  # fmt: skip
    assert [e["epoch"] for e in events if e["event"] == "sample"] == [0, 0]
    assert events[-1]["refusals"] == 2
    assert host.clock.pending == 0


def test_a_forgotten_host_has_its_last_word(tmp_path: Path) -> None:
    """And takes no room any more."""
    path = tmp_path / "events.jsonl"
    host = Watched(HOSTGATE_EVENTS=str(path), HOSTGATE_WATCH=False)
    host.observer._opened()
    host.answer(Outcome.OK)
    host.observer.forgotten(host.gate)
    assert host.observer._known == {}
    host.observer.stop()
    assert [e["event"] for e in read_events(path)] == ["open", "host", "sample", "end"]


# -- the line while something is wrong ----------------------------------------------------------


def test_trouble_is_a_line_a_minute_and_its_absence_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As often as Scrapy's own line of statistics."""
    caplog.set_level(logging.INFO, "scrapy_hostgate")
    host = Watched(HOSTGATE_WATCH=False)
    host.observer._opened()
    host.clock.advance(150.0)
    assert caplog.messages == []
    host.answer(Outcome.REFUSED, 100.0)
    caplog.clear()
    host.clock.advance(61.0)
    assert caplog.messages == [
        "1 of 1 hosts in trouble: host.example limit 1 of 2 (refused), paused 70 s"
    ]
    host.observer.stop()
    assert host.clock.pending == 0


def test_no_line_where_scrapy_logs_none(caplog: pytest.LogCaptureFixture) -> None:
    """LOGSTATS_INTERVAL = 0 is for both."""
    caplog.set_level(logging.INFO, "scrapy_hostgate")
    host = Watched(HOSTGATE_WATCH=False, LOGSTATS_INTERVAL=0)
    host.observer._opened()
    host.answer(Outcome.REFUSED, 500.0)
    caplog.clear()
    host.clock.advance(300.0)
    assert caplog.messages == []
    host.observer.stop()


# -- the telnet console -------------------------------------------------------------------------


def test_the_telnet_console_has_the_table() -> None:
    """Its name is ``hostgate``, and it is of the moment at which it is printed."""
    host = Watched(TELNETCONSOLE_ENABLED=True)
    names: dict[str, Any] = {}
    host.crawler.signals.send_catch_log(update_telnet_vars, telnet_vars=names)
    before = repr(names["hostgate"])
    host.answer(Outcome.REFUSED, 9.0)
    assert "host.example  paused" not in before
    assert "host.example  paused" in repr(names["hostgate"])


# -- what fails ---------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["/dev/full", "folder"])
@pytest_twisted.ensureDeferred
async def test_events_that_cannot_be_written_end_no_crawl(tmp_path: Path, where: str) -> None:
    """One clear message, every page, and a bound that holds."""
    path = where if where.startswith("/") else str(tmp_path)
    with OriginThread({HOST: refuse_above(1, 0.02)}) as origin:
        result = await crawl(
            pages(origin, HOST, 20), {"HOSTGATE_EVENTS": path, "HOSTGATE_RECOVERY_DELAY": 60}
        )
        record = origin.record(HOST)
    assert len(record.pages()) == 20
    assert record.peak == 2
    told = [line for line in result.gate_log if "events file" in line]
    assert len(told) == 1
    assert "cannot be written" in told[0]


@pytest_twisted.ensureDeferred
async def test_a_listener_that_raises_does_no_harm() -> None:
    """The user's own code hears of changes; its errors are its own."""

    def fail(event: GateEvent) -> None:
        raise RuntimeError("mine")

    with OriginThread({HOST: refuse_above(1, 0.02)}) as origin:
        result = await crawl(
            pages(origin, HOST, 10),
            on_start=lambda crawler: crawler.signals.connect(fail, hostgate_limit_changed),
        )
    assert result.statuses.count(200) == 10
    assert any("mine" in str(record.exc_info) for record in result.log if record.exc_info)


@pytest_twisted.ensureDeferred
async def test_everything_at_once_leaves_nothing_behind(tmp_path: Path) -> None:
    """Events, report, metrics and live view together: no timer, no thread, no file but those that
    were asked for."""
    import threading

    before = set(threading.enumerate())
    with OriginThread({HOST: steady(0.01)}) as origin:
        result = await crawl(
            pages(origin, HOST, 10),
            {
                "HOSTGATE_EVENTS": str(tmp_path / "e.jsonl"),
                "HOSTGATE_REPORT": str(tmp_path / "r.html"),
                "HOSTGATE_PROMETHEUS_PORT": 0,
            },
        )
        left = {thread.name for thread in set(threading.enumerate()) - before} - {"origin"}
    assert result.statuses == [200] * 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.jsonl", "r.html"]  # noqa: ASYNC240
    # Names of hosts are looked up in threads that the reactor keeps for the next crawl.
    assert all(name.startswith(("PoolThread-twisted", "asyncio_")) for name in left), left
    assert result.manager._observer._timer is None


@pytest.mark.parametrize("reactor", ["select", "none"])
def test_everything_works_on_every_reactor(tmp_path: Path, reactor: str) -> None:
    """Events and metrics, without asyncio and without Twisted's reactor."""
    events = tmp_path / "events.jsonl"
    with OriginThread({HOST: refuse_above(1, 0.02)}) as origin:
        result = run_child(
            pages(origin, HOST, 10),
            {"HOSTGATE_EVENTS": str(events), "HOSTGATE_PROMETHEUS_PORT": 0},
            reactor=reactor,
        )
    assert result.returncode == 0, result.log
    assert [status for _, status in result.answers] == [200] * 10
    assert "Metrics for Prometheus on http://127.0.0.1:" in result.log
    told = [e["to"] for e in read_events(events) if e["event"] == "limit"]
    assert told == [decision.limit_to for _, decision in replay(read_events(events))[HOST]]
