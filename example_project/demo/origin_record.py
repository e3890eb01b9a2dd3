"""What the origin saw: every arrival, and how many requests overlapped.

All times are ``time.monotonic()`` seconds. On Linux that clock is shared by all processes of a
machine, so the record of an origin in another process can be compared with one's own times.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

REFUSAL_STATUSES = frozenset({429, 503})


@dataclass(slots=True)
class Arrival:
    """One request, from its head being fully read until just before its answer is complete."""

    host: str
    number: int  # 1-based, per host
    at: float
    since_start: float  # seconds since the server started
    path: str  # with its query, without scheme and host
    in_flight: int  # overlap at this host, this request included
    port: int  # of the listener it came in through
    method: str = "GET"
    headers: dict[str, str] = field(default_factory=dict)  # names in lower case
    proxied: bool = False  # absolute-form target: the origin was used as a proxy
    connection: int = 0  # the same number on two arrivals: one kept-alive connection
    status: int = 0  # 0: no status line has been sent (yet)
    ended: float | None = None
    completed: bool = False  # False and ended: broken off by either side


@dataclass
class HostRecord:
    """A snapshot of one host's record; it does not change any more."""

    host: str
    arrivals: list[Arrival] = field(default_factory=list)
    overlap: int = 0
    peak: int = 0

    def __repr__(self) -> str:
        return (
            f"<HostRecord {self.host} arrivals={len(self.arrivals)} overlap={self.overlap} "
            f"peak={self.peak} by_status={self.by_status}>"
        )

    @property
    def by_status(self) -> dict[int, int]:
        """Ended arrivals by status; 0 stands for those that ended without a status line."""
        return dict(Counter(a.status for a in self.arrivals if a.ended is not None))

    @property
    def refusals(self) -> int:
        """How many were answered 429 or 503."""
        return sum(a.status in REFUSAL_STATUSES for a in self.arrivals)

    @property
    def first_refusal_at(self) -> float | None:
        """When the first 429 or 503 was answered: no client can have known before."""
        times = (
            a.at if a.ended is None else a.ended
            for a in self.arrivals
            if a.status in REFUSAL_STATUSES
        )
        return min(times, default=None)

    def pages(self) -> set[str]:
        """The distinct paths (with query) whose answer was 200 and complete."""
        return {a.path for a in self.arrivals if a.status == 200 and a.completed}

    def gaps(self) -> list[float]:
        """Seconds between each arrival and the next."""
        times = [a.at for a in self.arrivals]
        return [later - earlier for earlier, later in pairwise(times)]

    def arrivals_between(self, t0: float, t1: float) -> list[Arrival]:
        """Arrivals with t0 <= at < t1 (monotonic seconds)."""
        return [a for a in self.arrivals if t0 <= a.at < t1]

    def as_json(self) -> dict[str, Any]:
        """Plain values for ``json``; :meth:`from_json` is the way back."""
        return {**asdict(self), "refusals": self.refusals, "by_status": self.by_status}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HostRecord:
        """Build the record that :meth:`as_json` was called on."""
        arrivals = [Arrival(**arrival) for arrival in data["arrivals"]]
        return cls(data["host"], arrivals, data["overlap"], data["peak"])


class Recorder:
    """The live record. Written by the server's thread, read from any.

    Mutable state: ``_hosts`` (guarded by ``_lock``) and ``started_at``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hosts: dict[str, HostRecord] = {}
        self.started_at = time.monotonic()

    def arrive(self, host: str, path: str, port: int, **more: Any) -> tuple[Arrival, float]:
        """Count a request in; give it and the seconds since the first arrival at this host."""
        with self._lock:
            at = time.monotonic()
            record = self._hosts.setdefault(host, HostRecord(host))
            record.overlap += 1
            record.peak = max(record.peak, record.overlap)
            arrival = Arrival(
                host=host,
                number=len(record.arrivals) + 1,
                at=at,
                since_start=at - self.started_at,
                path=path,
                in_flight=record.overlap,
                port=port,
                **more,
            )
            record.arrivals.append(arrival)
            return arrival, at - record.arrivals[0].at

    def answering(self, arrival: Arrival, status: int) -> None:
        """Note the status, just before the status line is written."""
        with self._lock:
            arrival.status = status

    def leave(self, arrival: Arrival, *, completed: bool) -> None:
        """Count a request out, once: later calls change nothing."""
        with self._lock:
            if arrival.ended is None:
                arrival.ended = time.monotonic()
                arrival.completed = completed
                self._hosts[arrival.host].overlap -= 1

    def hosts(self) -> list[str]:
        """The hosts seen so far, in order of first arrival."""
        with self._lock:
            return list(self._hosts)

    def snapshot(self, host: str) -> HostRecord:
        """Copy one host's record; an empty one for a host never seen."""
        with self._lock:
            live = self._hosts.get(host, HostRecord(host))
            return replace(live, arrivals=[replace(a) for a in live.arrivals])
