"""RecoverMirrorTopics (107): let failed partitions go on where they failed (KIP-1279).

Versions: 0.

Behaviour: every FAILED partition of the topics goes back to the state that it failed from, its attempts counted anew;
the others stay as they are, so a topic without a FAILED partition is no error. Every topic is answered on its own, when
that is on disk: an unknown topic with UNKNOWN_TOPIC_OR_PARTITION, one in no mirror with UNKNOWN_CLUSTER_MIRROR, one in
another mirror with TOPIC_NOT_IN_CLUSTER_MIRROR. The first topic's error is copied to the top. What made a partition
fail may do so again: unlike a start with `replace`, this accepts nothing that was refused before.

Deviations: a partition that failed before it ever began has no state to go back to: its topic is answered with
INVALID_CLUSTER_MIRROR_STATE, and nothing of it is changed.
"""

from __future__ import annotations

from kmirror.errors import ApiError
from kmirror.protocol.api.recover_mirror_topics import (
    RecoverMirrorTopicResult,
    RecoverMirrorTopicsRequest,
    RecoverMirrorTopicsResponse,
)
from kmirror.server.context import RequestContext
from kmirror.server.mirror_answers import first_error
from kmirror.server.waiting import settled

VERSIONS = (0, 0)


async def handle(context: RequestContext, request: RecoverMirrorTopicsRequest) -> RecoverMirrorTopicsResponse:
    names = [topic.topic_name for topic in request.topics]
    try:
        results = await settled(context.world.mirrors.recover(request.mirror_name, names))
    except ApiError as error:
        return RecoverMirrorTopicsResponse(error_code=error.code, error_message=error.message)
    response = RecoverMirrorTopicsResponse(
        topics=[
            RecoverMirrorTopicResult(
                topic_name=result.name, error_code=result.error_code, error_message=result.error_message
            )
            for result in results
        ]
    )
    response.error_code, response.error_message = first_error(results)
    return response
