"""Deleting old segments. L2 storage. Kafka: UnifiedLog.deleteOldSegments.

Whole segments from the front only: beyond `retention.ms` or `retention.bytes` (cleanup policies with "delete"), or
below the log start (any policy). Files get the suffix `.deleted` at once and are removed `file.delete.delay.ms` later,
so that a reader that holds a slice has time; recovery removes what a crash left.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kmirror.storage import flush
from kmirror.storage.segment import DELETED_SUFFIX, SEGMENT_SUFFIXES, Segment

if TYPE_CHECKING:
    from kmirror.storage.log import Log


class Doomed(NamedTuple):
    """Files that go at `at_ms`."""

    at_ms: int
    paths: list[str]


def apply(log: Log, now_ms: int, high_watermark: int) -> int:
    """See `Log.apply_retention`."""
    count = _deletable_count(log, now_ms, high_watermark)
    if count == 0:
        return 0
    if count == len(log.segments):
        log.roll()
    _keep_producers(log, log.segments[count])
    flush.write_facts(log, log.segments[count:])
    gone = log.segments[:count]
    start = max(log.log_start_offset, log.segments[count].base_offset)
    del log.segments[:count]
    log.log_start_offset = start
    log.epochs.truncate_from_start(start)
    log.flushed_offset = max(log.flushed_offset, start)
    for segment in gone:
        doom(log, segment, now_ms)
        doom_paths(log, [log.snapshot_path(segment.base_offset)], now_ms)
    log.unsynced.directory = True
    return count


def _keep_producers(log: Log, first: Segment) -> None:
    """What the deleted batches said of their producers is only in the snapshot of the segment that is first now."""
    with suppress(FileNotFoundError):
        log.fs.open(log.snapshot_path(first.base_offset)).sync()


def _deletable_count(log: Log, now_ms: int, high_watermark: int) -> int:
    config = log.config
    excess = log.size_bytes - config.retention_bytes if config.delete and config.retention_bytes >= 0 else -1
    count = 0
    for index, segment in enumerate(log.segments):
        last = index + 1 == len(log.segments)
        end = segment.next_offset if last else log.segments[index + 1].base_offset
        if end > high_watermark or (last and not segment.size_bytes):
            break
        below_start = not last and end <= log.log_start_offset
        too_much = excess - segment.size_bytes >= 0
        if not (below_start or too_much or _too_old(log, segment, now_ms)):
            break
        excess -= segment.size_bytes
        count += 1
    return count


def _too_old(log: Log, segment: Segment, now_ms: int) -> bool:
    if not log.config.delete or log.config.retention_ms < 0:
        return False
    newest = segment.max_timestamp[0]
    if newest < 0:
        newest = log.fs.modified_ms(segment.path())
    return now_ms - newest > log.config.retention_ms


def doom(log: Log, segment: Segment, now_ms: int) -> None:
    """The segment's files go, save the producers' snapshot at its beginning."""
    segment.keep_file()
    doom_paths(log, [segment.path(suffix) for suffix in reversed(SEGMENT_SUFFIXES)], now_ms)


def doom_paths(log: Log, paths: Iterable[str], now_ms: int) -> None:
    log.before_removal()
    renamed = []
    for path in paths:
        with suppress(FileNotFoundError):
            log.fs.rename(path, path + DELETED_SUFFIX)
            renamed.append(path + DELETED_SUFFIX)
    log.doomed.append(Doomed(now_ms + log.config.file_delete_delay_ms, renamed))


def delete_doomed(log: Log, now_ms: int) -> int | None:
    """See `Log.delete_doomed`."""
    while log.doomed and log.doomed[0].at_ms <= now_ms:
        for path in log.doomed.pop(0).paths:
            log.fs.remove(path)
        log.unsynced.directory = True
    return log.doomed[0].at_ms if log.doomed else None
