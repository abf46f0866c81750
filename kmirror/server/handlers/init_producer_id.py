"""InitProducerId (22): an identity for an idempotent or a transactional producer.

Versions: 0-5.

Behaviour: without a transactional id, a fresh producer id with epoch 0, taken from a block that is on disk; what the
producer says of an older id is ignored, as Kafka does. With one, the id's producer id and the next epoch, which fences
whoever had the one before; when the epochs are used up, another producer id. An open transaction is aborted first:
CONCURRENT_TRANSACTIONS until that is done. A producer that says which identity it has (KIP-360, version 3) gets the
next epoch of it, the same answer again when its last one was lost, and PRODUCER_FENCED (INVALID_PRODUCER_EPOCH below
version 4) when somebody else came in between. A timeout above transaction.max.timeout.ms: INVALID_TRANSACTION_TIMEOUT.
A producer id without an epoch (or the opposite), and an empty transactional id: INVALID_REQUEST.

Deviations: when the epochs are used up, a producer that names another epoch than the last one is told PRODUCER_FENCED,
or the same answer again when its last one was lost; Kafka answers UNKNOWN_SERVER_ERROR. As in Kafka, whose log does not
hold the epoch before the last, a request that is repeated over a restart of the broker is fenced.
"""

from __future__ import annotations

from kmirror.coordinator.transactions import Producer
from kmirror.errors import ApiError
from kmirror.protocol.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.transaction_codes import for_version
from kmirror.server.waiting import settled

VERSIONS = (0, 5)

_FIRST_VERSION_WITH_FENCED = 4


async def handle(context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return _refused(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is None:
        return await _idempotent(context)
    expected = None if request.producer_id == -1 else Producer(request.producer_id, request.producer_epoch)
    answer = await settled(
        context.world.transactions.init_producer_id(
            request.transactional_id, timeout_ms=request.transaction_timeout_ms, expected=expected
        )
    )
    return InitProducerIdResponse(
        error_code=for_version(answer.code, context.api_version, _FIRST_VERSION_WITH_FENCED),
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
    )


async def _idempotent(context: RequestContext) -> InitProducerIdResponse:
    try:
        producer_id = await settled(context.world.producer_ids.next())
    except ApiError as error:
        return _refused(error.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refused(code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
