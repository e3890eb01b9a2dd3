"""``scrapy crawl pages -a urls=...``: crawl real sites, politely."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import scrapy
from scrapy.exceptions import CloseSpider
from scrapy.http import HtmlResponse, Response
from scrapy.linkextractors import LinkExtractor

_ALLOWED_URL = "a whole URL such as https://www.example.org/ (http or https)"
_ALLOWED_URLS = (
    "URLs separated by commas or spaces, or the name of a file with one URL per line, "
    "e.g. -a urls=https://www.example.org/"
)


class PagesSpider(scrapy.Spider):
    """Yields every page of the given sites: url, status, title, depth and bytes.

    Arguments (``-a name=value``):

    ``urls``
        where to start: URLs separated by commas or spaces, or a file with one URL per line, in
        which empty lines and those that begin with ``#`` are skipped. A URL with a comma in it
        has to come from a file.
    ``max_pages``
        stop after so many pages, 1 or more; without it, when there are no more.
    ``depth``
        follow so many links in a row from where it started: 0 is the given URLs alone.

    Links are followed to the hosts of the given URLs only (and to those that the URLs redirect to,
    as from example.org to www.example.org), and as far as their robots.txt allows.
    """

    name = "pages"
    custom_settings = {
        "FEEDS": {"pages.jsonl": {"format": "jsonlines", "overwrite": True}},
        "HTTPERROR_ALLOW_ALL": True,  # a page that is missing is a finding, too
    }
    exitcode = 1

    def __init__(
        self,
        urls: str = "",
        max_pages: str | int | None = None,
        depth: str | int | None = None,
        **kwargs: Any,
    ) -> None:
        """Raises ``ValueError`` for an argument that makes no sense."""
        super().__init__(**kwargs)
        self.first_urls = read_urls(urls)
        self.max_pages = whole_number("max_pages", max_pages, least=1)
        self.max_depth = whole_number("depth", depth, least=0)
        self.hosts = {hostname(url) for url in self.first_urls}
        self.pages = 0
        self.links = LinkExtractor()

    @classmethod
    def check_arguments(cls, **arguments: Any) -> None:
        """Raise ``ValueError`` for bad or unknown arguments; asked by ``scrapy crawl``."""
        known = ("urls", "max_pages", "depth")
        for argument in arguments:
            if argument not in known:
                raise ValueError(f"-a {argument}: not known, there are {', '.join(known)}")
        cls(**arguments)

    async def start(self) -> AsyncIterator[Any]:
        for url in self.first_urls:
            yield scrapy.Request(url, callback=self.parse_first)

    def closed(self, reason: str) -> None:
        self.exitcode = 0 if self.pages else 1
        self.logger.info(
            "%(pages)d pages of %(hosts)s (%(reason)s)",
            {"pages": self.pages, "hosts": ", ".join(sorted(self.hosts)), "reason": reason},
        )

    def parse_first(self, response: Response) -> Iterator[Any]:
        self.hosts.add(hostname(response.url))
        yield from self.parse(response)

    def parse(self, response: Response) -> Iterator[Any]:
        if hostname(response.url) not in self.hosts:
            return  # redirected to elsewhere
        if self.max_pages is not None and self.pages >= self.max_pages:
            return  # was under way when the last one came
        self.pages += 1
        html = response if isinstance(response, HtmlResponse) else None
        depth = response.meta["depth"]
        yield {
            "url": response.url,
            "status": response.status,
            "title": html.xpath("normalize-space(//title)").get() if html is not None else None,
            "depth": depth,
            "bytes": len(response.body),
        }
        if self.pages == self.max_pages:
            raise CloseSpider("max_pages")
        if html is None or (self.max_depth is not None and depth >= self.max_depth):
            return
        for link in self.links.extract_links(html):
            if urlsplit(link.url).scheme in ("http", "https") and hostname(link.url) in self.hosts:
                yield scrapy.Request(link.url)


def read_urls(urls: str) -> list[str]:
    """The URLs of a list or a file. Raises ``ValueError`` that says what is allowed."""
    if not urls.strip():
        raise ValueError(f"-a urls=...: no URL given; it must be {_ALLOWED_URLS}")
    if "://" in urls:
        return [checked_url(url, "-a urls") for url in re.split(r"[,\s]+", urls.strip(", \t\n"))]
    try:
        lines = Path(urls).expanduser().read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(
            f"-a urls={urls}: cannot be read as a file ({why}) and is no URL either; "
            f"it must be {_ALLOWED_URLS}"
        ) from error
    found = [
        checked_url(line.strip(), f"{urls}, line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not found:
        raise ValueError(f"-a urls={urls}: there is no URL in this file; one per line is expected")
    return found


def checked_url(url: str, where: str) -> str:
    """The URL itself, or ``ValueError`` if Scrapy could not fetch it over HTTP."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme.lower() in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, or a broken IPv6 address
        usable = False
    if not usable or re.search(r"\s", url):
        raise ValueError(f"{where}: {url!r} must be {_ALLOWED_URL}")
    return url


def hostname(url: str) -> str:
    """The host of a URL; an empty text if it has none, as in many a broken link."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def whole_number(name: str, value: str | int | None, *, least: int) -> int | None:
    """``None`` if not given. Raises ``ValueError`` that names the argument."""
    if value is None:
        return None
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise ValueError(f"-a {name}={value}: must be a whole number, {least} or more")
    return number
