"""Listening sockets: open, tell where they are, accept. L4.

Sockets are plain non-blocking ones; the connection tasks use them raw, which is measurably cheaper for small requests
than Trio's own socket objects.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket

import trio

from kmirror.broker.config import Listener
from kmirror.errors import ConfigError
from kmirror.limits import ACCEPT_RETRY_MS, DESCRIPTORS_TRIED_TO_CLOSE
from kmirror.server.context import Peer
from kmirror.server.server import Server

log = logging.getLogger("kmirror.server")

_WILDCARDS = ("", "0.0.0.0", "::")
_TRY_AGAIN = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class OpenListener:
    """One bound and listening socket. `port` is the real one, also when 0 was asked for."""

    def __init__(self, listener: Listener, *, advertised: Listener | None, backlog: int) -> None:
        """Raises `ConfigError` when the address cannot be used."""
        self.name = listener.name
        self.host = listener.host
        self._advertised = advertised
        try:
            self._socket = _listen(listener, backlog)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {listener.name}://{_join(listener.host, listener.port)}: {error.strerror or error}; "
                "choose another address with --listen, port 0 takes a free one"
            ) from None
        self.port: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        """HOST:PORT for the ready line: connectable, also when the listener is bound to every interface."""
        host = self.host
        if self._advertised is not None:
            return _join(self._advertised.host, self._advertised.port or self.port)
        if host in _WILDCARDS:
            host = "127.0.0.1" if host != "::" else "::1"
        return _join(host, self.port)

    async def serve(self, server: Server) -> None:
        """Accept until cancelled."""
        told = False
        while True:
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
                continue
            except OSError as error:
                if error.errno in _TRY_AGAIN:
                    server.world.fs.open_files.make_room(DESCRIPTORS_TRIED_TO_CLOSE)
                    if not told:
                        log.error("%s: cannot accept connections: %s (ulimit -n)", self.name, error.strerror)
                    told = True
                    await trio.sleep(ACCEPT_RETRY_MS / 1000)
                continue
            told = False
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server.accept(sock, self._peer(sock, address))
            await trio.lowlevel.checkpoint()

    def _peer(self, sock: socket.socket, address: tuple[str, int]) -> Peer:
        """Without advertised.listeners a client is told the address that it reached us by."""
        own_host, own_port = sock.getsockname()[:2]
        host, port = own_host, own_port
        if self._advertised is not None:
            host, port = self._advertised.host, self._advertised.port or self.port
        return Peer(
            listener=self.name,
            advertised_host=host,
            advertised_port=port,
            host=address[0],
            port=address[1],
            same_host=address[0] == own_host or address[0].startswith("127."),
        )

    def close(self) -> None:
        with contextlib.suppress(ValueError):
            trio.lowlevel.notify_closing(self._socket)
        self._socket.close()


def _listen(listener: Listener, backlog: int) -> socket.socket:
    host = listener.host or None
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
