"""Produce (0): append a client's batches.

Versions: 3-13 are served; 0-2 are advertised, because old librdkafka reads the range to learn which codecs it may use
(KIP-896), and close the connection as Kafka does.

Behaviour: each partition is answered on its own. acks 0 gets no reply, and an error closes the connection; acks 1 and
-1 are answered once the high watermark has passed the batch, which means that it is on disk unless the topic chose
page-cache durability. Other values of acks: INVALID_REQUIRED_ACKS. zstd below version 7: UNSUPPORTED_COMPRESSION_TYPE
(KIP-110). From version 13 topics are named by id (KIP-516). A transactional batch without transactional id:
TRANSACTIONAL_ID_AUTHORIZATION_FAILED for the whole request. A mirror topic: READ_ONLY_TOPIC with the reason in the
partition's error message (KIP-1279).

Deviations: acks 1 waits for the disk exactly like acks -1. Transactional ids are not served yet, so a transactional
batch is answered with INVALID_PRODUCER_ID_MAPPING, which is what Kafka says of an unknown transactional id. Error
messages are filled in where Kafka leaves them null.
"""

from __future__ import annotations

from kmirror.broker.partition import Partition
from kmirror.broker.storage_codes import RecordsRefused
from kmirror.effects import Promise
from kmirror.errors import ApiError
from kmirror.protocol.api.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import CRC_START, HEADER_SIZE_BYTES, TRANSACTIONAL_BIT
from kmirror.server.context import CloseConnection, RequestContext

VERSIONS = (3, 13)
KEEPS_NOTHING = True

ADMIN_CLIENT_ID = "__admin_client"
"""The one client id that may write to internal topics (Kafka: AdminUtils.ADMIN_CLIENT_ID)."""
REFUSED_BY_THE_LOG = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""Refusals, beside those of what is inside a batch, whose row carries the log start offset; the others carry -1
(ReplicaManager.appendToLocalLog)."""
_FIRST_VERSION_WITH_TOPIC_IDS = 13
_ATTRIBUTES_LOW_BYTE = CRC_START + 1

Waiting = list[tuple[PartitionProduceResponse, Promise[None]]]


def handle(context: RequestContext, request: ProduceRequest) -> ProduceResponse | Promise[ProduceResponse] | None:
    if request.transactional_id is None and any(
        _is_transactional(partition) for topic in request.topic_data for partition in topic.partition_data
    ):
        return _refused(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    waiting: Waiting = []
    response = ProduceResponse(
        responses=[_append_topic(context, request, topic, waiting) for topic in request.topic_data]
    )
    if request.acks == 0:
        _close_on_error(response)
        return None
    return _when_settled(response, waiting) if waiting else response


def _append_topic(
    context: RequestContext, request: ProduceRequest, topic: TopicProduceData, waiting: Waiting
) -> TopicProduceResponse:
    world = context.world
    by_id = context.api_version >= _FIRST_VERSION_WITH_TOPIC_IDS
    internal_allowed = context.client_id == ADMIN_CLIENT_ID
    now_ms = world.clock.time_ms()
    rows = []
    for data in topic.partition_data:
        row = PartitionProduceResponse(index=data.index)
        rows.append(row)
        partition: Partition | None = None
        try:
            if by_id:
                partition = world.partition_by_id(topic.topic_id, data.index)
            else:
                partition = world.partition(topic.name, data.index)
            _check_transaction(request, data)
            result = partition.produce(
                data.records,
                now_ms=now_ms,
                acks=request.acks,
                api_version=context.api_version,
                internal_allowed=internal_allowed,
            )
        except ApiError as error:
            _fail(row, error)
            by_the_log = isinstance(error, RecordsRefused) or error.code in REFUSED_BY_THE_LOG
            if partition is not None and by_the_log:
                row.log_start_offset = partition.log_start_offset
            continue
        row.base_offset = result.base_offset
        row.log_append_time_ms = result.log_append_time_ms
        row.log_start_offset = partition.log_start_offset
        if request.acks != 0:
            _await_commit(partition, result.last_offset + 1, row, waiting)
    return TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=rows)


def _await_commit(partition: Partition, offset: int, row: PartitionProduceResponse, waiting: Waiting) -> None:
    if partition.high_watermark < offset:
        waiting.append((row, partition.when_committed(offset)))


def _is_transactional(partition: PartitionProduceData) -> bool:
    records = partition.records
    return (
        records is not None
        and len(records) >= HEADER_SIZE_BYTES
        and bool(records[_ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_BIT)
    )


def _check_transaction(request: ProduceRequest, data: PartitionProduceData) -> None:
    if request.transactional_id is not None and _is_transactional(data):
        raise ApiError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"transactional id {request.transactional_id!r} is not known here: kmirror does not serve transactions yet",
        )


def _fail(row: PartitionProduceResponse, error: Exception) -> None:
    if not isinstance(error, ApiError):
        raise error
    row.error_code = error.code
    row.error_message = error.message
    row.base_offset = -1
    row.log_append_time_ms = -1
    if isinstance(error, RecordsRefused):
        row.record_errors = [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=error.message)
            for index in error.record_indexes
        ]


def _when_settled(response: ProduceResponse, waiting: Waiting) -> Promise[ProduceResponse]:
    """A promise of the response, settled when every partition's commit is decided."""
    answered: Promise[ProduceResponse] = Promise()
    left = len(waiting)

    def decide(row: PartitionProduceResponse, promise: Promise[None]) -> None:
        nonlocal left
        left -= 1
        try:
            promise.result()
        except ApiError as error:
            _fail(row, error)
        if left == 0:
            answered.resolve(response)

    for row, promise in waiting:
        promise.then(lambda settled, row=row: decide(row, settled))  # type: ignore[misc]
    return answered


def _refused(request: ProduceRequest, code: ErrorCode) -> ProduceResponse | None:
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=partition.index, error_code=code, base_offset=-1, error_message=code.message
                    )
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
    if request.acks == 0:
        _close_on_error(response)
        return None
    return response


def _close_on_error(response: ProduceResponse) -> None:
    """acks=0 has no reply: closing is how the client learns of an error (KafkaApis.handleProduceRequest)."""
    for topic in response.responses:
        for row in topic.partition_responses:
            if row.error_code:
                raise CloseConnection(f"produce with acks=0 failed: error {row.error_code}: {row.error_message}")
