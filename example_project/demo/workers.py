"""Crawls in processes of their own, ended together with whoever started them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

PROJECT_DIR = Path(__file__).resolve().parent.parent
POLL_S = 0.05
END_TIMEOUT_S = 10.0
TAIL_LINES = 12


class Workers:
    """Processes of ``scrapy crawl``, numbered from 1. A context manager that ends those that run.

    ``folder`` gets the log of each and the pages it delivered, a line each.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start one more: ``scrapy crawl`` with these arguments, and these variables besides."""
        number = len(self._processes) + 1
        command = [sys.executable, "-m", "scrapy", "crawl", *arguments]
        command += ["-O", f"{self._pages(number)}:jsonlines"]
        with self._log(number).open("wb") as log, _signals_later():
            process = subprocess.Popen(
                command,
                cwd=PROJECT_DIR,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C in the terminal is for whoever started them, and then ends them.
                start_new_session=True,
            )
            self._processes.append(process)

    def wait(self) -> list[int]:
        """Wait until all have ended; their exit statuses in order."""
        while any(process.poll() is None for process in self._processes):
            time.sleep(POLL_S)
        return [process.returncode for process in self._processes]

    def delivered(self) -> list[int]:
        """How many pages came back to each."""
        files = [self._pages(number) for number in range(1, len(self._processes) + 1)]
        return [len(file.read_bytes().splitlines()) if file.exists() else 0 for file in files]

    def last_words(self, number: int) -> str:
        """The end of a worker's log."""
        log = self._log(number).read_text(encoding="utf-8", errors="replace")
        return "\n".join(log.splitlines()[-TAIL_LINES:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        running = [process for process in self._processes if process.poll() is None]
        for process in running:
            process.terminate()  # an orderly end: it gives back what it holds
        deadline = time.monotonic() + END_TIMEOUT_S
        try:
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        finally:  # reached at once by a second Ctrl-C
            for process in running:
                if process.poll() is None:
                    process.kill()
                    process.wait()

    def _log(self, number: int) -> Path:
        return self._folder / f"worker-{number}.log"

    def _pages(self, number: int) -> Path:
        return self._folder / f"worker-{number}.jsonl"


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """A Ctrl-C between a start and its being noted down would leave a process behind."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came:
        signal.raise_signal(number)
