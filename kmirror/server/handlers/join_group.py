"""JoinGroup (11): become a member of a classic group, or of its next generation.

Versions: 0-9.

Behaviour: as Kafka's coordinator: a new dynamic member is given its id first (MEMBER_ID_REQUIRED, from version 4 on)
and may wait five minutes for its first generation; a static member (group.instance.id) takes the place of its former
self, in a stable group without a rebalance, and fences it (FENCED_INSTANCE_ID); the protocol is the one that all
members know and most prefer; group.min.session.timeout.ms, group.max.session.timeout.ms, group.max.size and
group.initial.rebalance.delay.ms (extended while members keep coming) are obeyed. The answer comes when all have joined,
or the longest rebalance timeout has passed: then dynamic members that did not join are out. Nothing else on the
connection is answered meanwhile.

Deviations: a second JoinGroup of a member that waits gets the answer that the first gets; Kafka never answers the
first. The generation after 2147483647 is 0, where Kafka goes on with negative ones. group.initial.rebalance.delay.ms is
0 unless set. A member with more than 1000 protocols or 4 MiB of metadata is refused (INVALID_REQUEST), and new members
of a group with 64 MiB of it, or with 10,000 ids that nobody has joined with, are too (GROUP_MAX_SIZE_REACHED). A
member id of more than 32,767 bytes is shortened.
"""

from __future__ import annotations

from kmirror.coordinator.groups.messages import JoinAnswer, JoinRequest, MemberProtocol
from kmirror.protocol.api.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from kmirror.server.context import RequestContext
from kmirror.server.waiting import settled

VERSIONS = (0, 9)

_FIRST_VERSION_WITH_REBALANCE_TIMEOUT = 1
_FIRST_VERSION_THAT_NEEDS_A_MEMBER_ID = 4
_FIRST_VERSION_WITH_NULL_PROTOCOL = 7
_FIRST_VERSION_THAT_CAN_SKIP = 9


async def handle(context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    version = context.api_version
    has_timeout = version >= _FIRST_VERSION_WITH_REBALANCE_TIMEOUT
    asked = JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        client_host=f"/{context.connection.host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms if has_timeout else request.session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(MemberProtocol(offered.name, bytes(offered.metadata)) for offered in request.protocols),
        needs_member_id=version >= _FIRST_VERSION_THAT_NEEDS_A_MEMBER_ID,
        can_skip_assignment=version >= _FIRST_VERSION_THAT_CAN_SKIP,
        reason=request.reason,
    )
    return _response(await settled(context.world.groups.join(asked)), version)


def _response(answer: JoinAnswer, version: int) -> JoinGroupResponse:
    name = answer.protocol_name
    return JoinGroupResponse(
        error_code=answer.error_code,
        generation_id=answer.generation_id,
        protocol_type=answer.protocol_type,
        protocol_name="" if name is None and version < _FIRST_VERSION_WITH_NULL_PROTOCOL else name,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment and version >= _FIRST_VERSION_THAT_CAN_SKIP,
        member_id=answer.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in answer.members
        ],
    )
