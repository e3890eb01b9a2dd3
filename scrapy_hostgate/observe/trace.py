"""Writes down what a controller is told, so that every limit can be replayed from the file alone.

Each host's first line in a part of the file is its state, so whichever parts are left are enough.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from scrapy_hostgate.checkpoint import dump
from scrapy_hostgate.controller import FLOOR, Controller, Decision, Law, Reason
from scrapy_hostgate.observe.events import EventFile, json_line
from scrapy_hostgate.outcome import Outcome, Sample
from scrapy_hostgate.saved import Saved


class HostTrace:
    """The lines of one host."""

    __slots__ = ("_file", "_json", "_key", "_law", "_part")

    def __init__(self, key: str, file: EventFile) -> None:
        self._key = key
        self._json = json.dumps(key)
        self._file = file
        self._part = 0
        self._law: Law | None = None

    def sample(self, controller: Controller, sample: Sample, now: float, paused: bool) -> None:
        """One answer, before the controller has judged it."""
        file = self._begin(controller, now)
        latency_s = sample.latency_s
        if latency_s is None:
            latency = "null"
        else:
            # The law ignores infinity and 0 alike, and JSON has no word for infinity.
            latency = repr(latency_s if math.isfinite(latency_s) else 0.0)
        # By hand, because this is written for every answer and json.dumps takes five times as long.
        file.append(
            f'{{"event":"sample","t":{now!r},"host":{self._json},'
            f'"outcome":"{sample.outcome.value}","latency_s":{latency},'
            f'"epoch":{sample.epoch},"in_flight":{sample.in_flight}'
            + (',"paused":true}\n' if paused else "}\n")
        )

    def line(self, controller: Controller, now: float, event: str, **values: Any) -> None:
        """Any other line about this host."""
        file = self._begin(controller, now)
        file.append(json_line({"event": event, "t": now, "host": self._key, **values}))

    def anew(self) -> None:
        """The state has changed from outside: it is written again before the next line."""
        self._part = 0

    def _begin(self, controller: Controller, now: float) -> EventFile:
        """Write the host's law and state if this part of the file does not know them."""
        file = self._file
        file.make_room()
        if self._part != file.part or self._law is not controller.law:
            self._part, self._law = file.part, controller.law
            file.append(
                json_line(
                    {
                        "event": "host",
                        "t": now,
                        "host": self._key,
                        "law": asdict(controller.law),
                        "state": dump(controller),
                    }
                )
            )
        return file


class TracedController(Controller):
    """The law as it is, with everything that goes into it written down first."""

    __slots__ = ("trace",)

    def __init__(self, law: Law, now: float, trace: HostTrace) -> None:
        super().__init__(law, now)
        self.trace = trace

    def observe(self, sample: Sample, now: float, *, paused: bool = False) -> Decision | None:
        if sample.outcome is not Outcome.REFUSED:  # which comes by refuse()
            self.trace.sample(self, sample, now, paused)
        return super().observe(sample, now, paused=paused)

    def observe_served(self, sample: Sample, now: float, *, paused: bool) -> Decision | None:
        self.trace.sample(self, sample, now, paused)
        return super().observe_served(sample, now, paused=paused)

    def refuse(self, now: float, in_flight: int) -> Decision:
        sample = Sample(Outcome.REFUSED, None, self.epoch, in_flight)
        self.trace.sample(self, sample, now, paused=False)
        return super().refuse(now, in_flight)

    def resize(self, limit: int, now: float) -> Decision:
        if FLOOR <= limit <= self.law.ceiling:  # or it raises, and nothing is changed
            self.trace.line(self, now, "resize", limit=limit)
        return super().resize(limit, now)

    def adopt(self, saved: Saved, limit: int, epoch: int, reason: Reason) -> Decision:
        decision = super().adopt(saved, limit, epoch, reason)
        self.trace.anew()
        return decision
