"""A cluster that we are a client of: its addresses, its brokers, one connection per (broker, purpose).

The link of a mirror and the command line use the same class. What holds:
- Whoever asks for a connection to an address that failed a moment ago waits for its back-off first, so a loop around
  `connection()` needs no delay of its own and cannot spin.
- Requests for "any broker" go to the bootstrap addresses first, since those are what the operator promised to be
  reachable, then to the brokers that metadata named; both are tried before the cluster counts as unreachable (KIP-899).
- Time is Trio's (so a virtual clock moves it) and chance is the `Random` handed in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Self

import trio

from kmirror.errors import ConfigError, DecodeError
from kmirror.protocol.errors import ErrorCode, name_of
from kmirror.source import calls
from kmirror.source.backoff import Backoff
from kmirror.source.connection import SOFTWARE_NAME, Connection, Security
from kmirror.source.errors import PeerError, PeerUnreachable
from kmirror.source.transport import Dialer, dial_tcp

_LOOK_AGAIN = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)
"""Answers after which fresh metadata may name another leader."""

NO_LEADER = -1
NO_SUCH_PARTITION = -2
ANY = -1
"""Node id under which connections to a bootstrap address are kept."""


@dataclass(frozen=True, slots=True)
class Node:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(slots=True, kw_only=True)
class ClientSettings:
    """Kafka's client properties, its names and its defaults."""

    client_id: str = SOFTWARE_NAME
    request_timeout_ms: int = 30_000
    connection_setup_timeout_ms: int = 10_000
    connection_setup_timeout_max_ms: int = 30_000
    connections_max_idle_ms: int = 600_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    security: Security | None = None
    dialer: Dialer = dial_tcp
    rng: Random = field(default_factory=Random)


@dataclass(slots=True)
class _Address:
    """What is remembered of one host and port between connections."""

    backoff: Backoff
    setup: Backoff
    not_before_s: float = 0.0


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port`. Raises ConfigError."""
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"'{text}' is ambiguous: write an IPv6 address as [address]:port")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"'{text}' is not host:port")
    return host, int(port)


class Cluster:
    """See the module head. `async with Cluster.connect([...]) as cluster` opens the first connection eagerly."""

    def __init__(self, bootstrap: Sequence[str], settings: ClientSettings | None = None) -> None:
        self.settings = settings if settings is not None else ClientSettings()
        self.bootstrap = [parse_address(text) for text in bootstrap]
        if not self.bootstrap:
            raise ConfigError("no bootstrap address")
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.nodes: dict[int, Node] = {}
        self._addresses: dict[tuple[str, int], _Address] = {}
        self._connections: dict[tuple[int, str], Connection] = {}
        self._opening: dict[tuple[int, str], trio.Lock] = {}
        self._leaders: dict[tuple[str, int], tuple[int, int]] = {}
        self._topic_ids: dict[str, bytes] = {}
        self._closed = False

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, bootstrap: Sequence[str], *, settings: ClientSettings | None = None, client_id: str | None = None
    ) -> AsyncIterator[Self]:
        """A cluster with one connection open. Raises PeerError when no address answers, ConfigError."""
        cluster = cls(bootstrap, settings)
        if client_id is not None:
            cluster.settings.client_id = client_id
        try:
            await cluster.connection()
            yield cluster
        finally:
            cluster.close()

    # --- connections

    async def connection(
        self, node_id: int | None = None, *, purpose: str = "", reuse_buffer: bool = False
    ) -> Connection:
        """The open connection for this node and purpose, or a new one. None: any broker.

        Raises PeerUnreachable (unknown node, or it cannot be reached), PeerError, DecodeError.
        """
        key = (ANY if node_id is None else node_id, purpose)
        lock = self._opening.setdefault(key, trio.Lock())
        async with lock:
            found = self._connections.get(key)
            if found is not None and not found.closed:
                if not self._moved(found, node_id):
                    return found
                found.close()
            if node_id is None:
                opened = await self._open_any(reuse_buffer=reuse_buffer)
            else:
                node = self.nodes.get(node_id)
                if node is None:
                    raise PeerUnreachable(f"broker {node_id} is not in the cluster's metadata")
                opened = await self._open(node.host, node.port, reuse_buffer=reuse_buffer)
            if self._closed:
                opened.close()
                raise PeerUnreachable("cluster is closed")
            self._connections[key] = opened
            return opened

    def _moved(self, connection: Connection, node_id: int | None) -> bool:
        """Whether the node now has another address (restarted elsewhere) or left."""
        if node_id is None:
            return False
        node = self.nodes.get(node_id)
        return node is None or (node.host, node.port) != (connection.host, connection.port)

    async def _open_any(self, *, reuse_buffer: bool) -> Connection:
        reasons: list[str] = []
        known = [(node.host, node.port) for node in self.nodes.values()]
        candidates = dict.fromkeys(self.bootstrap + known)
        now_s = trio.current_time()
        # those that did not fail lately first: a dead first address must not delay every request
        ordered = sorted(candidates, key=lambda address: max(self._address(*address).not_before_s, now_s))
        for host, port in ordered:
            try:
                return await self._open(host, port, reuse_buffer=reuse_buffer)
            except (PeerError, DecodeError) as error:
                reasons.append(str(error))
        raise PeerUnreachable("; ".join(reasons))

    def _address(self, host: str, port: int) -> _Address:
        address = self._addresses.get((host, port))
        if address is None:
            settings = self.settings
            address = self._addresses[host, port] = _Address(
                Backoff(
                    initial_ms=settings.reconnect_backoff_ms, max_ms=settings.reconnect_backoff_max_ms, rng=settings.rng
                ),
                Backoff(
                    initial_ms=settings.connection_setup_timeout_ms,
                    max_ms=settings.connection_setup_timeout_max_ms,
                    rng=settings.rng,
                ),
            )
        return address

    async def _open(self, host: str, port: int, *, reuse_buffer: bool) -> Connection:
        address = self._address(host, port)
        await trio.sleep_until(max(address.not_before_s, trio.current_time()))
        settings = self.settings
        try:
            connection = await Connection.open(
                host,
                port,
                client_id=settings.client_id,
                timeout_ms=settings.request_timeout_ms,
                connect_timeout_ms=int(address.setup.delay_ms()),
                security=settings.security,
                reuse_buffer=reuse_buffer,
                dialer=settings.dialer,
            )
        except (PeerError, DecodeError):
            address.setup.failed()
            address.not_before_s = trio.current_time() + address.backoff.failed() / 1000
            raise
        address.backoff.succeeded()
        address.setup.succeeded()
        address.not_before_s = 0.0
        return connection

    def lost(self, connection: Connection) -> None:
        """The caller saw this connection die while in use: the next open to its address waits for the back-off."""
        connection.close()
        address = self._address(connection.host, connection.port)
        address.not_before_s = trio.current_time() + address.backoff.failed() / 1000

    def close_idle(self) -> None:
        """Close what nobody used for `connections.max.idle.ms`."""
        limit_s = trio.current_time() - self.settings.connections_max_idle_ms / 1000
        for key, connection in list(self._connections.items()):
            if connection.in_flight == 0 and connection.used_at_s <= limit_s:
                connection.close()
            if connection.closed:
                del self._connections[key]

    def close(self) -> None:
        self._closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # --- requests

    async def request(
        self, message: Any, node: int | None = None, *, version: int | None = None, timeout_ms: int | None = None
    ) -> Any:
        """One answer. Raises PeerError, DecodeError; error codes in the answer are the caller's."""
        connection = await self.connection(node)
        return await connection.request(message, version, timeout_ms=timeout_ms)

    async def metadata(self, topics: Sequence[str] | None, *, purpose: str = "") -> Any:
        """MetadataResponse for these topics (None: all), and remember brokers, cluster id, leaders, topic ids."""
        connection = await self.connection(purpose=purpose)
        response = await connection.request(calls.metadata_request(connection, topics))
        if response.error_code:  # REBOOTSTRAP_REQUIRED (KIP-1102): what we know of the cluster is of no more use
            connection.close()
            self.nodes.clear()
            raise PeerUnreachable(f"{connection.host}:{connection.port} answered {name_of(response.error_code)}")
        self.learn(response)
        return response

    def learn(self, response: Any) -> None:
        """Take over what a MetadataResponse says. The highest leader epoch seen wins over an older answer's."""
        self.nodes = {
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers
        }
        self.cluster_id = response.cluster_id if response.cluster_id is not None else self.cluster_id
        self.controller_id = response.controller_id
        for topic in response.topics:
            if topic.error_code or topic.name is None:
                continue
            if self._topic_ids.get(topic.name, topic.topic_id) != topic.topic_id:  # re-created: epochs start anew
                self._leaders = {key: value for key, value in self._leaders.items() if key[0] != topic.name}
            self._topic_ids[topic.name] = topic.topic_id
            for partition in topic.partitions:
                key = (topic.name, partition.partition_index)
                self.learn_leader(key, partition.leader_id, partition.leader_epoch)

    def learn_leader(self, partition: tuple[str, int], leader_id: int, leader_epoch: int) -> None:
        known = self._leaders.get(partition)
        if known is None or leader_epoch < 0 or leader_epoch >= known[1]:
            self._leaders[partition] = (leader_id, leader_epoch)

    def learn_nodes(self, endpoints: Iterable[Any]) -> None:
        """`node_endpoints` of Fetch v16+ and Produce v10+ (KIP-951)."""
        for endpoint in endpoints:
            self.nodes[endpoint.node_id] = Node(endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack)

    async def leader_of(self, topic: str, partition: int, *, refresh: bool = False) -> int:
        """Node id of the leader. Raises PeerUnreachable when there is none, or no such partition."""
        known = self._leaders.get((topic, partition))
        if refresh or known is None or known[0] < 0 or known[0] not in self.nodes:
            await self.metadata([topic])
            known = self._leaders.get((topic, partition))
        if known is None or known[0] < 0:
            raise PeerUnreachable(f"no leader is known for {topic}-{partition}")
        return known[0]

    def topic_id(self, topic: str) -> bytes:
        """The topic's id as last seen in metadata; zeros when the cluster has none."""
        return self._topic_ids.get(topic, calls.ZERO_ID)

    # --- conveniences of the command line; each tries once more when the leader has moved

    async def list_offsets(
        self, asked: Mapping[calls.Partition, int], *, isolation_level: int = calls.READ_UNCOMMITTED
    ) -> dict[calls.Partition, calls.ListedOffset]:
        """Timestamp in ms, `calls.LATEST` or `calls.EARLIEST` per partition. Raises PeerError, DecodeError.

        A partition that is not there, or has no leader, gets error code 3 or 5 in its answer.
        """
        found: dict[calls.Partition, calls.ListedOffset] = {}
        left = dict(asked)
        for attempt in range(2):
            for node, part in (await self._by_leader(left, refresh=attempt > 0)).items():
                if node < 0:
                    code = ErrorCode.LEADER_NOT_AVAILABLE if node == NO_LEADER else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    found.update((key, calls.ListedOffset(error_code=code)) for key in part)
                    continue
                request = calls.list_offsets_request(part, isolation_level=isolation_level, epochs={})
                found.update(calls.listed_offsets(await self.request(request, node)))
            left = {key: when for key, when in left.items() if key not in found or _moved(found[key].error_code)}
            if not left:
                break
        return found

    async def _by_leader(
        self, asked: Mapping[calls.Partition, int], *, refresh: bool
    ) -> dict[int, dict[calls.Partition, int]]:
        missing = {key[0] for key in asked if refresh or self._leaders.get(key, (-1, -1))[0] not in self.nodes}
        if missing:
            await self.metadata(sorted(missing))
        parts: dict[int, dict[calls.Partition, int]] = {}
        for key, value in asked.items():
            leader = self._leaders.get(key, (NO_SUCH_PARTITION, -1))[0]
            parts.setdefault(leader, {})[key] = value
        return parts

    async def fetch_once(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = 1024 * 1024,
        min_bytes: int = 1,
        wait_ms: int = 0,
        isolation_level: int = calls.READ_UNCOMMITTED,
    ) -> calls.Fetched:
        """One Fetch outside any session. Raises PeerError, DecodeError."""
        answer = calls.Fetched(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        for attempt in range(2):
            connection = await self.connection(await self.leader_of(topic, partition, refresh=attempt > 0))
            request, version = calls.fetch_request(
                connection,
                (topic, partition),
                topic_id=self.topic_id(topic),
                offset=offset,
                max_bytes=max_bytes,
                min_bytes=min_bytes,
                wait_ms=wait_ms,
                isolation_level=isolation_level,
                current_leader_epoch=-1,
            )
            limit_ms = self.settings.request_timeout_ms + wait_ms
            answer = calls.fetched(await connection.request(request, version, timeout_ms=limit_ms))
            if not _moved(answer.error_code):
                break
        return answer

    async def produce(
        self, topic: str, partition: int, records: Any, *, acks: int = -1, timeout_ms: int = 30_000
    ) -> calls.Produced:
        """Send whole record batches as they are. With acks 0 there is no answer: error code 0, offset -1.

        Raises PeerError, DecodeError.
        """
        answer = calls.Produced(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        for attempt in range(2):
            connection = await self.connection(await self.leader_of(topic, partition, refresh=attempt > 0))
            request, version = calls.produce_request(
                connection,
                (topic, partition),
                records,
                topic_id=self.topic_id(topic),
                acks=acks,
                timeout_ms=timeout_ms,
            )
            response = await connection.request(request, version)
            answer = calls.Produced() if response is None else calls.produced(response)
            if not _moved(answer.error_code):
                break
        return answer

    async def describe_topic_configs(self, topics: Sequence[str]) -> dict[str, calls.TopicConfigs]:
        """Raises PeerError, DecodeError."""
        return calls.topic_configs(await self.request(calls.describe_topic_configs_request(topics)))


def _moved(error_code: int) -> bool:
    return error_code in _LOOK_AGAIN
