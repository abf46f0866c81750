"""A check of the metadata log: what a replay of it says, and whether its snapshots say the same. L3.

What may live here: reading `__cluster_metadata-0` for a check, from bytes to an image. The files are walked by the
check's own reader; what records mean is `MetadataImage`'s to say, for the log and the snapshots alike, so that what is
compared is the code that writes snapshots, not the code that reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from kmirror.broker.metadata import MetadataImage
from kmirror.errors import CorruptData, DecodeError
from kmirror.protocol import uuids
from kmirror.protocol.internal.cluster_metadata import decode_metadata
from kmirror.protocol.records import Record, read_records
from kmirror.storage.check.files import list_files
from kmirror.storage.check.findings import Finding, ReadableFiles, Report, Severity, Totals
from kmirror.storage.check.segment import Batch, SegmentWalk
from kmirror.storage.flush import FACTS_FILE
from kmirror.storage.kraft_snapshot import FOOTER_TYPE, HEADER_TYPE, PART_SUFFIX, SnapshotId, id_of

_CONTROL_KEY = struct.Struct(">hh")


class MetadataCheck:
    """`image` is what the next start will know; None when that could not be found out."""

    def __init__(self, fs: ReadableFiles, directory: str, report: Report, *, running: bool) -> None:
        self.image: MetadataImage | None = None
        self.totals = Totals()
        self._fs = fs
        self._directory = directory
        self._report = report
        self._ours = True
        """Written by kmirror; a Kafka writes types of records that mean nothing here."""
        self._running = running

    def run(self) -> None:
        """Raises FileNotFoundError for a directory that is gone; damage is reported, here as far as it is the
        snapshots', and else by `check_log`."""
        files = list_files(self._fs, self._directory)
        self._ours = FACTS_FILE in files.names
        start = files.segments[0].base_offset if files.segments else 0
        known = sorted(found for name in files.names if (found := id_of(name)) is not None)
        images = {snapshot_id: self._snapshot(snapshot_id) for snapshot_id in known}
        sound = [one for one in known if isinstance(images[one], MetadataImage) and one.end_offset >= start]
        self._unreadable(images, sound, start)
        self._leftovers(files.names, known, start)
        image: MetadataImage | None = MetadataImage() if files.segments and start == 0 else None
        position = 0
        if sound and (image is None or sound[0].end_offset == 0):  # at 0 Kafka's storage tool leaves what was before
            first = sound.pop(0)
            image, position = images[first], first.end_offset  # type: ignore[assignment]
        if image is None:
            if files.segments or known:
                text = f"the log begins at {start}, and no snapshot tells what was before"
                self._say(Severity.DAMAGE, "", text, offset=start)
            return
        self.image = self._replay(files.segments, image, position, sound, images)

    def _replay(
        self,
        segments: list[Any],
        image: MetadataImage,
        position: int,
        sound: list[SnapshotId],
        images: dict[SnapshotId, MetadataImage | str],
    ) -> MetadataImage | None:
        """The log's records from `position` on, with a stop at each snapshot."""
        for record in self._records(segments, position):
            while sound and sound[0].end_offset <= record.offset:
                self._compare(sound[0], image, images[sound.pop(0)])
            try:
                self._apply(image, record)
            except (CorruptData, DecodeError, IndexError) as error:
                text = f"the record at offset {record.offset} is not understood, topics are not compared: {error}"
                self._say(Severity.DAMAGE if self._ours else Severity.NOTE, "", text, offset=record.offset)
                return None
            position = record.offset + 1
        for snapshot_id in sound:
            snapshot = images[snapshot_id]
            if snapshot_id.end_offset > position and self._behind(segments, snapshot_id):
                assert isinstance(snapshot, MetadataImage)
                image = snapshot
            else:
                self._compare(snapshot_id, image, snapshot)
        return image

    def _apply(self, image: MetadataImage, record: Record) -> None:
        decoded = decode_metadata(record.value or b"")
        if self._ours or image.understands(decoded):
            image.replay(decoded)

    def _behind(self, segments: list[Any], snapshot_id: SnapshotId) -> bool:
        """Whether the log ends below the snapshot."""
        end = segments[-1].base_offset if segments else snapshot_id.end_offset
        for batch in self._batches(segments[-1:]):
            end = batch.header.next_offset
        if end >= snapshot_id.end_offset:
            return False
        if not self._running:
            text = f"the log ends at {end}, below it: the next start goes on at {snapshot_id.end_offset}"
            self._say(Severity.STALE, snapshot_id.name, text, offset=end)
        return True

    def _records(self, segments: list[Any], position: int) -> Iterator[Record]:
        """Of data batches. Ends at damage, which `check_log` reports."""
        for batch in self._batches(segments):
            if batch.header.is_control or batch.data is None or batch.header.next_offset <= position:
                continue
            try:
                records = read_records(batch.data)
            except CorruptData:
                return
            yield from (record for record in records if record.offset >= position)

    def _batches(self, segments: list[Any]) -> Iterator[Batch]:
        for segment in segments:
            walk = SegmentWalk(self._fs.open(f"{self._directory}/{segment.name}"), segment.size_bytes)
            try:
                for batch in walk:
                    walk.check(batch)
                    yield batch
            except CorruptData:
                return

    # --- snapshots ----------------------------------------------------------------------------------------------

    def _snapshot(self, snapshot_id: SnapshotId) -> MetadataImage | str:
        """The image, or what is wrong."""
        file = self._fs.open(f"{self._directory}/{snapshot_id.name}")
        self.totals.files += 1
        self.totals.size_bytes += file.size_bytes
        image = MetadataImage()
        walk = SegmentWalk(file, file.size_bytes)
        kinds: list[int] = []
        expected = 0
        try:
            for batch in walk:
                walk.check(batch)
                self.totals.batches += 1
                header = batch.header
                if header.base_offset != expected or header.leader_epoch != snapshot_id.epoch:
                    raise CorruptData(f"its batch at byte {batch.position} has another offset or epoch than it must")
                expected = header.next_offset
                records = read_records(batch.data or b"")
                self.totals.records += len(records)
                if header.is_control:
                    kinds.append(_control_type(records))
                    continue
                kinds.append(-1)
                for record in records:
                    self._apply(image, record)
        except (CorruptData, DecodeError, IndexError) as error:
            return str(error)
        if kinds[:1] != [HEADER_TYPE]:
            return "it does not begin with a snapshot's header"
        if kinds[-1] != FOOTER_TYPE or FOOTER_TYPE in kinds[:-1] or HEADER_TYPE in kinds[1:]:
            return "its last batch, and no other, must be the footer"
        return image

    def _unreadable(self, images: dict[SnapshotId, MetadataImage | str], sound: list[SnapshotId], start: int) -> None:
        for snapshot_id, image in images.items():
            if isinstance(image, str):
                needed = not sound and start > 0
                fate = "" if needed else ": passed over, and removed, at the next start"
                self._say(Severity.DAMAGE if needed else Severity.STALE, snapshot_id.name, image + fate)

    def _leftovers(self, names: list[str], known: list[SnapshotId], start: int) -> None:
        if self._running:
            return
        for name in names:
            if name.endswith(PART_SUFFIX):
                self._say(Severity.STALE, name, "a snapshot that was being written: removed at the next start")
        for snapshot_id in known:
            if snapshot_id.end_offset < start:
                self._say(Severity.STALE, snapshot_id.name, f"the log begins behind it, at {start}: not used any more")

    def _compare(self, snapshot_id: SnapshotId, image: MetadataImage, snapshot: object) -> None:
        assert isinstance(snapshot, MetadataImage)
        said, found = _plain(snapshot, ours=self._ours), _plain(image, ours=self._ours)
        for name, value in found.items():
            if said[name] != value:
                text = f"{name} differ from what the log says: {_first_difference(said[name], value)}"
                self._say(Severity.DAMAGE, snapshot_id.name, text, offset=snapshot_id.end_offset)

    def _say(self, severity: Severity, name: str, text: str, *, offset: int | None = None) -> None:
        path = f"{self._directory}/{name}" if name else self._directory
        self._report(Finding(severity, path, text, offset))


def bootstrap_damage(fs: ReadableFiles, path: str) -> str:
    """What is wrong with a file of batches with metadata records; empty when nothing is."""
    file = fs.open(path)
    walk = SegmentWalk(file, file.size_bytes)
    try:
        for batch in walk:
            walk.check(batch)
            for record in read_records(batch.data or b"") if not batch.header.is_control else ():
                decode_metadata(record.value or b"")
    except (CorruptData, DecodeError) as error:
        return str(error)
    return ""


def _control_type(records: list[Record]) -> int:
    key = records[0].key or b"" if records else b""
    return int(_CONTROL_KEY.unpack(key)[1]) if len(key) == _CONTROL_KEY.size else -2


def _plain(image: MetadataImage, *, ours: bool) -> dict[str, dict[Any, Any]]:
    """What an image says, as values that can be compared. A Kafka's snapshot forgets what was removed."""
    topics = {
        uuids.to_text(topic.topic_id): (
            topic.name,
            [(one.leader_epoch, one.partition_epoch) for one in topic.registrations],
            topic.configs,
        )
        for topic in image.all_topics()
    }
    plain: dict[str, dict[Any, Any]] = {
        "topics": topics,
        "features": image.features,
        "broker settings": {"": image.default_broker_configs, **image.broker_configs},
        "mirror settings": dict(image.mirror_configs),
        "other settings": dict(image.other_configs),
    }
    if ours:
        plain["removed topics"] = {uuids.to_text(one): epoch for one, epoch in image.removed_epochs.items()}
        plain["producer ids"] = {"next": image.next_producer_id}
        plain["brokers"] = {"": image.broker}
    return plain


def _first_difference(said: dict[Any, Any], found: dict[Any, Any]) -> str:
    for key in sorted({*said, *found}, key=str):
        if said.get(key) != found.get(key):
            return f"{key or 'default'} is {said.get(key)} there, {found.get(key)} in the log"
    return ""
