"""`kmirror import` of directories that a crash, a disk or a person has damaged: cut as recovery cuts, or refused."""

from __future__ import annotations

import errno

import pytest

from kmirror.broker.importing import ImportReport
from kmirror.errors import DiskFailure
from kmirror.protocol.records import parse_header, walk
from kmirror.storage import checkpoints
from kmirror.storage.memory import MemoryFileSystem
from tests.broker.harness import DIRECTORY
from tests.broker.kafka_source import (
    SOURCE,
    do_import,
    log_bytes,
    put,
    put_checkpoint,
    put_partition,
    serve,
    stopped_cleanly,
    tree,
)

FIRST, SECOND = "00000000000000000000", "00000000000000000003"
"""The two segments of 4.4.0/txn-0; its log ends at 21."""
RECOVERY_POINTS = checkpoints.RECOVERY_POINT_FILE


@pytest.fixture
def fs() -> MemoryFileSystem:
    """/kafka/t-0 with two segments, and /kafka/other-0, which is sound and always comes over."""
    fs = MemoryFileSystem(seed=1)
    put_partition(fs, "4.4.0/txn-0", "t-0")
    put_partition(fs, "4.4.0/idem-0", "other-0")
    return fs


def flip(fs: MemoryFileSystem, path: str, *, batch: int) -> int:
    """A bit of a batch's last byte; returns the batch's base offset."""
    data = bytearray(fs.read_file(path))
    position, header = list(walk(data))[batch]
    data[position + header.size_bytes - 1] ^= 1
    put(fs, path, bytes(data))
    return header.base_offset


def assert_refused(fs: MemoryFileSystem, *said: str) -> ImportReport:
    """t is, for a reason that says all this; nothing of it stays and the sources are as they were."""
    before = tree(fs, SOURCE)
    report = do_import(fs)
    assert [plan.name for plan in report.topics if plan.done] == ["other"]
    assert [plan.name for plan in report.refused] == ["t"]
    reason = report.refused[0].refusal or ""
    for text in (*said, f"{SOURCE}/t-0"):
        assert text in reason, reason
    assert tree(fs, SOURCE) == before
    files = tree(fs, DIRECTORY)
    assert not [path for path in files if "/t-0" in path or path.endswith("import-unfinished")]
    assert not checkpoints.read_offsets(fs, f"{DIRECTORY}/{RECOVERY_POINTS}").keys() & {("t", 0)}
    world = serve(fs)
    assert world.image.topics_by_name.keys() == {"other"}
    world.close()
    return report


def assert_cut(fs: MemoryFileSystem, end: int) -> None:
    """t comes over up to `end`, and it is said that something was cut."""
    report = do_import(fs)
    assert report.refused == []
    assert any("cut" in note for note in report.topics[1].notes), report.topics[1].notes
    world = serve(fs)
    log = world.partition("t", 0).log
    assert log.log_end_offset == end
    whole = log_bytes(fs, f"{SOURCE}/t-0")
    kept = b"".join(data for _header, data in log.batches(0, 2**62))
    assert whole.startswith(kept) and parse_header(whole, len(kept)).base_offset == end


@pytest.mark.parametrize(("segment", "batch"), [(FIRST, 0), (SECOND, 0), (SECOND, 1), (SECOND, -1)])
def test_after_a_clean_stop_every_batch_must_be_right(fs: MemoryFileSystem, segment: str, batch: int) -> None:
    stopped_cleanly(fs)
    offset = flip(fs, f"{SOURCE}/t-0/{segment}.log", batch=batch)
    assert_refused(fs, f"{segment}.log", f"offset {offset}", "checksum", "leave the topic out")


@pytest.mark.parametrize(("kept_bytes", "said"), [(0, "ends at offset 20"), (30, "below the recovery point")])
def test_a_clean_log_whose_end_is_gone(fs: MemoryFileSystem, kept_bytes: int, said: str) -> None:
    """The last batch is, or all of it but a piece."""
    stopped_cleanly(fs)
    put_checkpoint(fs, RECOVERY_POINTS, {("t", 0): 21})
    path = f"{SOURCE}/t-0/{SECOND}.log"
    data = fs.read_file(path)
    put(fs, path, data[: list(walk(data))[-1][0] + kept_bytes])
    assert_refused(fs, said)


@pytest.mark.parametrize("position", [8, 11, 16], ids=["a length", "another bit of it", "a magic"])
def test_a_clean_log_of_which_no_checkpoint_speaks(fs: MemoryFileSystem, position: int) -> None:
    """What looks like a torn end can be none."""
    stopped_cleanly(fs)
    path = f"{SOURCE}/t-0/{SECOND}.log"
    data = bytearray(fs.read_file(path))
    at, header = list(walk(data))[-1]
    data[at + position] ^= 0x40
    put(fs, path, bytes(data))
    assert_refused(fs, f"{SECOND}.log", f"offset {header.base_offset}", "stopped cleanly")


def test_a_checkpoint_to_which_kafka_never_wrote_says_nothing(fs: MemoryFileSystem) -> None:
    """Such as the cleaner's, where nothing is compacted: empty, also after a clean stop."""
    stopped_cleanly(fs)
    put(fs, f"{SOURCE}/{checkpoints.CLEANER_FILE}", b"")
    assert not any("read without it" in note or "not stopped cleanly" in note for note in do_import(fs).notes)


@pytest.mark.parametrize("batch", [0, -1])
@pytest.mark.parametrize("position", range(8))
def test_no_bit_of_a_base_offset_goes_unseen(fs: MemoryFileSystem, batch: int, position: int) -> None:
    """It lies outside the checksum; that of the newest batch has no neighbour behind it either."""
    stopped_cleanly(fs)
    put_checkpoint(fs, RECOVERY_POINTS, {("t", 0): 21, ("other", 0): 13})
    path = f"{SOURCE}/t-0/{SECOND}.log"
    data = bytearray(fs.read_file(path))
    at, _header = list(walk(data))[batch]
    data[at + position] ^= 0x20
    put(fs, path, bytes(data))
    assert_refused(fs)


def test_a_leader_epoch_that_is_none(fs: MemoryFileSystem) -> None:
    stopped_cleanly(fs)
    path = f"{SOURCE}/t-0/{SECOND}.log"
    data = bytearray(fs.read_file(path))
    data[12] ^= 0x80
    put(fs, path, bytes(data))
    assert_refused(fs, f"{SECOND}.log", "is none")


def test_damage_below_the_recovery_point(fs: MemoryFileSystem) -> None:
    put_checkpoint(fs, RECOVERY_POINTS, {("t", 0): 15})
    flip(fs, f"{SOURCE}/t-0/{SECOND}.log", batch=1)
    assert_refused(fs, f"{SECOND}.log")


def test_damage_above_the_recovery_point_is_cut(fs: MemoryFileSystem) -> None:
    put_checkpoint(fs, RECOVERY_POINTS, {("t", 0): 5})
    end = flip(fs, f"{SOURCE}/t-0/{SECOND}.log", batch=-2)
    assert_cut(fs, end)


def test_a_torn_tail_without_checkpoints_is_cut_from_the_newest_segment_only(fs: MemoryFileSystem) -> None:
    path = f"{SOURCE}/t-0/{SECOND}.log"
    data = fs.read_file(path)
    header = list(walk(data))[-1][1]
    put(fs, path, data + data[: len(data) // 4])
    report = do_import(fs, only=["t"])
    assert any("cut" in note for note in report.topics[0].notes)
    assert serve(fs).partition("t", 0).log_end_offset == header.next_offset
    again = MemoryFileSystem()
    put_partition(again, "4.4.0/txn-0", "t-0")
    put_partition(again, "4.4.0/idem-0", "other-0")
    flip(again, f"{SOURCE}/t-0/{FIRST}.log", batch=0)
    assert_refused(again, f"{FIRST}.log")


def test_a_segment_that_somebody_removed(fs: MemoryFileSystem) -> None:
    """Its index files tell of it, as long as it is not the newest."""
    stopped_cleanly(fs)
    put_checkpoint(fs, RECOVERY_POINTS, {("t", 0): 21})
    fs.remove(f"{SOURCE}/t-0/{SECOND}.log")
    assert_refused(fs, "up to 21")


def test_offsets_that_go_back(fs: MemoryFileSystem) -> None:
    stopped_cleanly(fs)
    path = f"{SOURCE}/t-0/{SECOND}.log"
    data = fs.read_file(path)
    put(fs, path, data[: next(walk(data))[1].size_bytes] + data)
    assert_refused(fs, f"{SECOND}.log", "follows")


def test_leader_epochs_that_go_back(fs: MemoryFileSystem) -> None:
    stopped_cleanly(fs)
    path = f"{SOURCE}/t-0/{SECOND}.log"
    changed = bytearray(fs.read_file(path))
    changed[12:16] = (9).to_bytes(4, "big")  # outside the checksum
    put(fs, path, bytes(changed))
    assert_refused(fs, "leader epoch 0 follows 9")


def test_partition_metadata_that_is_damaged(fs: MemoryFileSystem) -> None:
    put(fs, f"{SOURCE}/t-0/partition.metadata", b"version: 0\ntopic_id: none")
    assert_refused(fs, "partition.metadata")


def test_checkpoints_that_are_damaged_are_done_without(fs: MemoryFileSystem) -> None:
    stopped_cleanly(fs)
    put(fs, f"{SOURCE}/{RECOVERY_POINTS}", b"0\n9\nt 0 4\n")
    report = do_import(fs)
    assert report.refused == []
    assert "read without it" in report.notes[0] or "read without it" in report.notes[1]


def test_full_sized_indexes_of_a_kafka_that_was_killed_are_not_copied(fs: MemoryFileSystem) -> None:
    for suffix in (".index", ".timeindex"):
        put(fs, f"{SOURCE}/t-0/{SECOND}{suffix}", bytes(10 * 1024 * 1024))
    report = do_import(fs)
    assert report.refused == []
    assert sum(plan.size_bytes for plan in report.topics) < 100_000
    assert fs.file_size(f"{DIRECTORY}/t-0/{SECOND}.index") < 1000


def test_what_a_cleaner_left_behind_follows_kafkas_rules(fs: MemoryFileSystem) -> None:
    """A swap is complete and takes its segments' place; behind a `.cleaned` file it is not (LogLoader)."""
    place = f"{SOURCE}/t-0"
    stopped_cleanly(fs)
    put_checkpoint(fs, RECOVERY_POINTS, {("t", 0): 21})
    first, second = (fs.read_file(f"{place}/{name}.log") for name in (FIRST, SECOND))
    merged = first + second
    for suffix, data in ((".log", merged), (".index", b""), (".timeindex", b""), (".txnindex", b"")):
        put(fs, f"{place}/{FIRST}{suffix}.swap", data)
    put(fs, f"{place}/{FIRST}.txnindex.swap", fs.read_file(f"{place}/{SECOND}.txnindex"))
    put(fs, f"{place}/{FIRST}.log.deleted", first)
    assert do_import(fs).refused == []
    assert [name for name in fs.list_dir(f"{DIRECTORY}/t-0") if ".log" in name] == [f"{FIRST}.log"]
    assert log_bytes(fs, f"{DIRECTORY}/t-0") == merged

    again = MemoryFileSystem()
    put_partition(again, "4.4.0/txn-0", "t-0")
    stopped_cleanly(again)
    put(again, f"{place}/{FIRST}.log.swap", merged)
    put(again, f"{place}/{FIRST}.txnindex.cleaned", b"")
    assert do_import(again).refused == []
    assert log_bytes(again, f"{DIRECTORY}/t-0") == merged
    assert again.exists(f"{DIRECTORY}/t-0/{SECOND}.log")


def test_a_disk_that_is_full_costs_the_topics_that_do_not_fit() -> None:
    fs = MemoryFileSystem(seed=1)
    place = put_partition(fs, "4.4.0/txn-0", "a-0")
    put_partition(fs, "4.4.0/idem-0", "b-0")
    put_partition(fs, "4.4.0/idem-0", "t-0", topic_id=bytes(15) + b"\x07")
    put(fs, f"{place}/00000000000000000000.log.cleaned", bytes(300_000))
    serve(fs).close()
    fs.capacity_bytes = fs.used_bytes() + 100_000
    report = do_import(fs)
    assert [plan.name for plan in report.refused] == ["a"]
    assert "No space" in (report.refused[0].refusal or "") or "ENOSPC" in (report.refused[0].refusal or "")
    assert [plan.name for plan in report.topics if plan.done] == ["b", "t"]
    assert any("are free" in note for note in report.notes)
    assert not [path for path in tree(fs, DIRECTORY) if "/a-0" in path]
    assert serve(fs).image.topics_by_name.keys() == {"b", "t"}


@pytest.mark.parametrize(
    "file", [RECOVERY_POINTS, checkpoints.LOG_START_FILE, checkpoints.LEADER_EPOCH_FILE, "partition.metadata"]
)
def test_no_space_for_a_small_file(file: str) -> None:
    """Whatever of a topic was written down before: nothing speaks of it afterwards."""
    fs = MemoryFileSystem(seed=1)
    put_partition(fs, "4.4.0/epochs-0", "a-0")
    put_partition(fs, "4.4.0/idem-0", "b-0")
    put_checkpoint(fs, checkpoints.LOG_START_FILE, {("a", 0): 3, ("b", 0): 4})
    serve(fs).close()
    fs.fail("write", f"{file}.tmp", error=errno.ENOSPC)
    report = do_import(fs)
    assert [plan.name for plan in report.refused] == ["a"]
    assert [plan.name for plan in report.topics if plan.done] == ["b"]
    for name in (RECOVERY_POINTS, checkpoints.LOG_START_FILE):
        offsets = checkpoints.read_offsets(fs, f"{DIRECTORY}/{name}")
        assert ("b", 0) in offsets and ("a", 0) not in offsets
    assert do_import(fs, only=["a"]).refused == []
    assert serve(fs).partition("a", 0).log_start_offset == 3


@pytest.mark.parametrize("kind", ["write", "sync", "rename"])
def test_a_destination_that_fails_stops_everything(fs: MemoryFileSystem, kind: str) -> None:
    fs.fail(kind, ".log" if kind != "rename" else "partition.metadata", error=errno.EIO)  # type: ignore[arg-type]
    with pytest.raises(DiskFailure):
        do_import(fs)
    assert fs.locks == set()
    fs.heal()
    world = serve(fs)
    assert world.image.topics_by_name == {}
    world.tick()
    assert not [path for path in tree(fs, DIRECTORY) if "other-0" in path]
    world.close()
    assert do_import(fs).refused == []


def test_a_source_that_cannot_be_read_costs_its_topic(fs: MemoryFileSystem) -> None:
    stopped_cleanly(fs)
    fs.fail("read", f"t-0/{SECOND}.log", error=errno.EIO)
    report = do_import(fs)
    assert [plan.name for plan in report.refused] == ["t"]
    assert "cannot be read" in (report.refused[0].refusal or "")
    assert [plan.name for plan in report.topics if plan.done] == ["other"]
