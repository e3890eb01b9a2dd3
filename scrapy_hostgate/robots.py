"""Crawl-delay and Request-rate of robots.txt: they only ever slow."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any


def crawl_delay_of(robotparser: object, user_agent: str | bytes) -> float:
    """Seconds between requests that a parsed robots.txt asks of ``user_agent``; 0 for none.

    The longer of ``Crawl-delay`` and ``Request-rate`` (which is not in every parser). What is not
    a finite number above zero counts as nothing. Nothing raises: a parser is third-party code that
    reads a stranger's file.
    """
    return max(_crawl_delay(robotparser, user_agent), _request_rate(robotparser, user_agent))


def _crawl_delay(robotparser: object, user_agent: str | bytes) -> float:
    try:
        return _seconds(robotparser.crawl_delay(user_agent))  # type: ignore[attr-defined]
    except Exception:  # see crawl_delay_of
        return 0.0


def _request_rate(robotparser: object, user_agent: str | bytes) -> float:
    agent = user_agent.decode("latin-1") if isinstance(user_agent, bytes) else user_agent
    try:
        # Scrapy's own parsers keep the library's in "rp", and only that knows Request-rate.
        parser: Any = getattr(robotparser, "rp", robotparser)
        rate = parser.request_rate(agent)
        return _seconds(rate.seconds / rate.requests) if rate is not None else 0.0
    except Exception:  # see crawl_delay_of
        return 0.0


def _seconds(value: object) -> float:
    if isinstance(value, (int, float)) and math.isfinite(value) and value > 0:
        return float(value)
    return 0.0


class CrawlDelays:
    """What robots.txt asked of each host, in seconds.

    It is read once, and gates are forgotten and made anew. Kept are at most ``most`` hosts; beyond
    that the one that was heard of first is forgotten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._delays: OrderedDict[str, float] = OrderedDict()

    def hear(self, key: str, delay_s: float) -> None:
        """The host of ``key`` asks for ``delay_s``; the longest it asked for counts."""
        self._delays[key] = max(delay_s, self._delays.get(key, 0.0))
        if len(self._delays) > self._most:
            self._delays.popitem(last=False)

    def of(self, key: str) -> float:
        """0 where nothing is known."""
        return self._delays.get(key, 0.0)
