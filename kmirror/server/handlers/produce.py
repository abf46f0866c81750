"""Produce (0): append a client's batches.

Versions: 3-13 are served; 0-2 are advertised, because old librdkafka reads the range to learn which codecs it may use
(KIP-896), and close the connection as Kafka does.

Behaviour: each partition is answered on its own. acks 0 gets no reply, and an error closes the connection; acks 1 and
-1 are answered once the high watermark has passed the batch, which means that it is on disk unless the topic chose
page-cache durability. Other values of acks: INVALID_REQUIRED_ACKS. zstd below version 7: UNSUPPORTED_COMPRESSION_TYPE
(KIP-110). From version 13 topics are named by id (KIP-516). A mirror topic: READ_ONLY_TOPIC with the reason in the
partition's error message (KIP-1279). Transactional batches: without transactional id
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, of several producers INVALID_PRODUCER_ID_MAPPING, both for the whole request.
The first batch of a transaction in a partition is checked with the coordinator (KIP-890): below version 12 the
partition must have been added, else INVALID_TXN_STATE (TRANSACTION_ABORTABLE in version 11); from 12 it is added by
writing, which waits up to add.partitions.to.txn.retry.backoff.max.ms while the transaction before is being ended. Then,
and below 12 while the coordinator cannot say, CONCURRENT_TRANSACTIONS or NOT_ENOUGH_REPLICAS. A fenced producer: always
INVALID_PRODUCER_EPOCH.

Deviations: acks 1 waits for the disk exactly like acks -1. Error messages are filled in where Kafka leaves them null.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kmirror.broker.partition import Partition
from kmirror.broker.storage_codes import RecordsRefused
from kmirror.effects import Promise
from kmirror.errors import ApiError
from kmirror.limits import EXPANDED_ON_LOOP_BYTES
from kmirror.protocol.api.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kmirror.protocol.compression import ExpandsTooFar
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.records import CODEC_MASK, CRC_START, HEADER_SIZE_BYTES, TRANSACTIONAL_BIT
from kmirror.server.context import CloseConnection, RequestContext
from kmirror.storage.log import LogMode
from kmirror.storage.validation import inspect

if TYPE_CHECKING:
    from kmirror.broker.transaction_admission import Admission, Codes, Support
    from kmirror.coordinator.transactions import Producer

VERSIONS = (3, 13)
FEW_ROWS = True
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
_FIRST_VERSION_WITH_EPOCH_BUMPS = 12
_ATTRIBUTES_LOW_BYTE = CRC_START + 1
_PRODUCER = struct.Struct(">qh")
_PRODUCER_AT = 43
"""Producer id and epoch in a batch of magic 2."""
_COORDINATOR_CANNOT_SAY = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)

Waiting = list[tuple[PartitionProduceResponse, Promise[None]]]
Answer = ProduceResponse | Promise[ProduceResponse | None] | None


@dataclass(slots=True)
class _Transaction:
    """What the coordinator said of a request's transactional batches, and whether that is some time ago."""

    admission: Admission
    transactional_id: str
    producer: Producer
    support: Support
    codes: Codes
    waited: bool

    def check(self, partition: Partition) -> None:
        """Raises _NotAdmitted."""
        code = self.codes.get((partition.topic_name, partition.index), ErrorCode.NONE)
        if code is ErrorCode.NONE and self.waited:
            code = self.admission.still_admitted(self.transactional_id, self.producer, partition, self.support)
        if code is not ErrorCode.NONE:
            raise _not_admitted(code, adds=self.support is self.support.ADD_PARTITION)


class _NotAdmitted(ApiError):
    """Refused before the log was asked."""


def prepare(context: RequestContext, request: ProduceRequest) -> Callable[[], None] | None:
    """Look into compressed batches. Those that expand too far for the loop are left, as the work that is returned."""
    large: list[PartitionProduceData] = []
    for topic in request.topic_data:
        for data in topic.partition_data:
            records = data.records
            if records is None or len(records) < HEADER_SIZE_BYTES or not records[_ATTRIBUTES_LOW_BYTE] & CODEC_MASK:
                continue
            if context.inspections is None:
                context.inspections = {}
            try:
                found = inspect(records, limit_bytes=EXPANDED_ON_LOOP_BYTES)
            except ExpandsTooFar:
                large.append(data)
            else:
                if found is not None:
                    context.inspections[id(data)] = found
    if not large:
        return None

    def look() -> None:
        for data in large:
            assert data.records is not None and context.inspections is not None
            found = inspect(data.records)
            if found is not None:
                context.inspections[id(data)] = found

    return look


def handle(context: RequestContext, request: ProduceRequest) -> Answer:
    for topic in request.topic_data:
        for data in topic.partition_data:
            if _is_transactional(data):
                return _transactional(context, request)
    return _append(context, request, None)


def _transactional(context: RequestContext, request: ProduceRequest) -> Answer:
    """Ask the coordinator, then append: at once when it has nothing to write and nothing to wait for."""
    from kmirror.broker.transaction_admission import of_produce
    from kmirror.coordinator.transactions import Producer

    if request.transactional_id is None:
        return _refused(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    asked: list[Partition] = []
    producers: set[tuple[int, int]] = set()
    for partition, data in _found(context, request):
        if _is_transactional(data):
            assert data.records is not None
            producer_id, epoch = _PRODUCER.unpack_from(data.records, _PRODUCER_AT)
            if producer_id >= 0:
                producers.add((producer_id, epoch))
                if partition.mode is LogMode.WRITABLE:
                    asked.append(partition)
    if len(producers) > 1:
        return _refused(request, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if not asked:
        return _append(context, request, None)
    admission, support = context.world.transactions.admission, of_produce(context.api_version)
    producer = Producer(*producers.pop())
    admitted = admission.admit(request.transactional_id, producer, asked, support)
    make = partial(_Transaction, admission, request.transactional_id, producer, support)
    if admitted.done:
        return _append(context, request, make(admitted.result(), waited=False))
    _keep(request)
    answered: Promise[ProduceResponse | None] = Promise()

    def now(settled: Promise[Codes]) -> None:
        try:
            answer = _append(context, request, make(settled.result(), waited=True))
        except CloseConnection as error:
            answered.fail(error)
            return
        if isinstance(answer, Promise):
            answer.then(answered.follow)
        else:
            answered.resolve(answer)

    admitted.then(now)
    return answered


def _keep(request: ProduceRequest) -> None:
    """The frame's buffer is used again when the handler has returned."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is not None:
                data.records = bytes(data.records)


def _found(context: RequestContext, request: ProduceRequest) -> Iterator[tuple[Partition, PartitionProduceData]]:
    for topic in request.topic_data:
        for data in topic.partition_data:
            try:
                yield _partition(context, topic, data.index), data
            except ApiError:
                continue


def _partition(context: RequestContext, topic: TopicProduceData, index: int) -> Partition:
    """Raises ApiError 3, 100."""
    if context.api_version >= _FIRST_VERSION_WITH_TOPIC_IDS:
        return context.world.partition_by_id(topic.topic_id, index)
    return context.world.partition(topic.name, index)


def _append(context: RequestContext, request: ProduceRequest, transaction: _Transaction | None) -> Answer:
    waiting: Waiting = []
    response = ProduceResponse(
        responses=[_append_topic(context, request, topic, waiting, transaction) for topic in request.topic_data]
    )
    if request.acks == 0:
        _close_on_error(response)
        return None
    return _when_settled(response, waiting) if waiting else response


def _append_topic(
    context: RequestContext,
    request: ProduceRequest,
    topic: TopicProduceData,
    waiting: Waiting,
    transaction: _Transaction | None,
) -> TopicProduceResponse:
    internal_allowed = context.client_id == ADMIN_CLIENT_ID
    now_ms = context.world.clock.time_ms()
    rows = []
    for data in topic.partition_data:
        row = PartitionProduceResponse(index=data.index)
        rows.append(row)
        partition: Partition | None = None
        try:
            partition = _partition(context, topic, data.index)
            if transaction is not None and partition.mode is LogMode.WRITABLE and _is_transactional(data):
                transaction.check(partition)
            result = partition.produce(
                data.records,
                now_ms=now_ms,
                acks=request.acks,
                api_version=context.api_version,
                internal_allowed=internal_allowed,
                epoch_bumps=context.api_version >= _FIRST_VERSION_WITH_EPOCH_BUMPS,
                inspection=None if context.inspections is None else context.inspections.get(id(data)),
            )
        except ApiError as error:
            _fail(row, error)
            if partition is not None and isinstance(error, _NotAdmitted):
                partition.note_refused(data.records)
            by_the_log = isinstance(error, RecordsRefused) or (
                error.code in REFUSED_BY_THE_LOG and not isinstance(error, _NotAdmitted)
            )
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


def _not_admitted(code: ErrorCode, *, adds: bool) -> _NotAdmitted:
    """What a client of Produce is told (ReplicaManager.handleProduceAppend)."""
    if code is ErrorCode.INVALID_TXN_STATE:
        return _NotAdmitted(code, "Partition was not added to the transaction")
    if code in _COORDINATOR_CANNOT_SAY or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        text = f"Unable to verify the partition has been added to the transaction. Underlying error: {code.name}"
        return _NotAdmitted(ErrorCode.NOT_ENOUGH_REPLICAS, text)
    return _NotAdmitted(code, code.message)


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


def _when_settled(response: ProduceResponse, waiting: Waiting) -> Promise[ProduceResponse | None]:
    """A promise of the response, settled when every partition's commit is decided."""
    answered: Promise[ProduceResponse | None] = Promise()
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
