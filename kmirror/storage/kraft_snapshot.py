"""Snapshots of a metadata log as files. L2 storage. Kafka: Snapshots, FileRawSnapshotWriter, RecordsSnapshotWriter.

`<end offset, 20 digits>-<epoch, 10 digits>.checkpoint` beside the segments stands for all records below its end offset.
It is a sequence of record batches, numbered from 0 and of the epoch in the name: a control batch with SnapshotHeader,
the records, a control batch with SnapshotFooter. What the records mean is not known here.

What must hold: a file has its name only when it is whole and on disk (it is written as `.checkpoint.part`, which nobody
reads and the next start removes). Whoever reads one checks everything all the same: header, every checksum, footer,
nothing behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kmirror.errors import CorruptData
from kmirror.limits import SNAPSHOT_BATCH_BYTES
from kmirror.protocol.records import BatchHeader, Record, build_batch, check_crc, read_records, walk
from kmirror.storage.filesystem import File, FileSystem

SUFFIX = ".checkpoint"
PART_SUFFIX = ".checkpoint.part"
HEADER_TYPE, FOOTER_TYPE = 3, 4
_KEY = struct.Struct(">hh")
_HEADER = struct.Struct(">hqB")
_FOOTER = struct.Struct(">hB")
"""Version, for the header the time of the last record that is covered, and no tagged fields."""


class SnapshotId(NamedTuple):
    """What a snapshot covers: everything below `end_offset`; `epoch` is that of the last record. Ordered as Kafka's."""

    epoch: int
    end_offset: int

    @property
    def name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}{SUFFIX}"


def id_of(name: str) -> SnapshotId | None:
    """From a file's name; None for anything but a snapshot that is in place."""
    end_offset, dash, epoch = name.removesuffix(SUFFIX).partition("-")
    if not (dash and name.isascii() and end_offset.isdigit() and epoch.isdigit()):
        return None
    found = SnapshotId(int(epoch), int(end_offset))
    return found if found.name == name else None


def snapshots_in(fs: FileSystem, directory: str) -> list[SnapshotId]:
    """Ascending."""
    return sorted(found for name in fs.list_dir(directory) if (found := id_of(name)) is not None)


def remove_parts(fs: FileSystem, directory: str) -> None:
    """What was being written when a process ended; also Kafka's, which have a random number in their names."""
    for name in fs.list_dir(directory):
        if name.endswith(PART_SUFFIX):
            fs.remove(f"{directory}/{name}")


class SnapshotWriter:
    """Writes one: `begin`, `add` each record, `finish`, sync the file at `part_path`, `publish`, sync the directory.

    `reserve(size_bytes)` is asked before each write. Every method may raise DiskFull (then `discard`) or DiskFailure.
    """

    def __init__(
        self, fs: FileSystem, directory: str, snapshot_id: SnapshotId, *, reserve: Callable[[int], None]
    ) -> None:
        self.path = f"{directory}/{snapshot_id.name}"
        self.part_path = self.path.removesuffix(SUFFIX) + PART_SUFFIX
        self.size_bytes = 0
        self._fs = fs
        self._id = snapshot_id
        self._reserve = reserve
        self._now_ms = 0
        self._file: File | None = None
        self._next_offset = 0
        self._waiting: list[Record] = []
        self._waiting_bytes = 0

    def begin(self, *, last_timestamp_ms: int, now_ms: int) -> None:
        """`last_timestamp_ms`: of the last record that is covered."""
        self._now_ms = now_ms
        self._fs.remove(self.part_path)
        self._file = self._fs.open(self.part_path, create=True)
        self._control(HEADER_TYPE, _HEADER.pack(0, last_timestamp_ms, 0))

    def add(self, value: bytes) -> None:
        self._waiting.append(Record(value=value))
        self._waiting_bytes += len(value)
        if self._waiting_bytes >= SNAPSHOT_BATCH_BYTES:
            self._write_waiting()

    def finish(self) -> None:
        self._write_waiting()
        self._control(FOOTER_TYPE, _FOOTER.pack(0, 0))

    def publish(self) -> None:
        """Only after what was written is synced."""
        self._fs.rename(self.part_path, self.path)

    def discard(self) -> None:
        self._fs.remove(self.part_path)

    def _control(self, kind: int, value: bytes) -> None:
        self._write([Record(key=_KEY.pack(0, kind), value=value)], control=True)

    def _write_waiting(self) -> None:
        if self._waiting:
            self._write(self._waiting, control=False)
            self._waiting = []
            self._waiting_bytes = 0

    def _write(self, records: list[Record], *, control: bool) -> None:
        assert self._file is not None, "not begun"
        batch = build_batch(
            records,
            base_offset=self._next_offset,
            leader_epoch=self._id.epoch,
            control=control,
            timestamp_ms=self._now_ms,
        )
        self._reserve(len(batch))
        self._file.append([batch])
        self._next_offset += len(records)
        self.size_bytes += len(batch)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole one. `batches` are the positions of the batches with records in `data`."""

    last_timestamp_ms: int
    data: bytes
    batches: list[tuple[int, BatchHeader]]


def read_snapshot(fs: FileSystem, path: str) -> Snapshot:
    """Raises CorruptData when the file is not whole and sound, FileNotFoundError."""
    data = fs.read_file(path)
    batches = list(walk(data))
    end = 0
    for position, header in batches:
        check_crc(data, position, header)
        if header.is_control and position and header is not batches[-1][1]:
            raise CorruptData(f"{path} has a control batch at byte {position}, between its records")
        end = position + header.size_bytes
    if end != len(data):
        raise CorruptData(f"{path} is torn: {len(data) - end} bytes behind its last whole batch")
    if len(batches) < 2:
        raise CorruptData(f"{path} is torn: it has {len(batches)} batches")
    last_timestamp_ms = _header_time(data, batches[0], path)
    if _control_type(data, batches[-1]) != FOOTER_TYPE:
        raise CorruptData(f"{path} is torn: its last batch is not the footer")
    return Snapshot(last_timestamp_ms, data, batches[1:-1])


def _header_time(data: bytes, first: tuple[int, BatchHeader], path: str) -> int:
    """The header may be followed by records of the quorum (KRaftVersion, voters) in its batch."""
    if _control_type(data, first) != HEADER_TYPE:
        raise CorruptData(f"{path} does not begin with a snapshot's header")
    value = read_records(data, first[0])[0].value or b""
    if len(value) < _HEADER.size:
        raise CorruptData(f"{path} has a snapshot header of {len(value)} bytes")
    return int(_HEADER.unpack_from(value)[1])


def _control_type(data: bytes, batch: tuple[int, BatchHeader]) -> int:
    position, header = batch
    if not header.is_control or header.record_count < 1:
        return -1
    key = read_records(data, position)[0].key or b""
    return int(_KEY.unpack(key)[1]) if len(key) == _KEY.size else -1
