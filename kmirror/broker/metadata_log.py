"""The metadata log's snapshots: when one is written, how it gets on disk, what it lets go, and the start from one. L3.

Kafka: SnapshotGenerator, KafkaRaftLog. A snapshot is due after metadata.log.max.record.bytes.between.snapshots bytes of
records, or metadata.log.max.snapshot.interval.ms after the last one (or the start) when anything was recorded since.
Its end offset is the end of the log at that moment. Old ones, and the log below the next, go by
metadata.max.retention.bytes and .ms, the newest never.

What must hold:
- a snapshot gets its name only when the records it stands for are on disk, and its own bytes too; nothing that it
  replaces is touched before its name is on disk. So at every point a crash leaves a snapshot and the log from its end
  on, or the whole log;
- the loop is never held up: records are written in slices (`Chores`), and both syncs ride in rounds of the commit
  thread, as paths that the log has not synced yet;
- a snapshot that cannot be written for lack of space costs nothing: the log has everything. It may not use what is
  reserved for records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kmirror.broker.chores import Chores, Steps
from kmirror.broker.metadata import MetadataImage
from kmirror.broker.metadata_snapshot import ImageAtOffset
from kmirror.broker.partition import Partition
from kmirror.errors import ApiError, CorruptData, DecodeError, DiskFull
from kmirror.limits import SNAPSHOT_CLEANING_MS, SNAPSHOT_RETRY_MS
from kmirror.protocol.internal import cluster_metadata as records
from kmirror.protocol.records import read_records
from kmirror.storage import kraft_snapshot, retention
from kmirror.storage.kraft_snapshot import Snapshot, SnapshotId, SnapshotWriter, read_snapshot
from kmirror.storage.log import Log

if TYPE_CHECKING:
    from kmirror.broker.config import BrokerConfig
    from kmirror.clock import Clock

log = logging.getLogger("kmirror.broker")


class MetadataSnapshots:
    """`image_now()` is called between two commits: it is the image at the log's end."""

    def __init__(
        self,
        partition: Partition,
        image: MetadataImage,
        *,
        config: BrokerConfig,
        clock: Clock,
        chores: Chores,
        image_now: Callable[[], ImageAtOffset],
        reserve: Callable[[int], None],
    ) -> None:
        self._partition = partition
        self._image = image
        self._clock = clock
        self._chores = chores
        self._image_now = image_now
        self._reserve = reserve
        self._max_bytes = config.integer("metadata.log.max.record.bytes.between.snapshots")
        self._interval_ms = config.integer("metadata.log.max.snapshot.interval.ms")
        self._retention_bytes = config.integer("metadata.max.retention.bytes")
        self._retention_ms = config.integer("metadata.max.retention.ms")
        self.known: list[SnapshotId] = []
        """On disk, ascending. The newest is sound: it was read at the start, or written since."""
        self._written_ms: dict[SnapshotId, int] = {}
        """Time of the last record that a snapshot covers, where it is known already."""
        self._writing = False
        self._last_ms = clock.monotonic_ms()
        self._cleaned_ms = self._last_ms
        self._not_before_ms = self._last_ms
        self._covered_bytes = 0
        """Of the log's present files, how much lies below the newest snapshot."""

    # -- start ---------------------------------------------------------------------------------------------------

    def load(self) -> int:
        """Replay the newest sound snapshot; the log goes on at the offset that is returned. Raises CorruptData.

        One that is damaged is passed over as long as the log, or the log behind an older one, still tells the same.
        """
        if not self._partition.is_on_disk:
            return 0
        try:
            metadata = self._partition.log
        except ApiError as error:  # nobody can be served without this state
            raise CorruptData(error.message) from error
        fs, directory = metadata.fs, metadata.directory
        found = kraft_snapshot.snapshots_in(fs, directory)
        usable = [snapshot_id for snapshot_id in found if snapshot_id.end_offset >= metadata.log_start_offset]
        damaged: dict[SnapshotId, str] = {}
        snapshot = None
        while usable and snapshot is None:
            try:
                snapshot = read_snapshot(fs, f"{directory}/{usable[-1].name}")
            except CorruptData as error:
                damaged[usable.pop()] = str(error)
        if snapshot is None and metadata.log_start_offset > 0:
            raise _unreachable(metadata, damaged)
        if snapshot is not None:
            self._replay(snapshot, f"{directory}/{usable[-1].name}")
            self._written_ms[usable[-1]] = snapshot.last_timestamp_ms
            self._continue_from(metadata, usable[-1])
        self._forget(metadata, sorted(set(found).difference(usable)), damaged)
        self.known = usable
        self._covered_bytes = _bytes_below(metadata, usable[-1].end_offset) if usable else 0
        return usable[-1].end_offset if usable else 0

    def _replay(self, snapshot: Snapshot, path: str) -> None:
        for position, _header in snapshot.batches:
            for record in read_records(snapshot.data, position):
                try:
                    self._image.replay(records.decode_metadata(record.value or b""))
                except (CorruptData, DecodeError) as error:
                    raise CorruptData(f"{path}: {error}") from error

    def _continue_from(self, metadata: Log, snapshot_id: SnapshotId) -> None:
        """The log may end below the snapshot when the disk lost what it had synced (KafkaRaftLog does the same)."""
        if snapshot_id.end_offset > metadata.log_end_offset:
            log.error(
                "%s ends at %d, below its snapshot %s: it goes on at the snapshot's end",
                metadata.directory,
                metadata.log_end_offset,
                snapshot_id.name,
            )
            self._partition.restart_at(snapshot_id.end_offset)

    def _forget(self, metadata: Log, unused: list[SnapshotId], damaged: dict[SnapshotId, str]) -> None:
        kraft_snapshot.remove_parts(metadata.fs, metadata.directory)
        for snapshot_id in unused:
            if snapshot_id in damaged:
                log.error("%s; removed, the state was read without it", damaged[snapshot_id])
            metadata.fs.remove(f"{metadata.directory}/{snapshot_id.name}")
        if unused:
            metadata.fs.sync_dir(metadata.directory)

    # -- time ----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Once a second: begin what is due, let old things go. Raises DiskFailure."""
        now_ms = self._clock.monotonic_ms()
        metadata = self._partition.log
        metadata.delete_doomed(self._clock.time_ms())
        if now_ms - self._cleaned_ms >= SNAPSHOT_CLEANING_MS:
            self.clean()
        if not self._writing and now_ms >= self._not_before_ms and self._is_due(metadata, now_ms):
            self.write()

    def _is_due(self, metadata: Log, now_ms: int) -> bool:
        newest = self.known[-1].end_offset if self.known else 0
        if metadata.log_end_offset <= newest:
            return False
        if metadata.size_bytes - self._covered_bytes >= self._max_bytes:
            return True
        return self._interval_ms > 0 and now_ms - self._last_ms >= self._interval_ms

    # -- writing -------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Begin a snapshot of what is recorded now."""
        metadata = self._partition.log
        self._writing = True
        self._last_ms = self._clock.monotonic_ms()
        image = self._image_now()
        covered_bytes = metadata.size_bytes
        snapshot_id = SnapshotId(metadata.last_leader_epoch, metadata.log_end_offset)
        self._written_ms[snapshot_id] = _last_timestamp_ms(metadata)

        def on_disk(_flushed: object) -> None:
            self._chores.run(self._steps(image, snapshot_id, covered_bytes))

        self._partition.when_flushed().then(on_disk)

    def _steps(self, image: ImageAtOffset, snapshot_id: SnapshotId, covered_bytes: int) -> Steps:
        metadata = self._partition.log
        writer = SnapshotWriter(metadata.fs, metadata.directory, snapshot_id, reserve=self._reserve)
        try:
            writer.begin(last_timestamp_ms=self._written_ms[snapshot_id], now_ms=self._clock.time_ms())
            for record in image.records():
                writer.add(records.encode_metadata(record))
                yield
            writer.finish()
        except DiskFull as error:
            self._give_up(snapshot_id, writer, error)
            return
        finally:
            image.close()
        metadata.unsynced.paths.append(writer.part_path)
        self._partition.when_flushed().then(lambda _synced: self._publish(writer, snapshot_id, covered_bytes))

    def _give_up(self, snapshot_id: SnapshotId, writer: SnapshotWriter, error: Exception) -> None:
        log.error("metadata snapshot %s: %s; tried again later", snapshot_id.name, error)
        writer.discard()
        self._written_ms.pop(snapshot_id, None)
        self._writing = False
        self._not_before_ms = self._clock.monotonic_ms() + SNAPSHOT_RETRY_MS

    def _publish(self, writer: SnapshotWriter, snapshot_id: SnapshotId, covered_bytes: int) -> None:
        """Its bytes are on disk; its name is next."""
        metadata = self._partition.log
        try:
            writer.publish()
        except (DiskFull, FileNotFoundError) as error:
            self._give_up(snapshot_id, writer, error)
            return
        metadata.unsynced.directory = True

        def named(_synced: object) -> None:
            log.info("metadata snapshot %s: %d bytes", snapshot_id.name, writer.size_bytes)
            self._writing = False
            self.known.append(snapshot_id)
            self._covered_bytes = covered_bytes
            self.clean()

        self._partition.when_flushed().then(named)

    # -- letting go ----------------------------------------------------------------------------------------------

    def clean(self) -> None:
        """Old snapshots go, and whole segments below the one that is the oldest then. Raises DiskFailure."""
        self._cleaned_ms = self._clock.monotonic_ms()
        metadata = self._partition.log
        for oldest, following in zip(self.known[:-1], self.known[1:], strict=True):
            if not self._is_over(metadata, oldest):
                return
            before_bytes = metadata.size_bytes
            metadata.advance_log_start(following.end_offset)
            self._partition.apply_retention()
            self._covered_bytes -= before_bytes - metadata.size_bytes
            self.known.remove(oldest)
            self._written_ms.pop(oldest, None)
            path = f"{metadata.directory}/{oldest.name}"
            retention.doom_paths(metadata, [path], self._clock.time_ms())
            metadata.unsynced.directory = True
            log.info(
                "metadata snapshot %s is no longer needed; the log starts at %d", oldest.name, following.end_offset
            )

    def _is_over(self, metadata: Log, oldest: SnapshotId) -> bool:
        if self._retention_bytes >= 0:
            sizes = (metadata.fs.file_size(f"{metadata.directory}/{one.name}") for one in self.known)
            if metadata.size_bytes + sum(sizes) > self._retention_bytes:
                return True
        return self._retention_ms >= 0 and self._clock.time_ms() - self._time_of(metadata, oldest) > self._retention_ms

    def _time_of(self, metadata: Log, snapshot_id: SnapshotId) -> int:
        if snapshot_id not in self._written_ms:
            try:
                written_ms = read_snapshot(metadata.fs, f"{metadata.directory}/{snapshot_id.name}").last_timestamp_ms
            except (CorruptData, FileNotFoundError):
                written_ms = 0  # of no use: it may go, a newer one is sound
            self._written_ms[snapshot_id] = written_ms
        return self._written_ms[snapshot_id]


def _unreachable(metadata: Log, damaged: dict[SnapshotId, str]) -> CorruptData:
    reasons = "; ".join(damaged.values()) or "there is no snapshot"
    return CorruptData(
        f"{metadata.directory} starts at offset {metadata.log_start_offset}, and no snapshot tells what was before: "
        f"{reasons}. Nothing was changed. Restore a .checkpoint file of this or a later offset from a copy"
    )


def _last_timestamp_ms(metadata: Log) -> int:
    """Of the last record in the log."""
    end = metadata.log_end_offset
    return max((header.max_timestamp for header, _data in metadata.batches(end - 1, end)), default=0)


def _bytes_below(metadata: Log, offset: int) -> int:
    """Size of the files' part below `offset`, where a batch begins or the log ends."""
    index = metadata.segment_index(offset)
    found = metadata.segments[index].position_of(offset)
    below = sum(segment.size_bytes for segment in metadata.segments[:index])
    return below + (metadata.segments[index].size_bytes if found is None else found[0])
