"""What a worker and the fleet say to each other about one host.

A worker says everything it has to say in one :class:`Talk`: which downloads it has in flight,
which have ended, what it decided and how many it would like to send. The fleet answers with one
:class:`Told`. So a departure costs two round trips at most, its grant and its end, and every step
is atomic where the fleet keeps its state. Saying the same thing twice changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

Wake = Callable[[str, float], None]
"""Called with a host key when somebody of this worker should ask there again in so many seconds."""


class FleetError(Exception):
    """The fleet cannot be asked now. The message holds no secret."""


class Why(str, enum.Enum):
    """Why an ask was not granted."""

    LIMIT = "limit"
    """As many are in flight as may be, or others have waited longer."""
    PAUSE = "pause"
    SPACING = "spacing"


@dataclass(frozen=True, slots=True)
class Bounds:
    """A worker's own bounds of a host, and how the fleet's keys live. Times are seconds.

    ``spacing_s`` is the least time from a departure to the next; ``rate_s`` and ``burst`` are the
    interval and the burst of a rate (GCRA). ``wait_s`` is how soon a waiting worker asks again at
    the latest: whoever has not been heard of for twice as long has left the queue.
    """

    start: int = 2
    ceiling: int = 4
    spacing_s: float = 0.0
    rate_s: float = 0.0
    burst: int = 1
    lease_s: float = 15.0
    ttl_s: float = 3600.0
    wait_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Change:
    """A decision to set the limit: it counts only if ``epoch`` is still the fleet's."""

    epoch: int
    limit: int
    reason: str
    refused: bool = False
    lesson: str = ""
    """What else the worker learnt by it, for the others; the fleet does not read it."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a worker last heard, for a fleet that has forgotten everything."""

    epoch: int = 0
    limit: int = 0
    reason: str = ""
    lesson: str = ""


@dataclass(frozen=True, slots=True)
class Talk:
    """What a worker says about a host, all at once.

    ``held`` are the ids of its downloads in flight, ``ended`` of downloads that have ended and of
    asks withdrawn, ``asks`` of requests that would like to depart, in their order. ``pause_s`` is
    how long the worker itself wants nobody to depart; it can only lengthen a pause.
    """

    worker: str
    bounds: Bounds
    held: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    change: Change | None = None
    pause_s: float = 0.0
    refusals: int = 0
    known: Known = Known()


@dataclass(frozen=True, slots=True)
class Granted:
    """One may depart, now. ``in_flight`` counts it and everybody else's."""

    in_flight: int


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Not now: ask again after so many seconds, or when woken."""

    after_s: float
    why: Why


@dataclass(frozen=True, slots=True)
class Told:
    """The fleet's answer: the state that everybody shares, and one answer for each ask."""

    now_s: float
    """The fleet's own clock, Unix seconds."""
    epoch: int
    limit: int
    reason: str
    lesson: str
    pause_s: float
    in_flight: int
    workers: int
    incidents: int
    changed: bool = False
    """Whether the worker's change was the one that counted."""
    lost: int = 0
    """How many of its downloads in flight the fleet no longer knew."""
    answers: dict[str, Granted | AskAgain] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostRow:
    """One host as the whole fleet sees it."""

    host: str
    limit: int
    start: int
    ceiling: int
    in_flight: int
    waiting: int
    """How many workers wait."""
    workers: int
    pause_s: float
    refusals: int
    incidents: int
    reason: str
    """Why the limit was last set; empty if it never was."""


class Fleet(Protocol):
    """Where the shared state is kept."""

    def __repr__(self) -> str: ...

    async def talk(self, host: str, said: Talk) -> Told:
        """Say ``said`` about ``host``. Raises :exc:`FleetError` if there is nobody to hear it."""

    async def ping(self) -> None:
        """Raises :exc:`FleetError` unless there is somebody who would hear."""

    async def hosts(self) -> list[HostRow]:
        """Every host that anybody has asked about lately. Raises :exc:`FleetError`."""

    def listen(self, worker: str, wake: Wake) -> Awaitable[None]:
        """Call ``wake`` whenever ``worker`` is woken; runs until it is cancelled."""

    async def close(self) -> None:
        """Let go of every connection."""
