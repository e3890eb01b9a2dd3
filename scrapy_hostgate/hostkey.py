"""One spelling for each host.

A limiter that keys by the text of a URL gives every spelling of a host its own allowance.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import socket
from functools import lru_cache
from urllib.parse import urlsplit

_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+)){0,3}")
_HOSTNAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")


# A name in the DNS has 253 characters at most; what is longer comes from a redirect or a link.
MAX_HOST_CHARS = 255


def normalise_host(host: str) -> str:
    """The one spelling of ``host``, a bare host name or address without port or credentials.

    Lower case, IDNA (as Scrapy writes URLs), no trailing dot; IPv4 in dotted decimal however it was
    written, IPv6 compressed and without brackets, IPv4-mapped IPv6 as IPv4. A name that no rule
    covers comes back in lower case: an odd name is still a name. Of one that is too long to be any,
    the beginning and a digest: it will not resolve, and must not take memory meanwhile.
    """
    if len(host) > MAX_HOST_CHARS:
        digest = hashlib.sha256(host.lower().encode("utf-8", "surrogatepass")).hexdigest()
        host = f"{host[:64]}~{digest}"
    once = _normalised(host)
    # Nameprep makes ASCII digits of full-width ones, which then are an address.
    while (again := _normalised(once)) != once:
        once = again
    return once


def host_of(netloc: str) -> str:
    """The one spelling of the host in the ``netloc`` of a URL, credentials and port aside."""
    # What is long must not take the memory of what is remembered.
    return _remembered(netloc) if len(netloc) <= 2 * MAX_HOST_CHARS else _host_of(netloc)


def _host_of(netloc: str) -> str:
    return normalise_host(urlsplit(f"//{netloc}").hostname or "")


_remembered = lru_cache(maxsize=4096)(_host_of)


def _normalised(host: str) -> str:
    text = host.strip().lower().rstrip(".")
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    if ":" in text:
        return _ipv6(text)
    if _NUMERIC.fullmatch(text):
        return _ipv4(text)
    if text.isascii():
        return text
    try:
        return text.encode("idna").decode("ascii").rstrip(".")
    except UnicodeError:
        return text


def is_valid_host(host: str) -> bool:
    """Whether ``host``, already normalised, can be the host of a URL."""
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return False
        return True
    return len(host) <= 253 and _HOSTNAME.fullmatch(host) is not None


def _ipv6(text: str) -> str:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return text
    return str(address.ipv4_mapped or address)


def _ipv4(text: str) -> str:
    # inet_aton reads what the system's resolver reads: 127.1, 0x7f.0.0.1 and 2130706433 too.
    try:
        return socket.inet_ntoa(socket.inet_aton(text))
    except OSError:
        return text
