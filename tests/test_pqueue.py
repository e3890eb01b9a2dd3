"""The scheduler's queue by itself, without a crawl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import GATED, JobSpider
from scrapy import Request
from scrapy.squeues import FifoMemoryQueue, PickleFifoDiskQueue
from scrapy.utils.test import get_crawler

from scrapy_hostgate import HostGatePriorityQueue


def queue_of(settings: dict[str, Any], folder: str = "", state: Any = None) -> Any:
    """A queue of a crawl that has been made and does not run."""
    crawler = get_crawler(JobSpider, {"TELNETCONSOLE_ENABLED": False, **settings})
    crawler.spider = crawler._create_spider()
    crawler.engine = crawler._create_engine()
    kind: Any = PickleFifoDiskQueue if folder else FifoMemoryQueue
    return HostGatePriorityQueue(crawler, kind, folder, state)


@pytest.mark.parametrize("middlewares", [GATED, {}], ids=["gated", "stock"])
def test_a_look_takes_nothing(middlewares: dict[str, Any]) -> None:
    """What is shown is what comes next; an empty queue shows nothing."""
    queue = queue_of({"DOWNLOADER_MIDDLEWARES": middlewares})
    assert queue.peek() is None
    first, second = Request("http://a.example/1"), Request("http://a.example/2")
    queue.push(first)
    queue.push(second)
    assert queue.peek() is first
    assert queue.peek() is first
    assert len(queue) == 2
    assert queue.pop() is first
    assert queue.peek() is second


def test_what_cannot_be_read_costs_only_itself(tmp_path: Path) -> None:
    """A request on disk that raises as it is read leaves the others of its host in the queue."""
    folder = str(tmp_path / "requests")
    settings = {"DOWNLOADER_MIDDLEWARES": GATED}
    queue = queue_of(settings, folder)
    queue.push(Request("http://a.example/1"))
    queue.push(Request("http://a.example/2"))
    inner = queue.pqueues["a.example"].queues[0]
    read = inner.pop

    def broken() -> Request:
        read()
        raise ValueError("cannot be read")

    inner.pop = broken
    with pytest.raises(ValueError, match="cannot be read"):
        queue.pop()
    del inner.pop
    assert len(queue) == 1
    assert queue.pop().url == "http://a.example/2"
    assert len(queue) == 0
    assert queue.close() == {}
