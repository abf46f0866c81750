"""WriteTxnMarkers (27): end a transaction in single partitions, without its coordinator.

Versions: 1-2.

Behaviour: this is how `kafka-transactions abort` ends a transaction that hangs (KIP-664), and how brokers tell each
other. The marker is written as it is asked for, and the answer waits until it is on disk. Unknown partitions:
UNKNOWN_TOPIC_OR_PARTITION; an epoch below the producer's last one: INVALID_PRODUCER_EPOCH, and with transaction version
2 (request version 2) it has to be above it while the transaction is open (KIP-890); an older coordinator epoch:
TRANSACTION_COORDINATOR_FENCED; a mirror topic: READ_ONLY_TOPIC. Markers of one producer share a result.

Deviations: a marker without a producer id or epoch is INVALID_REQUEST; Kafka answers UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from kmirror.effects import LogId, Promise
from kmirror.errors import ApiError
from kmirror.protocol.api.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.waiting import Turn, settled_until

VERSIONS = (1, 2)

Codes = dict[int, dict[tuple[str, int], int]]


async def handle(context: RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    codes: Codes = {}
    flushes: list[Promise[None]] = []
    turn = Turn()
    for marker in request.markers:
        rows = codes.setdefault(marker.producer_id, {})
        for topic in marker.topics:
            for index in topic.partition_indexes:
                await turn.let_others()
                try:
                    flushes.append(_write(context, marker, LogId(topic.name, index)))
                    rows[(topic.name, index)] = 0
                except ApiError as error:
                    rows[(topic.name, index)] = error.code
    await settled_until(flushes)
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(producer_id=producer_id, topics=_topics(rows))
            for producer_id, rows in codes.items()
        ]
    )


def _write(context: RequestContext, marker: WritableTxnMarker, log_id: LogId) -> Promise[None]:
    """Raises ApiError."""
    world = context.world
    world.partition(log_id.topic, log_id.partition)
    if marker.producer_id < 0 or marker.producer_epoch < 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a marker needs a producer id and an epoch")
    return world.runtime.append_marker(
        log_id,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        commit=marker.transaction_result,
        transaction_version=marker.transaction_version,
    )


def _topics(rows: dict[tuple[str, int], int]) -> list[WritableTxnMarkerTopicResult]:
    topics: dict[str, WritableTxnMarkerTopicResult] = {}
    for (name, index), code in rows.items():
        topic = topics.setdefault(name, WritableTxnMarkerTopicResult(name=name))
        topic.partitions.append(WritableTxnMarkerPartitionResult(partition_index=index, error_code=code))
    return list(topics.values())
