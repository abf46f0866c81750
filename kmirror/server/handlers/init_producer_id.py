"""InitProducerId (22): a producer id for an idempotent producer.

Versions: 0-5.

Behaviour: without a transactional id, a fresh producer id with epoch 0, taken from a block that is on disk; what the
producer says of an older id is ignored, as Kafka does, but an id without an epoch (or the opposite) is INVALID_REQUEST,
and so is an empty transactional id.

Deviations: transactional ids are not served yet and are refused with UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from kmirror.errors import ApiError
from kmirror.protocol.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.waiting import settled

VERSIONS = (0, 5)


async def handle(context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    if request.transactional_id == "" or (request.producer_id == -1) != (request.producer_epoch == -1):
        return _refused(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    try:
        producer_id = await settled(context.world.producer_ids.next())
    except ApiError as error:
        return _refused(error.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refused(code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
