"""What a handler sees of the request's surroundings. L4; imported by every handler, so it stays small."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kmirror.errors import KmirrorError

if TYPE_CHECKING:
    from kmirror.broker.world import World
    from kmirror.clock import Clock
    from kmirror.storage.validation import Inspection


class CloseConnection(KmirrorError):
    """The request is answered by closing the connection, as Kafka does; the text is the reason for the log line."""


class Peer:
    """Who is at the other end, and through which listener it came. One per connection.

    `same_host`: the other end is a process on this host.
    """

    __slots__ = ("advertised_host", "advertised_port", "host", "listener", "port", "principal", "same_host")

    def __init__(
        self,
        *,
        listener: str,
        advertised_host: str,
        advertised_port: int,
        host: str,
        port: int,
        principal: str = "User:ANONYMOUS",
        same_host: bool = False,
    ) -> None:
        self.listener = listener
        self.advertised_host = advertised_host
        self.advertised_port = advertised_port
        self.host = host
        self.port = port
        self.principal = principal
        self.same_host = same_host

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port >= 0 else self.host


class RequestContext:
    """One request's surroundings, handed to its handler beside the decoded request."""

    __slots__ = ("api_version", "client_id", "connection", "inspections", "world")

    def __init__(self, world: World, connection: Peer, api_version: int, client_id: str | None) -> None:
        self.world = world
        self.connection = connection
        self.api_version = api_version
        self.client_id = client_id
        self.inspections: dict[int, Inspection] | None = None
        """What was found in compressed batches before the handler was called; by `id` of the request's partition."""

    @property
    def clock(self) -> Clock:
        return self.world.clock

    @property
    def rack(self) -> str | None:
        return self.world.config.raw("broker.rack")

    def advertised(self) -> tuple[str, int]:
        """Host and port that clients of this listener are told to connect to."""
        return self.connection.advertised_host, self.connection.advertised_port
