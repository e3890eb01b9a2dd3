"""Checks of single values, each with one clear error."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from scrapy.utils.misc import load_object


class HostGateSettingsError(ValueError):
    """A setting that cannot be used; the message names it and what is allowed."""


def error(where: str, value: object, allowed: str) -> HostGateSettingsError:
    return HostGateSettingsError(f"{where} is {value!r}, but must be {allowed}.")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def number(where: str, value: object, allowed: str) -> float:
    # Text is fine: that is what "scrapy crawl -s NAME=VALUE" hands over. True is not a number.
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            found = float(value)
        except (ValueError, OverflowError):
            pass
        else:
            if math.isfinite(found):
                return found
    raise error(where, value, allowed)


def whole(where: str, value: object, least: int = 1) -> int:
    allowed = f"a whole number, {least} or more"
    found = number(where, value, allowed)
    if found != int(found) or found < least:
        raise error(where, value, allowed)
    return int(found)


def seconds(where: str, value: object, *, zero: bool = False) -> float:
    allowed = "a number of seconds, 0 or more" if zero else "a number of seconds above 0"
    found = number(where, value, allowed)
    if found < 0 or (found == 0 and not zero):
        raise error(where, value, allowed)
    return found


def text(where: str, value: object) -> str:
    if not isinstance(value, str):
        raise error(where, value, "a text")
    return value.strip()


def flag(where: str, value: object) -> bool:
    words = {"1": True, "true": True, "0": False, "false": False}
    known = words.get(str(value).strip().lower())
    if known is None:
        raise error(where, value, "True or False")
    return known


def imported_callable(where: str, value: object, takes: str) -> Any:
    if value is None or value == "":
        return None
    allowed = f"a callable {takes}, or the import path of one"
    if isinstance(value, str):
        try:
            value = load_object(value)
        except (ImportError, NameError, ValueError) as failure:
            raise error(where, value, f"{allowed} ({failure})") from failure
    if not callable(value):
        raise error(where, value, allowed)
    return value
