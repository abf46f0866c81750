"""DescribeGroups (15): state, protocol and members of classic groups.

Versions: 0-6.

Behaviour: what members said and were assigned is shown while the group is stable; a group that exists only by its
committed offsets is Empty. A group that does not exist is Dead, from version 6 on with GROUP_ID_NOT_FOUND. Authorized
operations are filled in when asked for; without an authorizer that is all of them.

Deviations: none.
"""

from __future__ import annotations

from kmirror.coordinator.groups.messages import Description
from kmirror.limits import ROWS_PER_TURN
from kmirror.protocol.api.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.server.authorized import GROUP_OPERATIONS, NOT_ASKED
from kmirror.server.context import RequestContext
from kmirror.server.waiting import Turn, parts, settled

VERSIONS = (0, 6)

_FIRST_VERSION_WITH_NOT_FOUND = 6


async def handle(context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """A group that is named again shares its row: it may have thousands of members."""
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    tells_missing = context.api_version >= _FIRST_VERSION_WITH_NOT_FOUND
    turn = Turn()
    rows: dict[str, DescribedGroup] = {}
    for asked in parts(dict.fromkeys(request.groups), ROWS_PER_TURN):
        await turn.let_others()
        for group in await settled(context.world.groups.describe(asked)):
            missing = tells_missing and not group.exists
            rows[group.group_id] = _missing(group) if missing else _row(group, operations)
    return DescribeGroupsResponse(groups=[rows[group_id] for group_id in request.groups])


def _row(group: Description, operations: int) -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
        authorized_operations=operations,
    )


def _missing(group: Description) -> DescribedGroup:
    return DescribedGroup(
        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=f"Group {group.group_id} not found.",
        group_id=group.group_id,
        group_state=group.state,
    )
