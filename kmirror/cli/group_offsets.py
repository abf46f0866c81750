"""Committed offsets of a group: reading, writing and deleting them, over every version of the three requests.

Topics go by name: OffsetFetch and OffsetCommit 10 name them by id, which brings a client that was given names nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kmirror.cli.coordinator import Coordinator, as_is
from kmirror.cli.session import check
from kmirror.protocol.api import offset_commit, offset_delete, offset_fetch
from kmirror.protocol.errors import ErrorCode
from kmirror.source.calls import Partition
from kmirror.source.connection import Connection

BY_NAME = 9
"""The last version of OffsetFetch and OffsetCommit that names topics."""
BATCHED_FETCH_VERSION = 8
STABLE_FETCH_VERSION = 7
INSTANCE_VERSION = 7
UNSTABLE = frozenset({ErrorCode.UNSTABLE_OFFSET_COMMIT})


@dataclass(frozen=True, slots=True)
class Committed:
    """`offset`: of the next record to read. `leader_epoch` -1: unknown."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who commits: a member in a generation, or (the defaults) somebody outside the group, who may when it is empty."""

    generation_id: int = -1
    member_id: str = ""
    instance_id: str | None = None


OUTSIDER = Identity()


def by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    """Topics in order, and the partitions of each."""
    topics: dict[str, list[int]] = {}
    for name, index in sorted(partitions):
        topics.setdefault(name, []).append(index)
    return topics


def _codes(response: Any) -> dict[Partition, int]:
    return {
        (topic.name, partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
    }


def _first_code(response: Any) -> int:
    codes = (partition.error_code for topic in response.topics for partition in topic.partitions)
    return int(next((code for code in codes if code), ErrorCode.NONE))


# --- reading ----------------------------------------------------------------------------------------------------------


async def committed(
    coordinator: Coordinator, partitions: Iterable[Partition] | None = None, *, stable: bool = False
) -> dict[Partition, Committed]:
    """Offsets of these partitions, or all that the group has. Partitions without one are missing.

    `stable` waits for offsets that an open transaction may still change. Raises Failure, PeerError, DecodeError.
    """
    topics = None if partitions is None else by_topic(partitions)

    def build(connection: Connection) -> tuple[Any, int | None]:
        version = connection.version_of("OffsetFetch", BY_NAME)
        return _fetch_request(coordinator.key, topics, version, stable=stable), version

    response = await coordinator.ask(build, _fetch_code, again=UNSTABLE)
    part = response.groups[0] if response.groups else response
    check(_fetch_code(response), None, f"offsets of group {coordinator.key} cannot be read")
    return {
        (topic.name, partition.partition_index): Committed(
            partition.committed_offset, partition.committed_leader_epoch, partition.metadata or ""
        )
        for topic in part.topics
        for partition in topic.partitions
        if partition.committed_offset >= 0
    }


def _fetch_request(group: str, topics: dict[str, list[int]] | None, version: int, *, stable: bool) -> Any:
    request = offset_fetch.OffsetFetchRequest(require_stable=stable and version >= STABLE_FETCH_VERSION)
    batched = version >= BATCHED_FETCH_VERSION
    row: Any = offset_fetch.OffsetFetchRequestTopics if batched else offset_fetch.OffsetFetchRequestTopic
    asked = None
    if topics is not None:
        asked = [row(name=name, partition_indexes=indexes) for name, indexes in topics.items()]
    if batched:
        request.groups = [offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=asked)]
    else:
        request.group_id, request.topics = group, asked
    return request


def _fetch_code(response: Any) -> int:
    """The error of the whole, else the first one of a partition."""
    part = response.groups[0] if response.groups else response
    return int(part.error_code) or _first_code(part)


# --- writing ----------------------------------------------------------------------------------------------------------


async def commit(
    coordinator: Coordinator,
    offsets: Mapping[Partition, Committed],
    identity: Identity = OUTSIDER,
    *,
    timeout_ms: int | None = None,
) -> dict[Partition, int]:
    """The error code per partition, 0 where it was stored. Raises Failure (no coordinator), PeerError, DecodeError."""
    topics = [
        offset_commit.OffsetCommitRequestTopic(
            name=name,
            partitions=[
                offset_commit.OffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=offsets[name, index].offset,
                    committed_leader_epoch=offsets[name, index].leader_epoch,
                    committed_metadata=offsets[name, index].metadata,
                )
                for index in indexes
            ],
        )
        for name, indexes in by_topic(offsets).items()
    ]

    def build(connection: Connection) -> tuple[Any, int | None]:
        version = connection.version_of("OffsetCommit", BY_NAME)
        request = offset_commit.OffsetCommitRequest(
            group_id=coordinator.key,
            generation_id_or_member_epoch=identity.generation_id,
            member_id=identity.member_id,
            group_instance_id=identity.instance_id if version >= INSTANCE_VERSION else None,
            topics=topics,
        )
        return request, version

    response = await coordinator.ask(build, _first_code, timeout_ms=timeout_ms)
    return _codes(response)


# --- deleting ---------------------------------------------------------------------------------------------------------


async def delete(coordinator: Coordinator, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """The error code per partition. Raises Failure (the group as a whole is refused), PeerError, DecodeError."""
    request = offset_delete.OffsetDeleteRequest(
        group_id=coordinator.key,
        topics=[
            offset_delete.OffsetDeleteRequestTopic(
                name=name,
                partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=index) for index in indexes],
            )
            for name, indexes in by_topic(partitions).items()
        ],
    )
    response = await coordinator.ask(as_is(request))
    check(response.error_code, None, f"offsets of group {coordinator.key} were not deleted")
    return _codes(response)
