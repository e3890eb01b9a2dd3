"""Scrapy's own sizes that would keep a gate from using what it may."""

from __future__ import annotations

from scrapy.settings import BaseSettings

from scrapy_hostgate.settings import HostGateSettings


def too_small(settings: HostGateSettings, scrapy_settings: BaseSettings) -> list[str]:
    """One line for each of Scrapy's sizes that is below the highest ceiling, with what to raise.

    The handlers keep as many connections per host as ``CONCURRENT_REQUESTS_PER_DOMAIN`` says, by
    default 8. The Twisted one closes those above it after each request, others never open them.
    """
    ceilings = {"HOSTGATE_MAX_CONCURRENCY": settings.law_for("").ceiling}
    for name in settings.hosts:
        ceilings[f"HOSTGATE_HOSTS[{name!r}]"] = settings.law_for(name).ceiling
    where = max(ceilings, key=lambda name: ceilings[name])
    ceiling = ceilings[where]
    lines = []
    for name, what in (
        ("CONCURRENT_REQUESTS_PER_DOMAIN", "as many connections per host are kept alive"),
        ("CONCURRENT_REQUESTS", "as many requests are in flight over all hosts"),
    ):
        size = scrapy_settings.getint(name)
        # No total is no bound; no connection kept is the smallest pool there is.
        if size < ceiling and (size or name != "CONCURRENT_REQUESTS"):
            lines.append(
                f"{where} allows {ceiling} in flight, but {name} is {size}, and only {what}: "
                f"set it to {ceiling} or more"
            )
    return lines
