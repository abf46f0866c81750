"""OffsetFetch (9): read what groups have committed.

Versions: 1-10.

Behaviour: one row per asked partition; without an offset it is -1, epoch -1, metadata "", error 0, and so is everything
of a group that does not exist. Null topics (version 2 on) are all that the group has. From version 8 on several groups
are answered at once; from version 10 on topics go by id, an unknown one is UNKNOWN_TOPIC_ID, and an offset committed
for an earlier topic of the same name is not shown. With require_stable (version 7 on) an offset that an open
transaction may still change is UNSTABLE_OFFSET_COMMIT. Nothing is told that is not on disk.

Deviations: the member id and epoch of version 9 on mean something in the consumer protocol only, which is not served
yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat

from kmirror.coordinator.groups.offsets import OffsetValue
from kmirror.effects import Place
from kmirror.limits import ROWS_PER_TURN
from kmirror.protocol.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.uuids import ZERO
from kmirror.server.context import RequestContext
from kmirror.server.waiting import Turn, parts, settled

VERSIONS = (1, 10)

_FIRST_VERSION_WITH_GROUPS = 8
_FIRST_VERSION_WITH_IDS = 10


async def handle(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if context.api_version >= _FIRST_VERSION_WITH_GROUPS:
        groups = await _groups(context, request.groups, stable=request.require_stable)
        return OffsetFetchResponse(groups=groups)
    asked = None
    if request.topics is not None:
        asked = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    only = OffsetFetchRequestGroup(group_id=request.group_id, topics=asked)
    found = await _group(context, only, stable=request.require_stable)
    return OffsetFetchResponse(topics=[_old_form(topic) for topic in found.topics], error_code=found.error_code)


async def _groups(
    context: RequestContext, asked: list[OffsetFetchRequestGroup], *, stable: bool
) -> list[OffsetFetchResponseGroup]:
    """A group all of whose offsets are asked for more than once shares its row: it may have thousands."""
    complete: dict[str, OffsetFetchResponseGroup] = {}
    found: list[OffsetFetchResponseGroup] = []
    turn = Turn()
    for group in asked:
        await turn.let_others()
        row = complete.get(group.group_id) if group.topics is None else None
        if row is None:
            row = await _group(context, group, stable=stable)
            if group.topics is None:
                complete[group.group_id] = row
        found.append(row)
    return found


async def _group(context: RequestContext, asked: OffsetFetchRequestGroup, *, stable: bool) -> OffsetFetchResponseGroup:
    if asked.topics is None:
        topics = await _everything(context, asked.group_id, stable=stable)
    else:
        topics = await _listed(context, asked.group_id, asked.topics, stable=stable)
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics)


async def _everything(context: RequestContext, group_id: str, *, stable: bool) -> list[OffsetFetchResponseTopics]:
    by_id = context.api_version >= _FIRST_VERSION_WITH_IDS
    topics: dict[str, OffsetFetchResponseTopics] = {}
    rows = await settled(context.world.groups.offsets.fetch_all(group_id, require_stable=stable))
    turn = Turn()
    for (name, index), value in rows:
        await turn.let_others()
        known = context.world.image.topics_by_name.get(name)
        if by_id and known is None:  # it has no id that could be told
            continue
        topic = topics.get(name)
        if topic is None:
            topic_id = ZERO if known is None else known.topic_id
            topic = topics[name] = OffsetFetchResponseTopics(name=name, topic_id=topic_id)
        topic.partitions.append(_row(index, value))
    return list(topics.values())


async def _listed(
    context: RequestContext, group_id: str, asked: list[OffsetFetchRequestTopics], *, stable: bool
) -> list[OffsetFetchResponseTopics]:
    """All topics are read in one look: of a commit that comes meanwhile nothing is told, not a part."""
    by_id = context.api_version >= _FIRST_VERSION_WITH_IDS
    found: list[tuple[OffsetFetchResponseTopics, list[int]]] = []
    unknown: list[tuple[OffsetFetchResponseTopics, list[int]]] = []
    places: list[tuple[Place, bytes]] = []
    turn = Turn()
    for topic in asked:
        await turn.let_others()
        name, topic_id = topic.name, ZERO
        if by_id:
            topic_id = bytes(topic.topic_id)
            known = context.world.image.topics_by_id.get(topic_id)
            if known is None:
                unknown.append((OffsetFetchResponseTopics(topic_id=topic_id), topic.partition_indexes))
                continue
            name = known.name
        found.append((OffsetFetchResponseTopics(name=name, topic_id=topic_id), topic.partition_indexes))
        places += [((name, index), topic_id) for index in topic.partition_indexes]
    values = await settled(context.world.groups.offsets.fetch(group_id, places, require_stable=stable))
    await _fill(found, iter(values))
    await _fill(unknown, repeat(OffsetValue(error_code=ErrorCode.UNKNOWN_TOPIC_ID)))
    return [row for row, _indexes in chain(found, unknown)]


async def _fill(rows: list[tuple[OffsetFetchResponseTopics, list[int]]], values: Iterator[OffsetValue]) -> None:
    turn = Turn()
    for row, indexes in rows:
        for some in parts(indexes, ROWS_PER_TURN):
            await turn.let_others()
            row.partitions += [_row(index, next(values)) for index in some]


def _row(index: int, value: OffsetValue) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        error_code=value.error_code,
    )


def _old_form(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=row.partition_index,
                committed_offset=row.committed_offset,
                committed_leader_epoch=row.committed_leader_epoch,
                metadata=row.metadata,
                error_code=row.error_code,
            )
            for row in topic.partitions
        ],
    )
