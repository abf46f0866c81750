"""A sound partition directory on disk, and ways to spoil it: for the tests of the check."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kmirror.clock import ManualClock
from kmirror.protocol.checksum import crc32c
from kmirror.protocol.records import end_txn_marker, mirror_pid_reset, walk
from kmirror.storage.filesystem import OsFileSystem
from kmirror.storage.flush import FACTS_FILE, Facts
from kmirror.storage.log import Log, LogConfig
from tests.storage.making import NOW_MS, batch, coordinate, produce

CRC_START = 21
Plant = Callable[[Path], object]


@dataclass(frozen=True)
class Sound:
    directory: Path
    end_offset: int
    bases: list[int]


def make_sound(directory: Path) -> Sound:
    """Several segments, three epochs, an idempotent producer, transactions of two producers (committed, aborted, one
    left open) and a reset; closed cleanly."""
    clock = ManualClock(NOW_MS)
    config = LogConfig(segment_bytes=1500, index_interval_bytes=150)
    log = Log.open(OsFileSystem(), str(directory), config=config, clock=clock, clean=False)
    sequences = {5: 0, 6: 0, 7: 0}
    for number in range(40):
        epoch, now_ms = number // 14, NOW_MS + 10 * number
        if number == 3:
            coordinate(log, mirror_pid_reset(timestamp_ms=now_ms), epoch=epoch)
        if number % 9 == 8:
            pid = (6, 7)[number // 9 % 2]
            marker = end_txn_marker(
                commit=number == 17, producer_id=pid, producer_epoch=0, coordinator_epoch=0, timestamp_ms=now_ms
            )
            coordinate(log, marker, epoch=epoch)
            continue
        pid = (-1, 5, 6, 7)[number % 4] if number > 4 else -1
        if pid < 0:
            data = batch(2, timestamp_ms=now_ms, codec=number % 3)
        else:
            data = batch(2, timestamp_ms=now_ms, pid=pid, seq=sequences[pid], txn=pid > 5)
            sequences[pid] += 2
        produce(log, data, epoch=epoch, now_ms=now_ms)
    log.close(clean=True)
    return Sound(directory, log.log_end_offset, [segment.base_offset for segment in log.segments])


def files(directory: Path, suffix: str) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.name.endswith(suffix))


def flip(path: Path, position: int, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def patch(path: Path, position: int, layout: str, *values: object) -> None:
    data = bytearray(path.read_bytes())
    position %= len(data)
    struct.pack_into(layout, data, position, *values)
    path.write_bytes(data)


def with_crc(path: Path, position: int) -> None:
    """The checksum of the batch at `position` anew."""
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack_from(">i", data, position + 8)
    struct.pack_into(">I", data, position + 17, crc32c(bytes(data[position + CRC_START : position + 12 + length])))
    path.write_bytes(data)


def batches(path: Path) -> list[int]:
    """Positions."""
    return [position for position, _ in walk(path.read_bytes())]


def entries(path: Path, size: int) -> list[bytes]:
    data = path.read_bytes()
    return [data[at : at + size] for at in range(0, len(data), size)]


def snapshot_with(path: Path, change: Callable[[list[list[int]]], object]) -> None:
    """Change a producer snapshot's rows, and make its count and checksum fit."""
    layout = struct.Struct(">qhiqiqiq")
    rows = [list(row) for row in layout.iter_unpack(path.read_bytes()[10:])]
    change(rows)
    body = struct.pack(">i", len(rows)) + b"".join(layout.pack(*row) for row in rows)
    path.write_bytes(struct.pack(">hI", 1, crc32c(body)) + body)


def facts_with(directory: Path, change: Callable[[Facts], object]) -> None:
    """Change `log-facts`, and make its checksum fit."""
    path = directory / FACTS_FILE
    facts = Facts.decode(path.read_bytes(), FACTS_FILE)
    change(facts)
    path.write_bytes(facts.encode())


def without_facts(plant: Plant) -> Plant:
    """As in a directory that Kafka wrote: nobody but the log knows what the indexes should be."""

    def planted(directory: Path) -> None:
        (directory / FACTS_FILE).unlink()
        plant(directory)

    return planted
