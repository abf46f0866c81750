"""Walking a segment file batch by batch, as a check does it. L2 storage.

What may live here: what one file of batches says by itself. Memory is bounded: a window of the file, or one batch of up
to `CHECK_MAX_BATCH_BYTES`; of larger ones the checksum is taken piece by piece and the records are not looked into.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from kmirror.errors import CorruptData
from kmirror.limits import CHECK_MAX_BATCH_BYTES, CHECK_RESYNC_CANDIDATES, SCAN_WINDOW_BYTES
from kmirror.protocol.compression import ExpandsTooFar
from kmirror.protocol.records import (
    HEADER_SIZE_BYTES,
    NEWEST_MAGIC,
    BatchHeader,
    check_crc,
    check_crc_in_pieces,
    parse_header,
    read_records,
    read_varint,
    records_payload,
)
from kmirror.storage.check.findings import ReadableFile

_CONTROL_KEY = struct.Struct(">hh")
_END_TXN_VALUE = struct.Struct(">hi")
_LEADER_EPOCH_POSITION = 12
ABORT, COMMIT, PID_RESET = 0, 1, 7


class Batch(NamedTuple):
    """`data` is None for a batch that is too large to be held."""

    position: int
    header: BatchHeader
    data: memoryview | None


class SegmentWalk:
    """Iterate over it; `position` is where the walk stands, and where it stopped when CorruptData was raised."""

    def __init__(self, file: ReadableFile, end: int) -> None:
        self.position = 0
        self._file = file
        self._end = end
        self._start = 0
        self._window = memoryview(b"")

    def __iter__(self) -> Iterator[Batch]:
        """Raises CorruptData at the first place where no whole batch can be."""
        while self.position < self._end:
            self._ensure(HEADER_SIZE_BYTES)
            header = parse_header(self._window, self.position - self._start)
            size = header.size_bytes
            if self.position + size > self._end:
                raise CorruptData(
                    f"the batch at offset {header.base_offset} is cut short: "
                    f"{self.position + size - self._end} bytes are missing"
                )
            data = None
            if size <= CHECK_MAX_BATCH_BYTES:
                self._ensure(size)
                at = self.position - self._start
                data = self._window[at : at + size]
            yield Batch(self.position, header, data)
            self.position += size

    def _ensure(self, size_bytes: int) -> None:
        if self.position - self._start + size_bytes > len(self._window):
            wanted = min(max(size_bytes, SCAN_WINDOW_BYTES), self._end - self.position)
            self._start = self.position
            self._window = memoryview(self._file.pread(wanted, self.position))

    def check(self, batch: Batch) -> None:
        """Raises CorruptData when the checksum is wrong."""
        if batch.data is not None:
            check_crc(batch.data, 0, batch.header)
            return
        end = batch.position + batch.header.size_bytes
        pieces = (
            self._file.pread(min(SCAN_WINDOW_BYTES, end - at), at)
            for at in range(batch.position, end, SCAN_WINDOW_BYTES)
        )
        check_crc_in_pieces(pieces, batch.header)

    def is_zeros(self) -> bool:
        """Whether nothing but zeros follows: space that was allocated and never written."""
        return all(not any(piece) for piece in self._pieces(self.position))

    def sound_batch_behind(self, leader_epoch: int) -> int | None:
        """Position of a batch of this leader epoch behind the present one, with its checksum right; None without one.

        The length of a bad header tells nothing, so that every place is tried where epoch and magic stand.
        """
        pattern = struct.pack(">ib", leader_epoch, NEWEST_MAGIC)
        tried = 0
        position = self.position + 1 + _LEADER_EPOCH_POSITION
        while position < self._end and tried < CHECK_RESYNC_CANDIDATES:
            piece = self._file.pread(min(SCAN_WINDOW_BYTES, self._end - position), position)
            at = piece.find(pattern)
            while at >= 0 and tried < CHECK_RESYNC_CANDIDATES:
                tried += 1
                if self._is_sound(position + at - _LEADER_EPOCH_POSITION):
                    return position + at - _LEADER_EPOCH_POSITION
                at = piece.find(pattern, at + 1)
            position += max(1, len(piece) - len(pattern) + 1)
        return None

    def _is_sound(self, position: int) -> bool:
        try:
            header = parse_header(self._file.pread(HEADER_SIZE_BYTES, position))
            if header.size_bytes > min(CHECK_MAX_BATCH_BYTES, self._end - position):
                return False
            check_crc(self._file.pread(header.size_bytes, position), 0, header)
        except CorruptData:
            return False
        return True

    def _pieces(self, position: int) -> Iterator[bytes]:
        while position < self._end:
            piece = self._file.pread(min(SCAN_WINDOW_BYTES, self._end - position), position)
            if not piece:
                return
            yield piece
            position += len(piece)


class Marker(NamedTuple):
    """The first record of a control batch; `coordinator_epoch` is -1 unless it ends a transaction."""

    control_type: int
    coordinator_epoch: int


class Contents(NamedTuple):
    """`first_offset` is the first record's, or the batch's when it has none or was not looked into."""

    record_count: int
    first_offset: int
    marker: Marker | None


def look_into(batch: Batch, *, deep: bool) -> Contents:
    """Decompress and decode, as far as that was asked for; control batches always. Raises CorruptData."""
    header, data = batch.header, batch.data
    if data is None or not (deep or header.is_control or header.magic < NEWEST_MAGIC):
        return Contents(max(header.record_count, 0), header.base_offset, None)
    try:
        if header.magic == NEWEST_MAGIC and not header.is_control:
            return Contents(*_walk_records(bytes(records_payload(data, 0, header)), header), None)
        records = read_records(data)
    except ExpandsTooFar:
        return Contents(max(header.record_count, 0), header.base_offset, None)
    if not records:
        return Contents(0, header.base_offset, None)
    marker = _marker(records[0].key, records[0].value) if header.is_control else None
    return Contents(len(records), records[0].offset, marker)


def _walk_records(payload: bytes, header: BatchHeader) -> tuple[int, int]:
    """Decode each record without keeping anything of it: (how many, offset of the first). Raises CorruptData."""
    at, last, first = 0, -1, 0
    for number in range(header.record_count):
        size, at = read_varint(payload, at)
        end = at + size
        if size < 0 or end > len(payload):
            raise CorruptData(f"record {number} of the batch at offset {header.base_offset} ends beyond it")
        _timestamp_delta, at = read_varint(payload, at + 1)
        delta, at = read_varint(payload, at)
        if not last < delta <= header.last_offset_delta:
            raise CorruptData(
                f"the batch of offsets {header.base_offset} to {header.last_offset} has a record of offset "
                f"{header.base_offset + delta} behind {header.base_offset + last}"
            )
        if last < 0:
            first = delta
        last = delta
        for _ in range(2):
            size, at = read_varint(payload, at)
            at += max(size, 0)
        count, at = read_varint(payload, at)
        if not 0 <= count <= end - at:
            raise CorruptData(f"record {number} of the batch at offset {header.base_offset} claims {count} headers")
        for field in range(2 * count):
            size, at = read_varint(payload, at)
            if size < 0 and field % 2 == 0:
                raise CorruptData(f"a header of record {number} of the batch at offset {header.base_offset} has no key")
            at += max(size, 0)
        if at != end:
            raise CorruptData(f"record {number} of the batch at offset {header.base_offset} does not fill its length")
    if at != len(payload):
        raise CorruptData(f"{len(payload) - at} bytes are left behind the last record of offset {header.base_offset}")
    return header.record_count, header.base_offset + first


def _marker(key: bytes | None, value: bytes | None) -> Marker:
    if key is None or len(key) < _CONTROL_KEY.size:
        raise CorruptData("a control batch has no control record key")
    control_type = int(_CONTROL_KEY.unpack_from(key)[1])
    if control_type not in (ABORT, COMMIT):
        return Marker(control_type, -1)
    if value is None or len(value) < _END_TXN_VALUE.size:
        raise CorruptData("an end-transaction marker has no coordinator epoch")
    return Marker(control_type, int(_END_TXN_VALUE.unpack_from(value)[1]))


__all__ = ["ABORT", "COMMIT", "PID_RESET", "Batch", "Contents", "Marker", "SegmentWalk", "look_into"]
