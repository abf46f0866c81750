"""One cleaning round over the files of a log: plan, clean, swap in. L2 storage. Kafka: Cleaner, LogCleanerManager.

Three steps, so that the work can be done in another process:
- `plan` (on the loop) puts everything that the round depends on into a `CleanJob` of plain values;
- `clean` (anywhere; `python -m kmirror.workers.clean` in a broker) reads the sealed segments and writes, for each group
  of them, one segment under names that end in `.cleaned`, synced;
- `swap` (on the loop) puts a group's new segment in the place of the old ones, if they are still what was planned for.

Crash safety, with Kafka's names: `.cleaned` counts for nothing. The `.log` is renamed to `.swap` last of a segment's
files, durably before an old file goes, and from it first; from then on recovery completes the swap, which
removes the old segments that `log-facts` does not list any more. Only what is on disk is cleaned, and `log-facts` with
the new list of segments is written first, so the gaps that cleaning leaves lie below a recovery point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kmirror.limits import CLEANER_BYTES_PER_KEY, CLEANER_MIN_KEYS, CLEANER_WRITE_BYTES
from kmirror.protocol.records import check_crc, parse_header
from kmirror.storage import compaction, flush, retention
from kmirror.storage.append import new_segment
from kmirror.storage.filesystem import Buffer, FileSystem, fresh
from kmirror.storage.index import MAX_RELATIVE_OFFSET, OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from kmirror.storage.segment import (
    CLEANED_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
    IndexChecksums,
    Segment,
)
from kmirror.storage.txn_index import AbortedTransaction

if TYPE_CHECKING:
    from kmirror.storage.log import Log


class Source(NamedTuple):
    """A sealed segment as it was when the round was planned."""

    base_offset: int
    next_offset: int
    size_bytes: int


@dataclass(slots=True)
class CleanJob:
    """Everything that a round depends on, as plain values. `to_plain` and `from_plain` carry it to another process."""

    directory: str
    sources: list[Source]
    first_dirty_offset: int
    first_uncleanable_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_bytes: int
    index_interval_bytes: int
    max_keys: int
    suffix: str = CLEANED_SUFFIX
    """Ends in `.cleaned`; two processes never use the same."""
    aborted: list[AbortedTransaction] = field(default_factory=list)
    last_records: dict[int, compaction.LastRecord] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        plain["last_records"] = [[producer_id, *last] for producer_id, last in self.last_records.items()]
        return plain

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> CleanJob:
        job = cls(**plain)
        job.sources = [Source(*source) for source in plain["sources"]]
        job.aborted = [AbortedTransaction(*entry) for entry in plain["aborted"]]
        job.last_records = {last[0]: compaction.LastRecord(last[1], last[2]) for last in plain["last_records"]}
        return job


class CleanedGroup(NamedTuple):
    """`sources` became one segment at the first one's base offset, on disk under `.cleaned` names."""

    sources: list[Source]
    next_offset: int
    size_bytes: int
    suffix: str
    checksums: IndexChecksums


class Dirt(NamedTuple):
    """What a log's cleaning would be about: bytes that were cleaned before, and bytes that would be now."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    overdue: bool
    """max.compaction.lag.ms is over for some of it."""

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


# --- choosing ---------------------------------------------------------------------------------------------------


def dirt(log: Log, *, cleaned_up_to: int, last_stable_offset: int, now_ms: int) -> Dirt:
    """Kafka: LogCleanerManager.cleanableOffsets, LogToClean. `cleaned_up_to`: the log's line in the checkpoint, or -1.

    Never beyond what is decided and visible (`last_stable_offset`), what is on disk, or the active segment. Raises
    CorruptData when a segment does not begin with a batch.
    """
    start = log.log_start_offset
    first_dirty = cleaned_up_to if start <= cleaned_up_to <= log.log_end_offset else start
    sealed = log.segments[:-1]
    limit = min(last_stable_offset, log.flushed_offset, log.active.base_offset)
    config = log.config
    overdue = False
    overdue_before_ms = now_ms - config.max_compaction_lag_ms
    for segment, following in zip(sealed, log.segments[1:], strict=True):
        if following.base_offset <= first_dirty:
            continue
        if config.min_compaction_lag_ms > 0 and segment.max_timestamp[0] > now_ms - config.min_compaction_lag_ms:
            limit = min(limit, segment.base_offset)
            break
        if not overdue and overdue_before_ms > 0:  # else there is no need to open the file
            overdue = 0 < (segment.first_batch_timestamp() or 0) < overdue_before_ms
    first_uncleanable = max(first_dirty, limit)
    clean = cleanable = 0
    for segment, following in zip(sealed, log.segments[1:], strict=True):
        if following.base_offset <= first_dirty:
            clean += segment.size_bytes
        elif following.base_offset <= first_uncleanable:
            cleanable += segment.size_bytes
    return Dirt(first_dirty, first_uncleanable, clean, cleanable, overdue)


def plan(log: Log, found: Dirt, *, now_ms: int, memory_bytes: int) -> CleanJob | None:
    """None when no whole segment can be cleaned. `memory_bytes` bounds the offset map (dedupe.buffer.size)."""
    sources = []
    for segment, following in zip(log.segments[:-1], log.segments[1:], strict=True):
        if following.base_offset > found.first_uncleanable_offset:
            break
        sources.append(Source(segment.base_offset, following.base_offset, segment.size_bytes))
    if not sources or sources[-1].next_offset <= found.first_dirty_offset:
        return None
    end = sources[-1].next_offset
    last_records = {
        entry.producer_id: compaction.LastRecord(
            entry.batches[-1].last_offset if entry.batches else -1, entry.producer_epoch
        )
        for entry in log.producers.entries.values()
    }
    return CleanJob(
        directory=log.directory,
        sources=sources,
        first_dirty_offset=found.first_dirty_offset,
        first_uncleanable_offset=end,
        now_ms=now_ms,
        delete_retention_ms=log.config.delete_retention_ms,
        segment_bytes=log.config.segment_bytes,
        index_bytes=log.config.segment_index_bytes,
        index_interval_bytes=log.config.index_interval_bytes,
        max_keys=max(CLEANER_MIN_KEYS, memory_bytes // CLEANER_BYTES_PER_KEY),
        aborted=log.aborted_transactions(sources[0].base_offset, end),
        last_records=last_records,
    )


# --- cleaning ---------------------------------------------------------------------------------------------------


def clean(
    fs: FileSystem, job: CleanJob, on_bytes: Callable[[int], None] = lambda size_bytes: None
) -> Iterator[CleanedGroup | int]:
    """The round: each group as soon as it is on disk, and at last the offset up to which the log is clean now.

    `on_bytes` is told what was read and written, and may take its time. Raises CorruptData for a batch that is damaged
    (nothing is lost: the old files stay), DiskFull, DiskFailure.
    """
    offset_map = _read_keys(fs, job, on_bytes)
    end_offset = offset_map.latest_offset + 1
    sources = [source for source in job.sources if source.base_offset < end_offset]
    transactions = compaction.CleanedTransactions(job.aborted)
    batch_filter = compaction.BatchFilter(
        offset_map,
        transactions,
        job.last_records,
        end_offset=job.first_uncleanable_offset,
        now_ms=job.now_ms,
        delete_retention_ms=job.delete_retention_ms,
    )
    for group in _grouped(fs, job, sources):
        yield _clean_group(fs, job, group, batch_filter, transactions, on_bytes)
    yield end_offset


def _segment(fs: FileSystem, job: CleanJob, base_offset: int) -> Segment:
    return Segment(
        fs,
        job.directory,
        base_offset,
        index_bytes=job.index_bytes,
        index_interval_bytes=job.index_interval_bytes,
        created_ms=job.now_ms,
    )


def _opened(fs: FileSystem, job: CleanJob, source: Source) -> Segment:
    segment = _segment(fs, job, source.base_offset)
    segment.attach(source.next_offset, source.size_bytes)
    return segment


def _read_keys(fs: FileSystem, job: CleanJob, on_bytes: Callable[[int], None]) -> compaction.OffsetMap:
    """Of the dirty segments, until the map is full."""
    offset_map = compaction.OffsetMap(job.max_keys)
    dirty = [source for source in job.sources if source.next_offset > job.first_dirty_offset]
    # A transaction whose marker lies before what is read would never be seen to end.
    aborted = [entry for entry in job.aborted if entry.last_offset >= dirty[0].base_offset]
    transactions = compaction.CleanedTransactions(aborted)
    for source in dirty:
        segment = _opened(fs, job, source)
        try:
            for _, header, data in segment.batches():
                check_crc(data, 0, header)
                on_bytes(len(data))
                if not compaction.fill(offset_map, transactions, header, data, from_offset=job.first_dirty_offset):
                    return offset_map
        finally:
            segment.close()
        offset_map.latest_offset = max(offset_map.latest_offset, source.next_offset - 1)
    return offset_map


def _grouped(fs: FileSystem, job: CleanJob, sources: Iterable[Source]) -> Iterator[list[Source]]:
    """Neighbours that fit into one segment, by bytes, index entries and relative offsets (groupSegmentsBySize)."""
    group: list[Source] = []
    size = offset_entries = time_entries = 0
    for source in sources:
        segment = _opened(fs, job, source)
        segment.load_indexes()
        more_offsets = len(segment.offset_index) * OFFSET_ENTRY_BYTES
        more_times = len(segment.time_index) * TIME_ENTRY_BYTES
        segment.close()
        fits = bool(group) and (
            size + source.size_bytes <= job.segment_bytes
            and offset_entries + more_offsets <= job.index_bytes
            and time_entries + more_times <= job.index_bytes
            and source.next_offset - 1 - group[0].base_offset <= MAX_RELATIVE_OFFSET
        )
        if group and not fits:
            yield group
            group, size, offset_entries, time_entries = [], 0, 0, 0
        group.append(source)
        size += source.size_bytes
        offset_entries += more_offsets
        time_entries += more_times
    if group:
        yield group


def _clean_group(
    fs: FileSystem,
    job: CleanJob,
    group: list[Source],
    batch_filter: compaction.BatchFilter,
    transactions: compaction.CleanedTransactions,
    on_bytes: Callable[[int], None],
) -> CleanedGroup:
    cleaned = _segment(fs, job, group[0].base_offset)
    file = fresh(fs, cleaned.path() + job.suffix)
    pieces: list[Buffer] = []
    waiting = position = 0
    for source in group:
        segment = _opened(fs, job, source)
        for _, header, data in segment.batches():
            check_crc(data, 0, header)
            on_bytes(len(data))
            kept = batch_filter.apply(header, data)
            if kept is None:
                continue
            cleaned.note(header.last_offset, position, len(kept), parse_header(kept).max_timestamp)
            pieces.append(kept)
            position += len(kept)
            waiting += len(kept)
            if waiting >= CLEANER_WRITE_BYTES:
                file.append([b"".join(pieces)])
                on_bytes(waiting)
                pieces, waiting = [], 0
        segment.close()
    if pieces:
        file.append([b"".join(pieces)])
    file.sync()
    # Retention asks the file where no record has a time (Kafka: cleaned.setLastModified).
    fs.set_modified_ms(cleaned.path() + job.suffix, fs.modified_ms(_opened(fs, job, group[-1]).path()))
    cleaned.txn_index.entries = sorted(transactions.kept, key=lambda entry: entry.last_offset)
    transactions.kept = []
    contents = cleaned.sealed_indexes()
    for suffix, content in contents:
        if content or suffix != TXN_INDEX_SUFFIX:
            side = fresh(fs, cleaned.path(suffix) + job.suffix)
            if content:
                side.append([content])
            side.sync()
    return CleanedGroup(group, group[-1].next_offset, position, job.suffix, IndexChecksums.of(contents))


# --- swapping in ------------------------------------------------------------------------------------------------


def swap(log: Log, group: CleanedGroup, now_ms: int) -> bool:
    """Put the group's new segment in place. False, and nothing but the `.cleaned` files goes, when the log was cut or
    trimmed meanwhile. Raises DiskFull (nothing has changed then), DiskFailure."""
    first = _still_there(log, group.sources)
    cleaned = new_segment(log, group.sources[0].base_offset)
    if first is None:
        _drop(log.fs, cleaned, group.suffix)
        return False
    old = log.segments[first : first + len(group.sources)]
    following = log.segments[first + len(group.sources) :]
    cleaned.attach(following[0].base_offset, group.size_bytes)
    if group.next_offset > log.log_start_offset:
        log.compacted_to = max(log.compacted_to, group.next_offset)
    cleaned.checksums = group.checksums
    flush.write_facts(log, [*log.segments[:first], cleaned, *following])
    _rename(log.fs, cleaned, group.suffix, SWAP_SUFFIX)
    log.fs.sync_dir(log.directory)
    for segment in old:
        retention.doom(log, segment, now_ms)
    _rename(log.fs, cleaned, SWAP_SUFFIX, "")
    cleaned.load_txn_index()
    log.segments[first : first + len(old)] = [cleaned]
    log.unsynced.directory = True
    return True


def _still_there(log: Log, sources: list[Source]) -> int | None:
    """Index of the first of `sources` among the log's sealed segments, if all of them are as they were."""
    bases = [segment.base_offset for segment in log.segments]
    if sources[0].base_offset not in bases:
        return None
    first = bases.index(sources[0].base_offset)
    found = log.segments[first : first + len(sources) + 1]
    if len(found) != len(sources) + 1:
        return None
    same = all(
        segment.base_offset == source.base_offset and segment.size_bytes == source.size_bytes
        for segment, source in zip(found, sources, strict=False)
    )
    return first if same and found[-1].base_offset == sources[-1].next_offset else None


def _rename(fs: FileSystem, segment: Segment, before: str, after: str) -> None:
    """The `.log` last on the way to `.swap`, first on the way from it: see `recovery.complete_swaps`."""
    for suffix in SEGMENT_SUFFIXES if after == SWAP_SUFFIX else reversed(SEGMENT_SUFFIXES):
        path = segment.path(suffix)
        with suppress(FileNotFoundError):
            fs.rename(path + before, path + after)


def _drop(fs: FileSystem, segment: Segment, ending: str) -> None:
    for suffix in SEGMENT_SUFFIXES:
        fs.remove(segment.path(suffix) + ending)


def drop_all(log: Log) -> None:
    """A round ended before its time: remove everything it left."""
    for name in log.fs.list_dir(log.directory):
        if name.endswith(CLEANED_SUFFIX):
            log.fs.remove(f"{log.directory}/{name}")
