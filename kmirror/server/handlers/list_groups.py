"""ListGroups (16): the groups that this broker coordinates.

Versions: 0-5.

Behaviour: all of them, or those in one of the states asked for (version 4 on) and of one of the types (version 5 on),
both in any case. Every group here is of type classic; one that exists only by its committed offsets has no protocol
type.

Deviations: none.
"""

from __future__ import annotations

from kmirror.protocol.api.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from kmirror.server.context import RequestContext
from kmirror.server.waiting import settled

VERSIONS = (0, 5)

_TYPE = "classic"


async def handle(context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    types = {name.lower() for name in request.types_filter}
    if types and _TYPE not in types:
        return ListGroupsResponse()
    found = await settled(context.world.groups.listed(request.states_filter))
    return ListGroupsResponse(
        groups=[
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=_TYPE,
            )
            for group in found
        ]
    )
