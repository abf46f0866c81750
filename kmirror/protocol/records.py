"""Record batches: headers, checksums, records, control batches. Magic 2; what is older is read by `old_records`.

What may live here: everything that can be said about the bytes of a batch without knowing which log they are in.
`storage` imports this module and nothing else of `protocol` but `compression`.

The first 61 bytes say all that a broker needs (offsets, epochs, producer, count); the hot paths read those and never
look at records. The checksum starts behind the leader epoch, so that a broker can assign base offset and leader epoch
without computing it again. Layout: Kafka's DefaultRecordBatch and DefaultRecord.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from kmirror.errors import CorruptData
from kmirror.limits import MAX_DECOMPRESSED_BYTES, MAX_VARLONG_BYTES
from kmirror.protocol.checksum import crc32c
from kmirror.protocol.compression import Compression, compress, expand
from kmirror.protocol.old_records import OLD_CRC_START, old_crc, old_header, read_old_records

Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_INT16_PAIR = struct.Struct(">hh")
_CONTROL_VALUE = struct.Struct(">hi")

HEADER_SIZE_BYTES = _HEADER.size
"""61: base offset 8, length 4, leader epoch 4, magic 1, crc 4, attributes 2, deltas, timestamps, producer, count."""
LENGTH_PREFIX_BYTES = 12
"""Base offset and length: not counted by the length field."""
NEWEST_MAGIC = 2
MAGIC_POSITION = 16
CRC_POSITION = 17
CRC_START = 21
"""The checksum covers everything from the attributes on."""
SMALLEST_LENGTH = HEADER_SIZE_BYTES - LENGTH_PREFIX_BYTES

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
KNOWN_ATTRIBUTES = 0x7F
"""Others are stored as they came, and lost where a broker writes the attributes anew (DefaultRecordBatch)."""
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
MAX_SEQUENCE = 2**31 - 1

CONTROL_ABORT = 0
CONTROL_COMMIT = 1
CONTROL_MIRROR_PID_RESET = 7
"""KIP-1279, see `kmirror.protocol.mirror_numbers`."""


class BatchHeader(NamedTuple):
    """The 61 bytes at the head of a batch, in wire order."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch, its first 12 bytes included."""
        return self.length + LENGTH_PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """Set by the cleaner: the base timestamp field then holds it (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, wrapping behind 2^31-1 to 0; -1 without a base sequence."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)


def increment_sequence(sequence: int, increment: int) -> int:
    """DefaultRecordBatch.incrementSequence: sequences count from 0 again after 2^31-1."""
    return (sequence + increment) & MAX_SEQUENCE


def parse_header(data: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, of a message of magic 0 or 1 too. Raises CorruptData when there cannot be a batch.

    Only the header must be there; whether the whole batch is, is the caller's question.
    """
    if len(data) - position > MAGIC_POSITION and data[position + MAGIC_POSITION] != NEWEST_MAGIC:
        magic = data[position + MAGIC_POSITION]
        if magic in (0, 1):
            return old_header(data, position)
        raise CorruptData(f"unknown magic {magic} at byte {position}")
    if len(data) - position < HEADER_SIZE_BYTES:
        raise CorruptData(f"{len(data) - position} bytes at byte {position} are too few for a batch header")
    header = BatchHeader._make(_HEADER.unpack_from(data, position))
    if header.length < SMALLEST_LENGTH:
        raise CorruptData(f"batch length {header.length} at byte {position} is below {SMALLEST_LENGTH}")
    if header.last_offset_delta < 0 or header.record_count < 0 or header.base_offset < 0:
        raise CorruptData(
            f"batch at byte {position} has base offset {header.base_offset}, last offset delta "
            f"{header.last_offset_delta} and {header.record_count} records"
        )
    return header


def walk(data: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each complete batch. A cut-off tail, as Fetch answers have it, ends the walk.

    Raises CorruptData at the first batch that is none.
    """
    end = len(data)
    while end - position >= LENGTH_PREFIX_BYTES:
        _, length = _OFFSET_AND_LENGTH.unpack_from(data, position)
        if length < SMALLEST_LENGTH and not (length >= 0 and _is_old_message(data, position)):
            raise CorruptData(f"batch length {length} at byte {position} is below {SMALLEST_LENGTH}")
        if position + LENGTH_PREFIX_BYTES + length > end:
            return
        yield position, parse_header(data, position)
        position += LENGTH_PREFIX_BYTES + length


def _is_old_message(data: Buffer, position: int) -> bool:
    return len(data) > position + MAGIC_POSITION and data[position + MAGIC_POSITION] in (0, 1)


def check_crc(data: Buffer, position: int, header: BatchHeader) -> None:
    """Raises CorruptData when the batch is not all there or its checksum (CRC-32C; CRC-32 below magic 2) is not the
    header's."""
    end = position + header.length + LENGTH_PREFIX_BYTES
    if end > len(data):
        raise CorruptData(f"batch at offset {header.base_offset} is cut short: {end - len(data)} bytes are missing")
    if header.magic == NEWEST_MAGIC:
        computed = crc32c(memoryview(data)[position + CRC_START : end])
    else:
        computed = old_crc(data, position, header.size_bytes)
    _compare_crc(header, computed)


def check_crc_in_pieces(pieces: Iterable[Buffer], header: BatchHeader) -> None:
    """`check_crc` for a batch too large to be in memory at once: `pieces` are its bytes, the header in the first."""
    checksum, skip = (crc32c, CRC_START) if header.magic == NEWEST_MAGIC else (crc32, OLD_CRC_START)
    computed = 0
    for piece in pieces:
        computed = checksum(memoryview(piece)[skip:], computed)
        skip = 0
    _compare_crc(header, computed)


def _compare_crc(header: BatchHeader, computed: int) -> None:
    if computed != header.crc:
        raise CorruptData(
            f"batch at offset {header.base_offset} has checksum {computed:#010x}, its header says {header.crc:#010x}"
        )


def header_with_offset_and_epoch(header: BatchHeader, *, base_offset: int, leader_epoch: int) -> bytes:
    """The 61 bytes again, with what the broker assigns. Both fields lie outside the checksum."""
    return _HEADER.pack(base_offset, header.length, leader_epoch, *header[3:])


def header_with_append_time(
    data: Buffer, position: int, header: BatchHeader, *, base_offset: int, leader_epoch: int, time_ms: int
) -> bytes:
    """As `header_with_offset_and_epoch` for a LogAppendTime topic: the broker's time for all records, checksum anew."""
    attributes = header.attributes & KNOWN_ATTRIBUTES | LOG_APPEND_TIME_BIT
    fields = header._replace(
        base_offset=base_offset, leader_epoch=leader_epoch, attributes=attributes, max_timestamp=time_ms
    )
    packed = _HEADER.pack(*fields)
    records = memoryview(data)[position + HEADER_SIZE_BYTES : position + header.size_bytes]
    crc = crc32c(records, crc32c(packed[CRC_START:]))
    return _HEADER.pack(*fields._replace(crc=crc))


def without_append_time(data: Buffer, header: BatchHeader) -> bytes:
    """The batch at the start of `data` with the timestamp type CreateTime, checksum anew."""
    fields = header._replace(attributes=header.attributes & KNOWN_ATTRIBUTES & ~LOG_APPEND_TIME_BIT)
    records = memoryview(data)[HEADER_SIZE_BYTES : header.size_bytes]
    crc = crc32c(records, crc32c(_HEADER.pack(*fields)[CRC_START:]))
    return _HEADER.pack(*fields._replace(crc=crc)) + bytes(records)


# --- records ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Record:
    """One record. `offset` and `timestamp` are absolute; the header keys are text, values may be None."""

    key: bytes | None = None
    value: bytes | None = None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    offset: int = -1
    timestamp: int = NO_TIMESTAMP


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """A zigzag varint of up to 64 bits and the position behind it. Raises CorruptData at the end or when too long."""
    raw = 0
    shift = 0
    try:
        while True:
            byte = data[position]
            position += 1
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (raw >> 1) ^ -(raw & 1), position
            shift += 7
            if shift >= 7 * MAX_VARLONG_BYTES:
                raise CorruptData("varint is longer than 10 bytes")
    except IndexError:
        raise CorruptData("records end inside a varint") from None


def write_varint(value: int, out: bytearray) -> None:
    """Append `value` as a zigzag varint (64 bits)."""
    raw = (value << 1) ^ (value >> 63)
    raw &= 0xFFFF_FFFF_FFFF_FFFF
    while raw > 0x7F:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)


def records_payload(
    data: Buffer, position: int, header: BatchHeader, *, limit_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Buffer:
    """The records of one batch, decompressed: a view when they are stored plain. Raises CorruptData, ExpandsTooFar."""
    view = memoryview(data)[position + HEADER_SIZE_BYTES : position + header.size_bytes]
    if header.compression == Compression.NONE:
        return view
    if header.record_count == 0 and not view:
        return b""  # emptied by compaction
    return expand(header.compression, view, limit_bytes=limit_bytes)


def read_records(data: Buffer, position: int = 0) -> list[Record]:
    """All records of the batch at `position`. Raises CorruptData when count, lengths or compression do not fit."""
    header = parse_header(data, position)
    if header.magic != NEWEST_MAGIC:
        return read_old_records(data, position, header)
    payload = records_payload(data, position, header)
    records: list[Record] = []
    at = 0
    for _ in range(header.record_count):
        record, at = _read_record(payload, at, header)
        records.append(record)
    if at != len(payload):
        raise CorruptData(f"{len(payload) - at} bytes are left behind the last record of offset {header.base_offset}")
    return records


def _read_record(payload: Buffer, at: int, header: BatchHeader) -> tuple[Record, int]:
    size, at = read_varint(payload, at)
    end = at + size
    if size < 0 or end > len(payload):
        raise CorruptData(f"a record of offset {header.base_offset} ends beyond its batch")
    at += 1  # attributes: unused
    timestamp_delta, at = read_varint(payload, at)
    offset_delta, at = read_varint(payload, at)
    key, at = _read_bytes(payload, at, end)
    value, at = _read_bytes(payload, at, end)
    count, at = read_varint(payload, at)
    if count < 0 or count > end - at:
        raise CorruptData(f"a record claims {count} headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _read_bytes(payload, at, end)
        if name is None:
            raise CorruptData("a record header has no key")
        header_value, at = _read_bytes(payload, at, end)
        headers.append((name.decode("utf-8", "replace"), header_value))
    if at != end:
        raise CorruptData(f"a record of offset {header.base_offset} does not fill its length")
    timestamp = header.max_timestamp if header.log_append_time else header.base_timestamp + timestamp_delta
    return Record(key, value, headers, header.base_offset + offset_delta, timestamp), end


def _read_bytes(payload: Buffer, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = read_varint(payload, at)
    if size < 0:
        return None, at
    if at + size > end:
        raise CorruptData("a field ends beyond its record")
    return bytes(payload[at : at + size]), at + size


def encode_record(record: Record, *, offset_delta: int, timestamp_delta: int, out: bytearray) -> None:
    """Append one record in its wire form."""
    body = bytearray(1)
    write_varint(timestamp_delta, body)
    write_varint(offset_delta, body)
    for part in (record.key, record.value):
        _write_bytes(part, body)
    write_varint(len(record.headers), body)
    for name, value in record.headers:
        _write_bytes(name.encode(), body)
        _write_bytes(value, body)
    write_varint(len(body), out)
    out += body


def _write_bytes(part: bytes | None, out: bytearray) -> None:
    if part is None:
        write_varint(-1, out)
    else:
        write_varint(len(part), out)
        out += part


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    compression: int = Compression.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    log_append_time: bool = False,
    timestamp_ms: int = 0,
    last_offset_delta: int | None = None,
) -> bytes:
    """One batch. A record with timestamp -1 takes `timestamp_ms`; one with offset -1 the next offset in line.

    With `log_append_time` the batch's max timestamp is `timestamp_ms`. `last_offset_delta` makes room behind the last
    record, as compaction leaves it.
    """
    payload = bytearray()
    count = 0
    delta = -1
    base_timestamp = max_timestamp = NO_TIMESTAMP
    for record in records:
        delta = delta + 1 if record.offset < 0 else record.offset - base_offset
        timestamp = timestamp_ms if record.timestamp == NO_TIMESTAMP else record.timestamp
        if count == 0:
            base_timestamp = timestamp
        max_timestamp = max(max_timestamp, timestamp)
        encode_record(record, offset_delta=delta, timestamp_delta=timestamp - base_timestamp, out=payload)
        count += 1
    body = compress(compression, payload)
    attributes = compression | (TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0)
    if log_append_time:
        attributes |= LOG_APPEND_TIME_BIT
        max_timestamp = timestamp_ms
    header = BatchHeader(
        base_offset=base_offset,
        length=SMALLEST_LENGTH + len(body),
        leader_epoch=leader_epoch,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=max(delta, 0) if last_offset_delta is None else last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count,
    )
    packed = _HEADER.pack(*header)
    crc = crc32c(body, crc32c(packed[CRC_START:]))
    return _HEADER.pack(*header._replace(crc=crc)) + body


def rewritten_batch(
    header: BatchHeader,
    payload: bytes,
    *,
    record_count: int,
    max_timestamp: int,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """A batch with fewer records, as the cleaner leaves it: `payload` holds them uncompressed, everything that is not
    given stays as `header` has it. A `delete_horizon_ms` takes the base timestamp's place (KIP-534); a batch without
    records has no codec, no horizon and no base timestamp."""
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if record_count == 0:
        attributes &= ~(CODEC_MASK | DELETE_HORIZON_BIT)
        base_timestamp = NO_TIMESTAMP
    elif delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
        base_timestamp = delete_horizon_ms
    body = compress(header.compression, payload) if record_count else b""
    changed = header._replace(
        length=SMALLEST_LENGTH + len(body),
        crc=0,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=record_count,
    )
    packed = _HEADER.pack(*changed)
    return _HEADER.pack(*changed._replace(crc=crc32c(body, crc32c(packed[CRC_START:])))) + body


# --- control batches --------------------------------------------------------------------------------------------


def control_type(data: Buffer, position: int = 0) -> int | None:
    """Type in the first record's key of a control batch (ControlRecordType), or None when it is no control batch.

    Raises CorruptData when the control bit is set but the key is none: no log may hold such a batch.
    """
    header = parse_header(data, position)
    if not header.is_control:
        return None
    records = read_records(data, position)
    if not records:
        return None  # emptied by compaction
    key = records[0].key
    if key is None or len(key) < _INT16_PAIR.size:
        raise CorruptData(f"control batch at offset {header.base_offset} has no control record key")
    type_id: int = _INT16_PAIR.unpack_from(key)[1]
    return type_id


def coordinator_epoch(data: Buffer, position: int = 0) -> int:
    """The coordinator epoch in an end-transaction marker (EndTransactionMarker). Raises CorruptData."""
    records = read_records(data, position)
    value = records[0].value if records else None
    if value is None or len(value) < _CONTROL_VALUE.size:
        raise CorruptData("end-transaction marker without a coordinator epoch")
    epoch: int = _CONTROL_VALUE.unpack_from(value)[1]
    return epoch


def end_txn_marker(
    *, commit: bool, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp_ms: int
) -> bytes:
    """The batch that ends a transaction in one partition: COMMIT or ABORT (KIP-98)."""
    key = _INT16_PAIR.pack(0, CONTROL_COMMIT if commit else CONTROL_ABORT)
    return build_batch(
        [Record(key, _CONTROL_VALUE.pack(0, coordinator_epoch))],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        timestamp_ms=timestamp_ms,
    )


def mirror_pid_reset(*, timestamp_ms: int) -> bytes:
    """MIRROR_PID_RESET: the barrier behind which no mirrored producer is known any more (KIP-1279)."""
    key = _INT16_PAIR.pack(0, CONTROL_MIRROR_PID_RESET)
    return build_batch([Record(key, b"\x00\x00\x00")], control=True, timestamp_ms=timestamp_ms)
