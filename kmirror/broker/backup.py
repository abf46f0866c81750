"""Backups of the data directory: the cut through all logs, what becomes of one, and that of a stopped broker. L3.

A backup is the directory as a kill of the process at one moment would leave it, with everything on disk. The moment is
one step of the loop (`Backups._cut`): every log's end, what the checkpoints would say, all noted between two changes of
anything. So nothing in it contradicts another part, and all that was acknowledged before is in it. The files and how
they are copied are `kmirror.storage.backup`'s.

What must hold: one backup at a time; a log whose files are not taken yet is asked for before they change (`preserve`),
save for the directories of deleted topics, which are renamed by a later chore than the one that takes all; a backup
that fails, for whatever reason, costs the broker nothing: a failure of the disk is told by the next append.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from kmirror.broker import directory
from kmirror.broker.chores import Steps
from kmirror.broker.elsewhere import Check
from kmirror.effects import Promise
from kmirror.errors import ApiError, ConfigError, KmirrorError, StorageError
from kmirror.protocol import uuids
from kmirror.protocol.errors import ErrorCode
from kmirror.storage import backup as storage_backup
from kmirror.storage import checkpoints
from kmirror.storage.backup import BadDestination, LogNote, Staging
from kmirror.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from kmirror.broker.world import World
    from kmirror.storage.checkpoints import TopicPartition

log = logging.getLogger("kmirror.broker")


class Stopped(KmirrorError):
    """Whoever wanted the backup does not want it any more."""


class Backup:
    """One backup and how far it is. `finished` is settled at its end; `error` is why there is none, then."""

    def __init__(self, staging: Staging, started_ms: int) -> None:
        self.id = uuids.random_id()
        self.staging = staging
        self.started_ms = started_ms
        self.duration_ms = 0
        self.partition_count = 0
        self.total_bytes = 0
        self.linked_bytes = 0
        self.copied_bytes = 0
        self.error: ApiError | None = None
        self.finished: Promise[None] = Promise()
        self.stopped = False
        """Set on the loop, seen by the thread."""

    def told(self, linked_bytes: int, copied_bytes: int, check: Check) -> None:
        """Raises Stopped, and what `check` raises."""
        self.linked_bytes += linked_bytes
        self.copied_bytes += copied_bytes
        if self.stopped:
            raise Stopped("the backup was stopped")
        check()


class Backups:
    """See the module head. Used on the loop only."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._running: Backup | None = None
        self._last: Backup | None = None
        self._untaken: dict[TopicPartition, Steps] = {}
        """What takes the partition's files; begun, perhaps."""
        self._taken: set[TopicPartition] = set()
        self._failure: Exception | None = None

    # -- asked by whoever wants one ----------------------------------------------------------------------------------

    def begin(self, destination: str) -> Backup:
        """Raises ApiError: 42 for a destination that is no absolute path, 92 while another one runs."""
        if not destination.startswith("/") or "\0" in destination or not destination.strip("/"):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{destination!r} is not an absolute path of a new directory")
        if self._running is not None:
            raise ApiError(
                ErrorCode.DUPLICATE_RESOURCE,
                f"a backup to {self._running.staging.destination} is being made; wait for its end",
            )
        world = self._world
        staging = Staging(world.fs, world.directory.path, destination, uuids.random_id().hex()[:8])
        backup = self._running = self._last = Backup(staging, world.clock.monotonic_ms())
        log.info("backup to %s begins", destination)
        world.elsewhere.run(lambda _check: staging.prepare()).then(partial(self._prepared, backup))
        return backup

    def close(self) -> None:
        """The broker ends: what was begun is removed, unless a thread has done so."""
        if self._running is not None:
            _tidy_up(self._running.staging)

    def find(self, backup_id: bytes) -> Backup:
        """The one that runs, or ran last. Raises ApiError 91."""
        if self._last is None or self._last.id != backup_id:
            raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, "this broker knows of no such backup: it was started since")
        return self._last

    # -- the cut -----------------------------------------------------------------------------------------------------

    def _prepared(self, backup: Backup, prepared: Promise[None]) -> None:
        try:
            prepared.result()
        except Exception as error:
            self._fail(backup, error)
            return
        self._cut(backup)
        self._world.chores.run(self._take_all(backup))

    def _cut(self, backup: Backup) -> None:
        world, staging = self._world, backup.staging
        for partition in world.all_partitions():
            key = (partition.topic_name, partition.index)
            name, opened = f"{key[0]}-{key[1]}", partition.opened_log
            if opened is not None:
                self._untaken[key] = staging.take_log(LogNote.of(opened), name)
                opened.before_removal = partial(self.preserve, key)
            else:
                # A clean stop had synced all of it; without one it is a log that could not be opened.
                path = world.directory.partition_path(*key)
                self._untaken[key] = staging.take_closed_log(path, name, on_disk=world.directory.clean)
        backup.partition_count = len(self._untaken)
        for name, offsets in world.checkpoints_of_a_copy().items():
            staging.add(name, checkpoints.format_offsets(offsets))

    def _take_all(self, backup: Backup) -> Steps:
        try:
            path = f"{self._world.directory.path}/{checkpoints.META_PROPERTIES_FILE}"
            backup.staging.take(path, checkpoints.META_PROPERTIES_FILE)
        except (StorageError, OSError) as error:
            self._failure = error
        for _ in chain.from_iterable(map(self._take, list(self._untaken))):
            if self._failure is not None or backup.stopped:
                break
            yield
        self._untaken.clear()
        self._write_out(backup)

    def _take(self, key: TopicPartition) -> Steps:
        steps = self._untaken.get(key)
        if steps is None:
            return
        try:
            yield from steps
            self._taken.add(key)
        except (StorageError, OSError) as error:
            self._failure = error
        self._untaken.pop(key, None)

    def preserve(self, key: TopicPartition) -> None:
        """The partition's files, or their names, are about to change: take what is not taken of them yet, now."""
        for _ in self._take(key):
            pass

    def names_of_active(self, key: TopicPartition) -> int:
        """How many names the partition's active segment may have: see `Log.open`."""
        return 2 if key in self._taken else 1

    # -- the copy ----------------------------------------------------------------------------------------------------

    def _write_out(self, backup: Backup) -> None:
        staging, failure = backup.staging, self._failure
        backup.total_bytes = sum(piece.size_bytes for piece in staging.pieces)

        def work(check: Check) -> None:
            if failure is not None:
                _tidy_up(staging)
                raise failure
            _make(staging, lambda linked, copied: backup.told(linked, copied, check))

        self._world.elsewhere.run(work).then(partial(self._written, backup))

    def _written(self, backup: Backup, written: Promise[None]) -> None:
        try:
            written.result()
        except Exception as error:
            self._fail(backup, error)
            return
        self._end(backup)
        log.info(
            "backup to %s is complete: %d bytes linked, %d copied in %d ms",
            backup.staging.destination,
            backup.linked_bytes,
            backup.copied_bytes,
            backup.duration_ms,
        )
        backup.finished.resolve(None)

    def _fail(self, backup: Backup, error: Exception) -> None:
        self._end(backup)
        expected = isinstance(error, KmirrorError | OSError)  # anything else is a bug of ours
        log.error("no backup to %s: %s", backup.staging.destination, error, exc_info=None if expected else error)
        bad = isinstance(error, BadDestination | Stopped)
        backup.error = ApiError(ErrorCode.INVALID_REQUEST if bad else ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        backup.finished.resolve(None)

    def _end(self, backup: Backup) -> None:
        backup.duration_ms = self._world.clock.monotonic_ms() - backup.started_ms
        backup.staging.pieces.clear()
        self._running = self._failure = None
        self._untaken.clear()
        self._taken.clear()


def _make(staging: Staging, told: storage_backup.Told) -> None:
    """Any thread. Nothing is left of what fails. Raises StorageError, OSError, and what `told` raises."""
    try:
        staging.write_out(told)
    finally:
        _tidy_up(staging)


def _tidy_up(staging: Staging) -> None:
    """Whether there is a copy or an error to tell does not hang on it."""
    try:
        staging.remove()
    except (StorageError, OSError) as error:
        log.error("%s: what a backup left is removed by the next start, not now: %s", staging.path, error)


# --- a broker that does not run -------------------------------------------------------------------------------------


def copy_stopped(fs: FileSystem, path: str, destination: str, told: storage_backup.Told) -> tuple[int, int]:
    """Copy the data directory of a broker that does not run, stopped cleanly or not. (Partitions, bytes in all.)

    Raises StorageLocked when one runs, ConfigError when `path` is no data directory, BadDestination, StorageError.
    """
    path = path.rstrip("/") or "/"
    if not fs.exists(f"{path}/{checkpoints.META_PROPERTIES_FILE}"):
        raise ConfigError(f"{path} is not a data directory: it has no {checkpoints.META_PROPERTIES_FILE}")
    lock = fs.lock(f"{path}/{checkpoints.LOCK_FILE}")
    try:
        for note in storage_backup.remove_leftovers(fs, path):
            log.warning("%s", note)
        staging = Staging(fs, path, destination, uuids.random_id().hex()[:8])
        staging.prepare()
        count = 0
        try:
            clean = fs.exists(f"{path}/{checkpoints.CLEAN_SHUTDOWN_FILE}")
            for name in fs.list_dir(path):
                if directory.is_partition(name):
                    for _ in staging.take_closed_log(f"{path}/{name}", name, on_disk=clean):
                        pass
                    count += 1
                elif name in directory.KEPT_FILES:
                    staging.take(f"{path}/{name}", name, on_disk=clean)
        except BaseException:
            _tidy_up(staging)
            raise
        total_bytes = sum(piece.size_bytes for piece in staging.pieces)
        _make(staging, told)
        return count, total_bytes
    finally:
        lock.release()
