"""The topics of a metadata log that nobody serves: read from its files, which are left as they are. L3.

For directories that an Apache Kafka, of this or another version, or another kmirror wrote: of `__cluster_metadata-0`
the newest sound snapshot and the log behind it (KIP-630, KIP-595). Only topics, their partitions and their configs are
wanted: records of other types, also of types that are not known here, are passed over. Records between Begin- and
AbortTransactionRecord (KIP-868) do not count.

What must hold: nothing is written, locked or opened for writing, so that read-only media will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kmirror.broker.metadata import MetadataImage
from kmirror.errors import CorruptData, DecodeError
from kmirror.protocol import wire
from kmirror.protocol.internal import cluster_metadata as records
from kmirror.protocol.records import check_crc, read_records, walk
from kmirror.protocol.schema import schema_of
from kmirror.storage import kraft_snapshot
from kmirror.storage.filesystem import FileSystem
from kmirror.storage.segment import LOG_SUFFIX, offset_in

_BEGIN, _END, _ABORT = 23, 24, 25
"""Record types of transactions (BeginTransactionRecord, ...)."""
_WANTED = {
    schema_of(kind).key
    for kind in (
        records.TopicRecord,
        records.PartitionRecord,
        records.PartitionChangeRecord,
        records.RemoveTopicRecord,
        records.ConfigRecord,
    )
}


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """`leader_epochs` by partition."""

    name: str
    topic_id: bytes
    leader_epochs: tuple[int, ...]
    configs: dict[str, str]


@dataclass(frozen=True, slots=True)
class KafkaMetadata:
    """What the log says up to `end_offset`. `removed_ids`: of topics whose removal it still has. `damage`: why it was
    not read to its end; what came behind is not known."""

    topics: dict[str, KafkaTopic]
    removed_ids: frozenset[bytes]
    end_offset: int
    damage: str | None = None


class _Reader:
    def __init__(self) -> None:
        self.image = MetadataImage()
        self._held: list[bytes] | None = None
        """Records of the transaction that is open."""
        self.damage: str | None = None

    def take(self, value: bytes) -> None:
        """Raises CorruptData, DecodeError."""
        kind = _type_of(value)
        if kind == _BEGIN:
            self._held = []
        elif kind == _END:
            held, self._held = self._held or [], None
            for one in held:
                self.image.replay(records.decode_metadata(one))
        elif kind == _ABORT:
            self._held = None
        elif kind in _WANTED:
            if self._held is not None:
                self._held.append(value)
            else:
                self.image.replay(records.decode_metadata(value))


def _type_of(value: bytes) -> int:
    """Raises DecodeError."""
    try:
        _frame_version, offset = wire.read_uvarint(value, 0)
        kind, _offset = wire.read_uvarint(value, offset)
    except (IndexError, wire.Malformed) as error:
        raise DecodeError(f"no frame of a metadata record: {error}", api="metadata record") from None
    return kind


def read_metadata(fs: FileSystem, directory: str) -> KafkaMetadata:
    """`directory`: a `__cluster_metadata-0`. Raises CorruptData, FileNotFoundError."""
    reader = _Reader()
    try:
        begin = _read_newest_snapshot(fs, directory, reader)
        end = begin
        for offset, value in _log_records(fs, directory, begin, reader):
            reader.take(value)
            end = offset + 1
    except DecodeError as error:
        raise CorruptData(f"{directory}: {error}") from error
    topics = {
        topic.name: KafkaTopic(
            topic.name, topic.topic_id, tuple(one.leader_epoch for one in topic.registrations), topic.configs
        )
        for topic in reader.image.all_topics()
    }
    return KafkaMetadata(topics, frozenset(reader.image.removed_ids), end, reader.damage)


def _read_newest_snapshot(fs: FileSystem, directory: str, reader: _Reader) -> int:
    """Returns the offset from which on the log goes on: 0 without a snapshot that can be read."""
    for snapshot_id in reversed(kraft_snapshot.snapshots_in(fs, directory)):
        try:
            snapshot = kraft_snapshot.read_snapshot(fs, f"{directory}/{snapshot_id.name}")
        except CorruptData:
            continue  # an older one, or the log alone, may tell the same
        for position, _header in snapshot.batches:
            for record in read_records(snapshot.data, position):
                reader.take(record.value or b"")
        return snapshot_id.end_offset
    return 0


def _log_records(fs: FileSystem, directory: str, begin: int, reader: _Reader) -> Iterator[tuple[int, bytes]]:
    """(offset, value) from `begin` on. One segment at a time is in memory (metadata.log.segment.bytes). CorruptData."""
    bases = sorted(base for name in fs.list_dir(directory) if (base := offset_in(name, LOG_SUFFIX)) is not None)
    if bases and bases[0] > begin:
        raise CorruptData(f"{directory} starts at offset {bases[0]}, and no sound snapshot tells what was before")
    expected = begin
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        if following is not None and following <= begin:
            continue
        if base > expected:
            raise CorruptData(f"{directory} lacks the records from offset {expected} to {base}")
        path = f"{directory}/{base:020d}{LOG_SUFFIX}"
        data = fs.read_file(path)
        try:
            for position, header in walk(data):
                check_crc(data, position, header)
                expected = header.next_offset
                if header.is_control or expected <= begin:
                    continue
                for number, record in enumerate(read_records(data, position)):
                    yield header.base_offset + number, record.value or b""
        except CorruptData as error:
            if following is not None:
                raise CorruptData(f"{path}: {error}") from error
            reader.damage = f"{path}: {error}"  # torn by a crash, perhaps; or worse
            return
