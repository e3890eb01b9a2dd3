"""A web server that records exactly what reaches it, and can behave badly on request.

For tests, benchmarks and the example project: its record is what a crawler is judged by.
Every ``127.x.y.z`` address is a host of its own on one listener, so no DNS is needed. It is
also a plain HTTP proxy that answers in the target's place.

In the same process, on a thread of its own::

    with OriginThread({"127.0.0.2": refuse_above(3, latency=0.1)}) as origin:
        crawl(origin.url("127.0.0.2", "/page"))
        assert origin.record("127.0.0.2").peak <= 2

As a process: ``python -m demo.origin --config CONFIG.json`` (see :mod:`demo.origin_config`), or
:func:`start_process`. ``GET /__record__`` answers the whole record as JSON, ``POST /__stop__``
ends the server; neither is recorded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import ssl
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeAlias

from .behaviours import Behaviour, Reply, query_controls
from .origin_config import ConfigError, OriginConfig, load_config
from .origin_connection import Connection, Service, Talk
from .origin_http import Head
from .origin_process import OriginProcess, start_process
from .origin_record import Arrival, HostRecord, Recorder

__all__ = [
    "Arrival",
    "HostRecord",
    "Origin",
    "OriginProcess",
    "OriginThread",
    "main",
    "start_process",
]

Talker: TypeAlias = Callable[[Service, int], Talk]

_BACKLOG = 1024
_CONNECT = "CONNECT "  # no host name has a space, so these keys cannot collide with hosts


class Origin:
    """The server. ``start`` and ``stop`` belong to its loop; the rest may be used by any thread.

    ``behaviours``: by host, ``"*"`` for all others; none means the query controls of the URL.
    Kept as the attribute ``behaviours``, which may be changed while the server runs.
    ``hosts``: addresses to listen on. ``ports``: how many free ports, or exactly which; all
    share one record. ``connect_status``: the answer to CONNECT, which is kept apart from the
    target's record because it is a proxy's word and not the host's.
    ``talk``: makes what speaks on one connection, of the server and the connection's number.

    Mutable state: ``behaviours``, ``recorder``, ``connections``, ``ports``, ``malformed`` (how many
    requests were answered 400), ``errors`` (what behaviours raised), ``stop_requested``,
    ``_listeners``, ``_handshakes`` (connections being set up).
    """

    def __init__(
        self,
        behaviours: Mapping[str, Behaviour] | None = None,
        *,
        hosts: Sequence[str] = ("0.0.0.0",),
        ports: int | Sequence[int] = 1,
        ssl_context: ssl.SSLContext | None = None,
        connect_status: int = 503,
        talk: Talker = Connection,
    ) -> None:
        self.behaviours: dict[str, Behaviour] = dict(behaviours or {})
        self.recorder = Recorder()
        self.connections: set[Talk] = set()
        self.ports: tuple[int, ...] = ()
        self.malformed = 0
        self.errors: list[Exception] = []
        self.stop_requested = asyncio.Event()
        self._listen_on = tuple(hosts)
        self._wanted_ports = (0,) * ports if isinstance(ports, int) else tuple(ports)
        self._ssl_context = ssl_context
        self._talk = talk
        self._connect_reply = Reply(status=connect_status, body=b"")
        self._listeners: list[socket.socket] = []
        self._handshakes: set[asyncio.Task[Any]] = set()
        self._connection_numbers = itertools.count(1)

    async def start(self) -> None:
        """Listen. Raises OSError if an address or a wanted port cannot be had."""
        loop = asyncio.get_running_loop()
        self.recorder.started_at = time.monotonic()
        groups: list[list[socket.socket]] = []
        try:
            for port in self._wanted_ports:
                groups.append(_bind(self._listen_on, port))
        except OSError:
            for sock in itertools.chain(*groups):
                sock.close()
            raise
        self.ports = tuple(group[0].getsockname()[1] for group in groups)
        for listener in itertools.chain(*groups):
            loop.add_reader(listener, self._accept, listener)
            self._listeners.append(listener)

    async def stop(self) -> None:
        """Close the listeners and drop every connection; the record stays readable."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        await asyncio.sleep(0)  # a task cancelled before its first step would leak its socket
        for task in self._handshakes:
            task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)
        for _ in range(3):  # turns in which what was cancelled closes its transports
            await asyncio.sleep(0)
        while self.connections:
            for connection in tuple(self.connections):
                connection.abort()
            await asyncio.sleep(0)

    @property
    def port(self) -> int:
        """The first port. Raises IndexError before the server has started."""
        return self.ports[0]

    def url(self, host: str, path: str = "/", port: int | None = None) -> str:
        """The URL of a path on a host, on the first port unless another is given."""
        scheme = "http" if self._ssl_context is None else "https"
        name = f"[{host}]" if ":" in host else host
        return f"{scheme}://{name}:{port or self.port}{path}"

    def record(self, host: str) -> HostRecord:
        """A snapshot of what reached the host, given in lower case without port or brackets."""
        return self.recorder.snapshot(host)

    def connects(self, host: str) -> HostRecord:
        """A snapshot of the CONNECT requests for the host."""
        return self.recorder.snapshot(_CONNECT + host)

    def records(self) -> dict[str, HostRecord]:
        """Snapshots of all hosts that something reached; CONNECT requests are not among them."""
        hosts = [host for host in self.recorder.hosts() if not host.startswith(_CONNECT)]
        return {host: self.record(host) for host in hosts}

    def take(self, head: Head, port: int, connection: int) -> tuple[Arrival | None, Reply]:
        """Count a request in and decide how to answer it (called by the connection)."""
        control = self._control(head)
        if control is not None:
            return None, control
        tunnel = head.method == "CONNECT"
        arrival, now = self.recorder.arrive(
            _CONNECT + head.host if tunnel else head.host,
            head.path,
            port,
            method=head.method,
            headers=head.headers,
            proxied=head.proxied,
            connection=connection,
        )
        return arrival, self._connect_reply if tunnel else self._decide(arrival, now)

    def _decide(self, arrival: Arrival, now: float) -> Reply:
        behaviour = self.behaviours.get(arrival.host) or self.behaviours.get("*")
        try:
            reply = behaviour(arrival.number, arrival, now) if behaviour else None
        except Exception as error:
            self.errors.append(error)
            return Reply(status=500, body=traceback.format_exc().encode())
        return query_controls(arrival.number, arrival, now) if reply is None else reply

    def _control(self, head: Head) -> Reply | None:
        if (head.method, head.path) == ("GET", "/__record__"):
            report = {
                "now": time.monotonic(),
                "malformed": self.malformed,
                "errors": [repr(error) for error in self.errors],
                "hosts": {host: record.as_json() for host, record in self.records().items()},
                "connects": {
                    key.removeprefix(_CONNECT): self.record(key).as_json()
                    for key in self.recorder.hosts()
                    if key.startswith(_CONNECT)
                },
            }
            headers = {"Content-Type": "application/json"}
            return Reply(headers=headers, body=json.dumps(report).encode())
        if (head.method, head.path) == ("POST", "/__stop__"):
            self.stop_requested.set()
            return Reply(body=b"stopping\n")
        return None

    # asyncio's own Server cannot be closed while it is accepting without an error in the log.

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_BACKLOG):
            try:
                sock, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            sock.setblocking(False)
            task = loop.create_task(
                loop.connect_accepted_socket(self._connection, sock, ssl=self._ssl_context)
            )
            self._handshakes.add(task)
            task.add_done_callback(self._accepted)

    def _accepted(self, task: asyncio.Task[Any]) -> None:
        self._handshakes.discard(task)
        if not task.cancelled():
            task.exception()  # a failed TLS handshake is the client's affair

    def _connection(self) -> Talk:
        return self._talk(self, next(self._connection_numbers))


class OriginThread:
    """Runs an :class:`Origin` (same arguments) on a loop in a daemon thread.

    As a context manager it gives the Origin. Leaving it raises RuntimeError if a behaviour raised.
    ``start`` and ``stop`` are for a server that has to end in mid-test; each may be called once.
    """

    def __init__(
        self,
        behaviours: Mapping[str, Behaviour] | None = None,
        *,
        hosts: Sequence[str] = ("0.0.0.0",),
        ports: int | Sequence[int] = 1,
        ssl_context: ssl.SSLContext | None = None,
        connect_status: int = 503,
        talk: Talker = Connection,
    ) -> None:
        self.origin = Origin(
            behaviours,
            hosts=hosts,
            ports=ports,
            ssl_context=ssl_context,
            connect_status=connect_status,
            talk=talk,
        )
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="origin", daemon=True)

    def start(self) -> Origin:
        """Start the thread and wait until the server listens; raises what kept it from that."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self.origin

    def stop(self, timeout: float = 10.0) -> None:
        """Stop the server and wait for its thread; raises RuntimeError after ``timeout`` s."""
        if self._loop is not None and self._thread.is_alive():
            # POST /__stop__ may be quicker, and then the loop is closed already.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.origin.stop_requested.set)
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise RuntimeError(f"the origin's thread has not ended within {timeout} s")
        if self._failure is not None:
            raise RuntimeError("the origin failed") from self._failure

    def __enter__(self) -> Origin:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self.origin.errors and error is None:
            raise RuntimeError("a behaviour of the origin failed") from self.origin.errors[0]

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        await self.origin.start()
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        await self.origin.stop_requested.wait()
        await self.origin.stop()


def _bind(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """One socket per host, all on the same port; for 0, one that is free on all of them."""
    for attempt in itertools.count(1):
        sockets: list[socket.socket] = []
        try:
            for host in hosts:
                wanted = sockets[0].getsockname()[1] if sockets else port
                sockets.append(_listener(host, wanted))
            return sockets
        except OSError:
            for sock in sockets:
                sock.close()
            # A port that is free on the first host may be taken on the next: draw again.
            if port != 0 or len(sockets) == 0 or attempt == 20:
                raise
    raise AssertionError("unreachable")


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    return sock


async def _serve_process(config: OriginConfig) -> None:
    origin = Origin(
        config.behaviours,
        hosts=config.listen,
        ports=config.ports,
        connect_status=config.connect_status,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, origin.stop_requested.set)
    await origin.start()
    _stop_at_end_of_stdin(loop, origin.stop_requested)
    ready = {"port": origin.port, "ports": origin.ports, "pid": os.getpid()}
    print(json.dumps(ready), flush=True)
    await origin.stop_requested.wait()
    await origin.stop()


def _stop_at_end_of_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Never outlive a parent that holds our stdin.

    Only a pipe or socket has such a parent. ``< /dev/null`` and a file are at their end from the
    start, and a terminal has its own means.
    """
    if sys.stdin is None:
        return
    fd = sys.stdin.fileno()
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return

    def readable() -> None:
        if not os.read(fd, 4096):
            loop.remove_reader(fd)
            stop.set()

    loop.add_reader(fd, readable)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to stop; 2 with one line on stderr if the configuration is wrong."""
    parser = argparse.ArgumentParser(prog="python -m demo.origin", description="Recording origin.")
    parser.add_argument("--config", required=True, help="JSON file, see demo.origin_config")
    try:
        config = load_config(parser.parse_args(argv).config)
        asyncio.run(_serve_process(config))
    except (ConfigError, OSError) as error:
        print(f"origin: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
