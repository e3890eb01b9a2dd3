"""Looking at a fleet without taking part in it."""

from __future__ import annotations

import asyncio

from scrapy_hostgate.fleet.join import open_fleet
from scrapy_hostgate.fleet.protocol import HostRow

TIMEOUT_S = 5.0


def look_at(url: str) -> list[HostRow]:
    """Every host that the fleet at ``url`` has been asked about lately.

    Raises ``HostGateSettingsError`` for what is no URL of a fleet, and ``FleetError``.
    """
    fleet = open_fleet("--url", url, TIMEOUT_S)

    async def look() -> list[HostRow]:
        try:
            return await fleet.hosts()
        finally:
            await fleet.close()

    return asyncio.run(look())
