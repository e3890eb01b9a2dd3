"""What a system may lack: file locks, user numbers, limits of a process, harmless signals."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scrapy_hostgate import pqueue
from scrapy_hostgate.observe import beacon, events
from scrapy_hostgate.observe.board import Board, board_of, sum_up
from scrapy_hostgate.observe.events import EventFile


def some_board() -> Board:
    return board_of("shop", sum_up([]), [], age_s=1.0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of running crawls that no other test writes to."""
    folder = tmp_path / "running"
    monkeypatch.setattr(beacon, "runtime_folder", lambda: folder)
    return folder


def test_without_file_locks_events_are_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows: nothing keeps two crawls apart there, and nothing fails."""
    monkeypatch.setattr(events, "fcntl", None)
    file = EventFile(max_bytes=100_000, backups=1, clock=lambda: 1.0, about={})
    file.open(tmp_path / "events.jsonl")
    file.append('{"event":"x"}\n')
    file.close()
    assert not file.failed
    assert (tmp_path / "events.jsonl").read_text().endswith('{"event":"x"}\n')


@pytest.mark.parametrize(
    ("soft", "most"),
    [(1024, 256), (20, 16), (1_000_000, 10_000), (-1, 10_000)],
)
def test_a_quarter_of_the_open_files_is_for_the_queue(
    soft: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least 16, at most 10,000; -1 stands for no bound."""
    resource = pytest.importorskip("resource")
    assert resource.RLIM_INFINITY == -1
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert pqueue._most_open() == most


def test_where_nobody_tells_how_many_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where a process may open 512."""
    monkeypatch.setattr(pqueue, "resource", None)
    assert pqueue._most_open() == 100


def test_the_folder_of_running_crawls_is_each_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the user's number, or the name where users have no numbers."""
    assert beacon.runtime_folder().name == f"scrapy-hostgate-{os.getuid()}"
    monkeypatch.delattr(os, "getuid")
    monkeypatch.setenv("USERNAME", "somebody")
    assert beacon.runtime_folder().name == "scrapy-hostgate-somebody"


def test_where_users_have_no_numbers_a_folder_is_trusted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporary folders are each user's own there."""
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.delattr(os, "getuid")
    light = beacon.Beacon(some_board)
    light.light()
    assert [sighting.path for sighting in beacon.running_crawls()] == [light.path]


def test_a_process_of_another_user_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not be sent a signal, so there is one."""

    def kill(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    assert beacon._is_alive(1)


def test_no_process_is_asked_where_asking_would_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows every signal but two ends a process."""
    monkeypatch.setattr(os, "kill", lambda pid, signal: pytest.fail("was sent a signal"))
    monkeypatch.setattr(os, "name", "nt")
    assert beacon._is_alive(os.getpid())
