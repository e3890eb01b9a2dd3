"""The settings of a fleet, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scrapy_hostgate.checks import HostGateSettingsError, error, seconds

FLEET_DEFAULTS: dict[str, Any] = {
    "HOSTGATE_FLEET_URL": "",
    "HOSTGATE_FLEET_LEASE": 15.0,
    "HOSTGATE_FLEET_TTL": 3600.0,
    "HOSTGATE_FLEET_TIMEOUT": 2.0,
    "HOSTGATE_FLEET_FAIL": "alone",
}
MAX_LEASE_S = 3600


@dataclass(frozen=True, slots=True)
class FleetRules:
    """How this process takes part in a fleet, if it does. Times are seconds."""

    # It may hold a password.
    url: str = field(default="", repr=False)
    lease_s: float = 15.0
    ttl_s: float = 3600.0
    timeout_s: float = 2.0
    stays_closed: bool = False
    """Whether nothing departs while the fleet cannot be asked."""


def read_fleet(value: Mapping[str, Any]) -> FleetRules:
    """Check them. Raises ``HostGateSettingsError``."""
    lease_s = seconds("HOSTGATE_FLEET_LEASE", value["HOSTGATE_FLEET_LEASE"])
    timeout_s = seconds("HOSTGATE_FLEET_TIMEOUT", value["HOSTGATE_FLEET_TIMEOUT"])
    ttl_s = seconds("HOSTGATE_FLEET_TTL", value["HOSTGATE_FLEET_TTL"])
    fail = value["HOSTGATE_FLEET_FAIL"]
    if not 1 <= lease_s <= MAX_LEASE_S:
        raise error("HOSTGATE_FLEET_LEASE", lease_s, f"a number of seconds from 1 to {MAX_LEASE_S}")
    if timeout_s > lease_s:
        raise error(
            "HOSTGATE_FLEET_TIMEOUT",
            timeout_s,
            f"at most HOSTGATE_FLEET_LEASE ({lease_s:g}): an answer must come before it lapses",
        )
    if ttl_s < 2 * lease_s:
        raise error(
            "HOSTGATE_FLEET_TTL", ttl_s, f"at least twice HOSTGATE_FLEET_LEASE ({lease_s:g})"
        )
    if fail not in ("alone", "closed"):
        raise error("HOSTGATE_FLEET_FAIL", fail, '"alone" or "closed"')
    return FleetRules(
        url=_url(value["HOSTGATE_FLEET_URL"]),
        lease_s=lease_s,
        ttl_s=ttl_s,
        timeout_s=timeout_s,
        stays_closed=fail == "closed",
    )


def _url(value: object) -> str:
    if not isinstance(value, str):
        # What it is may hold a password.
        raise HostGateSettingsError(
            f"HOSTGATE_FLEET_URL is a {type(value).__name__}, but must be a text: a URL."
        )
    return value.strip()
