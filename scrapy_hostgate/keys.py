"""Which host is it: the host key of a request, and of a name that a user gives."""

from __future__ import annotations

from collections.abc import Container

from scrapy import Request
from scrapy.utils.httpobj import urlparse_cached

from scrapy_hostgate.domain import registrable_domain
from scrapy_hostgate.hostkey import is_valid_host, normalise_host
from scrapy_hostgate.settings import HostGateSettings

GATED_SCHEMES = frozenset({"http", "https", "ftp"})


def scheme_of(request: Request) -> str:
    return request.url.partition(":")[0].lower()


def is_gated(request: Request) -> bool:
    """Whether a gate holds ``request``: it has a host to protect, and nobody asked for a bypass."""
    return scheme_of(request) in GATED_SCHEMES and not request.meta.get("hostgate_bypass")


class HostKeys:
    """Host keys as ``HOSTGATE_KEY`` says; ``known`` holds those that have a gate."""

    def __init__(self, settings: HostGateSettings, known: Container[str]) -> None:
        self._settings = settings
        self._known = known

    def of_request(self, request: Request) -> str:
        """The host key of a request. Raises ``TypeError`` if the user's function gives no text."""
        kind = self._settings.key
        if kind == "slot":
            slot = request.meta.get("download_slot")
            if slot not in (None, ""):
                return str(slot)
        elif self._settings.key_function is not None:
            key = self._settings.key_function(request)
            if not isinstance(key, str):
                host = urlparse_cached(request).hostname
                raise TypeError(f"HOSTGATE_KEY gave {key!r} for a request to {host!r}, not a text")
            if key:
                return key
        host = normalise_host(urlparse_cached(request).hostname or "")
        return registrable_domain(host) if kind == "domain" else host

    def of_name(self, name: str) -> str:
        """The host key that a user means by ``name``. Raises ``ValueError`` if it can be none."""
        kind, host = self._settings.key, normalise_host(name)
        if kind in ("slot", "key"):
            # The user's own names first, as they are written.
            return host if name not in self._known and host in self._known else name
        if not is_valid_host(host):
            raise ValueError(f"a host name without scheme, port or path is needed, not {name!r}")
        return registrable_domain(host) if kind == "domain" else host
