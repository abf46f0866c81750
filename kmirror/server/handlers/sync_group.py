"""SyncGroup (14): the leader hands in the assignment of a generation, every member gets its own.

Versions: 0-5.

Behaviour: as Kafka's coordinator: members wait until the leader's assignment is on disk, with the members it is for;
a member that the leader left out gets an empty one. Members that do not ask within the rebalance timeout are out,
however well they heartbeat. REBALANCE_IN_PROGRESS when the next rebalance came first. From version 5 on protocol type
and name are compared with the group's (INCONSISTENT_GROUP_PROTOCOL, also when they are missing).

Deviations: a second SyncGroup of a member that waits gets the answer that the first gets, and a member that is removed
while it waits is told UNKNOWN_MEMBER_ID; Kafka never answers either. An assignment that the leader sends while its
first is being stored is ignored; Kafka records it too, and hands out the first.
"""

from __future__ import annotations

from kmirror.coordinator.groups.messages import SyncRequest
from kmirror.protocol.api.sync_group import SyncGroupRequest, SyncGroupResponse
from kmirror.protocol.errors import ErrorCode
from kmirror.server.context import RequestContext
from kmirror.server.waiting import settled

VERSIONS = (0, 5)

_FIRST_VERSION_WITH_PROTOCOL = 5


async def handle(context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    names_protocol = request.protocol_type is not None and request.protocol_name is not None
    if context.api_version >= _FIRST_VERSION_WITH_PROTOCOL and not names_protocol:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    answer = await settled(
        context.world.groups.sync(
            SyncRequest(
                group_id=request.group_id,
                generation_id=request.generation_id,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                protocol_type=request.protocol_type,
                protocol_name=request.protocol_name,
                assignments={one.member_id: bytes(one.assignment) for one in request.assignments},
            )
        )
    )
    return SyncGroupResponse(
        error_code=answer.error_code,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )
