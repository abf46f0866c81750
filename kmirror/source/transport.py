"""Bytes to and from one broker. Only this module of the client side touches sockets.

A connection reads through a `Transport`, so that tests hand it memory streams and TLS wraps one transport in another.
Plain TCP uses the raw non-blocking socket: `recv_into` first, and a wait only after the kernel had nothing, which is
the cheapest way to receive large frames under Trio. A loop that never has to wait never yields, so every sixteenth
read passes a checkpoint; the checkpoint stands *before* the read, so a cancellation there loses no byte.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from kmirror.limits import CLIENT_READ_AHEAD_BYTES, MAX_READS_BEFORE_YIELD, WAKE_AFTER_BYTES
from kmirror.source.errors import PeerClosed, PeerUnreachable


class Transport(Protocol):
    async def receive_into(self, view: memoryview) -> int:
        """Fill at most `view`; the number of bytes, 0 when the peer has ended. Raises PeerClosed."""
        ...

    async def send_all(self, data: bytes) -> None:
        """Raises PeerClosed. Cancelled in the middle, the transport is of no more use."""
        ...

    def close(self) -> None:
        """At once, and more than once without harm; whoever waits on the transport gets PeerClosed."""
        ...


class Dialer(Protocol):
    async def __call__(self, host: str, port: int) -> Transport:
        """Raises PeerUnreachable. The caller bounds the time."""
        ...


class SocketTransport:
    def __init__(self, raw: socket.socket) -> None:
        raw.setblocking(False)
        self._socket = raw
        self._closed = False
        self._reads = 0
        self._wake_bytes = 1

    async def receive_into(self, view: memoryview) -> int:
        self._reads += 1
        if self._reads >= MAX_READS_BEFORE_YIELD:
            self._reads = 0
            await trio.lowlevel.checkpoint()
        while not self._closed:
            try:
                return self._socket.recv_into(view)
            except BlockingIOError:
                self._reads = 0
                self._wake_at(min(len(view), WAKE_AFTER_BYTES) if len(view) > CLIENT_READ_AHEAD_BYTES else 1)
                await self._wait(trio.lowlevel.wait_readable)
            except OSError as error:
                raise PeerClosed(f"connection lost: {error}") from error
        raise PeerClosed("connection closed")

    def _wake_at(self, size_bytes: int) -> None:
        """Be woken only when so much has arrived. A view beyond the read-ahead is the rest of one frame, all of which
        is on its way; waking for every segment of it costs more than reading it."""
        if size_bytes != self._wake_bytes:
            self._wake_bytes = size_bytes
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)

    async def send_all(self, data: bytes) -> None:
        view = memoryview(data)
        while len(view):
            if self._closed:
                raise PeerClosed("connection closed")
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                await self._wait(trio.lowlevel.wait_writable)
            except OSError as error:
                raise PeerClosed(f"connection lost: {error}") from error

    async def _wait(self, ready: Callable[[socket.socket], Awaitable[None]]) -> None:
        try:
            await ready(self._socket)
        except trio.ClosedResourceError as error:
            raise PeerClosed("connection closed") from error

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(RuntimeError):  # outside a Trio run (a test's teardown) nobody can be waiting
            trio.lowlevel.notify_closing(self._socket)
        self._socket.close()


class StreamTransport:
    """Any Trio stream: memory streams in tests, TLS."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._closed = False

    async def receive_into(self, view: memoryview) -> int:
        try:
            data = await self._stream.receive_some(len(view))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise PeerClosed(f"connection lost: {error}") from error
        view[: len(data)] = data
        return len(data)

    async def send_all(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise PeerClosed(f"connection lost: {error}") from error

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        _close_stream(self._stream)


def _close_stream(stream: object) -> None:
    """Without a goodbye, as Kafka's own clients: nothing here may wait."""
    closer = getattr(stream, "close", None)
    if closer is not None:
        closer()
        return
    for name in ("transport_stream", "send_stream", "receive_stream"):  # TLS over a stream; a stapled pair
        part = getattr(stream, name, None)
        if part is not None:
            _close_stream(part)


async def dial_tcp(host: str, port: int) -> SocketTransport:
    """Tries every address of `host` in the resolver's order. Raises PeerUnreachable."""
    try:
        addresses = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise PeerUnreachable(f"cannot resolve {host}: {error}") from error
    reasons: list[str] = []
    for family, kind, protocol, _name, address in addresses:
        raw = socket.socket(family, kind, protocol)
        try:
            raw.setblocking(False)
            await trio.socket.from_stdlib_socket(raw).connect(address)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raw.close()
            # Trio's text repeats the address; the number alone gives the plain words
            reasons.append(f"{address[0]}: {os.strerror(error.errno) if error.errno else error}")
        except BaseException:
            raw.close()
            raise
        else:
            return SocketTransport(raw)
    raise PeerUnreachable(f"cannot connect to {host}:{port} ({'; '.join(reasons)})")
