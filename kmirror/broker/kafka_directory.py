"""A log directory that is imported: what an Apache Kafka, or another kmirror, left in it. Read only. L3.

Kafka: LogManager, UnifiedLog.parseTopicPartitionName. Either a whole entry of `log.dirs`, with its checkpoints and
`meta.properties`, or any folder that holds `TOPIC-N` directories, without them. The lock file, where there is one, is
held to the end (for reading: nothing is changed), so that no broker starts on the directory meanwhile.

What must hold: nothing in here is written.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from kmirror.broker.directory import DELETE_SUFFIX, METADATA_DIRECTORY, STRAY_SUFFIX
from kmirror.broker.topic_admin import name_problem
from kmirror.errors import ConfigError, CorruptData, DiskFailure
from kmirror.protocol import uuids
from kmirror.storage import checkpoints
from kmirror.storage.checkpoints import TopicPartition
from kmirror.storage.errors import StorageLocked
from kmirror.storage.filesystem import FileSystem, Lock
from kmirror.storage.flush import FACTS_FILE
from kmirror.storage.segment import LOG_SUFFIX, offset_in

FUTURE_SUFFIX = "-future"
"""A copy that was being made in another directory of the same broker (KIP-113)."""
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
_LARGEST_INDEX = 2**31 - 1
_LEFT_ALONE = {
    DELETE_SUFFIX: "was being deleted",
    STRAY_SUFFIX: "belonged to no topic of its cluster",
    FUTURE_SUFFIX: "was being moved to another disk; the copy that counts lies there",
}


@dataclass(frozen=True, slots=True)
class SourcePartition:
    """One partition directory. `recovery_point` is None where no checkpoint names it; `topic_id` before Kafka 2.8.

    `facts_are_true`: its `log-facts` (if it has any) was kept by whoever wrote to it last.
    """

    path: str
    topic_id: bytes | None
    clean: bool
    recovery_point: int | None
    log_start_offset: int
    cleaned_up_to: int
    high_watermark: int | None
    facts_are_true: bool


@dataclass(slots=True)
class KafkaDirectory:
    """See the module head. `topics`: partitions by index, by topic name. `passed_over`: (path, why)."""

    path: str
    cluster_id: str | None = None
    clean: bool = False
    topics: dict[str, dict[int, SourcePartition]] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    """Topics with a directory of which something cannot be read: why."""
    passed_over: list[tuple[str, str]] = field(default_factory=list)
    metadata_path: str | None = None
    recovery_points: dict[TopicPartition, int] = field(default_factory=dict)
    is_kmirrors: bool = False
    """A kmirror was the last to serve it. A partition that was never written to has no directory then."""
    notes: list[str] = field(default_factory=list)
    _lock: Lock | None = None

    @classmethod
    def open(cls, fs: FileSystem, path: str) -> KafkaDirectory:
        """Raises ConfigError for a directory that cannot be meant, StorageLocked, DiskFailure."""
        found = cls(path.rstrip("/") or "/")
        try:
            names = fs.list_dir(found.path)
        except FileNotFoundError as error:
            raise ConfigError(f"{path} is not a directory") from error
        found._check_level(names)
        try:
            found._lock = fs.lock_to_read(f"{found.path}/{checkpoints.LOCK_FILE}")
        except StorageLocked as error:
            raise StorageLocked(f"{path} is in use by a running broker: stop it first") from error
        try:
            found._read(fs, fs.list_dir(found.path))
        except BaseException:
            found.release()
            raise
        return found

    def is_empty(self, topic: str, index: int) -> bool:
        """Whether a partition that the metadata names has no directory because it has no records."""
        return self.is_kmirrors and self.recovery_points.get((topic, index), 0) == 0

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _check_level(self, names: list[str]) -> None:
        if any(offset_in(name, LOG_SUFFIX) is not None for name in names):
            parent = self.path.rpartition("/")[0] or "."
            raise ConfigError(f"{self.path} is a partition directory: name the one it lies in, {parent}")

    def _read(self, fs: FileSystem, names: list[str]) -> None:
        self.clean = checkpoints.CLEAN_SHUTDOWN_FILE in names
        self.cluster_id = self._cluster_id(fs)
        self.recovery_points = self._checkpoint(fs, checkpoints.RECOVERY_POINT_FILE)
        self.is_kmirrors = fs.exists(f"{self.path}/{METADATA_DIRECTORY}/{FACTS_FILE}") and not self._kafka_stopped_it(
            fs
        )
        log_starts = self._checkpoint(fs, checkpoints.LOG_START_FILE)
        cleaned_up_to = self._checkpoint(fs, checkpoints.CLEANER_FILE)
        high_watermarks = self._checkpoint(fs, checkpoints.HIGH_WATERMARK_FILE)
        for name in names:
            path = f"{self.path}/{name}"
            key = self._partition_in(name)
            if key is None:
                self._pass_over_misnamed(fs, path, name)
                continue
            topic, index = key
            try:
                fs.list_dir(path)
                partition = SourcePartition(
                    path,
                    _topic_id(fs, path),
                    self.clean,
                    self.recovery_points.get(key),
                    max(0, log_starts.get(key, 0)),
                    cleaned_up_to.get(key, -1),
                    high_watermarks.get(key),
                    self.is_kmirrors,
                )
            except FileNotFoundError:  # a file is called like a partition
                continue
            except (CorruptData, DiskFailure) as error:  # damaged, or this user may not read it
                self.unreadable.setdefault(topic, str(error))
                continue
            self.topics.setdefault(topic, {})[index] = partition

    def _partition_in(self, name: str) -> TopicPartition | None:
        """(topic, partition) that a name stands for, None for everything else that lies in a log directory."""
        path = f"{self.path}/{name}"
        if name == METADATA_DIRECTORY:
            self.metadata_path = path
            self.passed_over.append((path, "metadata of its cluster: topics' ids and settings are read from it"))
            return None
        for suffix, why in _LEFT_ALONE.items():
            if name.endswith(suffix) and "-" in name.removesuffix(suffix):
                self.passed_over.append((path, why))
                return None
        topic, dash, index = name.rpartition("-")
        if not (dash and _INDEX.fullmatch(index)) or int(index) > _LARGEST_INDEX:
            return None
        return None if name_problem(topic) is not None else (topic, int(index))

    def _pass_over_misnamed(self, fs: FileSystem, path: str, name: str) -> None:
        """Nobody shall think that records came over which did not."""
        if any(path == known for known, _why in self.passed_over):
            return
        try:
            inside = fs.list_dir(path)
        except (FileNotFoundError, DiskFailure):  # a file, as a rule
            return
        if any(offset_in(one, LOG_SUFFIX) is not None for one in inside):
            self.passed_over.append((path, f"it has segments, but {name!r} is no TOPIC-PARTITION"))

    def _kafka_stopped_it(self, fs: FileSystem) -> bool:
        """A Kafka that took a kmirror's directory over leaves the files alone that it does not know, and writes its
        broker epoch where a kmirror has none."""
        try:
            mark = json.loads(fs.read_file(f"{self.path}/{checkpoints.CLEAN_SHUTDOWN_FILE}"))
            return int(mark["brokerEpoch"]) >= 0
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return False

    def _cluster_id(self, fs: FileSystem) -> str | None:
        path = f"{self.path}/{checkpoints.META_PROPERTIES_FILE}"
        try:
            return checkpoints.read_properties(fs, path).get("cluster.id")
        except FileNotFoundError:
            return None
        except CorruptData as error:
            self.notes.append(f"{error}; read without it")
            return None

    def _checkpoint(self, fs: FileSystem, name: str) -> dict[TopicPartition, int]:
        path = f"{self.path}/{name}"
        if fs.exists(path) and not fs.file_size(path):
            return {}  # a Kafka makes them so at its first start (CheckpointFile)
        try:
            return checkpoints.read_offsets(fs, path)
        except CorruptData as error:
            self.clean = False  # as in Kafka: recovery begins without it
            self.notes.append(f"{error}; read without it")
            return {}


def _topic_id(fs: FileSystem, path: str) -> bytes | None:
    """Raises CorruptData."""
    text = checkpoints.read_partition_metadata(fs, path)
    try:
        return None if text is None else uuids.from_text(text)
    except ValueError as error:
        raise CorruptData(f"{path}/{checkpoints.PARTITION_METADATA_FILE}: {error}") from error
