"""ListTransactions (66): transactional ids and their states (KIP-664).

Versions: 0-2.

Behaviour: filters by state, producer id, from version 1 by how long the transaction has been open (KIP-994), and from
version 2 by a regular expression that the whole id must match (KIP-1152). States that do not exist are named in
UnknownStateFilters. A bad expression: INVALID_REGULAR_EXPRESSION.

Deviations: expressions are RE2's, which have no look-around and no back references.
"""

from __future__ import annotations

from kmirror.protocol.api.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsState,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.waiting import settled_until

VERSIONS = (0, 2)


async def handle(context: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
    pattern = None
    if request.transactional_id_pattern:
        import re2

        options = re2.Options()
        options.log_errors = False
        try:
            pattern = re2.compile(request.transactional_id_pattern, options)
        except re2.error:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    transactions = context.world.transactions
    found, unknown = transactions.machine.listed(
        states=request.state_filters,
        producer_ids=request.producer_id_filters,
        duration_ms=request.duration_filter,
        matches=lambda name: pattern is None or pattern.fullmatch(name) is not None,
        now_ms=context.clock.time_ms(),
    )
    response = ListTransactionsResponse(
        unknown_state_filters=unknown,
        transaction_states=[
            ListTransactionsState(
                transactional_id=name, producer_id=entry.producer_id, transaction_state=entry.state.shown
            )
            for name, entry in found
        ],
    )
    await settled_until([transactions.when_durable(name) for name, _ in found if not transactions.is_durable(name)])
    return response
