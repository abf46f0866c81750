"""The blocking program that a mirror is measured against: it fetches, checks the CRC of every batch, and writes a file.

Nothing else: no index, no state, no other clients. Run as a process of its own:
`python -m conformance.bench.ceiling HOST:PORT TOPIC END_OFFSET FETCH_BYTES FILE`, prints bytes and seconds.
"""

from __future__ import annotations

import os
import sys
import time

import crc32c

from conformance.bench.wire import connect, fetch

WRITE_BYTES = 1 << 20  # larger single writes are slower on ext4
_CRC_POSITION, _CRC_FROM = 17, 21


def copy(address: str, topic: str, *, end_offset: int, fetch_bytes: int, path: str) -> tuple[int, float]:
    """Copies partition 0 up to `end_offset`; bytes and seconds from the first request on."""
    sock = connect(address)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    offset = copied_bytes = 0
    started = time.perf_counter()
    while offset < end_offset:
        records = fetch(sock, topic, offset=offset, max_bytes=fetch_bytes).records
        position = 0
        while position + 61 <= len(records):
            size_bytes = 12 + int.from_bytes(records[position + 8 : position + 12])
            if position + size_bytes > len(records):
                break  # the tail of the answer is a partial batch
            expected = int.from_bytes(records[position + _CRC_POSITION : position + _CRC_FROM])
            if crc32c.crc32c(records[position + _CRC_FROM : position + size_bytes]) != expected:
                raise ValueError(f"CRC mismatch at offset {offset}")
            base_offset = int.from_bytes(records[position : position + 8])
            offset = base_offset + int.from_bytes(records[position + 23 : position + 27]) + 1
            position += size_bytes
        for start in range(0, position, WRITE_BYTES):
            os.write(descriptor, records[start : min(start + WRITE_BYTES, position)])
        copied_bytes += position
    seconds = time.perf_counter() - started
    os.close(descriptor)
    return copied_bytes, seconds


if __name__ == "__main__":
    address, topic, end_offset, fetch_bytes, path = sys.argv[1:]
    size, spent = copy(address, topic, end_offset=int(end_offset), fetch_bytes=int(fetch_bytes), path=path)
    print(size, spent)
