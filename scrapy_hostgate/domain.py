"""Registrable domains, by the public suffix list."""

from __future__ import annotations

from functools import lru_cache

import tldextract


def registrable_domain(host: str) -> str:
    """The registrable domain of a normalised host, or the host itself where it has none."""
    return domain_of(host) or host


@lru_cache(maxsize=4096)
def domain_of(host: str) -> str:
    """The registrable domain of a normalised host, or nothing."""
    found = _extractor()(host)
    return f"{found.domain}.{found.suffix}" if found.domain and found.suffix else ""


@lru_cache(maxsize=1)
def _extractor() -> tldextract.TLDExtract:
    # The bundled public suffix list only: a crawler's start must not wait for a download.
    return tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
