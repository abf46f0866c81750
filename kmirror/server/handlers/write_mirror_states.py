"""WriteMirrorStates (101): record states of partitions with their coordinator (KIP-1279).

Versions: 0.

Behaviour: fenced per partition by leader epoch (FENCED_LEADER_EPOCH) and state epoch (FENCED_STATE_EPOCH); a transition
that the table does not allow writes nothing and is no error; state -1 records a position only. An unknown mirror is
UNKNOWN_CLUSTER_MIRROR. The answer comes when everything is on disk.

Deviations: nobody may write STOPPED for a partition whose own stop has not sealed it (INVALID_CLUSTER_MIRROR_STATE).
"""

from __future__ import annotations

from kmirror.broker.mirror_describe import StateWrite
from kmirror.errors import ApiError
from kmirror.protocol.api.write_mirror_states import (
    WriteMirrorStatesPartitionResult,
    WriteMirrorStatesRequest,
    WriteMirrorStatesResponse,
    WriteMirrorStatesTopicResult,
)
from kmirror.server.context import RequestContext
from kmirror.server.waiting import settled

VERSIONS = (0, 0)


async def handle(context: RequestContext, request: WriteMirrorStatesRequest) -> WriteMirrorStatesResponse:
    writes = [
        StateWrite(
            topic=topic.topic_name,
            partition=part.partition_index,
            state=part.state,
            leader_epoch=part.leader_epoch,
            state_epoch=part.state_epoch,
            last_mirror_epoch=part.last_mirror_epoch,
            last_mirror_offset=part.last_mirror_offset,
            error_message=part.error_message,
            retry_attempt=part.retry_attempt,
            non_retryable=part.non_retryable,
        )
        for topic in request.topics
        for part in topic.partitions
    ]
    try:
        written = await settled(context.world.mirrors.write_states(request.mirror_name, writes))
    except ApiError as error:
        return WriteMirrorStatesResponse(error_code=error.code, error_message=error.message)
    topics: dict[str, WriteMirrorStatesTopicResult] = {}
    for row in written:
        topic = topics.setdefault(row.topic, WriteMirrorStatesTopicResult(topic_name=row.topic))
        topic.partitions.append(
            WriteMirrorStatesPartitionResult(
                partition_index=row.partition,
                error_code=row.error_code,
                error_message=row.error_message,
                state_epoch=row.state_epoch,
            )
        )
    return WriteMirrorStatesResponse(topics=list(topics.values()))
