"""JoinGroup: who may come in, under which id, and when that makes the group rebalance. L2, pure.

Kafka: GroupMetadataManager (classicGroupJoin..., updateStaticMemberThenRebalanceOrCompleteJoin).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kmirror.coordinator.groups import rebalance
from kmirror.coordinator.groups.classic import ClassicGroup, State
from kmirror.coordinator.groups.events import SessionExpired, StaticMemberStored, session_key
from kmirror.coordinator.groups.member import Member
from kmirror.coordinator.groups.messages import NO_MEMBER, JoinAnswer, JoinRequest, SyncAnswer
from kmirror.effects import Promise
from kmirror.errors import ApiError
from kmirror.limits import (
    GROUP_METADATA_MAX_BYTES,
    GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS,
    MAX_STRING_BYTES,
    MEMBER_METADATA_MAX_BYTES,
    MEMBER_PROTOCOLS_MAX,
    PENDING_MEMBERS_MAX,
)
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal.consumer_offsets import GroupMetadataValue

if TYPE_CHECKING:
    from kmirror.coordinator.groups.machine import Groups

Answer = Promise[JoinAnswer]


def join(groups: Groups, request: JoinRequest, answer: Answer, now_ms: int) -> None:
    limits = groups.limits
    code = ErrorCode.NONE
    if not request.group_id:
        code = ErrorCode.INVALID_GROUP_ID
    elif not limits.min_session_timeout_ms <= request.session_timeout_ms <= limits.max_session_timeout_ms:
        code = ErrorCode.INVALID_SESSION_TIMEOUT
    elif len(request.protocols) > MEMBER_PROTOCOLS_MAX or request.metadata_bytes > MEMBER_METADATA_MAX_BYTES:
        code = ErrorCode.INVALID_REQUEST
    group = groups.table.get(request.group_id)
    is_newcomer = request.member_id == NO_MEMBER
    if code is ErrorCode.NONE and group is None and not is_newcomer:
        code = ErrorCode.UNKNOWN_MEMBER_ID
    if code is not ErrorCode.NONE:
        groups.reply(answer, JoinAnswer(error_code=code, member_id=request.member_id))
        return
    if group is None:
        group = _create(groups, request.group_id, now_ms)
    if not _has_room(groups, group, request.member_id):
        rebalance.remove(groups, group, request.member_id)
        groups.reply(answer, JoinAnswer(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED))
    elif not group.supports(request.protocol_type, [protocol.name for protocol in request.protocols]):
        groups.reply(answer, JoinAnswer(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=request.member_id))
    elif is_newcomer:
        _join_new(groups, group, request, answer, now_ms)
    else:
        _join_again(groups, group, request, answer, now_ms)


def _create(groups: Groups, group_id: str, now_ms: int) -> ClassicGroup:
    """A group is recorded as soon as somebody asks for it, although nobody has joined yet."""
    group = groups.table[group_id] = ClassicGroup(group_id, now_ms=now_ms)
    groups.record_group(
        group, GroupMetadataValue(protocol=None, leader=None, current_state_timestamp=now_ms, members=[])
    )
    return group


def _has_room(groups: Groups, group: ClassicGroup, member_id: str) -> bool:
    """While a rebalance is prepared those who wait are counted: so the last ones to join are the ones too many."""
    is_crowded = len(group.pending) >= PENDING_MEMBERS_MAX or group.metadata_bytes > GROUP_METADATA_MAX_BYTES
    if is_crowded and member_id not in group.members and member_id not in group.pending:
        return False
    if group.state is State.EMPTY or len(group.members) < groups.limits.max_size:
        return True
    member = group.members.get(member_id)
    if group.state is State.PREPARING:
        return (member is not None and member.awaits_join) or group.awaiting_count < groups.limits.max_size
    return member is not None or len(group.members) < groups.limits.max_size


# -- without an id -----------------------------------------------------------------------------------------------


def _join_new(groups: Groups, group: ClassicGroup, request: JoinRequest, answer: Answer, now_ms: int) -> None:
    prefix = request.client_id if request.instance_id is None else request.instance_id
    member_id = _member_id(prefix, groups.new_id())
    if request.instance_id is not None:
        if request.instance_id in group.instances:
            _return_static(groups, group, request, member_id, answer, now_ms)
        else:
            _add(groups, group, request, member_id, answer, now_ms)
    elif request.needs_member_id:
        group.pending.add(member_id)
        groups.start_timer(
            session_key(group.group_id, member_id),
            request.session_timeout_ms,
            SessionExpired(group.group_id, member_id),
        )
        groups.reply(answer, JoinAnswer(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
    else:
        _add(groups, group, request, member_id, answer, now_ms)


def _member_id(prefix: str, unique: str) -> str:
    """As Kafka makes it. The longest prefixes are cut, since the id is a string on the wire and in the log too."""
    room_bytes = MAX_STRING_BYTES - len(unique) - 1
    return f"{prefix.encode()[:room_bytes].decode(errors='ignore')}-{unique}"


def _add(
    groups: Groups, group: ClassicGroup, request: JoinRequest, member_id: str, answer: Answer, now_ms: int
) -> None:
    """A new member cannot send heartbeats yet, and its client may be gone: it may wait five minutes, not for ever."""
    member = Member(
        member_id=member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        is_new=True,
    )
    if group.state is State.PREPARING and group.previous_state is State.EMPTY:
        group.new_member_added = True
    group.add(member, request.protocol_type)
    group.await_join(member, answer)
    groups.start_session(group, member, GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS)
    rebalance.prepare_or_complete(groups, group, f"member {member_id} joins{_because(request)}", now_ms)


# -- with an id --------------------------------------------------------------------------------------------------


def _join_again(groups: Groups, group: ClassicGroup, request: JoinRequest, answer: Answer, now_ms: int) -> None:
    member_id = request.member_id
    if member_id in group.pending:
        if request.instance_id is not None:  # ids are handed out to dynamic members only
            groups.reply(answer, JoinAnswer(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        _add(groups, group, request, member_id, answer, now_ms)
        return
    try:
        group.check_member(member_id, request.instance_id)
    except ApiError as error:
        groups.reply(answer, JoinAnswer(error_code=error.code, member_id=member_id))
        return
    member = group.members[member_id]
    same = member.protocols == request.protocols
    is_leader = group.leader == member_id
    if group.state is State.PREPARING:
        reason = f"member {member_id} joins again"
    elif same and (group.state is State.COMPLETING or not is_leader):
        # The answer may have been lost, or a follower asks without need: the generation stays.
        groups.reply(answer, rebalance.joined(group, member))
        return
    elif same:
        # The leader knows why: what it assigns depends on more than what members say (topics, partitions).
        reason = f"the leader {member_id} asks for it"
    else:
        reason = f"member {member_id} changes what it asks for"
    _update(group, member, request, answer)
    rebalance.prepare_or_complete(groups, group, reason + _because(request), now_ms)


def _update(group: ClassicGroup, member: Member, request: JoinRequest, answer: Answer) -> None:
    group.update(
        member,
        protocols=request.protocols,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
    )
    group.await_join(member, answer)


# -- a static member comes back ----------------------------------------------------------------------------------


def _return_static(
    groups: Groups, group: ClassicGroup, request: JoinRequest, member_id: str, answer: Answer, now_ms: int
) -> None:
    """It takes the place of its former self. In a stable group that costs no rebalance, unless the protocol changes."""
    old_leader = group.leader
    old, member = group.replace_static(request.instance_id or "", member_id)
    fenced = ErrorCode.FENCED_INSTANCE_ID
    groups.answer_join(group, old, JoinAnswer(error_code=fenced, member_id=old.member_id))
    groups.answer_sync(old, SyncAnswer(error_code=fenced))
    groups.end_session(group, old.member_id)
    groups.start_session(group, member)
    _update(group, member, request, answer)
    if group.state is State.STABLE:
        if group.select_protocol() == group.protocol_name:
            stored = StaticMemberStored(
                group.group_id,
                member_id,
                group.generation_id,
                old,
                old_leader,
                request.can_skip_assignment,
            )
            assignments = {other.member_id: other.assignment for other in group.members.values()}
            groups.record_group(group, group.recorded(assignments), stored)
            return
        reason = f"static member {request.instance_id} comes back with other protocols"
        rebalance.prepare_or_complete(groups, group, reason + _because(request), now_ms)
    elif group.state is State.COMPLETING:
        # The leader may be assigning to the old id at this moment.
        reason = f"static member {request.instance_id} comes back during an assignment"
        rebalance.prepare(groups, group, reason + _because(request), now_ms)
    else:
        rebalance.complete_if_all_joined(groups, group, now_ms)


def static_member_stored(groups: Groups, group: ClassicGroup, stored: StaticMemberStored) -> None:
    """Only from here on may it act under its new id. If a rebalance began meanwhile, that answers its join."""
    member = group.members.get(stored.member_id)
    if member is None or group.state is not State.STABLE or group.generation_id != stored.generation_id:
        return
    if stored.can_skip_assignment:
        answer = rebalance.joined(group, member, skip_assignment=group.leader == member.member_id)
    else:
        # A client that cannot skip must not believe to lead, or it would assign again in a stable group.
        answer = JoinAnswer(
            generation_id=group.generation_id,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=stored.old_leader or "",
            member_id=member.member_id,
        )
    groups.answer_join(group, member, answer)


def static_member_not_stored(groups: Groups, group: ClassicGroup, stored: StaticMemberStored, code: int) -> None:
    """Back to the old id, since that is the one that is recorded."""
    member = group.members.get(stored.member_id)
    if member is None or member.instance_id is None:
        return
    new, old = group.replace_static(member.instance_id, stored.old.member_id)
    group.update(
        old,
        protocols=stored.old.protocols,
        rebalance_timeout_ms=stored.old.rebalance_timeout_ms,
        session_timeout_ms=stored.old.session_timeout_ms,
    )
    groups.answer_join(
        group,
        new,
        JoinAnswer(
            error_code=code,
            generation_id=group.generation_id,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=stored.old_leader or "",
        ),
    )
    groups.end_session(group, new.member_id)
    groups.start_session(group, old)


def _because(request: JoinRequest) -> str:
    return f" ({request.reason})" if request.reason else ""
