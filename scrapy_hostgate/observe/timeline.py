"""Draws one host's timeline as SVG that takes its colours from the page around it."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from scrapy_hostgate.observe.history import Timeline

# What matplotlib draws with, and the style sheet's name for it. Okabe and Ito's colours, which
# the colour-blind can tell apart; shape and place differ besides.
_COLOURS = {
    "#010101": "ink",
    "#020202": "muted",
    "#030303": "grid",
    "#040404": "limit",
    "#050505": "flight",
    "#060606": "latency",
    "#070707": "refusal",
    "#080808": "pause",
}
_BY_NAME = {name: colour for colour, name in _COLOURS.items()}
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.0,
    "svg.fonttype": "none",
    "axes.edgecolor": _BY_NAME["grid"],
    "axes.labelcolor": _BY_NAME["ink"],
    "xtick.color": _BY_NAME["muted"],
    "ytick.color": _BY_NAME["muted"],
    "text.color": _BY_NAME["ink"],
    "grid.color": _BY_NAME["grid"],
    "text.parse_math": False,
}


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit of a time axis of this length, and its seconds."""
    for name, length in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 3 * length:
            return name, length
    return "seconds", 1.0


def draw_timeline(line: Timeline, seconds: float, ceiling: int, *, name: str) -> str:
    """An ``<svg>`` element: limit and in flight, latency, refusals and pauses on one time axis.

    ``seconds`` is how long the crawl took, ``name`` tells the drawing's ids from those of others.
    """
    unit, unit_s = time_unit(seconds)
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(5.2, 3.1))
        # By hand: letting matplotlib find the margins takes as long as all the drawing.
        figure.subplots_adjust(left=0.16, right=0.98, top=0.97, bottom=0.15, hspace=0.22)
        FigureCanvasSVG(figure)
        flight, latency, refusals = figure.subplots(
            3, 1, sharex=True, gridspec_kw={"height_ratios": [4, 4, 1.1]}
        )
        _draw_flight(flight, line, unit_s, ceiling)
        _draw_latency(latency, line, unit_s)
        _draw_refusals(refusals, line, unit_s)
        for axes in (flight, latency, refusals):
            for since, until in line.pauses:
                axes.axvspan(
                    since / unit_s, until / unit_s, color=_BY_NAME["pause"], linewidth=0, zorder=0
                )
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(length=2.5)
            axes.set_facecolor("none")
        refusals.set_xlim(0, max(seconds, 1e-3) / unit_s)
        refusals.set_xlabel(f"{unit} since the crawl began")
        refusals.xaxis.set_major_locator(MaxNLocator(8))
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    return _themed(drawn.getvalue(), name)


def _draw_flight(axes: Axes, line: Timeline, unit_s: float, ceiling: int) -> None:
    times, most = _columns(line.in_flight, unit_s)
    axes.fill_between(times, most, step="mid", color=_BY_NAME["flight"], linewidth=0, zorder=2)
    times, limits = _columns(line.limits, unit_s)
    axes.step(times, limits, where="post", color=_BY_NAME["limit"], linewidth=1.6, zorder=3)
    axes.set_ylim(0, max([ceiling, *most, *limits]) + 0.5)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.grid(axis="y", linewidth=0.5)
    axes.set_ylabel("requests")
    axes.yaxis.set_label_coords(-0.125, 0.5)


def _draw_latency(axes: Axes, line: Timeline, unit_s: float) -> None:
    times, latencies = _columns(line.latency_s, unit_s)
    top = max(latencies, default=1.0)
    in_ms = top < 1.0
    axes.plot(
        times,
        [value * 1000 if in_ms else value for value in latencies],
        ".",
        color=_BY_NAME["latency"],
        markersize=4,
    )
    axes.set_ylim(0, 1.15 * max(1000 * top if in_ms else top, 1e-6))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.grid(axis="y", linewidth=0.5)
    axes.set_ylabel("latency, ms" if in_ms else "latency, s")
    axes.yaxis.set_label_coords(-0.125, 0.5)


def _draw_refusals(axes: Axes, line: Timeline, unit_s: float) -> None:
    times = [at / unit_s for at in line.refusals]
    axes.plot(
        times,
        [0.5] * len(times),
        "x",
        color=_BY_NAME["refusal"],
        markersize=6,
        markeredgewidth=1.6,
        clip_on=False,  # one at the very beginning would be half a cross
    )
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.set_ylabel("refused", rotation=0, ha="right", va="center")
    axes.yaxis.set_label_coords(-0.02, 0.5)


def _columns(
    points: Sequence[tuple[float, float]], unit_s: float
) -> tuple[list[float], list[float]]:
    return [at / unit_s for at, _ in points], [value for _, value in points]


def _themed(svg: str, name: str) -> str:
    """The drawing without what belongs to a file of its own, in the page's colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Its style sheet would hold for the whole page.
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for colour, called in _COLOURS.items():
        svg = svg.replace(colour, f"var(--{called})")
    # Ids such as "axes_1" would stand in the page once for each drawing.
    return re.sub(r'(id="|url\(#|xlink:href="#)', rf"\g<1>{name}-", svg)
