"""DescribeTransactions (65): the state of transactional ids, and the partitions of their transactions (KIP-664).

Versions: 0.

Behaviour: an unknown id is TRANSACTIONAL_ID_NOT_FOUND, an empty one INVALID_REQUEST. TransactionStartTimeMs is -1 when
the producer has been initialized and has begun nothing since.

Deviations: while a transaction is being ended all its partitions are listed; Kafka takes each off as its marker is
written.
"""

from __future__ import annotations

from kmirror.coordinator.transactions import Transaction
from kmirror.protocol.api.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsState,
    DescribeTransactionsTopicData,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.waiting import Turn, settled

VERSIONS = (0, 0)


async def handle(context: RequestContext, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    """An id that is named again shares its row: its transaction may have thousands of partitions."""
    transactions = context.world.transactions
    turn = Turn()
    rows: dict[str, DescribeTransactionsState] = {}
    for name in dict.fromkeys(request.transactional_ids):
        await turn.let_others()
        rows[name] = _state(name, transactions.machine.get(name))
        if not transactions.is_durable(name):
            await settled(transactions.when_durable(name))
    return DescribeTransactionsResponse(transaction_states=[rows[name] for name in request.transactional_ids])


def _state(name: str, entry: Transaction | None) -> DescribeTransactionsState:
    if entry is None:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if name else ErrorCode.INVALID_REQUEST
        return DescribeTransactionsState(transactional_id=name, error_code=code)
    return DescribeTransactionsState(
        transactional_id=name,
        transaction_state=entry.state.shown,
        transaction_timeout_ms=entry.timeout_ms,
        transaction_start_time_ms=entry.start_ms,
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        topics=[DescribeTransactionsTopicData(topic=topic, partitions=ids) for topic, ids in entry.by_topic.items()],
    )
