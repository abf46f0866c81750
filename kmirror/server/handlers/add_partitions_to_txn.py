"""AddPartitionsToTxn (24): partitions that a transaction will write to.

Versions: 0-5.

Behaviour: begins the transaction when none is open. All partitions of a transaction are added or none: one that does
not exist is UNKNOWN_TOPIC_OR_PARTITION, one of a mirror READ_ONLY_TOPIC, an internal topic TOPIC_AUTHORIZATION_FAILED
(below version 4), and the others OPERATION_NOT_ATTEMPTED. From version 4, which brokers speak among each other, several
transactions at once, and with VerifyOnly the question whether the partitions were added (TRANSACTION_ABORTABLE when
not). Unknown transactional id or another producer id: INVALID_PRODUCER_ID_MAPPING; another epoch: PRODUCER_FENCED
(INVALID_PRODUCER_EPOCH below version 2); while the transaction before is being ended: CONCURRENT_TRANSACTIONS.

Deviations: a request without any transaction is answered; Kafka says nothing.
"""

from __future__ import annotations

from kmirror.broker.metadata import INTERNAL_TOPICS
from kmirror.coordinator.transactions import Answer, Producer
from kmirror.effects import Place, Promise
from kmirror.protocol.api.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.transaction_codes import for_version
from kmirror.server.waiting import Turn, settled
from kmirror.storage.log import LogMode

VERSIONS = (0, 5)

_FIRST_VERSION_WITH_FENCED = 2
_FIRST_VERSION_OF_BROKERS = 4


async def handle(context: RequestContext, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    if context.api_version >= _FIRST_VERSION_OF_BROKERS:
        turn = Turn()
        begun = []
        for transaction in request.transactions:
            await turn.let_others()
            begun.append((transaction, _begin(context, transaction)))
        results = []
        for transaction, outcome in begun:
            await turn.let_others()
            rows = await _rows(context, transaction, outcome)
            results.append(AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=rows))
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    rows = await _rows(context, transaction, _begin(context, transaction))
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=rows)


def _begin(
    context: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> Promise[Answer] | dict[Place, ErrorCode]:
    """One answer for all partitions, or a code for each."""
    places = _places(transaction)
    refused = {place: code for place in places if (code := _refusal(context, place)) is not None}
    if refused:
        return {place: refused.get(place, ErrorCode.OPERATION_NOT_ATTEMPTED) for place in places}
    producer = Producer(transaction.producer_id, transaction.producer_epoch)
    transactions = context.world.transactions
    if transaction.verify_only:
        return transactions.machine.verify(transaction.transactional_id, producer, places)
    return transactions.add(
        transaction.transactional_id,
        producer,
        frozenset(places),
        client_version=2 if context.api_version >= _FIRST_VERSION_OF_BROKERS else 0,
    )


def _places(transaction: AddPartitionsToTxnTransaction) -> list[Place]:
    return [(topic.name, index) for topic in transaction.topics for index in topic.partitions]


def _refusal(context: RequestContext, place: Place) -> ErrorCode | None:
    topic_name, index = place
    if context.api_version < _FIRST_VERSION_OF_BROKERS and topic_name in INTERNAL_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = context.world.image.topics_by_name.get(topic_name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return None if topic.partitions[index].mode is LogMode.WRITABLE else ErrorCode.READ_ONLY_TOPIC


async def _codes(
    context: RequestContext,
    transaction: AddPartitionsToTxnTransaction,
    outcome: Promise[Answer] | dict[Place, ErrorCode],
) -> dict[Place, ErrorCode]:
    if isinstance(outcome, dict):
        await settled(context.world.transactions.when_durable(transaction.transactional_id))
        return outcome
    code = for_version((await settled(outcome)).code, context.api_version, _FIRST_VERSION_WITH_FENCED)
    return dict.fromkeys(_places(transaction), code)


async def _rows(
    context: RequestContext,
    transaction: AddPartitionsToTxnTransaction,
    outcome: Promise[Answer] | dict[Place, ErrorCode],
) -> list[AddPartitionsToTxnTopicResult]:
    """As often as a partition was named; once when there is a code for each, as Kafka has it."""
    codes = await _codes(context, transaction, outcome)
    once = isinstance(outcome, dict)
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=codes[(topic.name, index)]
                )
                for index in (dict.fromkeys(topic.partitions) if once else topic.partitions)
            ],
        )
        for topic in transaction.topics
    ]
