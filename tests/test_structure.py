"""The shape of the package: what import-linter cannot see."""

from __future__ import annotations

import ast
from pathlib import Path

import scrapy_hostgate

PACKAGE = Path(scrapy_hostgate.__file__).parent
ROOT = Path(__file__).resolve().parent.parent


def test_only_the_slot_manager_touches_the_downloader() -> None:
    """No other file imports Scrapy's core or reaches for ``engine.downloader``."""
    touching = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("scrapy.core"):
                touching.add(file.name)
            if isinstance(node, ast.Attribute) and node.attr in ("downloader", "engine"):
                touching.add(file.name)
    assert touching == {"slots.py"}


def test_every_public_name_is_importable() -> None:
    """What ``__all__`` promises is there."""
    for name in scrapy_hostgate.__all__:
        assert getattr(scrapy_hostgate, name).__name__ == name


def test_every_setting_is_in_the_readme() -> None:
    """The settings table is complete and names nothing that does not exist."""
    from scrapy_hostgate.settings import DEFAULTS

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1] for line in readme.splitlines() if line.startswith("| `HOSTGATE_")}
    assert rows == set(DEFAULTS)
