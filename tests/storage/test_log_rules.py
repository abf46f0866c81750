"""What a log must answer in the corners where other brokers went wrong: gaps, edges, rolls, damage, producers.

Each test retells a public bug or a rule of Kafka's log layer on the in-memory file system.
"""

from __future__ import annotations

import errno

import pytest

from kmirror.clock import ManualClock
from kmirror.errors import CorruptData, DiskFailure, DiskFull, OffsetOutOfRange, ReadOnlyLog
from kmirror.protocol.records import Record, build_batch, end_txn_marker, mirror_pid_reset, walk
from kmirror.storage.errors import InvalidRecord, OutOfOrderSequence, RecordTooLarge, UnexpectedEpoch, UnexpectedOffset
from kmirror.storage.log import AppendOrigin, Log, LogConfig, LogMode
from kmirror.storage.memory import MemoryFileSystem
from tests.storage.making import (
    DIRECTORY,
    NOW_MS,
    batch,
    content,
    coordinate,
    offsets,
    open_log,
    produce,
    read_bytes,
    replicate,
)

SPARSE = LogConfig(index_interval_bytes=1)


def first_read(log: Log, offset: int) -> tuple[int, int]:
    """(base, last) of the first batch that a read at `offset` gives."""
    _, header = next(walk(read_bytes(log, offset, max_bytes=1)))
    return header.base_offset, header.last_offset


def reopened(log: Log, fs: MemoryFileSystem, **settings: object) -> Log:
    log.close(clean=True)
    return open_log(fs, config=log.config, clean=True, recovery_point=log.log_end_offset, **settings)  # type: ignore[arg-type]


# --- reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True])
def test_gaps_and_batches_without_records(restart: bool) -> None:
    """The first batch whose last offset reaches the asked one, across holes, segments and emptied batches."""
    fs = MemoryFileSystem(1)
    log = open_log(fs, config=SPARSE)
    replicate(log, batch(10, base=0, epoch=0))
    log.roll()
    replicate(log, batch(3, base=100, epoch=0, last_delta=9))
    replicate(log, build_batch([], base_offset=110, leader_epoch=0, last_offset_delta=9))
    replicate(log, batch(1, base=120, epoch=0))
    if restart:
        for name in fs.list_dir(DIRECTORY):
            if name.endswith((".index", ".timeindex")):
                fs.remove(f"{DIRECTORY}/{name}")
        log = reopened(log, fs)
    for offset in (0, 5, 9):
        assert first_read(log, offset) == (0, 9)
    for offset in (10, 50, 99, 100, 107, 109):
        assert first_read(log, offset) == (100, 109)
    for offset in (110, 115, 119):
        assert first_read(log, offset) == (110, 119)
    assert first_read(log, 120) == (120, 120)
    assert read_bytes(log, 121) == b""
    for outside in (122, -1):
        with pytest.raises(OffsetOutOfRange):
            log.read(outside, max_bytes=1, limit_offset=121, at_least_one=True)


def test_a_batch_larger_than_every_limit_is_given_whole_when_asked_for_one() -> None:
    log = open_log(MemoryFileSystem(1))
    first, second = batch(1, size=5_000), batch(1, size=10)
    produce(log, first)
    produce(log, second)
    assert len(read_bytes(log, 0, max_bytes=1)) == len(first)
    assert read_bytes(log, 0, max_bytes=1, one=False) == b""
    assert len(read_bytes(log, 0, max_bytes=len(first) + len(second))) == len(first) + len(second)


def test_a_read_ends_at_the_limit_even_between_segments() -> None:
    log = open_log(MemoryFileSystem(1), config=LogConfig(segment_bytes=200))
    for _ in range(9):
        produce(log, batch(1, size=60))
    assert len(log.segments) > 2
    for limit in range(10):
        found = [header.base_offset for _, header in walk(read_bytes(log, 0, limit=limit))] if limit else []
        assert found == list(range(len(found)))
        assert len(found) <= limit


def test_a_cut_changes_the_generation_of_slices_handed_out() -> None:
    log = open_log(MemoryFileSystem(1))
    produce(log, batch(3))
    produce(log, batch(3))
    result = log.read(0, max_bytes=1 << 20, limit_offset=6, at_least_one=True)
    assert all(piece.still_valid() for piece in result.slices)
    log.truncate_to(4)
    assert log.log_end_offset == 3, "a cut inside a batch cuts before it"
    assert not any(piece.still_valid() for piece in result.slices)


@pytest.mark.parametrize("codec", range(5))
def test_time_lookup_inside_a_batch(codec: int) -> None:
    log = open_log(MemoryFileSystem(1), config=SPARSE)
    produce(log, batch(timestamps=[2, 4, 6, 8], codec=codec))

    def found(timestamp: int) -> int | None:
        answer = log.offset_for_timestamp(timestamp, log.log_end_offset)
        return None if answer is None else answer.offset

    assert [found(t) for t in range(1, 10)] == [0, 0, 1, 1, 2, 2, 3, 3, None]


def test_time_lookup_takes_the_first_in_log_order() -> None:
    fs = MemoryFileSystem(1)
    log = open_log(fs, config=SPARSE)
    produce(log, batch(timestamps=[100, 10, 50]))
    log.roll()
    produce(log, batch(timestamps=[20, 200]))
    for current in (log, reopened(log, fs)):
        answers = [current.offset_for_timestamp(t, 5) for t in (5, 60, 100, 101, 201)]
        assert [None if a is None else a.offset for a in answers] == [0, 0, 0, 4, None]


# --- rolling ----------------------------------------------------------------------------------------------------


def test_offsets_too_far_apart_for_a_32_bit_index_roll() -> None:
    fs = MemoryFileSystem(1)
    log = open_log(fs, config=SPARSE)
    bases = [0, 2**31 - 1, 2**31 + 5, 2**32 + 7, 2**40]
    for base in bases:
        replicate(log, batch(1, base=base, epoch=0))
    for current in (log, reopened(log, fs)):
        for segment in current.segments:
            held = [base for base, _ in offsets(current) if base >= segment.base_offset]
            assert held
        spans = [s.base_offset for s in current.segments] + [2**63]
        for base in bases:
            segment = max(s for s in spans if s <= base)
            assert base - segment <= 2**31 - 1
            assert first_read(current, base) == (base, base)
        assert first_read(current, 2**31) == (2**31 + 5, 2**31 + 5)


def test_segments_roll_by_size_and_by_the_age_of_their_records() -> None:
    clock = ManualClock(NOW_MS)
    log = open_log(MemoryFileSystem(1), config=LogConfig(segment_bytes=500, segment_ms=1_000), clock=clock)
    for _ in range(5):
        produce(log, batch(1, size=200))
    assert [s.base_offset for s in log.segments] == [0, 1, 2, 3, 4][: len(log.segments)]
    assert len(log.segments) > 1
    before = len(log.segments)
    produce(log, batch(1, size=1, timestamp_ms=NOW_MS + 2_000), now_ms=NOW_MS + 2_000)
    assert len(log.segments) == before + 1


# --- who may append ---------------------------------------------------------------------------------------------


def test_modes_decide_who_may_append() -> None:
    log = open_log(MemoryFileSystem(1), mode=LogMode.READ_ONLY)
    abort = end_txn_marker(commit=False, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS)
    commit = end_txn_marker(commit=True, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS)
    for data, origin in ((batch(1), AppendOrigin.CLIENT), (abort, AppendOrigin.COORDINATOR)):
        with pytest.raises(ReadOnlyLog):
            log.append(data, origin=origin, leader_epoch=0, now_ms=NOW_MS)
    log.mode = LogMode.SEALING
    for data in (batch(1), commit):
        with pytest.raises(ReadOnlyLog):
            coordinate(log, data)
    with pytest.raises(ReadOnlyLog):
        produce(log, batch(1))
    with pytest.raises(ReadOnlyLog):
        log.append(batch(1, epoch=0), origin=AppendOrigin.REPLICATION, leader_epoch=-1, now_ms=NOW_MS)
    assert log.log_end_offset == 0, "nothing refused is kept"
    coordinate(log, abort)
    coordinate(log, mirror_pid_reset(timestamp_ms=NOW_MS))
    log.mode = LogMode.WRITABLE
    with pytest.raises(ReadOnlyLog):
        log.append(batch(1, base=2, epoch=0), origin=AppendOrigin.REPLICATION, leader_epoch=-1, now_ms=NOW_MS)
    assert log.log_end_offset == 2


def test_replication_keeps_bytes_and_refuses_what_does_not_follow() -> None:
    log = open_log(MemoryFileSystem(1))
    sent = batch(3, base=5, epoch=4, codec=2) + batch(2, base=10, epoch=6, pid=9, seq=77)
    replicate(log, sent)
    assert content(log) == sent
    assert log.epochs.entries == ((4, 5), (6, 10))
    for wrong in (
        batch(1, base=11, epoch=6),
        batch(1, base=12, epoch=5),
        batch(1, base=12, epoch=6)[:-1] + b"\xff",
        batch(1, base=12, epoch=6)[:-3],
    ):
        with pytest.raises((CorruptData, UnexpectedEpoch, UnexpectedOffset)):
            replicate(log, wrong)
    assert content(log) == sent


def test_clients_write_one_sound_batch() -> None:
    log = open_log(MemoryFileSystem(1), config=LogConfig(max_message_bytes=400))
    flipped = bytearray(batch(1))
    flipped[-1] ^= 1
    refused: list[tuple[type[Exception], bytes]] = [
        (CorruptData, bytes(flipped)),
        (RecordTooLarge, batch(1, size=500)),
        (InvalidRecord, batch(3, last_delta=9)),
        (InvalidRecord, mirror_pid_reset(timestamp_ms=0)),
        (InvalidRecord, build_batch([], last_offset_delta=0)),
    ]
    for error, data in refused:
        with pytest.raises(error):
            produce(log, data)
    assert produce(log, batch(2)).base_offset == 0


# --- producers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True])
def test_the_last_five_batches_are_known_as_duplicates(restart: bool) -> None:
    fs = MemoryFileSystem(1)
    log = open_log(fs)
    for seq in range(7):
        produce(log, batch(1, pid=4, seq=seq))
    if restart:
        log = reopened(log, fs)
    last = log.log_end_offset
    # Kafka's snapshots carry the last batch only: after a clean restart the four before it are out of order.
    known = [6] if restart else [2, 3, 4, 5, 6]
    for seq in known:
        result = produce(log, batch(1, pid=4, seq=seq))
        assert result.duplicate
        assert result.base_offset == seq
    with pytest.raises(OutOfOrderSequence):
        produce(log, batch(1, pid=4, seq=9))
    assert log.log_end_offset == last


def test_sequences_go_on_at_zero() -> None:
    log = open_log(MemoryFileSystem(1))
    replicate(log, batch(2, base=0, epoch=0, pid=4, seq=2**31 - 2))
    log.mode = LogMode.WRITABLE
    assert produce(log, batch(1, pid=4, seq=0)).base_offset == 2
    with pytest.raises(OutOfOrderSequence):
        produce(log, batch(1, pid=4, seq=3))


@pytest.mark.parametrize("snapshots", [True, False])
def test_the_reset_is_a_barrier_on_append_and_on_rebuild(snapshots: bool) -> None:
    """Also for producers in the same chunk before it; open transactions and what was aborted stay known."""
    fs = MemoryFileSystem(1)
    log = open_log(fs)
    before = batch(2, base=0, epoch=3, pid=4, seq=0) + batch(1, base=2, epoch=3, pid=5, seq=0, txn=True)
    replicate(log, before)
    log.mode = LogMode.SEALING
    coordinate(
        log,
        end_txn_marker(commit=False, producer_id=5, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS),
        epoch=4,
    )
    coordinate(log, mirror_pid_reset(timestamp_ms=NOW_MS), epoch=4)
    if not snapshots:
        log.close(clean=False)
        for name in fs.list_dir(DIRECTORY):
            if name.endswith(".snapshot"):
                fs.remove(f"{DIRECTORY}/{name}")
        log = open_log(fs)
    else:
        log = reopened(log, fs)
    assert log.last_pid_reset_offset == 4
    assert log.max_producer_id == 5
    assert [(a.producer_id, a.first_offset) for a in log.aborted_transactions(0, 5)] == [(5, 2)]
    for pid in (4, 5):
        assert not produce(log, batch(1, pid=pid, seq=0), epoch=4).duplicate
    assert log.log_end_offset == 7


def test_an_open_transaction_holds_the_stable_offset_until_its_marker() -> None:
    log = open_log(MemoryFileSystem(1))
    produce(log, batch(2))
    produce(log, batch(3, pid=9, seq=0, txn=True))
    assert log.first_undecided_offset == 2
    assert [(t.producer_id, t.first_offset) for t in log.producers.ongoing()] == [(9, 2)]
    coordinate(
        log, end_txn_marker(commit=True, producer_id=9, producer_epoch=0, coordinator_epoch=1, timestamp_ms=NOW_MS)
    )
    assert log.first_undecided_offset is None
    assert log.aborted_transactions(0, 10) == []


# --- disk in trouble --------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_keeps_nothing_and_heals() -> None:
    fs = MemoryFileSystem(1)
    log = open_log(fs)
    produce(log, batch(1, pid=4, seq=0))
    fs.fail("write", ".log", error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        produce(log, batch(5, pid=4, seq=1))
    assert (log.log_end_offset, offsets(log)) == (1, [(0, 0)])
    assert not produce(log, batch(5, pid=4, seq=1)).duplicate
    assert offsets(log) == [(0, 0), (1, 5)]


def test_a_failed_sync_is_never_tried_again() -> None:
    fs = MemoryFileSystem(1)
    log = open_log(fs)
    produce(log, batch(1))
    fs.fail("sync", ".log")
    with pytest.raises(DiskFailure):
        log.flush()
    for use in (log.flush, lambda: produce(log, batch(1))):
        with pytest.raises(DiskFailure):
            use()
    log.close(clean=True)
    assert log.flushed_offset == 0
    assert not any(name.endswith(".snapshot") for name in fs.list_dir(DIRECTORY)), "no clean stop after that"


@pytest.mark.parametrize(
    "tail", [batch(3, base=4)[:-7], b"\0" * 4096, batch(1, base=4)[:-1] + b"\xff"], ids=["torn", "zeros", "crc"]
)
def test_a_bad_tail_is_cut_at_the_last_good_batch(tail: bytes) -> None:
    fs = MemoryFileSystem(1)
    log = open_log(fs)
    for _ in range(2):
        produce(log, batch(2))
    good = content(log)
    log.close(clean=False)
    file = fs.open(f"{DIRECTORY}/{0:020d}.log")
    file.append([tail])
    log = open_log(fs)
    assert content(log) == good
    assert produce(log, batch(1)).base_offset == 4


def test_a_bad_batch_below_the_recovery_point_is_reported_not_cut() -> None:
    fs = MemoryFileSystem(1)
    log = open_log(fs)
    for _ in range(4):
        produce(log, batch(1, size=100))
    log.flush()
    log.close(clean=False)
    path = f"{DIRECTORY}/{0:020d}.log"
    damaged = bytearray(fs.read_file(path))
    damaged[len(damaged) // 4 + 90] ^= 1
    fs.write_atomic(path, bytes(damaged))
    log = open_log(fs, recovery_point=4)
    assert log.log_end_offset == 4, "acknowledged data behind the damage is not thrown away"
    assert fs.file_size(path) == len(damaged)


@pytest.mark.parametrize("damage", [b"", b"0\n2\n0 0\n", b"0\n9\n0 0\n", b"0\n1\n99 0\n", b"rubbish", None])
def test_epochs_are_those_of_the_batches_whatever_the_checkpoint_says(damage: bytes | None) -> None:
    fs = MemoryFileSystem(1)
    log = open_log(fs)
    for epoch in (0, 0, 1, 4):
        produce(log, batch(1), epoch=epoch)
    log.close(clean=False)
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    if damage is None:
        fs.remove(path)
    else:
        fs.write_atomic(path, damage)
    log = open_log(fs)
    assert log.log_end_offset == 4
    answers = [log.epochs.end_offset_for(epoch, 4) for epoch in (0, 1, 2, 3, 4)]
    assert answers == [(0, 2), (1, 3), (1, 3), (1, 3), (4, 4)]


def test_damaged_side_files_are_made_again() -> None:
    fs = MemoryFileSystem(1)
    log = open_log(fs, config=LogConfig(segment_bytes=400, index_interval_bytes=1))
    for seq in range(12):
        produce(log, batch(1, pid=3, seq=seq, size=60, timestamp_ms=NOW_MS + seq))
    whole = content(log)
    log.close(clean=True)
    for name in fs.list_dir(DIRECTORY):
        if not name.endswith((".log", ".metadata")):
            fs.write_atomic(f"{DIRECTORY}/{name}", b"\x01\x02\x03")
    log = open_log(fs, config=log.config, clean=True, recovery_point=12)
    assert content(log) == whole
    assert [first_read(log, offset) for offset in range(12)] == [(n, n) for n in range(12)]
    found = log.offset_for_timestamp(NOW_MS + 7, 12)
    assert found is not None
    assert found.offset == 7
    assert produce(log, batch(1, pid=3, seq=11)).duplicate


def test_records_of_a_compacted_topic_need_keys() -> None:
    log = open_log(MemoryFileSystem(1), config=LogConfig(cleanup_policy="compact"))
    with pytest.raises(InvalidRecord):
        produce(log, batch(2, key=None))
    produce(log, build_batch([Record(b"k", None)]))
    assert log.log_end_offset == 1
