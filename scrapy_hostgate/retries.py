"""How often a refused page is asked for again.

Scrapy's own RetryMiddleware does the retrying; here its budget is extended, because a refusal is a
fact about the host and not about the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.downloadermiddlewares.retry import get_retry_request

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

REFUSALS = "hostgate_refusals"
"""Meta key: how often this request was refused so far. Plain and gone once it is answered."""


class RetryBudget:
    """Lets a request be refused ``refusal_retries`` times without spending ``RETRY_TIMES``."""

    def __init__(self, crawler: Crawler, refusal_retries: int) -> None:
        settings = crawler.settings
        self._crawler = crawler
        self._refusal_retries = refusal_retries
        self._enabled = settings.getbool("RETRY_ENABLED")
        self._times = settings.getint("RETRY_TIMES")
        self._codes = {int(code) for code in settings.getlist("RETRY_HTTP_CODES")}

    def refused(self, request: Request) -> bool:
        """Lift this request's maximum by one; ``False`` once it has been refused too often."""
        meta = request.meta
        refusals = _whole(meta.get(REFUSALS), 0) + 1
        if refusals > self._refusal_retries:
            return self._refusal_retries == 0
        meta[REFUSALS] = refusals
        meta["max_retry_times"] = _whole(meta.get("max_retry_times"), self._times) + 1
        return True

    def answered(self, request: Request, status: int) -> None:
        """Answered with ``status``: if that is final, take our numbers out of its meta.

        Follow-ups that copy the meta must inherit neither the longer budget nor a ``retry_times``
        that refusals spent.
        """
        meta = request.meta
        if REFUSALS not in meta or status in self._codes:
            return
        refusals = _whole(meta.pop(REFUSALS), 0)
        if not refusals:
            return
        for name, default in (("max_retry_times", self._times), ("retry_times", 0)):
            left = max(0, _whole(meta.get(name), default) - refusals)
            if left == default:
                meta.pop(name, None)
            else:
                meta[name] = left

    def exhausted(self, request: Request) -> bool:
        """Whether a request that may be retried has been refused too often."""
        return self._enabled and not request.meta.get("dont_retry")

    def own_retry(self, request: Request, status: int) -> Request | None:
        """A retry of a refusal that RetryMiddleware would take for a page, if there may be one."""
        spider = self._crawler.spider
        if (
            status in self._codes
            or not self._enabled
            or spider is None
            or request.meta.get("dont_retry")
        ):
            return None
        return get_retry_request(request, spider=spider, reason="hostgate_refused")


def _whole(value: object, default: int) -> int:
    """A whole number from meta, where users put what they like."""
    return value if isinstance(value, int) else default
