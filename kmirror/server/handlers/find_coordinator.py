"""FindCoordinator (10): where a group's or a transactional id's coordinator is.

Versions: 0-6.

Behaviour: the only node is every group's and every transactional id's coordinator. From version 4 several keys are
answered at once (KIP-699). A share-group key must be "group:topicId:partition" and needs version 6 (KIP-932); a wrong
one, and an unknown key type: INVALID_REQUEST. The first question about a group makes __consumer_offsets, the first
about a transactional id __transaction_state.

Deviations: Kafka answers COORDINATOR_NOT_AVAILABLE until the internal topic exists; here the answer is right at once,
and who comes before the topic is there waits for it.
"""

from __future__ import annotations

from kmirror.broker.metadata import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kmirror.protocol.api.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.waiting import Turn

VERSIONS = (0, 6)

GROUP, TRANSACTION, SHARE = 0, 1, 2
_TOPICS = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTIONS_TOPIC}
_FIRST_VERSION_WITH_KEYS = 4
_FIRST_VERSION_WITH_SHARE = 6


async def handle(context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    if context.api_version >= _FIRST_VERSION_WITH_KEYS:
        turn = Turn()
        found_all: list[Coordinator] = []
        for key in request.coordinator_keys:
            await turn.let_others()
            found_all.append(_find(context, request.key_type, key))
        return FindCoordinatorResponse(coordinators=found_all)
    found = _find(context, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message or "NONE",
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(context: RequestContext, key_type: int, key: str) -> Coordinator:
    reason = None
    if key_type == SHARE:
        if context.api_version < _FIRST_VERSION_WITH_SHARE or len(key.rsplit(":", 2)) != 3:
            reason = "a share coordinator is asked for with version 6 and a key group:topicId:partition"
    elif key_type not in (GROUP, TRANSACTION):
        reason = f"unknown coordinator type {key_type}"
    if reason is not None:
        return Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=ErrorCode.INVALID_REQUEST, error_message=reason
        )
    if key_type in _TOPICS:
        context.world.ensure_internal_topic(_TOPICS[key_type])
    host, port = context.advertised()
    return Coordinator(key=key, node_id=context.world.node_id, host=host, port=port)
