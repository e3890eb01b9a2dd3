"""The origin's configuration file, checked so that a slip is one clear error.

::

    {
      "listen": ["0.0.0.0"],
      "ports": 1,
      "connect_status": 503,
      "hosts": {
        "127.0.0.11": {"behaviour": "refuse_above", "n": 3, "latency": 0.1},
        "*": {"behaviour": "steady", "latency": 0.05}
      }
    }

Everything but "behaviour" and the values it needs may be left out. ``latency`` may be seconds or
another behaviour's object, as in Python.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .behaviours import (
    ENDS,
    Behaviour,
    Reply,
    after,
    degrade,
    outage,
    query_controls,
    rate_limit,
    ratelimit_headers,
    refuse_above,
    scripted,
    site,
    steady,
    tarpit,
    x_ratelimit_headers,
)


class ConfigError(ValueError):
    """Names where, which key and value, and what is allowed."""


@dataclass(frozen=True)
class OriginConfig:
    """What a configuration file says, ready for ``Origin``."""

    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    listen: tuple[str, ...] = ("0.0.0.0",)
    ports: int | tuple[int, ...] = 1
    connect_status: int = 503


# A check gives the value to use, or raises ValueError saying what is allowed.
Check = Callable[[Any], Any]


def _number(low: float, unit: str, *, above: bool = False) -> Check:
    def check(value: Any) -> float:
        ok = isinstance(value, int | float) and not isinstance(value, bool)
        if ok and math.isfinite(value) and (value > low if above else value >= low):
            return float(value)
        raise ValueError(f"{unit}, {'above' if above else 'at least'} {low:g}")

    return check


def _whole(low: int, high: int | None = None) -> Check:
    def check(value: Any) -> int:
        ok = isinstance(value, int) and not isinstance(value, bool)
        if ok and value >= low and (high is None or value <= high):
            return int(value)
        raise ValueError(f"a whole number, {low} or more" + (f" up to {high}" if high else ""))

    return check


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("text")


def _one_of(choices: Mapping[str, Any]) -> Check:
    def check(value: Any) -> Any:
        if isinstance(value, str) and value in choices:
            return choices[value]
        raise ValueError("one of " + ", ".join(choices))

    return check


def _retry_after(value: Any) -> Any:
    if value == "remaining":
        return lambda remaining: str(math.ceil(remaining))
    if isinstance(value, str):
        return value
    raise ValueError('the header\'s text, or "remaining" for the seconds that remain')


def _latency(value: Any) -> Any:
    if isinstance(value, dict):
        return _behaviour(value)
    try:
        return _SECONDS(value)
    except ValueError as error:
        raise ValueError(f"{error}, or an object with a behaviour") from None


def _headers(value: Any) -> dict[str, str | tuple[str, ...] | None]:
    if not isinstance(value, dict):
        raise ValueError("an object of header names and texts")
    headers: dict[str, str | tuple[str, ...] | None] = {}
    for name, text in value.items():
        if isinstance(text, list) and all(isinstance(item, str) for item in text):
            headers[name] = tuple(text)
        elif text is None or isinstance(text, str):
            headers[name] = text
        else:
            raise ValueError("header texts, lists of texts, or null to leave one out")
    return headers


def _reply(value: Any) -> Reply:
    return Reply(**_checked(value, _REPLY_KEYS, required=()))


def _replies(value: Any) -> list[Reply]:
    if isinstance(value, list):
        return [_reply(item) for item in value]
    raise ValueError("a list of replies")


_SECONDS = _number(0, "a number of seconds")
_STATUS = _whole(200, 599)
_LATENCY_KEY: dict[str, Check] = {"latency": _latency}
_REFUSAL_KEYS: dict[str, Check] = {"status": _STATUS, "retry_after": _retry_after}
_REPLY_KEYS: dict[str, Check] = {
    "status": _STATUS,
    "headers": _headers,
    "delay": _SECONDS,
    "body": lambda value: _text(value).encode(),
    "end": _one_of({end: end for end in ENDS}),
    "body_time": _SECONDS,
}
_WINDOW_KEYS: dict[str, Check] = {"start": _SECONDS, "length": _SECONDS, **_LATENCY_KEY}
_RATE_HEADERS = {"x-ratelimit": x_ratelimit_headers, "ratelimit": ratelimit_headers}


@dataclass(frozen=True)
class _Kind:
    make: Callable[..., Behaviour]
    required: dict[str, Check] = field(default_factory=dict)
    optional: dict[str, Check] = field(default_factory=dict)


_KINDS: dict[str, _Kind] = {
    "query": _Kind(lambda: query_controls),
    "steady": _Kind(steady, {"latency": _SECONDS}),
    "site": _Kind(site, {"pages": _whole(1), "latency": _SECONDS}, {"links": _whole(1)}),
    "tarpit": _Kind(tarpit, {}, {"latency": _SECONDS}),
    "refuse_above": _Kind(
        refuse_above,
        {"n": _whole(0), **_LATENCY_KEY},
        {"status": _STATUS, "retry_after": _text},
    ),
    "outage": _Kind(outage, _WINDOW_KEYS, _REFUSAL_KEYS),
    "degrade": _Kind(degrade, {**_WINDOW_KEYS, "slow_latency": _latency}),
    "scripted": _Kind(scripted, {"replies": _replies}, {"then": _reply}),
    # Its "then" is called late: the table it is looked up in is not complete here.
    "after": _Kind(
        after,
        {"number": _whole(1), **_LATENCY_KEY, "then": lambda value: _behaviour(value)},
    ),
    "rate_limit": _Kind(
        rate_limit,
        {
            "per_second": _number(0, "requests per second", above=True),
            "burst": _whole(1),
            **_LATENCY_KEY,
        },
        {**_REFUSAL_KEYS, "headers": _one_of(_RATE_HEADERS)},
    ),
}
_KIND_CHECK = _one_of(_KINDS)


def _behaviour(value: Any) -> Behaviour:
    if not isinstance(value, dict):
        raise ValueError("an object with a behaviour")
    kind: _Kind = _checked(
        {key: item for key, item in value.items() if key == "behaviour"},
        {"behaviour": _KIND_CHECK},
        required=("behaviour",),
    )["behaviour"]
    rest = {key: item for key, item in value.items() if key != "behaviour"}
    return kind.make(**_checked(rest, {**kind.required, **kind.optional}, tuple(kind.required)))


def _checked(value: Any, checks: Mapping[str, Check], required: tuple[str, ...]) -> dict[str, Any]:
    """The values of an object, checked; raises ConfigError that names the key."""
    if not isinstance(value, dict):
        raise ValueError("an object")
    known = ", ".join(checks) or "nothing"
    for key, item in value.items():
        if key not in checks:
            raise ConfigError(f"{key} = {json.dumps(item)}: unknown key; allowed: {known}")
    for key in required:
        if key not in value:
            raise ConfigError(f"{key} is missing; allowed: {_allowed(checks[key])}")
    return {key: _apply(checks[key], key, item) for key, item in value.items()}


def _apply(check: Check, key: str, item: Any) -> Any:
    try:
        return check(item)
    except ConfigError as error:
        raise ConfigError(f"{key} > {error}") from None
    except ValueError as error:
        raise ConfigError(f"{key} = {json.dumps(item)}: allowed: {error}") from None


def _allowed(check: Check) -> str:
    try:
        check(object())
    except ValueError as error:
        return str(error)
    return "anything"


def _hosts(value: Any) -> dict[str, Behaviour]:
    if not isinstance(value, dict):
        raise ValueError("an object of hosts and their behaviours")
    return {host.lower(): _apply(_behaviour, host, item) for host, item in value.items()}


def _listen(value: Any) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if isinstance(items, list) and items and all(isinstance(item, str) for item in items):
        return tuple(items)
    raise ValueError("an address or a list of addresses")


def _ports(value: Any) -> int | tuple[int, ...]:
    if isinstance(value, list) and value:
        try:
            return tuple(_whole(1, 65535)(item) for item in value)
        except ValueError:
            pass
    elif isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 16:
        return value
    raise ValueError("how many free ports, 1 to 16, or a list of port numbers")


_TOP_KEYS: dict[str, Check] = {
    "hosts": _hosts,
    "listen": _listen,
    "ports": _ports,
    "connect_status": _STATUS,
}


def parse_config(data: Any) -> OriginConfig:
    """Check a decoded configuration; raises ConfigError."""
    try:
        values = _checked(data, _TOP_KEYS, required=())
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"the configuration must be {error}") from None
    return OriginConfig(values.pop("hosts", {}), **values)


def load_config(path: str) -> OriginConfig:
    """Read a configuration file; raises ConfigError, or OSError if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    try:
        return parse_config(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
