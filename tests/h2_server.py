"""A real HTTP/2 server (Hypercorn) on a free loopback port, in a thread, with its own record."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis_server import free_port

START_TIMEOUT_S = 30.0
Answer = Callable[[int, str], tuple[int, dict[str, str]]]


@dataclass
class H2Record:
    """What the server saw. ``connections`` are the clients' ports."""

    arrivals: list[tuple[float, str, int]] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)
    connections: set[int] = field(default_factory=set)
    in_flight: int = 0
    peak: int = 0


class H2Server:
    """Answers every request after ``latency_s``, with what ``answer(number, path)`` says.

    A context manager; ``record`` may be read at any time.
    """

    def __init__(self, folder: Path, latency_s: float, answer: Answer | None = None) -> None:
        self.record = H2Record()
        self.port = free_port()
        self._latency_s = latency_s
        self._answer = answer or (lambda number, path: (200, {}))
        self._files = make_certificate(folder)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._up = threading.Event()
        self._serving: asyncio.Task[None]

    def url(self, path: str) -> str:
        return f"https://127.0.0.1:{self.port}{path}"

    def __enter__(self) -> H2Server:
        self._thread.start()
        assert self._up.wait(START_TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(3)
        if self._thread.is_alive():
            # It waits for clients that keep their connections.
            self._loop.call_soon_threadsafe(self._serving.cancel)
            self._thread.join(START_TIMEOUT_S)

    def _run(self) -> None:
        from hypercorn.asyncio import serve
        from hypercorn.config import Config

        config = Config()
        config.bind = [f"127.0.0.1:{self.port}"]
        config.certfile, config.keyfile = map(str, self._files)
        config.accesslog = config.errorlog = None
        # A busy machine must not look like a client that has gone.
        config.keep_alive_timeout = 20
        config.graceful_timeout = config.shutdown_timeout = 0.5
        asyncio.set_event_loop(self._loop)
        self._serving = self._loop.create_task(
            serve(self._app, config, shutdown_trigger=self._stop.wait, mode="asgi")  # type: ignore[arg-type]
        )
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serving)
        rest = asyncio.all_tasks(self._loop)
        for task in rest:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
        self._loop.close()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            self._up.set()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        record = self.record
        record.versions.add(scope["http_version"])
        record.connections.add(scope["client"][1])
        record.in_flight += 1
        record.peak = max(record.peak, record.in_flight)
        status, headers = self._answer(len(record.arrivals) + 1, scope["path"])
        record.arrivals.append((self._loop.time(), scope["path"], status))
        try:
            await asyncio.sleep(self._latency_s)
            lines = [(name.encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": status, "headers": lines})
        finally:
            record.in_flight -= 1
        await send({"type": "http.response.body", "body": b"ok"})


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
