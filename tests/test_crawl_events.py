"""The events of real crawls: everything the gate did can be read, and decided again, from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest_twisted
from harness import crawl, pages, pinned

from demo.behaviours import refuse_above
from demo.origin import OriginThread
from scrapy_hostgate.observe.events import GateEvent
from scrapy_hostgate.observe.replay import read_events, replay
from scrapy_hostgate.signals import hostgate_limit_changed

HOST, OTHER = "127.0.0.2", "127.0.0.3"


def told(events: list[dict[str, Any]], host: str) -> list[tuple[int, int, str, int]]:
    """The changes of a host's limit as the file tells them."""
    return [
        (event["from"], event["to"], event["reason"], event["epoch"])
        for event in events
        if event["event"] == "limit" and event["host"] == host
    ]


@pytest_twisted.ensureDeferred
async def test_every_limit_can_be_replayed_from_the_file_alone(tmp_path: Path) -> None:
    """Two hosts that refuse, at four and at two in flight: the samples give the same decisions."""
    path = tmp_path / "logs" / "events.jsonl"
    heard: list[GateEvent] = []

    def hear(event: GateEvent) -> None:
        heard.append(event)

    with OriginThread({HOST: refuse_above(3, 0.3), OTHER: refuse_above(1, 0.3)}) as origin:
        result = await crawl(
            pages(origin, HOST, 10) + pages(origin, OTHER, 6),
            {**pinned(4), "HOSTGATE_RECOVERY_DELAY": 0.5, "HOSTGATE_EVENTS": str(path)},
            on_start=lambda crawler: crawler.signals.connect(hear, hostgate_limit_changed),
        )
        refusals = {host: origin.record(host).refusals for host in (HOST, OTHER)}
    assert result.statuses.count(200) == 16
    events = list(read_events(path))
    again = replay(events)
    for host in (HOST, OTHER):
        decided = [(d.limit_from, d.limit_to, d.reason.value, d.epoch) for _, d in again[host]]
        assert decided == told(events, host)
        assert ("refused" in {reason for _, _, reason, _ in decided}) == (refusals[host] > 0)
        # The host's own count of refusals is the file's.
        refused = [e for e in events if e.get("outcome") == "refused" and e["host"] == host]
        assert len(refused) == refusals[host] > 0
    # The signal carries what the file holds.
    written = [e for e in events if e["event"] in ("limit", "pause", "spacing")]
    assert [(e.kind, e.host, e.before, e.after, e.reason) for e in heard] == [
        (e["event"], e["host"], e["from"], e["to"], e["reason"]) for e in written
    ]
    assert {e["event"] for e in written} == {"limit", "pause", "spacing"}
    ends = {e["host"]: e for e in events if e["event"] == "end"}
    assert ends[HOST]["departures"] == 10 + refusals[HOST]
