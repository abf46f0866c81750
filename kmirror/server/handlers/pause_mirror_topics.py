"""PauseMirrorTopics (102): stop fetching topics; they stay read-only (KIP-1279).

Versions: 0.

Behaviour: every topic is answered on its own, once the wish is on disk; the partitions follow. An unknown topic is
UNKNOWN_TOPIC_OR_PARTITION, one in no mirror UNKNOWN_CLUSTER_MIRROR, one in another mirror TOPIC_NOT_IN_CLUSTER_MIRROR.
A topic wanted STOPPED is MIRROR_TOPIC_BEING_STOPPED; one that is PAUSED already is no error; a partition that is not
MIRRORING is INVALID_CLUSTER_MIRROR_STATE. The first topic's error is copied to the top.

Deviations: the prototypes leave the topics that they changed out of the answer. `state_offset` is not looked at.
"""

from __future__ import annotations

from kmirror.errors import ApiError
from kmirror.protocol.api.pause_mirror_topics import (
    PauseMirrorTopicResult,
    PauseMirrorTopicsRequest,
    PauseMirrorTopicsResponse,
)
from kmirror.server.context import RequestContext
from kmirror.server.mirror_answers import first_error
from kmirror.server.waiting import settled

VERSIONS = (0, 0)


async def handle(context: RequestContext, request: PauseMirrorTopicsRequest) -> PauseMirrorTopicsResponse:
    names = [topic.topic_name for topic in request.topics]
    try:
        results = await settled(context.world.mirrors.pause(request.mirror_name, names))
    except ApiError as error:
        return PauseMirrorTopicsResponse(error_code=error.code, error_message=error.message)
    response = PauseMirrorTopicsResponse(
        topics=[
            PauseMirrorTopicResult(
                topic_name=result.name, error_code=result.error_code, error_message=result.error_message
            )
            for result in results
        ]
    )
    response.error_code, response.error_message = first_error(results)
    return response
