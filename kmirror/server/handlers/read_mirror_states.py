"""ReadMirrorStates (100): the recorded states of partitions, from their coordinator (KIP-1279).

Versions: 0.

Behaviour: an unknown mirror is UNKNOWN_CLUSTER_MIRROR; a partition of which nothing is recorded is UNKNOWN.

Deviations: one node, so it coordinates every partition and never answers NOT_COORDINATOR.
"""

from __future__ import annotations

from kmirror.errors import ApiError
from kmirror.protocol.api.read_mirror_states import (
    ReadMirrorStatesPartitionResult,
    ReadMirrorStatesRequest,
    ReadMirrorStatesResponse,
    ReadMirrorStatesTopicResult,
)
from kmirror.server.context import RequestContext

VERSIONS = (0, 0)


def handle(context: RequestContext, request: ReadMirrorStatesRequest) -> ReadMirrorStatesResponse:
    asked = {topic.topic_name: [part.partition_index for part in topic.partitions] for topic in request.topics}
    try:
        rows = context.world.mirrors.read_states(request.mirror_name, asked)
    except ApiError as error:
        return ReadMirrorStatesResponse(error_code=error.code, error_message=error.message)
    topics = {name: ReadMirrorStatesTopicResult(topic_name=name) for name in asked}
    for row in rows:
        topics[row.topic].partitions.append(
            ReadMirrorStatesPartitionResult(
                partition_index=row.partition,
                state=row.state,
                leader_epoch=row.leader_epoch,
                state_epoch=row.state_epoch,
                last_mirror_epoch=row.last_mirror_epoch,
                last_mirror_offset=row.last_mirror_offset,
                error_code=row.error_code,
                error_message=row.error_message,
                retry_attempt=row.retry_attempt,
                previous_state=row.previous_state,
            )
        )
    return ReadMirrorStatesResponse(topics=list(topics.values()))
