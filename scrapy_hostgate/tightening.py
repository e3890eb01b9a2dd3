"""What Scrapy's own settings say of pace and concurrency: they may only tighten ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings

from scrapy_hostgate.checks import error, seconds, whole
from scrapy_hostgate.hostkey import normalise_host


@dataclass(frozen=True, slots=True)
class SlotRule:
    """What Scrapy's ``DOWNLOAD_SLOTS`` says of one slot; delays are seconds."""

    concurrency: int | None = None
    delay_s: float | None = None
    jitter: float | None = None


def is_set(settings: BaseSettings, name: str) -> bool:
    priority = settings.getpriority(name)
    return priority is not None and priority > SETTINGS_PRIORITIES["default"]


def scrapy_concurrency(settings: BaseSettings) -> int | None:
    """Scrapy's own bound, where the project set one; 0 means "no bound" there."""
    bounds = [
        settings.getint(name)
        for name in ("CONCURRENT_REQUESTS_PER_DOMAIN", "CONCURRENT_REQUESTS_PER_IP")
        if is_set(settings, name)
    ]
    return min((bound for bound in bounds if bound > 0), default=None)


def download_delay(settings: BaseSettings, spider: object) -> float:
    """DOWNLOAD_DELAY, or the spider attribute that older Scrapy releases read."""
    delays = [settings.getfloat("DOWNLOAD_DELAY")]
    attribute = getattr(spider, "download_delay", None)
    if isinstance(attribute, (int, float)):
        delays.append(float(attribute))
    return max(delays)


def default_jitter(settings: BaseSettings) -> float:
    """± share of the delay: DOWNLOAD_DELAY_JITTER, or RANDOMIZE_DOWNLOAD_DELAY of old."""
    own = settings.get("DOWNLOAD_DELAY_JITTER")
    if own is not None and not (
        is_set(settings, "RANDOMIZE_DOWNLOAD_DELAY")
        and not is_set(settings, "DOWNLOAD_DELAY_JITTER")
    ):
        return float(own)
    return 0.5 if settings.getbool("RANDOMIZE_DOWNLOAD_DELAY", True) else 0.0


def autothrottle_start(settings: BaseSettings) -> float | None:
    if not settings.getbool("AUTOTHROTTLE_ENABLED"):
        return None
    return settings.getfloat("AUTOTHROTTLE_START_DELAY", 5.0)


def download_slots(settings: BaseSettings, key: str) -> dict[str, SlotRule]:
    """Scrapy's ``DOWNLOAD_SLOTS``, checked. Raises ``HostGateSettingsError``."""
    rules = {}
    for name, slot in settings.getdict("DOWNLOAD_SLOTS").items():
        where = f"DOWNLOAD_SLOTS[{name!r}]"
        if not isinstance(slot, Mapping):
            raise error(where, slot, "a dict with concurrency, delay or jitter")
        jitter = slot.get("jitter")
        if jitter is None and "randomize_delay" in slot:
            jitter = 0.5 if slot["randomize_delay"] else 0.0
        concurrency, delay = slot.get("concurrency"), slot.get("delay")
        rules[normalise_host(str(name)) if key == "host" else str(name)] = SlotRule(
            concurrency=whole(f"{where}['concurrency']", concurrency) if concurrency else None,
            delay_s=None if delay is None else seconds(f"{where}['delay']", delay, zero=True),
            jitter=None if jitter is None else seconds(f"{where}['jitter']", jitter, zero=True),
        )
    return rules
