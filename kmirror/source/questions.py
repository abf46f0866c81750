"""Carries the mirror's questions to one source broker and brings back what it said, error codes and all.

Questions of one kind go out in one request as far as the API allows; single batches are fetched one by one, outside the
fetch sessions, so that they never disturb the copying.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kmirror.broker.mirror_seam import (
    Answer,
    BatchAnswer,
    BatchQuery,
    EpochEndAnswer,
    EpochEndQuery,
    ErrorAnswer,
    LineageAnswer,
    LineageQuery,
    OffsetAnswer,
    OffsetQuery,
    Query,
)
from kmirror.mirror.joining import STOPPED
from kmirror.protocol.api.describe_cluster_mirrors import (
    DescribeClusterMirrorsRequest,
    DescribeClusterMirrorsResponse,
    DescribeMirrorTopic,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.source import calls
from kmirror.source.connection import Connection

_FIRST_EPOCH_END_AS_CONSUMER = 2
"""OffsetForLeaderEpoch before v2 answers neither fenced nor with the epoch found."""

Q = TypeVar("Q", bound=Query)
Answered = Callable[[Query, Answer], None]


async def ask(connection: Connection, queries: Sequence[Query], answered: Answered) -> None:
    """Calls `answered` once for every query, unless it raises PeerError or DecodeError: then for some."""
    epoch_ends = [query for query in queries if isinstance(query, EpochEndQuery)]
    offsets = [query for query in queries if isinstance(query, OffsetQuery)]
    if epoch_ends:
        await _ask_epoch_ends(connection, epoch_ends, answered)
    if offsets:
        await _ask_offsets(connection, offsets, answered)
    lineages = [query for query in queries if isinstance(query, LineageQuery)]
    if lineages:
        await _ask_lineages(connection, lineages, answered)
    for query in queries:
        if isinstance(query, BatchQuery):
            answered(query, await _ask_batch(connection, query))


async def _ask_epoch_ends(connection: Connection, queries: list[EpochEndQuery], answered: Answered) -> None:
    if not connection.supports("OffsetForLeaderEpoch", _FIRST_EPOCH_END_AS_CONSUMER):
        _refuse(queries, answered, "OffsetForLeaderEpoch 2 (Kafka 2.1)")
        return
    for part in _once_per_partition(queries):
        request = calls.epoch_end_request(
            {key: (query.epoch, query.current_leader_epoch) for key, query in part.items()}
        )
        found = calls.epoch_ends(await connection.request(request))
        for key, query in part.items():
            end = found.get(key)
            if end is None or end.error_code:
                answered(query, _error(end))
            else:
                answered(query, EpochEndAnswer(leader_epoch=end.leader_epoch, end_offset=end.end_offset))


async def _ask_offsets(connection: Connection, queries: list[OffsetQuery], answered: Answered) -> None:
    for part in _once_per_partition(queries):
        request = calls.list_offsets_request(
            {key: query.timestamp for key, query in part.items()},
            isolation_level=calls.READ_UNCOMMITTED,
            epochs={key: query.current_leader_epoch for key, query in part.items()},
        )
        found = calls.listed_offsets(await connection.request(request))
        for key, query in part.items():
            offset = found.get(key)
            if offset is None or offset.error_code:
                answered(query, _error(offset))
            else:
                answered(
                    query,
                    OffsetAnswer(offset=offset.offset, timestamp=offset.timestamp, leader_epoch=offset.leader_epoch),
                )


async def _ask_batch(connection: Connection, query: BatchQuery) -> Answer:
    request, version = calls.fetch_request(
        connection,
        (query.topic, query.partition),
        topic_id=query.topic_id,
        offset=query.offset,
        max_bytes=query.max_bytes,
        min_bytes=0,
        wait_ms=0,
        isolation_level=calls.READ_UNCOMMITTED,
        current_leader_epoch=query.current_leader_epoch,
    )
    found = calls.fetched(await connection.request(request, version))
    return ErrorAnswer(code=found.error_code) if found.error_code else BatchAnswer(records=found.records)


async def _ask_lineages(connection: Connection, queries: list[LineageQuery], answered: Answered) -> None:
    """One request for all of one cluster id, which is ours: there is one."""
    if not calls.speaks_mirror_apis(connection):
        for query in queries:
            answered(query, LineageAnswer(supported=False))
        return
    for part in _once_per_partition(queries):
        cluster_id = next(iter(part.values())).cluster_id
        response = await connection.request(lineage_request(cluster_id, part))
        for query in part.values():
            answered(query, lineage_of(response, query))


def lineage_request(cluster_id: str, partitions: Iterable[calls.Partition]) -> DescribeClusterMirrorsRequest:
    """What do the mirrors that copy (or copied) from `cluster_id` know of these partitions?"""
    topics: dict[str, DescribeMirrorTopic] = {}
    for name, index in partitions:
        topics.setdefault(name, DescribeMirrorTopic(topic_name=name)).partitions.append(index)
    return DescribeClusterMirrorsRequest(
        mirror_names=None,
        topics=list(topics.values()),
        cluster_id=cluster_id,
        include_mirror_state=True,
        include_mirror_offset=False,
    )


def lineage_of(response: DescribeClusterMirrorsResponse, query: LineageQuery) -> Answer:
    """One partition of the answer to `lineage_request`: a mirror that is not STOPPED counts before any that is, then
    the largest last mirror offset. A broker that coordinates nothing of it answers -1, as one that knows nothing."""
    if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
        return LineageAnswer(supported=False)
    if response.error_code:
        return ErrorAnswer(code=response.error_code, message=response.error_message or "")
    found: list[LineageAnswer] = []
    for mirror in response.mirrors:
        if mirror.source_cluster_id != query.cluster_id:
            continue
        if mirror.error_code:
            text = mirror.error_message or f"error {mirror.error_code}"
            return ErrorAnswer(code=mirror.error_code, message=f"mirror {mirror.mirror_name!r} of the source: {text}")
        found += [
            LineageAnswer(
                last_mirror_epoch=row.last_mirror_epoch,
                last_mirror_offset=row.last_mirror_offset,
                mirror=mirror.mirror_name,
                state=row.state_value,
            )
            for topic in mirror.topics
            for row in topic.partitions
            if (topic.topic_name, row.partition_index) == (query.topic, query.partition)
        ]
    return max(found, key=lambda one: (one.state != STOPPED, one.last_mirror_offset), default=LineageAnswer())


def _once_per_partition(queries: list[Q]) -> list[dict[calls.Partition, Q]]:
    """Rounds in which every partition stands at most once: an API names a partition once per request."""
    rounds: list[dict[calls.Partition, Q]] = []
    for query in queries:
        key = (query.topic, query.partition)
        for part in rounds:
            if key not in part:
                part[key] = query
                break
        else:
            rounds.append({key: query})
    return rounds


def _error(found: calls.EpochEnd | calls.ListedOffset | None) -> ErrorAnswer:
    if found is None:
        return ErrorAnswer(code=ErrorCode.UNKNOWN_SERVER_ERROR, message="the answer leaves this partition out")
    return ErrorAnswer(code=found.error_code)


def _refuse(queries: Sequence[Query], answered: Answered, needed: str) -> None:
    for query in queries:
        answered(query, ErrorAnswer(code=ErrorCode.UNSUPPORTED_VERSION, message=f"the source does not serve {needed}"))
