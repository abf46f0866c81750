"""Committed offsets: the binding between `coordinator.groups.offsets`, `__consumer_offsets` and waiting clients. L3.

What may live here: who asks what of the pure machine, in which order the checks come, and what its records do to the
log. A request is checked, recorded and answered once its records are on disk; a read is answered once everything it saw
is on disk, so nobody is told of an offset that a power cut could take back.

Errors that are not a partition's own are raised, or fail the promise, as ApiError; `client_code` is what clients are
told in their place (Kafka: CoordinatorOperationExceptionHelper).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from kmirror.broker.chores import Steps
from kmirror.broker.metadata import OFFSETS_TOPIC, TopicState
from kmirror.broker.partition import Partition
from kmirror.broker.transaction_admission import of_txn_offset_commit
from kmirror.coordinator.groups.offsets import (
    DEFAULT_RETENTION,
    NO_EXPIRY,
    GroupFacts,
    OffsetRow,
    Offsets,
    OffsetValue,
    tombstone,
)
from kmirror.coordinator.transactions import Producer
from kmirror.effects import Effects, LogId, Place, ProducerBatch, Promise, StateRecord, Timer
from kmirror.errors import ApiError
from kmirror.limits import MAX_STRING_BYTES, OFFSETS_PART_BYTES
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal.consumer_offsets import OffsetCommitKey, OffsetCommitValue
from kmirror.protocol.uuids import ZERO

if TYPE_CHECKING:
    from kmirror.broker.world import World

log = logging.getLogger("kmirror.broker")

T = TypeVar("T")

_RETENTION_TIMER: Final = "offsets-retention"
_MINUTE_MS: Final = 60_000
_LAST_TIME_MS: Final = 2**63 - 1
_RECORD_BYTES: Final = 80
"""An offset record without its texts: lengths, partition, offset, epoch, times, topic id."""
_FIRST_COMMIT_WITH_GROUP_ID_NOT_FOUND: Final = 9
_FIRST_TXN_COMMIT_WITH_GROUP_ID_NOT_FOUND: Final = 6

_CLIENT_CODES: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def client_code(code: int) -> int:
    """What a client is told when the coordinator's own log refused: something it knows how to go on from."""
    return _CLIENT_CODES.get(ErrorCode(code), code)


class GroupTable(Protocol):
    """What offsets need of the groups (`kmirror.broker.groups.GroupCoordinator`)."""

    def check_commit(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None, *, transactional: bool
    ) -> None:
        """Raises ApiError unless this member may commit now; keeps its session alive."""
        ...

    def state_of(self, group_id: str) -> str | None: ...

    def protocol_type_of(self, group_id: str) -> str | None: ...

    def subscribed_topics(self, group_id: str) -> Collection[str] | None: ...

    def empty_since_ms(self, group_id: str) -> int | None: ...

    def is_active(self, group_id: str) -> bool: ...

    def log_of(self, group_id: str) -> LogId: ...

    def group_ids(self) -> Collection[str]: ...

    def ensure_topic(self) -> Promise[TopicState]: ...

    def expire(self, group_id: str) -> list[StateRecord]:
        """Records that remove an empty group whose last offset is gone; none for any other."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """Who commits: the fields of OffsetCommit and TxnOffsetCommit that name it."""

    group_id: str
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class _RetentionCheck:
    """The timer of the periodic look for expired offsets."""


class GroupOffsets:
    """See the module head. `world.groups.offsets`."""

    def __init__(self, world: World, groups: GroupTable) -> None:
        self._world = world
        self._groups = groups
        self._offsets = Offsets()
        self._placed: tuple[str, LogId] | None = None
        """The group replayed last and its log: most records are of the same group as the one before."""
        world.runtime.on_timer(_RetentionCheck, lambda _event: self._check_retention())

    # -- state ---------------------------------------------------------------------------------------------------

    def replay(self, record: StateRecord) -> None:
        """An offset record of `__consumer_offsets`, in log order."""
        key = record.key
        assert isinstance(key, OffsetCommitKey)
        if self._placed is None or self._placed[0] != key.group:
            self._placed = key.group, self._groups.log_of(key.group)
        if record.log == self._placed[1]:  # else the topic had another number of partitions then
            self._offsets.replay(record)

    def ended(self, log_id: LogId, producer_id: int, committed: bool) -> None:
        """A transaction marker in a log of `__consumer_offsets`, in log order."""
        self._offsets.ended(log_id, producer_id, committed=committed)

    def recovered(self) -> None:
        """The log is replayed: finish what a crash left undone, and begin to look for expired offsets."""
        image = self._world.image
        removed = {topic_id for topic_id in image.removed_ids if topic_id not in image.topics_by_id}
        for topic_name, topic_id in self._offsets.topics():
            if topic_id in removed:
                self._forget_topic(topic_name, topic_id)
        self._set_timer()

    # -- questions -----------------------------------------------------------------------------------------------

    def has_offsets(self, group_id: str) -> bool:
        return self._offsets.has_offsets(group_id)

    def has_pending(self, group_id: str) -> bool:
        """Whether an open transaction holds offsets of the group."""
        return self._offsets.has_pending(group_id)

    def is_active(self, group_id: str) -> bool:
        """Whether the group has members here."""
        return self._groups.is_active(group_id)

    def groups_with_offsets(self) -> set[str]:
        return self._offsets.groups()

    def tombstones_of(self, group_id: str) -> list[StateRecord]:
        """Records that delete every offset of the group (DeleteGroups)."""
        if not self._offsets.has_offsets(group_id):
            return []
        return self._offsets.tombstones(self._groups.log_of(group_id), group_id)

    def current(self, group_id: str, place: Place) -> OffsetValue:
        """The committed offset as it is in memory, maybe not on disk yet: for comparing, not for answers."""
        return self._offsets.fetch(group_id, place)

    def committed_at_ms(self, group_id: str, place: Place) -> int | None:
        """When the offset was committed here; None when there is none."""
        return self._offsets.committed_at_ms(group_id, place)

    # -- commit --------------------------------------------------------------------------------------------------

    def usable(self) -> Promise[TopicState]:
        """Settled when `__consumer_offsets` exists. Fails with ApiError 56 for want of space."""
        return self._groups.ensure_topic()

    def commit(
        self, who: Committer, rows: Sequence[OffsetRow], *, api_version: int, retention_ms: int = DEFAULT_RETENTION
    ) -> Promise[list[int]]:
        """An error code per row, once what was accepted is on disk. Raises ApiError for the whole.

        Source: OffsetMetadataManager.commitOffset, ClassicGroup.validateOffsetCommit.
        """
        self._check_exists(who, by_name=api_version >= _FIRST_COMMIT_WITH_GROUP_ID_NOT_FOUND)
        self._groups.check_commit(who.group_id, who.member_id, who.generation, who.instance_id, transactional=False)
        now_ms = self._world.clock.time_ms()
        expire_ms = NO_EXPIRY if retention_ms == DEFAULT_RETENTION else min(now_ms + retention_ms, _LAST_TIME_MS)
        return self._record(who.group_id, rows, expire_ms=expire_ms)

    def admit(
        self, group_id: str, transactional_id: str, producer: Producer, *, api_version: int
    ) -> Promise[dict[tuple[str, int], ErrorCode]]:
        """Whether the producer's transaction includes the group's log, or (transactions v2) makes it so: one code.

        Raises ApiError 24. What it found may be over when the caller goes on: `commit_transactional` looks again.
        """
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "a group needs a name")
        admission = self._world.transactions.admission
        partition = self._partition_of(group_id)
        return admission.admit(transactional_id, producer, [partition], of_txn_offset_commit(api_version))

    def commit_transactional(
        self,
        who: Committer,
        rows: Sequence[OffsetRow],
        transactional_id: str,
        producer: Producer,
        *,
        api_version: int,
    ) -> Promise[list[int]]:
        """As `commit`, but pending until the producer's marker; `admit` was asked before. Raises ApiError.

        Source: OffsetMetadataManager.commitTransactionalOffset, validateTransactionalOffsetCommit.
        """
        code = self._world.transactions.admission.still_admitted(
            transactional_id, producer, self._partition_of(who.group_id), of_txn_offset_commit(api_version)
        )
        if code is not ErrorCode.NONE:
            raise ApiError(code, f"producer {producer.producer_id} may not commit offsets in a transaction now")
        self._check_exists(who, by_name=api_version >= _FIRST_TXN_COMMIT_WITH_GROUP_ID_NOT_FOUND)
        self._groups.check_commit(who.group_id, who.member_id, who.generation, who.instance_id, transactional=True)
        return self._record(who.group_id, rows, producer=ProducerBatch(producer.producer_id, producer.epoch))

    def _partition_of(self, group_id: str) -> Partition:
        group_log = self._groups.log_of(group_id)
        return self._world.partition(group_log.topic, group_log.partition)

    def _check_exists(self, who: Committer, *, by_name: bool) -> None:
        """A group that nobody knows may be committed to from outside any generation only."""
        if who.generation < 0 or self._groups.state_of(who.group_id) is not None or self.has_offsets(who.group_id):
            return
        code = ErrorCode.GROUP_ID_NOT_FOUND if by_name else ErrorCode.ILLEGAL_GENERATION
        raise ApiError(code, f"there is no group {who.group_id!r}")

    def _record(
        self,
        group_id: str,
        rows: Sequence[OffsetRow],
        *,
        expire_ms: int = NO_EXPIRY,
        producer: ProducerBatch | None = None,
    ) -> Promise[list[int]]:
        group_log = self._groups.log_of(group_id)
        codes, records = self._offsets.commit(
            group_log,
            group_id,
            rows,
            now_ms=self._world.clock.time_ms(),
            max_metadata_size=self._world.config.integer("offset.metadata.max.bytes"),
            expire_ms=expire_ms,
        )
        return self._write(group_log, records, codes, producer)

    def _write(
        self, group_log: LogId, records: list[StateRecord], reply: T, producer: ProducerBatch | None = None
    ) -> Promise[T]:
        """`reply` once `records`, and everything before them in the log, are on disk."""
        promise: Promise[T] = Promise()
        touched = records or self._world.partition(group_log.topic, group_log.partition).is_on_disk
        durable = [group_log] if touched else []
        self._world.commit(Effects(records=records, durable=durable, replies=[(promise, reply)], producer=producer))
        return promise

    def _write_in_parts(self, records: Sequence[StateRecord]) -> bool:
        """Records of one log that need not survive together. False when the log refused some of them."""
        part: list[StateRecord] = []
        size_bytes = 0
        for record in records:
            part.append(record)
            size_bytes += _about_bytes(record)
            if size_bytes >= OFFSETS_PART_BYTES:
                if not self._world.commit(Effects(records=part)):
                    return False
                part, size_bytes = [], 0
        return not part or self._world.commit(Effects(records=part))

    # -- fetch ---------------------------------------------------------------------------------------------------

    def fetch(
        self, group_id: str, asked: Sequence[tuple[Place, bytes]], *, require_stable: bool
    ) -> Promise[list[OffsetValue]]:
        """One value per asked (place, topic id or zeros), once all of them are on disk."""
        values = [
            self._offsets.fetch(group_id, place, topic_id=topic_id, require_stable=require_stable)
            for place, topic_id in asked
        ]
        return self._once_durable(group_id, values)

    def fetch_all(self, group_id: str, *, require_stable: bool) -> Promise[list[tuple[Place, OffsetValue]]]:
        """Everything that the group has committed."""
        values = [
            (place, self._offsets.fetch(group_id, place, require_stable=require_stable))
            for place in self._offsets.places(group_id)
        ]
        return self._once_durable(group_id, values)

    def _once_durable(self, group_id: str, value: T) -> Promise[T]:
        if OFFSETS_TOPIC not in self._world.image.topics_by_name:
            return Promise.of(value)
        return self._write(self._groups.log_of(group_id), [], value)

    # -- delete --------------------------------------------------------------------------------------------------

    def delete(self, group_id: str, places: Sequence[Place]) -> Promise[list[int]]:
        """An error code per place, once the tombstones are on disk. Raises ApiError 24, 68, 69.

        Source: OffsetMetadataManager.deleteOffsets, ClassicGroup.validateOffsetDelete.
        """
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "a group needs a name")
        state = self._groups.state_of(group_id)
        if state is None and not self.has_offsets(group_id):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
        facts = self._facts(group_id)
        if self._groups.is_active(group_id) and not facts.uses_consumer_protocol:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} has members")
        group_log = self._groups.log_of(group_id)
        codes, records = self._offsets.delete(group_log, group_id, places, facts)
        return self._write(group_log, records, codes)

    def _facts(self, group_id: str) -> GroupFacts:
        state = self._groups.state_of(group_id)
        if state is None:
            return GroupFacts()
        return GroupFacts(
            state=state,
            protocol_type=self._groups.protocol_type_of(group_id),
            state_since_ms=self._groups.empty_since_ms(group_id),
            subscribed=self._groups.subscribed_topics(group_id),
        )

    def topic_deleted(self, topic: TopicState) -> None:
        """The topic's removal is on disk: a topic made anew under its name begins without offsets."""
        if topic.name == OFFSETS_TOPIC:
            self._offsets = Offsets()
            self._placed = None
            return
        self._forget_topic(topic.name, topic.topic_id)

    def _forget_topic(self, name: str, topic_id: bytes) -> None:
        by_log: dict[LogId, list[StateRecord]] = {}
        for group_id, place in self._offsets.of_topic(name, topic_id):
            group_log = self._groups.log_of(group_id)
            by_log.setdefault(group_log, []).append(tombstone(group_log, group_id, place))
        for records in by_log.values():
            self._write_in_parts(records)

    # -- retention -----------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        delay_ms = self._world.config.integer("offsets.retention.check.interval.ms")
        self._world.runtime.set_timer(Timer(_RETENTION_TIMER, delay_ms, _RetentionCheck()))

    def _check_retention(self) -> None:
        self._set_timer()
        self._world.chores.run(self._expire())

    def _expire(self) -> Steps:
        """Drop what has expired, and groups that are left with nothing (KIP-211; cleanupGroupMetadata).

        A group a step: a million offsets take seconds.
        """
        retention_ms = self._world.config.integer("offsets.retention.minutes") * _MINUTE_MS
        count = 0
        for group_id in {*self._groups.group_ids(), *self._offsets.groups()}:
            records, empty = self._offsets.expired(
                self._groups.log_of(group_id),
                group_id,
                self._facts(group_id),
                now_ms=self._world.clock.time_ms(),
                retention_ms=retention_ms,
            )
            if empty:
                records += self._groups.expire(group_id)
            if records and self._write_in_parts(records):
                count += len(records)
            yield
        if count:
            log.info("%d records removed expired offsets and groups", count)

    # -- mirrors -------------------------------------------------------------------------------------------------

    def commit_synced(self, group_id: str, values: Mapping[Place, OffsetValue]) -> Promise[None]:
        """Offsets that a mirror brings from its source; settled when they are on disk. Raises ApiError 68.

        The group must have no member here: its consumers would find their position moved.
        """
        if self._groups.is_active(group_id):
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} is active here")
        group_log = self._groups.log_of(group_id)
        _codes, records = self._offsets.commit(
            group_log,
            group_id,
            [self._row(place, value) for place, value in values.items()],
            now_ms=self._world.clock.time_ms(),
            max_metadata_size=MAX_STRING_BYTES,  # the source has accepted it
        )
        if not self._write_in_parts(records):
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{OFFSETS_TOPIC} refused offsets of group {group_id!r}")
        return self._write(group_log, [], None)

    def clamp(self, topic: str, partition: int, end_offset: int) -> None:
        """The partition was cut: offsets beyond its new end move to it, in active groups too."""
        place = (topic, partition)
        epoch = self._world.partition(topic, partition).log.epochs.epoch_at(end_offset)
        for group_id in self._offsets.beyond(place, end_offset):
            log.warning("group %s: its offset of %s-%d moves to %d, the new end", group_id, *place, end_offset)
            self._record(group_id, [self._row(place, OffsetValue(offset=end_offset, leader_epoch=epoch))])

    def _row(self, place: Place, value: OffsetValue) -> OffsetRow:
        topic = self._world.image.topics_by_name.get(place[0])
        return OffsetRow(
            topic=place[0],
            partition=place[1],
            offset=value.offset,
            topic_id=ZERO if topic is None else topic.topic_id,
            leader_epoch=value.leader_epoch,
            metadata=value.metadata,
        )


def _about_bytes(record: StateRecord) -> int:
    """Never less than what the record takes in the log, for texts of one byte per letter."""
    size_bytes = _RECORD_BYTES
    if isinstance(record.key, OffsetCommitKey):
        size_bytes += len(record.key.group) + len(record.key.topic)
    if isinstance(record.value, OffsetCommitValue):
        size_bytes += len(record.value.metadata)
    return size_bytes
