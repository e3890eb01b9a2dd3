"""Several crawls at once, each in a process of its own, that begin at the same moment."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from child import Child, start_child

from demo.origin import Origin

START_TIMEOUT_S = 60.0


def start_workers(
    origin: Origin,
    host: str,
    counts: Sequence[int],
    settings: dict[str, Any],
    *,
    each: Sequence[dict[str, Any]] = (),
) -> list[Child]:
    """Start one worker for each of ``counts``, that many pages each; return when all have begun.

    ``each`` adds settings of single workers. Worker n asks for paths that begin with ``/wn/``.
    """
    barrier = Path(tempfile.mkdtemp(prefix="hostgate-fleet-")) / "go"
    workers = []
    for number, count in enumerate(counts):
        own = each[number] if number < len(each) else {}
        urls = [origin.url(host, f"/w{number}/p{page}") for page in range(count)]
        workers.append(start_child(urls, {**settings, **own, "JOB_BARRIER": str(barrier)}))
    deadline = time.monotonic() + START_TIMEOUT_S
    while len(list(barrier.parent.iterdir())) < len(counts):
        for worker in workers:
            assert worker.process.poll() is None, worker.log
        assert time.monotonic() < deadline, "the workers did not come up"
        time.sleep(0.02)
    barrier.touch()
    return workers


def worker_of(path: str) -> int:
    """Which worker asked for ``path``."""
    return int(path.split("/")[1].removeprefix("w"))
