"""ListOffsets (2): first, last, or the offset of a point in time.

Versions: 1-11.

Behaviour: timestamps below zero are questions (-1 latest, -2 earliest, -3 largest timestamp from version 7, -4 and -5
of tiered storage from 8 and 9, -6 from 11), each UNSUPPORTED_VERSION before its version. A time finds the first record
at or after it below the high watermark, or below the last stable offset at READ_COMMITTED; none is offset -1 with
error 0. A partition that is listed twice: INVALID_REQUEST, once. Leader epochs fence (KIP-320).

Deviations: none known. There is no tiered storage, so -4 is the log start, -5 and -6 find nothing.
"""

from __future__ import annotations

from collections import Counter

from kmirror.broker.partition import check_sentinel
from kmirror.errors import ApiError
from kmirror.protocol.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext

VERSIONS = (1, 11)

_FIRST_VERSION_WITH_EPOCHS = 4


def handle(context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    asked = Counter((topic.name, row.partition_index) for topic in request.topics for row in topic.partitions)
    twice = {key for key, count in asked.items() if count > 1}
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(name=topic.name, partitions=_rows(context, request, topic, twice))
            for topic in request.topics
        ]
    )


def _rows(
    context: RequestContext, request: ListOffsetsRequest, topic: ListOffsetsTopic, twice: set[tuple[str, int]]
) -> list[ListOffsetsPartitionResponse]:
    rows: dict[int, ListOffsetsPartitionResponse] = {}
    for asked in topic.partitions:
        index = asked.partition_index
        if (topic.name, index) in twice:
            rows[index] = ListOffsetsPartitionResponse(partition_index=index, error_code=ErrorCode.INVALID_REQUEST)
        else:
            rows[index] = _row(context, request, topic.name, asked)
    return list(rows.values())


def _row(
    context: RequestContext, request: ListOffsetsRequest, topic_name: str, asked: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    row = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
    try:
        check_sentinel(asked.timestamp, context.api_version)  # said even of a partition that is not here
        partition = context.world.partition(topic_name, asked.partition_index)
        row.offset, row.timestamp, leader_epoch = partition.list_offset(
            asked.timestamp,
            request.isolation_level,
            asked.current_leader_epoch,
            api_version=context.api_version,
        )
        if context.api_version >= _FIRST_VERSION_WITH_EPOCHS:
            row.leader_epoch = leader_epoch
    except ApiError as error:
        row.error_code = error.code
    return row
