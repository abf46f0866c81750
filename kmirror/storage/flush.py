"""What of a log is on disk, and the seam of the group commit. L2 storage.

`begin` and `finish` run on the loop, `FlushTicket.sync` in any thread.

A ticket names everything that must be synced for the log's end at the moment it was taken: the active file, segments
and side files written since, the directory, and the two small files that recovery trusts below the flushed offset
(`leader-epoch-checkpoint`, and kmirror's own `log-facts`). The recovery point that the broker writes down is
`flushed_offset`. A cut between `begin` and `finish` makes the ticket stale: its work is done but proves nothing.

`log-facts` is the one file that Kafka does not know (it leaves unknown files alone): the largest producer id ever
seen, the offsets of MIRROR_PID_RESET batches, how far compaction has been, the end of the log after the last cut,
which lowers a recovery point that was written before it, and the base offsets of the segments. Those are a list of
what must be there: a file is on it only after its name, and everything below it, is on disk, and it is off it before
anybody removes the file. Beside them stand the log start and checksums of what Kafka keeps without one (indexes,
leader epochs), and its last line is one of itself: a file that is right in form and wrong in content would be
answered from.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kmirror.errors import CorruptData, DiskFailure, DiskFull
from kmirror.protocol.checksum import crc32c
from kmirror.storage.checkpoints import LEADER_EPOCH_FILE, format_epochs, format_lines, parse_lines
from kmirror.storage.filesystem import File, FileSystem, fresh
from kmirror.storage.segment import SNAPSHOT_SUFFIX, IndexChecksums, Segment, offset_in

if TYPE_CHECKING:
    from kmirror.storage.log import Log

FACTS_FILE = "log-facts"
_CHECKSUM = "checksum"


@dataclass(slots=True)
class Unsynced:
    """What changed since the last ticket, besides the log's end."""

    files: list[File] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    directory: bool = False
    cut: bool = False
    facts: bool = False


@dataclass(slots=True)
class Facts:
    """Content of `log-facts`, true for the log below `end_offset`. Without `segments` it says nothing about them.

    `start_offset` is the log start, for when `log-start-offset-checkpoint` has nothing to say.

    `checksums` has the sealed segments' by base offset. `epochs_checksum` is that of `leader-epoch-checkpoint` as far
    as it speaks of offsets below `end_offset`; -1 when it is not known.
    """

    end_offset: int = 0
    start_offset: int = 0
    max_producer_id: int = -1
    cut_offset: int = -1
    compacted_to: int = 0
    pid_reset_offsets: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    checksums: dict[int, IndexChecksums] = field(default_factory=dict)
    epochs_checksum: int = -1

    def encode(self) -> bytes:
        lines = [f"end {self.end_offset}", f"start {self.start_offset}", f"max-producer-id {self.max_producer_id}"]
        lines += [f"cut {self.cut_offset}", f"epochs-checksum {self.epochs_checksum}"]
        lines.append(f"compacted {self.compacted_to}")
        lines += [f"pid-reset {offset}" for offset in self.pid_reset_offsets]
        for base_offset in self.segments:
            lines.append(" ".join(map(str, ("segment", base_offset, *self.checksums.get(base_offset, ())))))
        return format_lines([*lines, f"{_CHECKSUM} {crc32c(format_lines(lines))}"])

    @classmethod
    def decode(cls, data: bytes, path: str) -> Facts:
        """Raises CorruptData; a key of a newer version is ignored, and so is that an older one had no checksum."""
        facts = cls()
        rows = parse_lines(data, path)
        for words in rows:
            try:
                key, value, *rest = words[0], *map(int, words[1:])
            except (IndexError, ValueError):
                raise CorruptData(f"{path} has a line {' '.join(words)!r}") from None
            if key == "end":
                facts.end_offset = value
            elif key == "start":
                facts.start_offset = value
            elif key == "max-producer-id":
                facts.max_producer_id = value
            elif key == "cut":
                facts.cut_offset = value
            elif key == "compacted":
                facts.compacted_to = value
            elif key == "pid-reset":
                facts.pid_reset_offsets.append(value)
            elif key == "epochs-checksum":
                facts.epochs_checksum = value
            elif key == "segment":
                facts.segments.append(value)
                if len(rest) == len(IndexChecksums._fields):
                    facts.checksums[value] = IndexChecksums._make(rest)
            elif key == _CHECKSUM and value != crc32c(format_lines(" ".join(row) for row in rows[:-1])):
                raise CorruptData(f"{path} fails its checksum")
        return facts


class SideFiles:
    """Writes the small files of one log, newest content last, whichever thread comes when.

    A cut writes them in line while a ticket from before it may be in a thread: the older content must not win.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._lock = threading.Lock()
        self._given = 0
        self._written = 0

    def next_number(self) -> int:
        """The age of content that is put together now. Loop side."""
        self._given += 1
        return self._given

    def write(self, number: int, writes: Iterable[tuple[str, bytes]]) -> None:
        with self._lock:
            if number >= self._written:
                self._written = number
                for path, data in writes:
                    self._fs.write_atomic(path, data)


class FlushTicket:
    """One flush of one log. `sync` may run in any thread; everything else belongs to the loop."""

    __slots__ = ("_fs", "_log_directory", "_number", "_side_files", "end_offset", "generation", "unsynced", "writes")

    def __init__(self, log: Log, unsynced: Unsynced, writes: dict[str, bytes]) -> None:
        self._fs = log.fs
        self._log_directory = log.directory
        self._side_files = log.side_files
        self._number = log.side_files.next_number()
        self.unsynced = unsynced
        self.writes = writes
        self.end_offset = log.log_end_offset
        self.generation = log.generation

    def sync(self) -> None:
        """Files, then names, then the small files that speak about them. Raises DiskFailure: stop the process."""
        for file in self.unsynced.files:
            file.sync()
        for path in self.unsynced.paths:
            with suppress(FileNotFoundError):  # retention or a cut was faster
                self._fs.open(path).sync()
        if self.unsynced.directory:
            self._fs.sync_dir(self._log_directory)
        if self.writes:
            self._side_files.write(self._number, self.writes.items())


def facts_of(log: Log, segments: Sequence[Segment] | None = None) -> Facts:
    facts = facts_without_epochs(log, segments)
    facts.epochs_checksum = epochs_checksum(log.epochs.entries, log.log_end_offset)
    return facts


def epochs_checksum(entries: Iterable[tuple[int, int]], end_offset: int) -> int:
    """See `Facts`."""
    return crc32c(format_epochs(entry for entry in entries if entry[1] < end_offset))


def facts_without_epochs(log: Log, segments: Sequence[Segment] | None = None) -> Facts:
    """As `facts_of`, without the checksum, which takes most of the time."""
    segments = log.segments if segments is None else segments
    return Facts(
        log.log_end_offset,
        log.log_start_offset,
        log.max_producer_id,
        log.cut_offset,
        log.compacted_to,
        log.pid_reset_offsets.copy(),
        [segment.base_offset for segment in segments],
        {segment.base_offset: segment.checksums for segment in segments if segment.checksums is not None},
    )


def begin(log: Log) -> FlushTicket | None:
    """See `Log.begin_flush`. What an unfinished ticket has taken is taken again: it may never be synced."""
    if log.failed is not None:
        return None
    unsynced = log.unsynced
    data_changed = log.log_end_offset > log.flushed_offset or unsynced.cut
    if is_clean(log):
        return None
    if data_changed:
        unsynced.files.append(log.active.file)
    writes: dict[str, bytes] = {}
    for earlier in log.tickets:
        unsynced.files += [file for file in earlier.unsynced.files if file not in unsynced.files]
        unsynced.paths += earlier.unsynced.paths
        unsynced.directory = unsynced.directory or earlier.unsynced.directory
        writes.update(earlier.writes)
    if log.epochs.changed:
        unsynced.facts = True  # their checksum
        writes[f"{log.directory}/{LEADER_EPOCH_FILE}"] = format_epochs(log.epochs.entries)
        log.epochs.changed = False
    if unsynced.facts:
        path = f"{log.directory}/{FACTS_FILE}"
        writes.pop(path, None)  # it goes last: below the segments it lists, the epochs are right
        writes[path] = facts_of(log).encode()
    ticket = FlushTicket(log, unsynced, writes)
    log.unsynced = Unsynced()
    log.tickets.append(ticket)
    return ticket


def is_clean(log: Log) -> bool:
    """Whether everything that was appended, cut or derived so far is on disk."""
    unsynced = log.unsynced
    data_changed = log.log_end_offset > log.flushed_offset or unsynced.cut
    side_changed = log.epochs.changed or unsynced.facts
    return not (data_changed or side_changed or unsynced.directory or unsynced.paths or unsynced.files or log.tickets)


def finish(log: Log, ticket: FlushTicket) -> None:
    """See `Log.finish_flush`."""
    if ticket in log.tickets:
        del log.tickets[: log.tickets.index(ticket) + 1]
    if ticket.generation == log.generation and ticket.end_offset > log.flushed_offset:
        log.flushed_offset = ticket.end_offset


def write_facts(log: Log, segments: Sequence[Segment]) -> None:
    """At once and durably: before a cut lowers an older recovery point, and before files go that are not among
    `segments`. Raises DiskFull, DiskFailure."""
    log.fs.sync_dir(log.directory)
    # No checksum of the epochs: that file may still be the one of the last flush. The next one writes both.
    facts = facts_without_epochs(log, [segment for segment in segments if segment.base_offset <= log.flushed_offset])
    log.side_files.write(log.side_files.next_number(), [(f"{log.directory}/{FACTS_FILE}", facts.encode())])
    log.epochs.changed = True  # a ticket that is in a thread is the older one now: what it brings is not written


def write_snapshot(log: Log, offset: int) -> str:
    """The producers' state, which is that at `offset`; returns the path, for the next ticket."""
    path = log.snapshot_path(offset)
    file = fresh(log.fs, path)
    try:
        file.append([log.producers.encode_snapshot()])
    except DiskFull:
        log.fs.remove(path)  # an empty one would be taken for a damaged one
        raise
    return path


def snapshot_offsets(log: Log) -> list[int]:
    """Ascending offsets of the `.snapshot` files."""
    found = (offset_in(name, SNAPSHOT_SUFFIX) for name in log.fs.list_dir(log.directory))
    return sorted(offset for offset in found if offset is not None)


def remove_snapshots(log: Log, *, above: int | None = None) -> None:
    """Those above an offset; without one, those that belong to no segment and are not the newest."""
    offsets = snapshot_offsets(log)
    bases = {segment.base_offset for segment in log.segments}
    for offset in offsets:
        if (offset > above) if above is not None else (offset not in bases and offset != offsets[-1]):
            log.fs.remove(log.snapshot_path(offset))
            log.unsynced.directory = True


def close(log: Log) -> None:
    """The clean end of a log: all of it on disk, so that the next start scans nothing."""
    log.cut_offset = -1
    unsynced = log.unsynced
    unsynced.facts = True
    unsynced.directory = True
    for segment in log.segments:
        if segment.repaired or segment is log.active:
            unsynced.paths += segment.seal()
    newest = max(snapshot_offsets(log), default=-1)
    if log.log_end_offset > max(newest, log.segments[0].base_offset if newest < 0 else newest):
        unsynced.paths.append(write_snapshot(log, log.log_end_offset))
    remove_snapshots(log)
    log.flush()


def mark_failed(log: Log, error: DiskFailure) -> None:
    """After an I/O error nothing more is appended: only a restart, which recovers, knows what the disk has."""
    if log.failed is None:
        log.failed = error
