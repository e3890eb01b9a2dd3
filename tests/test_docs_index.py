"""The lists of tests in the documentation are complete, and name tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_CASE = re.compile(r"HG-(\d+)")
_TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


@cache
def tests() -> dict[tuple[str, str], str]:
    """(file, name) of every test, and its docstring."""
    found = {}
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith(
                "test_"
            ):
                found[path.name, node.name] = ast.get_docstring(node) or ""
    return found


def listed() -> dict[str, set[tuple[str, str]]]:
    """The tests of each case, as docs/cases.md has them."""
    text = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
    cases = {}
    for part in text.split("\n## ")[1:]:
        heading = _CASE.match(part)
        assert heading, part
        cases[heading[1]] = {(file, name) for file, name in _TEST.findall(part)}
    return cases


def test_every_case_has_a_test() -> None:
    """All thirty-two of them."""
    cases = listed()
    assert len(cases) == 32
    assert [case for case, of_case in cases.items() if not of_case] == []


def test_the_list_of_cases_and_the_docstrings_agree() -> None:
    """What is listed under a case says so itself, and what says so is listed."""
    said: dict[str, set[tuple[str, str]]] = {}
    for test, docstring in tests().items():
        for case in _CASE.findall(docstring):
            said.setdefault(case, set()).add(test)
    assert listed() == said


@pytest.mark.parametrize("page", ["security.md", "robustness.md"])
def test_pages_name_tests_that_exist(page: str) -> None:
    """A renamed test is renamed there too."""
    named = _TEST.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert named
    assert [test for test in named if test not in tests()] == []
