"""``ADDONS = {"scrapy_hostgate.HostGateAddon": 500}``: another way to switch it on."""

from __future__ import annotations

from scrapy.settings import BaseSettings

from scrapy_hostgate.checks import HostGateSettingsError
from scrapy_hostgate.middleware import HostGateMiddleware


class HostGateAddon:
    """Adds the middleware innermost, unless the project placed it itself."""

    def update_settings(self, settings: BaseSettings) -> None:
        settings.setdefault_in_component_priority_dict(
            "DOWNLOADER_MIDDLEWARES", HostGateMiddleware, 1000
        )

    @property
    def process_request(self) -> None:
        """Scrapy looks for this where the add-on has been put among the middlewares."""
        raise HostGateSettingsError(
            "HostGateAddon is in DOWNLOADER_MIDDLEWARES, but belongs in ADDONS. In "
            "DOWNLOADER_MIDDLEWARES the name is scrapy_hostgate.HostGateMiddleware."
        )
