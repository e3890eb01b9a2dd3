"""What every test shares: Twisted's own errors must reach the log, where tests look for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from twisted.python import log


@pytest.fixture(autouse=True, scope="session")
def twisted_errors_in_the_log() -> Iterator[None]:
    """Errors nobody handles are told to Twisted's log only; pass them on to Python's."""
    observer = log.PythonLoggingObserver("twisted")
    observer.start()
    yield
    observer.stop()
