"""The Retry-After header (RFC 9110, section 10.2.3), read so that no value can do harm."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

_DELTA_SECONDS = re.compile(r"[0-9]{1,64}")
_MAX_HEADER_CHARS = 64


def parse_retry_after(
    value: str | bytes | None, *, wall_now_s: float, date: str | bytes | None = None
) -> float | None:
    """Seconds to wait from now, or ``None`` where the header asks for nothing usable.

    Both legal forms are read: delta-seconds and the three HTTP-date formats. A date is judged
    against the response's own ``Date`` where that is readable (the host's clock may be off), else
    against ``wall_now_s`` (Unix time). Zero, negative, past and malformed values are ``None``, so
    that the caller's backoff applies. The result is finite and above zero, but not capped.
    """
    text = _text(value)
    if text is None:
        return None
    if _DELTA_SECONDS.fullmatch(text):
        seconds = float(text)
        return seconds if seconds > 0 else None
    asked = parse_http_date(text)
    if asked is None:
        return None
    answered = parse_http_date(date)
    seconds = asked - (wall_now_s if answered is None else answered)
    return seconds if seconds > 0 else None


def _text(value: str | bytes | None) -> str | None:
    if value is None or len(value) > _MAX_HEADER_CHARS:
        return None
    return (value.decode("latin-1") if isinstance(value, bytes) else value).strip(" \t") or None


def parse_http_date(value: str | bytes | None) -> float | None:
    """Unix time of an IMF-fixdate, RFC 850 or asctime date; ``None`` if it is none of them."""
    text = _text(value)
    if text is None:
        return None
    try:
        parsed = parsedate_to_datetime(text)
        # Naive for asctime and for "-0000"; HTTP dates are always GMT.
        return parsed.replace(tzinfo=parsed.tzinfo or timezone.utc).timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return _asctime(text)


def _asctime(text: str) -> float | None:
    try:
        return (
            datetime.strptime(text, "%a %b %d %H:%M:%S %Y").replace(tzinfo=timezone.utc).timestamp()
        )
    except ValueError:
        return None
