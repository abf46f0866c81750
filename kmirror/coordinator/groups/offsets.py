"""Committed offsets of all groups, and those that an open transaction has yet to decide. Pure: no clock, no log.

What may live here: the rules for committing, reading, deleting and expiring offsets, as Kafka's OffsetMetadataManager
has them. Who may commit is the group's business and is checked before anything here is called.

What must hold: state changes in `replay` and `ended` only, at run time as at boot, so a replay of the log is the state.
Offsets of a transaction are kept apart, per log and producer (a producer's markers arrive log by log), until that
log's marker: COMMIT moves them over, unless a plain commit was written after them; ABORT drops them. A tombstone
removes both kinds. Tombstones and markers for unknown things are no-ops, since compaction may have removed what they
refer to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kmirror.coordinator.groups.classic import State
from kmirror.effects import LogId, Place, StateRecord
from kmirror.protocol.errors import ErrorCode
from kmirror.protocol.internal.consumer_offsets import OffsetCommitKey, OffsetCommitValue
from kmirror.protocol.internal.consumer_protocol import PROTOCOL_TYPE
from kmirror.protocol.uuids import ZERO

NO_OFFSET: Final = -1
NO_EPOCH: Final = -1
NO_EXPIRY: Final = -1
DEFAULT_RETENTION: Final = -1
"""`retention_time_ms` of OffsetCommit 2 to 4: the broker's own rule (Kafka: DEFAULT_RETENTION_TIME)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRow:
    """One partition of a commit. `topic_id` zeros: not known."""

    topic: str
    partition: int
    offset: int
    topic_id: bytes = ZERO
    leader_epoch: int = NO_EPOCH
    metadata: str | None = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetValue:
    """An offset as clients see it."""

    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    error_code: int = 0


NOTHING: Final = OffsetValue()
UNSTABLE: Final = OffsetValue(error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """What expiry and deletion need to know of a group (Kafka: ClassicGroup)."""

    state: str = State.EMPTY
    protocol_type: str | None = None
    """None: a simple group, which never had members."""
    state_since_ms: int | None = None
    subscribed: Collection[str] | None = None
    """None: not known."""

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == PROTOCOL_TYPE

    def is_subscribed_to(self, topic: str) -> bool:
        """A consumer group whose subscriptions cannot be read counts as subscribed to everything."""
        return self.uses_consumer_protocol if self.subscribed is None else topic in self.subscribed

    def expiry_base_ms(self, commit_ms: int) -> int | None:
        """When the retention of an offset committed at `commit_ms` began; None: it does not run now (KIP-211)."""
        if self.protocol_type is None:
            return commit_ms
        if self.state == State.EMPTY:
            return commit_ms if self.state_since_ms is None else self.state_since_ms
        if self.uses_consumer_protocol and self.subscribed is not None and self.state == State.STABLE:
            return commit_ms
        return None


class _Entry(NamedTuple):
    value: OffsetCommitValue
    order: int
    """Place among all records replayed: the later of a plain and a transactional commit wins."""


_Groups = dict[str, dict[Place, _Entry]]
_Transaction = tuple[LogId, int]
"""(log, producer id)."""


def characters(text: str) -> int:
    """The length as Kafka counts it: in UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


class Offsets:
    """See the module head. `log` in the signatures is the group's partition of `__consumer_offsets`."""

    def __init__(self) -> None:
        self._committed: _Groups = {}
        self._pending: dict[_Transaction, _Groups] = {}
        self._open: dict[str, dict[Place, set[_Transaction]]] = {}
        self._replayed = 0

    # -- records to write ----------------------------------------------------------------------------------------

    def commit(
        self,
        log: LogId,
        group_id: str,
        rows: Sequence[OffsetRow],
        *,
        now_ms: int,
        max_metadata_size: int,
        expire_ms: int = NO_EXPIRY,
    ) -> tuple[list[int], list[StateRecord]]:
        """An error code per row, and the records of those that are accepted. The same for transactional commits."""
        codes: list[int] = []
        records: list[StateRecord] = []
        for row in rows:
            metadata = row.metadata or ""
            if characters(metadata) > max_metadata_size:
                codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            codes.append(ErrorCode.NONE)
            value = OffsetCommitValue(
                offset=row.offset, metadata=metadata, commit_timestamp=now_ms, expire_timestamp=expire_ms
            )
            if expire_ms == NO_EXPIRY:  # the record version with an expiry has no place for these
                value.leader_epoch, value.topic_id = row.leader_epoch, row.topic_id
            records.append(StateRecord(log, _key(group_id, (row.topic, row.partition)), value))
        return codes, records

    def delete(
        self, log: LogId, group_id: str, places: Iterable[Place], facts: GroupFacts
    ) -> tuple[list[int], list[StateRecord]]:
        """OffsetDelete: an error code per place, and tombstones for what is there."""
        codes: list[int] = []
        records: list[StateRecord] = []
        for place in places:
            if facts.is_subscribed_to(place[0]):
                codes.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
                continue
            codes.append(ErrorCode.NONE)
            if self._knows(group_id, place):
                records.append(tombstone(log, group_id, place))
        return codes, records

    def tombstones(self, log: LogId, group_id: str) -> list[StateRecord]:
        """Everything the group has, pending offsets included: it is being deleted."""
        places = dict.fromkeys([*self._committed.get(group_id, ()), *self._open.get(group_id, ())])
        return [tombstone(log, group_id, place) for place in places]

    def expired(
        self, log: LogId, group_id: str, facts: GroupFacts, *, now_ms: int, retention_ms: int
    ) -> tuple[list[StateRecord], bool]:
        """Tombstones of what has expired, and whether the group has no offset left then (it may be deleted)."""
        records: list[StateRecord] = []
        kept = False
        for place, entry in self._committed.get(group_id, {}).items():
            if not self._has_expired(group_id, place, entry.value, facts, now_ms=now_ms, retention_ms=retention_ms):
                kept = True
                continue
            records.append(tombstone(log, group_id, place))
        return records, not kept and group_id not in self._open

    def _has_expired(
        self,
        group_id: str,
        place: Place,
        value: OffsetCommitValue,
        facts: GroupFacts,
        *,
        now_ms: int,
        retention_ms: int,
    ) -> bool:
        base_ms = facts.expiry_base_ms(value.commit_timestamp)
        if base_ms is None or facts.is_subscribed_to(place[0]) or self._is_pending(group_id, place):
            return False
        if value.expire_timestamp != NO_EXPIRY:
            return now_ms >= value.expire_timestamp
        return now_ms - base_ms >= retention_ms

    def of_topic(self, topic: str, topic_id: bytes) -> list[tuple[str, Place]]:
        """(group, place) of everything that was committed for this topic, not for another one of the same name."""
        found: dict[tuple[str, Place], None] = {}
        for groups in (self._committed, *self._pending.values()):
            for group_id, entries in groups.items():
                for place, entry in entries.items():
                    if place[0] == topic and bytes(entry.value.topic_id) in (ZERO, topic_id):
                        found[group_id, place] = None
        return list(found)

    def beyond(self, place: Place, end_offset: int) -> list[str]:
        """Groups whose committed offset for the partition lies behind its end."""
        return [
            group_id
            for group_id, entries in self._committed.items()
            if place in entries and entries[place].value.offset > end_offset
        ]

    # -- questions -----------------------------------------------------------------------------------------------

    def fetch(
        self, group_id: str, place: Place, *, topic_id: bytes = ZERO, require_stable: bool = False
    ) -> OffsetValue:
        """One partition's offset; one that another topic of the same name had is none (KIP-848's topic ids)."""
        if require_stable and self._is_pending(group_id, place):
            return UNSTABLE
        entry = self._committed.get(group_id, {}).get(place)
        if entry is None:
            return NOTHING
        value = entry.value
        known_id = bytes(value.topic_id)
        if ZERO not in (topic_id, known_id) and topic_id != known_id:
            return NOTHING
        return OffsetValue(offset=value.offset, leader_epoch=value.leader_epoch, metadata=value.metadata)

    def places(self, group_id: str) -> list[Place]:
        """Partitions with a committed offset."""
        return list(self._committed.get(group_id, ()))

    def committed_at_ms(self, group_id: str, place: Place) -> int | None:
        """When the committed offset was committed; None when there is none."""
        entry = self._committed.get(group_id, {}).get(place)
        return None if entry is None else entry.value.commit_timestamp

    def topics(self) -> set[tuple[str, bytes]]:
        """(name, topic id or zeros) of everything committed or pending."""
        return {
            (place[0], bytes(entry.value.topic_id))
            for groups in (self._committed, *self._pending.values())
            for entries in groups.values()
            for place, entry in entries.items()
        }

    def groups(self) -> set[str]:
        """Groups with a committed or a pending offset."""
        return {*self._committed, *self._open}

    def has_offsets(self, group_id: str) -> bool:
        return group_id in self._committed or group_id in self._open

    def has_pending(self, group_id: str) -> bool:
        return group_id in self._open

    def _is_pending(self, group_id: str, place: Place) -> bool:
        return place in self._open.get(group_id, ())

    def _knows(self, group_id: str, place: Place) -> bool:
        return place in self._committed.get(group_id, ()) or self._is_pending(group_id, place)

    # -- changes -------------------------------------------------------------------------------------------------

    def replay(self, record: StateRecord) -> None:
        """One offset record of the log, in log order."""
        key = record.key
        assert isinstance(key, OffsetCommitKey)
        place = (key.topic, key.partition)
        self._replayed += 1
        value = record.value
        if value is None:
            self._forget(key.group, place)
            return
        assert isinstance(value, OffsetCommitValue)
        entry = _Entry(value, self._replayed)
        if record.producer_id == -1:
            self._committed.setdefault(key.group, {})[place] = entry
            return
        transaction = (record.log, record.producer_id)
        self._pending.setdefault(transaction, {}).setdefault(key.group, {})[place] = entry
        self._open.setdefault(key.group, {}).setdefault(place, set()).add(transaction)

    def ended(self, log: LogId, producer_id: int, *, committed: bool) -> None:
        """A transaction marker in `log`, in log order with the records."""
        transaction = (log, producer_id)
        for group_id, entries in self._pending.pop(transaction, {}).items():
            for place, entry in entries.items():
                self._close(group_id, place, transaction)
                if committed:
                    offsets = self._committed.setdefault(group_id, {})
                    if place not in offsets or offsets[place].order < entry.order:
                        offsets[place] = entry

    def _close(self, group_id: str, place: Place, transaction: _Transaction) -> None:
        places = self._open[group_id]
        places[place].discard(transaction)
        if not places[place]:
            del places[place]
        if not places:
            del self._open[group_id]

    def _forget(self, group_id: str, place: Place) -> None:
        _remove(self._committed, group_id, place)
        places = self._open.get(group_id, {})
        for transaction in places.pop(place, ()):
            groups = self._pending[transaction]
            _remove(groups, group_id, place)
            if not groups:
                del self._pending[transaction]
        if not places:
            self._open.pop(group_id, None)


def _remove(groups: _Groups, group_id: str, place: Place) -> None:
    entries = groups.get(group_id)
    if entries is None:
        return
    entries.pop(place, None)
    if not entries:
        del groups[group_id]


def _key(group_id: str, place: Place) -> OffsetCommitKey:
    return OffsetCommitKey(group=group_id, topic=place[0], partition=place[1])


def tombstone(log: LogId, group_id: str, place: Place) -> StateRecord:
    """The record that removes one offset, committed and pending alike."""
    return StateRecord(log, _key(group_id, place), None)
