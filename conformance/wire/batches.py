"""Record batches by hand, valid unless told otherwise. Written from the format, not from kmirror's own builder."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from typing import NamedTuple

import crc32c

from kmirror.protocol.compression import compress

NO_CODEC, GZIP, SNAPPY, LZ4, ZSTD = range(5)
HEADER_BYTES = 61
TIMESTAMP_MS = 1_700_000_000_000
_HEADER = struct.Struct(">qiibIhiqqqhii")
_AFTER_CRC = 21


class Rec(NamedTuple):
    """A record to be written; `timestamp_ms` None takes the batch's."""

    value: bytes | None = b"v"
    key: bytes | None = None
    timestamp_ms: int | None = None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


class Batch(NamedTuple):
    """A batch as read back: the header fields the suite looks at."""

    base_offset: int
    size_bytes: int
    leader_epoch: int
    magic: int
    crc_ok: bool
    attributes: int
    last_offset: int
    max_timestamp: int
    producer_id: int
    base_sequence: int
    record_count: int


def varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    zigzag &= (1 << 64) - 1
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def _bytes(part: bytes | None) -> bytes:
    return varint(-1) if part is None else varint(len(part)) + part


def record(rec: Rec, *, offset_delta: int, timestamp_delta: int) -> bytes:
    """One record with its length."""
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + _bytes(rec.key) + _bytes(rec.value)
    body += varint(len(rec.headers)) + b"".join(_bytes(name) + _bytes(value) for name, value in rec.headers)
    return varint(len(body)) + body


def payload(records: Sequence[Rec], base_timestamp: int) -> bytes:
    """The records of a batch, uncompressed."""
    return b"".join(
        record(rec, offset_delta=index, timestamp_delta=(rec.timestamp_ms or base_timestamp) - base_timestamp)
        for index, rec in enumerate(records)
    )


def batch(
    records: Sequence[Rec | bytes] = (Rec(),),
    *,
    codec: int = NO_CODEC,
    timestamp_ms: int = TIMESTAMP_MS,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    last_delta: int | None = None,
    count: int | None = None,
    raw_payload: bytes | None = None,
    flip_crc: bool = False,
    magic: int = 2,
    base_offset: int = 0,
) -> bytes:
    """One batch. `last_delta`, `count` and `raw_payload` replace what the records say; the CRC is right by default."""
    recs = [rec if isinstance(rec, Rec) else Rec(rec) for rec in records]
    first = timestamp_ms if not recs or recs[0].timestamp_ms is None else recs[0].timestamp_ms
    latest = max([first, *(rec.timestamp_ms or timestamp_ms for rec in recs)]) if recs else first
    body = payload(recs, first) if raw_payload is None else raw_payload
    if codec == GZIP:
        body = gzip.compress(body)
    elif codec:
        body = compress(codec, body)
    attributes = codec | (0x10 if transactional else 0) | (0x20 if control else 0)
    fields = (
        attributes,
        len(recs) - 1 if last_delta is None else last_delta,
        first,
        latest,
        producer_id,
        producer_epoch,
        base_sequence,
        len(recs) if count is None else count,
    )
    after_crc = struct.pack(">hiqqqhii", *fields) + body
    crc = crc32c.crc32c(after_crc) ^ (1 if flip_crc else 0)
    rest = struct.pack(">ibI", -1, magic, crc) + after_crc
    return struct.pack(">qi", base_offset, len(rest)) + rest


def message_set_v1(value: bytes) -> bytes:
    """One message of the format before record batches (magic 1)."""
    body = struct.pack(">bbq", 1, 0, TIMESTAMP_MS) + struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    import zlib

    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


def parse(data: bytes | memoryview) -> list[Batch]:
    """The complete batches in `data`; a partial one at the end is left out."""
    found, position = [], 0
    view = memoryview(data)
    while position + HEADER_BYTES <= len(view):
        fields = _HEADER.unpack_from(view, position)
        base_offset, length, leader_epoch, magic, crc, attributes, last_delta, _, latest, producer_id = fields[:10]
        size_bytes = 12 + length
        if position + size_bytes > len(view):
            break
        crc_ok = crc32c.crc32c(view[position + _AFTER_CRC : position + size_bytes]) == crc
        found.append(
            Batch(base_offset, size_bytes, leader_epoch, magic, crc_ok, attributes, base_offset + last_delta, latest,
                  producer_id, fields[11], fields[12])
        )  # fmt: skip
        position += size_bytes
    return found
