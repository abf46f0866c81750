"""What Kafka checks of a client's batch before it goes into a log. L2 storage. Kafka: LogValidator, DefaultRecord.

Kafka reads the structure of every record of a client's append, also of compressed ones (after decompression), and
answers INVALID_RECORD when lengths or counts do not fit; it does not read keys, values or offset deltas. `walk_records`
does the same with as little Python as possible: it hops from length to length, copies nothing and builds no objects.
Replicated batches are never checked this way.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from kmirror.errors import CorruptData
from kmirror.limits import MAX_DECOMPRESSED_BYTES, RECORD_SHAPES_REMEMBERED, RECORDS_PER_MATCH
from kmirror.protocol.compression import ExpandsTooFar
from kmirror.protocol.records import (
    CODEC_MASK,
    HEADER_SIZE_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC_POSITION,
    NEWEST_MAGIC,
    NO_TIMESTAMP,
    SMALLEST_LENGTH,
    BatchHeader,
    Buffer,
    Record,
    parse_header,
    read_records,
    read_varint,
    records_payload,
    write_varint,
)
from kmirror.storage.errors import InvalidRecord, InvalidTimestamp, NotOneBatch

_OFFSET_AND_LENGTH = struct.Struct(">qi")
_INT32 = struct.Struct(">i")
_LAST_DELTA_AT, _COUNT_AT = 23, 57
_SMALLEST_OLD_LENGTH = 14
"""Of a message of magic 0: what Kafka's reader asks of anything that announces a length (ByteBufferLogInputStream)."""
_SHORTEST_RUN = 8
"""Below it two expressions are not worth their start."""
_ALIKE_BEFORE_A_RUN = 3
"""Records of one length in a row before an expression is made for them: that takes a millisecond, so luck must not."""
_HOPS_BEFORE_A_COPY = 64
_THREE_BYTES = 1 << 14
"""The least value whose varint has more than two bytes."""


class RecordSummary(NamedTuple):
    """What the walk learns. Timestamps are -1 in a batch whose records all have none."""

    min_timestamp: int
    max_timestamp: int
    keyless_count: int
    offsets_in_order: bool


def single_batch(data: Buffer) -> BatchHeader:
    """The one batch of a client's append; an incomplete second one behind it is ignored, as Kafka trims it.

    Raises NotOneBatch for none, more than one, or an old message format; CorruptData for an impossible length;
    InvalidRecord for a base offset, which is looked at before anything else of the batch (UnifiedLog.append).
    """
    size = len(data)
    if size <= LENGTH_PREFIX_BYTES + 4:
        raise NotOneBatch("the records of a partition must be exactly one record batch, not none")
    base_offset, length = _OFFSET_AND_LENGTH.unpack_from(data, 0)
    end = length + LENGTH_PREFIX_BYTES
    if end > size and data[MAGIC_POSITION] <= NEWEST_MAGIC:
        raise NotOneBatch(f"the record batch announces {end} bytes, {size} came")
    if length >= SMALLEST_LENGTH and data[MAGIC_POSITION] == NEWEST_MAGIC:
        _check_behind(data, end)
        if base_offset != 0:
            raise InvalidRecord(f"the base offset of a produced batch must be 0, it is {base_offset}")
        (delta,), (count,) = _INT32.unpack_from(data, _LAST_DELTA_AT), _INT32.unpack_from(data, _COUNT_AT)
        if delta < 0 or count < 0:
            raise InvalidRecord(f"the batch has {count} records and a last offset delta of {delta}")
    if data[MAGIC_POSITION] < NEWEST_MAGIC:
        magic = data[MAGIC_POSITION]
        raise NotOneBatch(f"a message set of magic {magic}: produce record batches of magic {NEWEST_MAGIC}")
    return parse_header(data)


def _check_behind(data: Buffer, end: int) -> None:
    """What lies behind the first batch: nothing, or too little to be one. Raises NotOneBatch, CorruptData."""
    left = len(data) - end
    if left < LENGTH_PREFIX_BYTES:
        return
    length = _OFFSET_AND_LENGTH.unpack_from(data, end)[1]
    if length < _SMALLEST_OLD_LENGTH:
        raise CorruptData(f"a batch of length {length} behind the first one")
    if left > MAGIC_POSITION and data[end + MAGIC_POSITION] > NEWEST_MAGIC:
        raise CorruptData(f"a batch of magic {data[end + MAGIC_POSITION]} behind the first one")
    if length + LENGTH_PREFIX_BYTES <= left:
        raise NotOneBatch("the records of a partition must be exactly one record batch, not several")


def check_client_header(header: BatchHeader) -> None:
    """UnifiedLog.analyzeAndValidateRecords and LogValidator.validateBatch for origin CLIENT. Raises InvalidRecord."""
    if header.record_count <= 0:
        raise InvalidRecord(f"the batch has a record count of {header.record_count}")
    if header.last_offset_delta + 1 != header.record_count:
        raise InvalidRecord(
            f"the batch has {header.record_count} records, but its last offset delta is {header.last_offset_delta}"
        )
    if header.is_control:
        raise InvalidRecord("clients are not allowed to write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecord(f"producer {header.producer_id} sent a batch with base sequence {header.base_sequence}")


class Inspection(NamedTuple):
    """What `summarize` says of a batch, found out before the append: the summary, or why the batch is refused."""

    summary: RecordSummary | None
    refusal: str

    def result(self) -> RecordSummary:
        """Raises InvalidRecord."""
        if self.summary is None:
            raise InvalidRecord(self.refusal)
        return self.summary


def inspect(data: Buffer, *, limit_bytes: int = MAX_DECOMPRESSED_BYTES) -> Inspection | None:
    """`summarize` for a batch that nothing is known of yet; None when it is none (the append says why). Any thread.

    Raises ExpandsTooFar below the greatest limit.
    """
    try:
        header = parse_header(data)
    except CorruptData:
        return None
    if header.magic != NEWEST_MAGIC or header.size_bytes > len(data):
        return None
    try:
        return Inspection(summarize(data, header, limit_bytes=limit_bytes), "")
    except InvalidRecord as error:
        return Inspection(None, str(error))


def summarize(data: Buffer, header: BatchHeader, *, limit_bytes: int = MAX_DECOMPRESSED_BYTES) -> RecordSummary:
    """Check the structure of the records of the batch at the start of `data`. Raises InvalidRecord, and ExpandsTooFar
    below the greatest limit."""
    compressed = header.attributes & CODEC_MASK != 0
    if compressed:
        try:
            payload = records_payload(data, 0, header, limit_bytes=limit_bytes)
        except CorruptData as error:
            if isinstance(error, ExpandsTooFar) and limit_bytes < MAX_DECOMPRESSED_BYTES:
                raise
            raise InvalidRecord(f"the records cannot be decompressed: {error}") from None
    else:
        payload = memoryview(data)[HEADER_SIZE_BYTES : header.length + LENGTH_PREFIX_BYTES]
    try:
        return walk_records(payload, header.record_count, header.base_timestamp, check_offsets=compressed)
    except (IndexError, CorruptData):
        raise InvalidRecord("found invalid record structure: the batch ends inside a record") from None


def walk_records(payload: Buffer, count: int, base_timestamp: int, *, check_offsets: bool) -> RecordSummary:
    """Hop through `count` records that must fill `payload` exactly. Raises InvalidRecord, IndexError, CorruptData.

    `check_offsets`: whether the summary must say if the offset deltas count from 0 (it costs; only then it is right).
    Records of one shape in a row (same lengths everywhere: what most producers send most of the time) are matched by
    one regular expression. Others are hopped over here, as long as each number has one byte or two; `_hop` takes the
    rest, and whatever looks wrong.
    """
    data = payload
    at = index = keyless_count = alike = hops = length = 0
    in_order = True
    deltas: set[int] = set()  # of the timestamps, zigzag
    while index < count:
        start = at
        # Of a varint low byte plus 128 * (high - 1) are its two bytes; with a third, high makes that 16,384 or more.
        size, at = data[at], at + 1
        if size >= 0x80:
            size += (data[at] - 1) << 7
            at += 1
        end = at + (size >> 1)
        delta = data[at + 1]  # behind the attributes
        at += 2
        if delta >= 0x80:
            delta += (data[at] - 1) << 7
            at += 1
        offset, at = data[at], at + 1
        if offset >= 0x80:
            offset += (data[at] - 1) << 7
            at += 1
        key, at = data[at], at + 1
        if key >= 0x80:
            key += (data[at] - 1) << 7
            at += 1
        if not key & 1:  # odd is negative, which is null
            at += key >> 1
        value = data[at] if at < end else _THREE_BYTES
        at += 1
        if value >= 0x80:
            value += (data[at] - 1) << 7 if at < end else _THREE_BYTES
            at += 1
        if not value & 1:
            at += value >> 1
        if size & 1 or (size | delta | offset | key | value) >= _THREE_BYTES:
            at, delta, offset, key = _hop(data, start, index)
        elif at + 1 == end and not data[at]:
            at = end
        else:
            at = _past_headers(data, at, end, index)
        deltas.add(delta)
        keyless_count += key & 1
        if offset != index << 1:
            in_order = False
        index += 1
        if at - start != length:
            length, alike, hops = at - start, 0, hops + 1
            if hops == _HOPS_BEFORE_A_COPY:
                data = bytes(payload)  # indexing it is faster than indexing a view, in the long run by more than this
            continue
        alike += 1
        if alike >= _ALIKE_BEFORE_A_RUN and count - index >= _SHORTEST_RUN:
            alike = 0
            run, counts_on = _run_like(data, start, length, index, count, deltas, check_offsets and in_order)
            in_order = in_order and counts_on
            at += run * length
            index += run
            keyless_count += run * (key & 1)
    if at != len(data):
        raise InvalidRecord(f"{len(data) - at} bytes are left behind the {count} records of the batch")
    times = [base_timestamp + ((delta >> 1) ^ -(delta & 1)) for delta in deltas]
    return RecordSummary(min(times, default=-1), max(times, default=-1), keyless_count, in_order)


def _run_like(
    data: Buffer, start: int, length: int, index: int, count: int, deltas: set[int], check_offsets: bool
) -> tuple[int, bool]:
    """How many records behind the one at `start` have its shape, and whether their offset deltas count on from
    `index` (True when nobody asks)."""
    shape = _shape_at(data, start, length)
    if shape is None:
        return 0, True
    at = start + length
    run = _match_run(data, at, length, shape, min(count - index, RECORDS_PER_MATCH), deltas)
    if not run or not check_offsets:
        return run, True
    return run, _offsets_count_on(data, at, at + run * length, shape, index, run)


def _past_headers(data: Buffer, at: int, end: int, index: int) -> int:
    at = _skip_headers(data, at, end, index)
    if at != end or end > len(data):
        raise InvalidRecord(f"record {index} does not fill its bytes")
    return at


def _hop(data: Buffer, at: int, index: int) -> tuple[int, int, int, int]:
    """One record of any form: its end; timestamp delta, offset delta and key size, all zigzag. Raises as the walk."""
    size, at = _varint(data, at)
    end = at + size
    if size < 0 or end > len(data):
        raise InvalidRecord(f"record {index} announces {size} bytes, {len(data) - at} are left in the batch")
    delta, at = _varint(data, at + 1)  # behind the attributes
    offset, at = _varint(data, at)
    key_size, at = _varint(data, at)
    at += max(0, key_size)
    value_size, at = _varint(data, at)
    at += max(0, value_size)
    at = at + 1 if data[at] == 0 else _skip_headers(data, at, end, index)
    if at != end:
        raise InvalidRecord(f"record {index} does not fill its {size} bytes")
    return end, _zigzag(delta), _zigzag(offset), _zigzag(key_size)


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _shape_at(data: Buffer, at: int, length: int) -> _Shape | None:
    """The shape of a record that was found right; None when it has headers."""
    start = at
    size, at = _varint(data, at)
    _, offset_at = _varint(data, at + 1)
    _, key_at = _varint(data, offset_at)
    key_size, value_at = _varint(data, key_at)
    value_size, end = _varint(data, value_at + max(0, key_size))
    if end + max(0, value_size) + 1 != start + length:
        return None
    return size, offset_at - at - 1, key_at - offset_at, key_size, value_size


def _varint(payload: Buffer, at: int) -> tuple[int, int]:
    """`read_varint` with the two shortest forms in line: they are nearly all there are."""
    low = payload[at]
    if low < 0x80:
        return (low >> 1) ^ -(low & 1), at + 1
    high = payload[at + 1]
    if high < 0x80:
        low = low & 0x7F | high << 7
        return (low >> 1) ^ -(low & 1), at + 2
    return read_varint(payload, at)


_Shape = tuple[int, int, int, int, int]
"""Record size, bytes of the timestamp and offset deltas, key size, value size; no headers."""


class _Patterns(NamedTuple):
    run: re.Pattern[bytes]
    timestamps: re.Pattern[bytes]
    offsets: re.Pattern[bytes]


@lru_cache(maxsize=RECORD_SHAPES_REMEMBERED)
def _patterns(shape: _Shape) -> _Patterns:
    """One expression that matches a run of such records, two that take a delta out of each."""
    size, time_bytes, offset_bytes, key_size, value_size = shape
    head = _literal_varint(size) + b"."
    times, offsets = (b"[\x80-\xff]{%d}[\x00-\x7f]" % (size - 1) for size in (time_bytes, offset_bytes))
    tail = _literal_varint(key_size) + b".{%d}" % max(0, key_size)
    tail += _literal_varint(value_size) + b".{%d}" % max(0, value_size) + b"\\x00"
    return _Patterns(
        re.compile(b"(?:" + head + times + offsets + tail + b")*", re.DOTALL),
        re.compile(head + b"(" + times + b")" + offsets + tail, re.DOTALL),
        re.compile(head + times + b"(" + offsets + b")" + tail, re.DOTALL),
    )


def _literal_varint(value: int) -> bytes:
    out = bytearray()
    write_varint(value, out)
    return re.escape(bytes(out))


def _match_run(payload: Buffer, at: int, record_bytes: int, shape: _Shape, limit: int, deltas: set[int]) -> int:
    """How many of the next `limit` records have this shape. Adds their timestamp deltas to `deltas`."""
    patterns = _patterns(shape)
    match = patterns.run.match(payload, at, min(len(payload), at + limit * record_bytes))
    end = at if match is None else match.end()
    run = (end - at) // record_bytes
    for delta in set(patterns.timestamps.findall(payload, at, end)):
        deltas.add(_zigzag(_varint(delta, 0)[0]))
    return run


def _offsets_count_on(payload: Buffer, at: int, end: int, shape: _Shape, index: int, count: int) -> bool:
    expected = bytearray()
    for offset in range(index, index + count):
        write_varint(offset, expected)
    return b"".join(_patterns(shape).offsets.findall(payload, at, end)) == expected


def _skip_headers(payload: Buffer, at: int, end: int, index: int) -> int:
    count, at = read_varint(payload, at)
    if count < 0 or count > end - at:
        raise InvalidRecord(f"record {index} announces {count} headers")
    for _ in range(count):
        size, at = read_varint(payload, at)
        if size < 0:
            raise InvalidRecord(f"record {index} has a header key of negative size")
        at += size
        size, at = read_varint(payload, at)
        if size > 0:
            at += size
        if at > end:
            raise InvalidRecord(f"record {index} has a header that ends beyond it")
    return at


def check_timestamps(
    data: Buffer,
    summary: RecordSummary,
    *,
    now_ms: int,
    before_max_ms: int,
    after_max_ms: int,
    keyless: tuple[int, ...] = (),
) -> None:
    """LogValidator.validateTimestamp for CreateTime; records without a timestamp (-1) pass. Raises InvalidTimestamp.

    `keyless`: records that are refused already, whose times do not matter; a wrong time of another one decides what
    the answer is called.
    """
    low, high = summary.min_timestamp, summary.max_timestamp
    earliest, latest = now_ms - before_max_ms, now_ms + after_max_ms
    if earliest <= low and high <= latest:
        return
    bad = indexes_where(
        data, lambda record: record.timestamp != NO_TIMESTAMP and not earliest <= record.timestamp <= latest
    )
    if set(keyless).issuperset(bad):  # none is, when it was a -1 that lies outside
        return
    raise InvalidTimestamp(
        f"timestamps {low} to {high} are not all within [{earliest}, {latest}] "
        "(message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
        record_indexes=tuple(sorted({*bad, *keyless})),
    )


def indexes_where(data: Buffer, to_blame: Callable[[Record], bool]) -> tuple[int, ...]:
    """Which records of the batch a refusal is about. Only ever called for a batch that is refused, or may be."""
    return tuple(index for index, record in enumerate(read_records(data)) if to_blame(record))
