"""The settings that say who may look on: events, metrics, live view and report."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scrapy_hostgate.checks import error, flag, whole

OBSERVING_DEFAULTS: dict[str, Any] = {
    "HOSTGATE_EVENTS": None,
    "HOSTGATE_EVENTS_MAX_BYTES": 25_000_000,
    "HOSTGATE_EVENTS_BACKUPS": 3,
    "HOSTGATE_REPORT": None,
    "HOSTGATE_PROMETHEUS_PORT": None,
    "HOSTGATE_PROMETHEUS_HOST": "127.0.0.1",
    "HOSTGATE_WATCH": True,
}
MIN_EVENTS_BYTES = 100_000
PLACEHOLDERS = ("name", "time", "pid")


@dataclass(frozen=True, slots=True)
class ObservingSettings:
    """Paths may hold the placeholders of :data:`PLACEHOLDERS`; port 0 is any free one."""

    events: str | None = None
    events_max_bytes: int = 25_000_000
    events_backups: int = 3
    report: str | None = None
    prometheus_port: int | None = None
    prometheus_host: str = "127.0.0.1"
    watch: bool = True


def read_observing(value: Mapping[str, Any]) -> ObservingSettings:
    """Check them. Raises :class:`~scrapy_hostgate.checks.HostGateSettingsError`."""
    return ObservingSettings(
        events=_path(value, "HOSTGATE_EVENTS"),
        events_max_bytes=whole(
            "HOSTGATE_EVENTS_MAX_BYTES", value["HOSTGATE_EVENTS_MAX_BYTES"], least=MIN_EVENTS_BYTES
        ),
        events_backups=whole("HOSTGATE_EVENTS_BACKUPS", value["HOSTGATE_EVENTS_BACKUPS"], least=0),
        report=_path(value, "HOSTGATE_REPORT"),
        prometheus_port=_port(value["HOSTGATE_PROMETHEUS_PORT"]),
        prometheus_host=_address(value["HOSTGATE_PROMETHEUS_HOST"]),
        watch=flag("HOSTGATE_WATCH", value["HOSTGATE_WATCH"]),
    )


def _path(value: Mapping[str, Any], name: str) -> str | None:
    path = value[name]
    if path is None or path == "":
        return None
    allowed = "the path of a file, in which %(name)s, %(time)s and %(pid)s may stand"
    if not isinstance(path, (str, os.PathLike)):
        raise error(name, path, allowed)
    text = os.fspath(path)
    try:
        text % dict.fromkeys(PLACEHOLDERS, "")
    except (KeyError, TypeError, ValueError) as failure:
        raise error(name, path, f"{allowed} (a plain % is written %%)") from failure
    return text


def _port(value: object) -> int | None:
    if value is None or value == "":
        return None
    port = whole("HOSTGATE_PROMETHEUS_PORT", value, least=0)
    if port > 65_535:
        raise error("HOSTGATE_PROMETHEUS_PORT", value, "a port from 0 (any free one) to 65535")
    return port


def _address(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise error("HOSTGATE_PROMETHEUS_HOST", value, "an address such as 127.0.0.1 or 0.0.0.0")
    return value.strip()
