"""Message sets of magic 0 and 1, which brokers before Kafka 0.11 wrote and newer ones keep as they are. L1.

What may live here: reading them. Nobody writes them any more; a log may still hold them, a source may still send them.
A set is a row of messages: offset 8, size 4, crc 4 (CRC-32 of what follows), magic 1, attributes 1, with magic 1
timestamp 8, key and value with 4-byte lengths. A compressed message is a wrapper whose value is a set of its own; the
wrapper has the offset of the last message inside. Inside, offsets are absolute with magic 0 and relative with magic 1
(some clients wrote absolute ones there too; counting back from the wrapper's offset is right for both). Kafka:
LegacyRecord, AbstractLegacyRecordBatch.

For the log each message is a batch. What its header cannot say without unpacking a wrapper is the first offset inside:
`base_offset` is then the last one, as `last_offset` is.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

from kmirror.errors import CorruptData
from kmirror.protocol.compression import Compression, decompress

if TYPE_CHECKING:
    from kmirror.protocol.records import BatchHeader, Buffer, Record

_HEAD: Final = struct.Struct(">qiIbb")
_TIMESTAMP: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">i")
OLD_CRC_START: Final = 16
_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME_BIT: Final = 0x08
_NEWEST_CODEC: Final = Compression.LZ4
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_HAS_CONTENT_SIZE: Final = 0x08
SMALLEST_LENGTH: Final = 14
"""crc, magic, attributes and two lengths: a message of magic 0 without key and value."""
UNKNOWN_COUNT: Final = -1
"""How many records a wrapper holds is not written on it."""


def old_header(data: Buffer, position: int) -> BatchHeader:
    """The message at `position` as a batch header. Raises CorruptData when there cannot be one."""
    from kmirror.protocol.records import BatchHeader

    if len(data) - position < _HEAD.size:
        raise CorruptData(f"{len(data) - position} bytes at byte {position} are too few for a message")
    offset, length, crc, magic, attributes = _HEAD.unpack_from(data, position)
    needed = SMALLEST_LENGTH + (_TIMESTAMP.size if magic == 1 else 0)
    if length < needed or offset < 0:
        raise CorruptData(f"message of magic {magic} at byte {position} has offset {offset} and length {length}")
    timestamp = -1
    if magic == 1:
        if len(data) - position < _HEAD.size + _TIMESTAMP.size:
            raise CorruptData(f"{len(data) - position} bytes at byte {position} are too few for a message")
        timestamp = _TIMESTAMP.unpack_from(data, position + _HEAD.size)[0]
    codec = attributes & _CODEC_MASK
    if codec > _NEWEST_CODEC:
        raise CorruptData(f"message of magic {magic} at offset {offset} names codec {codec}")
    return BatchHeader(
        base_offset=offset,
        length=length,
        leader_epoch=-1,
        magic=magic,
        crc=crc,
        attributes=codec | (attributes & _LOG_APPEND_TIME_BIT if magic == 1 else 0),
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=UNKNOWN_COUNT if codec else 1,
    )


def old_crc(data: Buffer, position: int, size_bytes: int) -> int:
    """CRC-32 (not CRC-32C) of a whole message, as its header should have it."""
    return zlib.crc32(memoryview(data)[position + OLD_CRC_START : position + size_bytes])


def read_old_records(data: Buffer, position: int, header: BatchHeader) -> list[Record]:
    """The records of one message: itself, or what it wraps. Raises CorruptData."""
    record = _message(data, position, header)
    if not header.compression:
        return [record]
    inner = _unwrapped(header, record.value)
    if header.magic == 1 and inner:
        first = header.base_offset - inner[-1].offset
        for one in inner:
            one.offset += first
            if header.log_append_time:
                one.timestamp = header.max_timestamp
    return inner


def _unwrapped(header: BatchHeader, value: bytes | None) -> list[Record]:
    if value is None:
        raise CorruptData(f"compressed message at offset {header.base_offset} has no value")
    if header.compression == Compression.LZ4 and header.magic == 0:
        value = with_lz4_checksum(value)
    payload = decompress(header.compression, value)
    found: list[Record] = []
    at = 0
    while at < len(payload):
        inside = old_header(payload, at)
        if inside.magic != header.magic or inside.compression or at + inside.size_bytes > len(payload):
            raise CorruptData(f"compressed message at offset {header.base_offset} holds something that is no message")
        found.append(_message(payload, at, inside))
        at += inside.size_bytes
    return found


def _message(data: Buffer, position: int, header: BatchHeader) -> Record:
    from kmirror.protocol.records import Record

    at = position + _HEAD.size + (_TIMESTAMP.size if header.magic == 1 else 0)
    end = position + header.size_bytes
    key, at = _field(data, at, end)
    value, at = _field(data, at, end)
    if at != end:
        raise CorruptData(f"message at offset {header.base_offset} does not fill its length")
    return Record(key, value, [], header.base_offset, header.max_timestamp)


def _field(data: Buffer, at: int, end: int) -> tuple[bytes | None, int]:
    if at + _LENGTH.size > min(end, len(data)):
        raise CorruptData("a message ends inside a field")
    (size,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    if size < 0:
        return None, at
    if at + size > min(end, len(data)):
        raise CorruptData("a field ends beyond its message")
    return bytes(data[at : at + size]), at + size


def with_lz4_checksum(frame: bytes) -> bytes:
    """Clients that wrote magic 0 took the header checksum of an LZ4 frame over its magic number too (KAFKA-3160)."""
    if frame[:4] != _LZ4_MAGIC or len(frame) < 7:
        return frame
    end = 6 + (8 if frame[4] & _LZ4_HAS_CONTENT_SIZE else 0)
    right = (_xxh32_of_few(frame[4:end]) >> 8) & 0xFF
    return frame[:end] + bytes([right]) + frame[end + 1 :]


def _xxh32_of_few(data: bytes) -> int:
    """XXH32 with seed 0 of fewer than 16 bytes, which is all that an LZ4 frame descriptor has."""
    prime_1, prime_2, prime_3, prime_4, prime_5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask = 0xFFFFFFFF
    value = (prime_5 + len(data)) & mask
    at = 0
    while at + 4 <= len(data):
        value = (value + int.from_bytes(data[at : at + 4], "little") * prime_3) & mask
        value = (((value << 17) | (value >> 15)) & mask) * prime_4 & mask
        at += 4
    for byte in data[at:]:
        value = (value + byte * prime_5) & mask
        value = (((value << 11) | (value >> 21)) & mask) * prime_1 & mask
    value = (value ^ (value >> 15)) * prime_2 & mask
    value = (value ^ (value >> 13)) * prime_3 & mask
    return value ^ (value >> 16)
