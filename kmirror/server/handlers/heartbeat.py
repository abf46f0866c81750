"""Heartbeat (12): a member of a classic group is alive.

Versions: 0-4.

Behaviour: starts the member's session anew. REBALANCE_IN_PROGRESS tells it to join again, ILLEGAL_GENERATION that the
group went on without it, UNKNOWN_MEMBER_ID that it is no member (also in a group that does not exist),
FENCED_INSTANCE_ID that another has its instance id. While an assignment is awaited heartbeats are answered without
error.

Deviations: none.
"""

from __future__ import annotations

from kmirror.protocol.api.heartbeat import HeartbeatRequest, HeartbeatResponse
from kmirror.server.context import RequestContext

VERSIONS = (0, 4)
FEW_ROWS = True


def handle(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    code = context.world.groups.heartbeat(
        request.group_id, request.member_id, request.generation_id, request.group_instance_id
    )
    return HeartbeatResponse(error_code=code)
