"""The clients of ``peers.py``. As a program: ``peers_clients.py CLIENT``, the job on stdin.

Each one crawls in a process of its own, as its documentation says it should be set up, with nothing
tuned but how many requests may be in flight over all hosts.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

CLIENTS: dict[str, str] = {
    "stock": "Scrapy's defaults",
    "autothrottle": "AutoThrottle",
    "template": "Scrapy's project template",
    "crawlee": "Crawlee, ThrottlingRequestManager",
    "hostgate": "scrapy_hostgate, one line",
    "hostgate-addon": "scrapy_hostgate, add-on",
}
SETTINGS: dict[str, dict[str, Any]] = {
    "stock": {},
    "autothrottle": {"AUTOTHROTTLE_ENABLED": True},
    "template": {"CONCURRENT_REQUESTS_PER_DOMAIN": 1, "DOWNLOAD_DELAY": 1},
    "hostgate": {"DOWNLOADER_MIDDLEWARES": {"scrapy_hostgate.HostGateMiddleware": 1000}},
    "hostgate-addon": {"ADDONS": {"scrapy_hostgate.HostGateAddon": 500}},
}


def missing(client: str) -> str:
    """What has to be installed for a client; empty if nothing."""
    if client == "crawlee" and importlib.util.find_spec("crawlee") is None:
        return "pip install 'scrapy-hostgate[bench]'"
    return ""


def with_scrapy(client: str, urls: list[str], in_all: int) -> None:
    import scrapy
    from scrapy.crawler import CrawlerProcess

    class PagesSpider(scrapy.Spider):
        name = "pages"

        async def start(self) -> AsyncIterator[scrapy.Request]:
            for url in urls:
                yield scrapy.Request(url)

        def parse(self, response: scrapy.http.Response, **kwargs: Any) -> None:
            """Nothing to do: the hosts write down what they served."""

    process = CrawlerProcess(
        {
            "LOG_LEVEL": "CRITICAL",
            "TELNETCONSOLE_ENABLED": False,
            "ROBOTSTXT_OBEY": False,
            "CONCURRENT_REQUESTS": in_all,
            **SETTINGS[client],
        }
    )
    process.crawl(PagesSpider)
    process.start()


async def with_crawlee(urls: list[str], hosts: list[str], in_all: int) -> None:
    from crawlee import ConcurrencySettings, service_locator
    from crawlee.crawlers import HttpCrawler, HttpCrawlingContext
    from crawlee.request_loaders import ThrottlingRequestManager
    from crawlee.storage_clients import MemoryStorageClient
    from crawlee.storages import RequestQueue

    service_locator.set_storage_client(MemoryStorageClient())
    manager = ThrottlingRequestManager(
        await RequestQueue.open(), domains=hosts, request_manager_opener=RequestQueue.open
    )
    crawler = HttpCrawler(
        request_manager=manager,
        concurrency_settings=ConcurrencySettings(max_concurrency=in_all),
        configure_logging=False,
    )

    @crawler.router.default_handler
    async def handle(context: HttpCrawlingContext) -> None:
        """Nothing to do: the hosts write down what they served."""

    await crawler.run(urls)


def main(client: str) -> None:
    job = json.load(sys.stdin)
    if client == "crawlee":
        asyncio.run(with_crawlee(job["urls"], job["hosts"], job["in_all"]))
    else:
        with_scrapy(client, job["urls"], job["in_all"])


if __name__ == "__main__":
    main(sys.argv[1])
