"""What the end of a download says about its host."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import scrapy.exceptions
from OpenSSL import SSL
from scrapy.core.downloader.handlers.http11 import TunnelError
from scrapy.exceptions import IgnoreRequest, NotSupported, StopDownload
from twisted.internet import defer, error
from twisted.python.failure import Failure
from twisted.web import client

from scrapy_hostgate.outcome import Outcome, outcome_of_error, outcome_of_status

REFUSAL_CODES = frozenset({429, 503})
EXPECTED = {
    Outcome.OK: [200, 201, 204, 206, 299, 304],
    Outcome.NEUTRAL: [101, 199, 300, 301, 302, 303, 307, 308, 400, 401, 403, 404, 407, 410, 451],
    Outcome.SLOW: [500, 502, 504, *range(520, 530)],
    Outcome.REFUSED: [429, 503],
}


@pytest.mark.parametrize(
    ("status", "outcome"), [(status, one) for one, codes in EXPECTED.items() for status in codes]
)
def test_the_outcome_of_a_status(status: int, outcome: Outcome) -> None:
    """The table of DESIGN.md, section 4."""
    assert outcome_of_status(status, REFUSAL_CODES) is outcome


@pytest.mark.parametrize("status", [501, 505, 511, 519, 530, 999])
def test_other_errors_of_a_host_are_neutral(status: int) -> None:
    """Not implemented is not overloaded."""
    assert outcome_of_status(status, REFUSAL_CODES) is Outcome.NEUTRAL


def test_refusal_codes_come_first() -> None:
    """A project may say that 403 or 500 is this host's way to refuse, and that 429 is not."""
    assert outcome_of_status(403, {403, 500}) is Outcome.REFUSED
    assert outcome_of_status(500, {403, 500}) is Outcome.REFUSED
    assert outcome_of_status(429, {403}) is Outcome.NEUTRAL
    assert outcome_of_status(503, {403}) is Outcome.NEUTRAL


def wrapped_by(cls: Any, reason: BaseException) -> BaseException:
    """Twisted's client tells what happened to a response inside another error."""
    failure: Any = Failure
    error: BaseException = cls([failure(reason)])
    return error


@pytest.mark.parametrize(
    "download_error",
    [
        TimeoutError(),
        asyncio.TimeoutError(),
        defer.TimeoutError(),
        error.TimeoutError(),  # type: ignore[no-untyped-call]
        error.TCPTimedOutError(),  # type: ignore[no-untyped-call]
        error.ConnectionLost(),
        error.ConnectionDone(),
        error.ConnectionAborted(),
        ConnectionResetError(),
        wrapped_by(client.ResponseFailed, error.ConnectionLost()),
        wrapped_by(client.ResponseNeverReceived, error.ConnectionDone()),
    ],
    ids=lambda one: f"{type(one).__module__}.{type(one).__name__}",
)
def test_timeouts_and_lost_connections_are_slow(download_error: BaseException) -> None:
    """A sign of overload, whichever library says it; through a proxy too."""
    assert outcome_of_error(download_error) is Outcome.SLOW
    assert outcome_of_error(download_error, via_proxy=True) is Outcome.SLOW


@pytest.mark.parametrize("cls", [ConnectionRefusedError, error.ConnectionRefusedError])
def test_a_refused_connection_is_a_refusal(cls: type[Exception]) -> None:
    """The host says no before it says anything. By a proxy it is the proxy that says so."""
    refused = cls()
    assert outcome_of_error(refused) is Outcome.REFUSED
    assert outcome_of_error(refused, via_proxy=True) is Outcome.NEUTRAL


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("DownloadTimeoutError", Outcome.SLOW),
        ("DownloadFailedError", Outcome.SLOW),
        ("ResponseDataLossError", Outcome.SLOW),
        ("DownloadConnectionRefusedError", Outcome.REFUSED),
        ("CannotResolveHostError", Outcome.NEUTRAL),
        ("UnsupportedURLSchemeError", Outcome.NEUTRAL),
        ("DownloadCancelledError", Outcome.NEUTRAL),
    ],
)
def test_scrapys_own_errors_are_known(name: str, outcome: Outcome) -> None:
    """Newer releases wrap what the handlers raise."""
    cls = getattr(scrapy.exceptions, name, None)
    if cls is None:
        pytest.skip(f"this Scrapy has no {name}")
    assert outcome_of_error(cls()) is outcome


@pytest.mark.parametrize(
    "download_error",
    [
        error.DNSLookupError(),
        TunnelError("Could not open CONNECT tunnel"),
        StopDownload(),
        NotSupported(),
        IgnoreRequest(),
        ValueError("invalid hostname"),
        asyncio.CancelledError(),
        defer.CancelledError(),
        MemoryError(),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_is_not_the_hosts_word_is_neutral(download_error: BaseException) -> None:
    """DNS, a spelling mistake, a proxy's own error, a cancellation: nobody is slowed by it."""
    assert outcome_of_error(download_error) is Outcome.NEUTRAL


def test_a_subclass_is_what_its_base_is() -> None:
    """Handlers derive their own errors from the known ones."""

    class HandshakeTimeoutError(TimeoutError):
        pass

    assert outcome_of_error(HandshakeTimeoutError()) is Outcome.SLOW


def test_a_bad_certificate_is_neutral() -> None:
    """It fails at any load, though Twisted wraps it like a lost connection; Scrapy once more."""
    bare = wrapped_by(client.ResponseNeverReceived, SSL.Error())
    assert outcome_of_error(bare) is Outcome.NEUTRAL
    cls = getattr(scrapy.exceptions, "DownloadFailedError", None)
    if cls is not None:
        wrapped = cls("handshake")
        wrapped.__cause__ = bare
        assert outcome_of_error(wrapped) is Outcome.NEUTRAL
