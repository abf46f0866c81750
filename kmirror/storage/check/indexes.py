"""Offset and time index of a segment against its batches. L2 storage. Kafka: OffsetIndex, TimeIndex, LogSegment.append.

The files are read here by their formats alone, not by the code that writes them. Two grades of wrong: `broken`, which
every reader notices (no whole entries, entries that do not rise, entries that point out of the log), and `mistakes`,
which only the log can tell and nobody else would notice.

What an entry must say: the offset index has the last offset of the batch that begins at the position, and has none for
a segment's first batch; the time index has the largest timestamp so far and an offset of the batch that brought it (the
last one, but brokers of Kafka 2.1 took the record's), and for a sealed segment the largest of all.
"""

from __future__ import annotations

import struct
from array import array
from itertools import pairwise
from typing import NamedTuple

from kmirror.limits import CHECK_MAX_INDEX_BYTES
from kmirror.protocol.records import BatchHeader

_OFFSET_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qI")
_MAX_RELATIVE_OFFSET = 2**31 - 1


class Mistake(NamedTuple):
    """`position` is the entry's, in the index file."""

    text: str
    offset: int | None
    position: int
    harmless: bool = False


def _unfit(data: bytes, entry_bytes: int) -> str:
    if len(data) > CHECK_MAX_INDEX_BYTES:
        return f"{len(data)} bytes are too many for an index"
    if len(data) % entry_bytes:
        return f"{len(data) % entry_bytes} bytes at its end are no whole entry"
    if len(data) >= 2 * entry_bytes and not any(data[-entry_bytes:]):
        return "it ends in zeros, as a preallocated file does that was never closed"
    return ""


class OffsetIndexCheck:
    """Give it each batch in turn, then `finish`. `interval_bytes`: the topic's index.interval.bytes, if known."""

    def __init__(self, data: bytes, base_offset: int, log_bytes: int, interval_bytes: int | None = None) -> None:
        self.mistakes: list[Mistake] = []
        self._base = base_offset
        self._at = 0
        self._relative: array[int] = array("I")
        self._positions: array[int] = array("I")
        self._awaited = -1
        self.broken = _unfit(data, _OFFSET_ENTRY.size)
        if self.broken:
            return
        for relative, position in _OFFSET_ENTRY.iter_unpack(data):
            self._relative.append(relative)
            self._positions.append(position)
        self.broken = self._order(log_bytes)
        if interval_bytes is not None and not self.broken:
            for index, (before, after) in enumerate(pairwise(self._positions)):
                if after - before <= interval_bytes:
                    text = f"entries for bytes {before} and {after} are closer than index.interval.bytes"
                    self.mistakes.append(Mistake(text, None, (index + 1) * _OFFSET_ENTRY.size, harmless=True))

    def _order(self, log_bytes: int) -> str:
        for index, (before, after) in enumerate(pairwise(self._relative)):
            if after <= before:
                return f"entry {index + 1} has offset {self._base + after} behind {self._base + before}"
        for index, (before, after) in enumerate(pairwise(self._positions)):
            if after <= before:
                return f"entry {index + 1} has position {after} behind {before}"
        if self._relative and self._relative[-1] > _MAX_RELATIVE_OFFSET:
            return f"its last offset is {self._relative[-1]} above the segment's first"
        if self._positions and self._positions[-1] >= log_bytes:
            return f"it points to byte {self._positions[-1]}, the log has {log_bytes}"
        return ""

    def batch(self, position: int, header: BatchHeader) -> None:
        if self.broken:
            return
        self._settle(header.last_offset)
        while self._at < len(self._positions) and self._positions[self._at] < position:
            self._mistake(f"no batch begins at byte {self._positions[self._at]}")
        if self._at < len(self._positions) and self._positions[self._at] == position:
            self._entry(position, header)

    def _entry(self, position: int, header: BatchHeader) -> None:
        offset = self._base + self._relative[self._at]
        if position == 0:
            self._mistake("it has an entry for the segment's first batch")
        elif offset == header.last_offset:
            self._at += 1
        elif offset > header.last_offset:
            self._awaited = offset  # older brokers: the last offset of all that was appended together
            self._at += 1
        else:
            self._mistake(f"the batch at byte {position} ends at offset {header.last_offset}, the entry says {offset}")

    def _settle(self, last_offset: int) -> None:
        """Of an entry whose offset lay behind its batch: is it a later batch's last one?"""
        if self._awaited < 0 or last_offset < self._awaited:
            return
        entry = (self._at - 1) * _OFFSET_ENTRY.size
        if last_offset == self._awaited:
            text = f"the entry for offset {self._awaited} points to an earlier batch than the one that ends there"
            self.mistakes.append(Mistake(text, self._awaited, entry, harmless=True))
        else:
            self.mistakes.append(Mistake(f"no batch ends at offset {self._awaited}", self._awaited, entry))
        self._awaited = -1

    def _mistake(self, text: str) -> None:
        self.mistakes.append(Mistake(text, self._base + self._relative[self._at], self._at * _OFFSET_ENTRY.size))
        self._at += 1

    def skip(self, position: int) -> None:
        """A damaged batch begins there: what an entry says of it cannot be held against it."""
        if self._at < len(self._positions) and self._positions[self._at] == position:
            self._at += 1

    def finish(self) -> None:
        """There are no more batches."""
        if self._awaited >= 0 and not self.broken:
            entry = (self._at - 1) * _OFFSET_ENTRY.size
            self.mistakes.append(Mistake(f"no batch ends at offset {self._awaited}", self._awaited, entry))
        while self._at < len(self._positions) and not self.broken:
            self._mistake(f"no batch begins at byte {self._positions[self._at]}")


class TimeIndexCheck:
    """Give it each batch in turn, then `finish`."""

    def __init__(self, data: bytes, base_offset: int) -> None:
        self.mistakes: list[Mistake] = []
        self._base = base_offset
        self._at = 0
        self._max = -1
        self._max_offset = -1
        self._timestamps: array[int] = array("q")
        self._relative: array[int] = array("I")
        self.broken = _unfit(data, _TIME_ENTRY.size)
        if self.broken:
            return
        for timestamp, relative in _TIME_ENTRY.iter_unpack(data):
            self._timestamps.append(timestamp)
            self._relative.append(relative)
        for index, (before, after) in enumerate(pairwise(self._timestamps)):
            if after <= before:
                self.broken = f"entry {index + 1} has timestamp {after} behind {before}"
        for index, (before, after) in enumerate(pairwise(self._relative)):
            if after < before:
                self.broken = f"entry {index + 1} has offset {self._base + after} behind {self._base + before}"
        if self._relative and self._relative[-1] > _MAX_RELATIVE_OFFSET:
            self.broken = f"its last offset is {self._relative[-1]} above the segment's first"

    def batch(self, header: BatchHeader, first_offset: int) -> None:
        """`first_offset`: of its first record, where the header does not tell (magic 0 and 1)."""
        if self.broken:
            return
        first = min(first_offset, header.base_offset)
        while self._at < len(self._relative) and self._base + self._relative[self._at] <= header.last_offset:
            offset, timestamp = self._base + self._relative[self._at], self._timestamps[self._at]
            if offset < first:
                self._mistake(f"no batch holds offset {offset}")
            elif timestamp != header.max_timestamp:
                self._mistake(f"it has timestamp {timestamp} for a batch whose largest is {header.max_timestamp}")
            elif timestamp <= self._max:
                self._mistake(f"timestamp {timestamp} was reached before, at offset {self._max_offset}")
            else:
                self._at += 1
        if header.max_timestamp > self._max:
            self._max, self._max_offset = header.max_timestamp, header.last_offset

    def finish(self, *, closed: bool) -> None:
        """There are no more batches. `closed`: the segment was sealed, or its log closed."""
        if self.broken:
            return
        while self._at < len(self._relative):
            self._mistake(f"no batch holds offset {self._base + self._relative[self._at]}")
        last = self._timestamps[-1] if self._timestamps else -1
        if closed and last < self._max and not self.mistakes:
            text = f"its last timestamp is {last}, the segment's largest is {self._max}"
            self.mistakes.append(Mistake(text, self._max_offset, max(0, len(self._relative) - 1) * _TIME_ENTRY.size))

    def _mistake(self, text: str) -> None:
        self.mistakes.append(Mistake(text, self._base + self._relative[self._at], self._at * _TIME_ENTRY.size))
        self._at += 1
