"""LeaveGroup: members go at once instead of at the end of their session, several of them if asked so. L2, pure.

Kafka: GroupMetadataManager.classicGroupLeave (KIP-345: removal by instance id; KIP-800: reasons).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kmirror.coordinator.groups import rebalance
from kmirror.coordinator.groups.classic import ClassicGroup, State
from kmirror.coordinator.groups.messages import NO_MEMBER, LeaveAnswer, LeaveRequest, Leaving, Left
from kmirror.errors import ApiError
from kmirror.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kmirror.coordinator.groups.machine import Groups

log = logging.getLogger("kmirror.groups")


def leave(groups: Groups, request: LeaveRequest, now_ms: int) -> LeaveAnswer:
    if not request.group_id:
        return LeaveAnswer(error_code=ErrorCode.INVALID_GROUP_ID)
    group = groups.table.get(request.group_id)
    if group is None:
        return LeaveAnswer(members=tuple(_left(leaving, ErrorCode.UNKNOWN_MEMBER_ID) for leaving in request.members))
    left = tuple(_left(leaving, _remove(groups, group, leaving)) for leaving in request.members)
    gone = sum(not one.error_code for one in left)
    if gone and group.state in (State.STABLE, State.COMPLETING):
        rebalance.prepare_or_complete(groups, group, f"{gone} members left", now_ms)
    elif gone and group.state is State.PREPARING:
        rebalance.complete_if_all_joined(groups, group, now_ms)
    return LeaveAnswer(members=left)


def _left(leaving: Leaving, code: int) -> Left:
    return Left(leaving.member_id, leaving.instance_id, code)


def _remove(groups: Groups, group: ClassicGroup, leaving: Leaving) -> int:
    """An error code."""
    member_id = leaving.member_id
    if member_id == NO_MEMBER:
        named = None if leaving.instance_id is None else group.instances.get(leaving.instance_id)
        if named is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = named
    elif member_id not in group.pending:
        try:
            group.check_member(member_id, leaving.instance_id)
        except ApiError as error:
            return error.code
    log.info("group %s: member %s left (%s)", group.group_id, member_id, leaving.reason or "no reason given")
    groups.end_session(group, member_id)
    rebalance.remove(groups, group, member_id)
    return ErrorCode.NONE
