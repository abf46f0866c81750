"""Snapshots of the metadata log: what they say, when they are written, what they let go, how a start uses them."""

from __future__ import annotations

import errno
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kmirror.broker import metadata
from kmirror.broker.chores import Steps
from kmirror.broker.config_admin import ConfigOp, ConfigOperation
from kmirror.broker.durability import InlineFlush
from kmirror.broker.metadata import BROKER_RESOURCE, MIRROR_RESOURCE, MetadataImage
from kmirror.broker.metadata_snapshot import ImageAtOffset
from kmirror.broker.topic_admin import CreateTopicSpec
from kmirror.broker.world import World
from kmirror.cli.dump import command as dump
from kmirror.errors import CorruptData
from kmirror.limits import REMOVED_TOPICS_REMEMBERED, SNAPSHOT_CLEANING_MS, SNAPSHOT_RETRY_MS
from kmirror.protocol.internal import cluster_metadata as records
from kmirror.protocol.internal import control
from kmirror.protocol.records import read_records, walk
from kmirror.storage.kraft_snapshot import SnapshotId, id_of, read_snapshot, snapshots_in
from kmirror.storage.memory import MemoryFileSystem
from tests.broker.harness import DIRECTORY, Broker, OverlappingFlush
from tests.broker.metadata_history import History, facts

METADATA = f"{DIRECTORY}/__cluster_metadata-0"
RECORDED = Path(__file__).parent / "golden" / "kafka-4.4.0-bootstrap.checkpoint"
DAY_MS = 24 * 3600 * 1000


def partition_record(
    topic_id: bytes, index: int, *, leader_epoch: int, partition_epoch: int
) -> records.PartitionRecord:
    return records.PartitionRecord(
        partition_id=index, topic_id=topic_id, leader_epoch=leader_epoch, partition_epoch=partition_epoch
    )


def view_of(image: MetadataImage) -> ImageAtOffset:
    return ImageAtOffset(image, 1, partition_record)


def image_of(made: list[Any]) -> MetadataImage:
    image = MetadataImage()
    for record in made:
        image.replay(records.decode_metadata(records.encode_metadata(record)))
    return image


def names(broker: Broker) -> list[str]:
    """Of the snapshots, whole or half; those that only wait for their removal left out."""
    found = [name for name in broker.fs.list_dir(METADATA) if ".checkpoint" in name]
    return [name for name in found if not name.endswith(".deleted")]


def snapshot_now(broker: Broker) -> SnapshotId:
    broker.world.snapshots.write()
    broker.flush.run()
    return broker.world.snapshots.known[-1]


def reopened(broker: Broker) -> MetadataImage:
    broker.restart()
    return broker.world.image


def small_segments(broker: Broker) -> None:
    log = broker.world._metadata.log
    log.apply_config(replace(log.config, segment_bytes=1000))


# --- what a snapshot says -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_a_snapshot_is_the_image_of_one_moment(seed: int) -> None:
    """However the image changes while it is written."""
    history = History(seed)
    image = MetadataImage()
    for _ in range(history.chance.randint(0, 150)):
        history.step(image)
    expected = facts(image)
    view = view_of(image)
    made = []
    for record in view.records():
        made.append(record)
        if history.chance.random() < 0.5:
            history.step(image)
    view.close()
    assert facts(image_of(made)) == expected, f"seed {seed}"
    assert image.before_change is None


def test_the_histories_meet_every_record_type_that_changes_anything() -> None:
    met: set[str] = set()
    for seed in range(20):
        history = History(seed)
        image = MetadataImage()
        for _ in range(100):
            met.update(type(record).__name__ for record in history.step(image))
    meant = {name for name, replay in metadata._REPLAY.items() if replay is not MetadataImage._nothing}
    assert meant <= met


def test_one_of_very_many_removed_topics_is_forgotten_and_always_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "REMOVED_TOPICS_REMEMBERED", 3)
    image = MetadataImage()
    for number in (1, 2, 3, 1, 4):
        topic_id = bytes([number]) * 16
        image.replay(records.TopicRecord(name="t", topic_id=topic_id))
        image.replay(records.PartitionRecord(partition_id=0, topic_id=topic_id, leader_epoch=number))
        image.replay(records.RemoveTopicRecord(topic_id=topic_id))
    assert [topic_id[0] for topic_id in image.removed_epochs] == [3, 1, 4]
    assert image.removed_ids == set(image.removed_epochs)
    again = image_of(list(view_of(image).records()))
    assert list(again.removed_epochs.items()) == list(image.removed_epochs.items())
    assert REMOVED_TOPICS_REMEMBERED > 10_000


# --- the file -------------------------------------------------------------------------------------------------------


def test_the_file_is_as_kafka_writes_it() -> None:
    """Header and footer to the byte, save for times, with a snapshot that Kafka 4.4.0 wrote (kafka-storage format)."""
    broker = Broker()
    snapshot_id = snapshot_now(broker)
    ours = broker.fs.read_file(f"{METADATA}/{snapshot_id.name}")
    theirs = RECORDED.read_bytes()
    (_, our_first), *_, (our_end, our_last) = list(walk(ours))
    (_, their_first), *_, (their_end, their_last) = list(walk(theirs))
    assert (our_first.attributes, our_first.base_offset) == (their_first.attributes, their_first.base_offset)
    assert our_last.attributes == their_last.attributes
    assert our_last.base_offset == sum(header.record_count for _, header in walk(ours)) - 1
    ours_header, theirs_header = read_records(ours)[0], read_records(theirs)[0]
    assert ours_header.key == theirs_header.key
    assert ours_header.value is not None
    assert theirs_header.value is not None
    assert len(ours_header.value) == len(theirs_header.value)
    decoded = control.decode_control_value(control.SNAPSHOT_HEADER, ours_header.value)
    last = max(h.max_timestamp for h, _ in broker.world._metadata.log.batches(0, snapshot_id.end_offset))
    assert decoded == control.SnapshotHeaderRecord(version=0, last_contained_log_timestamp=last)
    our_footer, their_footer = read_records(ours, our_end)[0], read_records(theirs, their_end)[0]
    assert (our_footer.key, our_footer.value) == (their_footer.key, their_footer.value)
    assert {header.leader_epoch for _, header in walk(ours)} == {snapshot_id.epoch} == {1}


def test_a_snapshot_of_kafka_is_read() -> None:
    fs = MemoryFileSystem()
    fs.make_dirs("/d")
    fs.write_atomic("/d/x.checkpoint", RECORDED.read_bytes())
    snapshot = read_snapshot(fs, "/d/x.checkpoint")
    assert snapshot.last_timestamp_ms == 1796004945429
    image = MetadataImage()
    for position, _header in snapshot.batches:
        for record in read_records(snapshot.data, position):
            image.replay(records.decode_metadata(record.value or b""))
    assert image.features["metadata.version"] == 33
    assert len(image.features) == 6


def test_every_torn_length_and_every_flipped_byte_is_found() -> None:
    broker = Broker()
    whole = broker.fs.read_file(f"{METADATA}/{snapshot_now(broker).name}")
    path = f"{METADATA}/torn"
    broker.fs.write_atomic(path, whole)
    read_snapshot(broker.fs, path)
    for size in range(len(whole)):
        broker.fs.write_atomic(path, whole[:size])
        with pytest.raises(CorruptData):
            read_snapshot(broker.fs, path)
    covered_by_no_checksum = {*range(8), *range(12, 16)}  # of each batch: base offset and leader epoch
    for position in range(len(whole)):
        begin = max(at for at, _header in walk(whole) if at <= position)
        if position - begin in covered_by_no_checksum:
            continue
        broker.fs.write_atomic(path, whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(CorruptData):
            read_snapshot(broker.fs, path)
    broker.fs.write_atomic(path, whole + b"more")
    with pytest.raises(CorruptData):
        read_snapshot(broker.fs, path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("00000000000000000012-0000000001.checkpoint", SnapshotId(1, 12)),
        ("00000000000000000012-0000000001.checkpoint.part", None),
        ("00000000000000000012-0000000001.checkpoint.deleted", None),
        ("12-1.checkpoint", None),
        ("00000000000000000012.checkpoint", None),
        ("leader-epoch-checkpoint", None),
        ("0000000000000000001²-0000000001.checkpoint", None),
    ],
)
def test_names(name: str, expected: SnapshotId | None) -> None:
    assert id_of(name) == expected


def test_dump_prints_it(tmp_path: Path) -> None:
    broker = Broker()
    broker.create("orders", 2)
    snapshot_id = snapshot_now(broker)
    file = tmp_path / "__cluster_metadata-0" / snapshot_id.name
    file.parent.mkdir()
    file.write_bytes(broker.fs.read_file(f"{METADATA}/{snapshot_id.name}"))
    result = CliRunner().invoke(dump, [str(file)], standalone_mode=False)
    assert result.return_value == 0, result.output
    for expected in ("SNAPSHOT_HEADER", "SNAPSHOT_FOOTER", "TopicRecord(name=orders", "FeatureLevelRecord("):
        assert expected in result.output


# --- the broker comes back from one ---------------------------------------------------------------------------------


def lived(broker: Broker) -> None:
    """Something of everything that the image keeps."""
    broker.create("kept", 3, retention__ms="1000")
    gone = broker.create("gone")
    broker.settle(broker.world.bump_leader_epoch(gone.partitions[0], 6))
    broker.settle(broker.world.delete_topic("gone"))
    ops = [ConfigOp("message.max.bytes", ConfigOperation.SET, "4321")]
    broker.settle(broker.world.alter_configs(BROKER_RESOURCE, "", ops))
    broker.settle(broker.world.configs.write(MIRROR_RESOURCE, "m", {"bootstrap.servers": "h:1"}))
    broker.settle(broker.world.producer_ids.next())
    broker.settle(broker.world.bump_leader_epoch(broker.world.partition("kept", 1), 11))


@pytest.mark.parametrize("flush", [InlineFlush, OverlappingFlush])
def test_a_start_from_a_snapshot_and_the_log_behind_it(flush: type[InlineFlush]) -> None:
    broker = Broker(flush=flush)
    lived(broker)
    snapshot_id = snapshot_now(broker)
    after = broker.create("later", 2)
    broker.settle(broker.world.delete_topic("kept"))
    expected = facts(broker.world.image)
    broker.restart()
    assert facts(broker.world.image) == expected
    assert broker.world.snapshots.known == [snapshot_id]
    assert broker.world.image.topics_by_name["later"].topic_id == after.topic_id


def test_what_a_snapshot_says_is_not_read_from_the_log() -> None:
    broker = Broker()
    lived(broker)
    snapshot_now(broker)
    expected = facts(broker.world.image)
    broker.world.close()
    path = f"{METADATA}/00000000000000000000.log"
    data = bytearray(broker.fs.read_file(path))
    data[100] ^= 1  # a start that replayed it would refuse
    broker.fs.write_atomic(path, bytes(data))
    broker._open()
    assert facts(broker.world.image) == expected


def test_a_removed_topic_is_remembered_when_its_records_are_gone() -> None:
    broker = Broker({"metadata.max.retention.bytes": "0"})
    small_segments(broker)
    gone = broker.create("gone")
    broker.settle(broker.world.bump_leader_epoch(gone.partitions[0], 6))
    broker.settle(broker.world.delete_topic("gone"))
    for round_number in range(3):
        for number in range(10):
            broker.create(f"t{round_number}-{number}")
        snapshot_now(broker)
    broker.restart()
    assert broker.world._metadata.log.segments[0].base_offset > 0, "the records are still there"
    again = broker.settle(broker.world.create_topic(CreateTopicSpec("gone", 1, topic_id=gone.topic_id)))
    assert again.partitions[0].leader_epoch == 8
    assert gone.topic_id in broker.world.image.removed_ids


def test_producer_ids_and_epochs_go_on() -> None:
    broker = Broker()
    lived(broker)
    first = broker.settle(broker.world.producer_ids.next())
    snapshot_now(broker)
    broker.restart()
    assert broker.settle(broker.world.producer_ids.next()) > first
    assert broker.world.partition("kept", 1).leader_epoch == 12
    assert broker.world.config.integer("message.max.bytes") == 4321


def test_kafkas_first_snapshot_beside_a_log() -> None:
    """`kafka-storage format` leaves one at offset 0: the log behind it is all that there is to be replayed."""
    broker = Broker()
    broker.create("t")
    expected = set(broker.world.image.topics_by_name)
    broker.world.close()
    broker.fs.write_atomic(f"{METADATA}/{SnapshotId(0, 0).name}", RECORDED.read_bytes())
    broker._open()
    assert set(broker.world.image.topics_by_name) == expected
    assert broker.world.image.features["share.version"] == 2
    broker.create("u")
    assert snapshot_now(broker).end_offset > 0
    assert "u" in reopened(broker).topics_by_name


# --- damage ---------------------------------------------------------------------------------------------------------


def two_snapshots(properties: dict[str, str] | None = None) -> tuple[Broker, dict[str, Any]]:
    """Topic a, a snapshot, topic b, another, topic c; stopped."""
    broker = Broker(properties)
    broker.create("a")
    snapshot_now(broker)
    broker.create("b")
    snapshot_now(broker)
    broker.create("c")
    expected = facts(broker.world.image)
    broker.world.close()
    return broker, expected


def spoil(broker: Broker, name: str, how: str) -> None:
    path = f"{METADATA}/{name}"
    data = broker.fs.read_file(path)
    if how == "missing":
        broker.fs.remove(path)
    else:
        broker.fs.write_atomic(path, {"torn": data[:-20], "empty": b"", "flipped": data[:300] + b"?" + data[301:]}[how])


@pytest.mark.parametrize("how", ["missing", "torn", "empty", "flipped"])
@pytest.mark.parametrize("which", [1, 2])
def test_without_the_newest_the_one_before_will_do(how: str, which: int, caplog: pytest.LogCaptureFixture) -> None:
    broker, expected = two_snapshots()
    found = names(broker)
    for name in found[-which:]:
        spoil(broker, name, how)
    with caplog.at_level(logging.ERROR):
        broker._open()
    assert facts(broker.world.image) == expected
    assert names(broker) == found[:-which]
    assert how == "missing" or caplog.text.count("removed, the state was read without it") == which
    snapshot_now(broker)
    assert facts(reopened(broker)) == expected


def test_a_log_that_starts_later_needs_its_snapshot() -> None:
    broker, _ = two_snapshots({"metadata.max.retention.bytes": "0"})
    (name,) = names(broker)
    assert broker.fs.read_file(f"{DIRECTORY}/log-start-offset-checkpoint").count(b"__cluster_metadata 0") == 1
    whole = broker.fs.read_file(f"{METADATA}/{name}")
    spoil(broker, name, "torn")
    with pytest.raises(CorruptData, match=r"no snapshot tells.*torn.*Nothing was changed"):
        broker._open()
    assert broker.fs.read_file(f"{METADATA}/{name}") == whole[:-20]
    broker.fs.write_atomic(f"{METADATA}/{name}", whole)
    broker._open()
    assert set(broker.world.image.topics_by_name) == {"a", "b", "c"}


def test_a_log_that_ends_below_its_snapshot_goes_on_at_its_end() -> None:
    """The disk lost what it said it had; as Kafka, the snapshot is believed."""
    broker = Broker()
    broker.create("a")
    old_log = broker.fs.read_file(f"{METADATA}/00000000000000000000.log")
    facts_then = broker.fs.read_file(f"{METADATA}/log-facts")
    broker.create("b")
    snapshot_id = snapshot_now(broker)
    expected = facts(broker.world.image)
    fs = broker.fs.crash()
    fs.write_atomic(f"{METADATA}/00000000000000000000.log", old_log)
    fs.write_atomic(f"{METADATA}/log-facts", facts_then)
    broker.fs = fs
    broker._open()
    assert set(broker.world.image.topics_by_name) == {"a", "b"}
    assert broker.world._metadata.log.log_start_offset == snapshot_id.end_offset
    broker.create("c")
    broker.restart()
    assert set(broker.world.image.topics_by_name) == {"a", "b", "c"}
    assert broker.world.image.removed_epochs == dict(expected["removed_epochs"])


def test_what_was_being_written_is_swept_up() -> None:
    broker = Broker()
    broker.world.close()
    for name in ("00000000000000000005-0000000001-8372.checkpoint.part", f"{SnapshotId(1, 9).name}.deleted"):
        broker.fs.write_atomic(f"{METADATA}/{name}", b"x")
    broker._open()
    assert names(broker) == []


def test_a_record_that_is_not_known_stops_the_start() -> None:
    broker = Broker()
    snapshot_id = snapshot_now(broker)
    broker.world.close()
    path = f"{METADATA}/{snapshot_id.name}"
    from kmirror.protocol.records import Record, build_batch

    data = broker.fs.read_file(path)
    (_, _first), (middle, _second), (end, _last) = walk(data)
    strange = build_batch([Record(value=b"\x01\x63\x00")], base_offset=1, leader_epoch=1)
    broker.fs.write_atomic(path, data[:middle] + strange + data[end:])
    with pytest.raises(CorruptData, match=r"checkpoint.*unknown record type 99"):
        broker._open()


# --- when -----------------------------------------------------------------------------------------------------------


def test_by_bytes() -> None:
    broker = Broker({"metadata.log.max.record.bytes.between.snapshots": "2000"})
    log = broker.world._metadata.log
    number = 0
    for expected in (1, 2, 3):
        covered = log.size_bytes if expected > 1 else 0
        while log.size_bytes - covered < 2000:
            broker.world.tick()
            broker.flush.run()
            assert len(broker.world.snapshots.known) == expected - 1
            broker.create(f"t{number}")
            number += 1
        broker.world.tick()
        broker.flush.run()
        assert len(broker.world.snapshots.known) == expected
    broker.restart()
    broker.world.tick()
    broker.flush.run()
    assert len(broker.world.snapshots.known) == 3, "the part below the snapshot counted again"


def test_bytes_behind_the_snapshot_count_after_a_start() -> None:
    broker = Broker({"metadata.log.max.record.bytes.between.snapshots": "3000"})
    snapshot_now(broker)
    for number in range(10):
        broker.create(f"t{number}")
    broker.restart()
    broker.world.tick()
    broker.flush.run()
    assert len(broker.world.snapshots.known) == 1
    for number in range(10, 20):
        broker.create(f"t{number}")
    broker.world.tick()
    broker.flush.run()
    assert len(broker.world.snapshots.known) == 2


def test_by_time_when_anything_was_recorded() -> None:
    broker = Broker()
    for _ in range(3):
        broker.clock.advance(3600_000)
        broker.world.tick()
        broker.flush.run()
        assert len(broker.world.snapshots.known) == 1
    broker.create("t")
    broker.world.tick()
    broker.flush.run()
    assert len(broker.world.snapshots.known) == 2
    broker.create("u")
    broker.clock.advance(3599_000)
    broker.world.tick()
    broker.flush.run()
    assert len(broker.world.snapshots.known) == 2


def test_interval_0_is_never() -> None:
    broker = Broker({"metadata.log.max.snapshot.interval.ms": "0"})
    broker.clock.advance(10 * DAY_MS)
    broker.world.tick()
    broker.flush.run()
    assert broker.world.snapshots.known == []


def test_no_name_before_the_records_and_the_bytes_are_on_disk() -> None:
    broker = Broker()
    promise = broker.world.create_topic(CreateTopicSpec("t", 1))
    broker.world.snapshots.write()
    assert not promise.done
    assert names(broker) == []
    broker.flush.run()
    assert len(names(broker)) == 1
    fs = broker.fs.crash(keep_nothing=True)
    assert len(snapshots_in(fs, METADATA)) == 1


# --- what goes ------------------------------------------------------------------------------------------------------


def grown(properties: dict[str, str], rounds: int) -> Broker:
    broker = Broker(properties)
    small_segments(broker)
    for round_number in range(rounds):
        for number in range(10):
            broker.create(f"t{round_number}-{number}")
        snapshot_now(broker)
        broker.clock.advance(DAY_MS)
    return broker


def test_by_size_all_but_the_newest_go_and_the_log_below_it() -> None:
    broker = grown({"metadata.max.retention.bytes": "1"}, 4)
    (newest,) = broker.world.snapshots.known
    log = broker.world._metadata.log
    assert log.log_start_offset == newest.end_offset
    assert log.segments[0].base_offset <= newest.end_offset
    assert len(log.segments) == 1 or log.segments[1].base_offset > newest.end_offset
    assert names(broker) == [newest.name]
    assert [name for name in broker.fs.list_dir(METADATA) if name.endswith(".checkpoint.deleted")]
    broker.clock.advance(61_000)
    broker.world.tick()
    broker.flush.run()
    assert names(broker) == [newest.name]
    assert not [name for name in broker.fs.list_dir(METADATA) if name.endswith(".deleted")]
    expected = facts(broker.world.image)
    assert facts(reopened(broker)) == expected


def test_by_size_only_as_many_as_are_too_much() -> None:
    broker = grown({}, 4)
    log = broker.world._metadata.log
    sizes = [broker.fs.file_size(f"{METADATA}/{one.name}") for one in broker.world.snapshots.known]
    limit = log.size_bytes + sum(sizes) - 1
    broker.properties["metadata.max.retention.bytes"] = str(limit)
    second = broker.world.snapshots.known[1]
    broker.restart()
    broker.clock.advance(SNAPSHOT_CLEANING_MS)
    broker.world.tick()
    assert len(broker.world.snapshots.known) == 3
    assert broker.world._metadata.log.log_start_offset == second.end_offset


def test_by_time_what_is_older_goes() -> None:
    broker = grown({"metadata.max.retention.ms": str(2 * DAY_MS + 1000), "metadata.max.retention.bytes": "-1"}, 5)
    assert len(broker.world.snapshots.known) == 3
    broker.restart()
    assert len(broker.world.snapshots.known) == 3
    broker.clock.advance(20 * DAY_MS)
    broker.world.tick()
    broker.flush.run()
    assert len(broker.world.snapshots.known) == 1, "the newest stays, however old"


def test_bytes_between_snapshots_are_right_after_segments_went() -> None:
    properties = {"metadata.max.retention.bytes": "1", "metadata.log.max.snapshot.interval.ms": "0"}
    broker = grown({**properties, "metadata.log.max.record.bytes.between.snapshots": "4000"}, 3)
    for number in range(5):
        broker.create(f"u{number}")
    before = list(broker.world.snapshots.known)
    broker.world.tick()
    broker.flush.run()
    assert broker.world.snapshots.known == before
    for number in range(5, 25):
        broker.create(f"u{number}")
    broker.world.tick()
    broker.flush.run()
    assert broker.world.snapshots.known != before


# --- space, size, time ----------------------------------------------------------------------------------------------


def test_no_space_for_it_costs_nothing() -> None:
    broker = Broker()
    broker.create("t")
    broker.fs.fail("write", ".part", error=errno.ENOSPC)
    broker.world.snapshots.write()
    broker.flush.run()
    assert not broker.fatal
    assert names(broker) == []
    broker.create("u")
    broker.clock.advance(3600_000 + SNAPSHOT_RETRY_MS)
    broker.world.tick()
    broker.flush.run()
    assert len(names(broker)) == 1


def test_the_reserve_is_left_for_records() -> None:
    broker = Broker()
    broker.create("t")
    broker.world._services.space._granted_bytes = 0
    broker.fs.capacity_bytes = broker.fs.used_bytes() * 16 // 15  # what is free is the reserve
    broker.world.snapshots.write()
    broker.flush.run()
    assert names(broker) == []
    broker.fs.capacity_bytes = None
    snapshot_now(broker)
    assert len(names(broker)) == 1


class CountedChores:
    """Goes through steps one by one when told to."""

    def __init__(self) -> None:
        self.waiting: list[Steps] = []

    def run(self, steps: Steps) -> None:
        self.waiting.append(steps)


def test_many_topics_are_written_in_small_steps_and_changes_between_them_are_not_in_it() -> None:
    broker = Broker()
    for number in range(30):
        broker.create(f"t{number}", 20)
    chores = CountedChores()
    broker.world.snapshots._chores = chores
    expected = facts(broker.world.image)
    broker.world.snapshots.write()
    broker.flush.run()
    (steps,) = chores.waiting
    count = 0
    for count, _ in enumerate(steps):
        if count == 300:
            broker.settle(broker.world.delete_topic("t29"))
            broker.settle(broker.world.delete_topic("t2"))
            broker.create("new")
            broker.settle(broker.world.bump_leader_epoch(broker.world.partition("t20", 7), 5))
        operations = broker.fs.operation_count
    assert count > 600
    assert broker.fs.operation_count - operations <= 3
    broker.flush.run()
    snapshot = read_snapshot(broker.fs, f"{METADATA}/{broker.world.snapshots.known[-1].name}")
    image = MetadataImage()
    for position, _header in snapshot.batches:
        for record in read_records(snapshot.data, position):
            image.replay(records.decode_metadata(record.value or b""))
    assert facts(image) == expected
    now = facts(broker.world.image)
    assert facts(reopened(broker)) == now


def test_only_one_at_a_time() -> None:
    broker = Broker({"metadata.log.max.record.bytes.between.snapshots": "1"})
    chores = CountedChores()
    broker.world.snapshots._chores = chores
    for number in range(5):
        broker.create(f"t{number}")
        broker.world.tick()
        broker.flush.run()
    assert len(chores.waiting) == 1
    for _ in chores.waiting[0]:
        pass
    broker.flush.run()
    broker.world.tick()
    broker.flush.run()
    assert len(chores.waiting) == 2


def test_closing_in_the_middle() -> None:
    broker = Broker()
    broker.create("t")
    chores = CountedChores()
    broker.world.snapshots._chores = chores
    broker.world.snapshots.write()
    broker.flush.run()
    next(chores.waiting[0])
    assert isinstance(broker.world, World)
    broker.restart()
    assert names(broker) == []
    assert "t" in broker.world.image.topics_by_name
