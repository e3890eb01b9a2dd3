"""The hosts of the demo: what each of them does to its visitors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DemoHost:
    """``behaviour`` is what :mod:`demo.origin_config` understands; ``pages`` includes the front."""

    address: str
    name: str
    what: str
    pages: int
    behaviour: Mapping[str, Any]

    @property
    def paths(self) -> list[str]:
        """The front page and all others."""
        return ["/", *(f"/page/{number}" for number in range(2, self.pages + 1))]


# The numbers of pages are such that every host is done after 25 to 40 seconds, and the latencies
# such that a busy machine is not the one that sets the pace.
HOSTS = (
    DemoHost(
        "127.0.0.11",
        "steady",
        "answers in 0.5 s, always",
        120,
        {"behaviour": "steady", "latency": 0.5},
    ),
    DemoHost(
        "127.0.0.12",
        "crowded",
        "says 429 to the 4th at a time",
        110,
        {"behaviour": "refuse_above", "n": 3, "latency": 0.3},
    ),
    DemoHost(
        "127.0.0.13",
        "outage",
        "says 503 from second 5 to 9",
        130,
        {
            "behaviour": "outage",
            "start": 5,
            "length": 4,
            "latency": 0.2,
            "status": 503,
            "retry_after": "remaining",
        },
    ),
    DemoHost(
        "127.0.0.14",
        "slowdown",
        "0.15 s, but 1 s for pages 81 to 90",
        240,
        # By number and not by time: what is normal takes some sixty pages to learn, however long
        # a busy machine needs for them.
        {
            "behaviour": "scripted",
            "replies": [{"delay": 0.15}] * 80 + [{"delay": 1.0}] * 10,
            "then": {"delay": 0.15},
        },
    ),
    DemoHost(
        "127.0.0.15",
        "tarpit",
        "takes 6 s for every answer",
        7,
        {"behaviour": "tarpit", "latency": 6.0},
    ),
)


def origin_config() -> dict[str, Any]:
    """The configuration of a process that plays them all, on the loopback interface only."""
    return {
        # 127.0.0.1 is where the record is asked for.
        "listen": ["127.0.0.1", *(host.address for host in HOSTS)],
        "hosts": {host.address: dict(host.behaviour) for host in HOSTS},
    }
