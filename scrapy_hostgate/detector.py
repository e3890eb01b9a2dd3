"""The user's own word on a response: HOSTGATE_REFUSAL_DETECTOR."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.http import Response

from scrapy_hostgate.settings import Detector

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)


class RefusalDetector:
    """Asks the user's function whether a response is a refusal in disguise."""

    def __init__(self, crawler: Crawler, function: Detector) -> None:
        self._function = function
        self._told = False
        # The gate sees responses before Scrapy decodes them, but a detector looks for words.
        self._decoder = HttpCompressionMiddleware(crawler=crawler)
        self._decoder.stats = None

    def looks_refused(self, request: Request, response: Response) -> tuple[bool, float | None]:
        """Whether it refuses, and for how many seconds if the function says so.

        A function that raises says nothing: the error is logged once and the page goes on.
        """
        try:
            verdict = self._function(self._decoded(request, response))
        except Exception:
            if not self._told:
                self._told = True
                logger.exception(
                    "HOSTGATE_REFUSAL_DETECTOR failed on %s; further failures are not logged",
                    response.url,
                )
            return False, None
        if isinstance(verdict, bool) or verdict is None:
            return bool(verdict), None
        if isinstance(verdict, (int, float)) and math.isfinite(verdict) and verdict > 0:
            return True, float(verdict)
        return bool(verdict), None

    def _decoded(self, request: Request, response: Response) -> Response:
        if "Content-Encoding" not in response.headers:
            return response
        decoded = self._decoder.process_response(request, response.copy())
        assert isinstance(decoded, Response)
        return decoded
