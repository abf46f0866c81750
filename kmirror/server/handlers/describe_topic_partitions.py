"""DescribeTopicPartitions (75): topics and their partitions, page by page (KIP-966).

Versions: 0.

Behaviour: topics come sorted by name, all of them when none is named; at most `response_partition_limit` partitions
(and at most max.request.partition.size.limit), then a cursor that names the next one. A cursor outside the list, or
with a negative partition: INVALID_REQUEST for every topic. Authorized operations are always filled in.

Deviations: one broker, so nobody is eligible beside it.
"""

from __future__ import annotations

from kmirror.broker.topic_admin import name_problem
from kmirror.protocol.api.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.authorized import NOT_ASKED, TOPIC_OPERATIONS
from kmirror.server.context import RequestContext

VERSIONS = (0, 0)


def handle(context: RequestContext, request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    names = {topic.name for topic in request.topics}
    cursor = request.cursor
    if cursor is not None and (cursor.partition_index < 0 or (names and cursor.topic_name not in names)):
        return DescribeTopicPartitionsResponse(
            topics=[_topic(topic.name, ErrorCode.INVALID_REQUEST, operations=NOT_ASKED) for topic in request.topics]
        )
    left = max(
        1, min(context.world.config.integer("max.request.partition.size.limit"), request.response_partition_limit)
    )
    first_name = cursor.topic_name if cursor is not None else ""
    response = DescribeTopicPartitionsResponse()
    for name in sorted(names or context.world.image.topics_by_name):
        if name < first_name:
            continue
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if left == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=first)
            break
        topic = _describe(context, name, first, left)
        response.topics.append(topic)
        left -= len(topic.partitions)
        following = first + len(topic.partitions)
        if topic.partitions and following < len(context.world.image.topics_by_name[name].partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=following)
            break
    return response


def _describe(context: RequestContext, name: str, first: int, limit: int) -> DescribeTopicPartitionsResponseTopic:
    topic = context.world.image.topics_by_name.get(name)
    if topic is None:
        bad = name_problem(name) is not None
        return _topic(name, ErrorCode.INVALID_TOPIC_EXCEPTION if bad else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    node = [context.world.node_id]
    row = _topic(name, ErrorCode.NONE)
    row.topic_id = topic.topic_id
    row.is_internal = topic.internal
    row.partitions = [
        DescribeTopicPartitionsResponsePartition(
            partition_index=partition.index,
            leader_id=node[0],
            leader_epoch=partition.leader_epoch,
            replica_nodes=node,
            isr_nodes=node,
            eligible_leader_replicas=[],
            last_known_elr=[],
        )
        for partition in topic.partitions[first : first + limit]
    ]
    return row


def _topic(name: str, code: ErrorCode, *, operations: int = TOPIC_OPERATIONS) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name, topic_authorized_operations=operations)
