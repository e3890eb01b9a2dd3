"""Crawl-delay and Request-rate of robots.txt: they only ever slow."""

from __future__ import annotations

import math
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
