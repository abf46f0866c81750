"""Records of an answer as plain values: what is said of a batch, and its records when its bytes may differ.

The header is read with the suite's own struct, not with kmirror's code, which may be what is wrong. The checksum is
not a value to compare, since it covers ids and times that each broker chooses; that it is right is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import crc32c

from kmirror.errors import CorruptData
from kmirror.protocol.records import read_records

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LOG_OVERHEAD_BYTES, _AFTER_CRC = 12, 21


@dataclass(slots=True)
class OpenedRecord:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@dataclass(slots=True)
class Opened:
    """One whole batch. `payload` as it is stored; `records` once it is decompressed (empty when it cannot be read)."""

    base_offset: int
    last_offset_delta: int
    leader_epoch: int
    magic: int
    crc_ok: bool
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    payload: bytes
    records: list[OpenedRecord] = field(default_factory=list)


def opened(data: bytes | memoryview) -> list[Opened]:
    """The whole batches; what is left at the end, of a batch that was cut, is dropped."""
    view, position, found = memoryview(data), 0, []
    while position + _HEADER.size <= len(view):
        fields = _HEADER.unpack_from(view, position)
        end = position + _LOG_OVERHEAD_BYTES + fields[1]
        if fields[1] < _HEADER.size - _LOG_OVERHEAD_BYTES or end > len(view):
            break
        batch = Opened(
            base_offset=fields[0], leader_epoch=fields[2], magic=fields[3],
            crc_ok=crc32c.crc32c(view[position + _AFTER_CRC : end]) == fields[4],
            attributes=fields[5], last_offset_delta=fields[6], base_timestamp=fields[7], max_timestamp=fields[8],
            producer_id=fields[9], producer_epoch=fields[10], base_sequence=fields[11], record_count=fields[12],
            payload=bytes(view[position + _HEADER.size : end]),
        )  # fmt: skip
        try:
            batch.records = [
                OpenedRecord(record.offset, record.timestamp, _copy(record.key), _copy(record.value),
                             [(name, _copy(value)) for name, value in record.headers])
                for record in read_records(view[position:end])
            ]  # fmt: skip
        except CorruptData:
            batch.records = []
        found.append(batch)
        position = end
    return found


def _copy(part: bytes | memoryview | None) -> bytes | None:
    return None if part is None else bytes(part)
