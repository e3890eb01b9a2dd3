"""A TCP proxy before a Redis server that delays, cuts, garbles or swallows what passes."""

from __future__ import annotations

import asyncio
import contextlib
import threading

_ERRORS = {
    "READONLY": b"-READONLY You can't write against a read only replica.\r\n",
    "LOADING": b"-LOADING Redis is loading the dataset in memory\r\n",
    "OOM": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "CROSSSLOT": b"-CROSSSLOT Keys in request don't hash to the same slot\r\n",
    "MOVED": b"-MOVED 3999 127.0.0.1:1\r\n",
}


class RedisProxy:
    """Set its attributes at any time; they hold for every connection from then on.

    ``delay_s``: seconds each way. ``error``: a name of :data:`_ERRORS`, answered to every command.
    ``mute``: swallow all answers. ``cut_at``: break the connection after so many bytes of replies,
    once. ``down``: close every connection, also those that come.
    """

    def __init__(self, target_port: int) -> None:
        self.delay_s = 0.0
        self.error: str | None = None
        self.mute = False
        self.cut_at: int | None = None
        self.cuts = 0
        self.replies = 0
        """Bytes of replies that have passed."""
        self.port = 0
        self._down = False
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> RedisProxy:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def down(self) -> bool:
        return self._down

    @down.setter
    def down(self, value: bool) -> None:
        self._down = value
        if value:
            self._loop.call_soon_threadsafe(self._break_all)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopped.wait()
        server.close()
        self._break_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _break_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if not self._down:
                await self._pass_on(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers.add(forth)
        both = [
            asyncio.ensure_future(self._requests(reader, forth, writer)),
            asyncio.ensure_future(self._replies(back, writer)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            self._writers.discard(forth)
            forth.transport.abort()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        forth: asyncio.StreamWriter,
        writer: asyncio.StreamWriter,
    ) -> None:
        while data := await reader.read(65536):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if self.error is not None:
                writer.write(_ERRORS[self.error])
                continue
            forth.write(data)
            with contextlib.suppress(OSError):
                await forth.drain()

    async def _replies(self, back: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await back.read(65536):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if self.mute:
                continue
            if self.cut_at is not None and self.replies + len(data) > self.cut_at:
                data = data[: max(0, self.cut_at - self.replies)]
                self.cut_at, self.cuts = None, self.cuts + 1
                writer.write(data)
                await asyncio.sleep(0.01)
                writer.transport.abort()
                return
            self.replies += len(data)
            writer.write(data)
