"""Appending to a log. L2 storage. Kafka: UnifiedLog.append, LocalLog.roll, LogValidator.

Three origins. CLIENT: exactly one batch of magic 2, checked as Kafka checks a produce; offset and epoch are assigned.
COORDINATOR: batches built by this broker (markers, group and metadata records); assigned too, and their producer epochs
checked. REPLICATION: bytes exactly as the source has them; they must begin at or behind the log's end, in order, with
checksums right and leader epochs that do not go back. The order of work is always: check everything, write once,
then change the state; a write that fails changes nothing.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from kmirror.errors import CorruptData, DiskFailure, DiskFull, ReadOnlyLog
from kmirror.protocol.compression import Compression
from kmirror.protocol.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_MIRROR_PID_RESET,
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME_BIT,
    NEWEST_MAGIC,
    NO_PRODUCER_EPOCH,
    NO_TIMESTAMP,
    BatchHeader,
    build_batch,
    check_crc,
    control_type,
    coordinator_epoch,
    header_with_append_time,
    header_with_offset_and_epoch,
    parse_header,
    read_records,
    walk,
    without_append_time,
)
from kmirror.storage import flush
from kmirror.storage.errors import (
    InvalidRecord,
    InvalidTimestamp,
    RecordBatchTooLarge,
    RecordTooLarge,
    UnexpectedEpoch,
    UnexpectedOffset,
)
from kmirror.storage.filesystem import Buffer
from kmirror.storage.index import MAX_RELATIVE_OFFSET
from kmirror.storage.producer_state import AppendOrigin, Marker, PendingProducers
from kmirror.storage.segment import SEGMENT_SUFFIXES, Segment
from kmirror.storage.txn_index import AbortedTransaction
from kmirror.storage.validation import (
    Inspection,
    check_client_header,
    check_timestamps,
    indexes_where,
    single_batch,
    summarize,
)
from kmirror.storage.values import AppendResult, LogMode

if TYPE_CHECKING:
    from kmirror.storage.log import Log

_MARKER_HEAD = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
_MAX_PIECES = 512
"""Pieces of one writev; the system's limit is 1024."""


def append(
    log: Log,
    data: Buffer,
    *,
    origin: AppendOrigin,
    leader_epoch: int,
    now_ms: int,
    transaction_version: int,
    epoch_bumps: bool,
    inspection: Inspection | None = None,
) -> AppendResult:
    """See `Log.append`.

    Raises ReadOnlyLog (mode), the classes of `kmirror.storage.errors`, CorruptData (checksum, impossible lengths),
    DiskFull (cut back, try again when there is space) and DiskFailure (the log takes nothing more).
    """
    if log.failed is not None:
        raise DiskFailure(f"{log.directory} failed before: {log.failed}")
    try:
        if origin is AppendOrigin.CLIENT:
            return _append_client(log, data, leader_epoch, now_ms, epoch_bumps, inspection)
        if origin is AppendOrigin.REPLICATION:
            return _append_replicated(log, data, now_ms)
        return _append_coordinator(log, data, leader_epoch, now_ms, transaction_version)
    except DiskFull:
        _undo_gap(log)
        raise
    except DiskFailure as error:
        flush.mark_failed(log, error)
        raise


# --- CLIENT -----------------------------------------------------------------------------------------------------


def _append_client(
    log: Log, data: Buffer, leader_epoch: int, now_ms: int, epoch_bumps: bool, inspection: Inspection | None
) -> AppendResult:
    if log.mode is not LogMode.WRITABLE:
        raise ReadOnlyLog(f"{log.directory} is {log.mode.value}")
    header = single_batch(data)
    _check_size(log, header.size_bytes)
    check_crc(data, 0, header)
    check_client_header(header)
    batch, header = _validated(log, data, header, now_ms, inspection)
    base_offset = log.log_end_offset
    pending: PendingProducers | None = None
    if header.producer_id >= 0:
        entry = log.producers.entries.get(header.producer_id)
        duplicate = entry.duplicate_of(header) if entry is not None else None
        if duplicate is not None:
            return AppendResult(duplicate.first_offset, duplicate.last_offset, duplicate.timestamp, True, 1, 0)
        pending = log.producers.prepare(AppendOrigin.CLIENT, now_ms, epoch_bumps=epoch_bumps)
    append_time = log.config.message_timestamp_type == "LogAppendTime"
    if append_time:
        head = header_with_append_time(
            batch, 0, header, base_offset=base_offset, leader_epoch=leader_epoch, time_ms=now_ms
        )
        header = parse_header(head)
    else:
        head = header_with_offset_and_epoch(header, base_offset=base_offset, leader_epoch=leader_epoch)
    if pending is not None:
        pending.add(header, base_offset, None)
    size = header.size_bytes
    last_offset = base_offset + header.last_offset_delta
    segment = _segment_for(log, size, base_offset, last_offset, header.max_timestamp, now_ms)
    position = segment.file.append((head, memoryview(batch)[HEADER_SIZE_BYTES:size]))
    _note(log, segment, header, position, base_offset, leader_epoch)
    if pending is not None:
        _commit(log, pending, segment)
    else:
        log.producers.end_offset = log.log_end_offset
    return AppendResult(base_offset, last_offset, now_ms if append_time else -1, False, 1, size)


def _check_size(log: Log, size_bytes: int) -> None:
    config = log.config
    if size_bytes > config.max_message_bytes:
        raise RecordTooLarge(f"the batch has {size_bytes} bytes, max.message.bytes is {config.max_message_bytes}")
    if size_bytes > config.segment_bytes:
        raise RecordBatchTooLarge(f"the batch has {size_bytes} bytes, segment.bytes is {config.segment_bytes}")


def _validated(
    log: Log, data: Buffer, header: BatchHeader, now_ms: int, inspection: Inspection | None
) -> tuple[Buffer, BatchHeader]:
    """The batch as the topic wants it: usually the same bytes; rebuilt for another codec, for offset deltas that do
    not count (compressed only), or for a largest timestamp that the header does not tell. Kafka: LogValidator."""
    config = log.config
    summary = summarize(data, header) if inspection is None else inspection.result()
    keyless: tuple[int, ...] = ()
    if config.compact and summary.keyless_count:
        keyless = indexes_where(data, lambda record: record.key is None)
    create_time = config.message_timestamp_type != "LogAppendTime"
    if header.attributes & LOG_APPEND_TIME_BIT:
        if not create_time or header.max_timestamp == NO_TIMESTAMP:
            raise InvalidTimestamp(
                "a producer must not set the timestamp type LogAppendTime",
                record_indexes=tuple(range(header.record_count)),
            )
        data = without_append_time(data, header)  # Kafka: the topic's type replaces what the producer says
        header = parse_header(data)
        summary = summarize(data, header)
    if create_time:
        check_timestamps(
            data,
            summary,
            now_ms=now_ms,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
            keyless=keyless,
        )
    if keyless:
        raise InvalidRecord(
            f"{summary.keyless_count} records without a key; a compacted topic needs keys", record_indexes=keyless
        )
    codec = header.compression if config.compression_type == "producer" else _CODECS[config.compression_type]
    if (
        codec == header.compression
        and (summary.offsets_in_order or codec == Compression.NONE)
        and (not create_time or summary.max_timestamp == header.max_timestamp)
    ):
        return data, header
    if summary.min_timestamp < NO_TIMESTAMP or (header.producer_id >= 0 and header.producer_epoch < 0):
        if header.producer_epoch != NO_PRODUCER_EPOCH:  # of that one Kafka cannot even begin to build a batch
            log.producers.check_not_older(header)
        raise InvalidRecord(
            "negative times and producer epochs are taken as they come, but not when a batch is rebuilt"
        )
    records = read_records(data)
    for record in records:
        record.offset = -1
    batch = build_batch(
        records,
        compression=codec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        timestamp_ms=-1,
    )
    _check_size(log, len(batch))
    return batch, parse_header(batch)


# --- COORDINATOR ------------------------------------------------------------------------------------------------


def _append_coordinator(
    log: Log, data: Buffer, leader_epoch: int, now_ms: int, transaction_version: int
) -> AppendResult:
    if log.mode is LogMode.READ_ONLY:
        raise ReadOnlyLog(f"{log.directory} is {log.mode.value}")
    append_time = log.config.message_timestamp_type == "LogAppendTime"
    pending = log.producers.prepare(AppendOrigin.COORDINATOR, now_ms, transaction_version=transaction_version)
    offset = log.log_end_offset
    view = memoryview(data)
    pieces: list[Buffer] = []
    headers: list[BatchHeader] = []
    resets: list[int] = []
    for position, header in walk(data):
        _check_size(log, header.size_bytes)
        marker = marker_of(data, position, header)
        if log.mode is LogMode.SEALING and not _seals(marker):
            raise ReadOnlyLog(f"{log.directory} is being sealed: only ABORT markers and MIRROR_PID_RESET are let in")
        if log.mode is LogMode.DRAINING and not _ends(marker):
            raise ReadOnlyLog(f"{log.directory} is about to be aligned: only the ends of transactions are let in")
        pending.add(header, offset, marker)
        if append_time:
            head = header_with_append_time(
                data, position, header, base_offset=offset, leader_epoch=leader_epoch, time_ms=now_ms
            )
        else:
            head = header_with_offset_and_epoch(header, base_offset=offset, leader_epoch=leader_epoch)
        pieces += (head, view[position + HEADER_SIZE_BYTES : position + header.size_bytes])
        header = parse_header(head)
        headers.append(header)
        if marker is not None and marker.control_type == CONTROL_MIRROR_PID_RESET:
            resets.append(offset)
        offset = header.next_offset
    size = sum(header.size_bytes for header in headers)
    if not headers or size != len(data):
        raise InvalidRecord(f"{len(data)} bytes are not whole batches")
    first, last_offset = log.log_end_offset, offset - 1
    if len(pieces) > _MAX_PIECES:
        pieces = [b"".join(pieces)]
    segment = _segment_for(log, size, first, last_offset, max(h.max_timestamp for h in headers), now_ms)
    position = segment.file.append(pieces)
    for header in headers:
        _note(log, segment, header, position, header.base_offset, leader_epoch)
        position += header.size_bytes
    _remember_resets(log, resets)
    _commit(log, pending, segment)
    return AppendResult(first, last_offset, now_ms if append_time else -1, False, len(headers), size)


def _seals(marker: Marker | None) -> bool:
    return marker is not None and marker.control_type in (CONTROL_ABORT, CONTROL_MIRROR_PID_RESET)


def _ends(marker: Marker | None) -> bool:
    return marker is not None and marker.control_type in (CONTROL_ABORT, CONTROL_COMMIT)


def marker_of(data: Buffer, position: int, header: BatchHeader) -> Marker | None:
    """The control record of a control batch; None for data and for a batch emptied by compaction. CorruptData."""
    if not header.is_control or header.record_count == 0:
        return None
    at = position + HEADER_SIZE_BYTES
    # As every broker writes it: one-byte lengths and deltas, a four-byte key, for markers a six-byte value.
    plain = header.compression == 0 and header.size_bytes >= HEADER_SIZE_BYTES + 16 and data[at + 4] == 0x08
    if plain and data[at] < 0x80 and data[at + 2] < 0x80 and data[at + 3] < 0x80 and data[at + 9] == 0x0C:
        kind = _MARKER_HEAD.unpack_from(data, at + 5)[1]
        if kind in (CONTROL_ABORT, CONTROL_COMMIT):
            return Marker(kind, _MARKER_VALUE.unpack_from(data, at + 10)[1])
    kind = control_type(data, position)
    if kind is None:
        return None
    return Marker(kind, coordinator_epoch(data, position) if kind in (CONTROL_ABORT, CONTROL_COMMIT) else -1)


# --- REPLICATION ------------------------------------------------------------------------------------------------


def _append_replicated(log: Log, data: Buffer, now_ms: int) -> AppendResult:
    if log.mode is not LogMode.READ_ONLY:
        raise ReadOnlyLog(f"{log.directory} is {log.mode.value}: it takes no replicated batches")
    found = _check_replicated(log, data)
    first, last = found[0][1], found[-1][1]
    if first.base_offset < log.active.base_offset:
        _replace_empty(log, first.base_offset)  # the log begins inside this batch
    start = 0
    while start < len(found):
        start += _append_run(log, data, found, start, now_ms)
    size = found[-1][0] + last.size_bytes - found[0][0]
    return AppendResult(first.base_offset, last.last_offset, -1, False, len(found), size)


def _check_replicated(log: Log, data: Buffer) -> list[tuple[int, BatchHeader]]:
    found = list(walk(data))
    if not found:
        raise CorruptData(f"{len(data)} bytes hold no whole batch")
    expected, epoch = log.log_end_offset, log.last_leader_epoch
    for position, header in found:
        if header.base_offset < expected and not (position == 0 and _straddles_start(log, header)):
            raise UnexpectedOffset(f"batch at offset {header.base_offset}, the log goes on at {expected}")
        if header.magic == NEWEST_MAGIC and header.leader_epoch < epoch:
            raise UnexpectedEpoch(
                f"batch at offset {header.base_offset} has leader epoch {header.leader_epoch} behind epoch {epoch}"
            )
        check_crc(data, position, header)
        expected, epoch = header.next_offset, max(epoch, header.leader_epoch)
    return found


def _straddles_start(log: Log, header: BatchHeader) -> bool:
    """A log may begin inside a batch: the source's log start was moved there."""
    return log.log_start_offset == log.log_end_offset <= header.last_offset and log.size_bytes == 0


def _append_run(log: Log, data: Buffer, found: list[tuple[int, BatchHeader]], start: int, now_ms: int) -> int:
    """Write batches from `start` into one segment with one call; returns how many. All of them, save where a segment
    would grow beyond what Kafka's 32-bit positions and relative offsets can say: then the rest follows in the next.

    Each run is whole: should a later one fail, `log_end_offset` tells how far the log came.
    """
    first = found[start][1]
    begin = found[start][0]
    end = begin
    count = 0
    last_offset = first.last_offset
    max_timestamp = -1
    for position, header in found[start:]:
        size = header.size_bytes
        if count and (position + size - begin > log.config.segment_bytes or not _fits(log, first, header)):
            break
        end = position + size
        count += 1
        last_offset = header.last_offset
        max_timestamp = max(max_timestamp, header.max_timestamp)
    pending = log.producers.prepare(AppendOrigin.REPLICATION, now_ms)
    run = found[start : start + count]
    resets = []
    for position, header in run:
        if header.producer_id >= 0 or header.is_control:
            marker = marker_of(data, position, header)
            pending.add(header, header.base_offset, marker)
            if marker is not None and marker.control_type == CONTROL_MIRROR_PID_RESET:
                resets.append(header.base_offset)
    segment = _segment_for(log, end - begin, _next_base(log, first), last_offset, max_timestamp, now_ms)
    whole = begin == 0 and end == len(data)
    at = segment.file.append((data if whole else memoryview(data)[begin:end],))
    for _, header in run:
        _note(log, segment, header, at, header.base_offset, header.leader_epoch)
        at += header.size_bytes
    _remember_resets(log, resets)
    _commit(log, pending, segment)
    return count


def _fits(log: Log, first: BatchHeader, header: BatchHeader) -> bool:
    """May `header` be in the segment that takes `first`: the active one, or the next?"""
    active = log.active
    base_offset = active.base_offset if active.fits_offset(first.last_offset) else _next_base(log, first)
    return header.last_offset - base_offset <= MAX_RELATIVE_OFFSET


def _next_base(log: Log, first: BatchHeader) -> int:
    """Base of the segment that would begin with `first`: the log's end, if relative offsets reach that far.

    A segment that does not go on where the one before it ends is a sign of lost batches to recovery, which lets only
    those pass whose first batch could not have been in a segment that does.
    """
    if first.last_offset - log.log_end_offset <= MAX_RELATIVE_OFFSET:
        return log.log_end_offset
    if first.magic == NEWEST_MAGIC:
        return first.base_offset
    # A wrapper's header says its last offset only; when compaction rewrites it, the first one must not lie below.
    return max(log.log_end_offset, first.last_offset - MAX_RELATIVE_OFFSET // 2)


# --- common -----------------------------------------------------------------------------------------------------


def _note(log: Log, segment: Segment, header: BatchHeader, position: int, base_offset: int, leader_epoch: int) -> None:
    """A batch is written: everything that is derived from its header."""
    last_offset = base_offset + header.last_offset_delta
    segment.note(last_offset, position, header.length + 12, header.max_timestamp)
    if leader_epoch != log.epochs.latest:
        log.epochs.assign(leader_epoch, base_offset)
    if leader_epoch >= 0:  # message sets of magic 0 and 1 have none
        log.last_leader_epoch = leader_epoch
    log.log_end_offset = last_offset + 1
    if header.producer_id > log.max_producer_id:
        log.max_producer_id = header.producer_id
        log.unsynced.facts = True


def _remember_resets(log: Log, offsets: list[int]) -> None:
    if offsets:
        log.pid_reset_offsets += offsets
        log.unsynced.facts = True


def _commit(log: Log, pending: PendingProducers, segment: Segment) -> None:
    for completed in pending.commit(log.log_end_offset):
        if completed.aborted:
            segment.txn_index.entries.append(
                AbortedTransaction(
                    completed.producer_id,
                    completed.first_offset,
                    completed.last_offset,
                    completed.last_stable_offset,
                )
            )


def _segment_for(
    log: Log, size_bytes: int, next_base: int, last_offset: int, max_timestamp: int, now_ms: int
) -> Segment:
    """The active segment, or a new one at `next_base` when it must not take these bytes. Kafka: shouldRoll."""
    segment, config = log.segments[-1], log.config
    fits = segment.fits_offset(last_offset)
    if segment.size_bytes == 0 and fits:
        return segment
    if (
        not fits
        or segment.size_bytes + size_bytes > config.segment_bytes
        or segment.offset_index.is_full
        or segment.time_index.is_full
        or _waited_ms(segment, max_timestamp, now_ms) > config.segment_ms
    ):
        return roll(log, next_base)
    return segment


def _waited_ms(segment: Segment, max_timestamp: int, now_ms: int) -> int:
    first = segment.first_timestamp
    if first is None:
        first = segment.first_batch_timestamp()
    if first is not None and first >= 0:
        return max_timestamp - first
    return now_ms - segment.created_ms


def new_segment(log: Log, base_offset: int) -> Segment:
    segment = Segment(
        log.fs,
        log.directory,
        base_offset,
        index_bytes=log.config.segment_index_bytes,
        index_interval_bytes=log.config.index_interval_bytes,
        created_ms=log.clock.time_ms(),
    )
    segment.sync_follows = log.config.flush_messages <= 1
    return segment


def roll(log: Log, base_offset: int) -> Segment:
    """Seal the active segment and begin the next. Raises DiskFull (nothing is rolled then).

    Behind a gap that a segment cannot bridge the old one is synced at once: see `_next_base`.
    """
    old = log.active
    if base_offset != log.log_end_offset:
        old.file.sync()
    paths = old.seal()
    paths.append(flush.write_snapshot(log, base_offset))
    segment = new_segment(log, base_offset)
    segment.create()
    old.rest()
    log.segments.append(segment)
    if not old.synced:
        log.unsynced.files.append(old.file)
    log.unsynced.paths += paths
    log.unsynced.directory = True
    log.unsynced.facts = True
    return segment


def _undo_gap(log: Log) -> None:
    """The disk was full when a log had rolled over a gap too wide to bridge: without a batch behind it the gap is not
    part of the log, and a segment beyond the log's end must not stay."""
    segment = log.active
    if segment.base_offset > log.log_end_offset and len(log.segments) > 1:
        log.segments.pop()
        segment.close()
        log.fs.remove(segment.path())
        log.fs.remove(log.snapshot_path(segment.base_offset))


def _replace_empty(log: Log, base_offset: int) -> None:
    """The segment of an empty log makes room for one with a lower base."""
    old = log.segments[-1]
    log.before_removal()
    # An empty log counts as flushed up to its start, but not what is about to be written from below it on.
    log.cut_offset = base_offset if log.cut_offset < 0 else min(log.cut_offset, base_offset)
    flush.write_facts(log, [])
    segment = new_segment(log, base_offset)
    segment.create()
    log.segments[-1] = segment
    old.close()
    for suffix in SEGMENT_SUFFIXES:
        log.fs.remove(old.path(suffix))
    log.unsynced.directory = log.unsynced.facts = True
