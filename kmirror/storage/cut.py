"""Truncating a log, saving what is cut, moving its start. L2 storage. Kafka: UnifiedLog.truncateTo and others.

A cut must not come undone by a crash in a way that mixes old and new: first the recovery point is lowered durably (in
`log-facts`), then segments above the cut go, newest first and durably, then the file is cut and synced before anything
can be written in the place of what was there. At every point a crash leaves a prefix of the log as it was. A file that
has another name, a backup's, is never cut in place: a copy of what stays, made before anything else is changed, takes
its place. Cuts are rare, so they pay their syncs in line. All derived state (indexes, epochs, producers, aborted
transactions) is cut too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kmirror.errors import DiskFull, OffsetOutOfRange
from kmirror.limits import SCAN_WINDOW_BYTES
from kmirror.storage import append, flush
from kmirror.storage.checkpoints import LEADER_EPOCH_FILE
from kmirror.storage.filesystem import fresh
from kmirror.storage.producer_state import ProducerState
from kmirror.storage.segment import LOG_SUFFIX, SEGMENT_SUFFIXES, file_name

if TYPE_CHECKING:
    from kmirror.storage.log import Log


@dataclass(frozen=True, slots=True)
class SavedCut:
    """What `save_cut` copied: offsets [first_offset, end_offset), not all of which need to exist."""

    first_offset: int
    end_offset: int
    batch_count: int
    size_bytes: int
    paths: tuple[str, ...]


def truncate_to(log: Log, offset: int) -> int:
    """See `Log.truncate_to`."""
    if offset < log.log_start_offset:
        raise OffsetOutOfRange(f"cannot cut at {offset}: the log starts at {log.log_start_offset}")
    if offset >= log.log_end_offset:
        return log.log_end_offset
    keep = log.segment_index(offset)
    segment = log.segments[keep]
    found = segment.position_of(offset)
    if keep == 0 and found is not None and found[0] == 0:
        truncate_fully_and_start_at(log, log.log_start_offset)
        return log.log_end_offset
    if found is not None and found[0] == 0:
        # Nothing of it stays: an empty segment behind a gap would say that the log goes up to it.
        keep -= 1
        segment, found = log.segments[keep], None
    position = segment.size_bytes if found is None else found[0]
    log.before_removal()
    copy = segment.copy_if_shared(position)
    log.generation += 1
    # The new end may be anywhere in this segment: a recovery point must not claim more than what is before it.
    log.cut_offset = segment.base_offset if log.cut_offset < 0 else min(log.cut_offset, segment.base_offset)
    try:
        flush.write_facts(log, log.segments[: keep + 1])
    except DiskFull:
        if copy is not None:
            log.fs.remove(copy)
        raise
    _remove_segments(log, keep + 1)
    segment.truncate_to(offset, position, copy)
    log.log_end_offset = segment.next_offset
    if log.log_end_offset < log.log_start_offset:  # what is left lies below the log start
        truncate_fully_and_start_at(log, log.log_start_offset)
        return log.log_end_offset
    _after_cut(log)
    log.flush()
    return log.log_end_offset


def _remove_segments(log: Log, first: int) -> None:
    if first >= len(log.segments):
        return
    for segment in reversed(log.segments[first:]):
        for suffix in SEGMENT_SUFFIXES:
            log.fs.remove(segment.path(suffix))
        segment.close()
        log.fs.sync_dir(log.directory)
    del log.segments[first:]


def _after_cut(log: Log) -> None:
    end = log.log_end_offset
    log.flushed_offset = min(log.flushed_offset, end)
    log.epochs.truncate_from_end(end)
    log.last_leader_epoch = log.epochs.epoch_at(end - 1)
    log.pid_reset_offsets = [offset for offset in log.pid_reset_offsets if offset < end]
    log.compacted_to = min(log.compacted_to, end)
    flush.remove_snapshots(log, above=end)
    rebuild_producers(log)
    # What a ticket from before the cut has synced is not counted: these go into the next one again.
    log.unsynced.files += [segment.file for segment in log.segments[:-1] if segment.next_offset > log.flushed_offset]
    log.unsynced.cut = log.unsynced.facts = log.unsynced.directory = True
    log.epochs.changed = True


def rebuild_producers(log: Log) -> None:
    """The producers' state at the log's end, from the newest snapshot that can be read and the headers behind it."""
    from kmirror.storage import recovery

    log.producers = ProducerState(log.segments[0].base_offset)
    start = recovery.load_newest_snapshot(log, log.log_end_offset)
    recovery.replay_producers(log, start)


def truncate_fully_and_start_at(log: Log, offset: int) -> None:
    """See `Log.truncate_fully_and_start_at`."""
    log.before_removal()
    log.generation += 1
    log.cut_offset = 0  # nothing that was on disk is promised any more, wherever a crash leaves it to begin
    flush.write_facts(log, [])
    _remove_segments(log, 1)
    # What outlives all batches would be taken for what went before them.
    flush.remove_snapshots(log, above=-1)
    log.fs.remove(f"{log.directory}/{LEADER_EPOCH_FILE}")
    _remove_segments(log, 0)
    log.pid_reset_offsets = []
    log.compacted_to = 0
    segment = append.new_segment(log, offset)
    segment.create()
    log.segments = [segment]
    log.log_start_offset = log.log_end_offset = log.flushed_offset = offset
    log.last_leader_epoch = -1
    log.epochs.clear()
    log.producers = ProducerState(offset)
    log.unsynced = flush.Unsynced(directory=True, facts=True)
    log.epochs.changed = True
    log.flush()


def advance_log_start(log: Log, offset: int) -> bool:
    """See `Log.advance_log_start`."""
    if offset > log.log_end_offset:
        raise OffsetOutOfRange(f"cannot start the log at {offset}: it ends at {log.log_end_offset}")
    if offset <= log.log_start_offset:
        return False
    log.log_start_offset = offset
    log.epochs.truncate_from_start(offset)
    return True


def save_cut(log: Log, from_offset: int, target_directory: str) -> SavedCut:
    """See `Log.save_cut`."""
    log.fs.make_dirs(target_directory)
    first = end = from_offset
    batch_count = size_bytes = 0
    paths: list[str] = []
    for segment in log.segments[log.segment_index(from_offset) :]:
        found = segment.position_of(from_offset)
        if found is None:
            continue
        start = found[0]
        base = -1
        for _, header in segment.headers(start):
            base = header.base_offset if base < 0 else base
            end = header.next_offset
            batch_count += 1
        first = base if not paths else first
        path = f"{target_directory}/{file_name(base, LOG_SUFFIX)}"
        target = fresh(log.fs, path)
        for position in range(start, segment.size_bytes, SCAN_WINDOW_BYTES):
            target.append([segment.file.pread(min(SCAN_WINDOW_BYTES, segment.size_bytes - position), position)])
        target.sync()
        size_bytes += segment.size_bytes - start
        paths.append(path)
    log.fs.sync_dir(target_directory)
    return SavedCut(first, end, batch_count, size_bytes, tuple(paths))
