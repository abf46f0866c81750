"""DeleteGroups (42): forget groups without members, with their offsets.

Versions: 0-3.

Behaviour: one result per group: NON_EMPTY_GROUP while it has members, GROUP_ID_NOT_FOUND for one that does not exist.
Answered once group and offsets are gone from disk.

Deviations: none.
"""

from __future__ import annotations

from kmirror.broker.group_offsets import client_code
from kmirror.errors import ApiError
from kmirror.protocol.api.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from kmirror.server.context import RequestContext
from kmirror.server.waiting import Turn, settled

VERSIONS = (0, 3)


async def handle(context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    groups = context.world.groups
    turn = Turn()
    deleting = []
    for group_id in dict.fromkeys(request.groups_names):
        await turn.let_others()
        deleting.append((group_id, groups.delete(group_id)))
    results = []
    for group_id, promise in deleting:
        await turn.let_others()
        try:
            code = await settled(promise)
        except ApiError as error:
            code = client_code(error.code)
        results.append(DeletableGroupResult(group_id=group_id, error_code=code))
    return DeleteGroupsResponse(results=results)
