"""A time-out that leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from scrapy_hostgate.fleet.protocol import FleetError

T = TypeVar("T")


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` returns. Raises :exc:`FleetError` if that takes longer.

    Other than with ``asyncio.wait_for``, an error of ``work`` in the very moment in which whoever
    waits is cancelled does not end up in the log.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_heed)
    try:
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise FleetError(f"no answer within {seconds:g} s")
    finally:
        task.cancel()
    return task.result()


def _heed(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
