"""One connection to one broker of another cluster, or of our own (the command line uses the same).

What holds:
- Answers arrive in the order of the requests (Kafka's own rule). Several requests may be in flight; whoever waits
  first reads for all, so no background task is needed and nothing is read that nobody waits for.
- A connection is broken for good by silence (`PeerTimeout`), by the peer's end (`PeerClosed`), or by an answer that
  is not what it claims to be (`DecodeError`). It then closes itself; every other waiter gets `PeerClosed`.
- A cancelled wait leaves the connection usable: the frame being read is kept, and the answer that nobody wants any
  more is skipped without being decoded. A cancelled *send* breaks the connection, since half a frame may be out.
- Views handed out in an answer belong to that answer's own buffer, except on a connection opened with
  `reuse_buffer=True`: there they are valid only until the next frame is read. The fetch loop of a link uses that,
  because it applies an answer completely before it reads the next one.

Versions are negotiated with ApiVersions (KIP-35, KIP-511), down to brokers of Kafka 2.1: an answer with error 35 is in
the shape of version 0 whatever was asked.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import trio

from kmirror import __version__
from kmirror.errors import DecodeError
from kmirror.limits import (
    CLIENT_READ_AHEAD_BYTES,
    MAX_RESPONSE_FRAME_BYTES,
    MAX_REUSED_BUFFER_BYTES,
    MAX_TICKETS_IN_FLIGHT,
)
from kmirror.protocol import frames, registry
from kmirror.protocol.errors import ErrorCode, name_of
from kmirror.source.errors import PeerClosed, PeerError, PeerTimeout, PeerUnreachable, UnsupportedByPeer
from kmirror.source.transport import Dialer, Transport, dial_tcp

SOFTWARE_NAME = "kmirror"
_PROBE_VERSION = 4
"""ApiVersions v4 shows features whose range begins at 0 (KIP-1022), which is how `mirror.version` is announced."""
_FRAME_SIZE_BYTES = 4
_CORRELATION_BYTES = 4


class Security(Protocol):
    """How a connection becomes trusted: TLS before the first byte, SASL after ApiVersions."""

    async def wrap(self, transport: Transport, host: str) -> Transport:
        """Raises PeerError."""
        ...

    async def authenticate(self, connection: Connection) -> None:
        """Raises PeerError."""
        ...


@dataclass(slots=True, frozen=True)
class Feature:
    name: str
    min_level: int
    max_level: int
    finalized_level: int
    """0 when the cluster has not switched it on."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One request in flight."""

    api: registry.Api
    version: int
    correlation_id: int
    response: Any = None
    answered: bool = False
    abandoned: bool = False


class FrameReader:
    """Cuts a transport into frames. Cancelled in the middle of one, it goes on there at the next call."""

    def __init__(self, transport: Transport, *, reuse_buffer: bool = False) -> None:
        self._transport = transport
        self._reuse = reuse_buffer
        self._large = bytearray()
        self._ahead = bytearray(CLIENT_READ_AHEAD_BYTES)
        self._start = 0
        self._end = 0
        self._body: memoryview | None = None
        self._filled = 0

    async def next_frame(self) -> memoryview:
        """The frame without its size prefix. Raises PeerClosed, DecodeError (impossible size)."""
        if self._body is None:
            await self._begin()
        body = self._body
        assert body is not None
        while self._filled < len(body):
            size_bytes = await self._transport.receive_into(body[self._filled :])
            if size_bytes == 0:
                raise PeerClosed(f"connection ended {len(body) - self._filled} bytes before the end of an answer")
            self._filled += size_bytes
        self._body = None
        return body.toreadonly()

    async def _begin(self) -> None:
        ahead = self._ahead
        while self._end - self._start < _FRAME_SIZE_BYTES:
            if self._start:
                left = self._end - self._start
                ahead[:left] = ahead[self._start : self._end]
                self._start, self._end = 0, left
            size_bytes = await self._transport.receive_into(memoryview(ahead)[self._end :])
            if size_bytes == 0:
                raise PeerClosed("connection ended by the broker")
            self._end += size_bytes
        size_bytes = int.from_bytes(ahead[self._start : self._start + _FRAME_SIZE_BYTES], "big", signed=True)
        if not _CORRELATION_BYTES <= size_bytes <= MAX_RESPONSE_FRAME_BYTES:
            raise DecodeError(f"a frame of {size_bytes} bytes is refused (at most {MAX_RESPONSE_FRAME_BYTES})")
        self._start += _FRAME_SIZE_BYTES
        body = self._buffer_of(size_bytes)
        here = min(size_bytes, self._end - self._start)
        body[:here] = memoryview(ahead)[self._start : self._start + here]
        self._start += here
        self._filled = here
        self._body = body

    def _buffer_of(self, size_bytes: int) -> memoryview:
        if not self._reuse or size_bytes > MAX_REUSED_BUFFER_BYTES:
            return memoryview(bytearray(size_bytes))
        if size_bytes > len(self._large):
            self._large = bytearray(size_bytes)
        return memoryview(self._large)[:size_bytes]


@dataclass(slots=True)
class Peer:
    """What a broker told about itself in ApiVersions."""

    versions: dict[int, tuple[int, int]] = field(default_factory=dict)
    features: dict[str, Feature] = field(default_factory=dict)


class Connection:
    """See the module head. Made by `Connection.open`."""

    def __init__(
        self,
        transport: Transport,
        host: str,
        port: int,
        *,
        client_id: str | None,
        timeout_ms: int,
        reuse_buffer: bool = False,
    ) -> None:
        self.host = host
        self.port = port
        self.client_id = client_id
        self.timeout_ms = timeout_ms
        self.peer = Peer()
        self.closed = False
        self.used_at_s = trio.current_time()
        self._transport = transport
        self._reader = FrameReader(transport, reuse_buffer=reuse_buffer)
        self._pending: deque[Ticket] = deque()
        self._reading = trio.Lock()
        self._sending = trio.Lock()
        self._next_correlation_id = 0
        self._throttled_until_s = 0.0

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str | None = SOFTWARE_NAME,
        timeout_ms: int = 30_000,
        connect_timeout_ms: int = 10_000,
        security: Security | None = None,
        reuse_buffer: bool = False,
        dialer: Dialer = dial_tcp,
    ) -> Connection:
        """Connect, negotiate, authenticate. Raises PeerError (all of them) and DecodeError."""
        connection: Connection | None = None
        try:
            with trio.fail_after(connect_timeout_ms / 1000):
                transport = await dialer(host, port)
                if security is not None:
                    transport = await security.wrap(transport, host)
                connection = cls(
                    transport, host, port, client_id=client_id, timeout_ms=timeout_ms, reuse_buffer=reuse_buffer
                )
                await connection._negotiate()
                if security is not None:
                    await security.authenticate(connection)
        except trio.TooSlowError as error:
            if connection is not None:
                connection.close()
            raise PeerUnreachable(f"{host}:{port} did not answer within {connect_timeout_ms} ms") from error
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        return connection

    async def _negotiate(self) -> None:
        api = registry.by_name["ApiVersions"]
        version = min(_PROBE_VERSION, api.max_version)
        for _attempt in range(3):  # the newest, then what the broker names, then version 0
            request = api.request()
            if version >= 3:
                request.client_software_name = SOFTWARE_NAME
                request.client_software_version = __version__
            response = await self.request(request, version=version)
            if response.error_code != ErrorCode.UNSUPPORTED_VERSION:
                break
            offered = next((key.max_version for key in response.api_keys if key.api_key == api.key), 0)
            version = offered if offered < version else 0
        if response.error_code != ErrorCode.NONE:
            raise UnsupportedByPeer(f"{self.host}:{self.port} answered ApiVersions with {name_of(response.error_code)}")
        self.peer = _peer_of(response)

    def version_of(self, api_name: str, highest: int | None = None) -> int:
        """The newest version both sides know, at most `highest`. Raises UnsupportedByPeer."""
        api = registry.by_name[api_name]
        peer_min, peer_max = self.peer.versions.get(api.key, (0, -1))
        version = min(api.max_version, peer_max, api.max_version if highest is None else highest)
        if version < max(api.min_version, peer_min):
            peer = f"{self.host}:{self.port}"
            if peer_max < 0:
                raise UnsupportedByPeer(f"{api_name}: {peer} does not serve it")
            ours = f"{api.min_version} to {api.max_version if highest is None else min(highest, api.max_version)}"
            raise UnsupportedByPeer(
                f"{api_name}: {peer} serves versions {peer_min} to {peer_max}, needed is one of {ours}"
            )
        return version

    def supports(self, api_name: str, lowest: int = 0) -> bool:
        api = registry.by_name[api_name]
        return self.peer.versions.get(api.key, (0, -1))[1] >= max(lowest, api.min_version)

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    async def send(self, message: Any, version: int | None = None) -> Ticket:
        """Send one request; a Produce with acks 0 is answered at once with None. Raises PeerClosed, EncodeError."""
        api = registry.api_of(message)
        if version is None:
            version = self.version_of(api.name)
        async with self._sending:
            if self.closed:
                raise PeerClosed(f"connection to {self.host}:{self.port} is closed")
            if len(self._pending) >= MAX_TICKETS_IN_FLIGHT:
                raise PeerError(f"more than {MAX_TICKETS_IN_FLIGHT} requests in flight to {self.host}:{self.port}")
            correlation_id = self._next_correlation_id
            data = frames.request_frame(api, version, correlation_id, self.client_id, message)
            self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
            ticket = Ticket(api, version, correlation_id)
            if api.name == "Produce" and message.acks == 0:
                ticket.answered = True
            else:
                self._pending.append(ticket)
            try:
                await self._transport.send_all(data)
            except BaseException:
                self.close()
                raise
        self.used_at_s = trio.current_time()
        return ticket

    async def receive(self, ticket: Ticket, *, timeout_ms: int | None = None) -> Any:
        """The answer to `ticket`. Raises PeerTimeout, PeerClosed, DecodeError: the connection is closed after them."""
        limit_s = (self.timeout_ms if timeout_ms is None else timeout_ms) / 1000
        limit_s += max(0.0, self._throttled_until_s - trio.current_time())
        try:
            with trio.move_on_after(limit_s):
                return await self._answer_to(ticket)
        except (PeerError, DecodeError):
            self.close()
            raise
        finally:
            if not ticket.answered:
                ticket.abandoned = True
        self.close()
        raise PeerTimeout(f"{self.host}:{self.port} did not answer {ticket.api.name} within {limit_s:g} s")

    async def _answer_to(self, ticket: Ticket) -> Any:
        if not ticket.answered:
            async with self._reading:
                while not ticket.answered:
                    await self._read_one()
        response, ticket.response = ticket.response, None
        return response

    async def request(self, message: Any, version: int | None = None, *, timeout_ms: int | None = None) -> Any:
        return await self.receive(await self.send(message, version), timeout_ms=timeout_ms)

    async def _read_one(self) -> None:
        if self.closed or not self._pending:
            raise PeerClosed(f"connection to {self.host}:{self.port} is closed")
        frame = await self._reader.next_frame()
        ticket = self._pending.popleft()
        correlation_id = int.from_bytes(frame[:_CORRELATION_BYTES], "big", signed=True)
        if correlation_id != ticket.correlation_id:
            raise DecodeError(
                f"answer carries correlation id {correlation_id}, expected {ticket.correlation_id}",
                api=ticket.api.name,
                version=ticket.version,
            )
        if not ticket.abandoned:
            _, ticket.response = frames.parse_response(ticket.api, ticket.version, frame)
            throttle_ms = getattr(ticket.response, "throttle_time_ms", 0)
            if throttle_ms > 0:  # the broker reads nothing from us until then (KIP-219)
                self._throttled_until_s = trio.current_time() + throttle_ms / 1000
        ticket.answered = True

    def close(self) -> None:
        """At once; waiters get PeerClosed. More than once without harm."""
        if not self.closed:
            self.closed = True
            self._transport.close()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()


def _peer_of(response: Any) -> Peer:
    finalized = {feature.name: feature.max_version_level for feature in response.finalized_features}
    return Peer(
        versions={key.api_key: (key.min_version, key.max_version) for key in response.api_keys},
        features={
            feature.name: Feature(
                feature.name, feature.min_version, feature.max_version, finalized.get(feature.name, 0)
            )
            for feature in response.supported_features
        },
    )
