"""scrapy-redis's scheduler, taught what a crawl by several processes needs today."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.utils.asyncio import AsyncioLoopingCall, create_looping_call
from scrapy_redis.scheduler import Scheduler
from twisted.internet.task import LoopingCall

if TYPE_CHECKING:
    from typing_extensions import Self

LOOK_AGAIN_S = 0.5


class SharedScheduler(Scheduler):
    """What differs from scrapy-redis 0.9.1:

    A process that finds the queue empty looks again every half second; by itself Scrapy does every
    five seconds, when another process may have emptied the queue again. It ends when the queue has
    stayed empty for SCHEDULER_IDLE_BEFORE_CLOSE seconds; scrapy-redis ends it at once, or never
    with its RedisSpider. And no answer of Redis is waited for: scrapy-redis hands that setting to
    its FIFO and LIFO queues as the time-out of a call that blocks all downloads of the process.

    Nor is its way of counting used, which Scrapy has deprecated.

    Every call to Redis still blocks the event loop for its round trip: keep that Redis near.

    Mutable state: ``_empty_since`` (monotonic seconds; None while there was something) and the
    running ``_looking``.
    """

    crawler: Crawler
    _empty_since: float | None = None
    _looking: AsyncioLoopingCall | LoopingCall | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        scheduler: Self = super().from_crawler(crawler)
        scheduler.crawler = crawler
        return scheduler

    def open(self, spider: Spider) -> None:
        super().open(spider)
        self._looking = create_looping_call(self._look_again)
        self._looking.start(LOOK_AGAIN_S, now=False)

    def close(self, reason: str) -> None:
        if self._looking is not None:
            self._looking.stop()
        super().close(reason)

    def enqueue_request(self, request: Request) -> bool:
        if not request.dont_filter and self.df.request_seen(request):
            self.df.log(request, self.spider)
            return False
        self.queue.push(request)
        self.stats.inc_value("scheduler/enqueued/redis")
        return True

    def next_request(self) -> Request | None:
        request: Request | None = self.queue.pop()
        if request is not None:
            self._empty_since = None
            self.stats.inc_value("scheduler/dequeued/redis")
        elif self._empty_since is None:
            self._empty_since = time.monotonic()
        return request

    def has_pending_requests(self) -> bool:
        """Whether to stay open while there is nothing to do."""
        if self._empty_since is None or len(self):
            return True
        return time.monotonic() - self._empty_since < self.idle_before_close

    def _look_again(self) -> None:
        slot: Any = self.crawler.engine._slot if self.crawler.engine is not None else None
        if self._empty_since is not None and slot is not None:
            # Scrapy has no public way to have the engine ask its scheduler now.
            slot.nextcall.schedule()
