"""A scripted source cluster on memory streams, built from the protocol package.

The answers of a broker are Kafka's as far as a mirror can see them: version ranges, error 35 in the shape of version 0,
leader and epoch checks, whole batches limited by max bytes, incremental fetch sessions, long polls. A test bends one
broker through `script` (called before the normal answer) or through the fields of topics and partitions.

Version ranges: `kafka.sh start` of each release, then an ApiVersions v0 request, 2026-11; only the APIs that a mirror
uses are kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import trio
import trio.testing

from kmirror.protocol import frames, registry, uuids
from kmirror.protocol.api.api_versions import ApiVersion, ApiVersionsResponse
from kmirror.protocol.api.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kmirror.protocol.api.fetch import FetchableTopicResponse, FetchLeaderIdAndEpoch, FetchResponse, PartitionData
from kmirror.protocol.api.find_coordinator import Coordinator, FindCoordinatorResponse
from kmirror.protocol.api.list_groups import ListedGroup, ListGroupsResponse
from kmirror.protocol.api.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kmirror.protocol.api.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kmirror.protocol.api.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kmirror.protocol.api.offset_for_leader_epoch import (
    OffsetForLeaderEpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from kmirror.protocol.compile import decode
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import Record, build_batch, parse_header
from kmirror.source.errors import PeerUnreachable
from kmirror.source.transport import StreamTransport

Ranges = dict[str, tuple[int, int]]
Key = tuple[bytes | str, int]
"""Topic id or name, as the version says it, and partition."""

KAFKA_2_1_1: Ranges = {
    "Produce": (0, 7),
    "Fetch": (0, 10),
    "ListOffsets": (0, 4),
    "Metadata": (0, 7),
    "ApiVersions": (0, 2),
    "OffsetForLeaderEpoch": (0, 2),
    "DescribeConfigs": (0, 2),
    "FindCoordinator": (0, 2),
    "ListGroups": (0, 2),
    "OffsetFetch": (0, 5),
}
KAFKA_3_9_2: Ranges = {
    "Produce": (0, 11),
    "Fetch": (0, 17),
    "ListOffsets": (0, 9),
    "Metadata": (0, 12),
    "ApiVersions": (0, 4),
    "OffsetForLeaderEpoch": (0, 4),
    "DescribeConfigs": (0, 4),
    "FindCoordinator": (0, 6),
    "ListGroups": (0, 5),
    "OffsetFetch": (0, 9),
}
KAFKA_4_4_0: Ranges = {
    "Produce": (0, 13),
    "Fetch": (4, 18),
    "ListOffsets": (1, 11),
    "Metadata": (0, 13),
    "ApiVersions": (0, 5),
    "OffsetForLeaderEpoch": (2, 4),
    "DescribeConfigs": (1, 4),
    "FindCoordinator": (0, 6),
    "ListGroups": (0, 5),
    "OffsetFetch": (1, 10),
}


@dataclass
class FakePartition:
    leader: int = 1
    leader_epoch: int = 0
    batches: list[bytes] = field(default_factory=list)
    log_start: int = 0
    error_code: int = 0

    @property
    def end(self) -> int:
        return parse_header(self.batches[-1]).next_offset if self.batches else self.log_start

    def append(self, count: int = 1, *, value: bytes = b"v", epoch: int | None = None) -> bytes:
        batch = build_batch(
            [Record(offset=-1, timestamp=-1, key=None, value=value, headers=[]) for _ in range(count)],
            base_offset=self.end,
            leader_epoch=self.leader_epoch if epoch is None else epoch,
            timestamp_ms=1_700_000_000_000,
        )
        self.batches.append(batch)
        return batch

    def read(self, offset: int, max_bytes: int) -> bytes:
        out = b""
        for batch in self.batches:
            if parse_header(batch).last_offset < offset:
                continue
            if out and len(out) + len(batch) > max_bytes:
                break
            out += batch
        return out

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        below = -1
        for batch in self.batches:
            header = parse_header(batch)
            if header.leader_epoch > epoch:
                return (below, header.base_offset) if below >= 0 else (-1, -1)
            below = header.leader_epoch
        return (below, self.end) if below >= 0 else (-1, -1)


@dataclass
class FakeTopic:
    topic_id: bytes = uuids.ZERO
    partitions: dict[int, FakePartition] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=dict)
    internal: bool = False


@dataclass
class FakeGroup:
    """`offsets`: (offset, leader epoch, metadata) by topic and partition."""

    coordinator: int = 1
    protocol_type: str = "consumer"
    group_type: str = "Classic"
    offsets: dict[tuple[str, int], tuple[int, int, str]] = field(default_factory=dict)
    error_code: int = 0


Script = Callable[["FakeBroker", registry.Api, int, Any], Awaitable[Any]]
"""Returns a response, raw bytes to send as they are, CLOSE, SILENCE, or None for the normal answer."""
CLOSE = object()
SILENCE = object()


@dataclass
class Seen:
    api: str
    version: int
    message: Any
    at_s: float


class FakeBroker:
    def __init__(self, cluster: FakeCluster, node_id: int, versions: Ranges) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.host = f"broker-{node_id}"
        self.port = 9000 + node_id
        self.versions = versions
        self.up = True
        self.script: Script | None = None
        self.seen: list[Seen] = []
        self.dialed_at_s: list[float] = []
        self.streams: list[trio.StapledStream] = []  # type: ignore[type-arg]
        self.sessions: dict[int, dict[Key, Any]] = {}
        self.session_epochs: dict[int, int] = {}
        self.told: dict[int, set[Key]] = {}
        self._next_session = 100 * node_id

    def requests(self, api: str) -> list[Any]:
        return [seen.message for seen in self.seen if seen.api == api]

    def kill(self) -> None:
        self.up = False
        self.drop()

    def drop(self) -> None:
        """Every open connection ends."""
        for stream in self.streams:
            StreamTransport(stream).close()
        self.streams.clear()

    async def serve(self, stream: trio.StapledStream) -> None:  # type: ignore[type-arg]
        try:
            while True:
                head = await _exactly(stream, 4)
                frame = await _exactly(stream, int.from_bytes(head, "big"))
                if not await self._answer(stream, frame):
                    return
        except (trio.BrokenResourceError, trio.ClosedResourceError, EOFError):
            return

    async def _answer(self, stream: Any, frame: bytes) -> bool:
        header, at = frames.parse_request_header(frame)
        api = registry.by_key[header.api_key]
        low, high = self.versions.get(api.name, (0, -1))
        version = header.api_version
        if not low <= version <= high:
            assert api.name == "ApiVersions", f"{api.name} v{version} was never offered"
            response: Any = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
            if high >= 3:
                response.api_keys = [ApiVersion(api_key=api.key, min_version=low, max_version=high)]
            version = 0
        else:
            message = decode(api.request, frame, version, offset=at, exact=True)
            self.seen.append(Seen(api.name, version, message, trio.current_time()))
            response = await self.script(self, api, version, message) if self.script is not None else None
            if response is None:
                response = await getattr(self, f"on_{api.module}")(message, version)
        if response is CLOSE:
            StreamTransport(stream).close()
            return False
        if response is SILENCE:
            await trio.sleep_forever()
        if isinstance(response, bytes):
            await stream.send_all(response)
            return True
        pieces = frames.response_frame(api, version, header.correlation_id, response)
        await stream.send_all(_plain(pieces))
        return True

    async def on_api_versions(self, _message: Any, _version: int) -> ApiVersionsResponse:
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=registry.by_name[name].key, min_version=low, max_version=high)
                for name, (low, high) in self.versions.items()
            ]
        )

    async def on_metadata(self, message: Any, version: int) -> MetadataResponse:
        cluster = self.cluster
        names = list(cluster.topics) if message.topics is None else [topic.name for topic in message.topics]
        response = MetadataResponse(
            cluster_id=cluster.cluster_id,
            controller_id=self.node_id,
            brokers=[
                MetadataResponseBroker(node_id=broker.node_id, host=broker.host, port=broker.port)
                for broker in cluster.brokers.values()
                if broker.up
            ],
        )
        for name in names:
            topic = cluster.topics.get(name)
            if topic is None:
                response.topics.append(
                    MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                )
                continue
            response.topics.append(
                MetadataResponseTopic(
                    name=name,
                    topic_id=topic.topic_id if version >= 10 else uuids.ZERO,
                    is_internal=topic.internal,
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=index,
                            leader_id=part.leader,
                            leader_epoch=part.leader_epoch if version >= 7 else -1,
                            replica_nodes=[part.leader],
                            isr_nodes=[part.leader],
                        )
                        for index, part in topic.partitions.items()
                    ],
                )
            )
        return response

    def check(self, name: str | None, index: int, current_leader_epoch: int) -> tuple[int, FakePartition | None]:
        topic = self.cluster.topics.get(name) if name is not None else None
        part = topic.partitions.get(index) if topic is not None else None
        if part is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        if part.error_code:
            return part.error_code, part
        if current_leader_epoch >= 0 and current_leader_epoch < part.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH, part
        if current_leader_epoch > part.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH, part
        if part.leader != self.node_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, part
        return ErrorCode.NONE, part

    async def on_list_offsets(self, message: Any, _version: int) -> ListOffsetsResponse:
        response = ListOffsetsResponse()
        for topic in message.topics:
            result = ListOffsetsTopicResponse(name=topic.name)
            response.topics.append(result)
            for asked in topic.partitions:
                code, part = self.check(topic.name, asked.partition_index, asked.current_leader_epoch)
                row = ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=code)
                if not code and part is not None:
                    row.offset = part.log_start if asked.timestamp == -2 else part.end if asked.timestamp == -1 else -1
                result.partitions.append(row)
        return response

    async def on_offset_for_leader_epoch(self, message: Any, _version: int) -> OffsetForLeaderEpochResponse:
        response = OffsetForLeaderEpochResponse()
        for topic in message.topics:
            result = OffsetForLeaderTopicResult(topic=topic.topic)
            response.topics.append(result)
            for asked in topic.partitions:
                code, part = self.check(topic.topic, asked.partition, asked.current_leader_epoch)
                epoch, end = (-1, -1) if code or part is None else part.epoch_end(asked.leader_epoch)
                result.partitions.append(
                    OffsetForLeaderEpochEndOffset(
                        partition=asked.partition, error_code=code, leader_epoch=epoch, end_offset=end
                    )
                )
        return response

    async def on_list_groups(self, _message: Any, version: int) -> ListGroupsResponse:
        return ListGroupsResponse(
            groups=[
                ListedGroup(
                    group_id=group_id,
                    protocol_type=group.protocol_type,
                    group_type=group.group_type if version >= 5 else "",
                )
                for group_id, group in self.cluster.groups.items()
                if group.coordinator == self.node_id
            ]
        )

    async def on_find_coordinator(self, message: Any, version: int) -> FindCoordinatorResponse:
        keys = message.coordinator_keys if version >= 4 else [message.key]
        found = []
        for key in keys:
            broker = self.cluster.brokers[self.cluster.groups[key].coordinator]
            found.append(Coordinator(key=key, node_id=broker.node_id, host=broker.host, port=broker.port))
        if version >= 4:
            return FindCoordinatorResponse(coordinators=found)
        return FindCoordinatorResponse(node_id=found[0].node_id, host=found[0].host, port=found[0].port)

    async def on_offset_fetch(self, message: Any, version: int) -> OffsetFetchResponse:
        if version < 8:
            assert message.topics is None
            code, topics = self._offsets_of(message.group_id, OffsetFetchResponseTopic, OffsetFetchResponsePartition)
            return OffsetFetchResponse(error_code=code, topics=topics)
        response = OffsetFetchResponse()
        for asked in message.groups:
            assert asked.topics is None
            code, topics = self._offsets_of(asked.group_id, OffsetFetchResponseTopics, OffsetFetchResponsePartitions)
            response.groups.append(OffsetFetchResponseGroup(group_id=asked.group_id, error_code=code, topics=topics))
        return response

    def _offsets_of(self, group_id: str, topic_class: Any, partition_class: Any) -> tuple[int, list[Any]]:
        group = self.cluster.groups.get(group_id)
        if group is None:
            return 0, []
        if group.coordinator != self.node_id:
            return ErrorCode.NOT_COORDINATOR, []
        topics: dict[str, Any] = {}
        for (name, index), (offset, epoch, metadata) in group.offsets.items():
            topic = topics.setdefault(name, topic_class(name=name))
            topic.partitions.append(
                partition_class(
                    partition_index=index, committed_offset=offset, committed_leader_epoch=epoch, metadata=metadata
                )
            )
        return group.error_code, list(topics.values()) if not group.error_code else []

    async def on_describe_configs(self, message: Any, version: int) -> DescribeConfigsResponse:
        response = DescribeConfigsResponse()
        for resource in message.resources:
            topic = self.cluster.topics.get(resource.resource_name)
            result = DescribeConfigsResult(
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else 0,
            )
            for name, value in (topic.configs if topic is not None else {}).items():
                result.configs.append(DescribeConfigsResourceResult(name=name, value=value, config_source=1))
            result.configs.append(
                DescribeConfigsResourceResult(name="max.message.bytes", value="1048588", config_source=5)
            )
            response.results.append(result)
        return response

    # --- Fetch

    async def on_fetch(self, message: Any, version: int) -> FetchResponse:
        wanted, refusal, session_id = self._session(message, version)
        if refusal:
            return FetchResponse(error_code=refusal)
        told = self.told.setdefault(session_id, set()) if session_id else set()
        fresh = wanted.keys() - told  # Kafka answers these even when there is nothing to read
        told |= wanted.keys()
        with trio.move_on_after(message.max_wait_ms / 1000):
            while True:
                response = self._read(wanted, message, version, fresh=fresh)
                parts = [part for topic in response.responses for part in topic.partitions]
                if any(part.error_code or len(_plain(part.records)) for part in parts) or not message.max_wait_ms:
                    break
                await self.cluster.changed.wait()
        response.session_id = session_id
        return response

    def _session(self, message: Any, version: int) -> tuple[dict[Key, Any], int, int]:
        def identity(topic: Any) -> bytes | str:
            found: bytes | str = topic.topic_id if version >= 13 else topic.topic
            return found

        def flat(topics: list[Any]) -> dict[Key, Any]:
            return {(identity(topic), part.partition): part for topic in topics for part in topic.partitions}

        if message.session_epoch == -1:
            self.sessions.pop(message.session_id, None)
            return flat(message.topics), 0, 0
        if message.session_epoch == 0:
            self.sessions.pop(message.session_id, None)
            self._next_session += 1
            self.sessions[self._next_session] = flat(message.topics)
            self.session_epochs[self._next_session] = 1
            return self.sessions[self._next_session], 0, self._next_session
        held = self.sessions.get(message.session_id)
        if held is None:
            return {}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0
        if self.session_epochs[message.session_id] != message.session_epoch:
            return {}, ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0
        self.session_epochs[message.session_id] += 1
        for topic in message.forgotten_topics_data:
            for index in topic.partitions:
                held.pop((identity(topic), index), None)
        held.update(flat(message.topics))
        return held, 0, message.session_id

    def _read(self, wanted: dict[Key, Any], message: Any, version: int, *, fresh: set[Key]) -> FetchResponse:
        response = FetchResponse()
        topics: dict[bytes | str, FetchableTopicResponse] = {}
        names = {topic.topic_id: name for name, topic in self.cluster.topics.items()}
        left = message.max_bytes
        for (identity, index), asked in wanted.items():
            name = names.get(identity) if isinstance(identity, bytes) else identity
            code, part = self.check(name, index, asked.current_leader_epoch)
            data = PartitionData(partition_index=index, error_code=code)
            if name is None:
                data.error_code = ErrorCode.UNKNOWN_TOPIC_ID
            elif not code and part is not None:
                left -= self._fill(data, part, asked, left)
            elif part is not None and version >= 12:
                data.current_leader = FetchLeaderIdAndEpoch(leader_id=part.leader, leader_epoch=part.leader_epoch)
            if (identity, index) in fresh or data.error_code or len(_plain(data.records)):
                if identity not in topics:
                    topics[identity] = (
                        FetchableTopicResponse(topic_id=identity)
                        if isinstance(identity, bytes)
                        else FetchableTopicResponse(topic=identity)
                    )
                    response.responses.append(topics[identity])
                topics[identity].partitions.append(data)
        return response

    @staticmethod
    def _fill(data: PartitionData, part: FakePartition, asked: Any, left: int) -> int:
        if not part.log_start <= asked.fetch_offset <= part.end:
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            data.high_watermark = data.last_stable_offset = data.log_start_offset = -1
            return 0
        data.high_watermark = data.last_stable_offset = part.end
        data.log_start_offset = part.log_start
        records = part.read(asked.fetch_offset, min(left, asked.partition_max_bytes)) if left > 0 else b""
        data.records = records
        return len(records)


def _plain(records: Any) -> bytes:
    """Records and frames as one buffer; the fake holds everything in memory."""
    return b"".join([bytes(piece) for piece in records]) if isinstance(records, list) else bytes(records or b"")


async def _exactly(stream: Any, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        part = await stream.receive_some(size_bytes - len(data))
        if not part:
            raise EOFError
        data += part
    return data


class FakeCluster:
    """`dialer` connects to the brokers; connections are served in the nursery handed in."""

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        brokers: int = 1,
        versions: Ranges = KAFKA_4_4_0,
        cluster_id: str = "source-cluster",
    ) -> None:
        self.nursery = nursery
        self.cluster_id = cluster_id
        self.topics: dict[str, FakeTopic] = {}
        self.groups: dict[str, FakeGroup] = {}
        self.brokers = {node: FakeBroker(self, node, versions) for node in range(1, brokers + 1)}
        self.changed = trio.Event()

    @property
    def bootstrap(self) -> list[str]:
        return [f"{broker.host}:{broker.port}" for broker in self.brokers.values()]

    def topic(self, name: str, partitions: int = 1, *, topic_id: bytes | None = None) -> FakeTopic:
        topic = FakeTopic(topic_id=topic_id if topic_id is not None else uuids.random_id())
        leaders = list(self.brokers)
        topic.partitions = {index: FakePartition(leader=leaders[index % len(leaders)]) for index in range(partitions)}
        self.topics[name] = topic
        return topic

    def touch(self) -> None:
        """Something changed: parked fetches look again."""
        changed, self.changed = self.changed, trio.Event()
        changed.set()

    async def dialer(self, host: str, port: int) -> StreamTransport:
        await trio.lowlevel.checkpoint()
        for broker in self.brokers.values():
            if (broker.host, broker.port) == (host, port):
                broker.dialed_at_s.append(trio.current_time())
                if not broker.up:
                    break
                ours, theirs = trio.testing.memory_stream_pair()
                broker.streams.append(theirs)
                self.nursery.start_soon(broker.serve, theirs)
                return StreamTransport(ours)
        raise PeerUnreachable(f"cannot connect to {host}:{port} (refused)")
