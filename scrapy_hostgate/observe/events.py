"""What happened at a gate, as an event; and the bounded file that events are written to."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("scrapy_hostgate")

FORMAT = 1
BUFFER_BYTES = 64_000


@dataclass(frozen=True, slots=True)
class GateEvent:
    """One change at one host.

    ``kind`` is ``"limit"`` (requests in flight), ``"pause"`` (seconds left of it) or ``"spacing"``
    (seconds between departures); ``before`` and ``after`` are the values, ``reason`` a stable code,
    ``numbers`` what decided it. ``at`` is Unix time in seconds.
    """

    kind: str
    host: str
    at: float
    before: float
    after: float
    reason: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


def event_line(event: GateEvent, now: float) -> str:
    """The event as a line of the file. ``now`` is the same moment on the monotonic clock."""
    return json_line(
        {
            "event": event.kind,
            "t": now,
            "time": iso(event.at),
            "host": event.host,
            "from": event.before,
            "to": event.after,
            "reason": event.reason,
            **event.numbers,
        }
    )


def json_line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


def iso(at: float) -> str:
    """Unix time as UTC to the millisecond."""
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")


def backup(path: Path, number: int) -> Path:
    """Where the ``number``-th older part of ``path`` is kept."""
    return path.with_name(f"{path.name}.{number}")


def parts_of(path: Path) -> list[Path]:
    """The parts of an events file that there are, the oldest first."""
    parts = [path] if path.exists() else []
    number = 1
    while backup(path, number).exists():
        parts.append(backup(path, number))
        number += 1
    return parts[::-1]


class EventFile:
    """Appends lines to a file and rotates it: ``path``, ``path.1`` (older), ``path.2`` …

    Every part begins with an ``open`` line. A file that is there at the start is an older crawl's
    and is rotated away. Whatever cannot be written is told once, and the crawl goes on without.
    """

    # All mutable state: the open file, what is not written yet, how much the part holds, and
    # whether it is over.
    def __init__(
        self,
        *,
        max_bytes: int,
        backups: int,
        clock: Callable[[], float],
        about: Mapping[str, Any],
    ) -> None:
        self.path: Path | None = None
        self.part = 0
        """Counts the parts; whoever writes state into each compares it."""
        self.failed = False
        self._max_bytes = max_bytes
        self._backups = backups
        self._clock = clock
        self._about = about
        self._file: IO[bytes] | None = None
        self._lines: list[str] = []
        self._buffered = 0
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<EventFile {str(self.path)!r} part={self.part} failed={self.failed}>"

    def open(self, path: Path) -> None:
        """Open the first part."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _open_locked(path)
            if self._file.seek(0, os.SEEK_END):
                self._shift()
            self._begin()
        except OSError as error:
            self.give_up(error)

    def append(self, line: str) -> None:
        """Add a line, which ends in a newline; it reaches the file with the next :meth:`flush`."""
        if self.failed:
            return
        self._lines.append(line)
        self._buffered += len(line)
        self._bytes += len(line)
        if self._buffered >= BUFFER_BYTES:
            self.flush()

    def make_room(self) -> None:
        """Begin a new part if the present one is full; :attr:`part` tells."""
        if self._bytes < self._max_bytes or self._file is None:
            return
        self.flush()
        try:
            self._shift()
            self._begin()
        except OSError as error:
            self.give_up(error)

    def flush(self) -> None:
        lines, self._lines, self._buffered = self._lines, [], 0
        if self._file is None or not lines:
            return
        try:
            _write_all(self._file, "".join(lines).encode("ascii"))
        except OSError as error:
            self.give_up(error)

    def close(self) -> None:
        self.flush()
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self.give_up(error)

    def parts(self) -> list[Path]:
        """The files that there are, the oldest first."""
        return [] if self.path is None else parts_of(self.path)

    def give_up(self, error: OSError) -> None:
        """Say why nothing is written any more."""
        self.failed = True
        self._lines, self._buffered = [], 0
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
        logger.error(
            "The events file %(path)s cannot be written (%(error)s): the crawl goes on without it",
            {"path": self.path or "for the report", "error": error.strerror or error},
        )

    def _begin(self) -> None:
        self.part += 1
        self._bytes = 0
        # Before what is waiting in the buffer, so that the part begins with it.
        first = json_line(
            {
                "event": "open",
                "format": FORMAT,
                "part": self.part,
                "t": self._clock(),
                "time": iso(time.time()),
                **self._about,
            }
        )
        self._lines.insert(0, first)

    def _shift(self) -> None:
        """Move every part one further, where the oldest falls off, and open an empty one."""
        file, path = self._file, self.path
        assert file is not None
        assert path is not None
        file.close()
        if self._backups == 0:
            path.unlink()
        else:
            for number in range(self._backups - 1, 0, -1):
                if backup(path, number).exists():
                    os.replace(backup(path, number), backup(path, number + 1))
            os.replace(path, backup(path, 1))
        self._file = _open_locked(path)


def _open_locked(path: Path) -> IO[bytes]:
    # Unbuffered: there is a buffer already, and a full disk is to be noticed at the write.
    file = path.open("ab", buffering=0)
    try:
        _lock(file)
    except OSError:
        file.close()
        raise
    return file


def _write_all(file: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _lock(file: IO[bytes]) -> None:
    """Two crawls in one file would rotate it away under each other."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(
            error.errno,
            "another crawl writes it; %(pid)s in HOSTGATE_EVENTS gives each process its own",
        ) from error
