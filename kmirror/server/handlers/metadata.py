"""Metadata (3): brokers, topics, partitions and their leader epochs.

Versions: 0-13.

Behaviour: `topics` null means all topics, and so does an empty list in version 0; elsewhere an empty list means none.
A topic that does not exist is created when the request and the broker allow it; the answer to that request still says
UNKNOWN_TOPIC_OR_PARTITION, as Kafka's does, and the next one finds it. Bad names: INVALID_TOPIC_EXCEPTION. From version
12 topics may be asked for by id; an unknown id is answered with UNKNOWN_TOPIC_ID and a null name. A null name or an id
in versions 10 and 11: INVALID_REQUEST. Authorized operations are filled in when asked for.

Deviations: one broker, which is every partition's leader, only replica and the controller. Topics come in the order in
which they were asked for.
"""

from __future__ import annotations

from kmirror.broker.metadata import TopicState
from kmirror.broker.topic_admin import name_problem
from kmirror.protocol import uuids
from kmirror.protocol.api.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.authorized import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from kmirror.server.context import RequestContext

VERSIONS = (0, 13)

_FIRST_VERSION_BY_ID = 12


def handle(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    if request.topics is not None and context.api_version < _FIRST_VERSION_BY_ID:
        for asked in request.topics:
            if asked.name is None or asked.topic_id != uuids.ZERO:
                return _invalid(request)
    world = context.world
    host, port = context.advertised()
    response = MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=world.node_id, host=host, port=port, rack=context.rack)],
        cluster_id=world.cluster_id,
        controller_id=world.node_id,
        topics=_topics(context, request),
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def _topics(context: RequestContext, request: MetadataRequest) -> list[MetadataResponseTopic]:
    image = context.world.image
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
    if request.topics is None or (context.api_version == 0 and not request.topics):
        return [_found(context, topic, operations) for topic in image.topics_by_name.values()]
    rows: dict[object, MetadataResponseTopic] = {}
    by_id = any(asked.topic_id != uuids.ZERO for asked in request.topics)
    for asked in request.topics:
        key = asked.topic_id if by_id else asked.name
        if key in rows or (by_id and asked.topic_id == uuids.ZERO):
            continue
        topic = image.topics_by_id.get(asked.topic_id) if by_id else image.topics_by_name.get(asked.name or "")
        if topic is not None:
            rows[key] = _found(context, topic, operations)
        elif by_id:
            rows[key] = MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id)
        else:
            rows[key] = _absent(context, asked.name or "", operations, create=request.allow_auto_topic_creation)
    return list(rows.values())


def _found(context: RequestContext, topic: TopicState, operations: int) -> MetadataResponseTopic:
    node = [context.world.node_id]
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        topic_authorized_operations=operations,
        partitions=[
            MetadataResponsePartition(
                partition_index=partition.index,
                leader_id=node[0],
                leader_epoch=partition.leader_epoch,
                replica_nodes=node,
                isr_nodes=node,
            )
            for partition in topic.partitions
        ],
    )


def _absent(context: RequestContext, name: str, operations: int, *, create: bool) -> MetadataResponseTopic:
    """The topic is missing; its creation may begin, but this answer still says so (as Kafka's does)."""
    if name_problem(name) is not None:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    else:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if create:
            context.world.ensure_topic(name)
    return MetadataResponseTopic(error_code=code, name=name, topic_authorized_operations=operations)


def _invalid(request: MetadataRequest) -> MetadataResponse:
    """The whole request is wrong: MetadataRequest.getErrorResponse."""
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=asked.name or "", topic_id=asked.topic_id)
            for asked in request.topics or ()
        ],
        error_code=ErrorCode.INVALID_REQUEST,
    )
