"""How ``scrapy hostgate watch`` finds the crawls of this machine and sees their boards.

A crawl keeps one small file in a folder of its user, and writes its board into it again only while
somebody looks: the onlooker touches a second file, the crawl asks once a second when that was. No
port, no thread, and next to no cost for a crawl that nobody watches.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from scrapy_hostgate.observe.board import Board

WATCHED_FOR_S = 5.0
FRESH_WITHIN_S = 3.0
_numbers = itertools.count(1)


def runtime_folder() -> Path:
    """The folder of this user's running crawls."""
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    return Path(tempfile.gettempdir()) / f"scrapy-hostgate-{user}"


def private_folder() -> Path:
    """That folder, made if need be. Raises ``OSError`` unless it is this user's alone."""
    folder = runtime_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    check_private(folder)
    for path in folder.glob("[0-9]*-*"):
        # A crawl that was killed could not clean up.
        if not _is_alive(_process_of(path)):
            path.unlink(missing_ok=True)
    return folder


def own_file(folder: Path, ending: str) -> Path:
    """A new name for a file of this process."""
    return folder / f"{os.getpid()}-{next(_numbers)}{ending}"


def check_private(folder: Path) -> None:
    """Raise ``OSError`` unless ``folder`` is ours alone: the parent is writable for everybody."""
    if not hasattr(os, "getuid"):
        return
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder of this user alone")


class Beacon:
    """A crawl's side. :meth:`light` it, :meth:`tick` once a second, :meth:`put_out` at the end."""

    def __init__(self, board: Callable[[], Board]) -> None:
        self._board = board
        self.path = own_file(runtime_folder(), ".json")
        self._watched = self.path.with_suffix(".watched")
        self._draft = self.path.with_suffix(".new")

    def light(self) -> None:
        """Make the crawl known. Raises ``OSError``."""
        private_folder()
        self._write()

    def tick(self) -> None:
        """Write the board anew if somebody looks. Raises ``OSError``."""
        try:
            looked_at = self._watched.stat().st_mtime
        except FileNotFoundError:
            return
        if time.time() - looked_at <= WATCHED_FOR_S:
            self._write()

    def put_out(self) -> None:
        for path in (self.path, self._watched, self._draft):
            with contextlib.suppress(OSError):
                path.unlink()

    def _write(self) -> None:
        # Whoever reads must never see half a board.
        self._draft.write_text(json.dumps(self._board().to_json()), encoding="utf-8")
        os.replace(self._draft, self.path)


class Sighting:
    """An onlooker's side: one running crawl."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pid = _process_of(path)
        self._watched = path.with_suffix(".watched")
        self._looked = False

    def board(self) -> Board | None:
        """The board of a second ago, and a request for the next; ``None`` when the crawl is over.

        Raises ``ValueError`` if the file is none of ours.
        """
        asked_at = time.time()
        board = self._read()
        # Before the first request nobody looked, so what is there is old. The crawl may be busy.
        while board is not None and not self._looked and board.at < asked_at:
            if time.time() - asked_at > FRESH_WITHIN_S:
                break
            time.sleep(0.1)
            board = self._read()
        self._looked = True
        return board

    def _read(self) -> Board | None:
        if not self.path.exists() or not _is_alive(self.pid):
            self.leave()
            return None
        self._watched.touch(mode=0o600)
        try:
            return Board.from_json(json.loads(self.path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            self.leave()
            return None
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{self.path} is not of this version of scrapy_hostgate") from error

    def name(self) -> str | None:
        """What the crawl is called. Raises ``ValueError`` as :meth:`board` does."""
        try:
            board = self._read()
        finally:
            self.leave()
        return None if board is None else board.name

    def leave(self) -> None:
        """Nobody looks any more."""
        self._watched.unlink(missing_ok=True)


def running_crawls() -> list[Sighting]:
    """The crawls of this user that run on this machine, the newest first. Raises ``OSError``."""
    folder = runtime_folder()
    try:
        check_private(folder)
        found = [(path.stat().st_mtime, path) for path in folder.glob("[0-9]*-*.json")]
    except FileNotFoundError:
        return []
    sightings = [Sighting(path) for _, path in sorted(found, reverse=True)]
    return [sighting for sighting in sightings if _is_alive(sighting.pid)]


def _process_of(path: Path) -> int:
    return int(path.name.partition("-")[0])


def _is_alive(pid: int) -> bool:
    if os.name == "nt":  # where signal 0 would end the process
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
