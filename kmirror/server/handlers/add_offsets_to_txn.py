"""AddOffsetsToTxn (25): a group whose offsets a transaction will commit.

Versions: 0-4.

Behaviour: adds the group's partition of __consumer_offsets to the transaction, which begins when none is open. Refusals
are those of AddPartitionsToTxn; PRODUCER_FENCED is INVALID_PRODUCER_EPOCH below version 2.

Deviations: makes __consumer_offsets when it does not exist yet.
"""

from __future__ import annotations

from kmirror.coordinator.transactions import Producer
from kmirror.protocol.api.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kmirror.server.context import RequestContext
from kmirror.server.transaction_codes import for_version
from kmirror.server.waiting import settled

VERSIONS = (0, 4)

_FIRST_VERSION_WITH_FENCED = 2


async def handle(context: RequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    producer = Producer(request.producer_id, request.producer_epoch)
    answer = await settled(context.world.transactions.add_offsets(request.transactional_id, producer, request.group_id))
    return AddOffsetsToTxnResponse(error_code=for_version(answer.code, context.api_version, _FIRST_VERSION_WITH_FENCED))
