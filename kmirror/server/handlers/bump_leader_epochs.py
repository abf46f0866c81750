"""BumpLeaderEpochs (105): raise leader epochs above a minimum (KIP-1279).

Versions: 0.

Behaviour: a partition whose epoch is above the minimum already stays as it is, so -1 changes nothing. Every partition
is answered on its own, when its new epoch is on disk; the leader does not change. A minimum that leaves no larger epoch
is INVALID_REQUEST.

Deviations: none known.
"""

from __future__ import annotations

from kmirror.errors import ApiError
from kmirror.protocol.api.bump_leader_epochs import (
    BumpLeaderEpochsPartitionResult,
    BumpLeaderEpochsRequest,
    BumpLeaderEpochsResponse,
    BumpLeaderEpochsTopicResult,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.waiting import settled

VERSIONS = (0, 0)

LARGEST_EPOCH = 2**31 - 1


async def handle(context: RequestContext, request: BumpLeaderEpochsRequest) -> BumpLeaderEpochsResponse:
    bumps = [
        (topic.topic_name, part.partition_index, part.min_leader_epoch)
        for topic in request.topics
        for part in topic.partitions
    ]
    if any(minimum >= LARGEST_EPOCH for _, _, minimum in bumps):
        text = f"no epoch is larger than {LARGEST_EPOCH}"
        return BumpLeaderEpochsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=text)
    topics: dict[str, BumpLeaderEpochsTopicResult] = {}
    for name, index, outcome in context.world.mirrors.bump_leader_epochs(bumps):
        result = BumpLeaderEpochsPartitionResult(partition_index=index)
        try:
            if isinstance(outcome, ApiError):
                raise outcome
            await settled(outcome)
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
        topics.setdefault(name, BumpLeaderEpochsTopicResult(topic_name=name)).partitions.append(result)
    return BumpLeaderEpochsResponse(topics=list(topics.values()))
