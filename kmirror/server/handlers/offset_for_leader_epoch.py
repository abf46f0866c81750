"""OffsetForLeaderEpoch (23): where a leader epoch ends in the log (KIP-101, KIP-279, KIP-320).

Versions: 2-4.

Behaviour: the largest epoch at or below the one asked for, and the offset at which it ends; (-1, -1) when the log knows
none. An epoch between the newest in the log and the partition's own ends at the log end. Leader epochs fence.

Deviations: none known.
"""

from __future__ import annotations

from kmirror.errors import ApiError
from kmirror.protocol.api.offset_for_leader_epoch import (
    OffsetForLeaderEpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from kmirror.server.context import RequestContext

VERSIONS = (2, 4)


def handle(context: RequestContext, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_row(context, topic.topic, asked) for asked in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _row(context: RequestContext, topic_name: str, asked: OffsetForLeaderPartition) -> OffsetForLeaderEpochEndOffset:
    row = OffsetForLeaderEpochEndOffset(partition=asked.partition)
    try:
        partition = context.world.partition(topic_name, asked.partition)
        row.leader_epoch, row.end_offset = partition.end_offset_for_epoch(
            asked.leader_epoch, asked.current_leader_epoch
        )
    except ApiError as error:
        row.error_code = error.code
    return row
