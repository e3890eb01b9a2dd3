"""The law: how many requests a host may have in flight, judged by its answers alone.

Pure and deterministic: time comes in as a number of seconds, nothing is read or written elsewhere,
so a recorded list of samples replays to the same decisions. The vocabulary (limit, sample,
outcome) is that of Netflix's concurrency-limits; the quick collapse and the slow single steps up
follow the shape of AIMD (Chiu and Jain, 1989), with a floor of one and a small ceiling, because
this law exists to shrink promptly and not to discover how much a host will bear.
"""

from __future__ import annotations

import enum
import math
from array import array
from bisect import bisect_right
from dataclasses import dataclass, replace

from scrapy_hostgate.outcome import NEUTRAL, REFUSED, SLOW, Sample
from scrapy_hostgate.saved import Plain, Saved

FLOOR = 1
BASELINE_WINDOW = 64
MIN_SAMPLES = 20
RECENT_WINDOW = 32
SHRINK_FACTOR = 1.5
SHRINK_RUN = 3
WIDEN_FACTOR = 0.6
WIDEN_SAMPLES = 10
WIDEN_INTERVAL_S = 10.0
BASELINE_GAIN = 0.05
BASELINE_DRIFT_PER_MINUTE = 0.05
SHRINK_QUIET_S = 60.0
QUIET_S = 600.0
MAX_RECOVERY_DELAY_S = 600.0
_NEVER = -math.inf
_MOST_US = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Law:
    """The numbers of one host's law.

    ``start`` and ``ceiling`` are requests in flight; ``latency_noise_s``, ``slow_latency_s`` and
    ``recovery_delay_s`` are seconds.
    """

    start: int = 2
    ceiling: int = 4
    latency_noise_s: float = 0.05
    slow_latency_s: float = 5.0
    recovery_delay_s: float = 30.0


class Reason(str, enum.Enum):
    """Why a limit was set. The values are stable: logs, stats and event files carry them."""

    REFUSED = "refused"
    SLOWED = "slowed"
    RECOVERED = "recovered"
    FASTER = "faster"
    RESIZED = "resized"


@dataclass(frozen=True, slots=True)
class Decision:
    """One change of a limit (or a refusal that found it at the floor already), and its grounds.

    Latencies are in seconds; ``None`` where the number was not known or played no part.
    """

    reason: Reason
    limit_from: int
    limit_to: int
    epoch: int
    latency_s: float | None = None
    baseline_s: float | None = None
    median_s: float | None = None
    recovery_delay_s: float | None = None


class Window:
    """The last ``size`` latencies in seconds, rounded to a microsecond, in order of arrival.

    There are two for each host, and as many hosts as the web has, so they are small.
    """

    __slots__ = ("_next", "_ring", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._ring = array("I")
        self._next = 0

    def __len__(self) -> int:
        return len(self._ring)

    def push(self, value: float) -> int:
        """Keep ``value``; say how many are kept now."""
        ring, at = self._ring, self._next
        if len(ring) < self._size:
            ring.append(min(round(value * 1e6), _MOST_US))
        else:
            ring[at] = min(round(value * 1e6), _MOST_US)
        self._next = (at + 1) % self._size
        return len(ring)

    def in_order(self) -> list[float]:
        """The latencies in seconds by arrival, the oldest first."""
        return [us / 1e6 for us in (*self._ring[self._next :], *self._ring[: self._next])]

    def quantile(self, q: float) -> float:
        """The nearest-rank quantile: always a number that was really seen."""
        return sorted(self._ring)[max(0, math.ceil(q * len(self._ring)) - 1)] / 1e6


class SortedWindow(Window):
    """A window of at most 256 that is asked for a quantile each time: kept in order of size too."""

    __slots__ = ("_order",)

    def __init__(self, size: int) -> None:
        super().__init__(size)
        # Places in the ring.
        self._order = bytearray()

    # The two of every answer: nothing of the base class is called from here.
    def push(self, value: float) -> int:
        ring, order, at = self._ring, self._order, self._next
        us = min(round(value * 1e6), _MOST_US)
        if len(ring) < self._size:
            ring.append(us)
        else:
            order.remove(at)
            ring[at] = us
        order.insert(bisect_right(order, us, key=ring.__getitem__), at)
        self._next = (at + 1) % self._size
        return len(ring)

    def quantile(self, q: float) -> float:
        ring = self._ring
        return ring[self._order[max(0, math.ceil(q * len(ring)) - 1)]] / 1e6


# Of a host that has taught nothing (yet): most of a broad crawl's.
_NO_SAMPLES = Window(0)


class Controller:
    """Moves one host's limit. Tell it every sample with :meth:`observe`."""

    # All mutable state: the limit and its epoch; the two windows and the smoothed baseline, and
    # whether that has had a full window to settle on; what was seen since the last change
    # (_reached, _ok_since_change, _slow_run); when and at which level the host last complained, and
    # how long it must now behave before a step back up.
    __slots__ = (
        "_baseline_at",
        "_ok_since_change",
        "_reached",
        "_recent",
        "_refused_level",
        "_served_since_refusal",
        "_settled",
        "_shrunk_at",
        "_slow_run",
        "_window",
        "baseline_s",
        "changed_at",
        "epoch",
        "law",
        "limit",
        "recovery_delay_s",
        "refused_at",
    )

    def __init__(self, law: Law, now: float) -> None:
        self.law = law
        self.limit = law.start
        self.epoch = 0
        self.baseline_s: float | None = None
        self.recovery_delay_s = law.recovery_delay_s
        self._window: Window = _NO_SAMPLES
        self._recent: Window = _NO_SAMPLES
        self._baseline_at = now
        self._settled = False
        self.changed_at = now
        self.refused_at = _NEVER
        """When the host last refused, in seconds of the clock; minus infinity: never."""
        self._refused_level: int | None = None
        self._served_since_refusal = False
        self._shrunk_at = _NEVER
        self._reached = False
        self._ok_since_change = 0
        self._slow_run = 0

    def __repr__(self) -> str:
        baseline = "?" if self.baseline_s is None else f"{self.baseline_s:.3f}s"
        return (
            f"<Controller limit={self.limit}/{self.law.ceiling} epoch={self.epoch} "
            f"baseline={baseline} samples={len(self._window)}>"
        )

    @property
    def median_s(self) -> float | None:
        """Median latency of the last OK samples in seconds, ``None`` before the first."""
        return self._recent.quantile(0.5) if len(self._recent) else None

    def troubled(self, now: float) -> bool:
        """Whether forgetting this host would lose a limit, or a complaint of the last 600 s."""
        return self.limit != self.law.start or now - self.refused_at < QUIET_S

    @property
    def samples(self) -> int:
        """How many OK samples the baseline's window holds."""
        return len(self._window)

    def observe(self, sample: Sample, now: float, *, paused: bool = False) -> Decision | None:
        """Take one sample; return the change it caused, or ``None``.

        A sample that departed in an older epoch answers an older limit and changes nothing.
        ``paused`` says that a pause is running, in which nothing is ever widened.
        """
        if sample.epoch != self.epoch or sample.outcome is NEUTRAL:
            return None
        if sample.outcome is REFUSED:
            return self.refuse(now, sample.in_flight)
        latency = sample.latency_s
        if sample.outcome is SLOW:
            return self._shrink_after_run(latency, now)
        if latency is None or not math.isfinite(latency) or latency <= 0:
            return None
        if sample.in_flight >= self.limit:
            self._reached = True
        self._ok_since_change += 1
        self._served_since_refusal = True
        # Judged before it is learnt: a sample must not lift the bound it is measured by.
        decision, law, baseline = None, self.law, self.baseline_s
        if latency > law.slow_latency_s or (
            baseline is not None
            and latency > SHRINK_FACTOR * baseline
            # A host that answers in 2 ms must not be judged by the jitter of our own event loop.
            and latency - baseline >= law.latency_noise_s
        ):
            decision = self._shrink_after_run(latency, now)
        else:
            self._slow_run = 0
        self._learn(latency, sample.in_flight, now)
        return decision or self._widen(latency, now, paused)

    def observe_served(self, sample: Sample, now: float, *, paused: bool) -> Decision | None:
        """Take an OK whose latency cannot be trusted: it counts as served and teaches no latency.

        A crawler whose every latency is spoiled by its own busy loop still finds back to the start
        after a refusal, by time and by count.
        """
        if sample.epoch != self.epoch:
            return None
        if sample.in_flight >= self.limit:
            self._reached = True
        self._ok_since_change += 1
        self._served_since_refusal = True
        known = self.baseline_s is not None and len(self._recent) > 0
        if known or self.limit >= self.law.start or not self._may_widen(now, paused):
            return None
        return self._recover(now, None)

    def refuse(self, now: float, in_flight: int) -> Decision:
        """Collapse to one: the host said no to ``in_flight`` requests at a time."""
        if self._served_since_refusal and self.refused_at > -math.inf:
            # An outage that refuses every knock is one complaint; being refused again after having
            # been served is a second. Quiet is counted from the last change too: a probe that is
            # refused as soon as it is sent has not been quiet for the long wait before it.
            forgiven = now - max(self.refused_at, self.changed_at) >= QUIET_S
            self.recovery_delay_s = (
                self.law.recovery_delay_s
                if forgiven
                else min(2 * self.recovery_delay_s, MAX_RECOVERY_DELAY_S)
            )
        self._served_since_refusal = False
        self.refused_at = now
        self._refused_level = max(in_flight, FLOOR)
        return self._change(FLOOR, Reason.REFUSED, now)

    def resize(self, limit: int, now: float) -> Decision:
        """Set the limit by hand; the law goes on from there. Raises ``ValueError`` out of range."""
        if not FLOOR <= limit <= self.law.ceiling:
            raise ValueError(f"limit must be from {FLOOR} to {self.law.ceiling}, not {limit!r}")
        return self._change(limit, Reason.RESIZED, now)

    def adopt(self, saved: Saved, limit: int, epoch: int, reason: Reason) -> Decision:
        """Take up the decision of another process that crawls this host.

        ``saved`` is what it exported, without its latencies: it may stand nearer to the host.
        Raises ``ValueError`` for what cannot have been exported.
        """
        before = self.limit
        self.restore(saved)
        self.limit, self.epoch = limit, epoch - 1
        decision = self._change(limit, reason, saved.now)
        return replace(decision, limit_from=before)

    def export(self, now: float, offset_s: float, *, latencies: bool = True) -> Plain:
        """What has been learnt, as plain numbers for :meth:`restore`; empty if nothing has.

        Times become Unix seconds: ``offset_s`` is what has to be added to ours for that. Single
        samples are left out: the baseline stands for them, and the next step has to be earned anew.
        """
        told: Plain = {}
        if latencies and self.baseline_s is not None:
            told["baseline_s"] = self.baseline_s
            told["baseline_at"] = self._baseline_at + offset_s
            told["settled"] = self._settled
        if self.epoch:
            told["epoch"] = self.epoch
        if self.troubled(now):
            told["limit"], told["start"] = self.limit, self.law.start
        if self.recovery_delay_s > self.law.recovery_delay_s:
            told["recovery_delay_s"] = self.recovery_delay_s
        if self._refused_level is not None:
            told["refused_at"] = self.refused_at + offset_s
            told["refused_level"] = self._refused_level
            told["served_since_refusal"] = self._served_since_refusal
        if self._shrunk_at > -math.inf:
            told["shrunk_at"] = self._shrunk_at + offset_s
        return told

    def restore(self, saved: Saved) -> None:
        """Go on from what was exported, within today's law.

        Raises ``ValueError`` for what cannot have been exported.
        """
        law = self.law
        if "baseline_s" in saved:
            self.baseline_s = saved.seconds("baseline_s")
            if not self.baseline_s:
                raise ValueError("baseline_s is 0")
            self._baseline_at = saved.past("baseline_at")
            self._settled = saved.flag("settled")
        self.epoch = saved.whole("epoch", 0)
        # What was earned above another start was earned under other conditions.
        same_start = saved.whole("start", law.start) == law.start
        self.limit = min(
            saved.whole("limit", law.start, least=FLOOR), law.ceiling if same_start else law.start
        )
        self.recovery_delay_s = max(
            law.recovery_delay_s, min(saved.seconds("recovery_delay_s"), MAX_RECOVERY_DELAY_S)
        )
        if "refused_level" in saved:
            self.refused_at = saved.past("refused_at")
            self._refused_level = saved.whole("refused_level", FLOOR, least=FLOOR)
            self._served_since_refusal = saved.flag("served_since_refusal")
        self._shrunk_at = saved.past("shrunk_at")

    def _learn(self, latency: float, in_flight: int, now: float) -> None:
        """Feed the median always, the baseline only with samples that our own load did not slow."""
        if self._recent is _NO_SAMPLES:
            self._recent = Window(RECENT_WINDOW)
        self._recent.push(latency)
        if in_flight > self.law.start:
            return
        if self._window is _NO_SAMPLES:
            self._window = SortedWindow(BASELINE_WINDOW)
        window = self._window
        known = window.push(latency)
        if known < MIN_SAMPLES:
            return
        self._settled = self._settled or known == BASELINE_WINDOW
        p95 = window.quantile(0.95)
        elapsed_s, self._baseline_at = now - self._baseline_at, now
        if self.baseline_s is None:
            self.baseline_s = p95
        elif p95 < self.baseline_s or not self._settled:
            # The window's first filling may correct itself both ways: a first estimate from twenty
            # samples of a heavy-tailed host is often far too low, and would stay so.
            self.baseline_s += BASELINE_GAIN * (p95 - self.baseline_s)
        else:
            # Slowly, so that a host which degrades over half an hour does not become "normal".
            growth = (1 + BASELINE_DRIFT_PER_MINUTE) ** (min(max(0.0, elapsed_s), QUIET_S) / 60)
            self.baseline_s = min(p95, self.baseline_s * growth)

    def _shrink_after_run(self, latency: float | None, now: float) -> Decision | None:
        self._slow_run += 1
        if self._slow_run < SHRINK_RUN or self.limit <= FLOOR:
            return None
        if self.limit >= self.law.start and now - self.changed_at >= QUIET_S:
            self.recovery_delay_s = self.law.recovery_delay_s
        self._shrunk_at = now
        return self._change(self.limit - 1, Reason.SLOWED, now, latency)

    def _may_widen(self, now: float, paused: bool) -> bool:
        """What every step up needs, whatever the latencies say."""
        return (
            not paused
            and self.limit < self.law.ceiling
            # A limit that is not used proves nothing about what lies above it.
            and self._reached
            and self._ok_since_change >= WIDEN_SAMPLES
            and now - self.changed_at >= WIDEN_INTERVAL_S
        )

    def _widen(self, latency: float, now: float, paused: bool) -> Decision | None:
        law, baseline = self.law, self.baseline_s
        if baseline is None or not self._may_widen(now, paused):
            return None
        # The same noise as for shrinking: milliseconds are our own loop's jitter.
        if baseline < law.latency_noise_s and self.limit >= law.start:
            return None
        median = self._recent.quantile(0.5)
        if median > law.slow_latency_s or median > baseline:
            return None
        if self.limit < law.start:
            return self._recover(now, latency)
        if (
            median >= WIDEN_FACTOR * baseline
            or baseline - median < law.latency_noise_s
            or self._was_refused(self.limit + 1, now)
            # A heavy-tailed host would otherwise go up and down by the luck of its draws.
            or now - self._shrunk_at < SHRINK_QUIET_S
        ):
            return None
        return self._change(self.limit + 1, Reason.FASTER, now, latency)

    def _recover(self, now: float, latency: float | None) -> Decision | None:
        """One step back towards the start, once the host has been left in peace long enough.

        Without this way back a perfectly steady host that once said 429 would stay at one.
        """
        if now - max(self.refused_at, self._shrunk_at) < self.recovery_delay_s:
            return None
        return self._change(self.limit + 1, Reason.RECOVERED, now, latency)

    def _was_refused(self, limit: int, now: float) -> bool:
        """Whether ``limit`` reaches a level that the host refused in the last 600 s."""
        level = self._refused_level
        return level is not None and limit >= level and now - self.refused_at < QUIET_S

    def _change(
        self, limit: int, reason: Reason, now: float, latency: float | None = None
    ) -> Decision:
        before, self.limit = self.limit, limit
        self.epoch += 1
        self.changed_at = now
        self._reached = False
        self._ok_since_change = 0
        self._slow_run = 0
        median, self._recent = self.median_s, _NO_SAMPLES
        return Decision(
            reason=reason,
            limit_from=before,
            limit_to=limit,
            epoch=self.epoch,
            latency_s=latency,
            baseline_s=self.baseline_s,
            median_s=median,
            recovery_delay_s=self.recovery_delay_s,
        )
