"""DescribeProducers (61): the producers a partition knows, and their open transactions (KIP-664).

Versions: 0.

Behaviour: unknown partitions are UNKNOWN_TOPIC_OR_PARTITION, impossible topic names INVALID_TOPIC_EXCEPTION.

Deviations: none known.
"""

from __future__ import annotations

from kmirror.broker.topic_admin import name_problem
from kmirror.errors import ApiError
from kmirror.protocol.api.describe_producers import (
    DescribeProducersPartitionResponse,
    DescribeProducersProducerState,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResponse,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.waiting import Turn

VERSIONS = (0, 0)


async def handle(context: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """A partition that is named again shares its row: it may have a hundred thousand producers."""
    turn = Turn()
    topics: list[DescribeProducersTopicResponse] = []
    for topic in request.topics:
        rows: dict[int, DescribeProducersPartitionResponse] = {}
        for index in dict.fromkeys(topic.partition_indexes):
            await turn.let_others()
            rows[index] = _partition(context, topic.name, index)
        partitions = [rows[index] for index in topic.partition_indexes]
        topics.append(DescribeProducersTopicResponse(name=topic.name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)


def _partition(context: RequestContext, topic_name: str, index: int) -> DescribeProducersPartitionResponse:
    row = DescribeProducersPartitionResponse(partition_index=index)
    problem = name_problem(topic_name)
    if problem is not None:
        row.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
        row.error_message = problem
        return row
    try:
        producers = context.world.partition(topic_name, index).log.producers
    except ApiError as error:
        row.error_code = error.code
        row.error_message = error.message
        return row
    row.active_producers = [
        DescribeProducersProducerState(
            producer_id=producer_id,
            producer_epoch=entry.producer_epoch,
            last_sequence=entry.last_sequence,
            last_timestamp=entry.last_timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=entry.txn_first_offset,
        )
        for producer_id, entry in producers.entries.items()
    ]
    return row
