"""The log that the model test compares with: a plain list of batches, and what follows from them, written anew.

Nothing here shares code with the product but the reading of headers and records. Offsets are absolute; a batch is its
bytes. `history` is every batch as it was first appended: transactions, producers, epochs and resets follow from it.
`kept` is what the log holds now, after compaction and without what retention took.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from kmirror.protocol.records import (
    BatchHeader,
    Record,
    check_crc,
    control_type,
    coordinator_epoch,
    parse_header,
    read_records,
)

RESET = 7


@dataclass(eq=False)
class Batch:
    data: bytes
    header: BatchHeader = field(init=False)

    def __post_init__(self) -> None:
        self.header = parse_header(self.data)

    @property
    def base(self) -> int:
        return self.header.base_offset

    @property
    def last(self) -> int:
        return self.header.base_offset + self.header.last_offset_delta

    @property
    def is_data(self) -> bool:
        return not self.header.is_control

    @cached_property
    def kind(self) -> int | None:
        """Of a control batch; None for data, and for a control batch that compaction has emptied."""
        return control_type(self.data) if self.header.is_control and self.header.record_count else None

    @cached_property
    def records(self) -> list[Record]:
        return read_records(self.data)


def split(data: bytes) -> list[Batch]:
    found = []
    while data:
        size = int.from_bytes(data[8:12], "big") + 12
        found.append(Batch(data[:size]))
        data = data[size:]
    return found


Range = tuple[int, int, int, int]
"""(first sequence, last sequence, first offset, last offset) of one batch of a producer."""


@dataclass
class Producer:
    epoch: int = -1
    txn_first: int = -1
    coordinator_epoch: int = -1
    ranges: list[Range] = field(default_factory=list)
    """All of this epoch, oldest first; the log keeps five."""


@dataclass
class Derived:
    producers: dict[int, Producer] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """(producer id, first offset, marker's offset)"""
    aborted_data: set[int] = field(default_factory=set)
    """Base offsets of the batches of aborted transactions."""
    resets: list[int] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """(leader epoch, base offset of its first batch)"""
    newest: dict[int, int] = field(default_factory=dict)
    """Producer id to the base offset of the batch that its state is from: data, or a marker if that is all there is."""
    markers: dict[int, int] = field(default_factory=dict)
    """Producer id to the offset of its newest marker."""
    max_pid: int = -1

    @property
    def open(self) -> dict[int, int]:
        """Producer id to the first offset of its open transaction."""
        return {pid: one.txn_first for pid, one in self.producers.items() if one.txn_first >= 0}


def derive(batches: Iterable[Batch], forgotten: dict[int, int] | None = None) -> Derived:
    """`forgotten`: producer id to the log's end when it expired. What it wrote before does not count."""
    derived = Derived()
    producers = derived.producers
    expired = dict(forgotten or {})
    ours: dict[int, list[int]] = {}
    """Producer id to the batches of its open transaction."""
    for batch in batches:
        header, kind = batch.header, batch.kind
        pid = header.producer_id
        if header.leader_epoch >= 0 and (not derived.epochs or derived.epochs[-1][0] != header.leader_epoch):
            derived.epochs.append((header.leader_epoch, batch.base))
        derived.max_pid = max(derived.max_pid, pid)
        if kind == RESET:
            derived.resets.append(batch.base)
            for gone in [one for one, producer in producers.items() if producer.txn_first < 0]:
                del producers[gone]
                derived.newest.pop(gone, None)
                derived.markers.pop(gone, None)
            for producer in producers.values():
                producer.ranges = []
            continue
        if pid < 0:
            continue
        if pid in expired and batch.base >= expired[pid]:
            del expired[pid]
            producers.pop(pid, None)
        if header.is_control and kind not in (0, 1):
            continue
        producer = producers.setdefault(pid, Producer())
        if header.producer_epoch != producer.epoch:
            producer.epoch, producer.ranges = header.producer_epoch, []
        if kind is not None:
            if producer.txn_first >= 0 and kind == 0:
                derived.aborted.append((pid, producer.txn_first, batch.base))
                derived.aborted_data.update(ours.get(pid, ()))
            ours.pop(pid, None)
            producer.txn_first = -1
            derived.markers[pid] = batch.base
            if not producer.ranges:
                derived.newest[pid] = batch.base
            producer.coordinator_epoch = coordinator_epoch(batch.data)
            continue
        sequences = (header.base_sequence, (header.base_sequence + header.last_offset_delta) & 0x7FFFFFFF)
        derived.newest[pid] = batch.base
        producer.ranges.append((*sequences, batch.base, batch.last))
        if header.is_transactional:
            ours.setdefault(pid, []).append(batch.base)
            if producer.txn_first < 0:
                producer.txn_first = batch.base
    for pid in expired:
        producers.pop(pid, None)
    return derived


@dataclass
class ModelLog:
    """See the module head. Batches that end below `start` may be gone from the log."""

    history: list[Batch] = field(default_factory=list)
    kept: list[Batch] = field(default_factory=list)
    gone: list[Batch] = field(default_factory=list)
    """Deleted from the front: a power cut may bring them back, and producers remember them."""
    start: int = 0
    end: int = 0
    durable: int = 0
    """Below it everything must survive."""
    highest_start: int = 0
    cleaned: int = 0
    """Below it compaction may have been."""
    decided: int = 0
    """The high watermark that compaction went by: what is below it must not be cut, or transactions and producers whose
    batches it took as done with are open again."""
    forgotten: dict[int, int] = field(default_factory=dict)
    """Producer id to the log's end when it expired."""
    uncertain: dict[int, int] = field(default_factory=dict)
    """Producer id to its newest batch, when that is not in the log: the batch after it was cut when compaction had
    taken this one already, or it is a marker that was emptied. What the log knows depends on how old its snapshots are.
    """
    faded: dict[int, int] = field(default_factory=dict)
    """Producer id to its newest marker, when that is not in the log and the log need not know its coordinator epoch."""
    blurred: bool = False
    """Cut below `decided`: what the log knows of producers and transactions depends on how old its snapshots are."""

    @classmethod
    def anew(cls, offset: int) -> ModelLog:
        return cls(start=offset, end=offset, durable=offset, highest_start=offset)

    @property
    def epoch(self) -> int:
        return next((one.header.leader_epoch for one in reversed(self.history) if one.header.leader_epoch >= 0), -1)

    def derive(self) -> Derived:
        return derive(self.history, self.forgotten)

    def append(self, batches: list[Batch]) -> None:
        self.history += batches
        self.kept += batches
        if any(one.kind == RESET for one in batches):
            self.uncertain.clear()
        self.end = self.history[-1].last + 1

    def cut(self, end: int, *, emptied: bool) -> None:
        """The log ends at `end` now. `emptied`: nothing is left, so that nothing is remembered either."""
        if emptied:
            self.history, self.kept, self.gone, self.forgotten = [], [], [], {}
            self.uncertain, self.faded = {}, {}
            self.blurred, self.cleaned, self.decided = False, 0, 0
        if end < self.decided:
            self.blurred, self.decided = True, end
            self.cleaned = min(self.cleaned, end)
        self.history = [one for one in self.history if one.last < end]
        self.kept = [one for one in self.kept if one.last < end]
        self.end = self.durable = end
        self.note_uncertain()

    def note_uncertain(self) -> None:
        """The log's state was made anew from snapshots and what is left of the batches, or may be at the next start."""
        left = {one.base for one in self.gone + self.kept if one.is_data or one.kind is not None}
        derived = derive(self.history)
        for pid, newest in derived.newest.items():
            if newest not in left:
                self.uncertain[pid] = newest
            marker = derived.markers.get(pid)
            if marker is not None and marker not in left:
                self.faded[pid] = marker

    def expected_read(self, offset: int, limit: int) -> list[Batch]:
        """Every whole batch from the one that holds `offset` that ends below `limit`."""
        return [batch for batch in self.kept if batch.last >= offset and batch.last < limit]

    def first_at(self, timestamp: int) -> tuple[int, int] | None:
        for batch in self.kept:
            if batch.last >= self.start:
                for record in batch.records:
                    if record.timestamp >= timestamp and record.offset >= self.start:
                        return record.offset, record.timestamp
        return None

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest epoch not above `epoch`, where the next one begins); only for epochs that begin behind the start."""
        known = self.derive().epochs
        below = [one for one, _ in known if one <= epoch]
        above = [start for one, start in known if one > epoch]
        return below[-1], above[0] if above else self.end

    def visible(self, limit: int) -> list[Record]:
        """What a read_committed reader sees below `limit`, which is not above the last stable offset."""
        aborted = self.derive().aborted_data
        return [
            record
            for batch in self.kept
            if batch.is_data and batch.base not in aborted and self.start <= batch.last < limit
            for record in batch.records
        ]


# --- compaction -------------------------------------------------------------------------------------------------


@dataclass
class Round:
    """What one round of compaction is about. `segments`: (base offset, next offset) of those it may clean."""

    segments: list[tuple[int, int]]
    dirty_from: int
    now_ms: int
    delete_retention_ms: int
    max_keys: int


@dataclass
class Left:
    """What must be left of a batch: its records, perhaps none."""

    batch: Batch
    records: list[Record]
    horizon_ms: int | None
    """None: that which the batch had."""

    def check(self, found: Batch) -> None:
        """Raises AssertionError unless `found` is what is left."""
        before, after = self.batch.header, found.header
        check_crc(found.data, 0, after)
        assert found.last == self.batch.last
        assert [shown(record) for record in found.records] == [shown(record) for record in self.records]
        if (
            before.magic == 2
            and self.records
            and self.horizon_ms is None
            and len(self.records) == len(self.batch.records)
        ):
            assert found.data == self.batch.data
            return
        assert (after.magic, after.record_count) == (2, len(self.records))
        same = ("producer_id", "producer_epoch", "base_sequence", "leader_epoch", "is_transactional", "is_control")
        if before.magic == 2:
            assert after.base_offset == before.base_offset
            assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
        if self.records:
            assert after.compression == before.compression
            assert after.max_timestamp == max(record.timestamp for record in self.records)
            wanted = before.delete_horizon_ms if self.horizon_ms is None else self.horizon_ms
            assert after.delete_horizon_ms == wanted


def shown(record: Record) -> tuple[object, ...]:
    return (record.offset, record.key, record.value, record.timestamp, tuple(record.headers))


def newest_offsets(model: ModelLog, work: Round, derived: Derived) -> tuple[dict[bytes, int], int]:
    """The newest offset of every key in the dirty segments, and the last offset that was looked at: with room for
    `max_keys` the round ends before a batch that needs more, save the first."""
    newest: dict[bytes, int] = {}
    latest = -1
    for base, following in work.segments:
        if following <= work.dirty_from:
            continue
        for batch in model.kept:
            if not base <= batch.base < following:
                continue
            if batch.is_data and batch.base not in derived.aborted_data:
                for record in batch.records:
                    if record.key is None or record.offset < work.dirty_from:
                        continue
                    if record.key not in newest and len(newest) >= work.max_keys and latest >= work.dirty_from:
                        return newest, latest
                    newest[record.key] = record.offset
            if batch.last >= work.dirty_from:
                latest = batch.last
        latest = max(latest, following - 1)
    return newest, latest


def compacted(model: ModelLog, work: Round, derived: Derived) -> tuple[list[Left], int]:
    """What one round must leave of the batches that it passes, and the offset below which the log is clean then."""
    newest, latest = newest_offsets(model, work, derived)
    passed = [(base, following) for base, following in work.segments if base <= latest]
    end_of_round = work.segments[-1][1]
    with_data: set[int] = set()
    """Producers of whose current transaction something is left."""
    left = []
    for batch in model.kept:
        if not any(base <= batch.base < following for base, following in passed):
            continue
        header, horizon = batch.header, batch.header.delete_horizon_ms
        over = horizon is not None and horizon <= work.now_ms
        records = batch.records
        waits = False
        if batch.kind in (0, 1):
            unneeded = header.producer_id not in with_data
            with_data.discard(header.producer_id)
            records = [] if unneeded and over else records
            waits = unneeded
        elif batch.is_data:
            if header.is_transactional:
                with_data.add(header.producer_id)
            records = [
                record
                for record in ([] if batch.base in derived.aborted_data else records)
                if record.offset > latest or (record.key is not None and record.offset >= newest.get(record.key, -1))
                if record.value is not None or not over
            ]
            waits = any(record.value is None for record in records)
        if records:
            waits = waits and horizon is None
            left.append(Left(batch, records, work.now_ms + work.delete_retention_ms if waits else None))
        elif batch.last + 1 == end_of_round or _is_newest_of_producer(batch, derived):
            left.append(Left(batch, [], None))
    return left, latest + 1


def _is_newest_of_producer(batch: Batch, derived: Derived) -> bool:
    producer = derived.producers.get(batch.header.producer_id)
    if producer is None:
        return False
    if producer.ranges:
        return batch.last == producer.ranges[-1][3]
    return not batch.is_data and batch.header.producer_epoch == producer.epoch


def check_round(expected: list[Left], found: list[Batch]) -> None:
    """Raises AssertionError."""
    assert [one.batch.last for one in expected] == [one.last for one in found]
    for left, batch in zip(expected, found, strict=True):
        left.check(batch)
