"""DeleteRecords (21): raise a partition's log start offset (KIP-107).

Versions: 0-2.

Behaviour: -1 means the high watermark. An offset at or below the log start changes nothing and is no error; one beyond
the high watermark is OFFSET_OUT_OF_RANGE; a topic without cleanup.policy=delete is POLICY_VIOLATION; an internal one
INVALID_TOPIC_EXCEPTION; a mirror topic that is not STOPPED INVALID_CLUSTER_MIRROR_STATE (KIP-1279). The new log start
is on disk before the answer.

Deviations: none known.
"""

from __future__ import annotations

from kmirror.errors import ApiError
from kmirror.protocol.api.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kmirror.server.context import RequestContext

VERSIONS = (0, 2)


def handle(context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    _delete(context, topic.name, asked.partition_index, asked.offset) for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _delete(context: RequestContext, topic_name: str, index: int, offset: int) -> DeleteRecordsPartitionResult:
    row = DeleteRecordsPartitionResult(partition_index=index, low_watermark=-1)
    try:
        row.low_watermark = context.world.delete_records(topic_name, index, offset)
    except ApiError as error:
        row.error_code = error.code
    return row
