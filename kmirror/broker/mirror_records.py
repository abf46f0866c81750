"""Between the machine's words (`kmirror.mirror.durable`) and the records of `__mirror_state`. L3.

What may live here: the translation both ways, the runtime's codec, and the image of everything that the topic says,
also about associations that are no longer current (a deleted mirror's lineage, a taken-over topic's old records).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kmirror.broker.runtime import RecordCodec
from kmirror.effects import LogId, StateRecord
from kmirror.mirror.alignment import Lineage
from kmirror.mirror.durable import GapRecord, Recorded, state_partition
from kmirror.mirror.machine import Write
from kmirror.mirror.states import State
from kmirror.protocol import mirror_numbers as numbers
from kmirror.protocol.internal import mirror_state as wire

PartitionKey = tuple[str, bytes, int]
"""(mirror, topic id, partition)"""


def _encode(key: Any, value: Any) -> tuple[bytes | None, bytes | None]:
    return wire.encode_key(key), None if value is None else wire.encode_value(value)


def _decode(key: bytes | None, value: bytes | None) -> tuple[Any, Any]:
    decoded = wire.decode_key(key or b"")
    return decoded, wire.decode_value(decoded, value)


CODEC = RecordCodec(_encode, _decode)


def to_value(recorded: Recorded) -> wire.MirrorPartitionState:
    return wire.MirrorPartitionState(
        state=int(recorded.state),
        leader_epoch=recorded.leader_epoch,
        state_epoch=recorded.state_epoch,
        error_message=recorded.error,
        retry_attempt=recorded.retry_attempt,
        previous_state=int(recorded.previous_state),
        cut_to=recorded.cut_to,
        restart_at=recorded.restart_at,
        mirrored=recorded.mirrored,
        history_end=recorded.history_end,
        start_from=recorded.start_from,
        force=recorded.force,
    )


def from_value(value: wire.MirrorPartitionState) -> Recorded:
    return Recorded(
        state=State(value.state),
        leader_epoch=value.leader_epoch,
        state_epoch=value.state_epoch,
        error=value.error_message,
        retry_attempt=value.retry_attempt,
        previous_state=State(value.previous_state),
        cut_to=value.cut_to,
        restart_at=value.restart_at,
        mirrored=value.mirrored,
        history_end=value.history_end,
        start_from=value.start_from,
        force=value.force,
    )


@dataclass(slots=True)
class Entry:
    """Everything recorded under one key."""

    recorded: Recorded | None = None
    lineage: Lineage | None = None
    gaps: dict[int, GapRecord] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return self.recorded is None and self.lineage is None and not self.gaps


class StateImage:
    """What `__mirror_state` says now. Changes in `replay` and nowhere else."""

    def __init__(self) -> None:
        self.entries: dict[PartitionKey, Entry] = {}

    def replay(self, key: wire.Key, value: wire.Value | None) -> tuple[PartitionKey, Entry]:
        at = (key.mirror_name, bytes(key.topic_id), key.partition)
        entry = self.entries.setdefault(at, Entry())
        if isinstance(key, wire.MirrorPartitionStateKey):
            entry.recorded = from_value(value) if isinstance(value, wire.MirrorPartitionState) else None
        elif isinstance(key, wire.LastMirrorEpochsKey):
            entry.lineage = None
            if isinstance(value, wire.LastMirrorEpochs):
                entry.lineage = Lineage(value.last_mirror_epoch, value.last_mirror_offset, value.source_cluster_id)
        elif isinstance(value, wire.MirrorGap):
            gap = GapRecord(from_offset=key.from_offset, to_offset=value.to_offset, at_ms=value.at_ms)
            entry.gaps[key.from_offset] = gap
        else:
            entry.gaps.pop(key.from_offset, None)
        if entry.empty:
            del self.entries[at]
        return at, entry

    def of_topic(self, topic_id: bytes, partition: int | None = None) -> Iterator[tuple[PartitionKey, Entry]]:
        """Entries about one topic id (and partition), whichever mirror recorded them."""
        for key, entry in list(self.entries.items()):
            if key[1] == topic_id and partition in (None, key[2]):
                yield key, entry


class RecordMaker:
    """State records for one `__mirror_state` with `partition_count` partitions."""

    def __init__(self, partition_count: int) -> None:
        self.partition_count = partition_count

    def log_of(self, key: PartitionKey) -> LogId:
        mirror, topic_id, partition = key
        return LogId(numbers.STATE_TOPIC, state_partition(mirror, topic_id, partition, self.partition_count))

    def write(self, key: PartitionKey, write: Write, *, wall_ms: int) -> list[StateRecord]:
        """One batch: state first, then lineage, then the gap (stamped with wall time)."""
        mirror, topic_id, partition = key
        log = self.log_of(key)
        made: list[StateRecord] = []
        if write.state is not None:
            made.append(
                StateRecord(
                    log,
                    wire.MirrorPartitionStateKey(mirror_name=mirror, topic_id=topic_id, partition=partition),
                    to_value(write.state),
                )
            )
        lineage_key = wire.LastMirrorEpochsKey(mirror_name=mirror, topic_id=topic_id, partition=partition)
        if write.lineage is not None:
            value = wire.LastMirrorEpochs(
                last_mirror_epoch=write.lineage.last_mirror_epoch,
                last_mirror_offset=write.lineage.last_mirror_offset,
                source_cluster_id=write.lineage.source_cluster_id,
            )
            made.append(StateRecord(log, lineage_key, value))
        elif write.drop_lineage:
            made.append(StateRecord(log, lineage_key, None))
        if write.gap is not None:
            gap_key = wire.MirrorGapKey(
                mirror_name=mirror, topic_id=topic_id, partition=partition, from_offset=write.gap.from_offset
            )
            made.append(StateRecord(log, gap_key, wire.MirrorGap(to_offset=write.gap.to_offset, at_ms=wall_ms)))
        return made

    def tombstones(self, key: PartitionKey, entry: Entry, *, lineage: bool) -> list[StateRecord]:
        """State first, then lineage (when asked), then the gap ledger."""
        mirror, topic_id, partition = key
        log = self.log_of(key)
        made: list[StateRecord] = []
        if entry.recorded is not None:
            state_key = wire.MirrorPartitionStateKey(mirror_name=mirror, topic_id=topic_id, partition=partition)
            made.append(StateRecord(log, state_key, None))
        if lineage and entry.lineage is not None:
            lineage_key = wire.LastMirrorEpochsKey(mirror_name=mirror, topic_id=topic_id, partition=partition)
            made.append(StateRecord(log, lineage_key, None))
        for from_offset in entry.gaps:
            gap_key = wire.MirrorGapKey(
                mirror_name=mirror, topic_id=topic_id, partition=partition, from_offset=from_offset
            )
            made.append(StateRecord(log, gap_key, None))
        return made
