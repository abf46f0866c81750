"""ReadMirrorOffsets (106): how far the partitions of a mirror are, from their leader (KIP-1279).

Versions: 0.

Behaviour: high watermarks of both sides, -1 where unknown; an unknown mirror is UNKNOWN_CLUSTER_MIRROR.

Deviations: one node, which leads every partition.
"""

from __future__ import annotations

from kmirror.errors import ApiError
from kmirror.protocol.api.read_mirror_offsets import (
    ReadMirrorOffsetsPartitionResult,
    ReadMirrorOffsetsRequest,
    ReadMirrorOffsetsResponse,
    ReadMirrorOffsetsTopicResult,
)
from kmirror.server.context import RequestContext

VERSIONS = (0, 0)


def handle(context: RequestContext, request: ReadMirrorOffsetsRequest) -> ReadMirrorOffsetsResponse:
    asked = {topic.topic_name: topic.partitions for topic in request.topics}
    try:
        rows = context.world.mirrors.read_offsets(request.mirror_name, asked)
    except ApiError as error:
        return ReadMirrorOffsetsResponse(error_code=error.code, error_message=error.message)
    topics = {name: ReadMirrorOffsetsTopicResult(topic_name=name) for name in asked}
    for row in rows:
        topics[row.topic].partitions.append(
            ReadMirrorOffsetsPartitionResult(
                partition_index=row.partition,
                source_offset=row.source_offset,
                destination_offset=row.destination_offset,
            )
        )
    return ReadMirrorOffsetsResponse(topics=list(topics.values()))
