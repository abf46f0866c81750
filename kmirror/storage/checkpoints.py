"""The small text files of a data directory, in Kafka's formats. L2 storage.

Each is replaced as a whole (`FileSystem.write_atomic`), so a reader meets the old or the new one. Formats:
`recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`, `replication-offset-checkpoint` (high watermarks) and
`cleaner-offset-checkpoint` (version 0, count, `topic partition offset` lines),
`leader-epoch-checkpoint` (version 0, count, `epoch offset` lines), `meta.properties`, `partition.metadata`,
`.kafka_cleanshutdown` (JSON with the broker epoch). Reading rubbish raises CorruptData: what to do about it is the
reader's decision (an epoch file is rebuilt from the log, a recovery point falls back to a full scan).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from kmirror.errors import CorruptData
from kmirror.storage.filesystem import FileSystem

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
CLEANER_FILE = "cleaner-offset-checkpoint"
OFFSET_FILES = (RECOVERY_POINT_FILE, LOG_START_FILE, HIGH_WATERMARK_FILE, CLEANER_FILE)
LEADER_EPOCH_FILE = "leader-epoch-checkpoint"
META_PROPERTIES_FILE = "meta.properties"
PARTITION_METADATA_FILE = "partition.metadata"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
LOCK_FILE = ".lock"

TopicPartition = tuple[str, int]


def format_lines(lines: Iterable[str]) -> bytes:
    """Kafka's checkpoint frame: version 0, the number of lines, the lines."""
    body = list(lines)
    return "".join(f"{line}\n" for line in ("0", str(len(body)), *body)).encode()


def parse_lines(data: bytes, name: str) -> list[list[str]]:
    """The lines of a checkpoint split into words. Raises CorruptData for another version or a wrong count."""
    try:
        lines = data.decode("ascii").splitlines()
        version, count, body = int(lines[0]), int(lines[1]), lines[2:]
    except (UnicodeDecodeError, ValueError, IndexError):
        raise CorruptData(f"{name} is not a checkpoint file") from None
    if version != 0:
        raise CorruptData(f"{name} has version {version}; this version reads 0")
    if len(body) != count or not data.endswith(b"\n"):
        raise CorruptData(f"{name} announces {count} lines and has {len(body)}")
    return [line.split() for line in body]


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """A checkpoint of offsets."""
    return format_lines(f"{topic} {index} {offset}" for (topic, index), offset in offsets.items())


def write_offsets(fs: FileSystem, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Write a checkpoint of offsets."""
    fs.write_atomic(path, format_offsets(offsets))


def read_offsets(fs: FileSystem, path: str) -> dict[TopicPartition, int]:
    """Offset by (topic, partition index); a missing file is empty. Raises CorruptData."""
    try:
        data = fs.read_file(path)
    except FileNotFoundError:
        return {}
    offsets: dict[TopicPartition, int] = {}
    for words in parse_lines(data, path):
        try:
            topic, index, offset = words
            offsets[topic, int(index)] = int(offset)
        except ValueError:
            raise CorruptData(f"{path} has a line {' '.join(words)!r}") from None
    return offsets


class OffsetCheckpoint:
    """One such file of a data directory, and what it says: `offsets`. Kafka: OffsetCheckpointFile."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self.offsets: dict[TopicPartition, int] = {}
        self._outdated = False
        """The file speaks of partitions that are deleted."""

    def read(self) -> None:
        """Raises CorruptData; `offsets` are empty then."""
        self.offsets = read_offsets(self._fs, self._path)

    def write(self, offsets: dict[TopicPartition, int]) -> None:
        """Nothing, when that is what it says. Raises DiskFull, DiskFailure."""
        if offsets != self.offsets or self._outdated:
            write_offsets(self._fs, self._path, offsets)
            self._outdated = False
        self.offsets = offsets

    def discard(self, key: TopicPartition) -> None:
        """The partition is deleted: gone from `offsets` now, from the file with the next `write`."""
        if self.offsets.pop(key, None) is not None:
            self._outdated = True

    def forget(self, key: TopicPartition) -> None:
        """Gone from the file when this returns. Raises DiskFull, DiskFailure."""
        self.write({other: at for other, at in self.offsets.items() if other != key})


def format_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    return format_lines(f"{epoch} {offset}" for epoch, offset in entries)


def parse_epochs(data: bytes, name: str = LEADER_EPOCH_FILE) -> list[tuple[int, int]]:
    """(epoch, start offset) pairs, both rising. Raises CorruptData."""
    entries: list[tuple[int, int]] = []
    for words in parse_lines(data, name):
        try:
            epoch, offset = (int(word) for word in words)
        except ValueError:
            raise CorruptData(f"{name} has a line {' '.join(words)!r}") from None
        if epoch < 0 or offset < 0 or (entries and (epoch <= entries[-1][0] or offset < entries[-1][1])):
            raise CorruptData(f"{name}: epochs and offsets must rise, {epoch} {offset} does not")
        entries.append((epoch, offset))
    return entries


def write_properties(fs: FileSystem, path: str, properties: Mapping[str, str]) -> None:
    """A Java properties file with plain values, such as `meta.properties` (version 1: cluster.id, node.id, ...)."""
    fs.write_atomic(path, "".join(f"{key}={value}\n" for key, value in sorted(properties.items())).encode())


def read_properties(fs: FileSystem, path: str) -> dict[str, str]:
    """FileNotFoundError; CorruptData for a line that is neither a comment nor `key=value`."""
    return parse_properties(fs.read_file(path), path)


def parse_properties(data: bytes, path: str) -> dict[str, str]:
    """Java's properties as brokers write them. CorruptData as above; `path` is for its text."""
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise CorruptData(f"{path} is not text") from None
    properties: dict[str, str] = {}
    for line in lines:
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise CorruptData(f"{path} has a line {line!r}")
        properties[key.strip()] = value.strip().replace("\\:", ":").replace("\\=", "=")
    return properties


def write_partition_metadata(fs: FileSystem, directory: str, topic_id: str) -> None:
    """`topic_id` is the 22-character text form."""
    path = f"{directory}/{PARTITION_METADATA_FILE}"
    fs.write_atomic(path, f"version: 0\ntopic_id: {topic_id}".encode())


def read_partition_metadata(fs: FileSystem, directory: str) -> str | None:
    """The topic id in text form, None when the file is missing (logs before Kafka 2.8). Raises CorruptData."""
    path = f"{directory}/{PARTITION_METADATA_FILE}"
    try:
        lines = fs.read_file(path).decode("ascii", "replace").splitlines()
    except FileNotFoundError:
        return None
    values = dict(line.split(": ", 1) for line in lines if ": " in line)
    if values.get("version") != "0" or len(values.get("topic_id", "")) != 22:
        raise CorruptData(f"{path} is not a partition.metadata file of version 0")
    return values["topic_id"]


def write_clean_shutdown(fs: FileSystem, directory: str, broker_epoch: int = -1) -> None:
    """The last act of a clean stop: all logs are closed and synced. Removed before anything is written again."""
    fs.write_atomic(
        f"{directory}/{CLEAN_SHUTDOWN_FILE}", json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()
    )


def take_clean_shutdown(fs: FileSystem, directory: str) -> bool:
    """Was the last stop clean? Removes the mark, durably: from here on a crash is a crash."""
    path = f"{directory}/{CLEAN_SHUTDOWN_FILE}"
    if not fs.exists(path):
        return False
    fs.remove(path)
    fs.sync_dir(directory)
    return True
