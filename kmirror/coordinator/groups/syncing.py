"""SyncGroup, Heartbeat, and who may commit offsets: what members of a generation do. L2, pure.

Kafka: GroupMetadataManager (classicGroupSync, classicGroupHeartbeat), ClassicGroup.validateOffsetCommit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kmirror.coordinator.groups import rebalance
from kmirror.coordinator.groups.classic import ClassicGroup, State
from kmirror.coordinator.groups.events import AssignmentStored, sync_key
from kmirror.coordinator.groups.member import Member
from kmirror.coordinator.groups.messages import NO_MEMBER, SyncAnswer, SyncRequest
from kmirror.effects import Promise
from kmirror.errors import ApiError
from kmirror.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kmirror.coordinator.groups.machine import Groups


def sync(groups: Groups, request: SyncRequest, answer: Promise[SyncAnswer], now_ms: int) -> None:
    if not request.group_id:
        groups.reply(answer, SyncAnswer(error_code=ErrorCode.INVALID_GROUP_ID))
        return
    group = groups.table.get(request.group_id)
    try:
        if group is None or group.state is State.EMPTY:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        group.check_member(request.member_id, request.instance_id)
        _check_generation(group, request)
    except ApiError as error:
        groups.reply(answer, SyncAnswer(error_code=error.code))
        return
    member = group.members[request.member_id]
    group.pending_syncs.discard(member.member_id)
    if not group.pending_syncs:
        groups.cancel_timer(sync_key(group.group_id))
    if group.state is State.STABLE:
        groups.reply(answer, _assigned(group, member))
        return
    member.syncs.append(answer)
    if group.leader == member.member_id and not group.assignment_under_way:
        group.assignment_under_way = True
        assignments = {member_id: request.assignments.get(member_id, b"") for member_id in group.members}
        stored = AssignmentStored(group.group_id, group.generation_id, assignments)
        groups.record_group(group, group.recorded(assignments), stored)


def _check_generation(group: ClassicGroup, request: SyncRequest) -> None:
    """Raises ApiError."""
    if request.generation_id != group.generation_id:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
    for asked, current in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol_name),
    ):
        if asked is not None and current is not None and asked != current:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.state is State.PREPARING:
        raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)


def _assigned(group: ClassicGroup, member: Member) -> SyncAnswer:
    return SyncAnswer(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )


def assignment_stored(groups: Groups, group: ClassicGroup, stored: AssignmentStored, now_ms: int) -> None:
    """The generation is complete, unless another rebalance has begun meanwhile."""
    if group.state is not State.COMPLETING or group.generation_id != stored.generation_id:
        return
    for member in group.members.values():
        member.assignment = stored.assignments.get(member.member_id, b"")
        if groups.answer_sync(member, _assigned(group, member)):
            # While it waited, the end of its session was ignored, so no timer may be left.
            groups.start_session(group, member)
    group.transition(State.STABLE, now_ms)


def assignment_not_stored(
    groups: Groups, group: ClassicGroup, stored: AssignmentStored, code: int, now_ms: int
) -> None:
    if group.state is not State.COMPLETING or group.generation_id != stored.generation_id:
        return
    rebalance.refuse_assignments(groups, group, code)
    rebalance.prepare_or_complete(groups, group, f"the assignment could not be stored (error {code})", now_ms)


def heartbeat(groups: Groups, group_id: str, member_id: str, generation_id: int, instance_id: str | None) -> int:
    """An error code. During a rebalance it still keeps the session, and tells the member to join again."""
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    group = groups.table.get(group_id)
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    try:
        group.check_member(member_id, instance_id)
    except ApiError as error:
        return error.code
    if generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    groups.start_session(group, group.members[member_id])
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is State.PREPARING else ErrorCode.NONE


def check_commit(
    groups: Groups,
    group_id: str,
    member_id: str,
    generation_id: int,
    instance_id: str | None,
    *,
    transactional: bool,
) -> None:
    """Raises ApiError. GROUP_ID_NOT_FOUND stands for a generation of a group that does not exist: commits below
    OffsetCommit 9 and transactional ones say ILLEGAL_GENERATION for it."""
    group = groups.table.get(group_id)
    if group is None:
        if generation_id >= 0:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        return
    if generation_id < 0 and group.state is State.EMPTY:
        return
    if generation_id >= 0 or member_id != NO_MEMBER or instance_id is not None:
        group.check_member(member_id, instance_id)
        if generation_id != group.generation_id:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
    elif not transactional:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    if transactional:
        return
    if group.state is State.COMPLETING:
        raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
    groups.start_session(group, group.members[member_id])
