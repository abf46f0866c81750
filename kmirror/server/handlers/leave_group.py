"""LeaveGroup (13): members leave a classic group before their session ends.

Versions: 0-5.

Behaviour: from version 3 on several at once, each with its own result; a static member can be named by its instance id
alone (an operator removes it). Before version 3 the one member's error is the answer's. Answered once an emptied group
is on disk as such; the others rebalance.

Deviations: none.
"""

from __future__ import annotations

from kmirror.broker.group_offsets import client_code
from kmirror.coordinator.groups.messages import LeaveAnswer, LeaveRequest, Leaving, Left
from kmirror.errors import ApiError
from kmirror.limits import ROWS_PER_TURN
from kmirror.protocol.api.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from kmirror.server.context import RequestContext
from kmirror.server.waiting import Turn, parts, settled

VERSIONS = (0, 5)

_FIRST_VERSION_WITH_MEMBERS = 3


async def handle(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    has_members = context.api_version >= _FIRST_VERSION_WITH_MEMBERS
    if has_members:
        leaving = tuple(Leaving(one.member_id, one.group_instance_id, one.reason) for one in request.members)
    else:
        leaving = (Leaving(request.member_id),)
    try:
        answer = await _leave(context, request.group_id, leaving)
    except ApiError as error:
        return LeaveGroupResponse(error_code=client_code(error.code))
    if not has_members:
        codes = [answer.error_code, *(left.error_code for left in answer.members)]
        return LeaveGroupResponse(error_code=next((code for code in codes if code), 0))
    return LeaveGroupResponse(
        error_code=answer.error_code,
        members=[
            MemberResponse(member_id=left.member_id, group_instance_id=left.instance_id, error_code=left.error_code)
            for left in answer.members
        ],
    )


async def _leave(context: RequestContext, group_id: str, leaving: tuple[Leaving, ...]) -> LeaveAnswer:
    """Raises ApiError. Very many go in several steps."""
    if not leaving:
        return await settled(context.world.groups.leave(LeaveRequest(group_id=group_id, members=())))
    turn = Turn()
    error_code = 0
    left: list[Left] = []
    for some in parts(leaving, ROWS_PER_TURN):
        await turn.let_others()
        answer = await settled(context.world.groups.leave(LeaveRequest(group_id=group_id, members=tuple(some))))
        error_code = error_code or answer.error_code
        left += answer.members
    return LeaveAnswer(error_code=error_code, members=tuple(left))
