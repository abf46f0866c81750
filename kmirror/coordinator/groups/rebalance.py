"""How a classic group gets from one generation to the next: both phases, their timeouts, and members that fail. L2.

Kafka: GroupMetadataManager (prepareRebalance, completeClassicGroupJoin, expirePendingSync, ...).

    Empty --first join--> PreparingRebalance --all joined, or timeout--> CompletingRebalance --leader's sync--> Stable
      ^                        |    ^------ join, leave, expiry, sync timeout ------|------------------------------'
      '----- nobody left ------'
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kmirror.coordinator.groups.classic import ClassicGroup, State
from kmirror.coordinator.groups.events import (
    InitialDelayOver,
    JoinPhaseOver,
    SyncPhaseOver,
    join_key,
    session_key,
    sync_key,
)
from kmirror.coordinator.groups.member import Member
from kmirror.coordinator.groups.messages import JoinAnswer, SyncAnswer
from kmirror.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kmirror.coordinator.groups.machine import Groups

log = logging.getLogger("kmirror.groups")


def prepare_or_complete(groups: Groups, group: ClassicGroup, reason: str, now_ms: int) -> None:
    """Somebody came or left: begin a rebalance, or end the phase of the one under way if that was all it waited for."""
    if group.can_rebalance:
        prepare(groups, group, reason, now_ms)
    else:
        complete_if_all_joined(groups, group, now_ms)


def prepare(groups: Groups, group: ClassicGroup, reason: str, now_ms: int) -> None:
    """Everybody has to join again. A group that was empty waits `group.initial.rebalance.delay.ms` for more."""
    if group.state is State.COMPLETING:
        refuse_assignments(groups, group, ErrorCode.REBALANCE_IN_PROGRESS)
    group.pending_syncs.clear()
    groups.cancel_timer(sync_key(group.group_id))
    is_initial = group.state is State.EMPTY
    log.info("group %s: rebalance after generation %d: %s", group.group_id, group.generation_id, reason)
    group.transition(State.PREPARING, now_ms)
    if is_initial:
        delay_ms = groups.limits.initial_rebalance_delay_ms
        remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        event = InitialDelayOver(group.group_id, delay_ms, remaining_ms)
        groups.start_timer(join_key(group.group_id), delay_ms, event)
    elif group.all_joined:
        complete(groups, group, now_ms)
    else:
        groups.start_timer(join_key(group.group_id), group.rebalance_timeout_ms, JoinPhaseOver(group.group_id))


def initial_delay_over(groups: Groups, group: ClassicGroup, event: InitialDelayOver, now_ms: int) -> None:
    """Wait again while members keep coming, but no longer than their rebalance timeout in all."""
    if group.state is not State.PREPARING:
        return
    if not group.new_member_added or event.remaining_ms == 0:
        complete(groups, group, now_ms)
        return
    group.new_member_added = False
    delay_ms = min(groups.limits.initial_rebalance_delay_ms, event.remaining_ms)
    remaining_ms = max(event.remaining_ms - event.delay_ms, 0)
    again = InitialDelayOver(group.group_id, delay_ms, remaining_ms)
    groups.start_timer(join_key(group.group_id), delay_ms, again)


def join_phase_over(groups: Groups, group: ClassicGroup, now_ms: int) -> None:
    if group.state is State.PREPARING:
        complete(groups, group, now_ms)


def complete_if_all_joined(groups: Groups, group: ClassicGroup, now_ms: int) -> None:
    """Not during the initial delay, whose point is to wait although all known members have joined."""
    if group.state is State.PREPARING and group.previous_state is not State.EMPTY and group.all_joined:
        complete(groups, group, now_ms)


def complete(groups: Groups, group: ClassicGroup, now_ms: int) -> None:
    """End the join phase. Dynamic members that did not join are out; static ones stay until their session ends."""
    groups.cancel_timer(join_key(group.group_id))
    for member in [member for member in group.members.values() if not member.awaits_join and not member.is_static]:
        group.remove(member.member_id)
        groups.end_session(group, member.member_id)
        log.info("group %s: member %s did not join the rebalance in time", group.group_id, member.member_id)
    if not group.elect_joined_leader() and group.members:
        groups.start_timer(join_key(group.group_id), group.rebalance_timeout_ms, JoinPhaseOver(group.group_id))
        return
    group.next_generation(now_ms)
    group.new_member_added = False
    if group.state is State.EMPTY:
        log.info("group %s: empty with generation %d", group.group_id, group.generation_id)
        groups.record_group(group, group.recorded({}))
        return
    log.info(
        "group %s: generation %d has %d members, led by %s",
        group.group_id,
        group.generation_id,
        len(group.members),
        group.leader,
    )
    for member in group.members.values():
        groups.answer_join(group, member, joined(group, member))
        groups.start_session(group, member)
        member.is_new = False
        group.pending_syncs.add(member.member_id)
    groups.start_timer(
        sync_key(group.group_id), group.rebalance_timeout_ms, SyncPhaseOver(group.group_id, group.generation_id)
    )


def joined(group: ClassicGroup, member: Member, *, skip_assignment: bool = False) -> JoinAnswer:
    """The current generation as one of its members is told of it."""
    return JoinAnswer(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or "",
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=group.joined_members() if group.leader == member.member_id else (),
    )


def sync_phase_over(groups: Groups, group: ClassicGroup, generation_id: int, now_ms: int) -> None:
    """Members that never asked for their assignment are out, however well they heartbeat."""
    if generation_id != group.generation_id or group.state not in (State.COMPLETING, State.STABLE):
        return
    if not group.pending_syncs:
        return
    missing = sorted(group.pending_syncs)
    for member_id in missing:
        remove(groups, group, member_id)
        groups.end_session(group, member_id)
    prepare(groups, group, f"{len(missing)} members did not ask for their assignment in time", now_ms)


def session_expired(groups: Groups, group: ClassicGroup, member_id: str, now_ms: int) -> None:
    if member_id in group.pending:
        group.remove(member_id)
        if group.state is State.PREPARING and group.all_joined:
            complete(groups, group, now_ms)
        return
    member = group.members.get(member_id)
    if member is None or member.is_alive_without_heartbeats:
        return
    remove(groups, group, member_id)
    if group.state in (State.STABLE, State.COMPLETING):
        prepare_or_complete(groups, group, f"the session of member {member_id} ended", now_ms)
    elif group.state is State.PREPARING and group.all_joined:
        complete(groups, group, now_ms)


def remove(groups: Groups, group: ClassicGroup, member_id: str) -> None:
    """Take a member out. What it waits for is refused with UNKNOWN_MEMBER_ID, so that it comes back as a new one."""
    member = group.members.get(member_id)
    if member is not None:
        groups.answer_join(group, member, JoinAnswer(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        groups.answer_sync(member, SyncAnswer(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    group.remove(member_id)


def refuse_assignments(groups: Groups, group: ClassicGroup, code: int) -> None:
    """The generation will get none: whoever waits for its assignment is told `code`."""
    for member in group.members.values():
        member.assignment = b""
        if groups.answer_sync(member, SyncAnswer(error_code=code)):
            groups.start_session(group, member)


def stop_timers(groups: Groups, group: ClassicGroup) -> None:
    for member_id in (*group.members, *group.pending):
        groups.cancel_timer(session_key(group.group_id, member_id))
    groups.cancel_timer(join_key(group.group_id))
    groups.cancel_timer(sync_key(group.group_id))
