"""Looking at crawls and fleets, in this process: how a view begins, goes on and ends."""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scrapy_hostgate.commands import fleet, watch
from scrapy_hostgate.fleet import look
from scrapy_hostgate.fleet.look import FleetBoards
from scrapy_hostgate.fleet.protocol import FleetError, HostRow
from scrapy_hostgate.observe import beacon
from scrapy_hostgate.observe.beacon import Beacon, Sighting, running_crawls
from scrapy_hostgate.observe.board import PAUSED, Board, board_of, sum_up
from scrapy_hostgate.observe.views import Views
from scrapy_hostgate.observing import ObservingSettings

NOBODY = "No worker has asked for a host lately."


def some_board() -> Board:
    return board_of("shop", sum_up([]), [], age_s=1.0)


def a_host(limit: int = 1, **values: Any) -> HostRow:
    known = {
        "host": "a.example",
        "limit": limit,
        "start": 2,
        "ceiling": 4,
        "in_flight": 1,
        "waiting": 0,
        "workers": 2,
        "pause_s": 0.0,
        "refusals": 0,
        "incidents": 0,
        "reason": "",
    }
    return HostRow(**{**known, **values})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of running crawls that no other test writes to."""
    folder = tmp_path / "running"
    monkeypatch.setattr(beacon, "runtime_folder", lambda: folder)
    return folder


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the commands would have slept; nobody does."""
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    return naps


def options(**values: Any) -> Namespace:
    return Namespace(**{"crawl": None, "url": None, "interval": 2.0, "once": False, **values})


class Boards:
    """So many boards, then none; or an error in their place."""

    def __init__(self, count: int, error: BaseException | None = None) -> None:
        self.left = count
        self.error = error
        self.gone = False

    def board(self) -> Board | None:
        self.left -= 1
        if self.left >= 0:
            return some_board()
        if self.error is not None:
            raise self.error
        return None

    def leave(self) -> None:
        self.gone = True


# -- one crawl ----------------------------------------------------------------------------------


def test_where_there_is_no_terminal_boards_follow_each_other(
    naps: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """A table every interval, an empty line between them, and a word at the end."""
    assert watch.show(Boards(3), 2.0) == 0
    shown = capsys.readouterr().out
    assert naps == [2.0] * 3
    assert shown.count("shop: 0 hosts") == 3
    assert shown.count("\n\nshop: ") == 2
    assert shown.endswith("The crawl is over.\n")


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), 0), (BrokenPipeError(), 0), (ValueError("odd"), 1)]
)
def test_whatever_ends_a_view_nobody_looks_any_more(
    error: BaseException,
    status: int,
    naps: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C and a closed pipe are no errors; the crawl is left to itself in every case."""
    source = Boards(1, error)
    monkeypatch.setattr(watch, "find_crawl", lambda wanted: source)
    assert watch.run(options()) == status
    assert source.gone
    assert ("odd" in capsys.readouterr().err) is bool(status)


def test_on_a_terminal_the_table_is_live_unless_the_extra_is_missing(
    naps: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without rich the plain table, and how to get the other."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    seen: list[float] = []

    def show_live(source: object, interval_s: float) -> int:
        seen.append(interval_s)
        return 0

    live = SimpleNamespace(show_live=show_live)
    monkeypatch.setitem(sys.modules, "scrapy_hostgate.observe.live", live)  # type: ignore[arg-type]
    assert watch.show(Boards(1), 2.0) == 0
    assert seen == [2.0]
    assert capsys.readouterr().out == ""
    monkeypatch.setitem(sys.modules, "scrapy_hostgate.observe.live", None)
    assert watch.show(Boards(1), 2.0) == 0
    told = capsys.readouterr()
    assert "pip install 'scrapy-hostgate[watch]'" in told.err
    assert "shop: 0 hosts" in told.out


def test_a_crawl_of_another_version_is_named_but_not_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its board cannot be read; it still is a crawl that runs."""
    light = Beacon(some_board)
    light.light()
    light.path.write_text('{"rows": 1}')
    with pytest.raises(LookupError, match=rf"There are: \? \(process {os.getpid()}\)"):
        watch.find_crawl("shop")
    assert watch.run(options(once=True)) == 1
    assert "is not of this version of scrapy_hostgate" in capsys.readouterr().err
    assert not light.path.with_suffix(".watched").exists()


def test_a_crawl_that_is_busy_is_shown_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks first waits for a fresh board, but for no more than three seconds."""
    Beacon(some_board).light()
    (sighting,) = running_crawls()
    now = time.time() + 60
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        naps.append(seconds)
        now += seconds

    monkeypatch.setattr(beacon, "time", SimpleNamespace(time=lambda: now, sleep=sleep))
    board = sighting.board()
    assert board is not None
    assert board.name == "shop"
    assert beacon.FRESH_WITHIN_S <= sum(naps) < beacon.FRESH_WITHIN_S + 0.3
    naps.clear()
    assert sighting.board() == board
    assert naps == []


def test_a_crawl_that_ends_while_it_is_looked_at_is_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file goes between the look whether it is there and the reading."""
    light = Beacon(some_board)
    light.light()
    (sighting,) = running_crawls()

    def gone(path: Path, **_: object) -> str:
        light.put_out()
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", gone)
    assert sighting.board() is None
    assert list(folder.iterdir()) == []


def test_a_name_is_asked_for_without_a_trace(folder: Path) -> None:
    """Nobody looks afterwards, also where the crawl has just ended."""
    light = Beacon(some_board)
    light.light()
    sighting = Sighting(light.path)
    assert sighting.name() == "shop"
    light.put_out()
    assert sighting.name() is None
    assert list(folder.iterdir()) == []


def test_a_folder_that_goes_away_is_told_once_and_the_crawl_goes_on(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody cleans up temporary files while the crawl is watched."""
    caplog.set_level("INFO", "scrapy_hostgate")
    settings: Any = SimpleNamespace(getbool=lambda name, default=False: False)
    crawler: Any = SimpleNamespace(settings=settings, spider=None)
    views = Views(crawler, ObservingSettings(), some_board)
    views.start()
    (sighting,) = running_crawls()
    sighting._looked = True
    assert sighting.board() is not None
    draft = sighting.path.with_suffix(".new")
    draft.mkdir()
    views.tick()
    views.tick()
    views.stop()
    lines = [line for line in caplog.messages if '"scrapy hostgate watch" does not see' in line]
    assert len(lines) == 1
    assert not sighting.path.exists()


# -- a fleet ------------------------------------------------------------------------------------


def run_apart(arguments: Namespace) -> int:
    """In another thread, because an event loop runs in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(fleet.run, arguments).result()


def test_an_empty_fleet_is_looked_at_until_somebody_has_enough(
    naps: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Again and again; on a terminal each look takes the place of the one before."""

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) % 2 == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    arguments = options(url="memory:watched", watch=True, interval=3.0)
    assert run_apart(arguments) == 0
    assert capsys.readouterr().out == f"{NOBODY}\n" * 2
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert run_apart(arguments) == 0
    assert capsys.readouterr().out == f"\x1b[H\x1b[2J{NOBODY}\n" * 2
    assert naps == [3.0] * 4


@pytest.mark.parametrize(
    ("url", "status", "said"),
    [
        (None, 2, "Which fleet?"),
        ("http://127.0.0.1", 2, "--url is 'http://127.0.0.1', but must be a URL"),
        ("redis://127.0.0.1:1", 1, "The fleet cannot be asked: redis://127.0.0.1:1: "),
    ],
)
def test_a_fleet_that_cannot_be_shown_is_told(
    url: str | None, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an exit status that tells a mistake from an outage."""
    assert run_apart(options(url=url, watch=False)) == status
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("seconds", [watch._seconds, fleet._seconds])
def test_an_interval_has_bounds(seconds: Callable[[str], float]) -> None:
    """From a tenth of a second to an hour."""
    assert [seconds(text) for text in ("0.1", "3600")] == [0.1, 3600]
    for text in ("0.09", "3601", "nan"):
        with pytest.raises(ArgumentTypeError, match=r"from 0\.1 to 3600 seconds"):
            seconds(text)


def test_a_fleets_boards_remember_the_limits_that_were_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis keeps no history: the trend is what this onlooker has seen."""
    shown = [
        [a_host(2)],
        [a_host(2)],
        [a_host(1, pause_s=5.0, refusals=3, reason="refused")],
        FleetError("gone"),
    ]

    def looked(url: str) -> list[HostRow]:
        now = shown.pop(0)
        if isinstance(now, FleetError):
            raise now
        return now

    monkeypatch.setattr(look, "look_at", looked)
    boards = FleetBoards("redis://somewhere")
    assert [limit for _, limit in boards.board().rows[0].limits] == [2]  # type: ignore[union-attr]
    boards.board()
    board = boards.board()
    assert board is not None
    (row,) = board.rows
    assert [limit for _, limit in row.limits] == [2, 1]
    assert row.limits[0][0] >= row.limits[1][0] >= 0
    assert row.state == PAUSED
    assert board.refusals == 3
    assert json.dumps(board.to_json())
    with pytest.raises(ValueError, match="The fleet cannot be asked: gone"):
        boards.board()
    boards.leave()
