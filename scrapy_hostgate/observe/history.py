"""What an events file tells of a crawl: its hosts in figures, and single hosts over time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

POINTS = 240


@dataclass
class HostFigures:
    """One host in figures. Times are seconds, ``limit`` the last one that is known."""

    host: str
    limit: int = 0
    start: int = 0
    ceiling: int = 0
    lowest: int = 0
    pages: int = 0
    answers: int = 0
    refusals: int = 0
    incidents: int = 0
    shrinks: int = 0
    slow: int = 0
    paused_s: float = 0.0
    spacing_s: float = 0.0
    latency_sum_s: float = 0.0
    latencies: int = 0
    spoiled: int = 0
    """Pages whose latency could not be used, because the crawler's own loop stood still."""
    ended: bool = False
    """Whether the file has the host's last word, with which departures are complete."""
    departures: int = 0

    @property
    def mean_s(self) -> float | None:
        return self.latency_sum_s / self.latencies if self.latencies else None

    @property
    def troubled(self) -> bool:
        return bool(self.refusals or self.shrinks or self.paused_s)

    @property
    def trouble(self) -> tuple[bool, float, int, int, int]:
        """Sorts hosts by how much went wrong, most last."""
        return (self.troubled, self.paused_s, self.refusals, self.shrinks, self.answers)


@dataclass
class Crawl:
    """A whole crawl. ``began`` and ``ended`` are seconds of the file's own clock, and
    ``began_at`` is the Unix time of the former; ``parts_lost`` says how many rotated away."""

    spider: str = ""
    began: float = 0.0
    ended: float = 0.0
    began_at: float = 0.0
    parts_lost: int = 0
    complete: bool = False
    hosts: dict[str, HostFigures] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return max(0.0, self.ended - self.began)


def read_crawl(events: Iterable[Mapping[str, Any]]) -> Crawl:
    """All hosts in figures, in one pass that keeps no event."""
    crawl = Crawl()
    for number, event in enumerate(events):
        kind, at = event["event"], event["t"]
        if number == 0:
            crawl.spider = str(event.get("spider") or "crawl")
            crawl.began, crawl.began_at = at, _unix(event["time"])
            crawl.parts_lost = event["part"] - 1
        crawl.ended = max(crawl.ended, at)
        host = event.get("host")
        if host is None:
            continue
        figures = crawl.hosts.get(host)
        if figures is None:
            figures = crawl.hosts[host] = HostFigures(host)
        _READERS[kind](figures, event)
        crawl.complete = crawl.complete or kind == "end"
    return crawl


def _host(figures: HostFigures, event: Mapping[str, Any]) -> None:
    law = event["law"]
    figures.start, figures.ceiling = law["start"], law["ceiling"]
    figures.limit = event["state"].get("limit", law["start"])
    figures.lowest = min(figures.lowest or figures.limit, figures.limit)


def _sample(figures: HostFigures, event: Mapping[str, Any]) -> None:
    outcome, latency_s = event["outcome"], event["latency_s"]
    figures.answers += 1
    figures.ended = False
    if outcome == "refused":
        figures.refusals += 1
    elif outcome == "slow":
        figures.slow += 1
    elif outcome == "ok":
        figures.pages += 1
        if latency_s is not None:
            figures.latencies += 1
            figures.latency_sum_s += latency_s
        else:
            figures.spoiled += 1


def _limit(figures: HostFigures, event: Mapping[str, Any]) -> None:
    figures.limit = event["to"]
    figures.lowest = min(figures.lowest or figures.limit, figures.limit)
    figures.incidents += event["reason"] == "refused"
    figures.shrinks += event["reason"] == "slowed"


def _pause(figures: HostFigures, event: Mapping[str, Any]) -> None:
    figures.paused_s += max(0.0, event["to"] - event["from"])


def _spacing(figures: HostFigures, event: Mapping[str, Any]) -> None:
    figures.spacing_s = event["to"]


def _resize(figures: HostFigures, event: Mapping[str, Any]) -> None:
    """Told again as the limit it changed."""


def _end(figures: HostFigures, event: Mapping[str, Any]) -> None:
    figures.departures += event["departures"]
    figures.ended = True


_READERS = {
    "host": _host,
    "sample": _sample,
    "limit": _limit,
    "pause": _pause,
    "spacing": _spacing,
    "resize": _resize,
    "end": _end,
}


@dataclass
class Timeline:
    """One host over time, in at most :data:`POINTS` stretches of equal length.

    Times are seconds since the crawl began. ``limits`` are (time, limit) at each change,
    ``pauses`` (from, to), ``refusals`` times. ``in_flight`` has the most that any departure of
    each stretch saw, itself included and 0 without one; ``latency_s`` the median of each stretch in
    which a page came.
    """

    limits: list[tuple[float, int]] = field(default_factory=list)
    pauses: list[tuple[float, float]] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    in_flight: list[tuple[float, int]] = field(default_factory=list)
    latency_s: list[tuple[float, float]] = field(default_factory=list)


def read_timelines(
    events: Iterable[Mapping[str, Any]], crawl: Crawl, hosts: Collection[str]
) -> dict[str, Timeline]:
    """The timelines of ``hosts``, in a second pass over the events."""
    readers = {host: _TimelineReader(crawl) for host in hosts}
    for event in events:
        reader = readers.get(event.get("host", ""))
        if reader is not None:
            reader.read(event)
    return {host: reader.finished() for host, reader in readers.items()}


class _TimelineReader:
    def __init__(self, crawl: Crawl) -> None:
        self._began, self._seconds = crawl.began, crawl.seconds
        self._step_s = max(crawl.seconds, 1e-9) / POINTS
        self._line = Timeline()
        self._in_flight = [0] * POINTS
        self._latencies: dict[int, list[float]] = {}
        self._refused: set[int] = set()

    def read(self, event: Mapping[str, Any]) -> None:
        at, kind = event["t"] - self._began, event["event"]
        if kind == "host":
            state = event["state"]
            since = max(0.0, state.get("changed_at", event["t"]) - self._began)
            self._limit(since, state.get("limit", event["law"]["start"]))
        elif kind == "limit":
            self._limit(at, event["to"])
        elif kind == "pause":
            self._pause(at, at + event["to"])
        elif kind == "sample":
            self._sample(at, event)

    def finished(self) -> Timeline:
        line = self._line
        if line.limits:
            line.limits.append((self._seconds, line.limits[-1][1]))
        line.in_flight = [(self._middle(n), most) for n, most in enumerate(self._in_flight)]
        line.latency_s = [
            (self._middle(n), sorted(found)[len(found) // 2])
            for n, found in sorted(self._latencies.items())
        ]
        line.refusals = [self._middle(n) for n in sorted(self._refused)]
        return line

    def _limit(self, at: float, limit: int) -> None:
        if not self._line.limits or self._line.limits[-1][1] != limit:
            self._line.limits.append((at, limit))

    def _pause(self, since: float, until: float) -> None:
        pauses = self._line.pauses
        until = min(until, self._seconds)
        if pauses and since <= pauses[-1][1]:
            pauses[-1] = (pauses[-1][0], max(until, pauses[-1][1]))
        else:
            pauses.append((since, until))

    def _sample(self, at: float, event: Mapping[str, Any]) -> None:
        latency_s = event["latency_s"]
        # It was in flight from its departure to its answer; the count is that of the departure.
        departed, in_flight = self._stretch(at - (latency_s or 0.0)), event["in_flight"]
        for stretch in range(departed, self._stretch(at) + 1):
            if in_flight > self._in_flight[stretch]:
                self._in_flight[stretch] = in_flight
        if event["outcome"] == "refused":
            self._refused.add(self._stretch(at))
        elif event["outcome"] == "ok" and latency_s is not None:
            self._latencies.setdefault(self._stretch(at), []).append(latency_s)

    def _stretch(self, at: float) -> int:
        return min(POINTS - 1, max(0, int(at / self._step_s)))

    def _middle(self, stretch: int) -> float:
        return (stretch + 0.5) * self._step_s


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
