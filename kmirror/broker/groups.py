"""Consumer groups: the binding between the pure machines, `__consumer_offsets` and waiting clients. L3.

What may live here: making the topic when it is first needed, replaying it, and carrying effects between the machine
(`kmirror.coordinator.groups`) and the runtime. The rules of groups are the machine's, those of offsets
`broker.group_offsets`'.

What must hold: `__consumer_offsets` exists before the machine is asked for anything that it may record; every answer
about recorded state leaves once that state is on disk; a client that went away leaves nothing behind, since its promise
is settled by the rebalance it waits for or by a timer, whoever listens.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, TypeVar

from kmirror.broker.group_offsets import GroupOffsets, client_code
from kmirror.broker.metadata import OFFSETS_TOPIC, TopicState
from kmirror.broker.runtime import RecordCodec
from kmirror.coordinator.groups.events import (
    AssignmentStored,
    CancelTimer,
    InitialDelayOver,
    JoinPhaseOver,
    SessionExpired,
    StaticMemberStored,
    StoredAction,
    SyncPhaseOver,
    TimerEvent,
)
from kmirror.coordinator.groups.machine import GroupLimits, Groups
from kmirror.coordinator.groups.messages import (
    Description,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeaveRequest,
    SyncAnswer,
    SyncRequest,
)
from kmirror.effects import Effects, LogId, Promise, StateRecord
from kmirror.errors import ApiError
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal import consumer_offsets as wire

if TYPE_CHECKING:
    from kmirror.broker.world import World

log = logging.getLogger("kmirror.groups")
T = TypeVar("T")

CODEC = RecordCodec(wire.encode_record, wire.decode_record)
_TIMERS: tuple[type[TimerEvent], ...] = (SessionExpired, InitialDelayOver, JoinPhaseOver, SyncPhaseOver)
_STORED: tuple[type[StoredAction], ...] = (AssignmentStored, StaticMemberStored)


class GroupCoordinator:
    """`world.groups`. `offsets` keeps what groups commit; `groups` is the machine, for reading."""

    def __init__(self, world: World) -> None:
        self._world = world
        config = world.config
        limits = GroupLimits(
            min_session_timeout_ms=config.integer("group.min.session.timeout.ms"),
            max_session_timeout_ms=config.integer("group.max.session.timeout.ms"),
            max_size=config.integer("group.max.size"),
            initial_rebalance_delay_ms=config.integer("group.initial.rebalance.delay.ms"),
        )
        self.groups = Groups(limits, lambda: str(uuid.uuid4()), self._find_partition_count)
        self._partition_count = 0
        self.offsets = GroupOffsets(world, self)
        runtime = world.runtime
        runtime.register(OFFSETS_TOPIC, CODEC, self._replay, self.offsets.ended, lambda record: record.value is None)
        runtime.on_action(CancelTimer, lambda action: runtime.cancel_timer(action.key))
        for stored in _STORED:
            runtime.on_action(stored, lambda action: self._run(self.groups.stored(action, self._now_ms())))
        for event in _TIMERS:
            runtime.on_timer(event, lambda due: self._run(self.groups.timed_out(due, self._now_ms())))

    # -- life of the topic ---------------------------------------------------------------------------------------

    def recovered(self) -> None:
        """Replay `__consumer_offsets`, then start the timers; before anybody is served. Raises CorruptData."""
        topic = self._world.image.topics_by_name.get(OFFSETS_TOPIC)
        if topic is not None:
            for partition in topic.partitions:
                self._world.runtime.replay_log(LogId(OFFSETS_TOPIC, partition.index))
            self._run(self.groups.restore(self._now_ms()))
        self.offsets.recovered()

    def topic_deleted(self, topic: TopicState) -> None:
        """The topic's removal is on disk. Without `__consumer_offsets` there are no groups: all have to begin again."""
        if topic.name == OFFSETS_TOPIC:
            self._run(self.groups.unload(ErrorCode.NOT_COORDINATOR))
            self._partition_count = 0
        self.offsets.topic_deleted(topic)

    def ensure_topic(self) -> Promise[TopicState]:
        """`__consumer_offsets`, made if need be. Fails with ApiError."""
        return self._world.ensure_internal_topic(OFFSETS_TOPIC)

    def _find_partition_count(self) -> int:
        """As it was when it was first used: a topic that grows must not move groups before the next start, as in Kafka.

        While there is no topic nothing is recorded, and so any number will do.
        """
        if self._partition_count == 0:
            topic = self._world.image.topics_by_name.get(OFFSETS_TOPIC)
            if topic is None:
                return 1
            self._partition_count = len(topic.partitions)
        return self._partition_count

    def _replay(self, record: StateRecord) -> None:
        if not isinstance(record.key, wire.UnknownKey):
            self.groups.replay(record)
        if isinstance(record.key, wire.OffsetCommitKey):
            self.offsets.replay(record)

    # -- members -------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest) -> Promise[JoinAnswer]:
        """Settled when the generation is formed (or at once, when there is something to say before)."""
        answer: Promise[JoinAnswer] = Promise()

        def ready(made: Promise[TopicState]) -> None:
            try:
                made.result()
            except ApiError as error:
                answer.resolve(JoinAnswer(error_code=client_code(error.code), member_id=request.member_id))
            else:
                self._run(self.groups.join(request, answer, self._now_ms()))

        self.ensure_topic().then(ready)
        return answer

    def sync(self, request: SyncRequest) -> Promise[SyncAnswer]:
        """Settled when the leader's assignment is on disk."""
        answer: Promise[SyncAnswer] = Promise()
        self._run(self.groups.sync(request, answer, self._now_ms()))
        return answer

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> int:
        """An error code, at once."""
        code, steps = self.groups.heartbeat(group_id, member_id, generation, instance_id)
        self._run(steps)
        return code

    def leave(self, request: LeaveRequest) -> Promise[LeaveAnswer]:
        """Fails with ApiError when the group that it left empty could not be recorded."""
        answer: Promise[LeaveAnswer] = Promise()
        self._run(self.groups.leave(request, answer, self._now_ms()))
        return answer

    # -- administration ------------------------------------------------------------------------------------------

    def describe(self, group_ids: Iterable[str]) -> Promise[list[Description]]:
        """In the order asked; see `Description` for groups that do not exist."""
        asked = list(group_ids)
        logs = {self.log_of(group_id) for group_id in asked}
        return self._once_durable(logs, [self.groups.describe(group_id) for group_id in asked])

    def listed(self, states: Collection[str] = ()) -> Promise[list[Description]]:
        """All groups, or those in one of these states (any case)."""
        topic = self._world.image.topics_by_name.get(OFFSETS_TOPIC)
        count = 0 if topic is None else len(topic.partitions)
        return self._once_durable((LogId(OFFSETS_TOPIC, index) for index in range(count)), self.groups.listed(states))

    def delete(self, group_id: str) -> Promise[int]:
        """An error code, once the group and its offsets are gone from disk. Fails with ApiError."""
        answer: Promise[int] = Promise()
        self._run(self.groups.delete(group_id, self.offsets.tombstones_of(group_id), answer))
        return answer

    # -- what offsets ask (`broker.group_offsets.GroupTable`) ----------------------------------------------------

    def check_commit(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None, *, transactional: bool
    ) -> None:
        """Raises ApiError unless this member may commit now; keeps its session alive."""
        self._run(self.groups.check_commit(group_id, member_id, generation, instance_id, transactional=transactional))

    def state_of(self, group_id: str) -> str | None:
        return self.groups.state_of(group_id)

    def protocol_type_of(self, group_id: str) -> str | None:
        return self.groups.protocol_type_of(group_id)

    def subscribed_topics(self, group_id: str) -> Collection[str] | None:
        return self.groups.subscribed_topics(group_id)

    def empty_since_ms(self, group_id: str) -> int | None:
        return self.groups.empty_since_ms(group_id)

    def is_active(self, group_id: str) -> bool:
        return self.groups.is_active(group_id)

    def group_ids(self) -> Collection[str]:
        return list(self.groups.table)

    def log_of(self, group_id: str) -> LogId:
        return self.groups.log_of(group_id)

    def expire(self, group_id: str) -> list[StateRecord]:
        """Records that remove an empty group whose last offset is gone; none for any other."""
        return self.groups.tombstone(group_id)

    # -- running -------------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return self._world.clock.time_ms()

    def _run(self, steps: list[Effects]) -> None:
        for effects in steps:
            if effects.records and effects.actions:
                self._undo_if_refused(effects)
            self._world.commit(effects)

    def _undo_if_refused(self, effects: Effects) -> None:
        """The machine has to know when what it waits for will never be on disk."""
        outcome: Promise[None] = Promise()
        actions = list(effects.actions)

        def settled(promise: Promise[None]) -> None:
            try:
                promise.result()
            except ApiError as error:
                log.warning("%s refused a record: %s", OFFSETS_TOPIC, error)
                for action in actions:
                    if isinstance(action, _STORED):
                        self._run(self.groups.not_stored(action, client_code(error.code), self._now_ms()))

        effects.replies.append((outcome, None))
        outcome.then(settled)

    def _once_durable(self, logs: Iterable[LogId], value: T) -> Promise[T]:
        """Nobody is told of what a power cut could take back."""
        promise: Promise[T] = Promise()
        durable = [log_id for log_id in logs if self._is_on_disk(log_id)]
        self._world.commit(Effects(durable=durable, replies=[(promise, value)]))
        return promise

    def _is_on_disk(self, log_id: LogId) -> bool:
        topic = self._world.image.topics_by_name.get(log_id.topic)
        return topic is not None and topic.partitions[log_id.partition].is_on_disk
