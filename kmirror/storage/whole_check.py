"""Every batch of a log that another program wrote, before it is trusted. L2 storage.

Opening a log (`recovery`) looks at little of what lies below its recovery point: it was written by us, and checked
then. A log from somewhere else is gone through from its first byte to its last, once, and all that the batches tell is
made anew on the way: one wrong entry would be a wrong answer later, and but for snapshots Kafka's files have no
checksums. Aborted transactions whose records compaction has removed are not among that: no reader needs them.

What cannot be had from the batches again is kept as it was found: leader epochs whose first batches the cleaner
removed, and producers whose batches are gone (`.snapshot`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kmirror.errors import CorruptData
from kmirror.limits import IMPORT_CHECK_REPORT_BYTES
from kmirror.protocol.records import BatchHeader
from kmirror.storage import flush
from kmirror.storage.check.producers import Producer, Replay, read_snapshot
from kmirror.storage.check.segment import Batch, SegmentWalk, look_into
from kmirror.storage.checkpoints import LEADER_EPOCH_FILE
from kmirror.storage.epochs import NO_EPOCH
from kmirror.storage.segment import Segment
from kmirror.storage.txn_index import AbortedTransaction

if TYPE_CHECKING:
    from kmirror.storage.log import Log

Inspect = Callable[[BatchHeader, memoryview], None]


class _WholeLog:
    """What the next batch has to follow, and what the batches so far tell."""

    def __init__(self, log: Log, inspect: Inspect | None) -> None:
        self.offset = 0
        self._epoch = -1
        self._epochs_differ = False
        self._log = log
        self._inspect = inspect
        self._replay = Replay(log.segments[0].base_offset)
        entries = log.epochs.entries
        first = entries[0][1] if entries else 0
        self._epochs_from = first if first <= log.log_start_offset else 0
        """The epoch file says nothing of lower offsets: when it was written, the log began here."""

    def begin_with(self, producers: dict[int, Producer]) -> None:
        """Those that were known at the log's first offset."""
        self._replay.begin_with(producers)

    def take(self, segment: Segment, batch: Batch) -> None:
        """The next batch, whose checksum is right. Raises CorruptData."""
        header = batch.header
        if header.base_offset < max(self.offset, segment.base_offset):
            raise CorruptData(f"offset {header.base_offset} follows {max(self.offset, segment.base_offset) - 1}")
        if header.leader_epoch < NO_EPOCH:
            raise CorruptData(f"leader epoch {header.leader_epoch} is none")
        if 0 <= header.leader_epoch < self._epoch:
            raise CorruptData(f"leader epoch {header.leader_epoch} follows {self._epoch}")
        if not segment.fits_offset(header.last_offset):
            raise CorruptData(f"offset {header.last_offset} is too far from {segment.base_offset}")
        if self._inspect is not None:
            if batch.data is None:
                raise CorruptData(f"the batch at offset {header.base_offset} is too large to be looked into")
            self._inspect(header, batch.data)
        self.offset = header.next_offset
        self._epoch = max(self._epoch, header.leader_epoch)
        segment.note(header.last_offset, batch.position, header.size_bytes, header.max_timestamp)
        self._take_epoch(header)
        if header.producer_id >= 0 or header.is_control:
            self._take_producer(segment, batch)

    def _take_epoch(self, header: BatchHeader) -> None:
        """Where the file and the batch agree the file knows more: the batch that an epoch began with may be gone."""
        if header.leader_epoch < 0 or header.last_offset < self._epochs_from:
            return
        epochs = self._log.epochs
        ends = (max(header.base_offset, self._epochs_from), header.last_offset)
        if any(epochs.epoch_at(offset) != header.leader_epoch for offset in ends):
            if not self._epochs_differ:
                self._log.report.notes.append(
                    f"{self._log.directory}/{LEADER_EPOCH_FILE} says otherwise than the batch of leader epoch "
                    f"{header.leader_epoch} at offset {header.base_offset}; made anew from the batches"
                )
            self._epochs_differ = True
            epochs.truncate_from_end(header.base_offset)
            epochs.assign(header.leader_epoch, header.base_offset)

    def _take_producer(self, segment: Segment, batch: Batch) -> None:
        marker = look_into(batch, deep=False).marker if batch.header.is_control else None
        aborted = self._replay.batch(batch.header, marker)
        if aborted is not None and aborted.first_offset >= 0:
            segment.txn_index.entries.append(
                AbortedTransaction(
                    aborted.producer_id, aborted.first_offset, aborted.last_offset, aborted.last_stable_offset
                )
            )


def check_whole(log: Log, *, checked: Callable[[int], None], inspect: Inspect | None = None) -> None:
    """Raises CorruptData with file and offset at the first batch that is not right, or that `inspect` finds fault with.

    `checked(size_bytes)` is told how it goes on. The new index files are synced with the log's next flush.
    """
    whole = _WholeLog(log, inspect)
    _check_snapshots(log, whole)
    for segment in log.segments:
        next_offset = segment.next_offset
        walk = SegmentWalk(segment.file, segment.size_bytes)
        segment.reset()
        reported = 0
        try:
            for batch in walk:
                walk.check(batch)
                whole.take(segment, batch)
                if walk.position - reported >= IMPORT_CHECK_REPORT_BYTES:
                    checked(walk.position - reported)
                    reported = walk.position
        except CorruptData as error:
            raise CorruptData(
                f"{segment.path()} is damaged at byte {walk.position} (offset {whole.offset}): {error}"
            ) from error
        checked(walk.position - reported)
        if segment is not log.active:
            segment.next_offset = max(segment.next_offset, next_offset)
            log.unsynced.paths += segment.seal()
            segment.rest()


def _check_snapshots(log: Log, whole: _WholeLog) -> None:
    """Those that nobody can read go: an older one and the log say the same."""
    first_offset = log.segments[0].base_offset
    for offset in flush.snapshot_offsets(log):
        path = log.snapshot_path(offset)
        try:
            producers = read_snapshot(log.fs.read_file(path))
        except CorruptData:
            log.fs.remove(path)
            log.unsynced.directory = True
            continue
        if offset == first_offset > 0:
            whole.begin_with(producers)
