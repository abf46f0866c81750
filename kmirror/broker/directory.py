"""The data directory around the logs: lock, identity, checkpoints, names of partition directories, deletions. L3.

What may live here: everything about a data directory that is not inside one log. What must hold: whoever finds the
directory after a crash can tell which partition directories are alive (their topic id is in the metadata log), which
may go (`-delete`) and which nobody knows (`-stray`, kept for a person to look at).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kmirror.broker.chores import Steps
from kmirror.broker.config import BrokerConfig
from kmirror.errors import ConfigError, CorruptData, DiskFailure
from kmirror.limits import MAX_FILE_NAME_LENGTH
from kmirror.protocol import uuids
from kmirror.storage import backup, checkpoints
from kmirror.storage.checkpoints import OffsetCheckpoint, TopicPartition
from kmirror.storage.filesystem import FileSystem, Lock
from kmirror.storage.segment import LOG_SUFFIX, offset_in

log = logging.getLogger("kmirror.broker")

META_VERSION = "1"
METADATA_DIRECTORY = "__cluster_metadata-0"
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
UNFINISHED_IMPORT_FILE = "import-unfinished"
"""Lines `topic partition id`: partition directories that an import is making. Not there when none is under way."""
KEPT_FILES = frozenset(
    {
        *checkpoints.OFFSET_FILES,
        checkpoints.META_PROPERTIES_FILE,
        UNFINISHED_IMPORT_FILE,
    }
)
"""What stands beside the partitions' directories and belongs to a copy."""
TEMPORARY_SUFFIX = ".tmp"
"""What `write_atomic` leaves when it fails: nothing of worth."""


@dataclass(slots=True)
class Identity:
    """`meta.properties`: cluster id (22 characters), node id, directory id (16 bytes)."""

    cluster_id: str
    node_id: int
    directory_id: bytes


def is_partition(name: str) -> bool:
    """Whether a directory of this name is a partition's, neither deleted nor set aside."""
    topic, dash, index = name.rpartition("-")
    return bool(topic and dash) and index.isascii() and index.isdigit()


def is_taken(fs: FileSystem, path: str) -> bool:
    """Whether a partition directory, of whomever, is there with something in it."""
    return fs.exists(path) and any(not name.endswith(TEMPORARY_SUFFIX) for name in fs.list_dir(path))


def _made_and_locked(fs: FileSystem, path: str) -> Lock:
    """A path that cannot hold a directory is a mistake in the configuration, not a disk that fails."""
    try:
        fs.make_dirs(path)
        return fs.lock(f"{path}/{checkpoints.LOCK_FILE}")
    except (FileNotFoundError, DiskFailure) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"log.dirs: {path} cannot be used as the data directory: {reason}") from error


class DataDirectory:
    """Locked, identified, checkpoints read, the mark of a clean stop taken. Raises StorageError, ConfigError."""

    def __init__(self, fs: FileSystem, path: str, config: BrokerConfig) -> None:
        self.fs = fs
        self.path = path.rstrip("/") or "/"
        self._lock: Lock | None = _made_and_locked(fs, self.path)
        try:
            for note in backup.remove_leftovers(fs, self.path):
                log.warning("%s", note)
            self.identity, self.is_new = self._identify(config)
            self.clean = checkpoints.take_clean_shutdown(fs, self.path) or self.is_new
            self.recovery_points = self._checkpoint(checkpoints.RECOVERY_POINT_FILE)
            self.log_starts = self._checkpoint(checkpoints.LOG_START_FILE)
            self.cleaned_up_to = self._checkpoint(checkpoints.CLEANER_FILE)
            self.high_watermarks = self._high_watermarks()
        except BaseException:
            self.release()
            raise
        self._checkpoints = (self.recovery_points, self.log_starts, self.cleaned_up_to, self.high_watermarks)
        self._to_remove: list[tuple[int, str]] = []
        self._adopted: dict[TopicPartition, tuple[int, int, int]] = {}

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _identify(self, config: BrokerConfig) -> tuple[Identity, bool]:
        path = f"{self.path}/{checkpoints.META_PROPERTIES_FILE}"
        try:
            found = checkpoints.read_properties(self.fs, path)
        except FileNotFoundError:
            if self.fs.exists(f"{self.path}/{METADATA_DIRECTORY}"):
                raise CorruptData(
                    f"{path} is missing, but there is data: without it the cluster would get another id. Restore it "
                    "(version=1, cluster.id, node.id, directory.id), or start with an empty directory"
                ) from None
            identity = Identity(uuids.to_text(uuids.random_id()), config.node_id, uuids.random_id())
            checkpoints.write_properties(
                self.fs,
                path,
                {
                    "version": META_VERSION,
                    "cluster.id": identity.cluster_id,
                    "node.id": str(identity.node_id),
                    "directory.id": uuids.to_text(identity.directory_id),
                },
            )
            return identity, True
        if found.get("version") != META_VERSION:
            raise ConfigError(
                f"{path} has version {found.get('version')}, this kmirror reads version {META_VERSION}: "
                "it was written by another release or by Kafka with ZooKeeper"
            )
        try:
            identity = Identity(found["cluster.id"], int(found["node.id"]), uuids.from_text(found["directory.id"]))
        except (KeyError, ValueError) as error:
            raise CorruptData(f"{path} lacks a usable cluster.id, node.id or directory.id: {error}") from error
        if "node.id" in config.explicit and identity.node_id != config.node_id:
            raise ConfigError(f"{path} belongs to node {identity.node_id}, but node.id={config.node_id}")
        return identity, False

    def _checkpoint(self, name: str) -> OffsetCheckpoint:
        """A damaged checkpoint costs a longer recovery, not the start: the logs themselves know better."""
        checkpoint = OffsetCheckpoint(self.fs, f"{self.path}/{name}")
        try:
            checkpoint.read()
        except CorruptData as error:
            log.warning("%s; recovering without it", error)
            self.clean = False
        return checkpoint

    def _high_watermarks(self) -> OffsetCheckpoint:
        """Nothing here reads them: a Kafka that takes the directory over does. Kept for partitions whose log is not
        opened this time; a log knows its own, so damage costs nothing."""
        checkpoint = OffsetCheckpoint(self.fs, f"{self.path}/{checkpoints.HIGH_WATERMARK_FILE}")
        try:
            checkpoint.read()
        except CorruptData as error:
            log.warning("%s; written anew", error)
        return checkpoint

    def mark_clean(self) -> None:
        checkpoints.write_clean_shutdown(self.fs, self.path)

    def check_metadata_is_there(self) -> None:
        """The metadata log is empty, which is right before anything else was written. Raises CorruptData."""
        for name in self.fs.list_dir(self.path):
            path = f"{self.path}/{name}"
            if name != METADATA_DIRECTORY and self.fs.exists(f"{path}/{checkpoints.PARTITION_METADATA_FILE}"):
                raise CorruptData(
                    f"{self.path}/{METADATA_DIRECTORY} is missing or empty, but {path} holds a topic's records: "
                    "restore it, or start with an empty directory"
                )

    # -- partition directories -----------------------------------------------------------------------------------

    def partition_path(self, topic: str, index: int) -> str:
        return f"{self.path}/{topic}-{index}"

    def claim(self, topic: str, index: int, topic_id: bytes, removed_ids: set[bytes], now_ms: int) -> str:
        """The directory for this partition, made if it is not there; one of another topic id is moved out of the way.

        Raises StorageError.
        """
        path = self.partition_path(topic, index)
        if self.fs.exists(path):
            found = self._topic_id_of(path)
            if found == topic_id:
                return path
            names = [name for name in self.fs.list_dir(path) if not name.endswith(TEMPORARY_SUFFIX)]
            if found is None and any(offset_in(name, LOG_SUFFIX) is not None for name in names):
                raise CorruptData(
                    f"{path}/{checkpoints.PARTITION_METADATA_FILE} is missing or damaged, so that nobody knows whose "
                    f"records these are. Restore it (version: 0, topic_id: {uuids.to_text(topic_id)}), or move the "
                    "directory away"
                )
            if found is not None or names:
                self._set_aside(path, topic, index, removed=found in removed_ids, now_ms=now_ms)
        self._forget((topic, index))
        self.fs.make_dirs(path)
        checkpoints.write_partition_metadata(self.fs, path, uuids.to_text(topic_id))
        return path

    def _forget(self, key: TopicPartition) -> None:
        """A new log begins: what the checkpoints say is about a deleted topic of the same name, and must go first."""
        for checkpoint in self._checkpoints:
            checkpoint.forget(key)

    def _topic_id_of(self, path: str) -> bytes | None:
        try:
            text = checkpoints.read_partition_metadata(self.fs, path)
            return None if text is None else uuids.from_text(text)
        except (CorruptData, ValueError):
            return None

    def _set_aside(self, path: str, topic: str, index: int, *, removed: bool, now_ms: int) -> None:
        if removed:
            self.discard(topic, index, now_ms)
            self.sync()
            return
        target = self._renamed(topic, index, STRAY_SUFFIX)
        log.warning("%s belongs to no topic this cluster knows: kept as %s", path, target)
        self.fs.rename(path, target)
        self.fs.sync_dir(self.path)

    def discard(self, topic: str, index: int, due_ms: int) -> bool:
        """Rename a deleted partition's directory, if it has one, to be removed at `due_ms` (monotonic) or later.

        Not durable before `sync`, which one call does for many.
        """
        path = self.partition_path(topic, index)
        self._adopted.pop((topic, index), None)
        for checkpoint in self._checkpoints:
            checkpoint.discard((topic, index))
        if not self.fs.exists(path):
            return False
        target = self._renamed(topic, index, DELETE_SUFFIX)
        self.fs.rename(path, target)
        self._to_remove.append((due_ms, target))
        return True

    def sync(self) -> None:
        """The names of the partition directories are on disk. Raises DiskFailure."""
        self.fs.sync_dir(self.path)

    def _renamed(self, topic: str, index: int, suffix: str) -> str:
        """`topic-index.<32 hex digits><suffix>`, the topic cut so that the name fits (UnifiedLog.logDeleteDirName)."""
        tail = f"-{index}.{uuids.random_id().hex()}{suffix}"
        return f"{self.path}/{topic[: MAX_FILE_NAME_LENGTH - len(tail)]}{tail}"

    def find_leftovers(self, live: set[str], removed_ids: set[bytes], now_ms: int) -> None:
        """At start: partition directories whose deletion was interrupted go on being deleted; unknown ones stay."""
        renamed = False
        for name in self.fs.list_dir(self.path):
            path = f"{self.path}/{name}"
            if name.endswith(DELETE_SUFFIX):
                self._to_remove.append((now_ms, path))
            elif name not in live and not name.endswith(STRAY_SUFFIX):
                topic, dash, index = name.rpartition("-")
                if not dash or not index.isdigit():
                    continue
                if self._topic_id_of(path) in removed_ids:
                    renamed = self.discard(topic, int(index), now_ms) or renamed
                elif self.fs.exists(f"{path}/{checkpoints.PARTITION_METADATA_FILE}"):
                    log.warning("%s belongs to no topic this cluster knows and is left alone", path)
        if renamed:
            self.sync()

    # -- import (`broker.importing`) -----------------------------------------------------------------------------

    def announce_import(self, topics: Iterable[tuple[str, bytes, int]]) -> None:
        """Before anything of it is made: (name, topic id, number of partitions) each. Durable on return.

        What is found of a topic at the next start, and is in no record of the metadata, is removed then.
        """
        lines = [
            f"{name} {index} {uuids.to_text(topic_id)}"
            for name, topic_id, partition_count in topics
            for index in range(partition_count)
        ]
        self.fs.write_atomic(f"{self.path}/{UNFINISHED_IMPORT_FILE}", checkpoints.format_lines(lines))

    def end_import(self, known_id: Callable[[bytes], bool], now_ms: int) -> None:
        """All that was announced is live, or goes: after the import, and at the start that follows one that was
        interrupted. Raises DiskFull, DiskFailure, CorruptData."""
        path = f"{self.path}/{UNFINISHED_IMPORT_FILE}"
        if not self.fs.exists(path):
            return
        renamed = False
        for words in checkpoints.parse_lines(self.fs.read_file(path), path):
            try:
                topic, index, topic_id = words[0], int(words[1]), uuids.from_text(words[2])
            except (IndexError, ValueError):
                raise CorruptData(f"{path} has a line {' '.join(words)!r}") from None
            if not known_id(topic_id) and self._is_from_import(self.partition_path(topic, index), topic_id):
                renamed = self.discard(topic, index, now_ms) or renamed
        if renamed:
            log.warning("an import into %s did not come to its end: what it left unfinished is removed", self.path)
            self.sync()
        self.fs.remove(path)
        self.sync()

    def _is_from_import(self, path: str, topic_id: bytes) -> bool:
        """`partition.metadata` is on disk before any other file of the partition is made."""
        if not self.fs.exists(path):
            return True
        found = self._topic_id_of(path)
        return found == topic_id or (found is None and not is_taken(self.fs, path))

    def adopt(self, key: TopicPartition, *, recovery_point: int, log_start_offset: int, cleaned_up_to: int) -> None:
        """What the checkpoints will say of a partition that is about to be live. On disk after `write_adopted`."""
        self._adopted[key] = (recovery_point, log_start_offset, cleaned_up_to)

    def write_adopted(self) -> None:
        """Before the records that make these partitions live: a trimmed log must not come back untrimmed."""
        kept = (self.recovery_points, self.log_starts, self.cleaned_up_to)
        for position, checkpoint in enumerate(kept):
            offsets = {key: offset for key, offset in checkpoint.offsets.items() if key not in self._adopted}
            offsets |= {key: values[position] for key, values in self._adopted.items() if values[position] > 0}
            checkpoint.write(offsets)
        self._adopted.clear()

    def due_removals(self, now_ms: int) -> list[str]:
        """Directories whose time has come; they are the caller's to remove now. Without it the next start does it."""
        due = [path for at, path in self._to_remove if at <= now_ms]
        if due:
            self._to_remove = [item for item in self._to_remove if item[0] > now_ms]
        return due

    def remove(self, paths: list[str]) -> Steps:
        for path in paths:
            self.fs.remove_tree(path)
            yield
