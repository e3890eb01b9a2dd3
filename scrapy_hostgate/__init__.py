"""Adaptive per-host concurrency for Scrapy: one line in ``DOWNLOADER_MIDDLEWARES``."""

from scrapy_hostgate.addon import HostGateAddon
from scrapy_hostgate.checks import HostGateSettingsError
from scrapy_hostgate.errors import HostRefusedError, HostStalledError, SpiderClosingError
from scrapy_hostgate.gate import GateSnapshot
from scrapy_hostgate.middleware import HostGateMiddleware
from scrapy_hostgate.observe.events import GateEvent
from scrapy_hostgate.pqueue import HostGatePriorityQueue

__all__ = [
    "GateEvent",
    "GateSnapshot",
    "HostGateAddon",
    "HostGateMiddleware",
    "HostGatePriorityQueue",
    "HostGateSettingsError",
    "HostRefusedError",
    "HostStalledError",
    "SpiderClosingError",
]
__version__ = "0.1.0"
