"""The check of a whole data directory: what has to hold between partitions, checkpoints and the metadata."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kmirror.broker import check_directory
from kmirror.broker.check_directory import DirectoryResult
from kmirror.broker.check_metadata import MetadataCheck
from kmirror.broker.metadata import MetadataImage
from kmirror.broker.metadata_snapshot import ImageAtOffset
from kmirror.errors import CorruptData
from kmirror.protocol import uuids
from kmirror.protocol.internal import cluster_metadata as records
from kmirror.protocol.records import Record, build_batch, end_txn_marker
from kmirror.storage.check.findings import Finding, ReadOnlyFiles, Severity
from kmirror.storage.checkpoints import format_lines
from kmirror.storage.kraft_snapshot import SnapshotId, SnapshotWriter
from kmirror.storage.memory import MemoryFileSystem
from tests.broker.harness import DIRECTORY, Broker, make_batch
from tests.broker.metadata_history import History, facts

DAMAGE, STALE, NOTE = Severity.DAMAGE, Severity.STALE, Severity.NOTE
METADATA = "__cluster_metadata-0"


def lived(broker: Broker) -> None:
    """Topics with records, transactions, a deleted one, deleted records, several snapshots of the metadata."""
    for name in ("t", "gone", "left", "compacted"):
        broker.create(name, 2)
    broker.create("empty", 3)
    broker.settle(broker.world.delete_topic("gone"))
    for number in range(12):
        broker.produce("t", b"value %d" % number)
        broker.produce("left", b"value %d" % number, index=number % 2)
        broker.produce("compacted", b"value %d" % number)
    now_ms = broker.clock.time_ms()
    partition = broker.world.partition("t", 1)
    batch = make_batch(
        b"txn", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True, timestamp_ms=now_ms
    )
    partition.produce(batch, now_ms=now_ms, acks=-1)
    partition.append_coordinator(
        end_txn_marker(commit=False, producer_id=5, producer_epoch=0, coordinator_epoch=0, timestamp_ms=now_ms)
    )
    broker.world.snapshots.write()
    broker.flush.run()
    broker.create("later", 1)
    broker.produce("later", b"x")
    broker.world.snapshots.write()
    broker.flush.run()
    broker.world.delete_records("t", 0, 4)
    broker.flush.run()


def on_disk(broker: Broker, place: Path) -> Path:
    """Everything that the broker's file system holds, in `place`."""

    def copy(source: str, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        for name in broker.fs.list_dir(source):
            try:
                copy(f"{source}/{name}", target / name)
            except (FileNotFoundError, NotADirectoryError):
                target.joinpath(name).rmdir() if target.joinpath(name).is_dir() else None
                (target / name).write_bytes(broker.fs.read_file(f"{source}/{name}"))

    copy(DIRECTORY, place)
    return place


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The data directory of a broker after a life and a clean stop."""
    broker = Broker()
    lived(broker)
    broker.world.close(clean=True)
    return on_disk(broker, tmp_path / "data")


def looked_at(path: Path, **how: Any) -> tuple[DirectoryResult, list[Finding]]:
    found: list[Finding] = []
    return check_directory.check(ReadOnlyFiles(), str(path), found.append, **how), found


def test_nothing_is_found_in_a_sound_directory(stopped: Path) -> None:
    result, found = looked_at(stopped)
    assert found == []
    assert result.totals.records > 40
    assert {"t-0", "t-1", "left-0", "later-0", METADATA} <= result.partitions.keys()
    assert result.partitions["t-0"].records == 12
    assert set(result.findings.values()) == {0}
    assert looked_at(stopped, deep=False)[1] == []


def test_an_identity_is_read_as_a_broker_reads_it(stopped: Path) -> None:
    path = stopped / "meta.properties"
    path.write_text("  # moved here\n" + path.read_text().replace("=", " = "))
    assert looked_at(stopped)[1] == []


def test_nor_in_memory_which_is_a_file_system_too() -> None:
    broker = Broker()
    lived(broker)
    broker.world.close(clean=True)
    found: list[Finding] = []
    result = check_directory.check(broker.fs, DIRECTORY, found.append)
    assert found == []
    assert result.totals.records > 40


def test_nor_while_it_runs_or_after_a_kill(tmp_path: Path) -> None:
    broker = Broker()
    lived(broker)
    place = on_disk(broker, tmp_path / "data")
    assert looked_at(place, running=True)[1] == []
    assert [one for one in looked_at(place)[1] if one.severity is DAMAGE] == []


@pytest.mark.parametrize("number", range(12))
def test_snapshots_of_random_metadata_say_what_its_log_says(number: int, seed: int) -> None:
    """Each snapshot is compared with a replay up to it; of another moment's it is said that it differs."""
    history, image, fs = History(seed), MetadataImage(), MemoryFileSystem()
    place = f"{DIRECTORY}/{METADATA}"
    fs.make_dirs(place)
    log = fs.open(f"{place}/{0:020d}.log", create=True)
    offset = 0
    written: list[SnapshotId] = []
    for _ in range(150):
        made = history.step(image)
        if made:
            values = [Record(value=records.encode_metadata(record)) for record in made]
            log.append([build_batch(values, base_offset=offset, leader_epoch=1)])
            offset += len(made)
        if history.chance.random() < 0.05 and offset > (written[-1].end_offset if written else 0):
            written.append(SnapshotId(1, offset))
            write_snapshot(fs, place, written[-1], image)
    found: list[Finding] = []
    work = MetadataCheck(fs, place, found.append, running=False)
    work.run()
    assert found == []
    assert work.image is not None and facts(work.image) == facts(image)
    assert len(written) >= 2
    fs.write_atomic(f"{place}/{written[-1].name}", fs.read_file(f"{place}/{written[0].name}"))
    MetadataCheck(fs, place, found.append, running=False).run()
    assert found and all(one.severity is DAMAGE and one.path.endswith(written[-1].name) for one in found)


def write_snapshot(fs: MemoryFileSystem, place: str, snapshot_id: SnapshotId, image: MetadataImage) -> None:
    writer = SnapshotWriter(fs, place, snapshot_id, reserve=lambda size_bytes: None)
    writer.begin(last_timestamp_ms=0, now_ms=0)
    view = ImageAtOffset(image, 1, partition_record)
    for record in view.records():
        writer.add(records.encode_metadata(record))
    view.close()
    writer.finish()
    writer.publish()


def partition_record(
    topic_id: bytes, index: int, *, leader_epoch: int, partition_epoch: int
) -> records.PartitionRecord:
    return records.PartitionRecord(
        partition_id=index, topic_id=topic_id, leader_epoch=leader_epoch, partition_epoch=partition_epoch
    )


# --- planted damage ---------------------------------------------------------------------------------------------


def checkpoint(place: Path, name: str, *lines: str) -> None:
    (place / name).write_bytes(format_lines(lines))


def with_line(place: Path, name: str, topic: str, index: int, offset: int) -> None:
    """The checkpoint with this line in the place of the partition's own."""
    path = place / name
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    kept = [line for line in lines if not line.startswith(f"{topic} {index} ")]
    checkpoint(place, name, *kept, f"{topic} {index} {offset}")


def other_topic(place: Path) -> None:
    (place / "t-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {uuids.to_text(bytes(15) + b'x')}")


def newest_snapshot(place: Path) -> Path:
    return sorted((place / METADATA).glob("*.checkpoint"))[-1]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def without(path: Path) -> None:
    for inside in path.iterdir():
        inside.unlink()
    path.rmdir()


def twin(place: Path) -> None:
    (place / "t-00").mkdir()
    (place / "t-00" / f"{0:020d}.log").write_bytes(b"")


def stranger(place: Path) -> None:
    (place / "who-0").mkdir()
    (place / "who-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {uuids.to_text(bytes(15) + b'x')}")


def older_snapshot_under_the_newest_name(place: Path) -> None:
    """Right in form, and of another moment."""
    first, last = sorted((place / METADATA).glob("*.checkpoint"))
    data = first.read_bytes()
    last.write_bytes(data)


PLANTS: list[tuple[str, Callable[[Path], object], Severity, str, str]] = [
    (
        "a recovery point beyond the end",
        lambda at: with_line(at, "recovery-point-offset-checkpoint", "t", 0, 99),
        DAMAGE,
        "t-0/00000000000000000000.log",
        "records up to 99 were on disk",
    ),
    (
        "a log start beyond the end",
        lambda at: with_line(at, "log-start-offset-checkpoint", "t", 0, 99),
        DAMAGE,
        "t-0/00000000000000000000.log",
        "below its start 99",
    ),
    (
        "a high watermark beyond the end",
        lambda at: with_line(at, "replication-offset-checkpoint", "t", 0, 99),
        STALE,
        "replication-offset-checkpoint",
        "t-0 ends at 12",
    ),
    (
        "cleaned beyond the end",
        lambda at: with_line(at, "cleaner-offset-checkpoint", "t", 0, 99),
        STALE,
        "cleaner-offset-checkpoint",
        "t-0 ends at 12",
    ),
    (
        "a checkpoint that is none",
        lambda at: (at / "recovery-point-offset-checkpoint").write_text("1\n"),
        STALE,
        "recovery-point-offset-checkpoint",
        "not a checkpoint",
    ),
    (
        "a line twice",
        lambda at: checkpoint(at, "replication-offset-checkpoint", "t 0 3", "t 0 4"),
        NOTE,
        "replication-offset-checkpoint",
        "twice",
    ),
    (
        "a line about no topic",
        lambda at: with_line(at, "replication-offset-checkpoint", "who", 0, 9),
        NOTE,
        "replication-offset-checkpoint",
        "belongs to no topic",
    ),
    (
        "a negative offset",
        lambda at: with_line(at, "log-start-offset-checkpoint", "t", 0, -7),
        STALE,
        "log-start-offset-checkpoint",
        "has offset -7",
    ),
    ("a directory is missing", lambda at: without(at / "left-1"), DAMAGE, "left-1", "the directory is missing"),
    ("a directory of another topic", other_topic, DAMAGE, "t-0/partition.metadata", "the topic has"),
    (
        "a topic id is missing",
        lambda at: (at / "t-0" / "partition.metadata").unlink(),
        DAMAGE,
        "t-0/partition.metadata",
        "should say topic_id",
    ),
    (
        "a topic id that is none",
        lambda at: (at / "t-0" / "partition.metadata").write_text("?"),
        DAMAGE,
        "t-0/partition.metadata",
        "not served",
    ),
    ("a directory of no topic", stranger, NOTE, "who-0", "no topic of this cluster"),
    ("a second directory of a partition", twin, NOTE, "t-00", "a second one beside t-0"),
    ("no identity", lambda at: (at / "meta.properties").unlink(), DAMAGE, "meta.properties", "missing"),
    (
        "half an identity",
        lambda at: (at / "meta.properties").write_text("version=1\nnode.id=1\n"),
        DAMAGE,
        "meta.properties",
        "no cluster.id",
    ),
    (
        "another version of the identity",
        lambda at: (at / "meta.properties").write_text("version=7\n"),
        DAMAGE,
        "meta.properties",
        "version 7",
    ),
    (
        "a mark that is none",
        lambda at: (at / ".kafka_cleanshutdown").write_text("yes"),
        NOTE,
        ".kafka_cleanshutdown",
        "not what a broker writes",
    ),
    ("a bit of a snapshot", lambda at: flip(newest_snapshot(at), 300), STALE, ".checkpoint", "passed over"),
    (
        "a snapshot without its end",
        lambda at: newest_snapshot(at).write_bytes(newest_snapshot(at).read_bytes()[:-90]),
        STALE,
        ".checkpoint",
        "passed over",
    ),
    ("a snapshot of another moment", older_snapshot_under_the_newest_name, DAMAGE, ".checkpoint", "topics differ from"),
    (
        "half a snapshot",
        lambda at: (at / METADATA / f"{99:020d}-{1:010d}.checkpoint.part").write_bytes(b""),
        STALE,
        ".part",
        "being written",
    ),
    (
        "the metadata log is missing",
        lambda at: (at / METADATA / f"{0:020d}.log").unlink(),
        DAMAGE,
        f"{METADATA}/00000000000000000000.log",
        "log-facts lists it",
    ),
    (
        "a bit of a partition's log",
        lambda at: flip(at / "t-0" / f"{0:020d}.log", 70),
        DAMAGE,
        "t-0/00000000000000000000.log",
        "checksum",
    ),
]


@pytest.mark.parametrize(
    ("plant", "severity", "suffix", "text"), [pytest.param(*rest, id=name) for name, *rest in PLANTS]
)
def test_each_damage_is_named(
    stopped: Path, plant: Callable[[Path], object], severity: Severity, suffix: str, text: str
) -> None:
    plant(stopped)
    result, found = looked_at(stopped)
    assert any(one.severity is severity and one.path.endswith(suffix) and text in one.text for one in found), found
    assert result.findings[severity] == sum(one.severity is severity for one in found)
    if severity is not DAMAGE:
        assert [one for one in found if one.severity is DAMAGE] == []


def test_a_log_without_the_snapshot_it_needs(stopped: Path) -> None:
    """The log was cut off below a snapshot, which is gone."""
    metadata = stopped / METADATA
    for path in metadata.iterdir():
        if path.name != f"{0:020d}.log":
            path.unlink()
    (metadata / f"{0:020d}.log").rename(metadata / f"{7:020d}.log")
    found = looked_at(stopped)[1]
    assert any("no snapshot tells what was before" in one.text and one.severity is DAMAGE for one in found)


def test_a_file_and_a_partition_are_checked_with_what_lies_around_them(stopped: Path) -> None:
    flip(stopped / "t-0" / f"{0:020d}.log", 70)
    with_line(stopped, "replication-offset-checkpoint", "compacted", 0, 99)
    with_line(stopped, "recovery-point-offset-checkpoint", "t", 1, 99)
    assert [one.path.rpartition("/")[2] for one in looked_at(stopped / "t-0")[1]] == [f"{0:020d}.log"]
    assert looked_at(stopped / "left-0")[1] == []
    (found,) = looked_at(stopped / "t-1" / f"{0:020d}.log")[1]
    assert "were on disk" in found.text
    assert looked_at(stopped / "t-1" / "partition.metadata")[1] == []
    (found,) = looked_at(stopped / "replication-offset-checkpoint")[1]
    assert found.severity is STALE
    other = stopped.parent / "other"
    other.mkdir()
    (other / "holiday.jpeg").write_bytes(b"")
    for path in (other, other / "holiday.jpeg"):
        with pytest.raises(CorruptData):
            looked_at(path)
    with pytest.raises(FileNotFoundError):
        looked_at(stopped / "nothing")


def test_what_is_set_aside_or_cut_is_no_damage(stopped: Path) -> None:
    source = stopped / "left-0" / f"{0:020d}.log"
    for name in (f"left-0.{'a' * 32}-delete", f"left-0.{'b' * 32}-stray", "cut/left-0/id-1"):
        place = stopped / name
        place.mkdir(parents=True)
        (place / source.name).write_bytes(source.read_bytes()[:-3])
    found = looked_at(stopped)[1]
    assert sorted((one.severity, one.path.removeprefix(f"{stopped}/")) for one in found) == [
        (NOTE, f"cut/left-0/id-1/{source.name}"),
        (NOTE, f"left-0.{'b' * 32}-stray"),
    ]


def test_what_an_import_left_behind_is_told_from_a_strangers(stopped: Path) -> None:
    """The next start removes it, whatever state it is in."""
    live = uuids.to_text(bytes(15) + b"y")
    stranger(stopped)
    (stopped / "who-0" / f"{0:020d}.log").write_bytes(b"half a batch")
    (stopped / "who-1").mkdir()
    known = (stopped / "left-0" / "partition.metadata").read_text().split()[-1]
    flip(stopped / "left-0" / f"{0:020d}.log", 70)
    checkpoint(
        stopped,
        "import-unfinished",
        f"left 0 {known}",
        f"who 0 {uuids.to_text(bytes(15) + b'x')}",
        f"t 0 {live}",
        f"who 1 {live}",
    )
    found = looked_at(stopped)[1]
    assert [(one.severity, one.path) for one in found if one.severity is STALE] == [
        (STALE, f"{stopped}/who-{index}") for index in (0, 1)
    ]
    assert [one.path for one in found if one.severity is DAMAGE] == [f"{stopped}/left-0/{0:020d}.log"]
    assert not any("/who-" in one.path for one in looked_at(stopped, running=True)[1])
    (stopped / "import-unfinished").write_text("?")
    assert any(one.severity is DAMAGE and "no broker starts" in one.text for one in looked_at(stopped)[1])


def test_an_empty_checkpoint_is_what_a_kafka_makes_first(stopped: Path) -> None:
    (stopped / "cleaner-offset-checkpoint").write_bytes(b"")
    assert [one.severity for one in looked_at(stopped)[1]] == [STALE]
    (stopped / METADATA / "log-facts").unlink()
    assert not any(one.path.endswith("cleaner-offset-checkpoint") for one in looked_at(stopped)[1])


def test_links_and_directories_where_files_should_be(stopped: Path) -> None:
    """Each is named, and the rest is checked."""
    (stopped / "t-0" / f"{99:020d}.log").symlink_to("nowhere")
    for name in ("replication-offset-checkpoint", ".kafka_cleanshutdown"):
        (stopped / name).unlink(missing_ok=True)
        (stopped / name).mkdir()
    for number in range(3):
        (stopped / "cut").mkdir(exist_ok=True)
        (stopped / "cut" / f"loop-{number}").symlink_to(stopped)
    flip(stopped / "left-0" / f"{0:020d}.log", 70)
    damage = [one for one in looked_at(stopped)[1] if one.severity is DAMAGE]
    assert sorted(one.path.removeprefix(f"{stopped}/") for one in damage) == [
        ".kafka_cleanshutdown",
        f"left-0/{0:020d}.log",
        "replication-offset-checkpoint",
        f"t-0/{99:020d}.log",
    ]
    assert check_directory.log_bytes(ReadOnlyFiles(), str(stopped)) > 0


def test_what_cannot_be_read_is_said(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(ReadOnlyFiles):
        def read_file(self, path: str) -> bytes:
            if path.endswith("left-0/leader-epoch-checkpoint"):
                raise OSError(5, "Input/output error")
            return super().read_file(path)

    found: list[Finding] = []
    check_directory.check(Failing(), str(stopped), found.append)
    (one,) = found
    assert one.severity is DAMAGE and one.path.endswith("left-0") and "Input/output error" in one.text
