"""EndTxn (26): commit or abort.

Versions: 0-5.

Behaviour: answered when the decision is on disk; the markers follow. Below version 5 the epoch stays: a repeated
request is answered with NONE once the transaction has ended the same way, INVALID_TXN_STATE when it ended the other way
or none is open. From version 5 (transactions v2, KIP-890) each end raises the epoch, the answer carries the identity to
go on with (another producer id when the epochs are used up), a repeated request is known by the epoch before and gets
the same answer, and an abort is taken without an open transaction too. While a transaction is being ended:
CONCURRENT_TRANSACTIONS. Another epoch: PRODUCER_FENCED (INVALID_PRODUCER_EPOCH below version 2); another producer id or
an unknown transactional id: INVALID_PRODUCER_ID_MAPPING.

Deviations: none known.
"""

from __future__ import annotations

from kmirror.coordinator.transactions import Producer
from kmirror.protocol.api.end_txn import EndTxnRequest, EndTxnResponse
from kmirror.server.context import RequestContext
from kmirror.server.transaction_codes import for_version
from kmirror.server.waiting import settled

VERSIONS = (0, 5)

_FIRST_VERSION_WITH_FENCED = 2
_FIRST_VERSION_WITH_EPOCH_BUMPS = 5


async def handle(context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    answer = await settled(
        context.world.transactions.end(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            commit=request.committed,
            client_version=2 if context.api_version >= _FIRST_VERSION_WITH_EPOCH_BUMPS else 0,
        )
    )
    return EndTxnResponse(
        error_code=for_version(answer.code, context.api_version, _FIRST_VERSION_WITH_FENCED),
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
    )
