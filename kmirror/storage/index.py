"""The two sparse indexes of a segment: offset to file position, and time to offset. L2 storage.

Kafka's file formats: `.index` has 8-byte entries (offset relative to the base, position; both int32), `.timeindex`
12-byte entries (timestamp int64, relative offset int32). An entry is made for the first batch that begins more than
`index.interval.bytes` behind the last entry; the offset in it is the *last* offset of that batch.

The indexes of the active segment live in memory only: they are written when the segment is rolled or the log closed,
and rebuilt from the batch headers after a crash. So an append costs no extra system call, and a torn index cannot be
met: `decode` refuses what does not rise, and the caller rebuilds.
"""

from __future__ import annotations

import operator
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import islice

from kmirror.errors import CorruptData

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
MAX_RELATIVE_OFFSET = 2**31 - 1

_TIME_ENTRY = struct.Struct(">qi")


def _swap(values: array[int]) -> array[int]:
    if sys.byteorder == "little":
        values.byteswap()
    return values


def _rises(values: array[int]) -> bool:
    return all(map(operator.lt, values, islice(values, 1, None)))


class OffsetIndex:
    """Offset to position. Kafka: OffsetIndex."""

    __slots__ = ("_base_offset", "_max_entries", "_positions", "_relative")

    def __init__(self, base_offset: int, max_bytes: int) -> None:
        self._base_offset = base_offset
        self._max_entries = max(1, max_bytes // OFFSET_ENTRY_BYTES)
        self._relative: array[int] = array("I")
        self._positions: array[int] = array("I")

    def __len__(self) -> int:
        return len(self._relative)

    @property
    def is_full(self) -> bool:
        return len(self._relative) >= self._max_entries

    def append(self, offset: int, position: int) -> None:
        self._relative.append(offset - self._base_offset)
        self._positions.append(position)

    def position_for(self, offset: int) -> int:
        """A batch begins there, and every batch before it ends below `offset`. 0 when no entry is low enough."""
        at = bisect_right(self._relative, offset - self._base_offset) - 1
        return self._positions[at] if at >= 0 else 0

    def boundary_before(self, position: int) -> int:
        """The largest indexed position ≤ `position`, 0 when there is none."""
        at = bisect_right(self._positions, position) - 1
        return self._positions[at] if at >= 0 else 0

    @property
    def last_position(self) -> int:
        return self._positions[-1] if self._positions else 0

    def truncate_to(self, offset: int) -> None:
        """Forget entries at or above `offset`."""
        keep = bisect_left(self._relative, offset - self._base_offset)
        del self._relative[keep:], self._positions[keep:]

    def encode(self) -> bytes:
        both: array[int] = array("I", bytes(OFFSET_ENTRY_BYTES * len(self._relative)))
        both[0::2] = self._relative
        both[1::2] = self._positions
        return _swap(both).tobytes()

    def decode(self, data: bytes, log_size_bytes: int) -> None:
        """Take the entries of a file. Raises CorruptData unless they rise and point into the log."""
        if len(data) % OFFSET_ENTRY_BYTES:
            raise CorruptData(f"offset index of {self._base_offset}: {len(data)} bytes are no whole entries")
        both: array[int] = array("I")
        both.frombytes(data)
        both = _swap(both)
        relative, positions = both[0::2], both[1::2]
        if relative and not (
            _rises(relative)
            and _rises(positions)
            and relative[-1] <= MAX_RELATIVE_OFFSET
            and positions[-1] < log_size_bytes
        ):
            raise CorruptData(f"offset index of {self._base_offset} does not rise or points behind the log's end")
        self._relative, self._positions = relative, positions


class TimeIndex:
    """Largest timestamp so far to the last offset of the batch that has it. Kafka: TimeIndex."""

    __slots__ = ("_base_offset", "_max_entries", "_relative", "_timestamps")

    def __init__(self, base_offset: int, max_bytes: int) -> None:
        self._base_offset = base_offset
        self._max_entries = max(1, max_bytes // TIME_ENTRY_BYTES)
        self._timestamps: array[int] = array("q")
        self._relative: array[int] = array("I")

    def __len__(self) -> int:
        return len(self._relative)

    @property
    def is_full(self) -> bool:
        # One entry is kept free: closing a segment adds its largest timestamp (Kafka: TimeIndex.isFull).
        return len(self._relative) >= self._max_entries - 1

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry when the timestamp is larger than the last one's."""
        if timestamp > self.last_entry[0]:
            self._timestamps.append(timestamp)
            self._relative.append(offset - self._base_offset)

    @property
    def last_entry(self) -> tuple[int, int]:
        """(timestamp, offset); (-1, base offset) when empty."""
        if not self._timestamps:
            return -1, self._base_offset
        return self._timestamps[-1], self._base_offset + self._relative[-1]

    def offset_for(self, timestamp: int) -> int:
        """No batch below the returned offset has a timestamp ≥ `timestamp`, save the batch that ends there."""
        at = bisect_left(self._timestamps, timestamp) - 1
        return self._base_offset + self._relative[at] if at >= 0 else self._base_offset

    def truncate_to(self, offset: int) -> None:
        keep = bisect_left(self._relative, offset - self._base_offset)
        del self._relative[keep:], self._timestamps[keep:]

    def encode(self) -> bytes:
        pack = _TIME_ENTRY.pack
        return b"".join(pack(*entry) for entry in zip(self._timestamps, self._relative, strict=True))

    def decode(self, data: bytes) -> None:
        if len(data) % TIME_ENTRY_BYTES:
            raise CorruptData(f"time index of {self._base_offset}: {len(data)} bytes are no whole entries")
        timestamps: array[int] = array("q")
        relative: array[int] = array("q")
        for timestamp, offset in _TIME_ENTRY.iter_unpack(data):
            timestamps.append(timestamp)
            relative.append(offset)
        if relative and not (
            _rises(timestamps) and all(map(operator.le, relative, islice(relative, 1, None))) and relative[0] >= 0
        ):
            raise CorruptData(f"time index of {self._base_offset} does not rise")
        self._timestamps, self._relative = timestamps, array("I", relative)
