"""The little HTTP/1.1 that the origin needs: read a request head, write a response head."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import urlsplit

from .behaviours import HeaderValue

MAX_HEAD_BYTES = 32 * 1024
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REQUEST_LINE = re.compile(r"([A-Z]+) (\S+) HTTP/1\.([01])")


class BadRequestError(ValueError):
    """What was sent is not a request that this server can answer."""


@dataclass(frozen=True)
class Head:
    """A request's head. ``host`` is in lower case, without port; ``path`` has its query."""

    method: str
    host: str
    path: str
    headers: dict[str, str]  # names in lower case, repeated ones joined by ", "
    proxied: bool
    keep_alive: bool
    body_bytes: int
    expects_continue: bool


def take_head(buffer: bytearray) -> Head | None:
    """Remove one request head from the buffer; None while it is incomplete.

    Raises BadRequestError as soon as it can be known that no valid head will come of it.
    """
    while buffer.startswith(b"\r\n"):  # left over after the body of a careless client
        del buffer[:2]
    if buffer and not 0x41 <= buffer[0] <= 0x5A:
        raise BadRequestError("does not begin with a method")  # e.g. TLS on a plain port
    end = buffer.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    if end < 0:
        if len(buffer) >= MAX_HEAD_BYTES:
            raise BadRequestError(f"head larger than {MAX_HEAD_BYTES} bytes")
        if b"\n\n" in buffer:
            raise BadRequestError("lines must end with CRLF")
        return None
    lines = buffer[:end].decode("latin-1").split("\r\n")
    del buffer[: end + 4]
    return _parse(lines[0], _headers(lines[1:]))


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or "\n" in value or "\0" in value:
            raise BadRequestError(f"header line {line[:80]!r}")
        key, value = name.lower(), value.strip()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return headers


def _parse(request_line: str, headers: dict[str, str]) -> Head:
    match = _REQUEST_LINE.fullmatch(request_line)
    if match is None:
        raise BadRequestError(f"request line {request_line[:80]!r}")
    method, target, minor = match.groups()
    host, path, proxied = _locate(method, target, headers.get("host", ""))
    connection = {option.strip().lower() for option in headers.get("connection", "").split(",")}
    return Head(
        method=method,
        host=host,
        path=path,
        headers=headers,
        proxied=proxied,
        keep_alive="close" not in connection and (minor == "1" or "keep-alive" in connection),
        body_bytes=_body_bytes(headers),
        expects_continue=headers.get("expect", "").lower() == "100-continue",
    )


def _locate(method: str, target: str, host_header: str) -> tuple[str, str, bool]:
    if method == "CONNECT":
        return _host_of(f"//{target}"), target, True
    if target.startswith("/") or target == "*":
        return _host_of(f"//{host_header}"), target, False
    host = _host_of(target)
    parts = urlsplit(target)
    if parts.scheme not in ("http", "https"):
        raise BadRequestError(f"target {target[:80]!r}")
    return host, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), True


def _host_of(url: str) -> str:
    try:
        host = urlsplit(url).hostname
    except ValueError as error:
        raise BadRequestError(f"host: {error}") from error
    if not host:
        raise BadRequestError("no host")
    return host


def _body_bytes(headers: Mapping[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise BadRequestError("request bodies need a Content-Length here")
    text = headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise BadRequestError(f"Content-Length {text[:80]!r}")
    return int(text)


def response_head(
    status: int, body_bytes: int, headers: Mapping[str, HeaderValue], *, keep_alive: bool
) -> bytes:
    """Status line and headers; the given ones replace the default ones of the same name."""
    merged: dict[str, tuple[str, HeaderValue]] = {
        "date": ("Date", formatdate(usegmt=True)),
        "content-type": ("Content-Type", "text/html; charset=utf-8"),
        "content-length": ("Content-Length", str(body_bytes)),
        "connection": ("Connection", None if keep_alive else "close"),
    }
    if not has_body("GET", status) and status != 304:
        merged["content-length"] = ("Content-Length", None)
    merged.update({name.lower(): (name, value) for name, value in headers.items()})
    lines = [f"HTTP/1.1 {status} {_phrase(status)}"]
    for name, value in merged.values():
        for text in () if value is None else (value,) if isinstance(value, str) else value:
            # A control such as ra=%0d%0a must not be able to end the head.
            lines.append(f"{name}: {text}".replace("\r", " ").replace("\n", " "))
    return "\r\n".join([*lines, "", ""]).encode()


def has_body(method: str, status: int) -> bool:
    """Whether a body follows the head of such an answer."""
    return method != "HEAD" and status not in (204, 304)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Status"
