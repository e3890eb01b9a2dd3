"""The events file: bounded, rotated, replayable, and harmless where it cannot be written."""

from __future__ import annotations

import json
import logging
import os
import random
from functools import partial
from pathlib import Path

import pytest
from fakes import FakeClock
from simulation import Answer, Simulation, refused, served, spread

from scrapy_hostgate.controller import Law
from scrapy_hostgate.gate import Gate
from scrapy_hostgate.observe.events import EventFile, GateEvent, event_line, parts_of
from scrapy_hostgate.observe.replay import read_events, replay
from scrapy_hostgate.observe.trace import HostTrace, TracedController
from scrapy_hostgate.outcome import Outcome
from scrapy_hostgate.pacer import Pace

MAX_BYTES = 100_000


def event_file(path: Path, crawl: str = "c", backups: int = 2) -> EventFile:
    file = EventFile(
        max_bytes=MAX_BYTES, backups=backups, clock=lambda: 0.0, about={"crawl": crawl}
    )
    file.open(path)
    return file


def fickle(now: float, in_flight: int, luck: random.Random) -> Answer:
    """Refuses and fails now and then, and changes its speed every half minute."""
    chance = luck.random()
    if chance < 0.0005:
        return refused()
    if chance < 0.02:
        return Answer(Outcome.SLOW, 0.2)
    return served(spread(0.1 if int(now / 30) % 2 else 0.6, 0.3, luck))


def decided(path: Path) -> list[tuple[float, int, int, str]]:
    """The real changes of limit that a replay of the file makes."""
    return [
        (at, d.limit_from, d.limit_to, d.reason.value)
        for at, d in replay(read_events(path)).get("host.example", [])
        if d.limit_from != d.limit_to
    ]


@pytest.mark.parametrize("backups", [0, 2])
def test_the_parts_that_are_left_tell_all_that_followed(tmp_path: Path, backups: int) -> None:
    """Half an hour of a fickle host: few parts, none larger than allowed, and from wherever the
    oldest begins the replay makes every change that the gate made."""
    path = tmp_path / "events.jsonl"
    file = event_file(path, backups=backups)
    simulation = Simulation(
        fickle,
        seed=3,
        law=Law(recovery_delay_s=1.0),
        make_controller=partial(TracedController, trace=HostTrace("host.example", file)),
    ).run(1800)
    file.close()
    parts = parts_of(path)
    assert len(parts) == backups + 1 < file.part
    assert all(part.stat().st_size < MAX_BYTES + 5_000 for part in parts)
    made = [(c.at, c.limit_from, c.limit_to, c.reason.value) for c in simulation.changes]
    again = decided(path)
    assert len(again) >= 2 + backups
    assert again == made[-len(again) :]
    # Nothing between the first line that is left and the end is missing.
    begins = next(event["t"] for event in read_events(path) if event["event"] == "sample")
    assert len(again) == len([change for change in made if change[0] >= begins])


def test_every_line_is_plain_json(tmp_path: Path) -> None:
    """Any tool can read it: no infinity, no NaN, whatever the key and the latency are."""
    path = tmp_path / "events.jsonl"
    file = event_file(path)
    clock = FakeClock()
    key = 'a"b\n\ud800\\ü'
    gate = Gate(
        key,
        Law(),
        Pace(),
        clock=clock,
        call_later=clock.call_later,
        uniform=min,
        make_controller=partial(TracedController, trace=HostTrace(key, file)),
    )
    for latency_s in (0.1, float("inf"), float("nan"), -1.0, 0.0, None):
        permit = gate.arrive()
        gate.record(permit, Outcome.OK, latency_s)
        gate.leave(permit)
    with pytest.raises(ValueError, match="limit must be"):
        gate.resize(9)
    gate.resize(1)
    file.append(event_line(GateEvent("limit", key, 0.0, 2, 1, "resized", {"epoch": 1}), 1.5))
    file.close()

    def forbid(text: str) -> None:
        raise AssertionError(text)

    lines = path.read_bytes().decode("ascii").splitlines()
    events = [json.loads(line, parse_constant=forbid) for line in lines]
    assert [event["event"] for event in events] == [
        "open", "host", *["sample"] * 6, "resize", "limit",
    ]  # fmt: skip
    assert {event["host"] for event in events[1:]} == {key}
    assert [d.limit_to for _, d in replay(read_events(path))[key]] == [1]
    assert events[-1]["time"] == "1970-01-01T00:00:00.000+00:00"


def test_an_older_crawl_is_kept_aside_and_not_mixed_in(tmp_path: Path) -> None:
    """The file that is there at the start becomes ``.1``; reading takes the newest crawl alone."""
    path = tmp_path / "events.jsonl"
    for crawl in ("old", "new"):
        file = event_file(path, crawl)
        file.append(json.dumps({"event": "sample", "host": crawl, "t": 0}) + "\n")
        file.close()
    assert [part.name for part in parts_of(path)] == ["events.jsonl.1", "events.jsonl"]
    assert [event.get("host") for event in read_events(path)] == [None, "new"]


def test_a_cut_last_line_is_no_obstacle(tmp_path: Path) -> None:
    """A killed crawl leaves one."""
    path = tmp_path / "events.jsonl"
    file = event_file(path)
    file.close()
    with path.open("a") as text:
        text.write('{"event":"sam')
    assert [event["event"] for event in read_events(path)] == ["open"]


def test_what_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    """With the file's name, and what is wrong with it."""
    path = tmp_path / "other.jsonl"
    path.write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match=r"other\.jsonl is no events file"):
        list(read_events(path))
    path.write_text('{"event": "open", "format": 99, "t": 0}\n')
    with pytest.raises(ValueError, match="format 99, not 1"):
        list(read_events(path))


# -- what cannot be written ---------------------------------------------------------------------


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]


def test_a_full_disk_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """From then on lines cost nothing and go nowhere."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    file = EventFile(max_bytes=MAX_BYTES, backups=0, clock=lambda: 0.0, about={})
    file.open(full)
    for _ in range(3):
        file.append("x\n")
        file.flush()
    file.close()
    (told,) = failures(caplog)
    assert told == (
        "The events file /dev/full cannot be written (No space left on device): "
        "the crawl goes on without it"
    )
    assert file.failed


def test_a_path_that_cannot_be_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder is there already; root may write everywhere else."""
    file = event_file(tmp_path)
    file.append("x\n")
    file.close()
    (told,) = failures(caplog)
    assert "cannot be written (Is a directory)" in told


def test_two_crawls_do_not_write_one_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They would rotate it away under each other: the second goes without, and learns how not."""
    pytest.importorskip("fcntl")
    path = tmp_path / "events.jsonl"
    first = event_file(path, "first")
    second = event_file(path, "second")
    (told,) = failures(caplog)
    assert "another crawl writes it; %(pid)s in HOSTGATE_EVENTS gives each process its own" in told
    second.append('{"event":"sample","host":"second"}\n')
    second.close()
    first.close()
    assert [event["crawl"] for event in read_events(path)] == ["first"]
    assert [part.name for part in parts_of(path)] == ["events.jsonl"]


def test_a_file_that_cannot_be_rotated_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody has taken the folder away, say: what was written stays, and no more comes."""
    path = tmp_path / "events.jsonl"
    file = event_file(path)
    file.append("x" * MAX_BYTES + "\n")

    def gone(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "replace", gone)
    for _ in range(3):
        file.make_room()
        file.append("y\n")
    file.close()
    (told,) = failures(caplog)
    assert "cannot be written (No such file or directory)" in told
    assert [line[:1] for line in path.read_text().splitlines()] == ["{", "x"]


def test_a_disk_that_fails_at_the_very_end_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Some file systems say only as a file is closed that it could not be written."""
    file = event_file(tmp_path / "events.jsonl")
    real = file._file
    assert real is not None

    class Failing:
        write = real.write

        def close(self) -> None:
            real.close()
            raise OSError(122, "Disk quota exceeded")

    file._file = Failing()  # type: ignore[assignment]
    file.close()
    file.close()
    (told,) = failures(caplog)
    assert "cannot be written (Disk quota exceeded)" in told


def test_before_there_is_a_file_there_are_no_parts() -> None:
    """What is written down before the spider opens waits for it."""
    file = EventFile(max_bytes=MAX_BYTES, backups=0, clock=lambda: 0.0, about={})
    file.append("x\n")
    file.make_room()
    assert file.parts() == []
    file.close()
    assert not file.failed
