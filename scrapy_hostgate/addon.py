"""``ADDONS = {"scrapy_hostgate.HostGateAddon": 500}``: another way to switch it on."""

from __future__ import annotations

from scrapy.settings import BaseSettings

from scrapy_hostgate.checks import HostGateSettingsError
from scrapy_hostgate.middleware import HostGateMiddleware
from scrapy_hostgate.pqueue import HostGatePriorityQueue
from scrapy_hostgate.tightening import is_set


class HostGateAddon:
    """Adds the middleware innermost and the scheduler's queue, unless the project did itself."""

    def update_settings(self, settings: BaseSettings) -> None:
        settings.setdefault_in_component_priority_dict(
            "DOWNLOADER_MIDDLEWARES", HostGateMiddleware, 1000
        )
        if not is_set(settings, "SCHEDULER_PRIORITY_QUEUE"):
            settings.set("SCHEDULER_PRIORITY_QUEUE", HostGatePriorityQueue, priority="addon")

    @property
    def process_request(self) -> None:
        """Scrapy looks for this where the add-on has been put among the middlewares."""
        raise HostGateSettingsError(
            "HostGateAddon is in DOWNLOADER_MIDDLEWARES, but belongs in ADDONS. In "
            "DOWNLOADER_MIDDLEWARES the name is scrapy_hostgate.HostGateMiddleware."
        )
