"""HTTP/2 for the recording origin: its record and behaviours, spoken over TLS by the h2 library.

``OriginThread(behaviours, ssl_context=h2_context(folder), talk=H2Connection)``
"""

from __future__ import annotations

import asyncio
import datetime
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from h2.config import H2Configuration
from h2.connection import H2Connection as H2State
from h2.events import ConnectionTerminated, RequestReceived, StreamReset
from h2.exceptions import ProtocolError

from demo.behaviours import Reply, page
from demo.origin_connection import Service, Talk
from demo.origin_http import Head
from demo.origin_record import Arrival


def h2_context(folder: Path) -> ssl.SSLContext:
    """TLS for a server that speaks nothing but HTTP/2, with a certificate made in ``folder``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_certificate(folder))
    context.set_alpn_protocols(["h2"])
    return context


class H2Connection(Talk):
    """Answers any number of streams at a time, each after its reply's delay.

    Replies have to be whole and small (one frame): ValueError otherwise. The bodies of requests
    are not read. Written with callbacks, so nothing is pending once the connection is closed.

    Mutable state: ``_streams``, the requests being answered and their timers.
    """

    _transport: asyncio.Transport

    def __init__(self, service: Service, number: int) -> None:
        self._service = service
        self._number = number
        self._loop = asyncio.get_running_loop()
        self._state = H2State(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._streams: dict[int, tuple[Arrival | None, asyncio.TimerHandle]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._service.connections.add(self)
        if transport.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
            self.abort()  # what it says would not be HTTP/2
            return
        self._state.initiate_connection()
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            events = self._state.receive_data(data)
        except ProtocolError:
            self._flush()  # says why
            self._transport.close()
            return
        for event in events:
            if isinstance(event, RequestReceived):
                self._arrive(event)
            elif isinstance(event, StreamReset):
                self._leave(event.stream_id, completed=False)
            elif isinstance(event, ConnectionTerminated):
                self._transport.close()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        for stream in tuple(self._streams):
            self._leave(stream, completed=False)
        self._transport.close()  # Python 3.10's TLS does not know it when the client went first
        self._service.connections.discard(self)

    def abort(self) -> None:
        self._transport.abort()

    def _arrive(self, event: RequestReceived) -> None:
        fields = dict(event.headers or ())
        host = fields[":authority"].rpartition(":")[0]
        head = Head(fields[":method"], host, fields[":path"], fields, False, True, 0, False)
        port = self._transport.get_extra_info("sockname")[1]
        arrival, reply = self._service.take(head, port, self._number)
        most = self._state.max_outbound_frame_size
        if reply.end is not None or reply.body_time > 0 or len(reply.body or b"") > most:
            if arrival is not None:
                self._service.recorder.leave(arrival, completed=False)
            raise ValueError(f"{reply}: only whole answers of up to {most} bytes are spoken here")
        timer = self._loop.call_later(reply.delay, self._answer, event.stream_id, reply)
        self._streams[event.stream_id] = arrival, timer

    def _answer(self, stream: int, reply: Reply) -> None:
        arrival, _ = self._streams[stream]
        if arrival is not None:
            self._service.recorder.answering(arrival, reply.status)
        body = page() if reply.body is None else reply.body
        fields = {":status": str(reply.status), "content-length": str(len(body))}
        fields |= {name.lower(): str(value) for name, value in reply.headers.items()}
        self._state.send_headers(stream, list(fields.items()))
        self._state.send_data(stream, body, end_stream=True)
        # Before the write: a client that reacts at once must not look like an overlap.
        self._leave(stream, completed=True)
        self._flush()

    def _leave(self, stream: int, *, completed: bool) -> None:
        arrival, timer = self._streams.pop(stream, (None, None))
        if timer is not None:
            timer.cancel()
        if arrival is not None:
            self._service.recorder.leave(arrival, completed=completed)

    def _flush(self) -> None:
        self._transport.write(self._state.data_to_send())


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody has signed, and its key, as files in ``folder``."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files
