"""docs/reference.md names everything public, and nothing that is not there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import scrapy_hostgate
from scrapy_hostgate import HostGateMiddleware, signals

PACKAGE = Path(scrapy_hostgate.__file__).parent
ROOT = Path(__file__).resolve().parent.parent
# Scrapy calls these; nobody else should.
SCRAPYS = {"from_crawler", "process_request"}
# The queue's way to the gates, which is no promise to anybody.
INNER = {"manager"}
# Text in the code that looks like a meta key: why a request is retried, counted by Scrapy.
REASONS = {"hostgate_refused"}


def rows(heading: str) -> set[str]:
    """The names in the first column of the tables below a heading, without what they are given."""
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    section = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"^\| `([\w/]+)[^`]*` \|", section, re.MULTILINE))


def constants(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def test_names_and_methods_are_complete() -> None:
    """``__all__`` and the methods of the middleware."""
    methods = {name for name in vars(HostGateMiddleware) if not name.startswith("_")}
    expected = set(scrapy_hostgate.__all__) | methods - SCRAPYS - INNER
    assert rows("Names to import") == expected


def test_signals_are_complete() -> None:
    """All that ``scrapy_hostgate.signals`` has."""
    assert rows("Signals") == {name for name in vars(signals) if name.startswith("hostgate_")}


def test_meta_keys_are_complete() -> None:
    """Every text of the package that could be one; metrics have names of the same kind."""
    found = set()
    for file in PACKAGE.rglob("*.py"):
        if file.name != "prometheus.py":
            texts = constants(ast.parse(file.read_text(encoding="utf-8")))
            found |= {text for text in texts if re.fullmatch(r"hostgate_[a-z_]+", text)}
    assert found - REASONS == rows("Meta keys")


def test_stats_are_complete() -> None:
    """Every key that is written, be it whole or as the name of a count."""
    source = (PACKAGE / "observe" / "stats.py").read_text(encoding="utf-8")
    written = {
        text
        for text in constants(ast.parse(source))
        if re.fullmatch(r"hostgate/[a-z_/]*[a-z]", text)
    }
    counted = set(re.findall(r'_count\(gate, "(\w+)"', source))
    counted |= set(re.findall(r'Reason\.\w+: "(\w+)"', source))
    assert rows("Stats") == written | {f"hostgate/{name}" for name in counted}


def test_stats_are_written_in_one_place() -> None:
    """No other file writes a stat, so the check above misses none."""
    writers = {
        file.name
        for file in PACKAGE.rglob("*.py")
        if re.search(r"\.(inc|set|max|min)_value\(", file.read_text(encoding="utf-8"))
    }
    assert writers == {"stats.py"}


def test_every_field_is_in_the_documentation() -> None:
    """What a snapshot and an event have."""
    run_time = (ROOT / "docs" / "run-time.md").read_text(encoding="utf-8")
    observing = (ROOT / "docs" / "observing.md").read_text(encoding="utf-8")
    for name in scrapy_hostgate.GateSnapshot.__annotations__:
        assert f"`{name}`" in run_time
    for name in scrapy_hostgate.GateEvent.__annotations__:
        assert f"`{name}`" in observing


def test_every_page_is_linked_from_the_readme() -> None:
    """A page that nobody finds is none."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if page.name not in readme] == []
