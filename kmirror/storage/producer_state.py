"""What a log knows of its producers: sequences, epochs, open transactions. L2 storage.

Kafka: ProducerStateManager, ProducerAppendInfo, ProducerStateEntry (KIP-98, KIP-360, KIP-890), and the
MIRROR_PID_RESET barrier of KIP-1279. How an append uses it: `prepare`, `PendingProducers.add` for each batch (this is
where a client's batch is refused), the write, `commit`. Nothing changes before `commit`, so a failed write leaves no
trace and cannot be taken for a duplicate later.

Deviation: a producer expires by the time of its last append *here*, not by the timestamp in its records: a producer
that writes old timestamps keeps its state as long as any other.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kmirror.errors import CorruptData
from kmirror.limits import PRODUCER_BATCHES_RETAINED
from kmirror.protocol.checksum import crc32c
from kmirror.protocol.records import CONTROL_ABORT, CONTROL_COMMIT, CONTROL_MIRROR_PID_RESET, MAX_SEQUENCE, BatchHeader
from kmirror.storage.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)

_HEAD = struct.Struct(">hIi")
_CRC_START = 6
_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1


class AppendOrigin(enum.Enum):
    """Who appends, which says how much is checked (Kafka: AppendOrigin)."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class Marker(NamedTuple):
    """The first record of a control batch: its type, and for COMMIT and ABORT the coordinator's epoch."""

    control_type: int
    coordinator_epoch: int


class BatchRange(NamedTuple):
    """One of the last batches of a producer."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class OpenTransaction(NamedTuple):
    producer_id: int
    producer_epoch: int
    first_offset: int
    coordinator_epoch: int


class CompletedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool
    last_stable_offset: int


class ProducerEntry:
    """State of one producer id. `batches` is oldest first; `txn_first_offset` is -1 without an open transaction."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "last_timestamp",
        "producer_epoch",
        "producer_id",
        "seen_ms",
        "txn_first_offset",
    )

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = -1
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.txn_first_offset = -1
        self.seen_ms = 0
        self.batches: list[BatchRange] = []

    def copy(self) -> ProducerEntry:
        other = ProducerEntry(self.producer_id)
        other.producer_epoch = self.producer_epoch
        other.coordinator_epoch = self.coordinator_epoch
        other.last_timestamp = self.last_timestamp
        other.txn_first_offset = self.txn_first_offset
        other.seen_ms = self.seen_ms
        other.batches = self.batches.copy()
        return other

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    def duplicate_of(self, header: BatchHeader) -> BatchRange | None:
        """The retained batch with exactly this epoch and sequence range (KAFKA-5494)."""
        if header.producer_epoch == self.producer_epoch:
            first, last = header.base_sequence, header.last_sequence
            for batch in self.batches:
                if batch.first_sequence == first and batch.last_sequence == last:
                    return batch
        return None

    def set_epoch(self, producer_epoch: int) -> None:
        if producer_epoch != self.producer_epoch:
            self.batches.clear()
            self.producer_epoch = producer_epoch

    def add_batch(self, batch: BatchRange) -> None:
        if len(self.batches) >= PRODUCER_BATCHES_RETAINED:
            del self.batches[0]
        self.batches.append(batch)
        self.last_timestamp = batch.timestamp


class ProducerState:
    """All producers of one log up to `end_offset`."""

    def __init__(self, end_offset: int = 0) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        self.end_offset = end_offset
        self.open_transactions: dict[int, int] = {}
        """First offset to producer id, ascending: transactions start in log order."""
        self._refused: dict[int, tuple[int, int, int]] = {}
        """Producer id to (epoch, lowest sequence, when): transactional batches that were not admitted."""

    @property
    def first_undecided_offset(self) -> int | None:
        """First offset of the oldest open transaction."""
        return next(iter(self.open_transactions), None)

    def ongoing(self) -> list[OpenTransaction]:
        """Ascending by producer id: the order in which a mirror's stop aborts them."""
        found = []
        for producer_id in sorted(self.open_transactions.values()):
            entry = self.entries[producer_id]
            found.append(
                OpenTransaction(producer_id, entry.producer_epoch, entry.txn_first_offset, entry.coordinator_epoch)
            )
        return found

    def prepare(
        self, origin: AppendOrigin, now_ms: int, *, transaction_version: int = 0, epoch_bumps: bool = False
    ) -> PendingProducers:
        """See `PendingProducers`."""
        return PendingProducers(self, origin, now_ms, transaction_version, epoch_bumps)

    def check_not_older(self, header: BatchHeader) -> None:
        """Raises InvalidProducerEpoch for a batch of an epoch below the last one seen of its producer."""
        entry = self.entries.get(header.producer_id)
        if entry is not None and header.producer_epoch < entry.producer_epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} writes with epoch {header.producer_epoch}, the last one was "
                f"{entry.producer_epoch}"
            )

    def note_refused(self, header: BatchHeader, now_ms: int) -> None:
        """A transactional batch was refused before the log was asked (its partition was not yet known to belong to the
        transaction). Until the transaction begins here no batch behind it is taken: of several in flight the second
        would be stored before the first (Kafka: VerificationStateEntry, KAFKA-14884)."""
        epoch, lowest, _ = self._refused.get(header.producer_id, (-1, MAX_SEQUENCE, 0))
        if header.producer_epoch > epoch:
            lowest = header.base_sequence
        if header.producer_epoch >= epoch:
            self._refused[header.producer_id] = (header.producer_epoch, min(lowest, header.base_sequence), now_ms)

    def forget_refused(self, producer_id: int) -> None:
        self._refused.pop(producer_id, None)

    def lowest_refused(self, producer_id: int, producer_epoch: int) -> int | None:
        """The lowest sequence that was refused in this epoch since the producer's last transaction here."""
        found = self._refused.get(producer_id)
        return found[1] if found is not None and found[0] == producer_epoch else None

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that were idle for `expiration_ms` and have no open transaction; returns how many."""
        gone = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.txn_first_offset < 0 and now_ms - entry.seen_ms >= expiration_ms
        ]
        for producer_id in gone:
            del self.entries[producer_id]
        for producer_id, (_, _, at_ms) in list(self._refused.items()):
            if now_ms - at_ms >= expiration_ms:
                del self._refused[producer_id]
        return len(gone)

    def end_without_marker(self, producer_id: int) -> None:
        """Compaction has emptied the marker that ended what the producer had open: none of it is left to be shown or
        hidden. In a state from before, of a snapshot, it is open still."""
        entry = self.entries.get(producer_id)
        if entry is not None and entry.txn_first_offset >= 0:
            self.move_transaction(producer_id, -1)

    def move_transaction(self, producer_id: int, first_offset: int) -> None:
        """The producer's open transaction begins there; -1: it has ended, without a marker (see `recovery`)."""
        entry = self.entries[producer_id]
        entry.txn_first_offset = first_offset
        if first_offset < 0 and not entry.batches:
            del self.entries[producer_id]  # a reset had left it for the sake of that transaction alone
        self._index_open()

    def clear(self, end_offset: int) -> None:
        self.entries.clear()
        self.open_transactions.clear()
        self._refused.clear()
        self.end_offset = end_offset

    # --- snapshots ---

    def encode_snapshot(self) -> bytes:
        """Kafka's `.snapshot`, version 1. Of the retained batches it keeps the last."""
        body = bytearray()
        for producer_id in sorted(self.entries):
            entry = self.entries[producer_id]
            last = entry.batches[-1] if entry.batches else None
            body += _ENTRY.pack(
                producer_id,
                entry.producer_epoch,
                last.last_sequence if last else -1,
                last.last_offset if last else -1,
                last.last_offset - last.first_offset if last else 0,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.txn_first_offset,
            )
        count = struct.pack(">i", len(self.entries))
        return struct.pack(">hI", _SNAPSHOT_VERSION, crc32c(bytes(body), crc32c(count))) + count + bytes(body)

    def load_snapshot(self, data: bytes, end_offset: int, now_ms: int) -> None:
        """Replace the state by a snapshot taken at `end_offset`. Raises CorruptData and changes nothing then."""
        if len(data) < _HEAD.size:
            raise CorruptData(f"producer snapshot at {end_offset} has {len(data)} bytes")
        version, crc, count = _HEAD.unpack_from(data)
        if version != _SNAPSHOT_VERSION:
            raise CorruptData(f"producer snapshot at {end_offset} has version {version}")
        if len(data) != _HEAD.size + count * _ENTRY.size or crc32c(data[_CRC_START:]) != crc:
            raise CorruptData(f"producer snapshot at {end_offset} fails its checksum or length")
        self.clear(end_offset)
        opened: list[tuple[int, int]] = []
        for numbers in _ENTRY.iter_unpack(data[_HEAD.size :]):
            producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first_offset = numbers
            entry = self.entries[producer_id] = ProducerEntry(producer_id)
            entry.producer_epoch = epoch
            entry.last_timestamp = timestamp
            entry.coordinator_epoch = coordinator_epoch
            entry.txn_first_offset = txn_first_offset
            entry.seen_ms = now_ms
            if offset >= 0:
                first_sequence = -1 if sequence < 0 else (sequence - delta) & MAX_SEQUENCE
                entry.batches.append(BatchRange(first_sequence, sequence, offset - delta, offset, timestamp))
            if txn_first_offset >= 0:
                opened.append((txn_first_offset, producer_id))
        self.open_transactions.update(sorted(opened))

    def load(self, entries: Iterable[ProducerEntry]) -> None:
        """Take over entries whole (tests, and takeover of state from elsewhere)."""
        for entry in entries:
            self.entries[entry.producer_id] = entry
        self._index_open()

    def _index_open(self) -> None:
        opened = sorted((e.txn_first_offset, e.producer_id) for e in self.entries.values() if e.txn_first_offset >= 0)
        self.open_transactions = dict(opened)


class _Started(NamedTuple):
    first_offset: int
    producer_id: int


class _Ended(NamedTuple):
    first_offset: int
    producer_id: int
    last_offset: int
    aborted: bool


class PendingProducers:
    """The effect of one append, kept aside until its bytes are written.

    Entries are copied when first touched. A MIRROR_PID_RESET forgets everything before it, whether it comes from the
    log or from an earlier batch of the same append, except that an open transaction stays known (without sequences):
    it still has to be ended by a marker of its producer epoch.
    """

    __slots__ = (
        "_changed",
        "_epoch_bumps",
        "_events",
        "_now_ms",
        "_origin",
        "_reset",
        "_state",
        "_transaction_version",
    )

    def __init__(
        self, state: ProducerState, origin: AppendOrigin, now_ms: int, transaction_version: int, epoch_bumps: bool
    ) -> None:
        self._state = state
        self._origin = origin
        self._now_ms = now_ms
        self._transaction_version = transaction_version
        self._epoch_bumps = epoch_bumps
        self._changed: dict[int, ProducerEntry] = {}
        self._events: list[_Started | _Ended] = []
        self._reset = False

    def add(self, header: BatchHeader, base_offset: int, marker: Marker | None) -> None:
        """One batch, with the offset it gets. `marker` for control batches (None when emptied by compaction).

        Raises OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState, TransactionCoordinatorFenced; never for
        REPLICATION, whose source has checked already.
        """
        if marker is not None and marker.control_type == CONTROL_MIRROR_PID_RESET:
            self._forget()
            return
        if header.producer_id < 0:
            return
        if not header.is_control:
            self._add_data(header, base_offset)
        elif marker is not None and marker.control_type in (CONTROL_ABORT, CONTROL_COMMIT):
            self._add_marker(header, base_offset, marker)

    def commit(self, end_offset: int) -> list[CompletedTransaction]:
        """The bytes are written: make it the state. Returns the transactions that ended, in log order."""
        state = self._state
        if self._reset:
            state.entries = self._changed
        else:
            state.entries.update(self._changed)
        state.end_offset = end_offset
        completed = []
        opened = state.open_transactions
        for event in self._events:
            if isinstance(event, _Started):
                opened[event.first_offset] = event.producer_id
                state.forget_refused(event.producer_id)
                continue
            opened.pop(event.first_offset, None)
            stable = next((first for first, pid in opened.items() if pid != event.producer_id), event.last_offset + 1)
            completed.append(
                CompletedTransaction(event.producer_id, event.first_offset, event.last_offset, event.aborted, stable)
            )
        return completed

    def _entry(self, producer_id: int) -> ProducerEntry:
        entry = self._changed.get(producer_id)
        if entry is None:
            known = None if self._reset else self._state.entries.get(producer_id)
            entry = self._changed[producer_id] = ProducerEntry(producer_id) if known is None else known.copy()
        return entry

    def _add_data(self, header: BatchHeader, base_offset: int) -> None:
        entry = self._entry(header.producer_id)
        if self._origin is not AppendOrigin.REPLICATION:
            self._check_epoch(entry, header.producer_epoch, base_offset, 0)
            if self._origin is AppendOrigin.CLIENT:
                self._check_sequence(entry, header, base_offset)
            if entry.txn_first_offset >= 0 and not header.is_transactional:
                raise InvalidTxnState(
                    f"producer {header.producer_id} has a transaction open since offset {entry.txn_first_offset}: "
                    "its batches must be transactional until it ends"
                )
        entry.set_epoch(header.producer_epoch)
        last_offset = base_offset + header.last_offset_delta
        entry.add_batch(
            BatchRange(header.base_sequence, header.last_sequence, base_offset, last_offset, header.max_timestamp)
        )
        entry.seen_ms = self._now_ms
        if header.is_transactional and entry.txn_first_offset < 0:
            entry.txn_first_offset = base_offset
            self._events.append(_Started(base_offset, header.producer_id))

    def _add_marker(self, header: BatchHeader, base_offset: int, marker: Marker) -> None:
        entry = self._entry(header.producer_id)
        if self._origin is not AppendOrigin.REPLICATION:
            self._check_epoch(entry, header.producer_epoch, base_offset, self._transaction_version)
            if entry.coordinator_epoch > marker.coordinator_epoch:
                raise TransactionCoordinatorFenced(
                    f"marker for producer {header.producer_id} has coordinator epoch {marker.coordinator_epoch}, "
                    f"{entry.coordinator_epoch} was seen already"
                )
        if entry.txn_first_offset >= 0:
            aborted = marker.control_type == CONTROL_ABORT
            self._events.append(_Ended(entry.txn_first_offset, header.producer_id, base_offset, aborted))
        entry.set_epoch(header.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = header.max_timestamp
        entry.txn_first_offset = -1
        entry.seen_ms = self._now_ms

    def _check_epoch(self, entry: ProducerEntry, epoch: int, offset: int, transaction_version: int) -> None:
        """ProducerAppendInfo.checkProducerEpoch: with transactions v2 a marker must have a greater epoch (KIP-890),
        save a repeated one whose transaction has ended (KAFKA-19999)."""
        current = entry.producer_epoch
        if epoch > current or (epoch == current and transaction_version < 2):
            return
        if epoch == current and entry.txn_first_offset < 0:
            return
        raise InvalidProducerEpoch(
            f"producer {entry.producer_id} writes with epoch {epoch} at offset {offset}, the last one was {current}"
        )

    def _check_sequence(self, entry: ProducerEntry, header: BatchHeader, offset: int) -> None:
        """ProducerAppendInfo.checkSequence. No state means any sequence, unless the client bumps epochs (KIP-890)."""
        first = header.base_sequence
        lowest = self._state.lowest_refused(header.producer_id, header.producer_epoch)
        if lowest is not None and first > lowest:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} epoch {header.producer_epoch} writes sequence {first} at offset "
                f"{offset}, but {lowest} was refused and has to come first"
            )
        known = entry.producer_epoch >= 0
        if not known:
            expected = 0 if self._epoch_bumps and header.is_transactional else first
        elif header.producer_epoch != entry.producer_epoch:
            expected = 0
        else:
            expected = (entry.last_sequence + 1) & MAX_SEQUENCE
        if first != expected:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} epoch {header.producer_epoch} writes sequence {first} at offset "
                f"{offset}, expected {expected}"
            )

    def _forget(self) -> None:
        kept: dict[int, ProducerEntry] = {}
        for entry in self._visible():
            if entry.txn_first_offset >= 0:
                stripped = entry.copy()
                stripped.batches.clear()
                kept[entry.producer_id] = stripped
        self._changed = kept
        self._reset = True

    def _visible(self) -> Iterator[ProducerEntry]:
        yield from self._changed.values()
        if not self._reset:
            for producer_id, entry in self._state.entries.items():
                if producer_id not in self._changed:
                    yield entry
