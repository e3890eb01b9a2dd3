"""How a host of the origin answers: replies, and ready-made behaviours that produce them.

A behaviour is called once per request, at the moment of its arrival, with

* the arrival's number at this host, 1-based,
* the :class:`~demo.origin_record.Arrival` (``in_flight`` includes the request itself;
  ``since_start`` is the time since the *server* started),
* ``now``: seconds since the first arrival at this *host*, 0.0 for that first one,

and gives a :class:`Reply`, or None to obey the query controls of the URL. It runs on the server's
loop, so it must not block.

Wherever a ready-made behaviour takes a ``latency`` it may be seconds or another behaviour, which
then answers whatever is not refused: ``outage(30, 5, refuse_above(3, 0.1))``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, get_args
from urllib.parse import parse_qsl, urlsplit

from .origin_record import Arrival

End: TypeAlias = Literal["close", "mid", "garbage", "reset", "hang"]
ENDS: tuple[str, ...] = get_args(End)
HeaderValue: TypeAlias = str | tuple[str, ...] | None


@dataclass(frozen=True)
class Reply:
    """One answer.

    ``delay``: seconds before anything is sent. ``body_time``: seconds to trickle the body over.
    ``body``: None is a small HTML page. ``headers``: a tuple sends the header several times, None
    leaves out one that is sent by default (Date, Content-Type, Content-Length).

    ``end`` breaks the answer, after ``delay``: "close" before any byte, "mid" in the middle of
    the body, "garbage" sends bytes that are not HTTP, "reset" sends a TCP RST, "hang" waits until
    the client leaves. Raises ValueError for anything else.
    """

    status: int = 200
    headers: Mapping[str, HeaderValue] = field(default_factory=dict)
    delay: float = 0.0
    body: bytes | None = None
    end: End | None = None
    body_time: float = 0.0

    def __post_init__(self) -> None:
        if self.end is not None and self.end not in ENDS:
            raise ValueError(f"end: {self.end!r} is not one of {', '.join(ENDS)}")
        if not 200 <= self.status <= 999:
            raise ValueError(f"status: {self.status!r} is not a final status, 200 to 999")
        for name in ("delay", "body_time"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: {value!r} is not a number of seconds, 0 or more")


Behaviour: TypeAlias = Callable[[int, Arrival, float], Reply | None]
Latency: TypeAlias = float | Behaviour
RetryAfter: TypeAlias = str | Callable[[float], str] | None


def page(size: int | None = None, title: str = "origin") -> bytes:
    """A small HTML page, padded or cut to ``size`` bytes; ValueError for a negative size."""
    if size is not None and size < 0:
        raise ValueError(f"size: {size} is not a number of bytes")
    html = f"<!doctype html><html><head><title>{title}</title></head><body>".encode()
    if size is None:
        return html + b"<p>ok</p></body></html>\n"
    return html.ljust(size, b".")[:size]


def query_controls(number: int, arrival: Arrival, now: float) -> Reply:
    """Answer as the URL's query asks; 400 with the reason in the body if it makes no sense.

    ``d``: ms before the answer, ``s``: status, ``ra``: Retry-After, ``to``: Location (status
    302 unless ``s``), ``n``: body bytes, ``bd``: ms to trickle the body over, ``end``: see
    :class:`Reply`.
    """
    query = dict(parse_qsl(urlsplit(arrival.path).query, keep_blank_values=True))
    wanted = {"Retry-After": query.get("ra"), "Location": query.get("to")}
    try:
        return Reply(
            status=int(query.get("s", 302 if "to" in query else 200)),
            headers={name: value for name, value in wanted.items() if value is not None},
            delay=float(query.get("d", 0)) / 1000,
            body=page(int(query["n"])) if "n" in query else None,
            end=query.get("end"),  # type: ignore[arg-type]  # Reply checks it
            body_time=float(query.get("bd", 0)) / 1000,
        )
    except ValueError as error:
        return Reply(status=400, body=f"query control: {error}\n".encode())


def steady(latency: float) -> Behaviour:
    """Answer 200 after ``latency`` seconds, always."""
    reply = Reply(delay=latency)
    return lambda number, arrival, now: reply


def site(pages: int, latency: float, links: int = 4) -> Behaviour:
    """Sections of linked pages: ``/NAME/1`` to ``/NAME/pages`` for any name, each after ``latency``
    seconds; all else is 404.

    Each page links to ``links`` others that only it links to, as far as there are so many, and back
    to the first.
    """

    def behave(number: int, arrival: Arrival, now: float) -> Reply:
        _, _, page_number = arrival.path.rpartition("/")
        if not (page_number.isascii() and page_number.isdecimal()):
            return Reply(status=404)
        this = int(page_number)
        if not 1 <= this <= pages:
            return Reply(status=404)
        first = links * (this - 1) + 2
        others = [1, *range(first, min(first + links, pages + 1))]
        anchors = "".join(f'<a href="{other}">{other}</a> ' for other in others)
        html = f"<!doctype html><html><head><title>Page {this}</title></head><body>{anchors}"
        return Reply(delay=latency, body=f"{html}</body></html>\n".encode())

    return behave


def tarpit(latency: float = 15.0) -> Behaviour:
    """Answer 200, but keep every client waiting ``latency`` seconds."""
    return steady(latency)


def refuse_above(
    n: int, latency: Latency, status: int = 429, retry_after: str | None = None
) -> Behaviour:
    """Refuse, at once, any request that makes more than ``n`` in flight (itself included)."""
    base, refusal = _behaviour(latency), _refusal(status, retry_after, 0.0)

    def behave(number: int, arrival: Arrival, now: float) -> Reply | None:
        return refusal if arrival.in_flight > n else base(number, arrival, now)

    return behave


def outage(
    start: float,
    length: float,
    latency: Latency,
    status: int = 503,
    retry_after: RetryAfter = None,
) -> Behaviour:
    """Refuse everything, at once, for ``length`` seconds.

    It begins ``start`` seconds after the host's first arrival. A callable ``retry_after`` is given
    the seconds that remain and makes the header's text.
    """
    base = _behaviour(latency)

    def behave(number: int, arrival: Arrival, now: float) -> Reply | None:
        if start <= now < start + length:
            return _refusal(status, retry_after, start + length - now)
        return base(number, arrival, now)

    return behave


def degrade(start: float, length: float, latency: Latency, slow_latency: Latency) -> Behaviour:
    """Answer slowly for ``length`` seconds from ``start`` seconds after the first arrival."""
    base, slow = _behaviour(latency), _behaviour(slow_latency)

    def behave(number: int, arrival: Arrival, now: float) -> Reply | None:
        return (slow if start <= now < start + length else base)(number, arrival, now)

    return behave


def scripted(replies: Sequence[Reply], then: Reply | None = None) -> Behaviour:
    """Give the n-th arrival the n-th reply, and all later ones ``then`` (None: a plain 200)."""
    script, rest = tuple(replies), then or Reply()

    def behave(number: int, arrival: Arrival, now: float) -> Reply:
        return script[number - 1] if number <= len(script) else rest

    return behave


def after(number: int, latency: Latency, then: Behaviour) -> Behaviour:
    """Answer the first ``number`` arrivals of each host as ``latency`` says, all later ones as
    ``then`` does.

    The clock and the numbers that ``then`` is given begin with the first that it answers: a host in
    trouble from its 21st page on is so for every client, however fast that is.
    """
    base = _behaviour(latency)
    began: dict[str, float] = {}

    def behave(count: int, arrival: Arrival, now: float) -> Reply | None:
        if count <= number:
            return base(count, arrival, now)
        return then(count - number, arrival, now - began.setdefault(arrival.host, now))

    return behave


RateHeaders: TypeAlias = Callable[[int, float], Mapping[str, HeaderValue] | None]


def rate_limit(
    per_second: float,
    burst: int,
    latency: Latency,
    status: int = 429,
    headers: RateHeaders | None = None,
    retry_after: RetryAfter = None,
) -> Behaviour:
    """Refuse, at once, what exceeds a token bucket; a refused request spends no token.

    ``headers`` is called for every answer with the requests left and the seconds until there is
    one more (0.0 when the bucket is full); what it gives is added to the answer. A callable
    ``retry_after`` is given the same seconds. Each host has a bucket of its own.
    """
    base = _behaviour(latency)
    buckets: dict[str, tuple[float, float]] = {}  # host -> tokens, and when that was true

    def behave(number: int, arrival: Arrival, now: float) -> Reply:
        tokens, then = buckets.get(arrival.host, (float(burst), now))
        tokens = min(float(burst), tokens + (now - then) * per_second)
        granted = tokens >= 1
        tokens -= granted
        buckets[arrival.host] = (tokens, now)
        remaining = int(tokens)
        reset = 0.0 if tokens >= burst else (remaining + 1 - tokens) / per_second
        if granted:
            # None would mean the query controls, which could not carry the headers.
            reply = base(number, arrival, now) or query_controls(number, arrival, now)
        else:
            reply = _refusal(status, retry_after, reset)
        extra = headers(remaining, reset) if headers is not None else None
        return replace(reply, headers={**reply.headers, **extra}) if extra else reply

    return behave


def x_ratelimit_headers(remaining: int, reset_s: float) -> dict[str, HeaderValue]:
    """``X-RateLimit-Remaining`` and ``-Reset``, the latter in whole seconds from now."""
    return {
        "X-RateLimit-Remaining": str(remaining),
        "X-RateLimit-Reset": str(math.ceil(reset_s)),
    }


def ratelimit_headers(remaining: int, reset_s: float) -> dict[str, HeaderValue]:
    """The IETF draft's ``RateLimit`` structured field."""
    return {"RateLimit": f'"default";r={remaining};t={math.ceil(reset_s)}'}


def with_body(base: Latency, body: Callable[[Arrival], bytes | None]) -> Behaviour:
    """Give the 200s of ``base`` a body made from the arrival, e.g. pages that link to others."""
    inner = _behaviour(base)

    def behave(number: int, arrival: Arrival, now: float) -> Reply:
        reply = inner(number, arrival, now) or query_controls(number, arrival, now)
        return replace(reply, body=body(arrival)) if reply.status == 200 else reply

    return behave


def _behaviour(latency: Latency) -> Behaviour:
    return latency if callable(latency) else steady(latency)


def _refusal(status: int, retry_after: RetryAfter, remaining: float) -> Reply:
    text = retry_after(remaining) if callable(retry_after) else retry_after
    return Reply(status=status, headers={} if text is None else {"Retry-After": text})
