"""Keeps the events file of a crawl, and makes the report of it at the end."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_hostgate.controller import Controller, Law
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.observe.beacon import own_file, private_folder
from scrapy_hostgate.observe.events import EventFile, GateEvent, event_line
from scrapy_hostgate.observe.trace import HostTrace, TracedController
from scrapy_hostgate.observing import ObservingSettings
from scrapy_hostgate.outcome import Outcome, Sample
from scrapy_hostgate.semaphore import Permit

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

logger = logging.getLogger("scrapy_hostgate")


class Journal:
    """What is written down of one crawl: every answer, every change, and the end of every host."""

    def __init__(
        self, crawler: Crawler, observing: ObservingSettings, clock: Callable[[], float]
    ) -> None:
        self._crawler = crawler
        self._observing = observing
        self._clock = clock
        self._name = getattr(crawler.spider, "name", None) or "crawl"
        self._file = EventFile(
            max_bytes=observing.events_max_bytes,
            backups=observing.events_backups,
            clock=clock,
            about={"crawl": f"{time.time():.6f}-{os.getpid()}", "spider": self._name},
        )

    def open(self) -> None:
        """Begin the file; what was written down before is in it too."""
        observing = self._observing
        if observing.report is not None and importlib.util.find_spec("matplotlib") is None:
            logger.warning(
                "HOSTGATE_REPORT will have no timelines: they take the extra "
                "scrapy-hostgate[report]",
                extra={"spider": self._crawler.spider},
            )
        if observing.events is not None:
            self._file.open(self._path(observing.events))
            return
        try:
            # The report is made of events, which nobody asked to keep.
            folder = private_folder()
        except OSError as error:
            self._file.give_up(error)
        else:
            self._file.open(own_file(folder, ".report.jsonl"))

    def controller_for(self, key: str) -> Callable[[Law, float], Controller]:
        """Makes a controller that is written down."""
        return partial(TracedController, trace=HostTrace(key, self._file))

    def echo(self, gate: Gate, permit: Permit) -> None:
        """A refusal that no controller hears of, because another was acted on already."""
        controller = gate.controller
        if isinstance(controller, TracedController):
            sample = Sample(Outcome.REFUSED, None, permit.epoch, permit.in_flight)
            controller.trace.sample(controller, sample, self._clock(), paused=False)

    def event(self, event: GateEvent) -> None:
        self._file.append(event_line(event, self._clock()))

    def end(self, gate: Gate) -> None:
        """The last word on a host."""
        controller = gate.controller
        if isinstance(controller, TracedController):
            told = gate.snapshot()
            controller.trace.line(
                controller,
                self._clock(),
                "end",
                limit=told.limit,
                peak=told.peak,
                departures=told.departures,
                refusals=told.refusals,
                spacing_s=told.spacing_s,
                baseline_s=told.baseline_s,
            )

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Close the file and, if it is wanted, make the report."""
        self._file.close()
        if self._observing.report is not None and self._file.path is not None:
            self._report(self._file.path, self._path(self._observing.report))
        if self._observing.events is None and self._file.path is not None:
            for part in self._file.parts():
                with contextlib.suppress(OSError):
                    part.unlink()

    def _report(self, events: Path, path: Path) -> None:
        from scrapy_hostgate.observe.report import write_report

        began = time.monotonic()
        try:
            write_report(events, path)
        except (OSError, ValueError) as error:
            logger.error(
                "The report %(path)s cannot be written (%(error)s)",
                {"path": path, "error": getattr(error, "strerror", None) or error},
                extra={"spider": self._crawler.spider},
            )
            return
        logger.info(
            "The report is in %(path)s (made in %(seconds).1f s)",
            {"path": path, "seconds": time.monotonic() - began},
            extra={"spider": self._crawler.spider},
        )

    def _path(self, pattern: str) -> Path:
        return Path(
            pattern
            % {
                "name": self._name,
                "time": time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime()),
                "pid": os.getpid(),
            }
        )
