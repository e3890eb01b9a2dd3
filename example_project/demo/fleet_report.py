"""Tells what a host saw of a fleet of workers, from the host's own record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from demo.origin_record import HostRecord

AGENT = "hostgate-demo/worker-{number} (+https://example.org/bot)"
_HEAD = ("worker", "arrivals", "share", "delivered")
_LEGEND = "arrivals: requests that reached the host; delivered: pages that came back to the worker."


@dataclass(frozen=True)
class FleetReport:
    """``delivered`` are pages by worker, ``paths`` all that were to be asked for."""

    record: HostRecord
    bound: int
    paths: Set[str]
    delivered: Sequence[int]

    @property
    def got(self) -> int:
        return len(self.record.pages() & self.paths)

    @property
    def asked_again(self) -> int:
        """Arrivals for a page that had been asked for before."""
        asked = [a.path for a in self.record.arrivals if a.path in self.paths]
        return len(asked) - len(set(asked))

    @property
    def complete(self) -> bool:
        """Whether every page was served and came back, and the host never saw too many."""
        got_all = self.got == sum(self.delivered) == len(self.paths)
        return got_all and self.record.peak <= self.bound

    def arrivals(self) -> list[int]:
        """By worker; who asks is in the User-Agent."""
        agents = Counter(arrival.headers.get("user-agent") for arrival in self.record.arrivals)
        return [agents[AGENT.format(number=n)] for n in range(1, len(self.delivered) + 1)]

    def __str__(self) -> str:
        arrivals = self.arrivals()
        total = max(1, sum(arrivals))
        rows: list[Sequence[str]] = [_HEAD]
        for number, (seen, back) in enumerate(zip(arrivals, self.delivered), start=1):
            rows.append((str(number), str(seen), f"{seen / total:.0%}", str(back)))
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
        times = [arrival.at for arrival in self.record.arrivals]
        seconds = max(times) - min(times) if times else 0.0
        host = (
            f"The host saw {self.record.peak} in flight at most (bound {self.bound}) and refused "
            f"{self.record.refusals}. Pages: {len(self.paths)} asked, {self.got} got, "
            f"{self.asked_again} of them asked twice; {seconds:.1f} s from first to last arrival."
        )
        return "\n".join([*lines, "", _LEGEND, "", host])
