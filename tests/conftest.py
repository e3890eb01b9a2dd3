"""What every test shares."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import pytest_twisted
from hypothesis import HealthCheck, settings
from twisted.internet import asyncioreactor, epollreactor, selectreactor
from twisted.python import log

import scrapy_hostgate


def install_uvloop() -> None:
    import uvloop

    asyncioreactor.install(uvloop.new_event_loop())


# The reactors that the suite can be run on, by HOSTGATE_TEST_REACTOR: how, and what comes of it.
REACTORS = {
    "asyncio": (asyncioreactor.install, asyncioreactor.AsyncioSelectorReactor),
    "uvloop": (install_uvloop, asyncioreactor.AsyncioSelectorReactor),
    "epoll": (epollreactor.install, epollreactor.EPollReactor),
    "select": (selectreactor.install, selectreactor.SelectReactor),
}
if "HOSTGATE_TEST_REACTOR" in os.environ:
    # The plugin itself knows asyncio, Twisted's default and Qt.
    installer, kind = REACTORS[os.environ["HOSTGATE_TEST_REACTOR"]]
    pytest_twisted.reactor_installers["asyncio"] = partial(
        pytest_twisted._install_reactor, reactor_installer=installer, reactor_type=kind
    )

# A busy machine is no slow strategy.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


def pytest_configure() -> None:
    """Where the wheel is to be tested, the source must not be in its place."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's background job, whose children would not hear a Ctrl-C either.
        signal.signal(signal.SIGINT, signal.default_int_handler)
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
