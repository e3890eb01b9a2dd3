"""What every test shares."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.python import log

import scrapy_hostgate


def pytest_configure() -> None:
    """Where the wheel is to be tested, the source must not be in its place."""
    package = Path(scrapy_hostgate.__file__)
    if os.environ.get("HOSTGATE_TEST_WHEEL") and not package.is_relative_to(sys.prefix):
        raise pytest.UsageError(f"the wheel is to be tested, but {package} is imported")


@pytest.fixture(autouse=True, scope="session")
def twisted_errors_in_the_log() -> Iterator[None]:
    """Errors nobody handles are told to Twisted's log only; pass them on to Python's."""
    observer = log.PythonLoggingObserver("twisted")
    observer.start()
    yield
    observer.stop()
