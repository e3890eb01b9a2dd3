"""The scheduler queue that knows the gates: ``scrapy_hostgate.HostGatePriorityQueue``."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue

from scrapy_hostgate.checks import HostGateSettingsError
from scrapy_hostgate.middleware import HostGateMiddleware
from scrapy_hostgate.turns import Turns

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.pqueues import QueueProtocol

logger = logging.getLogger(__name__)

# So many requests are looked at for each one asked for, while those found are not the right ones.
_LOOKS = 16


def _most_open() -> int:
    """How many hosts may have their files open: a quarter of what the process may open."""
    if resource is None:
        return 100
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 10_000 if soft == resource.RLIM_INFINITY else max(16, min(10_000, soft // 4))


class HostGatePriorityQueue(DownloaderAwarePriorityQueue):
    """Gives out a request only when its host could take it about now.

    Hosts take turns, those with the fewest requests in flight first; within a host priorities and
    order are Scrapy's. When no host could take one, :meth:`pop` returns ``None``, though the queue
    is not empty, and the engine is woken as soon as that changes.

    It splits requests by host key where ``DownloaderAwarePriorityQueue`` splits them by download
    slot. Folders and state in a ``JOBDIR`` are the same, so either can resume what the other began.
    Without the middleware (or with ``HOSTGATE_ENABLED = False``) it is that queue.
    """

    # All mutable state, beside Scrapy's ``pqueues`` (name to queue): the names whose queues are
    # closed on disk, with the priorities there (Scrapy keeps a file open for each host and
    # priority, and a process may open only so many), how many requests there are, whose turn it is,
    # which names the JOBDIR brought, and whether the engine has been sent away with nothing.
    def __init__(
        self,
        crawler: Crawler,
        downstream_queue_cls: type[QueueProtocol],
        key: str,
        slot_startprios: dict[str, Iterable[int]] | None = None,
        *,
        start_queue_cls: type[QueueProtocol] | None = None,
    ) -> None:
        """``key`` is the folder to keep requests in, "" for memory.

        Raises ``HostGateSettingsError`` if another kind of queue has left its state there.
        """
        if slot_startprios and not isinstance(slot_startprios, dict):
            raise HostGateSettingsError(
                f"JOBDIR: the requests in {key!r} were queued by another SCHEDULER_PRIORITY_QUEUE "
                "(scrapy.pqueues.ScrapyPriorityQueue?). HostGatePriorityQueue can go on only with "
                "those of HostGatePriorityQueue or DownloaderAwarePriorityQueue: resume with the "
                "queue that the crawl began with."
            )
        middleware = crawler.get_downloader_middleware(HostGateMiddleware)
        self._manager = None if middleware is None else middleware.manager
        super().__init__(
            crawler,
            downstream_queue_cls,
            key,
            slot_startprios if self._manager is None else None,
            start_queue_cls=start_queue_cls,
        )
        if self._manager is None:
            if not key:
                logger.info(
                    "HostGatePriorityQueue works as DownloaderAwarePriorityQueue, because "
                    "HostGateMiddleware is not enabled",
                    extra={"spider": crawler.spider},
                )
            return
        self._dispatch = self._manager.dispatch
        self._turns = Turns(self._dispatch.opening)
        self._left_waiting = False
        self._count = 0
        self.pqueues: OrderedDict[str, ScrapyPriorityQueue] = OrderedDict()
        self._folded: dict[str, list[int]] = {}
        self._most_open = _most_open() if key else None
        # What a crawl that another queue began has under one name may be of several hosts.
        self._inherited = set(slot_startprios or ())
        now = self._dispatch.clock()
        for name, priorities in (slot_startprios or {}).items():
            self._folded[name] = list(priorities)
            self._count += len(self._queue(name))
            self._turns.put(name, now)
        self._dispatch.listen(self._opened)

    def push(self, request: Request) -> None:
        """Keep ``request``. Raises ``ValueError`` if it cannot be written to disk."""
        if self._manager is None:
            super().push(request)
        else:
            self._file(self._manager.queue_name(request), request)

    def pop(self) -> Request | None:
        """The next request whose host could take it now, ``None`` if there is none."""
        if self._manager is None:
            return super().pop()
        for _ in range(_LOOKS):
            name = self._first()
            if name is None:
                self._left_waiting = True
                self._wake_when_due()
                return None
            request = self._take(name)
            if request is None:
                continue
            own = self._manager.queue_name(request) if name in self._inherited else name
            if self._dispatch.admits(own):
                self._dispatch.send(request, own)
                self._put_back(name)
                self._left_waiting = False
                return request
            self._put_back(name)
            self._file(own, request)
        self._dispatch.wake()
        return None

    def peek(self) -> Request | None:
        """The request that :meth:`pop` would look at first, left where it is.

        Raises ``NotImplementedError`` if the underlying queue has no ``peek``.
        """
        if self._manager is None:
            return super().peek()
        name = self._first()
        return None if name is None else self._queue(name).peek()

    def close(self) -> dict[str, list[int]]:
        """Close every queue; return the state from which to resume."""
        if self._manager is None:
            return super().close()
        state = {**self._folded, **super().close()}
        for name in state:
            self._turns.drop(name)
        self._folded.clear()
        self._count = 0
        return state

    def __contains__(self, name: str) -> bool:
        return super().__contains__(name) or (self._manager is not None and name in self._folded)

    def __len__(self) -> int:
        return super().__len__() if self._manager is None else self._count

    def _first(self) -> str | None:
        now = self._dispatch.clock()
        name = self._turns.first(now)
        if name is None:
            self._dispatch.look_for_gone()
            name = self._turns.first(now)
        return name

    def _queue(self, name: str) -> ScrapyPriorityQueue:
        """The queue of ``name``, opened or made if need be; the longest unused may be closed."""
        queue = self.pqueues.get(name)
        if queue is not None:
            self.pqueues.move_to_end(name)
            return queue
        queue = self.pqueues[name] = self.pqfactory(name, self._folded.pop(name, ()))
        if self._most_open is not None and len(self.pqueues) > self._most_open:
            unused, longest = self.pqueues.popitem(last=False)
            self._folded[unused] = longest.close()
        return queue

    def _file(self, name: str, request: Request) -> None:
        queue = self._queue(name)
        before = len(queue)
        try:
            queue.push(request)
        finally:
            self._count += len(queue) - before
            self._put_back(name)

    def _take(self, name: str) -> Request | None:
        """The next request of ``name``, which loses its turn until :meth:`_put_back`."""
        queue = self._queue(name)
        before = len(queue)
        self._turns.drop(name)
        try:
            return queue.pop()
        except BaseException:
            # One that cannot be read must not take the rest of its host with it.
            self._put_back(name)
            raise
        finally:
            self._count += len(queue) - before

    def _put_back(self, name: str) -> None:
        queue = self._queue(name)
        if queue:
            self._opened(name)
            return
        del self.pqueues[name]
        self._inherited.discard(name)
        self._turns.drop(name)
        queue.close()
        if self.key:
            # The folder stays if a queue has left a file there.
            with suppress(OSError):
                Path(queue.key).rmdir()

    def _opened(self, name: str) -> None:
        """``name`` may be able to take a request now; let the engine ask if it is waiting."""
        if name not in self:
            return
        ready = self._turns.put(name, self._dispatch.clock())
        if not self._left_waiting:
            return
        if ready:
            self._left_waiting = False
            self._dispatch.wake()
        else:
            self._wake_when_due()

    def _wake_when_due(self) -> None:
        if (due := self._turns.next_due()) is not None:
            self._dispatch.wake_at(due)
