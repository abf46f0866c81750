"""`kmirror import`, the work: what Kafka wrote is served byte for byte; what is refused leaves nothing."""

from __future__ import annotations

import errno

import pytest

from kmirror.broker import check_directory
from kmirror.broker.importing import ImportReport
from kmirror.clock import ManualClock
from kmirror.errors import ConfigError
from kmirror.protocol import uuids
from kmirror.protocol.internal import cluster_metadata as records
from kmirror.protocol.records import Record, build_batch, end_txn_marker, parse_header, walk
from kmirror.storage import checkpoints
from kmirror.storage.check import segment as check_segment
from kmirror.storage.check.findings import Finding, Severity
from kmirror.storage.errors import StorageLocked
from kmirror.storage.log import Log, LogConfig
from kmirror.storage.memory import MemoryFileSystem
from tests.broker.harness import DIRECTORY, Broker, make_batch
from tests.broker.kafka_source import (
    METADATA,
    RECORDED,
    SOURCE,
    do_import,
    dry_run,
    id_in,
    log_bytes,
    put,
    put_checkpoint,
    put_metadata,
    put_partition,
    serve,
    stopped_cleanly,
    topic_records,
    tree,
)
from tests.storage.making import NOW_MS, batch, coordinate, produce

ID, OTHER_ID = uuids.from_text("AAAAAAAAAAAAAAAAAAAAAQ"), uuids.from_text("AAAAAAAAAAAAAAAAAAAAAg")
FIRST_LOG = "00000000000000000000.log"


@pytest.fixture
def fs() -> MemoryFileSystem:
    return MemoryFileSystem(seed=1)


def refusal(report: ImportReport, name: str) -> str:
    found = next(plan for plan in report.topics if plan.name == name)
    assert found.refusal is not None and not found.done, found
    return found.refusal


def assert_nothing_of(fs: MemoryFileSystem, *names: str) -> None:
    """No file of these topics is in the data directory, and no line in its checkpoints."""
    assert not [path for path in tree(fs, DIRECTORY) if path.rpartition("/")[0].startswith(DIRECTORY + "/") and any(
        f"/{name}-" in path for name in names
    )]  # fmt: skip
    for name in (checkpoints.RECOVERY_POINT_FILE, checkpoints.LOG_START_FILE, checkpoints.CLEANER_FILE):
        offsets = checkpoints.read_offsets(fs, f"{DIRECTORY}/{name}")
        assert not [key for key in offsets if key[0] in names]
    assert not fs.exists(f"{DIRECTORY}/import-unfinished")


# --- what comes over --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("recorded", RECORDED)
def test_every_recorded_partition_is_served_byte_for_byte(fs: MemoryFileSystem, recorded: str, clean: bool) -> None:
    place = put_partition(fs, recorded, "t-0")
    if clean:
        stopped_cleanly(fs)
    before = tree(fs, SOURCE)
    report = do_import(fs)
    assert report.refused == []
    assert tree(fs, SOURCE) == before
    plan = report.topics[0]
    assert (plan.name, plan.done, len(plan.partitions)) == ("t", True, 1)
    world = serve(fs)
    partition = world.partition("t", 0)
    batches = list(partition.log.batches(0, 2**62))
    assert b"".join(data for _header, data in batches) == log_bytes(fs, place)
    if fs.exists(f"{place}/partition.metadata"):
        assert partition.topic_id == id_in(fs, place)
    else:
        assert partition.topic_id == plan.topic_id
    known = [header.leader_epoch for header, _data in batches] + [epoch for epoch, _ in _epochs(fs, place)]
    assert partition.leader_epoch == max(known) + 1
    now_ms = world.clock.time_ms()
    result = partition.produce(make_batch(b"new", timestamp_ms=now_ms), now_ms=now_ms, acks=-1)
    assert result.base_offset == batches[-1][0].next_offset


def _epochs(fs: MemoryFileSystem, place: str) -> list[tuple[int, int]]:
    path = f"{place}/{checkpoints.LEADER_EPOCH_FILE}"
    return checkpoints.parse_epochs(fs.read_file(path)) if fs.exists(path) else []


def test_side_files_that_lie_do_not_come_over(fs: MemoryFileSystem) -> None:
    """Indexes are made anew from the batches, whatever is in their files."""
    place = put_partition(fs, "4.4.0/txn-0", "t-0")
    stopped_cleanly(fs)
    for name in fs.list_dir(place):
        if name.endswith((".index", ".timeindex")):
            put(fs, f"{place}/{name}", b"\0\0\0\x01\0\0\0\x07" * 3)
    put(fs, f"{place}/00000000000000000003.snapshot", b"rubbish")
    put(fs, f"{place}/{checkpoints.LEADER_EPOCH_FILE}", b"rubbish")
    assert do_import(fs).refused == []
    whole = MemoryFileSystem()
    put_partition(whole, "4.4.0/txn-0", "t-0")
    stopped_cleanly(whole)
    do_import(whole)
    for suffix in (".index", ".timeindex", ".txnindex", ".log"):
        for name in (name for name in whole.list_dir(f"{DIRECTORY}/t-0") if name.endswith(suffix)):
            path = f"{DIRECTORY}/t-0/{name}"
            assert fs.read_file(path) == whole.read_file(path), name
    ours, theirs = serve(fs).partition("t", 0).log, serve(whole).partition("t", 0).log
    assert ours.aborted_transactions(0, 2**62) == theirs.aborted_transactions(0, 2**62) != []
    assert ours.epochs.entries == theirs.epochs.entries


@pytest.mark.parametrize(
    ("recorded", "suffix"),
    [("2.1.1/txn-0", ".txnindex"), ("4.4.0/txn-0", ".txnindex"), ("4.4.0/epochs-0", "epoch-checkpoint")],
)
def test_no_bit_of_a_side_file_without_checksum_makes_a_difference(recorded: str, suffix: str) -> None:
    whole = MemoryFileSystem()
    place = put_partition(whole, recorded, "t-0")
    stopped_cleanly(whole)
    do_import(whole)
    log = serve(whole).partition("t", 0).log
    expected = (log.aborted_transactions(0, 2**62), log.epochs.entries)
    (path,) = (f"{place}/{name}" for name in whole.list_dir(place) if name.endswith(suffix))
    data = whole.read_file(path)
    for position, bit in ((at, bit) for at in range(len(data)) for bit in range(8)):
        if bit != position * 5 % 8 and suffix == ".txnindex":
            continue  # one of each byte will do
        fs = MemoryFileSystem()
        put_partition(fs, recorded, "t-0")
        stopped_cleanly(fs)
        bad = bytearray(data)
        bad[position] ^= 1 << bit
        put(fs, path, bytes(bad))
        assert do_import(fs).refused == []
        log = serve(fs).partition("t", 0).log
        assert (log.aborted_transactions(0, 2**62), log.epochs.entries) == expected, f"byte {position}, bit {bit}"


def test_a_transaction_that_began_in_a_segment_that_retention_took(fs: MemoryFileSystem) -> None:
    """The snapshot at the log's first offset has it."""
    place = f"{SOURCE}/t-0"
    log = Log.open(fs, place, config=LogConfig(), clock=ManualClock(NOW_MS), clean=False)
    for sequence in (0, 2):
        log.roll()
        produce(log, batch(2, pid=6, seq=sequence, txn=True))
    coordinate(
        log,
        end_txn_marker(commit=False, producer_id=6, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS),
    )
    log.close(clean=True)
    for name in fs.list_dir(place):
        if name.startswith(f"{0:020d}.") or name in ("log-facts", f"{2:020d}.txnindex"):
            fs.remove(f"{place}/{name}")
    stopped_cleanly(fs)
    put_checkpoint(fs, checkpoints.LOG_START_FILE, {("t", 0): 2})
    assert do_import(fs).refused == []
    assert serve(fs).partition("t", 0).log.aborted_transactions(2, 2**62) == [(6, 0, 4, 5)]


def test_batches_that_are_too_large_to_be_held(fs: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their checksum is taken in pieces; those that must be looked into are refused."""
    monkeypatch.setattr(check_segment, "CHECK_MAX_BATCH_BYTES", 80)
    put_partition(fs, "4.4.0/idem-0", "t-0")
    put_offsets_topic(fs, offsets_batch())
    report = do_import(fs)
    assert [plan.name for plan in report.topics if plan.done] == ["t"]
    assert "too large to be looked into" in refusal(report, "__consumer_offsets")


def test_snapshots_that_cannot_be_read_do_not_come_over(fs: MemoryFileSystem) -> None:
    """Also those that a start has no need to read."""
    place = put_partition(fs, "4.4.0/txn-0", "t-0")
    stopped_cleanly(fs)
    put(fs, f"{place}/00000000000000000003.snapshot", b"rubbish")
    do_import(fs)
    found: list[Finding] = []
    check_directory.check(fs, DIRECTORY, found.append)
    assert [(one.severity, one.path) for one in found] == [
        (Severity.NOTE, f"{DIRECTORY}/t-0/00000000000000000003.snapshot")
    ]


def test_an_epoch_that_only_the_newest_batch_knows_is_reported(fs: MemoryFileSystem) -> None:
    """Perhaps a damaged number: it lies outside the checksum."""
    place = put_partition(fs, "4.4.0/idem-0", "t-0")
    put_partition(fs, "4.4.0/epochs-0", "sound-0")
    stopped_cleanly(fs)
    data = fs.read_file(f"{place}/{FIRST_LOG}")
    position = [at for at, _header in walk(data)][-1]
    put(fs, f"{place}/{FIRST_LOG}", data[:position] + _with_epoch(data[position:], 64))
    sound, damaged = do_import(fs).topics
    assert not any("epoch" in note for note in sound.notes)
    assert any("of leader epoch 64, and nothing else knows one above 6" in note for note in damaged.notes)


def test_an_epoch_file_that_does_not_fit_is_reported(fs: MemoryFileSystem) -> None:
    place = put_partition(fs, "4.4.0/epochs-0", "t-0")
    stopped_cleanly(fs)
    put(fs, f"{place}/{checkpoints.LEADER_EPOCH_FILE}", b"0\n4\n0 0\n2 3\n4 5\n6 9\n")
    (note,) = (note for note in do_import(fs).topics[0].notes if "epoch" in note)
    assert note.startswith(f"{place}/{checkpoints.LEADER_EPOCH_FILE} says otherwise than the batch of leader epoch 2")
    assert serve(fs).partition("t", 0).log.epochs.entries == ((0, 0), (2, 3), (4, 6), (6, 9))


def test_epochs_whose_first_batches_were_compacted_away_stay_what_they_are(fs: MemoryFileSystem) -> None:
    place = put_partition(fs, "4.4.0/compact-0", "t-0")
    stopped_cleanly(fs)
    put(fs, f"{place}/{checkpoints.LEADER_EPOCH_FILE}", b"0\n2\n0 0\n4 10\n")
    for name, kept in (("00000000000000000000.log", 1), ("00000000000000000022.log", 0)):
        data = fs.read_file(f"{place}/{name}")
        position = [at for at, _header in walk(data)][kept]
        put(fs, f"{place}/{name}", data[:position] + _with_epoch(data[position:], 4))
    assert do_import(fs).refused == []
    partition = serve(fs).partition("t", 0)
    assert partition.log.epochs.entries == ((0, 0), (4, 10))
    assert partition.leader_epoch == 5


def _with_epoch(data: bytes, epoch: int) -> bytes:
    """The leader epoch lies outside the checksum."""
    changed, position = bytearray(data), 0
    while position < len(changed):
        changed[position + 12 : position + 16] = epoch.to_bytes(4, "big")
        position += parse_header(changed, position).size_bytes
    return bytes(changed)


def test_what_the_checkpoints_say_comes_along(fs: MemoryFileSystem) -> None:
    put_partition(fs, "4.4.0/idem-0", "t-0")
    stopped_cleanly(fs)
    put_checkpoint(fs, checkpoints.LOG_START_FILE, {("t", 0): 5})
    put_checkpoint(fs, checkpoints.CLEANER_FILE, {("t", 0): 9})
    put_checkpoint(fs, checkpoints.HIGH_WATERMARK_FILE, {("t", 0): 11})
    report = do_import(fs)
    assert report.topics[0].offsets == 8
    assert "2 offsets above the high watermark 11" in report.topics[0].notes[0]
    partition = serve(fs).partition("t", 0)
    assert (partition.log_start_offset, partition.log_end_offset, partition.cleaned_up_to) == (5, 13, 9)


def test_leader_epochs_lie_above_those_of_the_old_clusters_metadata(fs: MemoryFileSystem) -> None:
    topic_id = id_in(fs, put_partition(fs, "4.4.0/epochs-0", "t-0"))
    put_metadata(fs, topic_records("t", topic_id, [41]))
    do_import(fs)
    assert serve(fs).partition("t", 0).leader_epoch == 42


def test_settings_come_from_snapshot_and_log_of_the_metadata(fs: MemoryFileSystem) -> None:
    topic_id = id_in(fs, put_partition(fs, "4.4.0/compact-0", "t-0"))
    configs = {"cleanup.policy": "compact", "retention.ms": "5", "segment.bytes": "2000000"}
    changed = {
        "retention.ms": None,
        "segment.bytes": "3000000",
        "remote.storage.enable": "true",
        "from.another.vendor": "1",
    }
    behind: list[object] = [
        records.ConfigRecord(resource_type=2, resource_name="t", name=name, value=value)
        for name, value in changed.items()
    ]
    behind.append(bytes([1, 99, 0, 1, 2, 3]))  # a record type of a later version
    put_metadata(fs, behind, snapshot=topic_records("t", topic_id, configs=configs), covered=40)
    plan = do_import(fs).topics[0]
    assert plan.settings_known
    assert serve(fs).image.topics_by_name["t"].configs == {"cleanup.policy": "compact", "segment.bytes": "3000000"}
    assert len(plan.notes) == 2
    assert "from.another.vendor=1 is not taken over" in plan.notes[1]
    assert "remote.storage.enable=true is not taken over" in plan.notes[0]


def test_an_aborted_metadata_transaction_does_not_count(fs: MemoryFileSystem) -> None:
    from kmirror.protocol.internal import cluster_metadata_rest as rest

    topic_id = id_in(fs, put_partition(fs, "4.4.0/idem-0", "t-0"))
    change = records.ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value="1")
    kept = records.ConfigRecord(resource_type=2, resource_name="t", name="retention.bytes", value="77")
    put_metadata(
        fs,
        [
            *topic_records("t", topic_id),
            rest.BeginTransactionRecord(), change, rest.AbortTransactionRecord(),
            rest.BeginTransactionRecord(), kept, rest.EndTransactionRecord(),
            rest.BeginTransactionRecord(), change,
        ],
    )  # fmt: skip
    do_import(fs)
    assert serve(fs).image.topics_by_name["t"].configs == {"retention.bytes": "77"}


def test_settings_that_nobody_knows_never_cost_a_record(fs: MemoryFileSystem) -> None:
    for name in ("a-0", "b-0", "c-0"):
        put_partition(fs, "2.1.1/txn-0", name)
    settings = {"b": {"cleanup.policy": "compact"}, "c": {"retention.ms": "3"}}
    report = do_import(fs, settings=settings)
    assert "no __cluster_metadata-0" in " ".join(report.notes)
    assert not any(plan.settings_known for plan in report.topics)
    found = {name: topic.configs for name, topic in serve(fs).image.topics_by_name.items()}
    assert found == {
        "a": {"retention.ms": "-1", "retention.bytes": "-1"},
        "b": {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "compact"},
        "c": {"retention.ms": "3", "retention.bytes": "-1"},
    }


def test_several_directories_together_make_a_topic(fs: MemoryFileSystem) -> None:
    put_partition(fs, "4.4.0/idem-0", "t-0", source="/disk1", topic_id=ID)
    put_partition(fs, "4.4.0/txn-0", "t-1", source="/disk2", topic_id=ID)
    put_metadata(fs, topic_records("t", ID, [30, 40], {"retention.ms": "-1"}), source="/disk2")
    stopped_cleanly(fs, "/disk1")
    stopped_cleanly(fs, "/disk2")
    report = do_import(fs, "/disk1", "/disk2")
    assert report.refused == []
    world = serve(fs)
    assert [partition.leader_epoch for partition in world.image.topics_by_name["t"].partitions] == [31, 41]
    assert log_bytes(fs, f"{DIRECTORY}/t-1") == log_bytes(fs, "/disk2/t-1")


def test_a_kmirrors_directory_whose_partitions_were_not_all_written_to() -> None:
    source = Broker()
    source.create("t", 3, retention__ms="-1")
    source.create("unused", 2)
    source.produce("t", b"a", b"b", index=1)
    source.world.close()
    fs = source.fs
    fs.rename(DIRECTORY, SOURCE)
    report = do_import(fs)
    assert report.refused == []
    world = serve(fs)
    topic = world.image.topics_by_name["t"]
    assert [partition.log_end_offset for partition in topic.partitions] == [0, 2, 0]
    assert topic.configs == {"retention.ms": "-1"}
    assert len(world.image.topics_by_name["unused"].partitions) == 2


def test_a_partition_of_a_kmirror_that_is_gone_is_missing() -> None:
    source = Broker()
    source.create("t", 2)
    source.produce("t", b"a", index=0)
    source.produce("t", b"a", index=1)
    source.world.close()
    fs = source.fs
    fs.rename(DIRECTORY, SOURCE)
    fs.remove_tree(f"{SOURCE}/t-1")
    assert "it has 2 partitions, and these are missing: 1." in refusal(do_import(fs), "t")


def test_files_that_a_kmirror_left_in_a_kafkas_directory_say_nothing(fs: MemoryFileSystem) -> None:
    """A Kafka that took partitions over from a kmirror leaves `log-facts` as it is, and compacts and deletes."""
    place = put_partition(fs, "4.4.0/compact-0", "t-0")
    facts = b"0\n6\nend 3\nmax-producer-id 9\ncut 1\nsegment 0\nsegment 2\nsegment 22\n"
    put(fs, f"{place}/log-facts", facts)
    stopped_cleanly(fs)
    put_checkpoint(fs, checkpoints.RECOVERY_POINT_FILE, {("t", 0): 28})
    assert do_import(fs).refused == []
    again = MemoryFileSystem()
    put_partition(again, "4.4.0/compact-0", "t-0")
    put(again, f"{place}/log-facts", facts)
    put(again, f"{METADATA}/log-facts", b"0\n0\n")  # it took the whole directory over; the mark is a Kafka's
    put_metadata(again, topic_records("t", id_in(again, place)))
    stopped_cleanly(again)
    assert do_import(again).refused == []
    assert log_bytes(again, f"{DIRECTORY}/t-0") == log_bytes(fs, f"{DIRECTORY}/t-0") == log_bytes(fs, place)


def test_what_was_deleted_here_may_come_again(fs: MemoryFileSystem) -> None:
    place = put_partition(fs, "4.4.0/idem-0", "t-0")
    do_import(fs)
    world = serve(fs)
    first_life = world.partition("t", 0).leader_epoch
    world.delete_topic("t").result()
    world.close()
    report = do_import(fs)
    assert report.refused == []
    partition = serve(fs).partition("t", 0)
    assert partition.topic_id == id_in(fs, place)
    assert partition.leader_epoch == first_life + 1
    assert log_bytes(fs, f"{DIRECTORY}/t-0") == log_bytes(fs, place)


def test_an_open_transaction_is_reported(fs: MemoryFileSystem) -> None:
    put_partition(fs, "4.4.0/txn-open-0", "t-0")
    notes = do_import(fs).topics[0].notes
    assert "open since offset 2" in notes[-1] and "--start-offset 2" in notes[-1]
    assert serve(fs).partition("t", 0).last_stable_offset == 2


# --- internal topics --------------------------------------------------------------------------------------------


def offsets_batch(value: bytes | None = None) -> bytes:
    from kmirror.protocol.internal import consumer_offsets as wire

    key, encoded = wire.encode_record(
        wire.OffsetCommitKey(group="g", topic="t", partition=0),
        wire.OffsetCommitValue(offset=7, metadata="", commit_timestamp=1),
    )
    return build_batch([Record(key, encoded if value is None else value, timestamp=1)], leader_epoch=0, timestamp_ms=1)


def put_offsets_topic(fs: MemoryFileSystem, data: bytes) -> None:
    for index in range(2):
        put(fs, f"{SOURCE}/__consumer_offsets-{index}/{FIRST_LOG}", data if index == ord("g") % 2 else b"")


def test_committed_offsets_come_along(fs: MemoryFileSystem) -> None:
    put_partition(fs, "4.4.0/idem-0", "t-0")
    put_offsets_topic(fs, offsets_batch())
    report = do_import(fs)
    assert [plan.name for plan in report.topics] == ["t", "__consumer_offsets"]
    assert report.refused == []
    world = serve(fs)
    topic = world.image.topics_by_name["__consumer_offsets"]
    assert topic.configs["cleanup.policy"] == "compact" and topic.configs["flush.messages"] == "1"
    assert len(topic.partitions) == 2
    assert world.groups_if_loaded is not None
    found = world.groups.offsets.fetch_all("g", require_stable=False).result()
    assert [(place, value.offset) for place, value in found] == [(("t", 0), 7)]


def test_internal_topics_that_the_broker_could_not_read_are_refused(fs: MemoryFileSystem) -> None:
    put_partition(fs, "4.4.0/idem-0", "t-0")
    put_offsets_topic(fs, offsets_batch(b"\x7f\x7fnonsense"))
    report = do_import(fs)
    assert "a record that this version cannot read" in refusal(report, "__consumer_offsets")
    assert [plan.name for plan in report.topics if plan.done] == ["t"]
    assert_nothing_of(fs, "__consumer_offsets")
    assert serve(fs).groups_if_loaded is None


def test_a_destination_with_groups_of_its_own_keeps_them(fs: MemoryFileSystem) -> None:
    world = serve(fs)
    world.ensure_internal_topic("__consumer_offsets").result()
    world.close()
    put_partition(fs, "4.4.0/idem-0", "t-0")
    put_offsets_topic(fs, offsets_batch())
    report = do_import(fs)
    assert "has a topic of this name" in refusal(report, "__consumer_offsets")
    assert [plan.name for plan in report.topics if plan.done] == ["t"]


def test_what_a_cluster_keeps_for_itself_is_passed_over(fs: MemoryFileSystem) -> None:
    put_partition(fs, "4.4.0/idem-0", "t-0")
    unique = "0123456789abcdef0123456789abcdef"
    renamed = (f"t-0.{unique}-delete", f"u-1.{unique}-stray", f"v-0.{unique}-future")
    for name in (*renamed, "__share_group_state-0", "__mirror_state-3"):
        put(fs, f"{SOURCE}/{name}/{FIRST_LOG}", b"")
    put(fs, f"{SOURCE}/a-1", b"a file")
    put(fs, f"{SOURCE}/no-number/x", b"")
    report = do_import(fs)
    assert [plan.name for plan in report.topics] == ["t"]
    assert sorted(path.rpartition("/")[2] for path, _why in report.passed_over) == [
        "__mirror_state-*",
        "__share_group_state-*",
        *renamed,
    ]


# --- refusals ---------------------------------------------------------------------------------------------------


def test_missing_partitions_are_named(fs: MemoryFileSystem) -> None:
    put_partition(fs, "4.4.0/idem-0", "t-1", topic_id=ID)
    put_partition(fs, "4.4.0/idem-0", "t-3", topic_id=ID)
    put_partition(fs, "4.4.0/idem-0", "u-0", topic_id=OTHER_ID)
    put_metadata(fs, [*topic_records("t", ID, [0] * 5), *topic_records("u", OTHER_ID, [0])])
    report = do_import(fs)
    assert "it has 5 partitions, and these are missing: 0, 2, 4." in refusal(report, "t")
    assert [plan.name for plan in report.topics if plan.done] == ["u"]
    assert_nothing_of(fs, "t")


def test_topics_of_the_cluster_that_are_elsewhere_are_named(fs: MemoryFileSystem) -> None:
    put_partition(fs, "4.4.0/idem-0", "t-0", topic_id=ID)
    put_metadata(
        fs, [*topic_records("t", ID), *topic_records("u", OTHER_ID), *topic_records("__share_group_state", b"s" * 16)]
    )
    (note,) = (note for note in do_import(fs, only=["t", "u"]).notes if "none of these directories" in note)
    assert note.startswith("1 topics of the cluster are in none of these directories (u)")
    assert not any("none of these directories" in note for note in do_import(fs, only=["t"]).notes)


def test_a_number_that_no_topic_has(fs: MemoryFileSystem) -> None:
    """Somebody's folder that is called like a partition: not a list of all that is missing, in memory or in words."""
    put_partition(fs, "4.4.0/idem-0", "t-2147483647")
    put_partition(fs, "4.4.0/epochs-0", "u-0")
    others = ["backup-99999999999", "t-2147483648", "u-00", "u", "no topic-0", "\u0660-\u0660"]
    for name in others:
        put_partition(fs, "4.4.0/idem-0", name)
    put(fs, f"{SOURCE}/lost+found/x", b"")
    report = do_import(fs)
    assert len(refusal(report, "t")) < 300
    assert [plan.name for plan in report.topics if plan.done] == ["u"]
    assert sorted(report.passed_over) == sorted(
        (f"{SOURCE}/{name}", f"it has segments, but {name!r} is no TOPIC-PARTITION") for name in others
    )


def test_a_directory_that_may_not_be_read(fs: MemoryFileSystem) -> None:
    place = put_partition(fs, "4.4.0/idem-0", "t-0")
    put_partition(fs, "4.4.0/idem-0", "u-0", topic_id=ID)
    fs.fail("read", f"{place}/partition.metadata", error=errno.EACCES)
    report = do_import(fs)
    assert f"{place}/partition.metadata" in refusal(report, "t")
    assert [plan.name for plan in report.topics if plan.done] == ["u"]


def test_a_partition_that_is_there_twice(fs: MemoryFileSystem) -> None:
    put_partition(fs, "4.4.0/idem-0", "t-0", source="/b1")
    put_partition(fs, "4.4.0/idem-0", "t-0", source="/b2")
    text = refusal(do_import(fs, "/b1", "/b2"), "t")
    assert "/b1/t-0 and /b2/t-0" in text


def test_directories_of_two_topics(fs: MemoryFileSystem) -> None:
    put_partition(fs, "4.4.0/idem-0", "t-0", topic_id=ID)
    put_partition(fs, "4.4.0/idem-0", "t-1", topic_id=OTHER_ID)
    text = refusal(do_import(fs), "t")
    assert uuids.to_text(ID) in text and uuids.to_text(OTHER_ID) in text


def test_a_topic_that_its_cluster_deleted(fs: MemoryFileSystem) -> None:
    put_partition(fs, "4.4.0/idem-0", "t-0", topic_id=ID)
    put_partition(fs, "4.4.0/idem-0", "u-0", topic_id=ID)
    put_metadata(fs, [*topic_records("t", ID), records.RemoveTopicRecord(topic_id=ID), *topic_records("u", OTHER_ID)])
    report = do_import(fs)
    assert "says that it was deleted." in refusal(report, "t")
    assert uuids.to_text(OTHER_ID) in refusal(report, "u")


def test_metadata_that_is_damaged_does_not_make_topics_deleted(fs: MemoryFileSystem) -> None:
    put_partition(fs, "4.4.0/idem-0", "t-0", topic_id=ID)
    put_metadata(fs, topic_records("u", OTHER_ID) + topic_records("t", ID))
    path = f"{METADATA}/{FIRST_LOG}"
    data = bytearray(fs.read_file(path))
    behind = list(walk(data))[3][0]
    data[behind - 1] ^= 1  # in the record that creates t
    put(fs, path, bytes(data))
    report = do_import(fs)
    assert report.refused == []
    assert "the metadata ends at offset" in " ".join(report.notes)
    assert not report.topics[0].settings_known


def test_names_and_ids_that_are_taken(fs: MemoryFileSystem) -> None:
    put_partition(fs, "4.4.0/idem-0", "a.b-0", topic_id=ID)
    do_import(fs)
    before = tree(fs, f"{DIRECTORY}/a.b-0")
    put_partition(fs, "4.4.0/txn-0", "a.b-0", source="/again", topic_id=OTHER_ID)
    put_partition(fs, "4.4.0/txn-0", "a_b-0", source="/again", topic_id=OTHER_ID)
    put_partition(fs, "4.4.0/txn-0", "renamed-0", source="/again", topic_id=ID)
    report = do_import(fs, "/again")
    assert "has a topic of this name" in refusal(report, "a.b")
    assert "collides with topic a.b" in refusal(report, "a_b")
    assert "belongs to another topic" in refusal(report, "renamed")
    assert tree(fs, f"{DIRECTORY}/a.b-0") == before
    assert_nothing_of(fs, "a_b", "renamed")


def test_two_topics_of_one_import_with_the_same_id(fs: MemoryFileSystem) -> None:
    put_partition(fs, "4.4.0/idem-0", "a-0", topic_id=ID)
    put_partition(fs, "4.4.0/idem-0", "b-0", topic_id=ID)
    report = do_import(fs)
    assert "that of topic a of this import" in refusal(report, "b")
    assert serve(fs).image.topics_by_name.keys() == {"a"}


def test_a_directory_in_the_way_is_not_touched(fs: MemoryFileSystem) -> None:
    put_partition(fs, "4.4.0/idem-0", "t-0")
    serve(fs).close()
    put_partition(fs, "4.4.0/txn-0", "t-0", source=DIRECTORY)
    before = tree(fs, f"{DIRECTORY}/t-0")
    assert "t-0 that belongs to no topic" in refusal(do_import(fs), "t")
    assert tree(fs, f"{DIRECTORY}/t-0") == before


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        (["/nowhere"], "not a directory"),
        (["/empty"], "no TOPIC-PARTITION directory"),
        (["/kafka/t-0"], "is a partition directory: name the one it lies in, /kafka"),
        (["/kafka", "/kafka/"], "named twice"),
        ([DIRECTORY], "imported into"),
        (["/"], "lies in /, in which nothing is written"),
        (["/kafka", "/other"], "different clusters"),
    ],
)
def test_directories_that_cannot_be_meant(fs: MemoryFileSystem, sources: list[str], said: str) -> None:
    put_partition(fs, "4.4.0/idem-0", "t-0")
    put_partition(fs, "4.4.0/idem-0", "u-0", source="/other")
    put(fs, "/kafka/meta.properties", b"version=1\ncluster.id=one\n")
    put(fs, "/other/meta.properties", b"version=1\ncluster.id=two\n")
    put(fs, "/empty/x/y", b"")
    for attempt in (do_import, dry_run):
        with pytest.raises(ConfigError, match=said):
            attempt(fs, *sources)
    assert fs.locks == set()


def test_settings_for_topics_that_are_not_there(fs: MemoryFileSystem) -> None:
    put_partition(fs, "4.4.0/idem-0", "t-0")
    for settings in ({"u": {"retention.ms": "1"}}, {"t": {"retention.msx": "1"}}, {"t": {"cleanup.policy": "burn"}}):
        with pytest.raises(ConfigError, match="--set"):
            do_import(fs, settings=settings)
    assert serve(fs).image.topics_by_name == {}


def test_directories_in_use(fs: MemoryFileSystem) -> None:
    put_partition(fs, "4.4.0/idem-0", "t-0")
    held = fs.lock(f"{SOURCE}/.lock")
    for attempt in (do_import, dry_run):
        with pytest.raises(StorageLocked, match="/kafka is in use by a running broker: stop it first"):
            attempt(fs)
    held.release()
    world = serve(fs)
    for attempt in (do_import, dry_run):
        with pytest.raises(StorageLocked, match="another process"):
            attempt(fs)
    assert fs.locks == {f"{DIRECTORY}/.lock"}
    world.close()
    assert do_import(fs).refused == []
    assert fs.locks == set()


def test_a_dry_run_says_the_same_and_changes_nothing(fs: MemoryFileSystem) -> None:
    put_partition(fs, "4.4.0/idem-0", "t-0", topic_id=ID)
    put_partition(fs, "4.4.0/idem-0", "u-1", topic_id=OTHER_ID)
    put_offsets_topic(fs, offsets_batch())
    fs.make_dirs(f"{DIRECTORY}/t-0")
    fs.open(f"{DIRECTORY}/t-0/partition.metadata.tmp", create=True)  # nothing of worth
    for _ in range(2):  # a destination in which there is nothing, and one that has it
        before, operations = tree(fs, ""), fs.operation_count
        planned = dry_run(fs)
        assert tree(fs, "") == before
        assert fs.counts.get("write", 0) + fs.counts.get("open", 0) <= operations
        done = do_import(fs)
        assert [(plan.name, plan.refusal, plan.size_bytes) for plan in planned.topics] == [
            (plan.name, plan.refusal, plan.size_bytes) for plan in done.topics
        ]
        assert planned.notes == done.notes and planned.passed_over == done.passed_over
