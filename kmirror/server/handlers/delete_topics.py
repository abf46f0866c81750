"""DeleteTopics (20): remove topics by name, from version 6 also by id.

Versions: 1-6.

Behaviour: each topic is answered on its own. A name that comes twice, a name and an id together, or neither:
INVALID_REQUEST. Unknown names: UNKNOWN_TOPIC_OR_PARTITION, unknown ids: UNKNOWN_TOPIC_ID with a null name. A topic that
a mirror has and that is not STOPPED: INVALID_CLUSTER_MIRROR_STATE (KIP-1279). With delete.topic.enable=false:
TOPIC_DELETION_DISABLED, or INVALID_REQUEST below version 3.

Deviations: none known.
"""

from __future__ import annotations

from collections import Counter

from kmirror.effects import Promise
from kmirror.errors import ApiError
from kmirror.protocol import uuids
from kmirror.protocol.api.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.waiting import Turn, settled_until

VERSIONS = (1, 6)

_FIRST_VERSION_BY_ID = 6
_FIRST_VERSION_WITH_DISABLED = 3


async def handle(context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    world = context.world
    if not world.config.boolean("delete.topic.enable"):
        code = (
            ErrorCode.TOPIC_DELETION_DISABLED
            if context.api_version >= _FIRST_VERSION_WITH_DISABLED
            else ErrorCode.INVALID_REQUEST
        )
        return DeleteTopicsResponse(
            responses=[_row(topic, code, "delete.topic.enable is false") for topic in _asked(context, request)]
        )
    rows: list[DeletableTopicResult] = []
    started: list[tuple[DeletableTopicResult, Promise[None]]] = []
    asked = _asked(context, request)
    named = [topic for topic in asked if _names_one(topic)]
    names = Counter(topic.name for topic in named if topic.name is not None)
    ids = Counter(topic.topic_id for topic in named if topic.name is None)
    seen: set[object] = set()
    turn = Turn()
    for topic in asked:
        if _names_one(topic):  # what does not has a row each time
            key = topic.topic_id if topic.name is None else topic.name
            if key in seen:
                continue
            seen.add(key)
        row = _check(context, topic, names, ids)
        rows.append(row)
        if row.error_code == ErrorCode.NONE:
            assert row.name is not None
            started.append((row, world.delete_topic(row.name)))
            await turn.let_others()
    await settled_until([promise for _, promise in started], timeout_ms=request.timeout_ms)
    for row, promise in started:
        _finish(row, promise)
    return DeleteTopicsResponse(responses=rows)


def _names_one(topic: DeleteTopicState) -> bool:
    """By its name or by its id, not by both or neither."""
    return (topic.name is None) != (topic.topic_id == uuids.ZERO)


def _asked(context: RequestContext, request: DeleteTopicsRequest) -> list[DeleteTopicState]:
    if context.api_version >= _FIRST_VERSION_BY_ID:
        return request.topics
    return [DeleteTopicState(name=name) for name in request.topic_names]


def _check(
    context: RequestContext, topic: DeleteTopicState, names: Counter[str], ids: Counter[bytes]
) -> DeletableTopicResult:
    """The topic's row; error 0 means that it exists and may be deleted now."""
    image = context.world.image
    if topic.name is not None and topic.topic_id != uuids.ZERO:
        return _row(topic, ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if topic.name is None:
        if topic.topic_id == uuids.ZERO:
            return _row(topic, ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        if ids[topic.topic_id] > 1:
            return _row(topic, ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
        found = image.topics_by_id.get(topic.topic_id)
        if found is None:
            return _row(topic, ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        return DeletableTopicResult(name=found.name, topic_id=found.topic_id)
    if names[topic.name] > 1:
        return _row(topic, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    found = image.topics_by_name.get(topic.name)
    if found is None:
        return _row(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    return DeletableTopicResult(name=found.name, topic_id=found.topic_id)


def _finish(row: DeletableTopicResult, promise: Promise[None]) -> None:
    if not promise.done:
        row.error_code = ErrorCode.REQUEST_TIMED_OUT
        row.error_message = f"the deletion of {row.name} goes on; look again later"
        return
    try:
        promise.result()
    except ApiError as error:
        row.error_code = error.code
        row.error_message = error.message


def _row(topic: DeleteTopicState, code: ErrorCode, reason: str) -> DeletableTopicResult:
    return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=reason)
