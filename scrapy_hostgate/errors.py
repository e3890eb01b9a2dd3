"""Errors that reach a spider's errback. All are ``IgnoreRequest``: catchable, and never retried."""

from __future__ import annotations

from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response


class HostStalledError(IgnoreRequest):
    """The host has refused everything for ``HOSTGATE_STALL_TIMEOUT``; the request was not sent."""


class SpiderClosingError(IgnoreRequest):
    """The spider is closing and the host's gate does not open in time; the request was not sent.

    Only requests that no scheduler can keep end like this: those of media pipelines and of
    ``engine.download_async``.
    """


class HostRefusedError(IgnoreRequest):
    """Refused ``HOSTGATE_REFUSAL_RETRIES`` times with pages that only the user's detector tells.

    The last of them is ``response``.
    """

    def __init__(self, message: str, response: Response) -> None:
        super().__init__(message)
        self.response = response
