"""StopMirrorTopics (96): fail topics over, so that they can be written to here (KIP-1279).

Versions: 0.

Behaviour: every topic is answered on its own, and the answer comes when all partitions of all topics are sealed
(STOPPED on disk): where the copy ended, what is known to be missing, how many open transactions were aborted. A topic
that is not sealed after 25 s is answered with REQUEST_TIMED_OUT; its stop goes on. A pattern leaves `topics.include`,
or joins `topics.exclude`, and stops every topic of the mirror that it matches. The first topic's error is copied to the
top, one that is more than lateness before one that is not.

Deviations: the prototypes answer before the topics are sealed. `state_offset` is not looked at: there is one node.
"""

from __future__ import annotations

from kmirror.broker.mirror_seam import StopResult
from kmirror.errors import ApiError
from kmirror.protocol.api.stop_mirror_topics import (
    StopMirrorTopicResult,
    StopMirrorTopicsRequest,
    StopMirrorTopicsResponse,
    StoppedPartition,
)
from kmirror.server.context import RequestContext
from kmirror.server.mirror_answers import first_error
from kmirror.server.waiting import settled

VERSIONS = (0, 0)


async def handle(context: RequestContext, request: StopMirrorTopicsRequest) -> StopMirrorTopicsResponse:
    names = [topic.topic_name for topic in request.topics]
    try:
        results = await settled(context.world.mirrors.stop(request.mirror_name, names, request.patterns))
    except ApiError as error:
        return StopMirrorTopicsResponse(error_code=error.code, error_message=error.message)
    response = StopMirrorTopicsResponse(topics=[_topic(result) for result in results])
    response.error_code, response.error_message = first_error(results)
    return response


def _topic(result: StopResult) -> StopMirrorTopicResult:
    return StopMirrorTopicResult(
        topic_name=result.name,
        error_code=result.error_code,
        error_message=result.error_message,
        partitions=[
            StoppedPartition(
                partition_index=row.partition,
                last_mirrored_offset=row.last_mirrored_offset,
                source_end_offset=row.source_end_offset,
                missing_offsets=row.missing_offsets,
                aborted_transactions=row.aborted_transactions,
            )
            for row in result.partitions
        ],
    )
