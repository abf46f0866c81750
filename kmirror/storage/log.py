"""One partition's log: the object that the broker holds. L2 storage; synchronous; one thread, save for `ticket.sync`.

Here are the state and the public face; the work is in modules beside it: `append` (who may write what), `reading`,
`flush` (what is on disk), `cut` (truncation and log start), `recovery` (opening; the only way state is rebuilt),
`retention`. What must hold:

- Offsets rise; `log_start_offset` ≤ every readable offset < `log_end_offset`.
- Nothing of a refused or failed append stays, neither bytes nor state.
- Offsets below `flushed_offset` survive a power cut.
- `generation` rises with every cut, so that slices and tickets from before it can be told.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

from kmirror.clock import Clock
from kmirror.errors import DiskFailure
from kmirror.protocol.records import BatchHeader
from kmirror.storage import append as _append
from kmirror.storage import cut as _cut
from kmirror.storage import flush as _flush
from kmirror.storage import reading as _reading
from kmirror.storage import retention as _retention
from kmirror.storage.epochs import EpochCache
from kmirror.storage.filesystem import Buffer, FileSystem
from kmirror.storage.producer_state import AppendOrigin, ProducerState
from kmirror.storage.segment import SNAPSHOT_SUFFIX, Segment, file_name
from kmirror.storage.txn_index import AbortedTransaction
from kmirror.storage.values import AppendResult, LogConfig, LogMode, LogRead, RecoveryReport, TimestampOffset

if TYPE_CHECKING:
    from kmirror.storage.flush import FlushTicket
    from kmirror.storage.validation import Inspection

__all__ = [
    "AppendOrigin",
    "AppendResult",
    "Log",
    "LogConfig",
    "LogMode",
    "LogRead",
    "RecoveryReport",
    "TimestampOffset",
]

_BASE_OFFSET = attrgetter("base_offset")


class Log:
    """See the module head. Made by `Log.open`; the fields without a leading underscore are read by other layers."""

    def __init__(self, fs: FileSystem, directory: str, config: LogConfig, clock: Clock) -> None:
        self.fs = fs
        self.directory = directory
        self.config = config
        self.clock = clock
        self.mode = LogMode.WRITABLE
        self.generation = 0
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.flushed_offset = 0
        self.segments: list[Segment] = []
        self.epochs = EpochCache()
        self.producers = ProducerState()
        self.max_producer_id = -1
        self.pid_reset_offsets: list[int] = []
        self.compacted_to = 0
        """Compaction has been below it: every transaction that began there has ended, even if no marker says so."""
        self.last_leader_epoch = -1
        """Leader epoch of the last batch, -1 in an empty log."""
        self.report = RecoveryReport()
        self.unsynced = _flush.Unsynced()
        self.tickets: list[FlushTicket] = []
        """Taken and not finished yet, oldest first."""
        self.side_files = _flush.SideFiles(fs)
        self.doomed: list[_retention.Doomed] = []
        self.before_removal: Callable[[], None] = _nothing
        """Called before segments or snapshots are renamed, removed or cut: a backup takes what it still needs."""
        self.failed: DiskFailure | None = None
        self.cut_offset = -1
        """End of the log after its last cut, as long as the recovery point on disk may be higher; -1 without one."""

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        directory: str,
        *,
        config: LogConfig,
        clock: Clock,
        clean: bool,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        names: int = 1,
    ) -> Log:
        """Create the log, or open what is there. `clean`: the last stop was clean, nothing needs to be scanned.

        `names`: how many names the active segment's file may have, 2 while a backup has it in its staging directory. If
        it has more it is copied, and goes on as a file of its own.

        Otherwise everything from `recovery_point` on is checked, the log ends before the first bad batch, and all side
        files are rebuilt; `report` says what was done. Raises CorruptData for damage below the recovery point (nothing
        is changed then), DiskFailure.
        """
        from kmirror.storage import recovery

        log = cls(fs, directory, config, clock)
        recovery.recover(log, clean=clean, recovery_point=recovery_point, log_start_offset=log_start_offset)
        log.active.own_file(names)
        return log

    # --- facts ---

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def first_undecided_offset(self) -> int | None:
        """First offset of the oldest open transaction; the last stable offset is that or the high watermark."""
        first = self.producers.first_undecided_offset
        return first if first is None else max(first, self.log_start_offset)

    @property
    def last_pid_reset_offset(self) -> int:
        """Offset of the newest MIRROR_PID_RESET in the log, -1 without one."""
        return self.pid_reset_offsets[-1] if self.pid_reset_offsets else -1

    def segment_index(self, offset: int) -> int:
        """Index of the segment that holds `offset`, or would; the first one for an offset below all."""
        if offset >= self.segments[-1].base_offset:
            return len(self.segments) - 1
        return max(0, bisect_right(self.segments, offset, key=_BASE_OFFSET) - 1)

    def snapshot_path(self, offset: int) -> str:
        return f"{self.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"

    # --- work ---

    def append(
        self,
        data: Buffer,
        *,
        origin: AppendOrigin,
        leader_epoch: int,
        now_ms: int,
        transaction_version: int = 0,
        epoch_bumps: bool = False,
        inspection: Inspection | None = None,
    ) -> AppendResult:
        """Append batches; see `kmirror.storage.append` for what each origin may. Raises what that module says.

        `transaction_version` is for markers (WriteTxnMarkers): from 2 on their epoch must be greater than the
        producer's. `epoch_bumps`: the client speaks transactions v2, so a producer without state must start at 0.
        `inspection`: what `validation.inspect` found in a client's batch, if that was asked already.
        """
        return _append.append(
            self,
            data,
            origin=origin,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
            transaction_version=transaction_version,
            epoch_bumps=epoch_bumps,
            inspection=inspection,
        )

    def read(self, offset: int, *, max_bytes: int, limit_offset: int, at_least_one: bool) -> LogRead:
        """Whole batches from the one that holds `offset` (or the first behind it) up to `limit_offset`.

        `limit_offset` is the high watermark or the last stable offset: a batch that reaches it is left out. At most
        `max_bytes`, except that `at_least_one` returns a first batch of any size. Raises OffsetOutOfRange.
        """
        return _reading.read(self, offset, max_bytes=max_bytes, limit_offset=limit_offset, at_least_one=at_least_one)

    def aborted_transactions(self, first_offset: int, last_offset_exclusive: int) -> list[AbortedTransaction]:
        """Aborted transactions that overlap the range, for Fetch at read_committed; in log order of their markers."""
        return _reading.aborted_transactions(self, first_offset, last_offset_exclusive)

    def offset_for_timestamp(self, timestamp_ms: int, limit_offset: int) -> TimestampOffset | None:
        """The first record in log order whose timestamp is ≥ `timestamp_ms`, if it is below `limit_offset`."""
        return _reading.offset_for_timestamp(self, timestamp_ms, limit_offset)

    def max_timestamp_offset(self, limit_offset: int) -> TimestampOffset | None:
        """The first record with the largest timestamp, if it is below `limit_offset` (ListOffsets -3)."""
        return _reading.max_timestamp_offset(self, limit_offset)

    def batches(self, first_offset: int, end_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Header and bytes of each batch that overlaps the range, for comparing and dumping. No checksum."""
        return _reading.batches(self, first_offset, end_offset)

    def apply_config(self, config: LogConfig) -> None:
        """Other settings from now on."""
        self.config = config
        self.active.sync_follows = config.flush_messages <= 1

    def truncate_to(self, offset: int) -> int:
        """Cut everything from `offset` on, a batch that contains it included; returns the new end.

        Durable on return (with everything below it). Raises OffsetOutOfRange below the log start.
        """
        return _cut.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything; the log starts and ends at `offset`. Durable on return."""
        _cut.truncate_fully_and_start_at(self, offset)

    def save_cut(self, from_offset: int, target_directory: str) -> _cut.SavedCut:
        """Copy what `truncate_to(from_offset)` would remove into segment files of `target_directory`. Durable."""
        return _cut.save_cut(self, from_offset, target_directory)

    def advance_log_start(self, offset: int) -> bool:
        """Raise the log start, if it is lower; whole segments below go with the next retention pass.

        The broker keeps it in `log-start-offset-checkpoint`. Raises OffsetOutOfRange beyond the log end.
        """
        return _cut.advance_log_start(self, offset)

    def begin_flush(self) -> FlushTicket | None:
        """Loop side: everything that has to be synced for the log's present end. None when nothing has."""
        return _flush.begin(self)

    @property
    def is_clean(self) -> bool:
        """Whether everything that was appended, cut or derived so far is on disk."""
        return self.failed is None and _flush.is_clean(self)

    def finish_flush(self, ticket: FlushTicket) -> None:
        """Loop side, after `ticket.sync()`: raise `flushed_offset`, unless a cut made the ticket stale."""
        _flush.finish(self, ticket)

    def flush(self) -> None:
        """All in line: for start, stop, tools and the simulator. Raises DiskFailure, and from then on always."""
        if self.failed is not None:
            raise self.failed
        while (ticket := self.begin_flush()) is not None:
            try:
                ticket.sync()
            except DiskFailure as error:
                _flush.mark_failed(self, error)
                raise
            self.finish_flush(ticket)

    def apply_retention(self, now_ms: int, high_watermark: int) -> int:
        """Delete whole old segments (time, size, log start), none above `high_watermark`; returns how many."""
        return _retention.apply(self, now_ms, high_watermark)

    def delete_doomed(self, now_ms: int) -> int | None:
        """Remove files whose `file.delete.delay.ms` is over; returns the time of the next, None without one."""
        return _retention.delete_doomed(self, now_ms)

    def roll(self) -> None:
        """Begin a new segment at the log's end, if the active one has batches."""
        if self.active.size_bytes:
            _append.roll(self, self.log_end_offset)

    def close(self, *, clean: bool) -> None:
        """`clean`: flush, index files, a producer snapshot at the end. Else only let go of the files."""
        if clean and self.failed is None:
            _flush.close(self)
        for segment in self.segments:
            segment.close()


def _nothing() -> None:
    return None
