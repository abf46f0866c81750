"""Requests that the client side sends, and their answers as plain values. No I/O: a call is built, and read, here.

Every builder takes the connection it will go out on, since what may be said depends on the negotiated version. Answers
keep error codes per item: nothing here raises for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kmirror.protocol import mirror_numbers, uuids
from kmirror.protocol.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kmirror.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from kmirror.protocol.api.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kmirror.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from kmirror.protocol.api.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kmirror.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kmirror.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kmirror.source.connection import Connection

ZERO_ID = uuids.ZERO
CONSUMER = -1
"""Replica id of somebody who is no replica."""
READ_UNCOMMITTED = 0
READ_COMMITTED = 1
LATEST = -1
EARLIEST = -2
TOPIC_RESOURCE = 2
_DYNAMIC_TOPIC_CONFIG = 1
"""ConfigSource of an override on the topic itself (DescribeConfigs v1+)."""
PRODUCE_BY_NAME = 12
FETCH_BY_NAME = 12
"""The last versions that name topics; from 13 on they carry ids."""

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    """`offset` -1: no record at or after the timestamp."""

    error_code: int = 0
    offset: int = -1
    timestamp: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    error_code: int = 0
    leader_epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    value: str | None
    source: int
    """Kafka's ConfigSource; 1 = set on the topic itself. 0 where the broker is too old to tell."""
    is_sensitive: bool = False

    @property
    def is_dynamic_topic_config(self) -> bool:
        return self.source == _DYNAMIC_TOPIC_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigs:
    error_code: int = 0
    error_message: str | None = None
    entries: Mapping[str, ConfigEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    error_code: int = 0
    error_message: str | None = None
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1


@dataclass(slots=True, kw_only=True)
class Fetched:
    """One partition's answer; `records` is a view that may end in a partial batch."""

    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: bytes | memoryview = b""
    aborted: Sequence[tuple[int, int]] = ()
    """(producer id, first offset), only at READ_COMMITTED."""
    current_leader_id: int = -1
    current_leader_epoch: int = -1


def metadata_request(connection: Connection, topics: Sequence[str] | None) -> MetadataRequest:
    """`topics` None asks for all. Never creates a topic where the version lets us say so (v4+)."""
    version = connection.version_of("Metadata")
    request = MetadataRequest()
    if version >= 4:
        request.allow_auto_topic_creation = False
    if topics is None:
        request.topics = [] if version == 0 else None
    else:
        request.topics = [MetadataRequestTopic(name=name) for name in topics]
    return request


def list_offsets_request(
    asked: Mapping[Partition, int], *, isolation_level: int, epochs: Mapping[Partition, int]
) -> ListOffsetsRequest:
    """`asked`: timestamp in ms, or LATEST, EARLIEST, per partition; `epochs`: current leader epochs where known."""
    topics: dict[str, ListOffsetsTopic] = {}
    for (name, index), timestamp in asked.items():
        topic = topics.setdefault(name, ListOffsetsTopic(name=name))
        topic.partitions.append(
            ListOffsetsPartition(
                partition_index=index, timestamp=timestamp, current_leader_epoch=epochs.get((name, index), -1)
            )
        )
    return ListOffsetsRequest(replica_id=CONSUMER, isolation_level=isolation_level, topics=list(topics.values()))


def listed_offsets(response: Any) -> dict[Partition, ListedOffset]:
    return {
        (topic.name, partition.partition_index): ListedOffset(
            error_code=partition.error_code,
            offset=partition.offset,
            timestamp=partition.timestamp,
            leader_epoch=partition.leader_epoch,
        )
        for topic in response.topics
        for partition in topic.partitions
    }


def epoch_end_request(asked: Mapping[Partition, tuple[int, int]]) -> OffsetForLeaderEpochRequest:
    """`asked`: (epoch, current leader epoch or -1) per partition."""
    topics: dict[str, OffsetForLeaderTopic] = {}
    for (name, index), (epoch, current) in asked.items():
        topic = topics.setdefault(name, OffsetForLeaderTopic(topic=name))
        topic.partitions.append(
            OffsetForLeaderPartition(partition=index, current_leader_epoch=current, leader_epoch=epoch)
        )
    return OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=list(topics.values()))


def epoch_ends(response: Any) -> dict[Partition, EpochEnd]:
    return {
        (topic.topic, partition.partition): EpochEnd(
            error_code=partition.error_code, leader_epoch=partition.leader_epoch, end_offset=partition.end_offset
        )
        for topic in response.topics
        for partition in topic.partitions
    }


def describe_topic_configs_request(topics: Sequence[str]) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None)
            for name in topics
        ]
    )


def topic_configs(response: Any) -> dict[str, TopicConfigs]:
    return {
        result.resource_name: TopicConfigs(
            error_code=result.error_code,
            error_message=result.error_message,
            entries={
                entry.name: ConfigEntry(
                    value=entry.value, source=getattr(entry, "config_source", 0), is_sensitive=entry.is_sensitive
                )
                for entry in result.configs
            },
        )
        for result in response.results
        if result.resource_type == TOPIC_RESOURCE
    }


def fetch_request(
    connection: Connection,
    partition: Partition,
    *,
    topic_id: bytes,
    offset: int,
    max_bytes: int,
    min_bytes: int,
    wait_ms: int,
    isolation_level: int,
    current_leader_epoch: int,
) -> tuple[FetchRequest, int]:
    """One partition outside any session, and the version to send it at: by id where both sides have one."""
    version = connection.version_of("Fetch", None if topic_id != ZERO_ID else FETCH_BY_NAME)
    name, index = partition
    topic = FetchTopic(topic_id=topic_id) if version > FETCH_BY_NAME else FetchTopic(topic=name)
    topic.partitions.append(
        FetchPartition(
            partition=index,
            current_leader_epoch=current_leader_epoch,
            fetch_offset=offset,
            partition_max_bytes=max_bytes,
        )
    )
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=0,
        session_epoch=-1,
        topics=[topic],
    )
    return request, version


def fetched(response: Any) -> Fetched:
    """The only partition of an answer to `fetch_request`."""
    if response.error_code or not response.responses or not response.responses[0].partitions:
        return Fetched(error_code=response.error_code or ErrorCode.UNKNOWN_SERVER_ERROR)
    data = response.responses[0].partitions[0]
    return Fetched(
        error_code=data.error_code,
        high_watermark=data.high_watermark,
        last_stable_offset=data.last_stable_offset,
        log_start_offset=data.log_start_offset,
        records=data.records if data.records is not None else b"",
        aborted=[(entry.producer_id, entry.first_offset) for entry in data.aborted_transactions or ()],
        current_leader_id=data.current_leader.leader_id,
        current_leader_epoch=data.current_leader.leader_epoch,
    )


def produce_request(
    connection: Connection, partition: Partition, records: Any, *, topic_id: bytes, acks: int, timeout_ms: int
) -> tuple[ProduceRequest, int]:
    """`records`: whole record batches, magic 2."""
    version = connection.version_of("Produce", None if topic_id != ZERO_ID else PRODUCE_BY_NAME)
    name, index = partition
    topic = TopicProduceData(topic_id=topic_id) if version > PRODUCE_BY_NAME else TopicProduceData(name=name)
    topic.partition_data.append(PartitionProduceData(index=index, records=records))
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[topic]), version


def produced(response: Any) -> Produced:
    """The only partition of an answer to `produce_request`."""
    if not response.responses or not response.responses[0].partition_responses:
        return Produced(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    data = response.responses[0].partition_responses[0]
    return Produced(
        error_code=data.error_code,
        error_message=data.error_message,
        base_offset=data.base_offset,
        log_append_time_ms=data.log_append_time_ms,
        log_start_offset=data.log_start_offset,
    )


def speaks_mirror_apis(connection: Connection) -> bool:
    """A source can be asked for lineage: the API keys *and* the feature, never a key alone."""
    versions = connection.peer.versions
    feature = connection.peer.features.get(mirror_numbers.FEATURE)
    return (
        all(key in versions for key in mirror_numbers.CAPABLE_SOURCE_KEYS)
        and feature is not None
        and feature.finalized_level >= 1
    )
