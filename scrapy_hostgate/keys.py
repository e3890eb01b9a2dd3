"""Which host is it: the host key of a request, and of a name that a user gives."""

from __future__ import annotations

import re
from collections.abc import Container

from scrapy import Request
from scrapy.utils.httpobj import urlparse_cached

from scrapy_hostgate.domain import registrable_domain
from scrapy_hostgate.hostkey import host_of, is_valid_host, normalise_host
from scrapy_hostgate.settings import HostGateSettings

GATED_SCHEMES = frozenset({"http", "https", "ftp"})


# Scheme and network location (RFC 3986, section 3.2), a fraction of what parsing a whole URL costs.
_GATED_URL = re.compile(rf"(?:{'|'.join(sorted(GATED_SCHEMES))})://([^/?#]*)", re.IGNORECASE).match


def has_host(request: Request) -> bool:
    """Whether ``request`` goes to a host that a gate could protect."""
    return _GATED_URL(request.url) is not None


class HostKeys:
    """Host keys as ``HOSTGATE_KEY`` says; ``known`` holds those that have a gate."""

    def __init__(self, settings: HostGateSettings, known: Container[str]) -> None:
        self._settings = settings
        self._known = known
        self._by_host = settings.key == "host"

    def of_gated(self, request: Request) -> str | None:
        """The host key of a request, ``None`` if no gate holds it: it has no host to protect, or
        somebody asked for a bypass. Raises as :meth:`of_request`.
        """
        found = _GATED_URL(request.url)
        if found is None or request.meta.get("hostgate_bypass"):
            return None
        return host_of(found[1]) if self._by_host else self.of_request(request)

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
        host = host_of(urlparse_cached(request).netloc)
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
