"""The report of a crawl: one HTML file that needs no network, made from its events."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from datetime import datetime, timezone
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from scrapy_hostgate.observe.history import (
    Crawl,
    HostFigures,
    Timeline,
    read_crawl,
    read_timelines,
)
from scrapy_hostgate.observe.log import printable
from scrapy_hostgate.observe.replay import read_events
from scrapy_hostgate.observe.table import counted

MAX_TIMELINES = 12
MAX_IN_WORDS = 8

_HEADINGS = (
    "host",
    "last limit",
    "lowest",
    "pages",
    "answers",
    "refusals",
    "incidents",
    "slow-downs",
    "paused, s",
    "spacing, s",
    "mean latency, ms",
)
_LEGEND = (
    (
        "limit",
        '<path d="M0 4h11v7h11" fill="none" stroke="var(--limit)" stroke-width="2"/>',
    ),
    ("in flight", '<path d="M0 14V8h7V2h8v6h7v6z" fill="var(--flight)"/>'),
    (
        "latency of pages",
        '<g fill="var(--latency)"><circle cx="4" cy="9" r="2.2"/><circle cx="11" cy="5" r="2.2"/>'
        '<circle cx="18" cy="8" r="2.2"/></g>',
    ),
    ("refused", '<path d="M6 2l10 10M16 2L6 12" stroke="var(--refusal)" stroke-width="2.2"/>'),
    ("paused", '<path d="M0 0h22v14H0z" fill="var(--pause)"/>'),
)


def write_report(events: Path, report: Path) -> Crawl:
    """Make ``report`` of an events file and its older parts.

    Raises ``OSError``, and ``ValueError`` for a file that is none of ours. Without matplotlib there
    are no timelines, and the page says so.
    """
    crawl = read_crawl(read_events(events))
    hosts = sorted(crawl.hosts.values(), key=lambda host: host.host)
    hosts.sort(key=lambda host: host.trouble, reverse=True)
    drawn = [host.host for host in hosts[:MAX_TIMELINES]]
    lines: Mapping[str, Timeline] = {}
    if can_draw():
        lines = read_timelines(read_events(events, drawn), crawl, drawn)
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(page(crawl, hosts, lines), encoding="utf-8")
    return crawl


def can_draw() -> bool:
    """Whether the extra that draws timelines is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def page(crawl: Crawl, hosts: list[HostFigures], lines: Mapping[str, Timeline]) -> str:
    """The HTML. ``hosts`` are in order, ``lines`` those that are to be drawn."""
    template = files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    began = datetime.fromtimestamp(crawl.began_at, timezone.utc)
    return Template(template).substitute(
        title=escape(f"What the hosts bore: {printable(crawl.spider)}"),
        when=f"{began:%Y-%m-%d %H:%M:%S} UTC, {length(crawl.seconds)}",
        summary=escape(summary(crawl)),
        notes="".join(f'<p class="note">{escape(note)}</p>' for note in notes(crawl)),
        tiles="".join(_tiles(crawl)),
        trouble=_in_words(hosts),
        timelines=_timelines(crawl, hosts, lines),
        headings="".join(f'<th><button type="button">{h}</button></th>' for h in _HEADINGS),
        rows="\n".join(_row(host) for host in hosts),
    )


def summary(crawl: Crawl) -> str:
    """What happened, in a few sentences."""
    hosts = crawl.hosts.values()
    pages, refusals = sum(h.pages for h in hosts), sum(h.refusals for h in hosts)
    text = [
        f"The crawl got {counted(pages, 'page')} from {counted(len(hosts), 'host')} in "
        f"{length(crawl.seconds)}."
    ]
    refusing = [host for host in hosts if host.refusals]
    if refusing:
        incidents = sum(host.incidents for host in refusing)
        text.append(
            f"{counted(len(refusing), 'host')} refused {counted(refusals, 'request')} in "
            f"{counted(incidents, 'incident')}."
        )
    else:
        text.append("No host refused anything.")
    slowed = sum(1 for host in hosts if host.shrinks)
    if slowed:
        text.append(f"{counted(slowed, 'host')} slowed down and got a lower limit for it.")
    paused_s = sum(host.paused_s for host in hosts)
    if paused_s:
        longest = max(hosts, key=lambda host: host.paused_s)
        text.append(
            f"Pauses add up to {length(paused_s)}, most of it at {printable(longest.host)} "
            f"({length(longest.paused_s)})."
        )
    low = sum(1 for host in hosts if host.limit < host.start)
    text.append(
        f"At the end {counted(low, 'limit')} stood below the start."
        if low
        else "At the end every limit was at its start or above."
    )
    return " ".join(text)


def notes(crawl: Crawl) -> list[str]:
    """What the figures do not show."""
    found = []
    if crawl.parts_lost > 0:
        found.append(
            f"{counted(crawl.parts_lost, 'older part')} of the events file had been rotated away: "
            f"this page begins with what is left, and its counts are too low."
        )
    spoiled = sum(host.spoiled for host in crawl.hosts.values())
    if spoiled:
        found.append(
            f"{counted(spoiled, 'latency', 'latencies')} could not be used, because the crawler's "
            f"own event loop stood still meanwhile: they are gaps in the drawings."
        )
    if not crawl.complete:
        found.append("The events file has no end: the crawl was killed, or still runs.")
    return found


def length(seconds: float) -> str:
    """A length of time in words."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 90:
        return f"{minutes} min {rest_s} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _tiles(crawl: Crawl) -> list[str]:
    hosts = crawl.hosts.values()
    troubled = sum(1 for host in hosts if host.troubled)
    refusals = sum(host.refusals for host in hosts)
    return [
        f'<div class="tile{" bad" if bad else ""}"><b>{value}</b><span>{what}</span></div>'
        for value, what, bad in (
            (f"{sum(host.pages for host in hosts):,}", "pages", False),
            (f"{refusals:,}", "refusals", refusals > 0),
            (length(sum(host.paused_s for host in hosts)), "paused, over all hosts", False),
            (f"{troubled:,} of {len(hosts):,}", "hosts in trouble", troubled > 0),
        )
    ]


def _in_words(hosts: list[HostFigures]) -> str:
    troubled = [host for host in hosts if host.troubled]
    if not troubled:
        return ""
    items = [f"<li>{escape(_sentence(host))}</li>" for host in troubled[:MAX_IN_WORDS]]
    if len(troubled) > MAX_IN_WORDS:
        items.append(f"<li>and {len(troubled) - MAX_IN_WORDS:,} more, in the table below.</li>")
    return f"<h2>Hosts in trouble</h2><ul>{''.join(items)}</ul>"


def _sentence(host: HostFigures) -> str:
    parts = []
    if host.refusals:
        parts.append(
            f"refused {counted(host.refusals, 'request')} in {counted(host.incidents, 'incident')}"
        )
    if host.shrinks:
        parts.append(f"slowed down {'once' if host.shrinks == 1 else f'{host.shrinks} times'}")
    if host.paused_s:
        parts.append(f"was paused for {length(host.paused_s)}")
    return (
        f"{printable(host.host)} {', '.join(parts)}; its limit went down to {host.lowest} and "
        f"ended at {host.limit} of {host.ceiling}, with {counted(host.pages, 'page')} got."
    )


def _timelines(crawl: Crawl, hosts: list[HostFigures], lines: Mapping[str, Timeline]) -> str:
    if not can_draw():
        return (
            '<p class="note">There are no timelines, because matplotlib is missing: '
            "<code>pip install 'scrapy-hostgate[report]'</code>.</p>"
        )
    shown = [host for host in hosts if host.host in lines]
    if not shown:
        return ""
    from scrapy_hostgate.observe.timeline import draw_timeline

    legend = "".join(
        f'<li><svg width="22" height="14" viewBox="0 0 22 14" aria-hidden="true">{mark}</svg>'
        f"{what}</li>"
        for what, mark in _LEGEND
    )
    figures = []
    for number, host in enumerate(shown):
        drawing = draw_timeline(lines[host.host], crawl.seconds, host.ceiling, name=f"host{number}")
        caption = (
            f"{counted(host.pages, 'page')}, {counted(host.refusals, 'refusal')}, "
            f"paused {length(host.paused_s)}"
        )
        figures.append(
            f"<figure><h3>{escape(printable(host.host))}</h3>"
            f"<figcaption>{caption}</figcaption>{drawing}</figure>"
        )
    more = len(hosts) - len(shown)
    which = f"The {len(shown)} hosts with most trouble, then most answers." if more else ""
    return (
        f'<h2>Over time</h2><ul class="legend">{legend}</ul>'
        f"{f'<p class=note>{which}</p>' if which else ''}"
        f'<div class="lines">{"".join(figures)}</div>'
    )


def _row(host: HostFigures) -> str:
    name = escape(printable(host.host))
    mean = "" if host.mean_s is None else f"{host.mean_s * 1000:.0f}"
    cells = [
        f"{host.limit}",
        f"{host.lowest}",
        f"{host.pages}",
        f"{host.answers}",
        f"{host.refusals}",
        f"{host.incidents}",
        f"{host.shrinks}",
        f"{host.paused_s:.1f}",
        f"{host.spacing_s:.3g}",
        mean,
    ]
    bad = ' class="bad"' if host.troubled else ""
    return f'<tr{bad}><td title="{name}">{name}</td>{"".join(f"<td>{c}</td>" for c in cells)}</tr>'
