"""Aborted transactions of one segment: the one that holds the ABORT marker. L2 storage.

Kafka's `.txnindex`: 34-byte entries (version int16 0, producer id, first offset, last offset = the marker's, last
stable offset when the marker was written; int64 each), ascending by last offset. Like the other indexes it is in
memory while the segment is active and written when the segment is rolled or the log closed, so a failing side write
can never let the last stable offset pass an abort that no reader is told of.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kmirror.errors import CorruptData

_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TxnIndex:
    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[AbortedTransaction] = []

    def collect(self, first_offset: int, end_offset: int, found: list[AbortedTransaction]) -> bool:
        """Add what overlaps [first_offset, end_offset). True when no later segment can hold more.

        Kafka: TransactionIndex.collectAbortedTxns.
        """
        for entry in self.entries:
            if entry.last_offset >= first_offset and entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return True
        return False

    def truncate_to(self, offset: int) -> None:
        while self.entries and self.entries[-1].last_offset >= offset:
            self.entries.pop()

    def encode(self) -> bytes:
        return b"".join(_ENTRY.pack(0, *entry) for entry in self.entries)

    def decode(self, data: bytes, *, base_offset: int, end_offset: int) -> None:
        """Take the entries of a file. Raises CorruptData unless each is a transaction that ends in the segment."""
        if len(data) % ENTRY_BYTES:
            raise CorruptData(f"transaction index of {base_offset}: {len(data)} bytes are no whole entries")
        entries: list[AbortedTransaction] = []
        last = base_offset - 1
        for version, *numbers in _ENTRY.iter_unpack(data):
            entry = AbortedTransaction._make(numbers)
            if version != 0 or not (0 <= entry.first_offset < entry.last_offset and last < entry.last_offset):
                raise CorruptData(f"transaction index of {base_offset}: bad entry {entry} of version {version}")
            if entry.last_offset >= end_offset:
                raise CorruptData(f"transaction index of {base_offset}: {entry} ends behind the segment")
            last = entry.last_offset
            entries.append(entry)
        self.entries = entries
