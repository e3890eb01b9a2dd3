"""What the gates have learnt, kept in the job's folder from one run to the next.

One file of JSON lines: the first says the version, the time of writing and how many hosts follow,
each of the others is a host key and what its gate exported. It is written beside the old one and
put in its place in one step, so whoever reads finds the old or the new one, and never half of one.
"""

from __future__ import annotations

import heapq
import json
import logging
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path

from twisted.internet.defer import Deferred

from scrapy_hostgate.gate import Gate
from scrapy_hostgate.registry import Registry
from scrapy_hostgate.saved import Saved
from scrapy_hostgate.semaphore import CallLater, Timer

logger = logging.getLogger(__name__)

FILE_NAME = "hostgate.jsonl"
VERSION = 1
SAVE_EVERY_S = 60.0
# So many gates are exported in one turn of the event loop: a few milliseconds.
SLICE = 250
WRITER_POLL_S = 0.01

_HEADER_KEYS = {"version", "saved_at", "hosts"}


class LearntState:
    """Saves the gates of ``registry`` every minute and at the end; restores them at the start.

    ``clock`` is monotonic, ``wall_clock`` gives Unix seconds: a monotonic time means nothing in the
    next process. The event loop is never held up by the disk: a thread writes.
    """

    # All mutable state: the one timer; of a save under way the gates still to be exported and the
    # lines made so far; the thread that writes; whether a failure was told; and who waits for the
    # last save of all.
    def __init__(
        self,
        folder: Path,
        registry: Registry,
        *,
        max_hosts: int,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        call_later: CallLater,
        spider: object = None,
    ) -> None:
        self.path = folder / FILE_NAME
        self._registry = registry
        self._max_hosts = max_hosts
        self._clock = clock
        self._wall_clock = wall_clock
        self._call_later = call_later
        self._extra = {"spider": spider}
        self._timer: Timer | None = None
        self._gates: list[Gate] = []
        self._lines: list[tuple[float, str]] = []
        self._writer: threading.Thread | None = None
        self._failure_told = False
        self._closed: Deferred[None] | None = None

    def __repr__(self) -> str:
        return f"<LearntState {str(self.path)!r} saving={bool(self._gates or self._lines)}>"

    def restore(self) -> int:
        """Take up what an earlier run has saved; return of how many hosts.

        What is broken, of another version or too old to mean anything is left out, with a warning.
        """
        try:
            text = self.path.read_text(encoding="ascii")
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            return self._ignored(f"it cannot be read ({error})")
        try:
            saved_at, hosts = _parse(text)
        except ValueError as error:
            return self._ignored(str(error))
        now = self._clock()
        age_s = self._wall_clock() - saved_at
        # A clock that has been set back cannot tell how long ago that was. Then it was just now:
        # rather too long a pause than too short a one.
        offset_s = saved_at + max(0.0, age_s) - now
        restored, broken = 0, 0
        # The last one restored is the last one to be forgotten.
        for key, values in reversed(hosts):
            try:
                restored += self._registry.restore(key, Saved(values, now=now, offset_s=offset_s))
            except ValueError:
                broken += 1
        if broken:
            self._warn("what was learnt of %(hosts)d hosts is left out: broken", hosts=broken)
        elif hosts and not restored:
            return self._ignored(f"it is {age_s:.0f} s old, which is too old")
        if restored:
            paused = sum(gate.pacer.paused(now) for gate in self._registry)
            logger.info(
                "hostgate: goes on with what an earlier run has learnt "
                "(%(hosts)d hosts, %(paused)d of them paused, saved %(age).0f s ago)",
                {"hosts": restored, "paused": paused, "age": max(0.0, age_s)},
                extra=self._extra,
            )
        return restored

    def start(self) -> None:
        """Save every minute from now on."""
        self._timer = self._call_later(SAVE_EVERY_S, self._begin)

    def close(self) -> Deferred[None]:
        """Save a last time. Fires, without a failure, when the file is there; no timer is left."""
        self._closed = Deferred()
        if self._timer is not None:
            self._timer.cancel()
        self._begin()
        return self._closed

    def _begin(self) -> None:
        self._gates = list(self._registry)
        self._lines = []
        self._export_some()

    def _export_some(self) -> None:
        """Export a slice of the gates and let the event loop turn before the next one."""
        self._timer = None
        now = self._clock()
        offset_s = self._wall_clock() - now
        for gate in self._gates[-SLICE:]:
            told = gate.export(now, offset_s)
            if told:
                rank = max(gate.pacer.pause_until, gate.pacer.last_departure)
                self._lines.append((rank, json.dumps([gate.key, told])))
        del self._gates[-SLICE:]
        if self._gates:
            self._timer = self._call_later(0, self._export_some)
        else:
            self._write()

    def _write(self) -> None:
        self._timer = None
        if self._writer is not None and self._writer.is_alive():
            self._timer = self._call_later(WRITER_POLL_S, self._write)
            return
        lines, self._lines = self._lines, []
        self._writer = threading.Thread(target=self._save, args=(lines, self._wall_clock()))
        self._writer.start()
        if self._closed is None:
            self._timer = self._call_later(SAVE_EVERY_S, self._begin)
        else:
            self._finish()

    def _finish(self) -> None:
        self._timer = None
        if self._writer is not None and self._writer.is_alive():
            self._timer = self._call_later(WRITER_POLL_S, self._finish)
        elif self._closed is not None:
            self._closed.callback(None)

    def _save(self, lines: list[tuple[float, str]], saved_at: float) -> None:
        """Runs in a thread of its own."""
        # Those that pause, or were asked last, come first: there may not be room for all.
        kept = heapq.nlargest(self._max_hosts, lines)
        header = json.dumps({"version": VERSION, "saved_at": saved_at, "hosts": len(kept)})
        try:
            replace_file(self.path, "\n".join([header, *(line for _, line in kept), ""]))
        except OSError as error:
            if not self._failure_told:
                self._failure_told = True
                self._warn("what was learnt cannot be saved (%(error)s)", error=error)

    def _ignored(self, why: str) -> int:
        self._warn("what an earlier run has learnt is ignored: %(why)s", why=why)
        return 0

    def _warn(self, message: str, **arguments: object) -> None:
        logger.warning(
            f"hostgate: %(path)s: {message}",
            {"path": str(self.path), **arguments},
            extra=self._extra,
        )


def replace_file(path: Path, text: str) -> None:
    """Write ``text`` (ASCII) to ``path`` so that at any moment the old or the new is there whole.

    Raises ``OSError``; then the old one is still there.
    """
    beside = path.with_name(path.name + ".tmp")
    with beside.open("w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        # Or a power cut could leave an empty file under the new name.
        os.fsync(file.fileno())
    os.replace(beside, path)


def _parse(text: str) -> tuple[float, list[tuple[str, object]]]:
    """When a file was saved (Unix seconds), and its host keys and their values.

    Raises ``ValueError`` that says what is wrong with it.
    """
    try:
        header, *rest = [json.loads(line) for line in text.splitlines()]
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is broken ({error})") from error
    if not isinstance(header, dict) or "version" not in header:
        raise ValueError("it is broken (no header)")
    if header["version"] != VERSION:
        raise ValueError(f"it is of version {header['version']!r:.20}, not {VERSION}")
    saved_at = header.get("saved_at")
    if set(header) != _HEADER_KEYS or type(saved_at) is not float or not math.isfinite(saved_at):
        raise ValueError("it is broken (wrong header)")
    if header["hosts"] != len(rest):
        raise ValueError(f"it is broken ({len(rest)} hosts of {header['hosts']!r:.20})")
    for entry in rest:
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)):
            raise ValueError("it is broken (no host)")
    return saved_at, [(key, values) for key, values in rest]
