"""Run the tests against every Scrapy and Python of tox's list, and write what came of it.

    python benchmarks/compatibility.py [CELL ...] [--write-only] [--workdir DIR]

A cell is an environment of tox (``tox list``): a Python, a Scrapy and the wheel of this project.
Without names all are run, one after the other. The table of ``docs/compatibility.md`` is made anew
from the latest run of each; ``--write-only`` runs none.

Exit status: 0 if every cell that is in the table passed, 1 if not.

Needs tox. Interpreters are looked for on PATH and where pyenv keeps them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
REACTORS = ("asyncio", "uvloop", "select", "epoll", "none")
VERSIONS = """
import json, platform
from importlib.metadata import version
names = ("scrapy", "twisted", "scrapy-hostgate")
print(json.dumps({"python": platform.python_version(), **{n: version(n) for n in names}}))
"""


@dataclass(frozen=True)
class Cell:
    """What came of one environment: versions, the day, and tests by name with how they ended."""

    name: str
    versions: dict[str, str]
    day: str
    ends: dict[str, str]

    @property
    def passed(self) -> bool:
        return bool(self.ends) and "failed" not in self.ends.values()

    def row(self) -> str:
        crawls = {
            reactor: self.ends.get(f"test_a_crawl_is_the_same_on_every_reactor[{reactor}]", "–")
            for reactor in REACTORS
        }
        counts = [list(self.ends.values()).count(end) for end in ("passed", "failed", "skipped")]
        columns = [
            f"{self.versions['scrapy']}{' (floor)' if 'floor' in self.name else ''}",
            self.versions["python"],
            self.versions["twisted"],
            *("not there" if end == "skipped" else end for end in crawls.values()),
            " / ".join(map(str, counts)),
            self.day,
        ]
        return f"| {' | '.join(columns)} |"


def read_cell(folder: Path) -> Cell | None:
    """The latest run in a tox environment, ``None`` if there was none."""
    report = folder / "junit.xml"
    if not report.exists():
        return None
    python = folder / "bin" / "python"
    told = subprocess.run([python, "-c", VERSIONS], capture_output=True, text=True, check=True)
    root = ElementTree.parse(report).getroot()
    suite = next(root.iter("testsuite"))
    ends = {case.get("name", ""): _end(case) for case in root.iter("testcase")}
    return Cell(folder.name, json.loads(told.stdout), suite.get("timestamp", "")[:10], ends)


def _end(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    if kinds & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in kinds else "passed"


def table(cells: list[Cell]) -> str:
    header = ["Scrapy", "Python", "Twisted", *REACTORS, "passed / failed / skipped", "date"]
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    cells = sorted(cells, key=lambda cell: ("floor" not in cell.name, *_order(cell)))
    return "\n".join([*lines, *(cell.row() for cell in cells)])


def _order(cell: Cell) -> tuple[list[int], list[int]]:
    scrapy, python = cell.versions["scrapy"], cell.versions["python"]
    return [int(n) for n in scrapy.split(".")], [int(n) for n in python.split(".")]


def write(cells: list[Cell]) -> None:
    """Put the table between its two marks in the page. Raises ``ValueError`` if they are gone."""
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(f"{page[:before]}\n{table(cells)}\n{page[after:]}", encoding="utf-8")


def tox(*arguments: str, capture: bool = False) -> subprocess.CompletedProcess[str]:
    found = sorted(Path.home().glob(".pyenv/versions/3.*/bin"))
    path = os.pathsep.join([os.environ["PATH"], *map(str, found)])
    return subprocess.run(
        [sys.executable, "-m", "tox", *arguments],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE if capture else None,
        text=True,
        check=False,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Test every supported Scrapy and Python.")
    parser.add_argument("cells", nargs="*", metavar="CELL", help="default: all of tox's list")
    parser.add_argument("--write-only", action="store_true", help="run nothing")
    parser.add_argument("--workdir", type=Path, default=ROOT / ".tox", help="default: .tox")
    options = parser.parse_args()
    listed = tox("list", "-q", "--no-desc", "-d", capture=True).stdout.split()
    if unknown := set(options.cells) - set(listed):
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(listed)}")
    if not options.write_only:
        for name in options.cells or listed:
            (options.workdir / name / "junit.xml").unlink(missing_ok=True)
            tox("run", "-q", "-e", name, "--workdir", str(options.workdir))
    cells = [cell for name in listed if (cell := read_cell(options.workdir / name)) is not None]
    write(cells)
    return 0 if cells and all(cell.passed for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
