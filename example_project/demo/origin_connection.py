"""One client connection of the origin.

Written with callbacks instead of tasks: a request is counted, judged and (without a delay)
answered in the very call that delivered its last byte, so no other request can slip in between;
and there is nothing that could still be pending when the server stops.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from .behaviours import Reply, page
from .origin_http import MAX_HEAD_BYTES, BadRequestError, Head, has_body, response_head, take_head
from .origin_record import Arrival, Recorder

PIECE_BYTES = 64 * 1024
TRICKLE_STEP_S = 0.02
LINGER_S = 1.0
_GARBAGE = b"\x00\xff\x7f these bytes are not HTTP \x00\xff\r\n\r\n"


class Talk(asyncio.Protocol):
    """What the server needs from a connection, whichever HTTP it speaks."""

    def abort(self) -> None:
        """Drop the connection at once."""
        raise NotImplementedError


class Service(Protocol):
    """What a connection needs from its server."""

    recorder: Recorder
    connections: set[Talk]
    malformed: int

    def take(self, head: Head, port: int, connection: int) -> tuple[Arrival | None, Reply]:
        """Count a request in and say how to answer; no Arrival for one that is not recorded."""


@dataclass
class _Exchange:
    head: Head
    arrival: Arrival | None
    reply: Reply
    body_left: int
    answering: bool = False


class Connection(Talk):
    """Reads requests and answers them one at a time.

    The client's end of stream counts as its leaving, also if it only closed its sending half.

    Mutable state: ``_buffer`` (unread bytes), ``_exchange`` (the request being read or answered),
    ``_timer`` (the wait before the next step of its answer), ``_pieces`` (what is still to be
    written) with ``_piece_gap`` seconds between them, ``_paused`` (the client reads too slowly),
    ``_discarding`` (the conversation is over, only the close is outstanding).
    """

    _transport: asyncio.Transport

    def __init__(self, service: Service, number: int) -> None:
        self._service = service
        self._number = number
        self._port = 0
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._exchange: _Exchange | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pieces: deque[bytes] = deque()
        self._piece_gap = 0.0
        self._paused = False
        self._discarding = False

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # Nothing is kept in this process: a body counts as sent only when the kernel has it.
        # (Not 0, with which asyncio's TLS holds an empty buffer to be a full one.)
        transport.set_write_buffer_limits(high=1)
        # asyncio does this only for sockets whose listener was made with an explicit IPPROTO_TCP.
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._port = transport.get_extra_info("sockname")[1]
        self._service.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        self._buffer += data
        busy = self._exchange is not None and self._exchange.answering
        if busy and len(self._buffer) > 2 * MAX_HEAD_BYTES:
            self.abort()  # reading must go on, or the client's leaving would not be seen
        else:
            self._advance()

    def eof_received(self) -> None:
        self._client_left()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client_left()
        self._transport.close()  # Python 3.10's TLS does not know it when the client went first
        self._service.connections.discard(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._pieces and self._timer is None:
            self._pump()

    def abort(self) -> None:
        """Drop the connection at once."""
        self._client_left()
        self._transport.abort()

    # Reading.

    def _advance(self) -> None:
        if self._discarding:
            return
        if self._exchange is None:
            try:
                head = take_head(self._buffer)
            except BadRequestError as error:
                self._reject(error)
                return
            if head is None:
                return
            arrival, reply = self._service.take(head, self._port, self._number)
            self._exchange = _Exchange(head, arrival, reply, head.body_bytes)
            if head.expects_continue and len(self._buffer) < head.body_bytes:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        exchange = self._exchange
        if exchange.answering:
            return
        dropped = min(exchange.body_left, len(self._buffer))
        del self._buffer[:dropped]
        exchange.body_left -= dropped
        if exchange.body_left == 0:
            exchange.answering = True
            self._answer(exchange)

    def _reject(self, error: BadRequestError) -> None:
        self._service.malformed += 1
        body = f"bad request: {error}\n".encode()
        self._transport.write(response_head(400, len(body), {}, keep_alive=False) + body)
        self._discarding = True
        # Closing with unread input would send an RST, and that may overtake the 400.
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._timer = self._loop.call_later(LINGER_S, self._transport.close)
        else:
            self._transport.close()

    # Answering.

    def _answer(self, exchange: _Exchange) -> None:
        if exchange.reply.end == "hang":
            return
        if exchange.reply.delay > 0:
            self._timer = self._loop.call_later(exchange.reply.delay, self._send, exchange)
        else:
            self._send(exchange)

    def _send(self, exchange: _Exchange) -> None:
        self._timer = None
        reply = exchange.reply
        if reply.end == "reset":
            self._leave(exchange, completed=False)
            self._reset()
        elif reply.end in ("close", "garbage"):
            self._leave(exchange, completed=False)
            self._close_after(_GARBAGE if reply.end == "garbage" else b"")
        else:
            if exchange.arrival is not None:
                self._service.recorder.answering(exchange.arrival, reply.status)
            self._pieces, self._piece_gap = _cut(exchange)
            self._pump()

    def _pump(self) -> None:
        self._timer = None
        exchange = self._exchange
        assert exchange is not None
        while self._pieces and not self._paused:
            piece = self._pieces.popleft()
            if not self._pieces:
                self._send_last(exchange, piece)
                return
            self._transport.write(piece)
            if self._piece_gap > 0:
                self._timer = self._loop.call_later(self._piece_gap, self._pump)
                return

    def _send_last(self, exchange: _Exchange, piece: bytes) -> None:
        whole = exchange.reply.end is None
        # Before the write: a client that reacts at once must not look like an overlap.
        self._leave(exchange, completed=whole)
        if not (whole and _keeps_alive(exchange)):
            self._close_after(piece)
            return
        self._transport.write(piece)
        if self._buffer:  # a pipelined request; by way of the loop, so as not to recurse
            self._loop.call_soon(self._advance)

    def _leave(self, exchange: _Exchange, *, completed: bool) -> None:
        self._exchange = None
        if exchange.arrival is not None:
            self._service.recorder.leave(exchange.arrival, completed=completed)

    def _client_left(self) -> None:
        self._discarding = True
        self._pieces.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._exchange is not None:
            self._leave(self._exchange, completed=False)

    def _close_after(self, last_bytes: bytes) -> None:
        self._discarding = True
        if last_bytes:
            self._transport.write(last_bytes)
        self._transport.close()

    def _reset(self) -> None:
        self._discarding = True
        # Lingering for zero seconds makes the kernel send an RST instead of a FIN.
        linger = struct.pack("ii", 1, 0)
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._transport.abort()


def _keeps_alive(exchange: _Exchange) -> bool:
    asked = {name.lower(): value for name, value in exchange.reply.headers.items()}
    return exchange.head.keep_alive and asked.get("connection") != "close"


def _cut(exchange: _Exchange) -> tuple[deque[bytes], float]:
    """Head and body as the pieces to write, and the seconds between them."""
    reply = exchange.reply
    body = page() if reply.body is None else reply.body
    if reply.end == "mid" and not body:
        body = page()  # something has to be promised before it can be withheld
    head = response_head(
        reply.status, len(body), reply.headers, keep_alive=exchange.head.keep_alive
    )
    if not has_body(exchange.head.method, reply.status):
        body = b""
    elif reply.end == "mid":
        body = body[: len(body) // 2]
    if not body:
        return deque([head]), 0.0
    if reply.body_time > 0:
        count = min(len(body), max(1, round(reply.body_time / TRICKLE_STEP_S)))
        size = -(-len(body) // count)
        pieces = [body[i : i + size] for i in range(0, len(body), size)]
        return deque([head, *pieces]), reply.body_time / len(pieces)
    pieces = [body[i : i + PIECE_BYTES] for i in range(0, len(body), PIECE_BYTES)]
    return deque([head + pieces[0], *pieces[1:]]), 0.0
