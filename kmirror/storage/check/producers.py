"""Producer snapshots and transaction indexes against a replay of the log. L2 storage.

Kafka: ProducerStateManager, ProducerAppendInfo, TransactionIndex; written anew, and the files read by their formats, so
that a mistake in the code that keeps the state shows. What may be missing without being wrong:

- a producer that was idle for producer.id.expiration.ms is forgotten, unless its transaction is open: its entry may be
  missing, or begin anew (no coordinator epoch, no batch yet);
- what lies below the log's first segment is only in the snapshot at its base, which is believed if it is whole;
- a MIRROR_PID_RESET takes all producers but those with an open transaction, whose sequences go (KIP-1279);
- compaction takes batches and markers that a snapshot still tells of (a marker may go when no batch of its transaction
  is left, though the snapshot before it has the transaction open), but never makes a producer newer. Which log was
  compacted is known only at its end, so such differences wait until then: see `Difference.unless_compacted`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from kmirror.errors import CorruptData
from kmirror.protocol.checksum import crc32c
from kmirror.protocol.records import BatchHeader
from kmirror.storage.check.segment import ABORT, COMMIT, PID_RESET, Marker

_SNAPSHOT_HEAD = struct.Struct(">hIi")
_CRC_START = 6
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1
_TXN_ENTRY = struct.Struct(">hqqqq")


@dataclass(slots=True)
class Producer:
    """As a snapshot has it. `last_offset` -1: no batch of it is known; `txn_first` -1: no open transaction."""

    epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    offset_delta: int = 0
    timestamp: int = -1
    coordinator_epoch: int = -1
    txn_first: int = -1
    data_timestamp: int = -1
    """Of its last batch; brokers before Kafka 2.2 did not count a marker's."""
    txn_records: int = -1
    """Offset of the open transaction's first batch that has records, -1 when there is none in the log."""


class Difference(NamedTuple):
    text: str
    offset: int | None
    unless_compacted: bool = False


class Completed(NamedTuple):
    """A transaction that was aborted. `first_offset` -1: it began before what is known, or has no batch.

    `first_records`: offset of its first batch with records, -1 when the log has none: then no reader needs it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    first_records: int = -1


def read_snapshot(data: bytes) -> dict[int, Producer]:
    """Producers by id. Raises CorruptData."""
    if len(data) < _SNAPSHOT_HEAD.size:
        raise CorruptData(f"{len(data)} bytes are too few for a producer snapshot")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptData(f"it has version {version}, only {_SNAPSHOT_VERSION} is known")
    if len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
        raise CorruptData(f"it announces {count} producers and has {len(data)} bytes")
    computed = crc32c(data[_CRC_START:])
    if computed != crc:
        raise CorruptData(f"its checksum is {computed:#010x}, it says {crc:#010x}")
    found = {}
    for fields in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size :]):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first = fields
        found[producer_id] = Producer(epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first)
    return found


class Replay:
    """The producers' state, made from one batch after the other."""

    def __init__(self, first_offset: int) -> None:
        self.first_offset = first_offset
        """Of the log's first segment: what lies below is known from `begin_with` only."""
        self.producers: dict[int, Producer] = {}
        self.max_producer_id = -1
        self.resets: list[int] = []
        self.incomplete = False
        """A batch was damaged: from there on nothing is compared."""
        self._open: dict[int, int] = {}
        """First offset to producer id of the open transactions; dicts keep the order of their beginnings."""

    def begin_with(self, producers: dict[int, Producer]) -> None:
        """The snapshot at `first_offset`."""
        self.producers = {producer_id: replace(producer) for producer_id, producer in producers.items()}
        opened = sorted((one.txn_first, producer_id) for producer_id, one in producers.items() if one.txn_first >= 0)
        self._open = dict(opened)

    def batch(self, header: BatchHeader, marker: Marker | None) -> Completed | None:
        """Returns the transaction that an ABORT ended."""
        self.max_producer_id = max(self.max_producer_id, header.producer_id)
        if marker is not None and marker.control_type == PID_RESET:
            self._reset(header.base_offset)
            return None
        if header.producer_id < 0 or (header.is_control and (marker is None or marker.control_type > COMMIT)):
            return None
        producer = self.producers.setdefault(header.producer_id, Producer())
        if producer.epoch != header.producer_epoch:
            producer.epoch = header.producer_epoch
            producer.last_sequence = producer.last_offset = -1
            producer.offset_delta = 0
        producer.timestamp = header.max_timestamp
        if marker is not None:
            return self._end(producer, header, marker)
        producer.last_sequence = header.last_sequence
        producer.last_offset = header.last_offset
        producer.offset_delta = header.last_offset_delta
        producer.data_timestamp = header.max_timestamp
        if header.is_transactional and producer.txn_first < 0:
            producer.txn_first = header.base_offset
            self._open[header.base_offset] = header.producer_id
        if header.is_transactional and producer.txn_records < 0 and header.record_count:
            producer.txn_records = header.base_offset
        return None

    def _end(self, producer: Producer, header: BatchHeader, marker: Marker) -> Completed | None:
        first, records = producer.txn_first, producer.txn_records
        self._open.pop(first, None)
        producer.txn_first = producer.txn_records = -1
        producer.coordinator_epoch = marker.coordinator_epoch
        if marker.control_type != ABORT:
            return None
        stable = next(iter(self._open), header.base_offset + 1)
        return Completed(header.producer_id, first, header.base_offset, stable, records)

    def _reset(self, offset: int) -> None:
        self.resets.append(offset)
        self.producers = {
            producer_id: replace(one, last_sequence=-1, last_offset=-1, offset_delta=0)
            for producer_id, one in self.producers.items()
            if one.txn_first >= 0
        }

    # --- a snapshot at this moment ---

    def differences(self, snapshot: dict[int, Producer], offset: int) -> Iterator[Difference]:
        """What `snapshot`, taken at `offset`, says otherwise."""
        if self.incomplete:
            return
        for producer_id, theirs in snapshot.items():
            if theirs.last_offset >= offset or theirs.txn_first >= offset:
                yield Difference(f"producer {producer_id} is told of at or above the snapshot's own offset", offset)
                continue
            ours = self.producers.get(producer_id)
            if ours is not None:
                yield from self._fields(producer_id, ours, theirs)
            elif theirs.last_offset >= self.first_offset or (theirs.last_offset < 0 and self.first_offset == 0):
                yield Difference(f"producer {producer_id} is not in the log", offset, True)
        for producer_id, ours in self.producers.items():
            if producer_id not in snapshot and ours.txn_first >= 0:
                yield Difference(
                    f"producer {producer_id} is missing, its transaction is open since offset {ours.txn_first}",
                    ours.txn_first,
                    True,
                )

    def _fields(self, producer_id: int, ours: Producer, theirs: Producer) -> Iterator[Difference]:
        def differs(name: str, mine: int, said: int, unless_compacted: bool) -> Difference:
            text = f"producer {producer_id} has {name} {said}, the log says {mine}"
            return Difference(text, ours.last_offset if ours.last_offset >= 0 else None, unless_compacted)

        older = 0 <= theirs.last_offset < ours.last_offset
        if ours.epoch != theirs.epoch:
            yield differs("epoch", ours.epoch, theirs.epoch, not older)
        elif ours.last_offset != theirs.last_offset:
            if theirs.last_offset >= 0 or ours.txn_first >= 0:
                yield differs("last offset", ours.last_offset, theirs.last_offset, not older)
        elif ours.last_sequence != theirs.last_sequence:
            yield differs("last sequence", ours.last_sequence, theirs.last_sequence, False)
        elif ours.offset_delta != theirs.offset_delta:
            yield differs("offset delta", ours.offset_delta, theirs.offset_delta, False)
        elif theirs.timestamp not in (ours.timestamp, ours.data_timestamp):
            yield differs("timestamp", ours.timestamp, theirs.timestamp, True)
        if theirs.coordinator_epoch not in (ours.coordinator_epoch, -1):
            yield differs("coordinator epoch", ours.coordinator_epoch, theirs.coordinator_epoch, True)
        if ours.txn_first != theirs.txn_first and not (0 <= theirs.txn_first < self.first_offset):
            yield differs("open transaction from", ours.txn_first, theirs.txn_first, True)


class TxnIndexCheck:
    """Aborted transactions of one segment: give it each ABORT marker in turn, then `finish`."""

    def __init__(self, data: bytes, base_offset: int) -> None:
        self.broken = ""
        self.differences: list[Difference] = []
        self._by_marker: dict[int, Completed] = {}
        self._beginning: dict[int, Completed] = {}
        """By the offset at which a transaction is to begin: see `begins`."""
        if len(data) % _TXN_ENTRY.size:
            self.broken = f"{len(data) % _TXN_ENTRY.size} bytes at its end are no whole entry"
            return
        last = base_offset - 1
        for index, (version, producer_id, first, end, stable) in enumerate(_TXN_ENTRY.iter_unpack(data)):
            if version != 0 or not (0 <= first < end and last < end):
                self.broken = f"entry {index} is none: version {version}, offsets {first} to {end} behind {last}"
                return
            last = end
            self._by_marker[end] = Completed(producer_id, first, end, stable)

    def aborted(self, expected: Completed, log_first_offset: int) -> None:
        """An ABORT marker of which the replay says `expected`."""
        if self.broken:
            return
        entry = self._by_marker.pop(expected.last_offset, None)
        where = f"the transaction of producer {expected.producer_id} that is aborted at offset {expected.last_offset}"
        if entry is None:
            if expected.first_offset >= 0:
                text = f"{where} is missing: its records are given out as committed"
                self._differs(text, expected, unless_compacted=expected.first_records < 0)
            return
        if entry.producer_id != expected.producer_id:
            self._differs(f"{where} is said to be one of producer {entry.producer_id}", expected)
        elif entry.first_offset > expected.first_records >= 0:
            begins = f"{where} has records from {expected.first_records} on"
            self._differs(f"{begins}, the index says {entry.first_offset}", expected)
        elif entry.first_offset != expected.first_offset and entry.first_offset >= log_first_offset:
            text = f"{where} begins at {expected.first_offset}, the index says {entry.first_offset}"
            self._differs(text, expected, unless_compacted=True)
        elif entry.last_stable_offset != expected.last_stable_offset:
            if entry.last_stable_offset > expected.last_stable_offset == expected.last_offset + 1:
                self._beginning[entry.last_stable_offset] = expected
            else:
                self._stable_differs(expected, entry.last_stable_offset)

    def begins(self, offset: int) -> None:
        """A batch of a transaction begins there. Kafka takes one into account that begins behind a marker, in the same
        append: that is where its last stable offset is then."""
        self._beginning.pop(offset, None)

    def _stable_differs(self, expected: Completed, said: int) -> None:
        text = (
            f"the transaction of producer {expected.producer_id} that is aborted at offset {expected.last_offset} left "
            f"{expected.last_stable_offset} stable, the index says {said}"
        )
        self._differs(text, expected, unless_compacted=True)

    def finish(self) -> None:
        for said, expected in self._beginning.items():
            self._stable_differs(expected, said)
        for entry in self._by_marker.values():
            self._differs(f"no transaction of producer {entry.producer_id} is aborted at {entry.last_offset}", entry)

    def _differs(self, text: str, at: Completed, *, unless_compacted: bool = False) -> None:
        self.differences.append(Difference(text, at.last_offset, unless_compacted))
