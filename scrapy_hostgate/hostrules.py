"""``HOSTGATE_HOSTS``: what a project knows of single hosts, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scrapy.settings import BaseSettings

from scrapy_hostgate.checks import (
    HostGateSettingsError,
    did_you_mean,
    error,
    number,
    text,
    whole,
)
from scrapy_hostgate.domain import domain_of, registrable_domain
from scrapy_hostgate.hostkey import is_valid_host, normalise_host

HOST_KEYS = ("concurrency", "max_concurrency", "rate", "burst", "reason")


@dataclass(frozen=True, slots=True)
class HostRule:
    """One entry of ``HOSTGATE_HOSTS``; ``None`` where it says nothing. ``rate`` is per second."""

    name: str
    concurrency: int | None = None
    max_concurrency: int | None = None
    rate: float | None = None
    burst: int | None = None
    reason: str = ""


def host_rules(
    settings: BaseSettings, concurrency: int, ceiling: int, key: str
) -> dict[str, HostRule]:
    """The entries by host or pattern. Raises ``HostGateSettingsError``."""
    name = "HOSTGATE_HOSTS"
    try:
        entries = settings.getdict(name)
    except (TypeError, ValueError) as failure:
        raise error(name, settings.get(name), f"a dict of host to dict ({failure})") from failure
    rules: dict[str, HostRule] = {}
    for host, options in entries.items():
        pattern = _pattern(host, key)
        if pattern in rules:
            raise HostGateSettingsError(f"{name} names {pattern!r} twice, once as {host!r}.")
        rules[pattern] = _rule(f"{name}[{host!r}]", pattern, options, concurrency, ceiling)
    return rules


def _pattern(host: object, key: str) -> str:
    where = f"HOSTGATE_HOSTS key {host!r}"
    allowed = (
        'a host name or address without scheme, port or path ("www.example.org"), '
        'or "*." and a name for every host below it ("*.example.org")'
    )
    if not isinstance(host, str) or not host.strip():
        raise HostGateSettingsError(f"{where} must be {allowed}.")
    if key in ("slot", "key"):
        # The user's own names, which need not be hosts.
        return host
    prefix, bare = ("*.", host[2:]) if host.startswith("*.") else ("", host)
    bare = normalise_host(bare)
    if not is_valid_host(bare) or (prefix and (":" in bare or bare.replace(".", "").isdigit())):
        raise HostGateSettingsError(f"{where} must be {allowed}.")
    if key == "domain" and (registrable_domain(bare) != bare or (prefix and domain_of(bare))):
        raise HostGateSettingsError(
            f'{where} matches nothing, because HOSTGATE_KEY = "domain": it must be a registrable '
            f"domain, {registrable_domain(bare)!r} perhaps."
        )
    return prefix + bare


def _rule(where: str, pattern: str, options: object, concurrency: int, ceiling: int) -> HostRule:
    if not isinstance(options, Mapping):
        raise error(where, options, f"a dict with keys out of {', '.join(HOST_KEYS)}")
    for option in options:
        if option not in HOST_KEYS:
            raise HostGateSettingsError(
                f"{where} has the key {option!r}, which is not known"
                f"{did_you_mean(str(option), HOST_KEYS)}. Allowed: {', '.join(HOST_KEYS)}."
            )
    at = {option: f"{where}[{option!r}]" for option in HOST_KEYS}
    reason = text(at["reason"], options.get("reason", ""))
    start = options.get("concurrency")
    most = options.get("max_concurrency")
    start = None if start is None else whole(at["concurrency"], start)
    most = None if most is None else whole(at["max_concurrency"], most)
    if start is not None and start > (ceiling if most is None else most):
        raise error(
            at["concurrency"],
            start,
            f"at most the host's max_concurrency ({ceiling if most is None else most})",
        )
    for option, asked, project in (
        ("concurrency", start, concurrency),
        ("max_concurrency", most, ceiling),
    ):
        if asked is not None and asked > project and not reason:
            raise error(
                at[option],
                asked,
                f'at most the project\'s {project}, or more with a "reason" saying why this host '
                "can bear it",
            )
    rate = options.get("rate")
    if rate is not None:
        allowed = "a number of requests per second above 0, at least one a day"
        rate = number(at["rate"], rate, allowed)
        if rate < 1 / 86_400:
            raise error(at["rate"], options["rate"], allowed)
    burst = options.get("burst")
    if burst is not None:
        burst = whole(at["burst"], burst)
        if rate is None:
            raise error(at["burst"], burst, 'given together with "rate"')
    return HostRule(pattern, start, most, rate, burst, reason)
