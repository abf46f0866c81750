"""Opening a log: the only place where its state is rebuilt. L2 storage. Kafka: LogLoader, LogSegment.recover.

After a clean stop nothing is scanned but the few batches behind the last index entry. Otherwise every segment from the
one that holds the recovery point is gone through: below the point headers only (it says that those bytes are on disk),
from it on with checksums; the log ends before the first batch that is not right, or that does not follow the one
before it. Indexes, aborted transactions, leader epochs and the producers' state are made anew on the way, and
everything is synced before the log is handed out.

Damage below the recovery point is never cut away, and a log that ends below it is not begun again there: acknowledged
data would go silently, and its offsets would be given out twice. Both raise CorruptData, and so does a segment that
somebody removed: `log-facts` lists those that must be there, and in a directory that Kafka wrote the index files of the
missing one tell. Gaps alone say nothing: compaction leaves them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from kmirror.errors import CorruptData
from kmirror.limits import BATCH_AT_ONCE_BYTES
from kmirror.protocol.records import (
    CONTROL_MIRROR_PID_RESET,
    HEADER_SIZE_BYTES,
    BatchHeader,
    check_crc,
    parse_header,
)
from kmirror.storage import append, flush
from kmirror.storage.checkpoints import (
    LEADER_EPOCH_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    parse_epochs,
)
from kmirror.storage.epochs import EpochCache
from kmirror.storage.flush import FACTS_FILE, Facts
from kmirror.storage.index import MAX_RELATIVE_OFFSET
from kmirror.storage.producer_state import AppendOrigin
from kmirror.storage.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    file_name,
    offset_in,
)
from kmirror.storage.txn_index import AbortedTransaction
from kmirror.storage.values import LONG_MAX

if TYPE_CHECKING:
    from kmirror.storage.log import Log

_LEFT_OVER = (DELETED_SUFFIX, ".tmp", CLEANED_SUFFIX)


def recover(log: Log, *, clean: bool, recovery_point: int, log_start_offset: int) -> None:
    """Fill a new `Log`. See `Log.open` for the errors."""
    log.fs.make_dirs(log.directory)
    facts, facts_known = _read_facts(log)
    log_start_offset = log_start_offset or facts.start_offset
    names = _tidy(log, complete_swaps(log, facts, log.fs.list_dir(log.directory)))
    if facts.cut_offset >= 0:
        recovery_point = min(recovery_point, facts.cut_offset)
    recovery_point = max(recovery_point, *facts.segments, 0)
    log.compacted_to = facts.compacted_to if facts_known else LONG_MAX
    bases = sorted(offset for name in names if (offset := offset_in(name, LOG_SUFFIX)) is not None)
    _check_all_there(log, names, bases, facts, recovery_point, log_start_offset)
    _find_segments(log, names, bases, log_start_offset, facts)
    log.log_start_offset = max(log_start_offset, log.segments[0].base_offset)
    epochs_known = _read_epochs(log, facts)
    rebuild_from = _load_cleanly(log) if clean else None
    if rebuild_from is None:
        rebuild_from = log.segment_index(max(0, recovery_point - 1))
    elif log.epochs.latest != log.last_leader_epoch >= 0:
        epochs_known = False
    rebuild_from = _load_txn_indexes(log, rebuild_from)
    log.active.checksums = None  # it goes on
    if not epochs_known:
        log.epochs = EpochCache()
    if not clean or rebuild_from < len(log.segments):
        log.cut_offset = facts.cut_offset
    _replay(log, rebuild_from, recovery_point, facts, facts_known=facts_known, epochs_known=epochs_known)
    if max(log.log_end_offset, log_start_offset) < recovery_point:
        raise _missing(log, log.log_end_offset, recovery_point)
    if clean and log.log_end_offset < log_start_offset:
        raise _starts_beyond(log, log_start_offset)
    if facts.segments != [segment.base_offset for segment in log.segments]:
        log.unsynced.facts = True
    log.flushed_offset = min(recovery_point, log.log_end_offset)
    _settle(log, log_start_offset, facts, rebuilt=rebuild_from < len(log.segments) or not clean)


# --- what is there ----------------------------------------------------------------------------------------------


def _tidy(log: Log, names: list[str]) -> list[str]:
    """Remove what interrupted deletions and rewrites left behind; returns the names that stay."""
    kept = []
    for name in names:
        if name.endswith(_LEFT_OVER):
            log.fs.remove(f"{log.directory}/{name}")
            log.unsynced.directory = True
        else:
            kept.append(name)
    return kept


def complete_swaps(log: Log, facts: Facts, names: list[str]) -> list[str]:
    """Finish, or undo, what a stop interrupted of putting cleaned segments in place; returns the names there are now.

    `names`: what the directory holds. A `.cleaned` file means that its segment, and each behind it, was not yet
    complete: Kafka drops those (LogLoader). A `.log.swap` is complete: the segments it was made of go, then it gets its
    name, and its indexes after it. They are those up to the next segment in `log-facts`, and those below its own end:
    Kafka, which knows no facts, may have written it.
    """
    cleaned = min((_base_of(name) for name in names if name.endswith(CLEANED_SUFFIX)), default=LONG_MAX)
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    if not swaps:
        return names
    path = f"{log.directory}/"
    for name in sorted(swaps, key=lambda name: (_base_of(name), not name.endswith(LOG_SUFFIX + SWAP_SUFFIX))):
        base = _base_of(name)
        if base >= cleaned:
            log.fs.remove(path + name)
            continue
        final = name.removesuffix(SWAP_SUFFIX)
        if final.endswith(LOG_SUFFIX):
            following = min((known for known in facts.segments if known > base), default=base + 1)
            end = max(following, _end_of(log, base, SWAP_SUFFIX))
            for other in names:
                if base <= _base_of(other) < end and other.endswith(SEGMENT_SUFFIXES):
                    log.fs.remove(path + other)
            log.report.notes.append(f"{path}{final}: cleaning was interrupted; completed")
        log.fs.rename(path + name, path + final)
    log.fs.sync_dir(log.directory)
    return log.fs.list_dir(log.directory)


def _base_of(name: str) -> int:
    """The offset that a segment's file is named after, -1 for other files."""
    digits = name.partition(".")[0]
    return int(digits) if len(digits) == 20 and digits.isascii() and digits.isdigit() else -1


def _check_all_there(
    log: Log, names: list[str], bases: list[int], facts: Facts, recovery_point: int, log_start_offset: int
) -> None:
    """Before anything is touched: no segment is missing whose records readers may ask for. Raises CorruptData.

    Segments gone from the front only raise the log start, as retention does: nothing is said of offsets that are there.
    """
    if not bases:
        if facts.segments:
            raise _removed(log, facts.segments[-1])
        if recovery_point > log_start_offset:
            raise _missing(log, log_start_offset, recovery_point)
        return
    known = set(facts.segments)
    for name in names:
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            offset = offset_in(name, suffix)
            if offset is not None and bases[0] < offset < bases[-1]:
                known.add(offset)
    for base in sorted(known.difference(bases)):
        behind = bisect_left(bases, base)
        if behind == 0:
            log.report.notes.append(f"{log.directory} begins at {bases[0]}; the segment at {base} is gone")
        elif behind == len(bases) or (bases[behind] > log_start_offset and _end_of(log, bases[behind - 1]) <= base):
            raise _removed(log, base)


def _end_of(log: Log, base_offset: int, suffix: str = "") -> int:
    """Where the segment ends by its own account: another program that compacted the log may have merged two."""
    file = log.fs.open(f"{log.directory}/{file_name(base_offset, LOG_SUFFIX)}{suffix}")
    end, position = base_offset, 0
    with suppress(CorruptData):
        while position < file.size_bytes:
            header = parse_header(file.pread(HEADER_SIZE_BYTES, position))
            end = header.next_offset
            position += header.size_bytes
    return end


def _removed(log: Log, base_offset: int) -> CorruptData:
    path = f"{log.directory}/{file_name(base_offset, '')}"
    return CorruptData(
        f"{path}{LOG_SUFFIX} is missing, with all records from offset {base_offset} on that it held. Nothing was "
        f"changed. Restore it from a copy; or, to give its records up, remove {path}.* and {FACTS_FILE} beside it"
    )


def _missing(log: Log, end_offset: int, recovery_point: int) -> CorruptData:
    return CorruptData(
        f"{log.directory} ends at offset {end_offset}, but records up to {recovery_point} were on disk: segment files "
        "are missing or shorter than they were. No record was touched. Restore them from a copy; or, to give those "
        f"records up, set the partition's line in {RECOVERY_POINT_FILE} to {end_offset} and remove {FACTS_FILE}"
    )


def _starts_beyond(log: Log, log_start_offset: int) -> CorruptData:
    """After a crash a log may end below its start: what was deleted had not been synced. Not after a clean stop."""
    return CorruptData(
        f"{log.directory} ends at offset {log.log_end_offset} after a clean stop, but {LOG_START_FILE} has it begin at "
        f"{log_start_offset}. No record was touched. Restore what is missing; or, if that file is wrong, set the "
        f"partition's line in it to {log.segments[0].base_offset}"
    )


def _find_segments(log: Log, names: list[str], bases: list[int], log_start_offset: int, facts: Facts) -> None:
    for name in names:
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            offset = offset_in(name, suffix)
            if offset is not None and offset not in bases:
                log.fs.remove(f"{log.directory}/{name}")
                log.unsynced.directory = True
    if not bases:
        segment = append.new_segment(log, log_start_offset)
        segment.create()
        log.segments = [segment]
        log.unsynced.directory = True
        return
    for index, base in enumerate(bases):
        segment = append.new_segment(log, base)
        end = bases[index + 1] if index + 1 < len(bases) else base
        segment.attach(end, log.fs.file_size(segment.path()))
        segment.checksums = facts.checksums.get(base)
        log.segments.append(segment)


def _read_facts(log: Log) -> tuple[Facts, bool]:
    path = f"{log.directory}/{FACTS_FILE}"
    try:
        return Facts.decode(log.fs.read_file(path), path), True
    except FileNotFoundError:
        return Facts(), False
    except CorruptData as error:
        log.report.notes.append(f"{error}; read anew from the log")
        return Facts(cut_offset=0), False


def _read_epochs(log: Log, facts: Facts) -> bool:
    """False when the file is missing or damaged, and there may be batches: they are read for it then.

    A flush writes it a moment before `log-facts`: what it has from there on is not in that one's checksum.
    """
    path = f"{log.directory}/{LEADER_EPOCH_FILE}"
    try:
        entries = parse_epochs(log.fs.read_file(path), path)
        if facts.epochs_checksum not in (-1, flush.epochs_checksum(entries, facts.end_offset)):
            raise CorruptData(f"{path} is not the file that was written")
        log.epochs = EpochCache(entries)
        return True
    except FileNotFoundError:
        return all(segment.size_bytes == 0 for segment in log.segments)
    except CorruptData as error:
        log.report.notes.append(f"{error}; read anew from the log")
        return False


def _load_cleanly(log: Log) -> int | None:
    """Take the log as its clean stop left it. Returns the number of segments, from which on there is nothing to be gone
    through; None when the end of the log is not as a clean stop leaves it."""
    active = log.active
    try:
        last = active.load_as_active()
    except CorruptData as error:
        log.report.notes.append(f"{active.path()}: {error}; the stop was not clean, or the file was changed since")
        return None
    log.log_end_offset = active.next_offset
    known = last is not None and last.leader_epoch >= 0
    log.last_leader_epoch = last.leader_epoch if last and known else log.epochs.epoch_at(log.log_end_offset - 1)
    return len(log.segments)


def _load_txn_indexes(log: Log, end: int) -> int:
    """Of the segments before index `end`; returns the index of the first whose file is damaged, or `end`."""
    for index, segment in enumerate(log.segments[:end]):
        try:
            segment.load_txn_index()
        except CorruptData as error:
            log.report.notes.append(f"{error}; made anew")
            return index
    return end


# --- going through ----------------------------------------------------------------------------------------------


def load_newest_snapshot(log: Log, end_offset: int) -> int:
    """Load the newest producer snapshot at or below `end_offset` that can be read; the others that cannot are removed.

    Returns its offset, or the first segment's base offset, where the state is empty.
    """
    now_ms = log.clock.time_ms()
    for offset in reversed(flush.snapshot_offsets(log)):
        if offset > end_offset:
            continue
        try:
            log.producers.load_snapshot(log.fs.read_file(log.snapshot_path(offset)), offset, now_ms)
            return offset
        except CorruptData as error:
            log.report.notes.append(f"{error}; removed")
            log.fs.remove(log.snapshot_path(offset))
            log.unsynced.directory = True
    base_offset = log.segments[0].base_offset
    log.producers.clear(base_offset)
    return base_offset


def replay_producers(log: Log, from_offset: int) -> None:
    """Bring the producers' state from `from_offset` to the log's end. The headers are known to be good."""
    for segment in log.segments[log.segment_index(from_offset) :]:
        found = segment.position_of(from_offset)
        if found is None:
            continue
        for position, header in segment.headers(found[0]):
            _apply_producers(log, segment, position, header, None, keep_aborted=False)
    log.producers.end_offset = log.log_end_offset
    _correct_open_transactions(log)


def _apply_producers(
    log: Log, segment: Segment, position: int, header: BatchHeader, data: memoryview | None, *, keep_aborted: bool
) -> None:
    if header.producer_id < 0 and not header.is_control:
        log.producers.end_offset = header.next_offset
        return
    marker = None
    if header.is_control:
        batch = data if data is not None else memoryview(segment.file.pread(header.size_bytes, position))
        marker = append.marker_of(batch, 0, header)
        if marker is None:
            log.producers.end_without_marker(header.producer_id)
    pending = log.producers.prepare(AppendOrigin.REPLICATION, log.clock.time_ms())
    pending.add(header, header.base_offset, marker)
    if marker is not None and marker.control_type == CONTROL_MIRROR_PID_RESET:
        resets = log.pid_reset_offsets
        if not resets or resets[-1] < header.base_offset:
            resets.append(header.base_offset)
            log.unsynced.facts = True
    for completed in pending.commit(header.next_offset):
        if completed.aborted and keep_aborted:
            segment.txn_index.entries.append(
                AbortedTransaction(
                    completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset
                )
            )


class _Replay:
    """The walk through the segments: what is expected next, and from which offset on each kind of state is made."""

    def __init__(
        self, log: Log, recovery_point: int, *, producers_from: int, facts_from: int, epochs_from: int
    ) -> None:
        self.log = log
        self.recovery_point = recovery_point
        self.producers_from = producers_from
        self.facts_from = facts_from
        self.epochs_from = epochs_from
        first = log.epochs.entries[0][1] if log.epochs.entries else 0
        self.epochs_trimmed_to = first if first <= log.log_start_offset else 0
        """The file says nothing of lower offsets: when it was written, the log began here."""
        self.expected = -1
        self.epoch = -1

    def batch(
        self, segment: Segment, position: int, header: BatchHeader, data: memoryview | None, *, rebuild: bool
    ) -> None:
        """Check (when rebuilding) and take one batch, whose checksum is right. Raises CorruptData."""
        log = self.log
        if rebuild:
            if header.base_offset < self.expected:
                raise CorruptData(f"offset {header.base_offset} follows {self.expected - 1}")
            if 0 <= header.leader_epoch < self.epoch and header.last_offset >= self.recovery_point:
                raise CorruptData(f"leader epoch {header.leader_epoch} follows {self.epoch}")
            if not segment.fits_offset(header.last_offset):
                raise CorruptData(f"offset {header.last_offset} is too far from {segment.base_offset}")
            segment.note(header.last_offset, position, header.size_bytes, header.max_timestamp)
        self.expected = header.next_offset
        if header.leader_epoch >= 0:  # message sets of magic 0 and 1 have none
            self.epoch = header.leader_epoch
        if header.base_offset >= self.epochs_from and header.leader_epoch >= 0:
            self._epoch_begins(header)
        if header.producer_id > log.max_producer_id:
            log.max_producer_id = header.producer_id
            log.unsynced.facts = True
        if header.base_offset >= self.producers_from or header.is_control:
            self._producers(segment, position, header, data, rebuild=rebuild)

    def _epoch_begins(self, header: BatchHeader) -> None:
        """Unless the file said so: where it and the batch agree it knows more. Compaction may have taken the batch that
        an epoch began with, or all of an epoch's."""
        epochs = self.log.epochs
        known = epochs.epoch_at(max(header.base_offset, self.epochs_trimmed_to))
        if header.last_offset >= self.epochs_trimmed_to and known != header.leader_epoch:
            epochs.truncate_from_end(header.base_offset)
            if epochs.latest != header.leader_epoch:
                epochs.assign(header.leader_epoch, header.base_offset)

    def _producers(
        self, segment: Segment, position: int, header: BatchHeader, data: memoryview | None, *, rebuild: bool
    ) -> None:
        if header.base_offset >= self.producers_from:
            _apply_producers(self.log, segment, position, header, data, keep_aborted=rebuild)
        elif header.base_offset >= self.facts_from and header.producer_id < 0:
            # Before the snapshot only MIRROR_PID_RESET matters, for `log-facts`.
            batch = data if data is not None else memoryview(segment.file.pread(header.size_bytes, position))
            marker = append.marker_of(batch, 0, header)
            if marker is not None and marker.control_type == CONTROL_MIRROR_PID_RESET:
                self.log.pid_reset_offsets.append(header.base_offset)
                self.log.unsynced.facts = True


def _replay(
    log: Log, rebuild_from: int, recovery_point: int, facts: Facts, *, facts_known: bool, epochs_known: bool
) -> None:
    count = len(log.segments)
    first_base = log.segments[0].base_offset
    rebuild_offset = log.segments[rebuild_from].base_offset if rebuild_from < count else log.log_end_offset
    # A snapshot must not be newer than the first rebuilt segment: its aborted transactions need the state before it.
    producers_from = load_newest_snapshot(log, rebuild_offset)
    flush.remove_snapshots(log, above=rebuild_offset)  # of segments that are gone through: written anew
    log.max_producer_id = max(facts.max_producer_id, max(log.producers.entries, default=-1))
    facts_from = min(facts.end_offset, rebuild_offset) if facts_known else first_base
    log.pid_reset_offsets = [offset for offset in facts.pid_reset_offsets if offset < facts_from]
    log.unsynced.facts = not facts_known
    epochs_from = rebuild_offset if epochs_known else first_base
    start = min(producers_from, facts_from, epochs_from)
    walk = _Replay(log, recovery_point, producers_from=producers_from, facts_from=facts_from, epochs_from=epochs_from)
    index = log.segment_index(start)
    while index < len(log.segments):
        segment = log.segments[index]
        if index < rebuild_from:
            if start < segment.next_offset:
                _walk_known(segment, start, walk)
        elif not _rebuild(log, index, walk, first=index == rebuild_from):
            break
        index += 1
    if rebuild_from < count:
        active = log.active
        log.log_end_offset = active.next_offset
        log.last_leader_epoch = walk.epoch if walk.epoch >= 0 else log.epochs.epoch_at(log.log_end_offset - 1)
    log.producers.end_offset = log.log_end_offset
    _correct_open_transactions(log)


def _correct_open_transactions(log: Log) -> None:
    """A transaction that was open when a snapshot was taken may have ended in a batch that compaction has removed: with
    all its records, or after they were gone. Who replays from that snapshot would wait for its end for ever.

    Compaction never passes an open one. One of which a batch is left has its marker too, unless that was cut; so what
    is met of the producer now belongs to a transaction that began there.
    """
    for open_one in log.producers.ongoing():
        if open_one.first_offset < log.compacted_to:
            found = _first_data_of(log, open_one.producer_id, open_one.first_offset)
            if found != open_one.first_offset:
                log.producers.move_transaction(open_one.producer_id, found)


def _first_data_of(log: Log, producer_id: int, from_offset: int) -> int:
    """Base offset of the first transactional batch from there on, -1 without one."""
    for segment in log.segments[log.segment_index(from_offset) :]:
        found = segment.position_of(from_offset)
        if found is not None:
            for _, header in segment.headers(found[0]):
                if header.producer_id == producer_id and header.is_transactional and not header.is_control:
                    return header.base_offset
    return -1


def _walk_known(segment: Segment, start: int, walk: _Replay) -> None:
    found = segment.position_of(start)
    if found is None:
        return
    for position, header in segment.headers(found[0]):
        walk.batch(segment, position, header, None, rebuild=False)


def _rebuild(log: Log, index: int, walk: _Replay, *, first: bool) -> bool:
    """Go through one segment. False when the log ends in it, or before it, and later segments are gone."""
    segment = log.segments[index]
    if not first and segment.base_offset != walk.expected and not _gap_is_known(log, index, walk):
        if walk.expected < walk.recovery_point:
            raise _missing(log, walk.expected, walk.recovery_point)
        log.report.notes.append(
            f"{segment.path()} begins at {segment.base_offset}, the log ended at {walk.expected}: batches between were "
            "never on disk, the rest is cut"
        )
        _drop(log, index)
        return False
    if first:
        walk.expected = segment.base_offset
    else:
        log.unsynced.paths.append(flush.write_snapshot(log, segment.base_offset))
    size_bytes = segment.size_bytes
    segment.reset()
    try:
        for position, header, data in _checked(segment, size_bytes, walk):
            walk.batch(segment, position, header, data, rebuild=True)
    except CorruptData as error:
        _cut_tail(log, segment, size_bytes, walk, error)
        walk.expected = segment.next_offset
        _drop(log, index + 1)
        return False
    if not segment.size_bytes:
        walk.expected = max(walk.expected, segment.base_offset)
    return True


def _gap_is_known(log: Log, index: int, walk: _Replay) -> bool:
    """Compaction leaves gaps, below the recovery point; a gap too wide for relative offsets made the log roll."""
    segment = log.segments[index]
    if segment.base_offset < walk.expected:
        return False
    if segment.base_offset <= walk.recovery_point:
        return True
    try:
        _, first = next(segment.headers(0, segment.size_bytes))
    except (CorruptData, StopIteration):
        return False
    return first.last_offset - walk.expected > MAX_RELATIVE_OFFSET


def _checked(segment: Segment, size_bytes: int, walk: _Replay) -> Iterator[tuple[int, BatchHeader, memoryview | None]]:
    """All batches of the file; from the recovery point on their checksums are right, and they come with their bytes,
    save one that is too large, or whose damaged length says so: that one must not take all the memory there is."""
    position = 0
    for position, header in segment.headers(0, size_bytes):
        if header.last_offset >= walk.recovery_point:
            break
        yield position, header, None
        position += header.size_bytes
    else:
        return
    while position < size_bytes:
        for at, header, data in segment.batches(position, size_bytes, max_bytes=BATCH_AT_ONCE_BYTES):
            check_crc(data, 0, header)
            yield at, header, data
            position = at + header.size_bytes
        if position < size_bytes:
            _, header = next(segment.headers(position, size_bytes))
            segment.check_large(position, header)
            yield position, header, None
            position += header.size_bytes


def _cut_tail(log: Log, segment: Segment, size_bytes: int, walk: _Replay, error: CorruptData) -> None:
    """The batch behind `segment.size_bytes` is bad: cut it, unless it was known to be on disk."""
    end = segment.size_bytes
    if walk.expected < walk.recovery_point and end < size_bytes:
        raise CorruptData(
            f"{segment.path()} is damaged at byte {end} (offset {walk.expected}), below the recovery point "
            f"{walk.recovery_point}: {error}. Nothing was changed. Restore the file; or, to cut the log there, set the "
            f"partition's line in {RECOVERY_POINT_FILE} to {walk.expected} and remove {FACTS_FILE} beside the segment"
        ) from error
    log.report.notes.append(f"{segment.path()}: {size_bytes - end} bytes cut at byte {end}: {error}")
    segment.cut_file(end, segment.copy_if_shared(end))
    log.unsynced.cut = True  # also when no batch went: else what was cut comes back, in front of what follows it


def _drop(log: Log, first: int) -> None:
    for segment in reversed(log.segments[first:]):
        for suffix in SEGMENT_SUFFIXES:
            log.fs.remove(segment.path(suffix))
        segment.close()
    if first < len(log.segments):
        log.unsynced.directory = True
        del log.segments[first:]


# --- the end ----------------------------------------------------------------------------------------------------


def _settle(log: Log, log_start_offset: int, facts: Facts, *, rebuilt: bool) -> None:
    """Bring the ends into order, and everything on disk that was made anew or lies behind the recovery point."""
    end = log.log_end_offset
    flush.remove_snapshots(log, above=end)
    flush.remove_snapshots(log)
    log.compacted_to = min(log.compacted_to, end)
    log.epochs.truncate_from_end(end)
    log.epochs.truncate_from_start(log.log_start_offset)
    log.pid_reset_offsets = [offset for offset in log.pid_reset_offsets if offset < end]
    if end < log_start_offset:
        from kmirror.storage.cut import truncate_fully_and_start_at

        log.report.notes.append(f"{log.directory} ends at {end}, below its start {log_start_offset}: begun anew there")
        truncate_fully_and_start_at(log, log_start_offset)
        return
    if rebuilt:
        for segment in log.segments[:-1]:  # the last one's file is the flush's
            if segment.size_bytes and segment.next_offset > log.flushed_offset:
                segment.file.sync()  # one by one, so that a log of thousands of segments does not open them all at once
        for segment in log.segments[:-1]:
            log.unsynced.paths += segment.seal() if segment.indexes_loaded else []
            if segment.checksums != facts.checksums.get(segment.base_offset):
                log.unsynced.facts = True
        # A process that was killed may have left these in the page cache only.
        log.unsynced.paths += [log.snapshot_path(offset) for offset in flush.snapshot_offsets(log)]
        log.unsynced.directory = True
        log.flush()
    log.flushed_offset = end
