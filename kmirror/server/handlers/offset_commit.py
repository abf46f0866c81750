"""OffsetCommit (8): a group stores how far it has read.

Versions: 2-10.

Behaviour: members commit in their generation; without member id and generation a group without members may be committed
to from outside, and comes to be by it. Partitions are accepted one by one: unknown ones are UNKNOWN_TOPIC_OR_PARTITION
(from version 10 on, an unknown topic id is UNKNOWN_TOPIC_ID), metadata above offset.metadata.max.bytes is
OFFSET_METADATA_TOO_LARGE. A generation of a group that does not exist is GROUP_ID_NOT_FOUND, before version 9
ILLEGAL_GENERATION. The retention of versions 2 to 4 is kept. Mirror topics may be committed for in every state: nothing
is written to them (KIP-1279). Answered once the offsets are on disk.

Deviations: Kafka answers NOT_COORDINATOR until a FindCoordinator has created __consumer_offsets; here the first commit
creates it. More than 1000 partitions are committed in several batches, where Kafka writes one or refuses all.
"""

from __future__ import annotations

from kmirror.broker.group_offsets import Committer, client_code
from kmirror.errors import ApiError
from kmirror.protocol.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kmirror.server.context import RequestContext
from kmirror.server.offset_rows import AskedOffsets
from kmirror.server.waiting import settled

VERSIONS = (2, 10)

_FIRST_VERSION_WITH_IDS = 10


async def handle(context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    asked = await AskedOffsets.of(context.world, request.topics, by_id=context.api_version >= _FIRST_VERSION_WITH_IDS)
    codes = await _commit(context, request, asked) if asked.rows else []
    return OffsetCommitResponse(
        topics=await asked.answer(OffsetCommitResponseTopic, OffsetCommitResponsePartition, codes),
    )


async def _commit(context: RequestContext, request: OffsetCommitRequest, asked: AskedOffsets) -> list[int]:
    who = Committer(
        group_id=request.group_id,
        member_id=request.member_id,
        generation=request.generation_id_or_member_epoch,
        instance_id=request.group_instance_id,
    )
    offsets = context.world.groups.offsets
    try:
        await settled(offsets.usable())
    except ApiError as error:
        return [client_code(error.code)] * len(asked.rows)
    return await asked.committed(
        lambda rows: offsets.commit(who, rows, api_version=context.api_version, retention_ms=request.retention_time_ms)
    )
