"""Every ``HOSTGATE_*`` setting: its default, its check, and what Scrapy's own settings tighten.

Read once into a frozen object. Whatever is wrong is said at start-up in one error that names the
setting, the key, the value and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from scrapy import Request
from scrapy.http import Response
from scrapy.settings import BaseSettings

from scrapy_hostgate.checks import (
    HostGateSettingsError,
    did_you_mean,
    error,
    flag,
    imported_callable,
    seconds,
    text,
    whole,
)
from scrapy_hostgate.controller import Law
from scrapy_hostgate.fleetrules import FLEET_DEFAULTS, FleetRules, read_fleet
from scrapy_hostgate.hostkey import normalise_host
from scrapy_hostgate.hostrules import HostRule, host_rules
from scrapy_hostgate.observing import OBSERVING_DEFAULTS, ObservingSettings, read_observing
from scrapy_hostgate.pacer import Pace
from scrapy_hostgate.tightening import (
    SlotRule,
    autothrottle_start,
    default_jitter,
    download_delay,
    download_slots,
    is_set,
    scrapy_concurrency,
)

KeyFunction = Callable[[Request], str]
Detector = Callable[[Response], "bool | float | None"]

DEFAULTS: dict[str, Any] = {
    "HOSTGATE_ENABLED": True,
    "HOSTGATE_CONCURRENCY": 2,
    "HOSTGATE_MAX_CONCURRENCY": 4,
    "HOSTGATE_REASON": "",
    "HOSTGATE_HOSTS": {},
    "HOSTGATE_KEY": "host",
    "HOSTGATE_REFUSAL_CODES": [429, 503],
    "HOSTGATE_REFUSAL_DETECTOR": None,
    "HOSTGATE_REFUSAL_RETRIES": 20,
    "HOSTGATE_STALL_TIMEOUT": 900.0,
    "HOSTGATE_MAX_PAUSE": 900.0,
    "HOSTGATE_RECOVERY_DELAY": 30.0,
    "HOSTGATE_SLOW_LATENCY": 5.0,
    "HOSTGATE_LATENCY_NOISE": 0.05,
    "HOSTGATE_MAX_HOSTS": 10_000,
    "HOSTGATE_STATS_HOSTS": 50,
    **FLEET_DEFAULTS,
    **OBSERVING_DEFAULTS,
}
KEY_KINDS = ("host", "domain", "slot")


@dataclass(frozen=True)
class HostGateSettings:
    """All settings of one crawl, checked. Times are seconds."""

    enabled: bool = True
    concurrency: int = 2
    max_concurrency: int = 4
    reason: str = ""
    hosts: Mapping[str, HostRule] = field(default_factory=dict)
    key: str = "host"
    key_function: KeyFunction | None = None
    refusal_codes: frozenset[int] = frozenset({429, 503})
    refusal_detector: Detector | None = None
    refusal_retries: int = 20
    stall_timeout_s: float = 900.0
    max_pause_s: float = 900.0
    recovery_delay_s: float = 30.0
    slow_latency_s: float = 5.0
    latency_noise_s: float = 0.05
    max_hosts: int = 10_000
    stats_hosts: int = 50
    observing: ObservingSettings = field(default_factory=ObservingSettings)
    fleet: FleetRules = field(default_factory=FleetRules)
    # Scrapy's own, which may only tighten.
    scrapy_concurrency: int | None = None
    delay_s: float = 0.0
    jitter: float = 0.5
    start_delay_s: float | None = None
    slots: Mapping[str, SlotRule] = field(default_factory=dict)

    @classmethod
    def from_settings(cls, settings: BaseSettings, spider: object = None) -> HostGateSettings:
        """Read and check everything. Raises :class:`HostGateSettingsError`."""
        return _read(settings, spider)

    def rule_for(self, key: str) -> HostRule | None:
        """The most specific entry of ``HOSTGATE_HOSTS`` that matches a host key."""
        if not self.hosts:
            return None
        rule = self.hosts.get(key)
        if rule is None and self.key in ("slot", "key"):
            # Those keys may be hosts too, in another spelling.
            key = normalise_host(key)
            rule = self.hosts.get(key)
        rest = key
        while rule is None and "." in rest:
            rest = rest.partition(".")[2]
            rule = self.hosts.get("*." + rest)
        return rule

    def law_for(self, key: str) -> Law:
        """The law of a host key."""
        return self._defaults[0] if self._is_ordinary(key) else self._law_for(key)

    def pace_for(self, key: str) -> Pace:
        """The pace of a host key."""
        return self._defaults[1] if self._is_ordinary(key) else self._pace_for(key)

    @cached_property
    def _defaults(self) -> tuple[Law, Pace]:
        # Most hosts have no rule of their own; they share these.
        return self._law_for(""), self._pace_for("")

    def _is_ordinary(self, key: str) -> bool:
        return self.rule_for(key) is None and key not in self.slots

    def _law_for(self, key: str) -> Law:
        rule = self.rule_for(key) or HostRule("")
        ceiling = self.max_concurrency if rule.max_concurrency is None else rule.max_concurrency
        start = self.concurrency if rule.concurrency is None else rule.concurrency
        for bound in (self.scrapy_concurrency, self._slot(key).concurrency):
            ceiling = ceiling if bound is None else min(ceiling, bound)
        return Law(
            start=min(start, ceiling),
            ceiling=ceiling,
            latency_noise_s=self.latency_noise_s,
            slow_latency_s=self.slow_latency_s,
            recovery_delay_s=self.recovery_delay_s,
        )

    def _pace_for(self, key: str) -> Pace:
        rule, slot = self.rule_for(key) or HostRule(""), self._slot(key)
        return Pace(
            rate=rule.rate,
            burst=rule.burst or 1,
            delay_s=self.delay_s if slot.delay_s is None else slot.delay_s,
            jitter=self.jitter if slot.jitter is None else slot.jitter,
            max_pause_s=self.max_pause_s,
        )

    def describe(self) -> str:
        """One line: which bounds hold and where they come from."""
        law = self.law_for("")
        parts = [f"{law.start} in flight per {self.key} to start, {law.ceiling} at most"]
        if self.reason:
            parts.append(f"reason: {self.reason!r}")
        if self.scrapy_concurrency is not None:
            won = self.scrapy_concurrency < self.max_concurrency
            parts.append(
                f"CONCURRENT_REQUESTS_PER_DOMAIN={self.scrapy_concurrency} "
                + ("tightens it" if won else "does not tighten it")
            )
        if self.delay_s:
            parts.append(f"DOWNLOAD_DELAY={self.delay_s:g} s spaces departures")
        if self.start_delay_s is not None:
            parts.append(f"AutoThrottle adds its delay, {self.start_delay_s:g} s to start")
        for name, slot in self.slots.items():
            bounds = [f"concurrency {slot.concurrency}"] if slot.concurrency is not None else []
            bounds += [f"delay {slot.delay_s:g} s"] if slot.delay_s is not None else []
            if bounds:
                parts.append(f"DOWNLOAD_SLOTS[{name!r}]: {', '.join(bounds)}")
        if self.fleet.url:
            parts.append("shared with the fleet")
        parts += [self._describe_rule(rule) for rule in self.hosts.values()]
        if law.ceiling == 1 and not self.hosts:
            parts.append("so limits never change")
        return "; ".join(parts)

    def _describe_rule(self, rule: HostRule) -> str:
        law, pace = self.law_for(rule.name), self.pace_for(rule.name)
        rate = f", {pace.rate:g}/s burst {pace.burst}" if pace.rate else ""
        reason = f" ({rule.reason})" if rule.reason else ""
        return f"{rule.name}: {law.start} to {law.ceiling}{rate}{reason}"

    def _slot(self, key: str) -> SlotRule:
        return self.slots.get(key, _NO_SLOT_RULE)


_NO_SLOT_RULE = SlotRule()


def _read(settings: BaseSettings, spider: object) -> HostGateSettings:
    _refuse_unknown_names(settings)
    value = {name: settings.get(name, default) for name, default in DEFAULTS.items()}
    concurrency = whole("HOSTGATE_CONCURRENCY", value["HOSTGATE_CONCURRENCY"])
    ceiling = whole("HOSTGATE_MAX_CONCURRENCY", value["HOSTGATE_MAX_CONCURRENCY"])
    reason = text("HOSTGATE_REASON", value["HOSTGATE_REASON"])
    if concurrency > ceiling:
        if is_set(settings, "HOSTGATE_CONCURRENCY"):
            raise error(
                "HOSTGATE_CONCURRENCY",
                concurrency,
                f"at most HOSTGATE_MAX_CONCURRENCY ({ceiling}): no start above the ceiling. To "
                "raise both give HOSTGATE_REASON too",
            )
        concurrency = ceiling
    for name, asked in (
        ("HOSTGATE_CONCURRENCY", concurrency),
        ("HOSTGATE_MAX_CONCURRENCY", ceiling),
    ):
        if asked > DEFAULTS[name] and not reason:
            raise error(
                name,
                asked,
                f"at most {DEFAULTS[name]}, or more with HOSTGATE_REASON set to why every host "
                "can bear it",
            )
    key, key_function = _key(value["HOSTGATE_KEY"])
    jitter = default_jitter(settings)
    return HostGateSettings(
        enabled=flag("HOSTGATE_ENABLED", value["HOSTGATE_ENABLED"]),
        concurrency=concurrency,
        max_concurrency=ceiling,
        reason=reason,
        hosts=host_rules(settings, concurrency, ceiling, key),
        key=key,
        key_function=key_function,
        refusal_codes=_codes(settings),
        refusal_detector=imported_callable(
            "HOSTGATE_REFUSAL_DETECTOR", value["HOSTGATE_REFUSAL_DETECTOR"], "(response)"
        ),
        refusal_retries=whole(
            "HOSTGATE_REFUSAL_RETRIES", value["HOSTGATE_REFUSAL_RETRIES"], least=0
        ),
        stall_timeout_s=seconds("HOSTGATE_STALL_TIMEOUT", value["HOSTGATE_STALL_TIMEOUT"]),
        max_pause_s=seconds("HOSTGATE_MAX_PAUSE", value["HOSTGATE_MAX_PAUSE"]),
        recovery_delay_s=seconds("HOSTGATE_RECOVERY_DELAY", value["HOSTGATE_RECOVERY_DELAY"]),
        slow_latency_s=seconds("HOSTGATE_SLOW_LATENCY", value["HOSTGATE_SLOW_LATENCY"]),
        latency_noise_s=seconds(
            "HOSTGATE_LATENCY_NOISE", value["HOSTGATE_LATENCY_NOISE"], zero=True
        ),
        max_hosts=whole("HOSTGATE_MAX_HOSTS", value["HOSTGATE_MAX_HOSTS"]),
        stats_hosts=whole("HOSTGATE_STATS_HOSTS", value["HOSTGATE_STATS_HOSTS"], least=0),
        observing=read_observing(value),
        fleet=read_fleet(value),
        scrapy_concurrency=scrapy_concurrency(settings),
        delay_s=download_delay(settings, spider),
        jitter=jitter,
        start_delay_s=autothrottle_start(settings),
        slots=download_slots(settings, key),
    )


def _refuse_unknown_names(settings: BaseSettings) -> None:
    for name in settings:
        if isinstance(name, str) and name.startswith("HOSTGATE_") and name not in DEFAULTS:
            raise HostGateSettingsError(
                f"{name} is not a setting of scrapy_hostgate{did_you_mean(name, DEFAULTS)}. "
                f"There are: {', '.join(DEFAULTS)}."
            )


def _key(value: object) -> tuple[str, KeyFunction | None]:
    if value in KEY_KINDS:
        return str(value), None
    if isinstance(value, str) and "." not in value:
        raise error(
            "HOSTGATE_KEY",
            value,
            'one of "host", "domain", "slot", or the import path of a callable (request) -> str',
        )
    return "key", imported_callable("HOSTGATE_KEY", value, "(request) -> str")


def _codes(settings: BaseSettings) -> frozenset[int]:
    name = "HOSTGATE_REFUSAL_CODES"
    allowed = "a list of HTTP status codes from 400 to 599, such as [429, 503]"
    value = settings.get(name, DEFAULTS[name])
    items = value
    if isinstance(value, str):
        # "-s NAME=429,503" and "-s NAME=[429,503]" alike.
        items = [part for part in value.strip(" []").split(",") if part.strip()]
    if not isinstance(items, (list, tuple, set, frozenset)):
        raise error(name, value, allowed)
    codes = set()
    for item in items:
        code = whole(f"{name}, item {item!r},", item)
        if not 400 <= code <= 599:
            raise error(name, value, allowed)
        codes.add(code)
    return frozenset(codes)
