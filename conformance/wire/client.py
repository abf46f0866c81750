"""A blocking connection and a handle on the broker under test, with the small vocabulary the cases are written in."""

from __future__ import annotations

import itertools
import random
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest

from conformance.peers.processes import receive_exactly, split_address
from conformance.wire.batches import Batch, parse
from kmirror.protocol import frames, registry
from kmirror.protocol.api.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kmirror.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, PartitionData
from kmirror.protocol.api.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kmirror.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from kmirror.protocol.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from kmirror.protocol.compile import decode
from kmirror.protocol.registry import Api

TIMEOUT_S = 20.0
EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
_TOPIC_IDS_FROM = 13  # Produce and Fetch name topics by id from this version on
_numbers = itertools.count(1)


def frame(
    api_key: int, version: int, correlation_id: int, body: bytes, *, flexible: bool, client: str = "wire"
) -> bytes:
    """A request frame with a hand-built body."""
    name = client.encode()
    header = struct.pack(">hhih", api_key, version, correlation_id, len(name)) + name + (b"\0" if flexible else b"")
    return struct.pack(">i", len(header) + len(body)) + header + body


class Connection:
    """One TCP connection. `send` and `receive` may be interleaved: answers belong to requests in order."""

    def __init__(self, address: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self.socket = socket.create_connection(split_address(address), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._waiting: deque[tuple[Api, int, int]] = deque()
        self._correlation_id = random.randrange(1 << 20)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, message: object, version: int, *, answered: bool = True) -> int:
        """Sends a request; its correlation id. `answered` false for Produce with acks=0."""
        api = registry.api_of(message)
        self._correlation_id += 1
        self.socket.sendall(frames.request_frame(api, version, self._correlation_id, "wire", message))
        if answered:
            self._waiting.append((api, version, self._correlation_id))
        return self._correlation_id

    def send_raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive_frame(self) -> bytes:
        (size_bytes,) = struct.unpack(">i", receive_exactly(self.socket, 4))
        return receive_exactly(self.socket, size_bytes)

    def receive(self) -> Any:
        """The answer to the oldest request that has none; it must decode exactly and carry its correlation id."""
        api, version, expected = self._waiting.popleft()
        answer = self.receive_frame()
        (correlation_id,) = struct.unpack_from(">i", answer)
        assert correlation_id == expected, f"{api.name}: answer {correlation_id} to request {expected}"
        offset = 4
        if version >= api.flexible_from and api.key != registry.API_VERSIONS_KEY:
            assert answer[4] == 0, f"{api.name} v{version}: tags in the response header: {answer[4]}"
            offset = 5
        return decode(api.response, answer, version, offset=offset, exact=True)

    def request(self, message: object, version: int) -> Any:
        self.send(message, version)
        return self.receive()

    def closed_within(self, seconds: float) -> bool:
        """Does the broker close this connection, saying nothing more?"""
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False


@dataclass(slots=True)
class Topic:
    name: str
    topic_id: bytes
    partition_count: int


@dataclass(slots=True)
class Row:
    """What to fetch from one partition."""

    topic: Topic
    offset: int = 0
    partition: int = 0
    max_bytes: int = 1 << 20
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1


@dataclass(slots=True)
class Fetched:
    """A Fetch answer: top-level fields, and rows by (topic name or id, partition)."""

    error_code: int
    session_id: int
    rows: dict[tuple[object, int], PartitionData] = field(default_factory=dict)
    seconds: float = 0.0

    def row(self) -> PartitionData:
        """The only row."""
        assert len(self.rows) == 1, self.rows
        return next(iter(self.rows.values()))

    def batches(self) -> list[Batch]:
        return parse(self.row().records or b"")  # type: ignore[arg-type]


class Broker:
    """The broker under test, reached by its address only."""

    def __init__(self, address: str) -> None:
        self.address = address
        with self.connect() as connection:
            answer = connection.request(_api_versions(), 0)
        self.ranges = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def connect(self) -> Connection:
        return Connection(self.address)

    def version(self, name: str, highest: int | None = None) -> int:
        """The newest version that the broker and the schemas share, not above `highest`. Skips the test when none."""
        api = registry.by_name[name]
        if api.key not in self.ranges:
            pytest.skip(f"this broker does not serve {name}")
        low, high = self.ranges[api.key]
        version: int = min(high, api.max_version, high if highest is None else highest)
        if version < max(low, api.min_version):
            pytest.skip(f"this broker serves {name} {low}-{high} only")
        return version

    def request(self, message: object, version: int | None = None) -> Any:
        """One request on a connection of its own, newest version unless told."""
        if version is None:
            version = self.version(registry.api_of(message).name)
        with self.connect() as connection:
            return connection.request(message, version)

    def new_name(self, prefix: str = "wire") -> str:
        return f"{prefix}-{random.getrandbits(32):08x}-{next(_numbers)}"

    def create_topic(
        self, *, partition_count: int = 1, configs: dict[str, str] | None = None, prefix: str = "wire"
    ) -> Topic:
        """A fresh topic, ready for use. Its name begins with `prefix`, where an order of names matters.

        It keeps what it is given, unless `configs` says otherwise: the suite's batches carry an old time, and what is
        older than seven days would go at the broker's next check of retention.
        """
        name = self.new_name(prefix)
        configs = {"retention.ms": "-1"} | (configs or {})
        creatable = CreatableTopic(
            name=name,
            num_partitions=partition_count,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )
        answer = self.request(CreateTopicsRequest(topics=[creatable], timeout_ms=20_000))
        assert answer.topics[0].error_code == 0, answer.topics[0]
        deadline = time.monotonic() + TIMEOUT_S
        while True:  # the answer may come a moment before every part of the broker knows
            described = self.describe_topic(name)
            topic = Topic(name, bytes(described.topic_id), partition_count)
            known = described.error_code == 0 and len(described.partitions) == partition_count
            if known and all(
                not self.list_offset(topic, LATEST, partition=i).error_code for i in range(partition_count)
            ):
                return topic
            assert time.monotonic() < deadline, described

    def produce_when_ready(self, topic: Topic, records: bytes, *, partition: int = 0) -> PartitionProduceResponse:
        """Produces to a topic that was made a moment ago: 3, 5 and 6 are tried again for a while, as clients do."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            row = self.produce(topic, records, partition=partition)
            if row.error_code not in (3, 5, 6, 100) or time.monotonic() > deadline:
                return row

    def describe_topic(self, name: str) -> Any:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        return self.request(request).topics[0]

    # --- produce

    def produce_request(
        self, topic: Topic, records: bytes | None, *, version: int, partition: int = 0, acks: int = -1
    ) -> ProduceRequest:
        data = TopicProduceData(partition_data=[PartitionProduceData(index=partition, records=records)])
        if version >= _TOPIC_IDS_FROM:
            data.topic_id = topic.topic_id
        else:
            data.name = topic.name
        return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[data])

    def produce(
        self, topic: Topic, records: bytes | None, *, partition: int = 0, acks: int = -1, version: int | None = None,
        connection: Connection | None = None,
    ) -> PartitionProduceResponse:  # fmt: skip
        """Produces one slot; its row of the answer."""
        if version is None:
            version = self.version("Produce")
        request = self.produce_request(topic, records, version=version, partition=partition, acks=acks)
        if connection is not None:
            answer = connection.request(request, version)
        else:
            answer = self.request(request, version)
        row: PartitionProduceResponse = answer.responses[0].partition_responses[0]
        return row

    # --- fetch

    def fetch(
        self,
        *rows: Row,
        version: int | None = None,
        max_wait_ms: int = 0,
        min_bytes: int = 0,
        max_bytes: int = 0x7FFF_FFFF,
        isolation_level: int = 0,
        session_id: int = 0,
        session_epoch: int = -1,
        forget: list[tuple[Topic, int]] | None = None,
        connection: Connection | None = None,
    ) -> Fetched:
        """One Fetch, sessionless unless told."""
        if version is None:
            version = self.version("Fetch")
        request = self.fetch_request(
            *rows, version=version, max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes,
            isolation_level=isolation_level, session_id=session_id, session_epoch=session_epoch, forget=forget,
        )  # fmt: skip
        started = time.monotonic()
        answer = connection.request(request, version) if connection is not None else self.request(request, version)
        return fetched(answer, time.monotonic() - started)

    def fetch_request(
        self, *rows: Row, version: int, max_wait_ms: int = 0, min_bytes: int = 0, max_bytes: int = 0x7FFF_FFFF,
        isolation_level: int = 0, session_id: int = 0, session_epoch: int = -1,
        forget: list[tuple[Topic, int]] | None = None,
    ) -> FetchRequest:  # fmt: skip
        by_id = version >= _TOPIC_IDS_FROM
        topics: dict[str, FetchTopic] = {}
        for row in rows:
            entry = topics.setdefault(
                row.topic.name, FetchTopic(topic_id=row.topic.topic_id) if by_id else FetchTopic(topic=row.topic.name)
            )
            partition = FetchPartition(
                partition=row.partition,
                fetch_offset=row.offset,
                partition_max_bytes=row.max_bytes,
                current_leader_epoch=row.current_leader_epoch,
            )
            if version >= 12:
                partition.last_fetched_epoch = row.last_fetched_epoch
            entry.partitions.append(partition)
        forgotten = []
        for topic, index in forget or []:
            entry_ = ForgottenTopic(partitions=[index])
            if by_id:
                entry_.topic_id = topic.topic_id
            else:
                entry_.topic = topic.name
            forgotten.append(entry_)
        return FetchRequest(
            max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, isolation_level=isolation_level,
            session_id=session_id, session_epoch=session_epoch, topics=list(topics.values()),
            forgotten_topics_data=forgotten,
        )  # fmt: skip

    def scan(self, topic: Topic, partition: int = 0) -> list[Batch]:
        """Every batch of a partition, from the log start to the high watermark."""
        offset, end, found = self.earliest(topic, partition), self.latest(topic, partition), []
        while offset < end:
            batches = self.fetch(Row(topic, offset, partition)).batches()
            assert batches, f"nothing at {offset}, although the log ends at {end}"
            found += batches
            offset = batches[-1].last_offset + 1
        return found

    # --- offsets

    def list_offset(
        self, topic: Topic, timestamp: int, *, partition: int = 0, isolation_level: int = 0,
        current_leader_epoch: int = -1, version: int | None = None,
    ) -> Any:  # fmt: skip
        """The row of one ListOffsets query."""
        asked = ListOffsetsPartition(
            partition_index=partition, timestamp=timestamp, current_leader_epoch=current_leader_epoch
        )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[ListOffsetsTopic(name=topic.name, partitions=[asked])],
        )
        return self.request(request, version).topics[0].partitions[0]

    def latest(self, topic: Topic, partition: int = 0) -> int:
        row = self.list_offset(topic, LATEST, partition=partition)
        assert row.error_code == 0, row
        return int(row.offset)

    def earliest(self, topic: Topic, partition: int = 0) -> int:
        row = self.list_offset(topic, EARLIEST, partition=partition)
        assert row.error_code == 0, row
        return int(row.offset)


def _api_versions() -> object:
    from kmirror.protocol.api.api_versions import ApiVersionsRequest

    return ApiVersionsRequest()


def fetched(answer: Any, seconds: float = 0.0) -> Fetched:
    """A Fetch answer in the shape the cases read."""
    result = Fetched(answer.error_code, answer.session_id, seconds=seconds)
    for topic in answer.responses:
        key: object = topic.topic or bytes(topic.topic_id)
        for row in topic.partitions:
            result.rows[key, row.partition_index] = row
    return result
