"""Appends to a log alone, without a broker around it, beside a plain program that does the least of the same work.

Run as a process of its own: `python -m conformance.bench.engine log|program client|replication BATCH_BYTES BYTES DIR`,
prints MB/s. `client`: one batch in each append, which gets its offset there. `replication`: appends of up to 1 MiB of
batches that have their offsets, as a mirror gets them. The plain program checks the CRC of every batch, writes the
offset where that is the log's work, and writes the bytes to a file; it keeps no index and no state.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import crc32c

from conformance.bench.storage import sized_batch
from kmirror.clock import SystemClock
from kmirror.storage.filesystem import OsFileSystem
from kmirror.storage.log import Log
from kmirror.storage.producer_state import AppendOrigin
from kmirror.storage.values import LogConfig, LogMode

CHUNK_BYTES = 1 << 20
ORIGINS = {"client": AppendOrigin.CLIENT, "replication": AppendOrigin.REPLICATION}
Append = Callable[[bytearray], object]


def program(origin: AppendOrigin, batch_bytes: int, directory: Path) -> Append:
    descriptor = os.open(directory / "0.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    next_offset = 0

    def append(data: bytearray) -> None:
        nonlocal next_offset
        view = memoryview(data)
        for position in range(0, len(data), batch_bytes):
            one = view[position : position + batch_bytes]
            if crc32c.crc32c(one[21:]) != int.from_bytes(one[17:21]):
                raise ValueError("CRC mismatch")
            if origin is AppendOrigin.CLIENT:
                one[0:8] = next_offset.to_bytes(8)
                next_offset += 1
        if os.write(descriptor, view) != len(data):
            raise OSError("short write")

    return append


def log(origin: AppendOrigin, _batch_bytes: int, directory: Path) -> Append:
    clock = SystemClock()
    opened = Log.open(OsFileSystem(), str(directory), config=LogConfig(), clock=clock, clean=True)
    opened.mode = LogMode.WRITABLE if origin is AppendOrigin.CLIENT else LogMode.READ_ONLY
    epoch = 0 if origin is AppendOrigin.CLIENT else -1
    return lambda data: opened.append(data, origin=origin, leader_epoch=epoch, now_ms=clock.time_ms())


def rate(append: Append, origin: AppendOrigin, batch_bytes: int, size_bytes: int) -> float:
    """MB/s of the appends alone: what makes their bytes ready is outside the clock."""
    count = 1 if origin is AppendOrigin.CLIENT else max(1, CHUNK_BYTES // batch_bytes)
    data = bytearray(sized_batch(batch_bytes) * count)
    spent = 0.0
    written = offset = 0
    while written < size_bytes:
        if origin is AppendOrigin.REPLICATION:
            for position in range(0, len(data), batch_bytes):
                data[position : position + 8] = offset.to_bytes(8)
                data[position + 12 : position + 16] = bytes(4)  # leader epoch 0
                offset += 1
        started = time.perf_counter()
        append(data)
        spent += time.perf_counter() - started
        written += len(data)
    return written / 1e6 / spent


if __name__ == "__main__":
    what, name, batch_bytes, size_bytes, directory = sys.argv[1:]
    path = Path(directory)
    path.mkdir(parents=True)
    make = {"log": log, "program": program}[what]
    print(rate(make(ORIGINS[name], int(batch_bytes), path), ORIGINS[name], int(batch_bytes), int(size_bytes)))
