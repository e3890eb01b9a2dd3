"""The origin as a child process: its own interpreter, so a busy crawler cannot slow it down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any
from urllib.request import ProxyHandler, build_opener

from .origin_record import HostRecord

_PROJECT_DIR = Path(__file__).resolve().parent.parent


class OriginProcess:
    """A running origin. A context manager that ends it; it also ends when this process dies."""

    def __init__(self, process: subprocess.Popen[str], ports: tuple[int, ...]) -> None:
        self._process = process
        self.pid = process.pid
        self.ports = ports
        self.port = ports[0]

    def url(self, host: str, path: str = "/", port: int | None = None) -> str:
        """The URL of a path on a host, on the first port unless another is given."""
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{port or self.port}{path}"

    def report(self, host: str = "127.0.0.1") -> dict[str, Any]:
        """What ``GET /__record__`` answers: hosts, connects, malformed, errors, now.

        ``host`` is the address to ask at, if it does not listen on the usual one. Raises OSError
        if the process is gone.
        """
        # The environment may name a proxy, which would not know this machine's loopback.
        opener = build_opener(ProxyHandler({}))
        with opener.open(self.url(host, "/__record__"), timeout=30) as response:
            report: dict[str, Any] = json.load(response)
        return report

    def records(self) -> dict[str, HostRecord]:
        """Snapshots of all hosts that something reached."""
        hosts = self.report()["hosts"]
        return {host: HostRecord.from_json(data) for host, data in hosts.items()}

    def record(self, host: str) -> HostRecord:
        """A snapshot of one host; an empty one if nothing reached it."""
        return self.records().get(host, HostRecord(host))

    def stop(self, timeout: float = 5.0) -> int:
        """End it, by its own pid, as gently as it lets us; gives its exit status."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return self._process.wait()

    def __enter__(self) -> OriginProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def start_process(config: Mapping[str, Any], timeout: float = 20.0) -> OriginProcess:
    """Start ``python -m demo.origin`` with a configuration and wait until it listens.

    Raises RuntimeError with its error output if it does not within ``timeout`` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="origin-") as folder, tempfile.TemporaryFile() as log:
        path = Path(folder, "config.json")
        path.write_text(json.dumps(config), encoding="utf-8")
        process = _spawn(path, log)
        impatience = threading.Timer(timeout, process.kill)
        impatience.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
        finally:
            impatience.cancel()
            impatience.join()
        if line:
            return OriginProcess(process, tuple(json.loads(line)["ports"]))
        status = OriginProcess(process, (0,)).stop()
        log.seek(0)
        said = log.read().decode(errors="replace").strip()
    raise RuntimeError(f"the origin ended with status {status}: {said or 'no word of why'}")


def _spawn(config: Path, log: IO[bytes]) -> subprocess.Popen[str]:
    inherited = os.environ.get("PYTHONPATH")
    search = os.pathsep.join([str(_PROJECT_DIR), *([inherited] if inherited else [])])
    return subprocess.Popen(
        [sys.executable, "-m", "demo.origin", "--config", str(config)],
        cwd=_PROJECT_DIR,
        env={**os.environ, "PYTHONPATH": search},
        stdin=subprocess.PIPE,  # held open: its end tells the child that we are gone
        # A Ctrl-C in the terminal is for us alone: the record has to outlive the crawl.
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
