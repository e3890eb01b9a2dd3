"""A real Redis server for tests: the example project's, which can hang and tell what it holds."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from demo.redis_process import NoServerError, RedisProcess, free_port

__all__ = ["RedisServer", "free_port"]


class RedisServer(RedisProcess):
    """One server, which starts empty again after it was killed."""

    def __init__(self, *options: str) -> None:
        """Without a server to start, CI fails and a laptop skips."""
        try:
            super().__init__(*options)
        except NoServerError as error:
            if os.environ.get("CI"):
                pytest.fail(str(error))
            pytest.skip(str(error))

    def hang(self) -> None:
        """It accepts connections (the kernel does) and never answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def command(self, *words: str) -> Any:
        """What the server says to one command, over a connection of its own."""
        import redis

        with redis.Redis(port=self.port, socket_timeout=5, decode_responses=True) as client:
            return client.execute_command(*words)

    def keys(self) -> dict[str, int]:
        """Every key, and how many milliseconds it has left (-1: no end)."""
        return {key: self.command("PTTL", key) for key in self.command("KEYS", "*")}
