"""All classic groups of one coordinator: the table, what is recorded of it, and its entrances. L2, pure.

Every entrance takes what was asked, the promise of its answer and the wall time, and returns the effects in the order
in which they have to be committed. Two kinds of state (Kafka keeps the same two):

*Recorded*: `GroupMetadataValue`, one per group: the members of the last generation that got its assignment. Changes
in `replay` only, at run time as at boot.
*Soft*: who is joining, who waits, whose session runs. Lost with the process; `restore` makes groups from what was
recorded, as stable with those members, whose sessions begin anew. Members notice by their generation and join again.

What must hold: a stable group is what is recorded of it; an assignment is handed out only after it was recorded; every
promise is settled, at the latest by a timer that is running.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kmirror.coordinator.groups import joining, leaving, rebalance, syncing
from kmirror.coordinator.groups.classic import ClassicGroup, State
from kmirror.coordinator.groups.events import (
    AssignmentStored,
    CancelTimer,
    InitialDelayOver,
    JoinPhaseOver,
    SessionExpired,
    StoredAction,
    TimerEvent,
    session_key,
)
from kmirror.coordinator.groups.member import Member
from kmirror.coordinator.groups.messages import (
    Description,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeaveRequest,
    SyncAnswer,
    SyncRequest,
)
from kmirror.effects import Effects, LogId, Promise, StateRecord, Timer
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal import consumer_offsets as wire
from kmirror.protocol.java_hash import partition_for

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """The `group.*` properties of Kafka that classic groups obey."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    initial_rebalance_delay_ms: int = 0


class Groups:
    """`new_id` makes the random part of member ids; `partition_count` says how many `__consumer_offsets` has."""

    def __init__(self, limits: GroupLimits, new_id: Callable[[], str], partition_count: Callable[[], int]) -> None:
        self.limits = limits
        self.new_id = new_id
        self._partition_count = partition_count
        self.table: dict[str, ClassicGroup] = {}
        self.recorded: dict[str, wire.GroupMetadataValue] = {}
        self._soft = Effects()
        self._stored: list[Effects] = []
        self._timers: dict[str, Timer | None] = {}
        """Of this step: None is to be cancelled. The last word on a key counts."""

    # -- entrances -----------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, answer: Promise[JoinAnswer], now_ms: int) -> list[Effects]:
        joining.join(self, request, answer, now_ms)
        return self._step()

    def sync(self, request: SyncRequest, answer: Promise[SyncAnswer], now_ms: int) -> list[Effects]:
        syncing.sync(self, request, answer, now_ms)
        return self._step()

    def heartbeat(
        self, group_id: str, member_id: str, generation_id: int, instance_id: str | None
    ) -> tuple[int, list[Effects]]:
        """(error code, effects)."""
        code = syncing.heartbeat(self, group_id, member_id, generation_id, instance_id)
        return code, self._step()

    def leave(self, request: LeaveRequest, answer: Promise[LeaveAnswer], now_ms: int) -> list[Effects]:
        """Answered when the group is recorded as empty, if that is what it became."""
        self.reply_when_stored(answer, leaving.leave(self, request, now_ms))
        return self._step()

    def timed_out(self, event: TimerEvent, now_ms: int) -> list[Effects]:
        group = self.table.get(event.group_id)
        if group is not None:
            if isinstance(event, SessionExpired):
                rebalance.session_expired(self, group, event.member_id, now_ms)
            elif isinstance(event, InitialDelayOver):
                rebalance.initial_delay_over(self, group, event, now_ms)
            elif isinstance(event, JoinPhaseOver):
                rebalance.join_phase_over(self, group, now_ms)
            else:
                rebalance.sync_phase_over(self, group, event.generation_id, now_ms)
        return self._step()

    def stored(self, action: StoredAction, now_ms: int) -> list[Effects]:
        """The records that came with `action` are on disk."""
        group = self.table.get(action.group_id)
        if group is not None:
            if isinstance(action, AssignmentStored):
                syncing.assignment_stored(self, group, action, now_ms)
            else:
                joining.static_member_stored(self, group, action)
        return self._step()

    def not_stored(self, action: StoredAction, code: int, now_ms: int) -> list[Effects]:
        """The records that came with `action` were refused with an error code, and are not kept."""
        group = self.table.get(action.group_id)
        if group is not None:
            if isinstance(action, AssignmentStored):
                syncing.assignment_not_stored(self, group, action, code, now_ms)
            else:
                joining.static_member_not_stored(self, group, action, code)
        return self._step()

    def delete(self, group_id: str, more: Sequence[StateRecord], answer: Promise[int]) -> list[Effects]:
        """Answers an error code. `more`: what else has to be recorded with it (the tombstones of its offsets)."""
        code = self.check_deletion(group_id)
        if code:
            self.reply(answer, code)
            return self._step()
        self.stop_timers(self.table[group_id])
        self.record([*more, *self.tombstone(group_id)])
        self.reply_when_stored(answer, int(ErrorCode.NONE))
        return self._step()

    def check_deletion(self, group_id: str) -> int:
        """An error code: only an empty group can be deleted."""
        group = self.table.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if group.state is State.EMPTY else ErrorCode.NON_EMPTY_GROUP

    def tombstone(self, group_id: str) -> list[StateRecord]:
        """What removes an empty group (nothing for any other): when its last offset has expired."""
        if self.check_deletion(group_id):
            return []
        return [StateRecord(self.log_of(group_id), wire.GroupMetadataKey(group=group_id), None)]

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        generation_id: int,
        instance_id: str | None,
        *,
        transactional: bool,
    ) -> list[Effects]:
        """Raises ApiError when offsets must not be committed so. A commit keeps the member's session alive."""
        syncing.check_commit(self, group_id, member_id, generation_id, instance_id, transactional=transactional)
        return self._step()

    def restore(self, now_ms: int) -> list[Effects]:
        """Once, after everything was replayed."""
        for group_id, value in self.recorded.items():
            group = ClassicGroup.restored(group_id, value)
            self.table[group_id] = group
            for member in group.members.values():
                self.start_session(group, member)
            if len(group.members) > self.limits.max_size:
                rebalance.prepare(self, group, "the group is larger than group.max.size allows", now_ms)
        return self._step()

    def unload(self, code: int) -> list[Effects]:
        """The topic is gone, and with it every group: whoever waits is told `code`."""
        for group in self.table.values():
            for member in group.members.values():
                self.answer_join(group, member, JoinAnswer(error_code=code, member_id=member.member_id))
                self.answer_sync(member, SyncAnswer(error_code=code))
            self.stop_timers(group)
        self.table.clear()
        self.recorded.clear()
        return self._step()

    # -- replay --------------------------------------------------------------------------------------------------

    def replay(self, record: StateRecord) -> None:
        """Run time and boot. Tombstones of unknown groups are no-ops: compaction may have removed what they end."""
        key = record.key
        if isinstance(key, wire.GroupMetadataKey):
            if record.log != self.log_of(key.group):
                return  # written when the topic had another number of partitions: nobody looks for it here
            if isinstance(record.value, wire.GroupMetadataValue):
                self.recorded[key.group] = record.value
            else:
                self.recorded.pop(key.group, None)
                self.table.pop(key.group, None)
        elif isinstance(key, wire.OffsetCommitKey) and record.value is not None:
            self.ensure(key.group)

    def ensure(self, group_id: str) -> None:
        """Offsets committed without membership make a group of their own ("simple")."""
        if group_id not in self.table:
            self.table[group_id] = ClassicGroup(group_id, now_ms=None)

    # -- queries -------------------------------------------------------------------------------------------------

    def log_of(self, group_id: str) -> LogId:
        """The partition of `__consumer_offsets` that keeps the group."""
        return LogId(wire.TOPIC, partition_for(group_id, self._partition_count()))

    def state_of(self, group_id: str) -> str | None:
        group = self.table.get(group_id)
        return None if group is None else group.state

    def is_active(self, group_id: str) -> bool:
        """Whether it has members (or is about to have some)."""
        group = self.table.get(group_id)
        return group is not None and group.state is not State.EMPTY

    def protocol_type_of(self, group_id: str) -> str | None:
        """None for a group that never had members."""
        group = self.table.get(group_id)
        return None if group is None else group.protocol_type

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        group = self.table.get(group_id)
        return None if group is None else group.subscribed_topics

    def empty_since_ms(self, group_id: str) -> int | None:
        """Wall time; None for a group that is not empty, does not exist, or whose record does not say."""
        group = self.table.get(group_id)
        return group.state_since_ms if group is not None and group.state is State.EMPTY else None

    def describe(self, group_id: str) -> Description:
        group = self.table.get(group_id)
        if group is None:
            return Description(group_id=group_id, state=State.DEAD, exists=False)
        return group.described()

    def listed(self, states: Collection[str]) -> list[Description]:
        """All groups, or those in one of these states (any case); without their members."""
        wanted = {state.strip().lower() for state in states}
        return [
            Description(group_id=group.group_id, state=group.state, protocol_type=group.protocol_type or "")
            for group in self.table.values()
            if not wanted or group.state.lower() in wanted
        ]

    # -- for the rules (`joining`, `syncing`, `leaving`, `rebalance`) ---------------------------------------------

    def reply(self, promise: Promise[T], value: T) -> None:
        """Answer now."""
        self._soft.replies.append((promise, value))

    def reply_when_stored(self, promise: Promise[T], value: T) -> None:
        """Answer with the last record of this step; now, when there is none."""
        (self._stored[-1] if self._stored else self._soft).replies.append((promise, value))

    def record(self, records: list[StateRecord], *actions: StoredAction) -> None:
        self._stored.append(Effects(records=records, actions=list(actions)))

    def record_group(self, group: ClassicGroup, value: wire.GroupMetadataValue, *actions: StoredAction) -> None:
        key = wire.GroupMetadataKey(group=group.group_id)
        self.record([StateRecord(self.log_of(group.group_id), key, value)], *actions)

    def start_timer(self, key: str, delay_ms: int, event: TimerEvent) -> None:
        self._timers[key] = Timer(key, delay_ms, event)

    def cancel_timer(self, key: str) -> None:
        self._timers[key] = None

    def start_session(self, group: ClassicGroup, member: Member, timeout_ms: int | None = None) -> None:
        """The member was heard of: from here it may be silent for its session timeout."""
        delay_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        event = SessionExpired(group.group_id, member.member_id)
        self.start_timer(session_key(group.group_id, member.member_id), delay_ms, event)

    def end_session(self, group: ClassicGroup, member_id: str) -> None:
        self.cancel_timer(session_key(group.group_id, member_id))

    def stop_timers(self, group: ClassicGroup) -> None:
        rebalance.stop_timers(self, group)

    def answer_join(self, group: ClassicGroup, member: Member, answer: JoinAnswer) -> None:
        """If it waits for one."""
        for promise in group.take_joins(member):
            self.reply(promise, answer)

    def answer_sync(self, member: Member, answer: SyncAnswer) -> bool:
        """Whether it was waiting for one."""
        waiting, member.syncs = member.syncs, []
        for promise in waiting:
            self.reply(promise, answer)
        return bool(waiting)

    def _step(self) -> list[Effects]:
        """What this step came to: soft effects first, then what is recorded, in order."""
        soft, stored, timers = self._soft, self._stored, self._timers
        self._soft, self._stored, self._timers = Effects(), [], {}
        for key, timer in timers.items():
            if timer is None:
                soft.actions.append(CancelTimer(key))
            else:
                soft.timers.append(timer)
        has_soft = soft.replies or soft.timers or soft.actions
        return [soft, *stored] if has_soft else stored
