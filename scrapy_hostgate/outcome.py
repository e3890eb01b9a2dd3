"""What the end of a download says about its host.

Pure: exceptions are recognised by the names of their classes, so that Twisted's, asyncio's and
Scrapy's own errors (whose names moved between releases) need not be imported here.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import NamedTuple


class Outcome(enum.Enum):
    """The host's word, as the law of :mod:`scrapy_hostgate.controller` reads it."""

    OK = "ok"
    """Served: 2xx or 304. Its latency teaches."""
    NEUTRAL = "neutral"
    """Says nothing about load: redirects, 404, DNS failures, cancellations."""
    SLOW = "slow"
    """A sign of overload without a usable latency: timeout, connection lost, 500/502/504/52x."""
    REFUSED = "refused"
    """The host said no: 429, 503, connection refused, or the user's own detector."""


# For every answer's code: a member found in the class costs Python 3.10 and 3.11 two calls each.
OK, NEUTRAL, SLOW, REFUSED = Outcome


class Sample(NamedTuple):
    """One finished download.

    ``latency_s`` is the time from departure to the response headers in seconds, or ``None`` where
    there is none to trust. ``epoch`` and ``in_flight`` (itself included) are the departure's.
    """

    outcome: Outcome
    latency_s: float | None
    epoch: int
    in_flight: int


SLOW_CODES = frozenset({500, 502, 504, *range(520, 530)})

# Connection errors that a host (or the network before it) produces under load.
_SLOW_ERRORS = frozenset(
    {
        "TimeoutError",
        "TCPTimedOutError",
        "DownloadTimeoutError",
        "ConnectionLost",
        "ConnectionDone",
        "ConnectionAborted",
        "ConnectionAbortedError",
        "ConnectionResetError",
        "BrokenPipeError",
        "DownloadFailedError",
        "ResponseFailed",
        "ResponseNeverReceived",
        "ResponseDataLossError",
        "RemoteProtocolError",
    }
)
_REFUSED_ERRORS = frozenset({"ConnectionRefusedError", "DownloadConnectionRefusedError"})


def outcome_of_status(status: int, refusal_codes: Collection[int]) -> Outcome:
    """Classify an HTTP status code. ``refusal_codes`` come first, whatever their class."""
    if status in refusal_codes:
        return Outcome.REFUSED
    if 200 <= status < 300 or status == 304:
        return Outcome.OK
    if status in SLOW_CODES:
        return Outcome.SLOW
    return Outcome.NEUTRAL


class OutcomeByStatus(dict[int, Outcome]):
    """:func:`outcome_of_status` for one set of refusal codes, remembered by status."""

    def __init__(self, refusal_codes: Collection[int]) -> None:
        super().__init__()
        self._refusal_codes = refusal_codes

    def __missing__(self, status: int) -> Outcome:
        outcome = self[status] = outcome_of_status(status, self._refusal_codes)
        return outcome


def outcome_of_error(error: BaseException, *, via_proxy: bool = False) -> Outcome:
    """Classify the exception a download ended with.

    With ``via_proxy`` a refused connection is the proxy's word and not the host's. Whatever is not
    known to be a sign of load is NEUTRAL: a spelling mistake in a URL must not slow a host down.
    """
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & _REFUSED_ERRORS:
        return Outcome.NEUTRAL if via_proxy else Outcome.REFUSED
    if names & _SLOW_ERRORS:
        return Outcome.NEUTRAL if _is_tls_failure(error) else Outcome.SLOW
    return Outcome.NEUTRAL


def _is_tls_failure(error: BaseException) -> bool:
    """A bad certificate fails at any load; Twisted wraps it in ResponseFailed."""
    wrapped = error if hasattr(error, "reasons") else error.__cause__
    reasons = getattr(wrapped, "reasons", None) or ()
    values = [getattr(reason, "value", reason) for reason in reasons]
    return any(type(value).__module__.partition(".")[0] == "OpenSSL" for value in values)
