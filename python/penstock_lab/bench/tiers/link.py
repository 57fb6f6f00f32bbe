"""A TCP proxy with a limited bandwidth, in front of a store."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack, suppress

HOST = "127.0.0.1"
PATIENCE_S = 60.0


class Link:
    """A TCP proxy on loopback in front of `target` (host and port), on a thread. It passes at most
    `rate` bytes per second in each direction, over all connections together.
    """

    def __init__(self, target: tuple[str, int], rate: float) -> None:
        self._target = target
        self._rate = rate
        self._free = [0.0, 0.0]
        """For each direction, the time when the bytes queued so far will have been sent."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Link:
        self._thread.start()
        started = asyncio.start_server(self._connected, HOST, 0)
        self._server = asyncio.run_coroutine_threadsafe(started, self._loop).result(PATIENCE_S)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        open_ = asyncio.all_tasks() - {asyncio.current_task()}
        for task in open_:
            task.cancel()
        await asyncio.gather(*open_, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with ExitStack() as stack:
            stack.callback(writer.close)
            with suppress(OSError):
                there, back = await asyncio.open_connection(*self._target)
                stack.callback(back.close)
                ways = (self._pass(0, reader, back), self._pass(1, there, writer))
                await asyncio.gather(*ways)

    async def _pass(
        self, way: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(1 << 16):
            begin = max(self._free[way], time.monotonic())
            self._free[way] = begin + len(data) / self._rate
            await asyncio.sleep(self._free[way] - time.monotonic())
            writer.write(data)
            await writer.drain()
        writer.write_eof()
