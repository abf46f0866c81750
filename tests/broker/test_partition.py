"""One partition: visibility, waiting, epochs, offsets, refusals."""

from __future__ import annotations

import pytest

from kmirror.broker.partition import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    READ_COMMITTED,
    Partition,
)
from kmirror.broker.storage_codes import CODES, api_error
from kmirror.errors import ApiError, DiskFailure, StorageError
from kmirror.protocol.compression import Compression
from kmirror.protocol.records import Record, build_batch, end_txn_marker, mirror_pid_reset, parse_header
from kmirror.storage import errors
from kmirror.storage.log import LogMode
from tests.broker.harness import DIRECTORY, Broker, make_batch


def code_of(call: object, *args: object, **kwargs: object) -> int:
    assert callable(call)
    try:
        call(*args, **kwargs)
    except ApiError as error:
        return error.code
    return 0


def one(**configs: str) -> tuple[Broker, Partition]:
    broker = Broker()
    return broker, broker.create("t", **configs).partitions[0]


def content(partition: Partition, offset: int = 0, **options: int) -> bytes:
    return b"".join(piece.read() for piece in partition.read(offset, max_bytes=1 << 20, **options).slices)


def transactional(broker: Broker, partition: Partition, producer_id: int, sequence: int, count: int = 1) -> None:
    batch = make_batch(
        *[b"v"] * count,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
        timestamp_ms=broker.clock.time_ms(),
    )
    partition.produce(batch, now_ms=broker.clock.time_ms(), acks=-1)


def end(broker: Broker, partition: Partition, producer_id: int, *, commit: bool) -> None:
    marker = end_txn_marker(
        commit=commit,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=broker.clock.time_ms(),
    )
    partition.append_coordinator(marker)


# --- visibility and waiting ---------------------------------------------------------------------------------------


def test_readers_see_what_is_on_disk() -> None:
    broker, partition = one()
    broker.produce("t", b"a", flush=False)
    waiting = partition.when_committed(1)
    assert (partition.log_end_offset, partition.high_watermark, waiting.done) == (1, 0, False)
    assert content(partition) == b""
    broker.flush.run()
    assert (partition.high_watermark, waiting.done) == (1, True)
    assert parse_header(content(partition)).base_offset == 0
    assert partition.when_committed(1).done


def test_page_cache_durability_is_a_choice() -> None:
    broker, partition = one(flush__messages="9223372036854775807")
    broker.produce("t", b"a", flush=False)
    assert partition.high_watermark == 1
    flushed = partition.when_flushed()
    assert not flushed.done
    broker.flush.run()
    assert flushed.done


def test_page_cache_durability_leaves_writing_to_the_operating_system() -> None:
    """No flush of ours, except after flush.messages offsets, when flush.ms is over, and of what a roll has sealed."""
    broker, partition = one(flush__messages="3")
    log = partition.log
    broker.produce("t", b"a")
    broker.produce("t", b"b")
    assert (log.flushed_offset, partition.high_watermark) == (0, 2)
    broker.produce("t", b"c")
    assert log.flushed_offset == 3
    log.roll()
    broker.produce("t", b"d")
    assert log.flushed_offset == 3  # the roll had nothing to seal that was not on disk
    log.roll()
    broker.produce("t", b"e")
    assert log.flushed_offset == 5
    timed, partition = one(flush__messages="9223372036854775807", flush__ms="2000")
    timed.produce("t", b"a")
    timed.world.tick()
    timed.clock.advance(1999)
    timed.world.tick()
    timed.flush.run()
    assert partition.log.flushed_offset == 0
    timed.clock.advance(1)
    timed.world.tick()
    timed.flush.run()
    assert partition.log.flushed_offset == 1


def test_acknowledged_records_survive_a_power_cut() -> None:
    for seed in range(15):
        broker = Broker(seed=seed)
        partition = broker.create("t").partitions[0]
        for number in range(5):
            broker.produce("t", b"acked %d" % number)
        broker.produce("t", b"not acked", flush=False)
        assert not partition.when_committed(6).done
        broker.crash()
        assert 5 <= broker.world.partition("t", 0).log_end_offset <= 6, f"seed {seed}"


def test_subscribers_hear_of_every_change_and_no_more() -> None:
    broker, partition = one()
    heard: list[tuple[int, int]] = []
    handle = partition.subscribe(lambda: heard.append((partition.high_watermark, partition.log_start_offset)))
    broker.produce("t", b"a", b"b", flush=False)
    assert heard == []
    broker.flush.run()
    assert heard == [(2, 0)]
    broker.world.delete_records("t", 0, 1)
    assert heard == [(2, 0), (2, 1)]
    partition.set_mode(LogMode.READ_ONLY, "why")
    assert len(heard) == 3
    partition.unsubscribe(handle)
    partition.set_mode(LogMode.WRITABLE)
    assert len(heard) == 3


def test_a_cut_fails_who_waits_for_what_is_gone() -> None:
    broker, partition = one()
    broker.produce("t", b"a")
    broker.produce("t", b"b", flush=False)
    lost, kept = partition.when_committed(2), partition.when_committed(1)
    woken: list[int] = []
    partition.subscribe(lambda: woken.append(partition.log_end_offset))
    assert partition.truncate_to(1) == 1
    assert woken == [1]
    assert kept.done
    with pytest.raises(ApiError) as caught:
        lost.result()
    assert caught.value.code == 6
    partition.truncate_to(0)
    assert partition.high_watermark == 0
    partition.restart_at(500)
    assert (partition.log_start_offset, partition.log_end_offset, partition.high_watermark) == (500, 500, 500)


# --- transactions -------------------------------------------------------------------------------------------------


def test_a_decision_counts_when_it_is_on_disk() -> None:
    """Not even an abort may be shown that a power cut could take back."""
    broker, partition = one()
    transactional(broker, partition, 7, 0, count=3)
    broker.flush.run()
    assert (partition.high_watermark, partition.last_stable_offset) == (3, 0)
    end(broker, partition, 7, commit=False)
    assert partition.last_stable_offset == 0, "the marker is not on disk"
    assert content(partition, isolation_level=READ_COMMITTED) == b""
    broker.flush.run()
    assert (partition.high_watermark, partition.last_stable_offset) == (4, 4)


def test_interleaved_transactions_and_aborted_lists() -> None:
    """B022."""
    broker, partition = one()
    transactional(broker, partition, 7, 0, count=3)  # 0-2
    end(broker, partition, 7, commit=False)  # 3
    transactional(broker, partition, 7, 3, count=2)  # 4-5
    end(broker, partition, 7, commit=True)  # 6
    broker.flush.run()
    assert content(partition) == content(partition, isolation_level=READ_COMMITTED)
    assert partition.read(0, max_bytes=1 << 20).aborted is None
    for offset, expected in ((0, [(7, 0)]), (1, [(7, 0)]), (3, [(7, 0)]), (4, [])):
        aborted = partition.read(offset, max_bytes=1 << 20, isolation_level=READ_COMMITTED).aborted
        assert aborted is not None
        assert [(entry.producer_id, entry.first_offset) for entry in aborted] == expected
    transactional(broker, partition, 8, 0)  # 7
    transactional(broker, partition, 9, 0)  # 8
    broker.flush.run()
    assert partition.last_stable_offset == 7
    end(broker, partition, 8, commit=True)
    broker.flush.run()
    assert partition.last_stable_offset == 8
    broker.restart()
    again = broker.world.partition("t", 0)
    assert (again.high_watermark, again.last_stable_offset) == (10, 8)


# --- writing ------------------------------------------------------------------------------------------------------


def test_bad_produce_requests_append_nothing() -> None:
    """B008, B009, B010."""
    broker, partition = one()
    good = make_batch(b"a")

    def produce(records: bytes | None, **options: int) -> int:
        return code_of(partition.produce, records, now_ms=broker.clock.time_ms(), **{"acks": -1, **options})

    assert produce(None) == 87
    assert produce(b"") == 87
    assert produce(good + good) == 87
    assert produce(good[:40]) in (2, 87)
    flipped = bytearray(good)
    flipped[-1] ^= 1
    assert produce(bytes(flipped)) == 2
    assert produce(good[:16] + b"\x01" + good[17:]) == 87
    assert produce(make_batch(b"a", compression=Compression.ZSTD), api_version=6) == 76
    assert produce(make_batch(b"a", control=True)) == 87
    assert produce(good, acks=2) == 21
    assert partition.log_end_offset == 0
    assert produce(make_batch(b"a", compression=Compression.ZSTD), api_version=7) == 0
    assert partition.log_end_offset == 1


def test_limits_replicas_and_internal_topics() -> None:
    broker, partition = one(max__message__bytes="100", min__insync__replicas="2")
    assert code_of(partition.produce, make_batch(b"x" * 200), now_ms=1, acks=1) == 10
    assert code_of(partition.produce, make_batch(b"x"), now_ms=1, acks=-1) == 0, "at most as many as there are: KIP-966"
    assert code_of(partition.produce, make_batch(b"x"), now_ms=broker.clock.time_ms(), acks=1) == 0
    state = broker.settle(broker.world.topics.ensure_internal("__mirror_state")).partitions[0]
    assert code_of(state.produce, make_batch(b"x"), now_ms=1, acks=1) == 17


def test_read_only_says_which_mirror_and_what_to_do() -> None:
    broker, partition = one()
    partition.set_mode(LogMode.READ_ONLY, "t is mirrored by m (MIRRORING): stop the mirror first")
    with pytest.raises(ApiError) as caught:
        broker.produce("t", b"x")
    assert (caught.value.code, caught.value.message) == (147, "t is mirrored by m (MIRRORING): stop the mirror first")
    source = build_batch([Record(value=b"s")], base_offset=5, leader_epoch=3, timestamp_ms=1)
    partition.append_replicated(source)
    broker.flush.run()
    assert content(partition, 5) == source if partition.log_start_offset == 5 else content(partition, 0) == source
    assert code_of(partition.append_coordinator, make_batch(b"x")) == 147
    partition.set_mode(LogMode.SEALING, "t is being stopped")
    assert code_of(partition.append_coordinator, make_batch(b"x")) == 147
    partition.append_coordinator(mirror_pid_reset(timestamp_ms=1), leader_epoch=4)
    assert code_of(partition.append_replicated, source) == 147
    partition.set_mode(LogMode.WRITABLE)
    assert code_of(partition.append_replicated, source) == 147
    broker.produce("t", b"x")


def test_a_full_disk_refuses_and_heals() -> None:
    broker, partition = one()
    broker.produce("t", b"x")
    broker.fs.capacity_bytes = 0
    assert code_of(broker.produce, "t", b"y" * 1000) == 56
    assert partition.log_end_offset == 1
    assert content(partition)
    broker.fs.capacity_bytes = None
    assert broker.produce("t", b"z") == 1
    assert not broker.fatal


def test_a_failing_disk_stops_everything() -> None:
    broker, _partition = one()
    broker.fs.fail("sync", "/t-0/00000000000000000000.log")
    broker.produce("t", b"x")
    assert isinstance(broker.fatal[0], DiskFailure)


def test_every_refusal_of_storage_has_a_code() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        if issubclass(kind, errors.AppendRefused):
            assert kind is errors.AppendRefused or kind in CODES, name
    assert api_error(errors.OutOfOrderSequence("x")).code == 45
    with pytest.raises(DiskFailure):
        api_error(DiskFailure("x"))
    with pytest.raises(StorageError):
        api_error(errors.StorageLocked("x"))


# --- reading ------------------------------------------------------------------------------------------------------


def test_edges_of_the_log() -> None:
    """B012, B014, B019, B025."""
    broker, partition = one()
    assert (partition.read(0, max_bytes=1).slices, code_of(partition.read, 1, max_bytes=1)) == ([], 1)
    broker.produce("t", b"x" * 5000)
    broker.produce("t", b"y" * 5000)
    read = partition.read(0, max_bytes=1)
    assert (read.size_bytes > 5000, read.next_offset, len(read.slices)) == (True, 1, 1)
    assert partition.read(0, max_bytes=1, at_least_one=False).slices == []
    assert partition.read(1, max_bytes=0, at_least_one=False).high_watermark == 2
    assert partition.read(2, max_bytes=1).slices == []
    assert code_of(partition.read, 3, max_bytes=1) == 1
    assert code_of(partition.read, -1, max_bytes=1) == 1
    broker.world.delete_records("t", 0, 1)
    assert code_of(partition.read, 0, max_bytes=1) == 1
    assert (partition.read(1, max_bytes=1).log_start_offset, partition.read(1, max_bytes=1).next_offset) == (1, 2)


def test_fencing_by_leader_epoch() -> None:
    broker, partition = one()
    broker.settle(broker.world.bump_leader_epoch(partition, 3))
    for call in (
        lambda epoch: partition.read(0, max_bytes=1, current_leader_epoch=epoch),
        lambda epoch: partition.list_offset(LATEST, 0, epoch),
        lambda epoch: partition.end_offset_for_epoch(0, epoch),
    ):
        assert [code_of(call, epoch) for epoch in (3, 4, 5, -1)] == [74, 0, 75, 0]


def epochs_0_1_4() -> tuple[Broker, Partition]:
    """B030: epochs 0 -> [0,10), 1 -> [10,25), 4 -> [25,40)."""
    broker, partition = one()
    for epoch, count in ((0, 10), (1, 15), (4, 15)):
        broker.settle(broker.world.bump_leader_epoch(partition, epoch - 1))
        broker.produce("t", *[b"v"] * count)
    return broker, partition


def test_offset_for_leader_epoch() -> None:
    broker, partition = epochs_0_1_4()
    answers = {epoch: partition.end_offset_for_epoch(epoch) for epoch in (0, 1, 2, 3, 4, 5, 7, -1)}
    none = (-1, -1)
    assert answers == {0: (0, 10), 1: (1, 25), 2: (1, 25), 3: (1, 25), 4: (4, 40), 5: none, 7: none, -1: none}
    broker.world.delete_records("t", 0, 27)
    assert [partition.end_offset_for_epoch(epoch) for epoch in (0, 4)] == [(0, 27), (4, 40)]
    broker.settle(broker.world.bump_leader_epoch(partition, 8))
    assert [partition.end_offset_for_epoch(epoch) for epoch in (4, 6, 9, 10)] == [(4, 40), (4, 40), (4, 40), none]
    broker.crash()
    again = broker.world.partition("t", 0)
    assert [again.end_offset_for_epoch(epoch) for epoch in (0, 4, 9)] == [(0, 27), (4, 40), (4, 40)]


def test_an_empty_partition_ends_its_epochs_at_its_end() -> None:
    _broker, partition = one()
    assert partition.end_offset_for_epoch(0) == (0, 0)
    assert partition.end_offset_for_epoch(1) == (-1, -1)


def test_diverging_epochs() -> None:
    _broker, partition = epochs_0_1_4()
    assert partition.read(40, max_bytes=1, last_fetched_epoch=4).diverging is None
    assert partition.read(30, max_bytes=1, last_fetched_epoch=3).diverging == (1, 25)
    assert partition.read(12, max_bytes=1, last_fetched_epoch=0).diverging == (0, 10)
    assert partition.read(99, max_bytes=1, last_fetched_epoch=4).diverging == (4, 40)
    assert code_of(partition.read, 40, max_bytes=1, last_fetched_epoch=9) == 1


# --- ListOffsets and DeleteRecords --------------------------------------------------------------------------------


def stamped(broker: Broker, *timestamps: int, compression: int = 0) -> None:
    batch = build_batch(
        [Record(key=b"k", value=b"v", timestamp=timestamp) for timestamp in timestamps], compression=compression
    )
    broker.world.partition("t", 0).produce(batch, now_ms=1000, acks=-1)
    broker.flush.run()


@pytest.mark.parametrize("codec", list(Compression))
def test_time_lookups_inside_batches(codec: int) -> None:
    """B026."""
    broker, partition = one()
    stamped(broker, 2, 4, 6, 8, compression=codec)
    found = [partition.list_offset(timestamp)[:2] for timestamp in range(1, 10)]
    assert found == [(0, 2), (0, 2), (1, 4), (1, 4), (2, 6), (2, 6), (3, 8), (3, 8), (-1, -1)]
    assert partition.list_offset(MAX_TIMESTAMP)[:2] == (3, 8)


def test_time_lookups_out_of_order() -> None:
    broker, partition = one()
    stamped(broker, 100, 10, 50)
    stamped(broker, 20, 200)
    assert [partition.list_offset(timestamp)[0] for timestamp in (5, 60, 100, 101, 201)] == [0, 0, 0, 4, -1]
    assert partition.list_offset(MAX_TIMESTAMP)[:2] == (4, 200)


def test_sentinels_and_isolation() -> None:
    """B025, B027."""
    broker, partition = one()
    assert partition.list_offset(LATEST) == (0, -1, 0)
    assert partition.list_offset(EARLIEST)[:2] == (0, -1)
    assert partition.list_offset(1) == (-1, -1, -1)
    assert partition.list_offset(MAX_TIMESTAMP) == (-1, -1, -1)
    broker.produce("t", *[b"v"] * 10)
    broker.clock.advance(1000)
    later = broker.clock.time_ms()
    transactional(broker, partition, 7, 0, count=5)
    broker.flush.run()
    assert partition.list_offset(LATEST)[0] == 15
    assert partition.list_offset(LATEST, READ_COMMITTED)[0] == 10
    assert partition.list_offset(later)[0] == 10
    assert partition.list_offset(later, READ_COMMITTED) == (-1, -1, -1)
    assert partition.list_offset(EARLIEST) == (0, -1, 0)
    assert partition.list_offset(EARLIEST_LOCAL) == (0, -1, 0)
    assert partition.list_offset(LATEST_TIERED) == (-1, -1, -1)
    assert partition.list_offset(EARLIEST_PENDING_UPLOAD) == (-1, -1, -1)
    too_new = [(MAX_TIMESTAMP, 6), (EARLIEST_LOCAL, 7), (LATEST_TIERED, 8), (EARLIEST_PENDING_UPLOAD, 10), (-99, 11)]
    for timestamp, version in too_new:
        assert code_of(partition.list_offset, timestamp, api_version=version) == 35
    assert code_of(partition.list_offset, MAX_TIMESTAMP, api_version=7) == 0


def test_unflushed_records_are_not_listed() -> None:
    broker, partition = one()
    broker.produce("t", b"a")
    broker.produce("t", b"b", flush=False)
    assert partition.list_offset(LATEST)[0] == 1
    broker.flush.run()
    assert partition.list_offset(LATEST)[0] == 2


def test_delete_records_at_the_edges() -> None:
    """B035."""
    broker, partition = one()
    broker.produce("t", *[b"v"] * 100)
    delete = broker.world.delete_records
    assert [delete("t", 0, offset) for offset in (30, 30, 10, 0)] == [30, 30, 30, 30]
    assert partition.list_offset(EARLIEST)[0] == 30
    assert [code_of(delete, "t", 0, offset) for offset in (101, -2)] == [1, 1]
    broker.crash()
    assert broker.world.partition("t", 0).log_start_offset == 30, "acknowledged, so it stays"
    assert broker.world.delete_records("t", 0, -1) == 100
    broker.restart()
    assert broker.world.partition("t", 0).list_offset(EARLIEST)[0] == 100
    broker.create("c", cleanup__policy="compact")
    assert code_of(delete, "absent", 0, 1) == 3
    assert code_of(broker.world.delete_records, "c", 0, 0) == 44
    broker.settle(broker.world.topics.ensure_internal("__mirror_state"))
    assert code_of(broker.world.delete_records, "__mirror_state", 0, 0) == 17


def test_retention_drops_whole_old_segments_and_tells_readers() -> None:
    broker, partition = one(internal__segment__bytes="300", retention__ms="1000", file__delete__delay__ms="0")
    for _ in range(6):
        broker.produce("t", b"v" * 100)
    broker.world.apply_retention()
    assert partition.list_offset(EARLIEST)[0] == 0
    broker.restart()
    partition = broker.world.partition("t", 0)
    assert partition.opened_log is None
    broker.clock.advance(2000)
    broker.produce("t", b"v" * 100)
    woken: list[int] = []
    partition.subscribe(lambda: woken.append(partition.log_start_offset))
    broker.world.apply_retention()
    assert woken[-1] == partition.list_offset(EARLIEST)[0] > 0
    assert code_of(partition.read, 0, max_bytes=1) == 1
    start = partition.log_start_offset
    broker.flush.run()
    broker.crash()
    assert broker.world.partition("t", 0).log_start_offset == start


def test_a_log_that_cannot_be_opened_costs_its_clients_not_the_broker() -> None:
    broker, _partition = one()
    broker.create("fine")
    broker.produce("t", b"v" * 5000)
    broker.produce("t", b"v" * 5000)
    broker.produce("fine", b"v")
    broker.world.write_checkpoints()
    path = f"{DIRECTORY}/t-0/00000000000000000000.log"
    damaged = bytearray(broker.fs.read_file(path))
    second = parse_header(damaged).size_bytes
    damaged[second + 8 : second + 12] = bytes(4)
    broker.world.close(clean=False)
    broker.fs.write_atomic(path, bytes(damaged))
    broker._open()
    assert broker.world.partition("fine", 0).log_end_offset == 1
    assert code_of(broker.world.partition("t", 0).read, 0, max_bytes=1) == 56
