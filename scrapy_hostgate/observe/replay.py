"""Reads events files, and makes the decisions in them again from the samples alone."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from scrapy_hostgate.checkpoint import load
from scrapy_hostgate.controller import Controller, Decision, Law
from scrapy_hostgate.observe.events import FORMAT, parts_of
from scrapy_hostgate.outcome import Outcome, Sample


def read_events(path: Path, hosts: Collection[str] | None = None) -> Iterator[dict[str, Any]]:
    """The lines of the newest crawl in an events file and its older parts, in order.

    With ``hosts`` only theirs, in a fraction of the time if they are few. What is no line (a last
    one that a full disk or a killed crawl cut short) is skipped. Raises ``OSError``, and
    ``ValueError`` for a file that is none of ours.
    """
    crawl = _opening(path).get("crawl")
    for part in parts_of(path):
        if part == path or _opening(part).get("crawl") == crawl:
            with part.open(encoding="utf-8", errors="replace") as lines:
                yield from _parsed(lines if hosts is None else _of_hosts(lines, hosts))


def replay(events: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[float, Decision]]]:
    """What the law decides on the recorded samples: (monotonic seconds, decision) by host."""
    controllers: dict[str, Controller] = {}
    decisions: dict[str, list[tuple[float, Decision]]] = {}
    for event in events:
        kind, host = event["event"], event.get("host", "")
        decision: Decision | None = None
        if kind == "host":
            controllers[host] = load(Law(**event["law"]), event["state"])
        elif kind == "sample":
            decision = _observe(controllers[host], event)
        elif kind == "resize":
            decision = controllers[host].resize(event["limit"], event["t"])
        if decision is not None:
            decisions.setdefault(host, []).append((event["t"], decision))
    return decisions


def _observe(controller: Controller, event: Mapping[str, Any]) -> Decision | None:
    outcome = Outcome(event["outcome"])
    sample = Sample(outcome, event["latency_s"], event["epoch"], event["in_flight"])
    paused = event.get("paused", False)
    if outcome is Outcome.OK and sample.latency_s is None:
        return controller.observe_served(sample, event["t"], paused=paused)
    return controller.observe(sample, event["t"], paused=paused)


def _opening(path: Path) -> dict[str, Any]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        first = next(_parsed(lines), {})
    if first.get("event") != "open":
        raise ValueError(f"{path} is no events file of scrapy_hostgate")
    if first.get("format") != FORMAT:
        raise ValueError(f"{path} has the format {first.get('format')!r}, not {FORMAT}")
    return first


def _of_hosts(lines: Iterable[str], hosts: Collection[str]) -> Iterator[str]:
    """Lines of these hosts, told by their text: reading all as JSON takes ten times as long."""
    wanted = {json.dumps(host) for host in hosts}
    for line in lines:
        begin = line.find('"host":"') + len('"host":')
        name = line[begin : line.find('"', begin + 1) + 1]
        # A quote within the name is written with a backslash, and cuts it short here.
        if name in wanted or "\\" in name:
            yield line


def _parsed(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and "event" in value:
            yield value
