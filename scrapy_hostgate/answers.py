"""What an answer says of its host: to the gate, to the retries and to whoever looks on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.http import Response

from scrapy_hostgate.detector import RefusalDetector
from scrapy_hostgate.errors import HostRefusedError
from scrapy_hostgate.gate import NOTHING, Gate
from scrapy_hostgate.lag import LoopLag
from scrapy_hostgate.observe.observer import Observer
from scrapy_hostgate.outcome import (
    NEUTRAL,
    OK,
    REFUSED,
    Outcome,
    OutcomeByStatus,
    outcome_of_error,
)
from scrapy_hostgate.quota import parse_quotas
from scrapy_hostgate.retries import REFUSALS, RetryBudget
from scrapy_hostgate.retry_after import parse_http_date, parse_retry_after
from scrapy_hostgate.semaphore import Permit
from scrapy_hostgate.settings import HostGateSettings

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

LATENCY = "download_latency"
"""Meta key: seconds to the headers, where a download handler tells it."""


class Answers:
    """Hears every answer of one crawl, before its permit is given back."""

    def __init__(
        self,
        crawler: Crawler,
        settings: HostGateSettings,
        observer: Observer,
        lag: LoopLag,
        clock: Callable[[], float],
        on_stalled: Callable[[Gate], None],
    ) -> None:
        self._settings = settings
        self._observer = observer
        self._lag = lag
        self._clock = clock
        self._on_stalled = on_stalled
        self._http_cache = crawler.settings.getbool("HTTPCACHE_ENABLED")
        self._detector: RefusalDetector | None = None
        if settings.refusal_detector is not None:
            self._detector = RefusalDetector(crawler, settings.refusal_detector)
        self._retries = RetryBudget(crawler, settings.refusal_retries)
        self._by_status = OutcomeByStatus(settings.refusal_codes)

    def came(
        self, gate: Gate, permit: Permit, request: Request, response: Response, started: float
    ) -> bool:
        """``response`` came to a request that left at ``started``; say whether it is a refusal."""
        meta = request.meta
        outcome, asked_s = self._by_status[response.status], None
        if outcome is REFUSED or self._detector is not None:
            outcome, asked_s = self._refused(request, response, outcome)
        if outcome is REFUSED:
            self._count_refusal(request)
            if self._http_cache:
                # A refusal in the cache would answer every retry, and the next crawl too.
                meta["_dont_cache"] = True
        elif REFUSALS in meta:
            self._retries.answered(request, response.status)
        if outcome is OK and (
            # Broken off, or of a server of another kind: neither tells anything of the host's load.
            "download_stopped" in response.flags
            or (LATENCY not in meta and request.url.startswith("ftp:"))
        ):
            outcome = NEUTRAL
        self._learn(gate, permit, meta, outcome, started, response, asked_s)
        if response.headers:
            self._hear_quotas(gate, permit, request, response)
        return outcome is REFUSED

    def failed(
        self, gate: Gate, permit: Permit, request: Request, error: Exception, started: float
    ) -> None:
        """The download ended with ``error``."""
        stopped, asked_s = getattr(error, "response", None), None
        if isinstance(stopped, Response) and stopped.status in self._settings.refusal_codes:
            # StopDownload says nothing of the host, but the headers it came with do.
            outcome, asked_s = self._refused(request, stopped, REFUSED)
        else:
            outcome = outcome_of_error(error, via_proxy=bool(request.meta.get("proxy")))
        if outcome is REFUSED:
            self._count_refusal(request)
        self._learn(gate, permit, request.meta, outcome, started, error, asked_s)

    def again(self, request: Request, response: Response) -> Response | Request:
        """What becomes of a refusal that Scrapy's RetryMiddleware would take for a page.

        Raises :exc:`HostRefusedError` once it has been refused too often.
        """
        retry = self._retries.own_retry(request, response.status)
        if retry is not None:
            return retry
        if response.status < 400 and self._retries.exhausted(request):
            raise HostRefusedError(f"{response.url} was refused too often", response)
        return response

    def _refused(
        self, request: Request, response: Response, outcome: Outcome
    ) -> tuple[Outcome, float | None]:
        """Whether it is a refusal after all, and the wait in seconds that a refusal asks for."""
        if outcome is REFUSED:
            return outcome, parse_retry_after(
                response.headers.get("Retry-After"),
                wall_now_s=time.time(),
                date=response.headers.get("Date"),
            )
        if self._detector is not None:
            refused, asked_s = self._detector.looks_refused(request, response)
            if refused:
                return REFUSED, asked_s
        return outcome, None

    def _learn(
        self,
        gate: Gate,
        permit: Permit,
        meta: dict[str, Any],
        outcome: Outcome,
        started: float,
        answer: Response | Exception,
        asked_s: float | None = None,
    ) -> None:
        now = self._clock()
        elapsed_s = now - started
        told = meta.get(LATENCY)
        # Seconds to the headers as the handler tells it, else to the end of the body. Scrapy before
        # 2.15 took it from the wall clock, which may have been stepped meanwhile.
        took_s = elapsed_s
        if isinstance(told, (int, float)) and 0 <= told <= elapsed_s + 0.001:
            took_s = told
        gate.answered(took_s)
        if meta.get("hostgate_dont_learn"):
            if outcome is REFUSED:
                gate.obey(asked_s)
                self._observer.looked(gate, "dont_learn")
            return
        latency_s: float | None = took_s
        if outcome is OK and self._lag.spoils(started, took_s, now):
            self._observer.spoiled()
            latency_s = None
        verdict = gate.record(permit, outcome, latency_s, asked_s)
        if verdict is NOTHING and not self._observer.keeps_all:
            return
        cause, asked_by = type(answer).__name__, "Retry-After"
        if isinstance(answer, Response):
            cause = str(answer.status)
            if outcome is REFUSED and answer.status not in self._settings.refusal_codes:
                # What a detector finds has a status that says otherwise.
                cause, asked_by = f"detected in a {cause}", "the detector"
        self._observer.recorded(gate, outcome, verdict, cause, permit=permit, asked_by=asked_by)
        if verdict.stalled:
            self._on_stalled(gate)

    def _count_refusal(self, request: Request) -> None:
        if not self._retries.refused(request):
            self._observer.stats.given_up()

    def _hear_quotas(
        self, gate: Gate, permit: Permit, request: Request, response: Response
    ) -> None:
        names = [name for name in response.headers if b"Rate" in name]
        if not names:
            return
        if request.meta.get("hostgate_dont_learn"):
            return
        headers = {
            # A field in several lines is one list (RFC 9110, section 5.3).
            name.decode("latin-1").lower(): b", ".join(response.headers.getlist(name)).decode(
                "latin-1"
            )
            for name in names
        }
        answered_s = parse_http_date(response.headers.get("Date")) or time.time()
        if gate.announced(permit, parse_quotas(headers, answered_s=answered_s)):
            self._observer.stats.quota_wait()
            self._observer.looked(gate, "quota")
