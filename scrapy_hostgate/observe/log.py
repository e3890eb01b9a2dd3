"""One log line for each change of a limit and each refusal, with the numbers behind it."""

from __future__ import annotations

import logging

from scrapy_hostgate.controller import Decision, Reason
from scrapy_hostgate.gate import Gate, Verdict
from scrapy_hostgate.observe.board import Board, HostRow
from scrapy_hostgate.pacer import Pause

logger = logging.getLogger("scrapy_hostgate")


def log_adopted(gate: Gate, decision: Decision, spider: object) -> None:
    """Log a limit that another process of the fleet has set."""
    logger.info(
        "%(host)s: %(what)s by another worker",
        {"host": printable(gate.key), "what": _limit(decision)},
        extra={"spider": spider},
    )


def log_verdict(
    gate: Gate, verdict: Verdict, cause: str, spider: object, *, asked_by: str = "Retry-After"
) -> None:
    """Log what a sample changed.

    ``cause`` is what the host said, such as ``"429"``; ``asked_by`` names what a wait came from.
    """
    decision, pause = verdict.decision, verdict.pause
    if decision is None and pause is None:
        return
    # An incident is news even if the limit was one already, or a crawl of a single host that is
    # down looks as if it hung. The echoes of an incident are not.
    level = logging.INFO if decision is not None else logging.DEBUG
    if not logger.isEnabledFor(level):
        return
    parts = [_limit(decision), cause if decision and decision.reason is Reason.REFUSED else ""]
    parts += [_numbers(decision) if decision else "", _pause(pause, asked_by) if pause else ""]
    logger.log(
        level,
        "%(host)s: %(what)s",
        {"host": printable(gate.key), "what": "; ".join(part for part in parts if part)},
        extra={"spider": spider},
    )


def log_capped(gate: Gate, pause: Pause, spider: object) -> None:
    """A host asks for a longer pause than we make."""
    logger.warning(
        "%(host)s asked for a pause of %(asked).0f s, more than HOSTGATE_MAX_PAUSE: "
        "it is asked again after %(wait).0f s",
        {"host": printable(gate.key), "asked": pause.asked_s, "wait": pause.wait_s},
        extra={"spider": spider},
    )


def log_spoiled(samples: int, spider: object) -> None:
    """So many latencies were no use, because our own event loop stood still."""
    logger.warning(
        "%(count)d latencies could not be used, because this crawler's own event loop "
        "stood still meanwhile (busy callbacks?): slow hosts are noticed late",
        {"count": samples},
        extra={"spider": spider},
    )


def log_trouble(board: Board, spider: object) -> None:
    """One line while any host is below its start or paused, and none otherwise."""
    totals = board.totals
    if not totals.troubled:
        return
    named = [row for row in board.rows if row.paused_s > 0 or row.limit < row.start]
    more = totals.troubled - len(named)
    logger.info(
        "%(troubled)d of %(hosts)d hosts in trouble: %(named)s",
        {
            "troubled": totals.troubled,
            "hosts": totals.hosts,
            "named": "; ".join(
                [_trouble(row) for row in named] + ([f"and {more} more"] if more else [])
            ),
        },
        extra={"spider": spider},
    )


def _trouble(row: HostRow) -> str:
    parts = [f"limit {row.limit} of {row.start}"]
    if row.limit < row.start and row.reason:
        parts[0] += f" ({row.reason})"
    if row.paused_s > 0:
        parts.append(f"paused {row.paused_s:.0f} s")
    if row.waiting:
        parts.append(f"{row.waiting} waiting")
    return f"{printable(row.host)} {', '.join(parts)}"


def printable(key: str) -> str:
    """A host key that cannot break a log line, whatever a user's key function made of it."""
    return key if key.isprintable() else repr(key)


def _limit(decision: Decision | None) -> str:
    if decision is None:
        return "refused again by a request sent before"
    if decision.limit_from == decision.limit_to:
        return f"limit stays {decision.limit_to} ({decision.reason.value})"
    return f"limit {decision.limit_from} -> {decision.limit_to} ({decision.reason.value})"


def _numbers(decision: Decision) -> str:
    numbers = [
        f"{name} {value:.3f} s"
        for name, value in (
            ("latency", decision.latency_s),
            ("median", decision.median_s),
            ("p95 baseline", decision.baseline_s),
        )
        if value is not None
    ]
    if decision.reason is Reason.REFUSED and decision.recovery_delay_s is not None:
        numbers.append(f"a step up after {decision.recovery_delay_s:.0f} s at the earliest")
    return ", ".join(numbers)


def _pause(pause: Pause, asked_by: str) -> str:
    if pause.asked_s is None:
        text = f"pause {pause.wait_s:.1f} s (backoff)" if pause.wait_s else ""
    elif pause.capped:
        text = f"pause {pause.wait_s:.1f} s ({asked_by} {pause.asked_s:.0f} s, capped)"
    else:
        text = f"pause {pause.wait_s:.1f} s ({asked_by})"
    if pause.interval_s:
        text += f", then {pause.interval_s:.3g} s between departures"
    return text.lstrip(", ")
