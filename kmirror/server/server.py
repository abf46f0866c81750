"""The connections of one broker and what they share: routes, buffers, budget, limits. L4.

What must hold: background tasks live in the nursery that `run` was given, so they end with the application; nothing
here knows an API.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from kmirror.broker.world import World
from kmirror.limits import REQUEST_BUDGET_BYTES, THREADS_FOR_LARGE_BATCHES
from kmirror.server.connection import Connection
from kmirror.server.context import Peer
from kmirror.server.receive import BufferPool, ByteBudget
from kmirror.server.routes import Routes
from kmirror.storage.open_files import connections_limit

log = logging.getLogger("kmirror.server")


class Pusher:
    """Connections whose replies became ready. Inside a commit round they are collected, so that each of them sends
    everything the round released in one call."""

    def __init__(self) -> None:
        self._collecting = False
        self._ready: dict[Connection, None] = {}

    def ready(self, connection: Connection) -> None:
        if self._collecting:
            self._ready[connection] = None
        else:
            connection.push()

    def begin(self) -> None:
        self._collecting = True

    def end(self) -> None:
        self._collecting = False
        ready, self._ready = self._ready, {}
        for connection in ready:
            connection.push()


class Server:
    def __init__(
        self,
        world: World,
        *,
        fatal: Callable[[BaseException], None],
        threads: bool = True,
    ) -> None:
        """`fatal` is told a failure after which the process must stop. `threads` false: simulated runs."""
        config = world.config
        budget_bytes = config.integer("queued.max.request.bytes")
        self.world = world
        self.fatal = fatal
        self.threads = threads
        self.routes = Routes(lambda: world.image.mirroring_enabled)
        self.pusher = Pusher()
        self.pool = BufferPool()
        self.budget = ByteBudget(budget_bytes if budget_bytes > 0 else REQUEST_BUDGET_BYTES)
        self.max_frame_bytes = config.integer("socket.request.max.bytes")
        self.connections: set[Connection] = set()
        self.hold: Callable[[], None] = _nothing
        """Called before a request is handled, `release` after it: what one request writes is flushed in one round."""
        self.release: Callable[[], None] = _nothing
        self._hosts: dict[str, int] = {}
        self._most = connections_limit()
        self._limiter: trio.CapacityLimiter | None = None
        self._nursery: trio.Nursery | None = None

    def attach(self, nursery: trio.Nursery) -> None:
        """Where connections and their writers run. Before the first connection."""
        self._nursery = nursery

    def start_soon(self, task: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(task, *arguments)

    async def in_thread(self, work: Callable[[], None]) -> None:
        """Run what would keep the loop for long. It touches nothing that another task may change."""
        if self.threads:
            if self._limiter is None:
                self._limiter = trio.CapacityLimiter(THREADS_FOR_LARGE_BATCHES)
            await trio.to_thread.run_sync(work, limiter=self._limiter)
        else:
            work()

    def accept(self, sock: socket.socket, peer: Peer) -> None:
        """Serve a connected, non-blocking socket, or close it when there are too many."""
        config = self.world.config
        count = self._hosts.get(peer.host, 0)
        for name, used, limit in (
            ("max.connections", len(self.connections), config.integer("max.connections")),
            ("max.connections.per.ip", count, config.integer("max.connections.per.ip")),
            ("connections that the limit of open files leaves (ulimit -n)", len(self.connections), self._most),
        ):
            if used >= limit:
                log.info("%s: connection refused: %s=%d reached", peer, name, limit)
                sock.close()
                return
        self._hosts[peer.host] = count + 1
        connection = Connection(self, sock, peer)
        self.connections.add(connection)
        self.start_soon(connection.run)

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        host = connection.peer.host
        count = self._hosts.get(host, 0) - 1
        if count > 0:
            self._hosts[host] = count
        else:
            self._hosts.pop(host, None)

    def close_idle(self) -> None:
        """Close connections without a request for longer than connections.max.idle.ms."""
        max_idle_ms = self.world.config.integer("connections.max.idle.ms")
        if max_idle_ms < 0:
            return
        oldest_ms = self.world.clock.monotonic_ms() - max_idle_ms
        for connection in [known for known in self.connections if known.last_active_ms < oldest_ms]:
            log.info("%s: closing the connection: idle for longer than connections.max.idle.ms", connection.peer)
            connection.close()

    def close_vanished(self) -> None:
        """Close connections whose peer has gone while its request waits."""
        for connection in list(self.connections):
            connection.close_if_vanished()

    def close(self) -> None:
        for connection in list(self.connections):
            connection.close()


def _nothing() -> None:
    return None
