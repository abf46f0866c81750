"""What compaction keeps: the rules for one batch after the other, without files. L2 storage.

Kafka: Cleaner, CleanedTransactionMetadata, MemoryRecords.filterTo. A round first reads the dirty part of the log into
an `OffsetMap` (the newest offset of every key), then passes all batches from the log's beginning through a
`BatchFilter`:

- of records with the same key the newest stays; a tombstone goes `delete.retention.ms` after the round that first met
  it (that time, the delete horizon, is written into the batch: KIP-534); a record without a key goes;
- records of aborted transactions go at once, and do not count as the newest of their key; a marker goes when nothing
  of its transaction is left, and then also only behind a delete horizon;
- a batch of which nothing is left stays as an empty one when it is the last of a producer that the log still knows (its
  sequence is needed), or the last of the round (so that the log's offsets do not shrink);
- a MIRROR_PID_RESET stays for ever: what a producer may do after it depends on it.

What stays of a batch keeps its base offset, last offset, producer fields, leader epoch and codec; the records are the
same bytes. Message sets of magic 0 and 1 become magic 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from heapq import heapify, heappop
from typing import Final, NamedTuple

from kmirror.errors import CorruptData
from kmirror.protocol.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    LOG_APPEND_TIME_BIT,
    NEWEST_MAGIC,
    BatchHeader,
    Buffer,
    build_batch,
    control_type,
    parse_header,
    read_records,
    read_varint,
    records_payload,
    rewritten_batch,
    write_varint,
)
from kmirror.storage.txn_index import AbortedTransaction

_LONGEST_KEY_KEPT: Final = 16
_DIGEST_BYTES: Final = 17
"""One more than the longest key that stands for itself, so that the two are never taken for each other."""


class OffsetMap:
    """Newest offset of each key, for at most `max_keys` keys. Kafka: SkimpyOffsetMap."""

    def __init__(self, max_keys: int) -> None:
        self._offsets: dict[bytes, int] = {}
        self._max_keys = max_keys
        self.latest_offset = -1
        """Up to here (inclusive) every record was looked at."""

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, key: bytes, offset: int, *, always: bool = False) -> bool:
        """False when the map is full and does not know the key; not with `always`."""
        name = _name_of(key)
        if not always and name not in self._offsets and len(self._offsets) >= self._max_keys:
            return False
        self._offsets[name] = offset
        return True

    def get(self, key: bytes) -> int:
        """-1 for a key that is not in the map."""
        return self._offsets.get(_name_of(key), -1)


def _name_of(key: bytes) -> bytes:
    return key if len(key) <= _LONGEST_KEY_KEPT else blake2b(key, digest_size=_DIGEST_BYTES).digest()


class LastRecord(NamedTuple):
    """The newest that the log knows of a producer: `last_data_offset` -1 when only a marker of it is left."""

    last_data_offset: int
    producer_epoch: int


class CleanedTransactions:
    """Follows the transactions in log order and says what may go. `aborted`: those that overlap the range."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._aborted = [(entry.first_offset, entry.producer_id, entry) for entry in aborted]
        heapify(self._aborted)
        self._open_aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        """By producer id: the transaction, and whether a batch of it was seen."""
        self._open_committed: set[int] = set()
        self.kept: list[AbortedTransaction] = []
        """Aborted transactions of which batches were met: readers must still be told of them."""

    def on_control(self, header: BatchHeader, kind: int | None) -> bool:
        """Whether the marker may go as far as its transaction is concerned. `kind` None: it was emptied before."""
        self._take_up_to(header.last_offset)
        if kind is None:
            return True
        if kind == CONTROL_ABORT:
            found = self._open_aborted.pop(header.producer_id, None)
            if found is None or not found[1]:
                return True
            self.kept.append(found[0])
            return False
        if kind == CONTROL_COMMIT:
            seen = header.producer_id in self._open_committed
            self._open_committed.discard(header.producer_id)
            return not seen
        return False

    def on_data(self, header: BatchHeader) -> bool:
        """Whether the batch belongs to an aborted transaction."""
        self._take_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        found = self._open_aborted.get(header.producer_id)
        if found is None:
            self._open_committed.add(header.producer_id)
            return False
        self._open_aborted[header.producer_id] = (found[0], True)
        return True

    def _take_up_to(self, offset: int) -> None:
        while self._aborted and self._aborted[0][0] <= offset:
            _, producer_id, entry = heappop(self._aborted)
            self._open_aborted.setdefault(producer_id, (entry, False))


class RawRecord(NamedTuple):
    """One record inside its batch's payload: [start, end), and what the rules look at."""

    start: int
    end: int
    body: int
    """Where the record's attributes begin, behind its length."""
    timestamp_delta: int
    after_timestamp: int
    offset_delta: int
    key: bytes | None
    has_value: bool


def raw_records(payload: Buffer, header: BatchHeader) -> Iterator[RawRecord]:
    """Raises CorruptData when lengths do not fit."""
    at = 0
    for _ in range(header.record_count):
        start = at
        size, body = read_varint(payload, at)
        end = body + size
        if size < 0 or end > len(payload):
            raise CorruptData(f"a record of offset {header.base_offset} ends beyond its batch")
        timestamp_delta, after_timestamp = read_varint(payload, body + 1)
        offset_delta, at = read_varint(payload, after_timestamp)
        key_size, at = read_varint(payload, at)
        key = None
        if key_size >= 0:
            key = bytes(payload[at : at + key_size])
            at += key_size
        value_size, at = read_varint(payload, at)
        if at > end:
            raise CorruptData(f"a record of offset {header.base_offset} does not fill its length")
        yield RawRecord(start, end, body, timestamp_delta, after_timestamp, offset_delta, key, value_size >= 0)
        at = end


def fill(
    offset_map: OffsetMap, transactions: CleanedTransactions, header: BatchHeader, data: Buffer, *, from_offset: int
) -> bool:
    """One batch of the dirty part. False when the map is full: what comes from there on is left for a later round.

    The first one is taken whatever it needs, or a batch of many keys would be met again, to no avail, in every round.
    """
    if header.is_control:
        transactions.on_control(header, control_type(data) if header.record_count else None)
    elif not transactions.on_data(header):
        is_first = offset_map.latest_offset < from_offset
        for key, offset in _keys(header, data):
            if key is not None and offset >= from_offset and not offset_map.put(key, offset, always=is_first):
                return False
    if header.last_offset >= from_offset:
        offset_map.latest_offset = max(offset_map.latest_offset, header.last_offset)
    return True


def _keys(header: BatchHeader, data: Buffer) -> Iterator[tuple[bytes | None, int]]:
    if header.magic != NEWEST_MAGIC:
        for old in read_records(data):
            yield old.key, old.offset
        return
    for record in raw_records(records_payload(data, 0, header), header):
        yield record.key, header.base_offset + record.offset_delta


class BatchFilter:
    """See the module head. `end_offset`: the first offset that the round must not touch."""

    def __init__(
        self,
        offset_map: OffsetMap,
        transactions: CleanedTransactions,
        last_records: Mapping[int, LastRecord],
        *,
        end_offset: int,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._map = offset_map
        self._transactions = transactions
        self._last_records = last_records
        self._end_offset = end_offset
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms

    def apply(self, header: BatchHeader, data: Buffer) -> Buffer | None:
        """What to write in the batch's place: the same bytes, fewer records, an empty batch, or nothing (None)."""
        if header.magic != NEWEST_MAGIC:
            return self._from_old(header, data)
        horizon = header.delete_horizon_ms
        if header.is_control:
            gone = self._transactions.on_control(header, control_type(data) if header.record_count else None)
            discard = gone and horizon is not None and horizon <= self._now_ms
        else:
            gone = discard = self._transactions.on_data(header)
        if discard or not header.record_count:
            return _emptied(header) if self._stays_empty(header) else None
        payload = records_payload(data, 0, header)
        records = list(raw_records(payload, header))
        kept = records if header.is_control else [record for record in records if self._stays(header, record)]
        if not kept:
            return _emptied(header) if self._stays_empty(header) else None
        waits = (gone and header.is_control) or any(not record.has_value for record in kept)
        if waits and horizon is None:
            return self._rebuilt(header, payload, kept, self._now_ms + self._delete_retention_ms)
        if len(kept) == len(records):
            return data
        return self._rebuilt(header, payload, kept, None)

    def _stays(self, header: BatchHeader, record: RawRecord) -> bool:
        if not self._is_newest(record.key, header.base_offset + record.offset_delta):
            return False
        horizon = header.delete_horizon_ms
        return record.has_value or horizon is None or self._now_ms < horizon

    def _is_newest(self, key: bytes | None, offset: int) -> bool:
        return offset > self._map.latest_offset or (key is not None and offset >= self._map.get(key))

    def _from_old(self, header: BatchHeader, data: Buffer) -> bytes | None:
        """What is rewritten of a message set of magic 0 or 1 becomes magic 2, as in Kafka; only so a tombstone can get
        its horizon."""
        kept = [record for record in read_records(data) if self._is_newest(record.key, record.offset)]
        if not kept:
            if header.next_offset != self._end_offset:
                return None
            return _emptied(header._replace(magic=NEWEST_MAGIC, attributes=header.attributes & LOG_APPEND_TIME_BIT))
        batch = build_batch(
            kept,
            base_offset=kept[0].offset,
            compression=header.compression,
            log_append_time=header.log_append_time,
            timestamp_ms=header.max_timestamp,
            last_offset_delta=header.last_offset - kept[0].offset,
        )
        if all(record.value is not None for record in kept):
            return batch
        rebuilt = parse_header(batch)
        payload = records_payload(batch, 0, rebuilt)
        return self._rebuilt(
            rebuilt, payload, list(raw_records(payload, rebuilt)), self._now_ms + self._delete_retention_ms
        )

    def _stays_empty(self, header: BatchHeader) -> bool:
        if header.next_offset == self._end_offset:
            return True
        last = self._last_records.get(header.producer_id) if header.has_producer_id else None
        if last is None:
            return False
        if last.last_data_offset >= 0:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.producer_epoch

    def _rebuilt(
        self, header: BatchHeader, payload: Buffer, kept: Sequence[RawRecord], new_horizon_ms: int | None
    ) -> bytes:
        """`new_horizon_ms` takes the place of the base timestamp, so the records' time deltas are counted from it."""
        view = memoryview(payload)
        out = bytearray()
        for record in kept:
            if new_horizon_ms is None:
                out += view[record.start : record.end]
            else:
                body = bytearray(view[record.body : record.body + 1])
                write_varint(header.base_timestamp + record.timestamp_delta - new_horizon_ms, body)
                body += view[record.after_timestamp : record.end]
                write_varint(len(body), out)
                out += body
        newest = max(header.base_timestamp + record.timestamp_delta for record in kept)
        return rewritten_batch(
            header,
            bytes(out),
            record_count=len(kept),
            max_timestamp=header.max_timestamp if header.log_append_time else newest,
            delete_horizon_ms=new_horizon_ms,
        )


def _emptied(header: BatchHeader) -> bytes:
    """Only the header, without codec, horizon and base timestamp (DefaultRecordBatch.writeEmptyHeader)."""
    return rewritten_batch(header, b"", record_count=0, max_timestamp=header.max_timestamp)
