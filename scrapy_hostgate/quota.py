"""Quotas that a host announces before it refuses: the RateLimit fields and their elder cousins.

Read are the IETF httpapi draft's ``RateLimit`` and ``RateLimit-Policy`` (structured fields, RFC
9651; the list form of today and the dictionary form of draft 7), its earlier
``RateLimit-Remaining`` and ``RateLimit-Reset``, and the usual ``X-RateLimit-*`` and
``X-Rate-Limit-*`` families.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_NUMBER = re.compile(r"\s*(-?[0-9]{1,16})(\.[0-9]{1,9})?\s*(?:[,;].*)?", re.DOTALL)
_DICTIONARY = re.compile(r"\s*[a-z*][a-z0-9_.*-]*=")
_MAX_FIELD_CHARS = 1024
# A reset this large is a date, in seconds or in milliseconds, and not a wait.
_EPOCH_S = 1e9
_EPOCH_MS = 1e11
_FAMILIES = ("ratelimit", "x-ratelimit", "x-rate-limit")
# Whole seconds are often cut off below: "0 seconds" may be nearly one.
_LEAST_RESET_S = 1.0


@dataclass(frozen=True, slots=True)
class Quota:
    """What is left until a reset ``reset_s`` seconds away; ``limit`` where the host tells it."""

    remaining: int
    reset_s: float
    limit: int | None = None

    @property
    def little(self) -> bool:
        """Whether so little is left that it should be spread: a quarter, or ten of an unknown."""
        return self.remaining <= (10 if self.limit is None else self.limit / 4)

    @property
    def interval_s(self) -> float:
        """Seconds between departures that would spread what remains over the time to the reset."""
        return self.reset_s / (self.remaining + 1) if self.remaining > 0 else self.reset_s


def parse_quotas(headers: Mapping[str, str], *, answered_s: float) -> list[Quota]:
    """Every usable quota in ``headers`` (names in lower case, values as text).

    ``answered_s`` is the Unix time of the answer by the host's clock, for resets given as dates.
    Whatever is malformed, negative or past is left out; nothing raises. Waits are finite, not
    negative and not capped.
    """
    quotas = _structured(headers)
    for family in _FAMILIES:
        remaining = _number(headers.get(f"{family}-remaining"))
        reset_s = _reset_s(headers, family, answered_s)
        if remaining is not None and remaining >= 0 and reset_s is not None:
            limit = _number(headers.get(f"{family}-limit"))
            quotas.append(_quota(remaining, reset_s, limit))
    return quotas


def _quota(remaining: float, reset_s: float, limit: float | None) -> Quota:
    known = int(limit) if limit is not None and limit > 0 else None
    return Quota(int(remaining), max(reset_s, _LEAST_RESET_S), known)


def _number(text: str | None) -> float | None:
    """The first number of a header, before any comma or semicolon."""
    if text is None or len(text) > _MAX_FIELD_CHARS:
        return None
    match = _NUMBER.fullmatch(text)
    return float(match[1] + (match[2] or "")) if match else None


def _reset_s(headers: Mapping[str, str], family: str, answered_s: float) -> float | None:
    reset = _number(headers.get(f"{family}-reset-after"))
    if reset is None:
        reset = _number(headers.get(f"{family}-reset"))
    if reset is None:
        return None
    if reset >= _EPOCH_MS:
        reset = reset / 1000 - answered_s
    elif reset >= _EPOCH_S:
        reset -= answered_s
    return reset if math.isfinite(reset) and reset >= 0 else None


def _structured(headers: Mapping[str, str]) -> list[Quota]:
    field = headers.get("ratelimit")
    if not field or len(field) > _MAX_FIELD_CHARS:
        return []
    if _DICTIONARY.match(field):
        return _dictionary_form(field)
    policies = {
        name: (whole(params.get("q")), whole(params.get("w")))
        for name, params in _items(headers.get("ratelimit-policy", ""))
    }
    quotas = []
    for name, params in _items(field):
        remaining, reset = whole(params.get("r")), whole(params.get("t"))
        limit, window = policies.get(name, (None, None))
        # Without a time the window is the longest it can take.
        reset = window if reset is None else reset
        if remaining is not None and reset is not None:
            quotas.append(_quota(remaining, reset, limit))
    return quotas


def _dictionary_form(field: str) -> list[Quota]:
    told = _parsed(field, "dictionary")
    if not isinstance(told, dict):
        return []
    values = {name: whole(member[0]) for name, member in told.items() if isinstance(member, tuple)}
    remaining, reset = values.get("remaining"), values.get("reset")
    if remaining is None or reset is None:
        return []
    return [_quota(remaining, reset, values.get("limit"))]


def _items(field: str) -> list[tuple[str, Mapping[str, object]]]:
    """(name, parameters) of each item of a structured list; empty if it is malformed."""
    if len(field) > _MAX_FIELD_CHARS:
        return []
    told = _parsed(field, "list")
    if not isinstance(told, list):
        return []
    return [(str(member[0]), member[1]) for member in told if isinstance(member, tuple)]


def _parsed(field: str, kind: str) -> object:
    """A structured field of the top-level type ``kind``; ``None`` if it is malformed."""
    import http_sf

    try:
        return http_sf.parse(field.encode("latin-1", "replace"), tltype=kind)
    except (http_sf.StructuredFieldError, ValueError):
        return None


def whole(value: object) -> int | None:
    """A non-negative whole number of a structured field, else ``None``."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return None
