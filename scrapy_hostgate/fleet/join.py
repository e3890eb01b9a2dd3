"""From HOSTGATE_FLEET_URL to a fleet, or to one clear error at start-up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from scrapy.utils.asyncio import is_asyncio_available

from scrapy_hostgate.checks import HostGateSettingsError
from scrapy_hostgate.fleet.member import FleetMember
from scrapy_hostgate.fleet.memory import MemoryFleet
from scrapy_hostgate.fleet.protocol import Fleet
from scrapy_hostgate.fleetrules import FleetRules
from scrapy_hostgate.observe.observer import Observer
from scrapy_hostgate.semaphore import CallLater

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

# One for each name in this process, for as long as a crawler uses it.
_in_memory: WeakValueDictionary[str, MemoryFleet] = WeakValueDictionary()


def join_fleet(
    rules: FleetRules,
    crawler: Crawler,
    observer: Observer,
    *,
    clock: Callable[[], float],
    call_later: CallLater,
) -> FleetMember:
    """Take part in the fleet of ``HOSTGATE_FLEET_URL``. Raises ``HostGateSettingsError``."""
    name = "HOSTGATE_FLEET_URL"
    if not is_asyncio_available():
        raise HostGateSettingsError(
            f"{name} is set, but a fleet needs an asyncio event loop: leave TWISTED_REACTOR at its "
            'default ("twisted.internet.asyncioreactor.AsyncioSelectorReactor").'
        )
    fleet = open_fleet(name, rules.url, rules.timeout_s)
    return FleetMember(fleet, rules, crawler, observer, clock=clock, call_later=call_later)


def open_fleet(where: str, url: str, timeout_s: float) -> Fleet:
    """The fleet at ``url``; ``where`` is what the user wrote it in.

    ``memory:NAME`` is shared by the crawlers of this process. Raises ``HostGateSettingsError`` if
    the URL cannot be used, the extra is missing or the server will not let us in. A server that is
    not there is no error: the crawl begins alone and joins when it comes.
    """
    if url.startswith("memory:"):
        fleet = _in_memory.get(url)
        if fleet is None:
            fleet = _in_memory[url] = MemoryFleet()
        return fleet
    try:
        from scrapy_hostgate.fleet import connect
        from scrapy_hostgate.fleet.redisfleet import RedisFleet
    except ImportError as error:
        raise HostGateSettingsError(
            f"{where} needs redis-py: pip install 'scrapy-hostgate[redis]' ({error})."
        ) from error
    try:
        refusal = connect.refuses(url, timeout_s)
        if refusal is None:
            return RedisFleet(url, timeout_s)
    # redis-py says of an option that it does not know only that it is an unexpected argument.
    except (ValueError, TypeError) as error:
        schemes = ", ".join(("memory", *connect.SCHEMES))
        raise HostGateSettingsError(
            f"{where} is {connect.redacted(url)!r}, but must be a URL with one of the schemes "
            f"{schemes} ({error})."
        ) from None
    raise HostGateSettingsError(
        f"{where} is {connect.redacted(url)!r} (user and password are not shown), "
        f"but the server does not let us in: {refusal}."
    )
