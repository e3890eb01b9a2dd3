"""The file that carries what was learnt from one run to the next: whole, bounded, never a trap."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeClock, middle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrapy_hostgate.controller import Law
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.pacer import Pace
from scrapy_hostgate.registry import Registry
from scrapy_hostgate.state import FILE_NAME, SLICE, LearntState, replace_file

BEGAN = 1_800_000_000.0


class Run:
    """One run of a job: a registry on a fake clock, and its learnt state.

    ``wall_s`` is the Unix time of its beginning, counted from that of the first run.
    """

    def __init__(self, folder: Path, wall_s: float = 0.0, *, max_hosts: int = 10_000) -> None:
        self.clock = FakeClock(12_345.0 - wall_s / 2)
        self.wall = BEGAN + wall_s - self.clock()
        """What has to be added to the monotonic clock; a step of the wall clock changes it."""
        self.registry = Registry(self._make, max_hosts=max_hosts, clock=self.clock)
        self.state = LearntState(
            folder,
            self.registry,
            max_hosts=max_hosts,
            clock=self.clock,
            wall_clock=lambda: self.clock() + self.wall,
            call_later=self.clock.call_later,
        )

    def _make(self, key: str) -> Gate:
        clock = self.clock
        return Gate(key, Law(), Pace(), clock=clock, call_later=clock.call_later, uniform=middle)

    def refuse(self, *keys: str, retry_after_s: float = 300) -> None:
        for key in keys:
            self.registry.gate(key).refuse(retry_after_s)

    def finish_writing(self) -> None:
        writer = self.state._writer
        assert writer is not None
        writer.join()

    def close(self) -> None:
        """Save as at the end of a run."""
        done = self.state.close()
        while not done.called:
            if self.state._writer is not None:
                self.finish_writing()
            self.clock.advance(0.02)
        assert not self.clock.pending

    @property
    def paused(self) -> dict[str, float]:
        """The seconds of pause left, by host."""
        return {gate.key: gate.snapshot().paused_s for gate in self.registry}


def lines(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / FILE_NAME).read_text().splitlines()]


def test_the_next_run_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    """Two hosts pause for 300 s; a run 100 s later still leaves them alone for 200, and of a host
    with which nothing was wrong it knows nothing."""
    first = Run(tmp_path)
    assert first.state.restore() == 0
    first.state.start()
    first.refuse("a.example", "b.example")
    first.registry.gate("steady.example")
    first.close()
    second = Run(tmp_path, 100)
    assert second.state.restore() == 2
    assert second.paused == pytest.approx({"a.example": 200, "b.example": 200})


def test_it_is_saved_every_minute(tmp_path: Path) -> None:
    """Whoever is killed loses one minute at most; one timer is all it takes."""
    run = Run(tmp_path)
    run.state.start()
    run.clock.advance(59)
    assert not (tmp_path / FILE_NAME).exists()
    run.refuse("a.example")
    run.clock.advance(1.1)
    run.finish_writing()
    assert [entry[0] for entry in lines(tmp_path)[1:]] == ["a.example"]
    run.refuse("b.example")
    run.clock.advance(60)
    run.finish_writing()
    assert {entry[0] for entry in lines(tmp_path)[1:]} == {"a.example", "b.example"}
    assert run.clock.pending == 1
    assert os.listdir(tmp_path) == [FILE_NAME]
    run.close()


def test_many_hosts_are_saved_without_holding_up_the_loop(tmp_path: Path) -> None:
    """More than a slice: the loop turns in between, and nothing is missing."""
    hosts = [f"h{number}.example" for number in range(3 * SLICE + 7)]
    run = Run(tmp_path)
    run.refuse(*hosts)
    done = run.state.close()
    assert not done.called
    assert run.clock.pending == 1
    assert not (tmp_path / FILE_NAME).exists()
    while not done.called:
        run.clock.advance(0.02)
        if run.state._writer is not None:
            run.finish_writing()
    after = Run(tmp_path)
    assert after.state.restore() == len(hosts)
    assert set(after.paused) == set(hosts)


def test_a_close_in_the_middle_of_a_save_saves_everything(tmp_path: Path) -> None:
    """The minute's save is under way when the crawl ends: the last word is the whole of it."""
    hosts = [f"h{number}.example" for number in range(SLICE + 1)]
    run = Run(tmp_path)
    run.state.start()
    run.refuse(*hosts)
    run.clock.advance(60 - 1e-6)
    run.clock.run_until(run.clock.next_at or 0)
    run.refuse("last.example")
    run.close()
    assert Run(tmp_path).state.restore() == len(hosts) + 1


def test_no_more_hosts_are_kept_than_remembered(tmp_path: Path) -> None:
    """Where there is room for three, the longest pauses count most; and a lowered
    HOSTGATE_MAX_HOSTS still knows every host that pauses."""
    run = Run(tmp_path, max_hosts=3)
    for number in range(1, 6):
        run.refuse(f"h{number}.example", retry_after_s=100 * number)
    run.close()
    assert [entry[0] for entry in lines(tmp_path)[1:]] == ["h5.example", "h4.example", "h3.example"]
    smaller = Run(tmp_path, max_hosts=1)
    assert smaller.state.restore() == 3


def test_host_keys_may_be_any_text(tmp_path: Path) -> None:
    """What a project's own key function gives: other scripts, line ends, halves of a pair."""
    keys = {"bücher.example", "a\nb", "\u2028", "\ud800", '"', ""}
    run = Run(tmp_path)
    run.refuse(*keys)
    run.close()
    again = Run(tmp_path)
    again.state.restore()
    assert set(again.paused) == keys


# -- clocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("wall_s", [-3600.0, -1.0, 0.0])
def test_a_clock_set_back_never_shortens_a_pause(tmp_path: Path, wall_s: float) -> None:
    """The next run believes that it comes before the last one: all of the pause is left."""
    run = Run(tmp_path)
    run.refuse("a.example")
    run.close()
    again = Run(tmp_path, wall_s)
    assert again.state.restore() == 1
    assert again.paused["a.example"] == pytest.approx(300, abs=0.1)


def test_a_clock_stepped_during_the_run_changes_nothing(tmp_path: Path) -> None:
    """The pause is measured on the monotonic clock, and written as what the wall clock shows at
    the end."""
    run = Run(tmp_path)
    run.refuse("a.example")
    run.wall -= 7200
    run.clock.advance(100)
    run.close()
    again = Run(tmp_path, 150 - 7200)
    assert again.state.restore() == 1
    assert again.paused["a.example"] == pytest.approx(150, abs=0.1)


# -- files that are of no use --------------------------------------------------------------------


def saved(folder: Path) -> str:
    run = Run(folder)
    run.refuse("a.example", "b.example")
    run.close()
    return (folder / FILE_NAME).read_text()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda text: "", "broken"),
        (lambda text: text[: len(text) // 2], "broken"),
        (lambda text: "\n".join(text.splitlines()[:2]), "broken (1 hosts of 2)"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "version 2, not 1"),
        (lambda text: text.replace('"saved_at": 1', '"saved_at": NaN, "x": 1'), "wrong header"),
        (lambda text: text.replace('"saved_at": ', '"saved_at": -1e999, "was": '), "wrong header"),
        (lambda text: "[1]\n" + text, "no header"),
        (lambda text: text.replace('["a.example", ', '["a.example", 1, '), "no host"),
        (lambda text: "[" * 100_000, "broken"),
        (lambda text: "\xff\xfe", "cannot be read"),
    ],
)
def test_a_file_of_no_use_is_ignored_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Any, why: str
) -> None:
    """Cut off, of another version, no JSON: the crawl starts afresh, says so once, and the next
    save is good again."""
    (tmp_path / FILE_NAME).write_text(spoil(saved(tmp_path)), encoding="latin-1")
    run = Run(tmp_path)
    assert run.state.restore() == 0
    assert len(run.registry) == 0
    (warning,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert FILE_NAME in warning.getMessage()
    assert why in warning.getMessage()
    run.refuse("c.example")
    run.close()
    assert Run(tmp_path).state.restore() == 1


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_whatever_a_disk_makes_of_the_file_the_crawl_starts(tmp_path: Path, data: Any) -> None:
    """Cut out a piece, put in another: known are at most the two hosts, each either paused for no
    longer than it could have been, or not at all."""
    text = saved(tmp_path)
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, min(len(text), begin + 20)))
    piece = data.draw(st.sampled_from(["", "1", "-", "e9", "null", '"', "{", "\n", "NaN", "[]"]))
    (tmp_path / FILE_NAME).write_text(text[:begin] + piece + text[end:])
    run = Run(tmp_path, 1)
    assert run.state.restore() == len(run.registry) <= 2
    assert all(0 <= seconds <= Pace().max_pause_s for seconds in run.paused.values())


def test_a_file_that_is_too_old_is_ignored_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An hour after a pause of five minutes nothing is left to know."""
    saved(tmp_path)
    assert Run(tmp_path, 3600).state.restore() == 0
    (warning,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert "3600 s old" in warning.getMessage()


def test_one_broken_host_does_not_spoil_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its numbers make no sense: left out with one warning; the other one pauses on."""
    text = saved(tmp_path)
    header, first, second = text.splitlines()
    first = first.replace('"epoch": 1', '"epoch": -1')
    (tmp_path / FILE_NAME).write_text("\n".join([header, first, second]))
    run = Run(tmp_path)
    assert run.state.restore() == 1
    assert run.paused == pytest.approx({json.loads(second)[0]: 300}, abs=0.1)
    (warning,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert "1 hosts" in warning.getMessage()


def test_a_folder_that_cannot_be_written_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The crawl goes on, and does not say it every minute."""
    run = Run(tmp_path / "gone")
    run.state.start()
    for _ in range(3):
        run.clock.advance(60.1)
        run.finish_writing()
    run.close()
    (warning,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert "cannot be saved" in warning.getMessage()


def test_a_slow_disk_holds_up_nothing_and_mixes_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save that is due while the last one is still written waits for it, and so does the end."""
    goes_on = threading.Event()

    def slow(path: Path, text: str) -> None:
        assert goes_on.wait(30)
        replace_file(path, text)

    monkeypatch.setattr("scrapy_hostgate.state.replace_file", slow)
    run = Run(tmp_path)
    run.refuse("a.example")
    run.state.start()
    run.clock.advance(60.1)
    first = run.state._writer
    assert first is not None
    run.clock.advance(60.1)
    assert run.state._writer is first
    run.refuse("b.example")
    done = run.state.close()
    run.clock.advance(1)
    assert first.is_alive()
    assert not done.called
    goes_on.set()
    first.join()
    run.clock.advance(0.01)
    run.finish_writing()
    run.clock.advance(0.01)
    assert done.called
    assert not run.clock.pending
    assert sorted(key for key, _ in lines(tmp_path)[1:]) == ["a.example", "b.example"]


# -- a crash -------------------------------------------------------------------------------------

WRITE_FOR_EVER = """
import sys
from pathlib import Path
from scrapy_hostgate.state import replace_file
path, number = Path(sys.argv[1]), 0
while True:
    number += 1
    replace_file(path, f"{number} " * 300_000)
    if number == 1:
        print(flush=True)
"""


def test_a_kill_in_the_middle_of_writing_leaves_a_whole_file(tmp_path: Path) -> None:
    """A process that does nothing but write is killed at an arbitrary moment, twice."""
    path = tmp_path / FILE_NAME
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITE_FOR_EVER, str(path)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.05)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        words = path.read_text().split()
        assert len(words) == 300_000
        assert len(set(words)) == 1
    replace_file(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == [FILE_NAME]


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at the last moment: what was there is still there."""
    path = tmp_path / FILE_NAME
    replace_file(path, "old")

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        replace_file(path, "new")
    assert path.read_text() == "old"
