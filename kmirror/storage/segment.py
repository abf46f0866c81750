"""One segment of a log: its file, its indexes, and where its batches are. L2 storage.

File names are Kafka's: the base offset in 20 digits and `.log`, `.index`, `.timeindex`, `.txnindex`. The active segment
remembers the positions of its last batches in memory, so that a read near the end of the log costs no system call;
older places are found through the sparse index and one small read. A sealed segment loads its indexes when they are
first needed, and rebuilds one that is missing or damaged from the batch headers.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kmirror.errors import CorruptData, DiskFailure, DiskFull
from kmirror.limits import HEADER_WINDOW_BYTES, RECENT_BATCHES_REMEMBERED, SCAN_WINDOW_BYTES
from kmirror.protocol.checksum import crc32c
from kmirror.protocol.records import HEADER_SIZE_BYTES, BatchHeader, check_crc_in_pieces, parse_header
from kmirror.storage.errors import FileChanged
from kmirror.storage.filesystem import File, FileSystem, fresh
from kmirror.storage.index import MAX_RELATIVE_OFFSET, OffsetIndex, TimeIndex
from kmirror.storage.txn_index import TxnIndex

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
COPY_SUFFIX = ".tmp"
"""A file that replaces another one of that name as soon as it is on disk; recovery removes it."""
SEGMENT_SUFFIXES = (TXN_INDEX_SUFFIX, TIME_INDEX_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX)
"""In this order of removal the log file, which names the segment, goes last: index files alone are a lost segment."""


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


def offset_in(name: str, suffix: str) -> int | None:
    """The offset of a file called as `file_name` would call it; None for anything else that lies in a directory."""
    digits = name.removesuffix(suffix)
    return (
        int(digits) if len(digits) == 20 and digits + suffix == name and digits.isascii() and digits.isdigit() else None
    )


class IndexChecksums(NamedTuple):
    """CRC-32C of a sealed segment's index files: Kafka's formats have none, and a wrong index is a wrong answer."""

    lookup: int
    """Of `.index`, and `.timeindex` behind it."""
    transactions: int
    """Of `.txnindex`; of no bytes when there is no such file."""

    @classmethod
    def of(cls, contents: Iterable[tuple[str, bytes]]) -> IndexChecksums:
        """`contents`: as `Segment.sealed_indexes` gives them."""
        by_suffix = dict(contents)
        lookup = crc32c(by_suffix[TIME_INDEX_SUFFIX], crc32c(by_suffix[INDEX_SUFFIX]))
        return cls(lookup, crc32c(by_suffix[TXN_INDEX_SUFFIX]))


class Segment:
    """`size_bytes` is where the next batch goes; `next_offset` the offset behind the last batch."""

    __slots__ = (
        "_bytes_since_entry",
        "_file",
        "_fs",
        "_index_interval_bytes",
        "_max_offset",
        "_max_timestamp",
        "_open_files",
        "_recent_floor",
        "_recent_last",
        "_recent_positions",
        "_resting_size_bytes",
        "_resting_synced",
        "base_offset",
        "checksums",
        "created_ms",
        "directory",
        "first_timestamp",
        "indexes_loaded",
        "next_offset",
        "offset_index",
        "repaired",
        "size_bytes",
        "sync_follows",
        "time_index",
        "txn_index",
    )

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        base_offset: int,
        *,
        index_bytes: int,
        index_interval_bytes: int,
        created_ms: int,
    ) -> None:
        self._fs = fs
        self.directory = directory
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.next_offset = base_offset
        self.size_bytes = 0
        self.first_timestamp: int | None = None
        self.offset_index = OffsetIndex(base_offset, index_bytes)
        self.time_index = TimeIndex(base_offset, index_bytes)
        self.txn_index = TxnIndex()
        self.indexes_loaded = True
        self.checksums: IndexChecksums | None = None
        """What the index files on disk must have; None when nobody knows (active; written by another program)."""
        self.repaired = False
        """The lookup indexes in memory are right, their files are not."""
        self._index_interval_bytes = index_interval_bytes
        self._bytes_since_entry = 0
        self._max_timestamp = -1
        self._max_offset = base_offset
        self.sync_follows = True
        """Whether what is written is synced soon. With page-cache durability it may take days, or never come."""
        self._open_files = fs.open_files
        self._file: File | None = None
        self._resting_size_bytes = -1
        self._resting_synced = False
        self._forget_recent(base_offset)

    def path(self, suffix: str = LOG_SUFFIX) -> str:
        return f"{self.directory}/{file_name(self.base_offset, suffix)}"

    @property
    def file(self) -> File:
        """Opened when it is not; others may be closed for it (`OpenFiles`). Raises FileChanged, OutOfDescriptors."""
        if self._file is None:
            self._file = self._opened()
            self._open_files.used(self)
        elif self._open_files.is_crowded:
            self._open_files.used(self)
        return self._file

    def _opened(self) -> File:
        try:
            file = self._fs.open(self.path())
        except FileNotFoundError as error:
            raise FileChanged(f"{self.path()} is gone: stop the broker and restore it") from error
        if self._resting_size_bytes not in (-1, file.size_bytes):
            raise FileChanged(
                f"{self.path()} has {file.size_bytes} bytes, it had {self._resting_size_bytes} when it was closed: "
                "somebody changed it while the broker ran. Stop the broker and restore it"
            )
        if self._resting_size_bytes >= 0:
            file.synced = self._resting_synced
        return file

    def rest_file(self) -> bool:
        """Close the file until it is needed again, unless it has bytes that are about to be synced."""
        file = self._file
        if file is None:
            return True
        if not file.synced and self.sync_follows:
            return False
        self._resting_size_bytes = file.size_bytes
        self._resting_synced = file.synced
        self._file = None
        return True

    def keep_file(self) -> None:
        """Its name is about to go, so that it could not be opened again: an open file stays with the segment."""
        self._open_files.forget(self)

    @property
    def synced(self) -> bool:
        """Whether a sync has covered, or is covering, all bytes; False when nobody knows."""
        return self._resting_synced if self._file is None else self._file.synced

    def create(self) -> None:
        """Make the empty file. A left-over of the same name (a roll that failed half way) is emptied."""
        self._file = fresh(self._fs, self.path())
        self._open_files.used(self)

    def attach(self, next_offset: int, size_bytes: int) -> None:
        """A sealed segment found on disk: nothing but its size is looked at until it is needed."""
        self.next_offset = next_offset
        self.size_bytes = size_bytes
        self.indexes_loaded = False
        self._forget_recent(next_offset)

    # --- appending ---

    def fits_offset(self, offset: int) -> bool:
        return offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def note(self, last_offset: int, position: int, size_bytes: int, max_timestamp: int) -> None:
        """A batch was written at `position`. Kafka: the loop in LogSegment.append."""
        if position == 0:
            self.first_timestamp = max_timestamp
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self._max_offset = last_offset
        if self._bytes_since_entry > self._index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self._max_timestamp, self._max_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size_bytes
        self.size_bytes = position + size_bytes
        self.next_offset = last_offset + 1
        recent = self._recent_last
        recent.append(last_offset)
        self._recent_positions.append(position)
        if len(recent) >= 2 * RECENT_BATCHES_REMEMBERED:
            self._recent_floor = recent[RECENT_BATCHES_REMEMBERED - 1] + 1
            del recent[:RECENT_BATCHES_REMEMBERED], self._recent_positions[:RECENT_BATCHES_REMEMBERED]

    def seal(self) -> list[str]:
        """Write the index files; the segment gets no more batches. Returns the paths, for the next flush."""
        paths = []
        contents = self.sealed_indexes()
        for suffix, content in contents:
            if content or suffix != TXN_INDEX_SUFFIX:
                paths.append(self.path(suffix))
                self._replace(paths[-1], content)
            else:
                self._fs.remove(self.path(suffix))
        self.checksums, self.repaired = IndexChecksums.of(contents), False
        return paths

    def sealed_indexes(self) -> list[tuple[str, bytes]]:
        """(suffix, content) of the index files of a segment that gets no more batches; Kafka keeps no empty
        `.txnindex`."""
        self.time_index.maybe_append(self._max_timestamp, self._max_offset)
        return [
            (INDEX_SUFFIX, self.offset_index.encode()),
            (TIME_INDEX_SUFFIX, self.time_index.encode()),
            (TXN_INDEX_SUFFIX, self.txn_index.encode()),
        ]

    def rest(self) -> None:
        """After the roll: give back the memory that only the active segment needs."""
        self._forget_recent(self.next_offset)

    def _replace(self, path: str, data: bytes) -> None:
        file = fresh(self._fs, path)
        if data:
            file.append([data])

    # --- finding ---

    def position_of(self, offset: int) -> tuple[int, int] | None:
        """(position, size) of the first batch whose last offset is ≥ `offset`, None when the segment ends below."""
        if offset >= self.next_offset:
            return None
        if offset >= self._recent_floor:
            at = bisect_left(self._recent_last, offset)
            position = self._recent_positions[at]
            end = self._recent_positions[at + 1] if at + 1 < len(self._recent_positions) else self.size_bytes
            return position, end - position
        self.load_indexes()
        for position, header in self.headers(self.offset_index.position_for(offset)):
            if header.last_offset >= offset:
                return position, header.size_bytes
        return None

    def boundary_at(self, limit: int, known: int) -> int:
        """The last batch boundary ≤ `limit`; `known` is a boundary ≤ `limit` already known."""
        if limit >= self.size_bytes:
            return self.size_bytes
        recent = self._recent_positions
        if recent and limit >= recent[0]:
            return recent[bisect_right(recent, limit) - 1]
        self.load_indexes()
        boundary = max(known, self.offset_index.boundary_before(limit))
        for position, header in self.headers(boundary):
            end = position + header.size_bytes
            if end > limit:
                return position
            boundary = end
        return boundary

    def next_offset_at(self, boundary: int) -> int:
        """The offset behind the batch that ends at `boundary`, as a reader goes on: the next batch's base or later."""
        if boundary >= self.size_bytes:
            return self.next_offset
        return parse_header(self.file.pread(HEADER_SIZE_BYTES, boundary)).base_offset

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """(largest timestamp, last offset of its batch); (-1, base offset) without one."""
        self.load_indexes()
        return self._max_timestamp, self._max_offset

    # --- walking ---

    def headers(self, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch from `position`. CorruptData at the first that cannot be one."""
        end = self.size_bytes if end is None else end
        file = self.file
        start = position
        window = b""
        while position < end:
            at = position - start
            if at + HEADER_SIZE_BYTES > len(window):
                start, at = position, 0
                window = file.pread(min(HEADER_WINDOW_BYTES, end - position), position)
            header = parse_header(window, at)
            following = position + header.size_bytes
            if following > end:
                raise CorruptData(
                    f"{self.path()}: batch at offset {header.base_offset} is cut short by {following - end} bytes"
                )
            yield position, header
            position = following

    def batches(
        self, position: int = 0, end: int | None = None, *, max_bytes: int | None = None
    ) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """Position, header and bytes of each batch from `position`, up to one larger than `max_bytes`.

        CorruptData as in `headers`; no checksum.
        """
        end = self.size_bytes if end is None else end
        file = self.file
        start = position
        window = memoryview(b"")
        while position < end:
            at = position - start
            if at + HEADER_SIZE_BYTES > len(window):
                start, at = position, 0
                window = memoryview(file.pread(min(SCAN_WINDOW_BYTES, end - position), position))
            header = parse_header(window, at)
            size = header.size_bytes
            if position + size > end:
                raise CorruptData(
                    f"{self.path()}: batch at offset {header.base_offset} is cut short by {position + size - end} bytes"
                )
            if max_bytes is not None and size > max_bytes:
                return
            if at + size > len(window):
                start, at = position, 0
                window = memoryview(file.pread(max(size, min(SCAN_WINDOW_BYTES, end - position)), position))
            yield position, header, window[at : at + size]
            position += size

    def check_large(self, position: int, header: BatchHeader) -> None:
        """The checksum of a batch that is too large to be read at once. Raises CorruptData."""
        end = position + header.size_bytes
        starts = range(position, end, SCAN_WINDOW_BYTES)
        check_crc_in_pieces((self.file.pread(min(SCAN_WINDOW_BYTES, end - at), at) for at in starts), header)

    # --- indexes of a segment found on disk ---

    def load_indexes(self) -> None:
        """Read the index files of a sealed segment, rebuild what is missing or damaged."""
        if self.indexes_loaded:
            return
        self.indexes_loaded = True
        try:
            offsets = self._fs.read_file(self.path(INDEX_SUFFIX))
            times = self._fs.read_file(self.path(TIME_INDEX_SUFFIX))
            if self.checksums is not None and crc32c(times, crc32c(offsets)) != self.checksums.lookup:
                raise CorruptData(f"the indexes of {self.path()} are not those that were written")
            if self.checksums is None and self.size_bytes and not times:
                raise CorruptData(f"{self.path(TIME_INDEX_SUFFIX)} is empty")  # or no record has a time, once
            self.offset_index.decode(offsets, self.size_bytes)
            self.time_index.decode(times)
            self._max_timestamp, self._max_offset = self.time_index.last_entry
        except (CorruptData, FileNotFoundError):
            self.rebuild_indexes()
            self.repaired = True

    def load_txn_index(self) -> None:
        """Read `.txnindex`. Raises CorruptData: only recovery can rebuild it, with the producers' state."""
        try:
            data = self._fs.read_file(self.path(TXN_INDEX_SUFFIX))
        except FileNotFoundError:
            data = b""
        if self.checksums is not None and crc32c(data) != self.checksums.transactions:
            raise CorruptData(f"{self.path(TXN_INDEX_SUFFIX)} is not the file that was written")
        self.txn_index.decode(data, base_offset=self.base_offset, end_offset=self.next_offset)

    def load_as_active(self) -> BatchHeader | None:
        """Open the last segment of a cleanly closed log: its end is found by walking on from the last index entry.

        Returns the last batch's header. Raises CorruptData when the file does not end in a whole batch.
        """
        self.load_indexes()
        self._forget_recent(self.base_offset)
        position = self.offset_index.last_position
        last: BatchHeader | None = None
        self.next_offset = self.base_offset
        first_recent = position
        for at, header in self.headers(position):
            last = header
            self._recent_last.append(header.last_offset)
            self._recent_positions.append(at)
            if header.max_timestamp > self._max_timestamp:
                self._max_timestamp, self._max_offset = header.max_timestamp, header.last_offset
        if last is not None:
            self.next_offset = last.next_offset
            self._recent_floor = self._recent_last[0] if first_recent else self.base_offset
        else:
            self._recent_floor = self.base_offset
        self._bytes_since_entry = self.size_bytes - first_recent
        return last

    def reset(self) -> None:
        """Forget everything about the batches: the next `note` starts at position 0."""
        self.offset_index.truncate_to(self.base_offset)
        self.time_index.truncate_to(self.base_offset)
        self.txn_index = TxnIndex()
        self.indexes_loaded = True
        self.checksums = None
        self._bytes_since_entry = 0
        self._max_timestamp = -1
        self._max_offset = self.base_offset
        self.first_timestamp = None
        self.next_offset = self.base_offset
        self.size_bytes = 0
        self._forget_recent(self.base_offset)

    def rebuild_indexes(self) -> None:
        """Offset and time index anew from the headers (the transaction index needs producer state: recovery)."""
        size_bytes, next_offset, txn_index, checksums = (
            self.size_bytes,
            self.next_offset,
            self.txn_index,
            self.checksums,
        )
        self.reset()
        self.txn_index, self.checksums = txn_index, checksums
        try:
            for position, header in self.headers(0, size_bytes):
                self.note(header.last_offset, position, header.size_bytes, header.max_timestamp)
        except CorruptData:
            self.indexes_loaded = False
            raise
        finally:  # what was not gone through is there all the same
            self.size_bytes = size_bytes
            self.next_offset = max(next_offset, self.next_offset)
            self._forget_recent(self.next_offset)

    def copy_if_shared(self, size_bytes: int, *, names: int = 1) -> str | None:
        """Before the file is cut or appended to: if it has more than `names` names, a copy of its first bytes.

        The copy is on disk, for `cut_file`; this returns its path. None: the file is ours alone. Raises DiskFull
        (nothing has changed then), DiskFailure, CorruptData when it cannot be read.
        """
        path = self.path()
        if self._fs.link_count(path) <= names:
            return None
        copy = path + COPY_SUFFIX
        try:
            self._fs.copy(path, copy, lambda _bytes: None, size_bytes=size_bytes)
        except DiskFull:
            self._fs.remove(copy)
            raise
        return copy

    def cut_file(self, position: int, copy: str | None) -> None:
        """Cut the file at `position`; what else has the file keeps all of it. `copy`: of `copy_if_shared(position)`.

        A copy takes the file's place durably, a cut in place is not durable by itself.
        """
        if copy is None:
            self.file.truncate(position)
            return
        self.close()
        self._resting_size_bytes = -1
        try:
            self._fs.rename(copy, self.path())
        except DiskFull as error:  # half of a cut may be done by now: only a start can say what there is
            raise DiskFailure(str(error)) from error
        self._fs.sync_dir(self.directory)

    def own_file(self, names: int) -> None:
        """Make sure that appending changes nothing but this log. Raises what `copy_if_shared` does."""
        copy = self.copy_if_shared(self.size_bytes, names=names)
        if copy is not None:
            self.cut_file(self.size_bytes, copy)

    def truncate_to(self, offset: int, position: int, copy: str | None = None) -> None:
        """Cut at `position`, where the first batch that ends at or above `offset` begins. `copy`: see `cut_file`."""
        self.load_indexes()
        self.checksums, self.repaired = None, False
        self.cut_file(position, copy)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        self.size_bytes = position
        self._max_timestamp, self._max_offset = self.time_index.last_entry
        if position == 0:
            self.first_timestamp = None
        start = self.offset_index.last_position
        self._forget_recent(self.base_offset)
        self.next_offset = self.base_offset
        for at, header in self.headers(start):
            self._recent_last.append(header.last_offset)
            self._recent_positions.append(at)
            self.next_offset = header.next_offset
            if header.max_timestamp > self._max_timestamp:
                self._max_timestamp, self._max_offset = header.max_timestamp, header.last_offset
        self._recent_floor = self._recent_last[0] if start else self.base_offset
        self._bytes_since_entry = position - start

    def first_batch_timestamp(self) -> int | None:
        """Largest timestamp of the first batch, None when empty: what `segment.ms` counts from."""
        if self.first_timestamp is None and self.size_bytes:
            self.first_timestamp = parse_header(self.file.pread(HEADER_SIZE_BYTES, 0)).max_timestamp
        return self.first_timestamp

    def _forget_recent(self, floor: int) -> None:
        self._recent_last: array[int] = array("q")
        self._recent_positions: array[int] = array("q")
        self._recent_floor = floor

    def close(self) -> None:
        """Drop the file: it is closed when no flush and no waiting slice holds it any more."""
        self._file = None
        self._open_files.forget(self)
