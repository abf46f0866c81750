"""TxnOffsetCommit (28): a group's offsets as part of a producer's transaction.

Versions: 0-6.

Behaviour: the offsets are kept apart until the transaction ends, become the group's when it commits, unless the group
has committed others meanwhile, and are dropped when it aborts. The transaction must include the group's offsets
(AddOffsetsToTxn); from version 5 on (transactions v2) the commit itself includes them. The member and its generation
are checked as in OffsetCommit, from version 3 on; a generation of a group that does not exist is ILLEGAL_GENERATION,
from version 6 on GROUP_ID_NOT_FOUND. Version 6 names topics by id. Mirror topics may be committed for in every state:
nothing is written to them (KIP-1279). Answered once the offsets are on disk.

Deviations: Kafka answers NOT_COORDINATOR until a FindCoordinator has created __consumer_offsets; here it is created.
"""

from __future__ import annotations

from kmirror.broker.group_offsets import Committer, client_code
from kmirror.coordinator.transactions import Producer
from kmirror.errors import ApiError
from kmirror.protocol.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kmirror.server.context import RequestContext
from kmirror.server.offset_rows import AskedOffsets
from kmirror.server.waiting import settled

VERSIONS = (0, 6)

_FIRST_VERSION_WITH_IDS = 6


async def handle(context: RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    asked = await AskedOffsets.of(context.world, request.topics, by_id=context.api_version >= _FIRST_VERSION_WITH_IDS)
    codes: list[int] = []
    if asked.rows:
        try:
            codes = await _commit(context, request, asked)
        except ApiError as error:
            codes = [client_code(error.code)] * len(asked.rows)
    return TxnOffsetCommitResponse(
        topics=await asked.answer(TxnOffsetCommitResponseTopic, TxnOffsetCommitResponsePartition, codes)
    )


async def _commit(context: RequestContext, request: TxnOffsetCommitRequest, asked: AskedOffsets) -> list[int]:
    offsets, version = context.world.groups.offsets, context.api_version
    producer = Producer(request.producer_id, request.producer_epoch)
    await settled(offsets.usable())
    admitted = await settled(offsets.admit(request.group_id, request.transactional_id, producer, api_version=version))
    for code in admitted.values():
        if code:
            return [client_code(code)] * len(asked.rows)
    who = Committer(
        group_id=request.group_id,
        member_id=request.member_id,
        generation=request.generation_id_or_member_epoch,
        instance_id=request.group_instance_id,
    )
    return await asked.committed(
        lambda rows: offsets.commit_transactional(who, rows, request.transactional_id, producer, api_version=version)
    )
