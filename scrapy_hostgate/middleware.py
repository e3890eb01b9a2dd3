"""The one line in a project's ``DOWNLOADER_MIDDLEWARES``."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import scrapy
from scrapy import Request, signals
from scrapy.downloadermiddlewares.retry import RetryMiddleware
from scrapy.exceptions import NotConfigured
from scrapy.http import Response
from scrapy.utils.conf import build_component_list
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.job import job_dir
from scrapy.utils.misc import load_object

from scrapy_hostgate.checks import HostGateSettingsError
from scrapy_hostgate.gate import GateSnapshot
from scrapy_hostgate.pools import too_small
from scrapy_hostgate.robots import crawl_delay_of
from scrapy_hostgate.settings import HostGateSettings
from scrapy_hostgate.slots import SlotManager

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class HostGateMiddleware:
    """Downloads every request through the gate of its host.

    It must be the innermost downloader middleware: it answers from ``process_request``, so a
    ``process_request`` behind it would never run. At run time find it with
    ``crawler.get_downloader_middleware(HostGateMiddleware)``.
    """

    def __init__(self, crawler: Crawler, settings: HostGateSettings) -> None:
        self._manager = SlotManager(crawler, settings)
        self._crawler = crawler
        crawler.signals.connect(self._spider_closed, signal=signals.spider_closed)
        crawler.signals.connect(self._engine_stopped, signal=signals.engine_stopped)
        self._hear_robots()
        self._learnt = None
        folder = job_dir(crawler.settings)
        if folder is not None:
            self._learnt = self._manager.learnt_state(folder)
            # Now and not when the spider opens: others may send requests at that signal too.
            self._learnt.restore()
            crawler.signals.connect(self._spider_opened, signal=signals.spider_opened)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Raises ``NotConfigured`` if switched off, ``HostGateSettingsError`` if misconfigured."""
        try:
            settings = HostGateSettings.from_settings(crawler.settings, crawler.spider)
            if not settings.enabled:
                raise NotConfigured("HOSTGATE_ENABLED is False")
            _refuse_if_not_innermost(cls, crawler.settings)
        except HostGateSettingsError:
            # "scrapy crawl" of Scrapy before 2.15 exits with 0 unless the spider is missing.
            crawler.spider = None
            raise
        _warn_of_unretried(crawler, settings)
        for line in too_small(settings, crawler.settings):
            logger.warning("%s", line, extra={"spider": crawler.spider})
        logger.info(
            "hostgate: %(bounds)s",
            {"bounds": settings.describe()},
            extra={"spider": crawler.spider},
        )
        return cls(crawler, settings)

    @property
    def manager(self) -> SlotManager:
        """For the queue of the scheduler."""
        return self._manager

    def process_request(self, request: Request) -> Awaitable[Response | Request | None]:
        """Wait for the host's gate and download. See :meth:`SlotManager.download`."""
        return self._manager.download(request)

    def gates(self) -> dict[str, GateSnapshot]:
        """The state of every host that is known now, by host key."""
        return {gate.key: gate.snapshot() for gate in self._manager.registry}

    def refuse(self, request_or_host: Request | str, retry_after: float | None = None) -> None:
        """Say that a host refuses in its own way: a captcha page, a "slow down" with status 200.

        It collapses as after a 429. ``retry_after`` is seconds; without it the pause is the
        backoff. The page itself is not asked for again: yield it once more if you want it. Raises
        ``ValueError`` for a ``retry_after`` not above 0 and for what is no host.
        """
        if retry_after is not None and not retry_after > 0:
            raise ValueError(f"retry_after must be seconds, more than 0, not {retry_after!r}")
        request = request_or_host if isinstance(request_or_host, Request) else None
        self._manager.refuse(self._key(request_or_host), retry_after, request)

    def resize(self, host: Request | str, limit: int) -> None:
        """Set the limit of a host that holds now; the law goes on from there.

        Never above the host's ceiling: raises ``ValueError`` outside 1 to ceiling, and for what is
        no host.
        """
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise ValueError(f"limit must be a whole number, not {limit!r}")
        self._manager.resize(self._key(host), limit)

    def _key(self, request_or_host: Request | str) -> str:
        if isinstance(request_or_host, Request):
            return self._manager.keys.of_request(request_or_host)
        if not isinstance(request_or_host, str) or not request_or_host:
            raise ValueError(f"a Request or a host name is needed, not {request_or_host!r}")
        return self._manager.keys.of_name(request_or_host)

    def _hear_robots(self) -> None:
        settings = self._crawler.settings
        if not settings.getbool("ROBOTSTXT_OBEY"):
            return
        robots_parsed = getattr(signals, "robots_parsed", None)
        if robots_parsed is None:
            logger.warning(
                "Crawl-delay of robots.txt is not heard: it takes Scrapy 2.18 or newer, this is %s",
                scrapy.__version__,
                extra={"spider": self._crawler.spider},
            )
            return
        self._crawler.signals.connect(self._robots_parsed, signal=robots_parsed)

    def _robots_parsed(self, robotparser: object, request: Request) -> None:
        settings = self._crawler.settings
        agent = (
            settings.get("ROBOTSTXT_USER_AGENT")
            or request.headers.get("User-Agent")
            or settings.get("USER_AGENT")
        )
        delay_s = crawl_delay_of(robotparser, agent)
        if delay_s:
            self._manager.crawl_delay(request, delay_s)

    def _spider_opened(self) -> None:
        if self._learnt is not None:
            self._learnt.start()

    async def _spider_closed(self) -> None:
        self._manager.sum_up()
        if self._learnt is not None:
            await maybe_deferred_to_future(self._learnt.close())

    async def _engine_stopped(self) -> None:
        await self._manager.close()


def _refuse_if_not_innermost(cls: type, settings: BaseSettings) -> None:
    """Raise unless ``cls`` is a downloader middleware, and the last one with process_request."""
    numbers = _with_base(settings)
    order = build_component_list(numbers)
    classes = [load_object(component) for component in order]
    if cls not in classes:
        raise HostGateSettingsError(
            f"{cls.__name__} is not in DOWNLOADER_MIDDLEWARES, and works only there: "
            'DOWNLOADER_MIDDLEWARES = {"scrapy_hostgate.HostGateMiddleware": 1000}, or '
            'ADDONS = {"scrapy_hostgate.HostGateAddon": 500}.'
        )
    at = classes.index(cls)
    behind = [
        f"{component if isinstance(component, str) else component.__name__} ({numbers[component]})"
        for component, component_class in list(zip(order, classes))[at + 1 :]
        if hasattr(component_class, "process_request")
    ]
    if behind:
        raise HostGateSettingsError(
            f"{cls.__name__} has the number {numbers[order[at]]} in DOWNLOADER_MIDDLEWARES, but "
            "must have the highest of all, 1000 by default: it downloads by itself, so the "
            "process_request of what stands behind it would never be called. Give it a higher "
            "number, or give what stands behind it a lower one or None. Behind it: "
            f"{', '.join(behind)}."
        )


def _warn_of_unretried(crawler: Crawler, settings: HostGateSettings) -> None:
    """A refusal that nobody retries is a lost page; say so while it can still be mended."""
    retries = any(
        issubclass(load_object(component), RetryMiddleware)
        for component in build_component_list(_with_base(crawler.settings))
        if isinstance(load_object(component), type)
    )
    if not retries or not crawler.settings.getbool("RETRY_ENABLED"):
        logger.warning(
            "Retrying is switched off: pages that a host refuses (%s) will not be asked for again",
            ", ".join(map(str, sorted(settings.refusal_codes))),
            extra={"spider": crawler.spider},
        )


def _with_base(settings: BaseSettings) -> BaseSettings:
    """DOWNLOADER_MIDDLEWARES over Scrapy's own, as Scrapy's manager reads it."""
    name = "DOWNLOADER_MIDDLEWARES"
    if hasattr(settings, "get_component_priority_dict_with_base"):
        return settings.get_component_priority_dict_with_base(name)
    return settings.getwithbase(name)
