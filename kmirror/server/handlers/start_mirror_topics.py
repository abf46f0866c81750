"""StartMirrorTopics (95): ask that topics be mirrored (KIP-1279).

Versions: 0.

Behaviour: names and include patterns join `topics.include`, exclude patterns `topics.exclude`; a named topic that the
lists then do not want refuses the whole request with INVALID_REQUEST, a bad pattern with INVALID_REGULAR_EXPRESSION, an
unknown mirror with UNKNOWN_CLUSTER_MIRROR. Topics that do not exist are created with the source's id and partition
count, or at the next refresh when the count is 0. Each topic is answered on its own, once it is decided what of the
local log may be kept, which may need an answer of the source; the first topic's error is copied to the top.

Deviations: tags 2 (`replace`) and 3 (`start_from`) are ours. `state_offset` is not looked at: there is one node.
"""

from __future__ import annotations

from kmirror.broker.mirror_seam import StartTopic
from kmirror.errors import ApiError
from kmirror.protocol.api.start_mirror_topics import (
    StartMirrorTopicResult,
    StartMirrorTopicsRequest,
    StartMirrorTopicsResponse,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.mirror_answers import first_error
from kmirror.server.waiting import settled

VERSIONS = (0, 0)


async def handle(context: RequestContext, request: StartMirrorTopicsRequest) -> StartMirrorTopicsResponse:
    topics = [
        StartTopic(name=topic.topic_name, topic_id=topic.topic_id, num_partitions=topic.num_partitions)
        for topic in request.topics
    ]
    try:
        if len({topic.name for topic in topics}) < len(topics):
            raise ApiError(ErrorCode.INVALID_REQUEST, "a topic is named twice")
        results = await settled(
            context.world.mirrors.start(
                request.mirror_name,
                topics,
                include=request.include_patterns,
                exclude=request.exclude_patterns,
                replace=request.replace,
                from_=request.start_from,
            )
        )
    except ApiError as error:
        return StartMirrorTopicsResponse(error_code=error.code, error_message=error.message)
    response = StartMirrorTopicsResponse(
        topics=[
            StartMirrorTopicResult(
                topic_name=result.name, error_code=result.error_code, error_message=result.error_message
            )
            for result in results
        ]
    )
    response.error_code, response.error_message = first_error(results)
    return response
