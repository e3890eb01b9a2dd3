"""The report: what it says, that it needs nothing else, and that many hosts are no obstacle."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from scrapy_hostgate.observe import report as report_module
from scrapy_hostgate.observe.history import read_crawl, read_timelines
from scrapy_hostgate.observe.replay import read_events
from scrapy_hostgate.observe.report import length, write_report

LAW = {"start": 2, "ceiling": 4}
TIME = "2026-03-01T12:00:00.000+00:00"


class EventsFile:
    """Writes the lines that a crawl would have written."""

    def __init__(self, folder: Path, **opening: Any) -> None:
        self.path = folder / "events.jsonl"
        self.report = folder / "out" / "report.html"
        self.t = 100.0
        self._lines: list[str] = []
        self.add("open", format=1, part=1, time=TIME, crawl="c", spider="shop", **opening)

    def add(self, event: str, **values: Any) -> None:
        self._lines.append(
            json.dumps({"event": event, "t": self.t, **values}, separators=(",", ":"))
        )

    def host(self, host: str) -> None:
        self.add("host", host=host, law=LAW, state={"changed_at": self.t})

    def sample(self, host: str, outcome: str = "ok", latency_s: float | None = 0.1) -> None:
        self.add("sample", host=host, outcome=outcome, latency_s=latency_s, epoch=0, in_flight=2)

    def refusal(self, host: str, pause_s: float) -> None:
        self.sample(host, "refused", None)
        self.change("limit", host, 2, 1, "refused")
        self.change("pause", host, 0.0, pause_s, "retry_after")

    def change(self, kind: str, host: str, before: float, after: float, reason: str) -> None:
        self.add(kind, host=host, time=TIME, reason=reason, **{"from": before, "to": after})

    def end(self, host: str) -> None:
        self.add("end", host=host, departures=9, limit=1)

    def write(self, drawings: int = 0) -> str:
        """Make the report with at most so many drawings, which take long, and return it."""
        self.path.write_text("\n".join(self._lines) + "\n")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(report_module, "MAX_TIMELINES", drawings)
            write_report(self.path, self.report)
        return self.report.read_text(encoding="utf-8")


class Page(HTMLParser):
    """Every tag with its attributes, and the text outside scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


@pytest.fixture
def events(tmp_path: Path) -> EventsFile:
    """Three hosts: one is fine, one refuses, one slows down."""
    events = EventsFile(tmp_path)
    for host in ("fine.example", "slow.example", "no.example"):
        events.host(host)
        for _ in range(3):
            events.t += 1
            events.sample(host)
    events.change("limit", "slow.example", 2, 1, "slowed")
    events.refusal("no.example", 5.0)
    events.t += 2
    events.change("pause", "no.example", 3.0, 10.0, "retry_after")
    events.change("spacing", "no.example", 0, 0.25, "refused")
    events.t = 200.0
    for host in ("fine.example", "slow.example", "no.example"):
        events.end(host)
    return events


def test_it_says_in_words_what_happened(events: EventsFile) -> None:
    """Pages, refusals, pauses, and which hosts were in trouble: the worst first."""
    text = Page(events.write()).text
    assert (
        "The crawl got 9 pages from 3 hosts in 1 min 40 s. 1 host refused 1 request in 1 incident. "
        "1 host slowed down and got a lower limit for it. Pauses add up to 12 s, most of it at "
        "no.example (12 s). At the end 2 limits stood below the start."
    ) in text
    assert "2026-03-01 12:00:00 UTC" in text
    assert (
        "no.example refused 1 request in 1 incident, was paused for 12 s; its limit went down to 1 "
        "and ended at 1 of 4, with 3 pages got."
    ) in text
    assert text.index("no.example refused") < text.index("slow.example slowed down once")
    assert "2 of 3" in text


def test_it_needs_nothing_but_itself(events: EventsFile) -> None:
    """No script, style, picture or font from anywhere: it opens without a network."""
    html = events.write(drawings=1)
    page = Page(html)
    assert page.count("link") == page.count("img") == page.count("iframe") == 0
    assert all("src" not in attributes for _, attributes in page.tags)
    assert not re.search(r"@import|url\((?!#)", html)
    links = [value for _, attrs in page.tags for name, value in attrs.items() if "href" in name]
    assert all(value is not None and value.startswith("#") for value in links)
    # Light, dark, and a phone's width.
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def test_drawings_share_a_page(events: EventsFile) -> None:
    """One for each host; every id once, every reference to one that is there, units on the axes,
    and no colour of their own."""
    html = events.write(drawings=9)
    page = Page(html)
    assert page.count("figure") == 3
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', html))
    assert used
    assert used <= set(ids)
    assert page.text.count("seconds since the crawl began") == 3
    assert page.text.count("latency, ms") == 3 + 1  # and a heading
    for drawing in re.findall(r"<figure>.*?</figure>", html, flags=re.DOTALL):
        assert "<style" not in drawing
        assert set(re.findall(r"#[0-9a-f]{6}\b", drawing)) <= {"#000000", "#ffffff"}


def test_odd_host_names_cannot_break_the_page(tmp_path: Path) -> None:
    """A key function may make anything of a host."""
    events = EventsFile(tmp_path)
    key = '</td><script>alert("$x")</script>\n\ud800'
    events.host(key)
    events.sample(key)
    events.refusal(key, 1.0)
    html = events.write()
    assert html.count("<script>") == 1
    assert "&lt;script&gt;alert(&quot;$x&quot;)" in html
    assert "killed, or still runs" in html


def test_five_thousand_hosts(tmp_path: Path) -> None:
    """All in the table, the troubled first and some of them drawn."""
    events = EventsFile(tmp_path)
    for number in range(5000):
        host = f"h{number}.example"
        events.host(host)
        events.sample(host)
        if number % 250 == 0:
            events.refusal(host, 1.0 + number)
        events.end(host)
    html = events.write(drawings=2)
    page = Page(html)
    assert page.count("tr") == 5001
    assert page.count("figure") == 2
    rows = re.findall(r'<td title="(.*?)">', html)
    assert rows[:20] == [f"h{number}.example" for number in range(4750, -1, -250)]
    assert "and 12 more, in the table below." in page.text
    assert len(html) < 3_000_000


def test_without_matplotlib_it_says_how_to_get_timelines(
    events: EventsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words and the table are there all the same."""
    monkeypatch.setattr(report_module, "can_draw", lambda: False)
    page = Page(events.write())
    assert page.count("figure") == 0
    assert "pip install 'scrapy-hostgate[report]'" in page.text
    assert page.count("tr") == 4


def test_parts_that_are_lost_are_owned_up_to(tmp_path: Path) -> None:
    """Counts that are too low must not look exact."""
    events = EventsFile(tmp_path)
    events._lines[0] = events._lines[0].replace('"part":1', '"part":3')
    events.host("a.example")
    events.end("a.example")
    assert "2 older parts of the events file had been rotated away" in events.write()


def test_gaps_are_explained(events: EventsFile) -> None:
    """An answer without a usable latency is a page like any other, but cannot be drawn."""
    events.sample("fine.example", "ok", None)
    html = events.write()
    assert "The crawl got 10 pages" in html
    assert "1 latency could not be used" in html


def test_a_timeline_has_the_file_s_own_times(events: EventsFile) -> None:
    """Limits from when they held, pauses joined, refusals and latencies where they were."""
    events.write()
    crawl = read_crawl(read_events(events.path))
    line = read_timelines(read_events(events.path, ["no.example"]), crawl, ["no.example"])[
        "no.example"
    ]
    assert line.limits == [(6.0, 2), (9.0, 1), (100.0, 1)]
    assert line.pauses == [(9.0, 21.0)]
    (refused,) = line.refusals
    assert refused == pytest.approx(9.0, abs=100 / 240)
    assert [latency for _, latency in line.latency_s] == [0.1] * 3
    assert max(most for _, most in line.in_flight) == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "0.2 s"),
        (12, "12 s"),
        (100, "1 min 40 s"),
        (5400, "1 h 30 min"),
        (90_000, "25 h 0 min"),
    ],
)
def test_lengths_in_words(seconds: float, text: str) -> None:
    assert length(seconds) == text
