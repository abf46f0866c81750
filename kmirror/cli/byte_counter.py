"""A TCP relay that counts what passes through it, so that the demo can say how many bytes a failback moved.

It stands between a broker and whoever was told its address (`advertised.listeners`), and looks at nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

CHUNK_BYTES = 64 * 1024


class ByteCounter:
    """`address`: where to connect. `target` has to be set before anybody does."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.target: tuple[str, int] | None = None
        self.sent_bytes = 0
        """What the broker behind it has answered."""

    async def relay(self, client: trio.SocketStream) -> None:
        assert self.target is not None
        try:
            broker = await trio.open_tcp_stream(*self.target)
        except OSError:
            return  # it is gone; the client sees its connection end
        async with client, broker, trio.open_nursery() as nursery:
            nursery.start_soon(self._pump, client, broker, False, nursery.cancel_scope)
            nursery.start_soon(self._pump, broker, client, True, nursery.cancel_scope)

    async def _pump(
        self, source: trio.SocketStream, sink: trio.SocketStream, counted: bool, both: trio.CancelScope
    ) -> None:
        """Until one side ends; then the other direction has nobody to talk to."""
        try:
            while data := await source.receive_some(CHUNK_BYTES):
                if counted:
                    self.sent_bytes += len(data)
                await sink.send_all(data)
        except trio.BrokenResourceError:
            pass  # one side hung up in the middle of something
        both.cancel()


@asynccontextmanager
async def byte_counter() -> AsyncIterator[ByteCounter]:
    """Listens on a free port of loopback for as long as the block runs."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    counter = ByteCounter(f"127.0.0.1:{listeners[0].socket.getsockname()[1]}")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, counter.relay, listeners)
        yield counter
        nursery.cancel_scope.cancel()
