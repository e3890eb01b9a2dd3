"""``scrapy hostgate``, as a user runs it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import pytest_twisted
from child import start_child
from harness import crawl, pages
from rich.console import Console
from scrapy.cmdline import execute
from scrapy.settings import Settings

from demo.behaviours import steady
from demo.origin import OriginThread
from scrapy_hostgate.commands import watch
from scrapy_hostgate.observe import beacon
from scrapy_hostgate.observe.beacon import Beacon, running_crawls
from scrapy_hostgate.observe.board import Board, HostRow, board_of, sum_up
from scrapy_hostgate.observe.live import show_live

HOST = "127.0.0.2"


def scrapy(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``scrapy …`` in ``folder`` as a process of its own, with files of its own."""
    return subprocess.run(
        [sys.executable, "-m", "scrapy", *arguments],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# Outside the coroutines, where linters do not want files to be touched.


def is_there(path: Path) -> bool:
    return path.exists()


def put(path: Path, text: str) -> None:
    path.write_text(text)


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def some_board(name: str = "shop") -> Board:
    rows = [HostRow("a.example", 1, 2, 4, 1, paused_s=5.0, reason="refused")]
    return board_of(name, sum_up(rows), rows, age_s=60.0)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of running crawls that no other test writes to."""
    folder = tmp_path / "running"
    monkeypatch.setattr(beacon, "runtime_folder", lambda: folder)
    return folder


# -- watch --------------------------------------------------------------------------------------


def test_a_running_crawl_is_found_without_an_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process's hosts, as plain text where the output is no terminal; nothing of it is
    left when the crawl is over."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with OriginThread({HOST: steady(0.5)}) as origin:
        child = start_child(pages(origin, HOST, 2000))
        deadline = time.monotonic() + 60
        while not (found := list(tmp_path.glob("scrapy-hostgate-*/*.json"))):
            assert time.monotonic() < deadline, child.log
            time.sleep(0.05)
        assert f'"{HOST}"' not in found[0].read_text()  # nobody has looked yet
        shown = scrapy("hostgate", "watch", "--once", folder=tmp_path)
        child.process.send_signal(signal.SIGTERM)  # it has far more to do than this test has time
        ended = child.wait()
    assert ended.returncode == 0
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("job: 1 host, 0 in trouble, ")
    assert [line.split()[:2] for line in lines if line.startswith(HOST)] in (
        [[HOST, "1/2"]],
        [[HOST, "2/2"]],
    )
    assert list(tmp_path.glob("scrapy-hostgate-*/*")) == []


def test_the_crawl_that_is_meant_is_found_by_name_or_number(own_folder: Path) -> None:
    """The last one without an argument; a wrong one is told which there are."""
    for name in ("books", "shop"):
        Beacon(lambda name=name: some_board(name)).light()
        time.sleep(0.01)  # the order is that of the files' times
    assert [watch.find_crawl(None).name(), watch.find_crawl("books").name()] == ["shop", "books"]
    assert watch.find_crawl(str(os.getpid())).name() == "shop"
    with pytest.raises(
        LookupError, match=rf"no crawl 'x'\. There are: shop \(process {os.getpid()}"
    ):
        watch.find_crawl("x")


def test_no_crawl_is_a_clear_answer(own_folder: Path) -> None:
    """Not an empty table."""
    with pytest.raises(LookupError, match="No crawl of this user runs on this machine"):
        watch.find_crawl(None)


def test_a_board_is_written_only_while_somebody_looks(own_folder: Path) -> None:
    """And the first look waits for a fresh one."""
    made: list[Board] = []

    def board() -> Board:
        made.append(some_board())
        return made[-1]

    light = Beacon(board)
    light.light()
    light.tick()
    assert len(made) == 1
    (sighting,) = running_crawls()
    sighting._looked = True  # as if it had been: nobody ticks the beacon while this waits
    assert sighting.board() == made[0]
    light.tick()
    assert len(made) == 2
    assert sighting.board() == made[1]
    sighting.leave()
    light.tick()
    assert len(made) == 2
    light.put_out()
    assert sighting.board() is None
    assert list(own_folder.iterdir()) == []


def test_a_folder_that_others_can_write_is_not_trusted(own_folder: Path) -> None:
    """Anybody may make folders beside it; such a one is neither written nor read."""
    own_folder.mkdir()
    own_folder.chmod(0o777)
    with pytest.raises(OSError, match="not a folder of this user alone"):
        Beacon(some_board).light()
    with pytest.raises(OSError, match="not a folder of this user alone"):
        running_crawls()


def test_a_killed_crawl_is_forgotten(own_folder: Path) -> None:
    """Its file is still there, its process is not; the next crawl cleans up."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    own_folder.mkdir(mode=0o700)
    (own_folder / f"{process.pid}-1.json").write_text(json.dumps(some_board().to_json()))
    assert running_crawls() == []
    Beacon(some_board).light()
    assert [sighting.pid for sighting in running_crawls()] == [os.getpid()]
    assert not (own_folder / f"{process.pid}-1.json").exists()


class Boards:
    """A source of so many boards."""

    def __init__(self, count: int) -> None:
        self.left = count

    def board(self) -> Board | None:
        self.left -= 1
        return some_board() if self.left >= 0 else None

    def leave(self) -> None:
        pass


def test_the_live_table_fits_a_terminal(own_folder: Path) -> None:
    """Eighty columns, no line wrapped, the state both a word and a colour."""
    screen = io.StringIO()
    console = Console(
        file=screen, force_terminal=True, width=80, height=24, color_system="standard"
    )
    assert show_live(Boards(2), 0.0, console=console, sleep=lambda seconds: None) == 0
    drawn = screen.getvalue()
    assert "\x1b[1;33mpaused" in drawn
    assert "The crawl is over." in drawn
    plain = Console(file=io.StringIO(), width=80, height=24)
    show_live(Boards(1), 0.0, console=plain, sleep=lambda seconds: None)
    lines = plain.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:3] == ["a.example", "paused", "1/1"] for line in lines)


@pytest_twisted.ensureDeferred
async def test_a_crawl_can_stay_unseen(own_folder: Path) -> None:
    """HOSTGATE_WATCH = False writes nothing at all."""
    with OriginThread({HOST: steady(0.01)}) as origin:
        await crawl(pages(origin, HOST, 2), {"HOSTGATE_WATCH": False})
    assert not is_there(own_folder)


@pytest_twisted.ensureDeferred
async def test_an_unusable_folder_ends_no_crawl(own_folder: Path) -> None:
    """One line says that it cannot be watched."""
    put(own_folder, "a file where the folder should be")
    with OriginThread({HOST: steady(0.01)}) as origin:
        result = await crawl(pages(origin, HOST, 2))
    assert result.statuses == [200, 200]
    assert sum('"scrapy hostgate watch" does not see this crawl' in x for x in result.gate_log) == 1


# -- report -------------------------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_a_crawl_makes_its_report_and_so_does_the_command(
    tmp_path: Path, own_folder: Path
) -> None:
    """The same page from the same events; without HOSTGATE_EVENTS none are left behind."""
    report, events = tmp_path / "%(name)s.html", tmp_path / "events.jsonl"
    with OriginThread({HOST: steady(0.01)}) as origin:
        for more in ({}, {"HOSTGATE_EVENTS": str(events)}):
            result = await crawl(pages(origin, HOST, 5), {"HOSTGATE_REPORT": str(report), **more})
            assert any("The report is in" in line for line in result.gate_log)
    assert os.listdir(own_folder) == []
    html = text_of(tmp_path / "job.html")
    assert "The crawl got 5 pages from 1 host" in html
    done = scrapy("hostgate", "report", str(events), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "The crawl got 5 pages from 1 host" in done.stdout
    assert text_of(tmp_path / "events.html") == html


@pytest_twisted.ensureDeferred
async def test_a_report_that_cannot_be_written_is_told(tmp_path: Path, own_folder: Path) -> None:
    """After the crawl, which has all its pages."""
    with OriginThread({HOST: steady(0.01)}) as origin:
        result = await crawl(pages(origin, HOST, 2), {"HOSTGATE_REPORT": str(tmp_path)})
    assert result.statuses == [200, 200]
    assert f"The report {tmp_path} cannot be written (Is a directory)" in result.gate_log


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "which one? There are: watch, report"),
        (["report", "missing.jsonl"], "No report: "),
        (["report", "other.jsonl"], "other.jsonl is no events file of scrapy_hostgate"),
        (["report", "other.jsonl", "-o", "other.jsonl"], "would be overwritten"),
        (["report", "other.jsonl", "more"], "what does 'more' mean?"),
        (["watch", "--interval", "0"], "must be from 0.1 to 3600 seconds, not 0"),
        (["watch"], "No crawl of this user runs on this machine"),
    ],
)
def test_wrong_arguments_are_told(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    own_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each with what is wrong, and an exit status that is not 0."""
    (tmp_path / "other.jsonl").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        execute(["scrapy", "hostgate", *arguments], Settings())
    assert ended.value.code != 0
    told = capsys.readouterr()
    assert words in told.out + told.err
