"""Reading a log: batches for Fetch, aborted transactions, lookups by time. L2 storage. Kafka: LocalLog.read and others.

A read hands out slices of files, not bytes. It returns whole batches only: the first whose last offset is not below
the asked one, looked for in later segments when a segment ends in a gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kmirror.errors import OffsetOutOfRange
from kmirror.limits import MAX_SLICES_PER_READ
from kmirror.protocol.records import NO_TIMESTAMP, BatchHeader, read_records
from kmirror.slices import FileSlice
from kmirror.storage.segment import Segment
from kmirror.storage.txn_index import AbortedTransaction
from kmirror.storage.values import LogRead, TimestampOffset

if TYPE_CHECKING:
    from kmirror.storage.log import Log


def read(log: Log, offset: int, *, max_bytes: int, limit_offset: int, at_least_one: bool) -> LogRead:
    """See `Log.read`."""
    if not log.log_start_offset <= offset <= log.log_end_offset:
        raise OffsetOutOfRange(
            f"offset {offset} is outside [{log.log_start_offset}, {log.log_end_offset}] of {log.directory}"
        )
    result = LogRead([], 0, offset)
    limit_offset = min(limit_offset, log.log_end_offset)
    if offset >= limit_offset:
        return result
    budget = max(0, max_bytes)
    for segment in log.segments[log.segment_index(offset) :]:
        if segment.base_offset >= limit_offset or len(result.slices) == MAX_SLICES_PER_READ:
            break
        if not segment.size_bytes:
            continue
        ended = _read_segment(log, segment, result, budget, limit_offset, at_least_one and not result.slices)
        if ended:
            break
        budget = max_bytes - result.size_bytes
    return result


def _read_segment(
    log: Log, segment: Segment, result: LogRead, budget: int, limit_offset: int, at_least_one: bool
) -> bool:
    """Add what `segment` has. True when the read ends here: budget or limit reached."""
    found = segment.position_of(result.next_offset)
    if found is None:
        return False
    start, first_size = found
    readable_end = segment.size_bytes
    if limit_offset < segment.next_offset:
        beyond = segment.position_of(limit_offset)
        readable_end = readable_end if beyond is None else beyond[0]
    if readable_end <= start:
        return True
    if budget < first_size:
        if not at_least_one:
            return True
        end = start + first_size
    elif start + budget >= readable_end:
        end = readable_end
    else:
        end = segment.boundary_at(start + budget, start + first_size)
    result.slices.append(FileSlice(segment.file, start, end - start, log, log.generation))
    result.size_bytes += end - start
    result.next_offset = segment.next_offset_at(end)
    return end < segment.size_bytes


def aborted_transactions(log: Log, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
    """See `Log.aborted_transactions`. Kafka: LocalLog.collectAbortedTransactions."""
    found: list[AbortedTransaction] = []
    for segment in log.segments[log.segment_index(first_offset) :]:
        if segment.txn_index.collect(first_offset, end_offset, found):
            break
    return found


def batches(log: Log, first_offset: int, end_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """See `Log.batches`."""
    for segment in log.segments[log.segment_index(first_offset) :]:
        found = segment.position_of(first_offset)
        if found is None:
            continue
        for _, header, data in segment.batches(found[0]):
            if header.base_offset >= end_offset:
                return
            yield header, data


def offset_for_timestamp(log: Log, timestamp_ms: int, limit_offset: int) -> TimestampOffset | None:
    """See `Log.offset_for_timestamp`. Kafka: UnifiedLog.fetchOffsetByTimestamp, LogSegment.findOffsetByTimestamp."""
    for segment in log.segments:
        if segment.next_offset <= log.log_start_offset or segment.max_timestamp[0] < timestamp_ms:
            continue
        found = _first_in_segment(log, segment, timestamp_ms)
        if found is not None:
            return found if found.offset < limit_offset else None
    return None


def _first_in_segment(log: Log, segment: Segment, timestamp_ms: int) -> TimestampOffset | None:
    start = max(segment.time_index.offset_for(timestamp_ms), log.log_start_offset)
    found = segment.position_of(start)
    if found is None:
        return None
    for position, header in segment.headers(found[0]):
        if header.max_timestamp < timestamp_ms or header.last_offset < log.log_start_offset:
            continue
        for record in read_records(segment.file.pread(header.size_bytes, position)):
            if record.timestamp >= timestamp_ms and record.offset >= log.log_start_offset:
                return TimestampOffset(record.offset, record.timestamp, header.leader_epoch)
    return None


def max_timestamp_offset(log: Log, limit_offset: int) -> TimestampOffset | None:
    """See `Log.max_timestamp_offset`. Kafka: UnifiedLog.fetchOffsetByTimestamp for MAX_TIMESTAMP."""
    best: Segment | None = None
    for segment in log.segments:
        if segment.size_bytes and (best is None or segment.max_timestamp[0] > best.max_timestamp[0]):
            best = segment
    if best is None:
        return None
    if best.max_timestamp[0] < 0:  # no record has a time: the first one, as in Kafka
        return _first_with(best, NO_TIMESTAMP, best.base_offset, limit_offset)
    return _first_with(best, best.max_timestamp[0], best.max_timestamp[1], limit_offset)


def _first_with(segment: Segment, timestamp: int, last_offset: int, limit_offset: int) -> TimestampOffset | None:
    found = segment.position_of(last_offset)
    if found is None:
        return None
    for position, header in segment.headers(found[0]):
        if header.max_timestamp != timestamp:
            continue
        records = read_records(segment.file.pread(header.size_bytes, position))
        offset = next((record.offset for record in records if record.timestamp == timestamp), header.last_offset)
        return TimestampOffset(offset, timestamp, header.leader_epoch) if offset < limit_offset else None
    return None
