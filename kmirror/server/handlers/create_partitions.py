"""CreatePartitions (37): give topics more partitions.

Versions: 0-3.

Behaviour: `count` is the new total; a total that is no increase is INVALID_PARTITIONS, assignments that do not fit are
INVALID_REPLICA_ASSIGNMENT, a name that comes twice is INVALID_REQUEST. A topic that a mirror has and that is not
STOPPED: INVALID_CLUSTER_MIRROR_STATE (KIP-1279).

Deviations: none known.
"""

from __future__ import annotations

from collections import Counter

from kmirror.effects import Promise
from kmirror.errors import ApiError
from kmirror.protocol.api.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.waiting import Turn, settled_until

VERSIONS = (0, 3)


async def handle(context: RequestContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    count = Counter(topic.name for topic in request.topics)
    started: dict[str, Promise[None]] = {}
    turn = Turn()
    for topic in request.topics:
        if count[topic.name] == 1:
            assignments = None
            if topic.assignments is not None:
                assignments = [list(assigned.broker_ids) for assigned in topic.assignments]
            started[topic.name] = context.world.create_partitions(
                topic.name, topic.count, assignments, validate_only=request.validate_only
            )
            await turn.let_others()
    await settled_until(list(started.values()), timeout_ms=request.timeout_ms)
    return CreatePartitionsResponse(results=[_result(name, started.get(name)) for name in count])


def _result(name: str, promise: Promise[None] | None) -> CreatePartitionsTopicResult:
    row = CreatePartitionsTopicResult(name=name)
    if promise is None:
        row.error_code = ErrorCode.INVALID_REQUEST
        row.error_message = "Duplicate topic name."
    elif not promise.done:
        row.error_code = ErrorCode.REQUEST_TIMED_OUT
        row.error_message = f"{name} is still growing; look again later"
    else:
        try:
            promise.result()
        except ApiError as error:
            row.error_code = error.code
            row.error_message = error.message
    return row
