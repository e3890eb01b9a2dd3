"""``scrapy crawl demo``: five hosts that misbehave, and what becomes of their limits."""

from __future__ import annotations

import atexit
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any

import scrapy
from scrapy.http import Response

from demo.hosts import HOSTS, DemoHost, origin_config
from demo.origin_process import OriginProcess, start_process


class DemoSpider(scrapy.Spider):
    """Asks each demo host for its front page and then for all others.

    There is nothing about limits, waiting or retrying in here: that is the gate's affair. What
    came of it is told by :class:`demo.report.DemoReport`.
    """

    name = "demo"
    custom_settings = {
        "EXTENSIONS": {"demo.report.DemoReport": 500},
        # For the demo only, which has no time to wait: the gate's own 30 s are kinder to a host.
        "HOSTGATE_RECOVERY_DELAY": 8,
        # Scrapy's bound over all hosts counts requests that wait at a gate as well. The default of
        # 16 would leave five hosts three each, and "crowded" is to have four.
        "CONCURRENT_REQUESTS": 32,
        # The hosts have no robots.txt, and all are on this machine, behind no proxy.
        "ROBOTSTXT_OBEY": False,
        "HTTPPROXY_ENABLED": False,
        "LOGSTATS_INTERVAL": 0,
    }
    exitcode = 1  # until DemoReport has seen that all went well

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.origin: OriginProcess | None = None
        self.delivered: dict[str, set[str]] = defaultdict(set)
        """The paths that came back with their page, by address."""

    async def start(self) -> AsyncIterator[Any]:
        try:
            self.origin = start_process(origin_config())
        except RuntimeError as error:
            self.logger.error(
                "The demo hosts could not be started: %s\nThey need the loopback addresses %s to "
                "%s, which macOS has only after e.g. `sudo ifconfig lo0 alias %s`.",
                error,
                HOSTS[0].address,
                HOSTS[-1].address,
                HOSTS[0].address,
            )
            return
        # DemoReport stops them, but a second Ctrl-C ends the crawl without its being asked.
        atexit.register(self.origin.stop)
        for host in HOSTS:
            yield self.page(host, host.paths[0], callback=self.parse_front)

    def parse_front(self, response: Response, host: DemoHost, path: str) -> Iterator[Any]:
        """All other pages at once: they are the scheduler's, until a gate lets them go."""
        self.parse(response, host, path)
        for other in host.paths[1:]:
            yield self.page(host, other, callback=self.parse)

    def parse(self, response: Response, host: DemoHost, path: str) -> None:
        self.delivered[host.address].add(path)

    def page(self, host: DemoHost, path: str, callback: Any) -> scrapy.Request:
        assert self.origin is not None
        return scrapy.Request(
            self.origin.url(host.address, path),
            callback=callback,
            cb_kwargs={"host": host, "path": path},
        )
