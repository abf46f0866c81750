"""Indexes, epochs, producers, retention, cuts and tickets, each for itself."""

from __future__ import annotations

import pytest

from kmirror.errors import CorruptData, DiskFailure, OffsetOutOfRange
from kmirror.protocol.records import end_txn_marker, parse_header
from kmirror.storage.epochs import EpochCache
from kmirror.storage.errors import (
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTxnState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from kmirror.storage.index import OffsetIndex, TimeIndex
from kmirror.storage.log import LogConfig
from kmirror.storage.memory import MemoryFileSystem
from kmirror.storage.producer_state import ProducerState
from kmirror.storage.txn_index import AbortedTransaction, TxnIndex
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


def test_offset_index_finds_the_floor() -> None:
    index = OffsetIndex(100, 1 << 20)
    assert index.position_for(5000) == 0
    for offset, position in ((109, 500), (150, 900), (2**31 + 99, 2**31)):
        index.append(offset, position)
    places = [index.position_for(offset) for offset in (100, 108, 109, 149, 150, 2**31 + 98, 2**31 + 99, 2**40)]
    assert places == [0, 0, 500, 500, 900, 900, 2**31, 2**31]
    assert [index.boundary_before(position) for position in (0, 499, 500, 2**31 + 1)] == [0, 0, 500, 2**31]
    assert index.encode() == bytes.fromhex("00000009000001f400000032000003847fffffff80000000")
    again = OffsetIndex(100, 1 << 20)
    again.decode(index.encode(), 2**31 + 1)
    assert again.encode() == index.encode()
    again.truncate_to(150)
    assert len(again) == 1
    for damage in (b"\0" * 7, b"\0" * 16, index.encode() + b"\0" * 8):
        with pytest.raises(CorruptData):
            again.decode(damage, 2**32)
    with pytest.raises(CorruptData):
        again.decode(index.encode(), 900)  # points behind the log's end


def test_time_index_keeps_rising_maxima() -> None:
    index = TimeIndex(100, 1 << 20)
    assert index.last_entry == (-1, 100)
    for timestamp, offset in ((50, 105), (50, 110), (40, 111), (70, 120)):
        index.maybe_append(timestamp, offset)
    assert index.encode() == bytes.fromhex("000000000000003200000005000000000000004600000014")
    assert [index.offset_for(timestamp) for timestamp in (49, 50, 51, 70, 71)] == [100, 100, 105, 105, 120]
    again = TimeIndex(100, 1 << 20)
    again.decode(index.encode())
    assert again.last_entry == (70, 120)
    for damage in (b"\0" * 13, b"\0" * 24):
        with pytest.raises(CorruptData):
            again.decode(damage)


def test_aborted_transactions_overlap() -> None:
    index = TxnIndex()
    index.entries = [AbortedTransaction(1, 0, 9, 4), AbortedTransaction(2, 4, 20, 21)]
    found: list[AbortedTransaction] = []
    assert index.collect(0, 4, found) and [one.producer_id for one in found] == [1]
    found = []
    assert not index.collect(10, 30, found) and [one.producer_id for one in found] == [2]
    again = TxnIndex()
    again.decode(index.encode(), base_offset=0, end_offset=21)
    assert again.entries == index.entries and len(index.encode()) == 68
    for damage in (b"\0" * 34, index.encode()[:-1], index.encode()[34:] + index.encode()[:34]):
        with pytest.raises(CorruptData):
            again.decode(damage, base_offset=0, end_offset=21)


def test_known_bug_b030() -> None:
    """OffsetForLeaderEpoch: the largest epoch not above the asked one, and where it ends."""
    epochs = EpochCache([(0, 0), (1, 10), (4, 25)])
    asked = [epochs.end_offset_for(epoch, 40) for epoch in (0, 1, 2, 3, 4, 5, 7, -1)]
    assert asked == [(0, 10), (1, 25), (1, 25), (1, 25), (4, 40), (-1, -1), (-1, -1), (-1, -1)]
    epochs.truncate_from_start(27)
    assert [epochs.end_offset_for(epoch, 40) for epoch in (0, 4)] == [(0, 27), (4, 40)]
    assert EpochCache().end_offset_for(0, 0) == (-1, -1)


def test_epoch_cache_drops_what_conflicts() -> None:
    epochs = EpochCache([(0, 0), (2, 10), (3, 20)])
    assert [epochs.epoch_at(offset) for offset in (0, 9, 10, 19, 20, 99)] == [0, 0, 2, 2, 3, 3]
    epochs.assign(3, 30)
    assert epochs.entries == ((0, 0), (2, 10), (3, 20)) and not bool(epochs.changed)
    epochs.assign(5, 15)
    assert epochs.entries == ((0, 0), (2, 10), (5, 15)) and bool(epochs.changed)
    epochs.truncate_from_end(15)
    assert epochs.latest == 2 and epochs.epoch_at(-1) == -1


def marker(epoch: int, *, pid: int = 1, coordinator: int = 0, commit: bool = True) -> bytes:
    return end_txn_marker(
        commit=commit, producer_id=pid, producer_epoch=epoch, coordinator_epoch=coordinator, timestamp_ms=NOW_MS
    )


def test_epochs_fence_producers_and_coordinators() -> None:
    log = open_log(MemoryFileSystem())
    produce(log, batch(2, pid=1, seq=0, producer_epoch=3, txn=True))
    with pytest.raises(InvalidProducerEpoch):
        produce(log, batch(1, pid=1, seq=2, producer_epoch=2, txn=True))
    with pytest.raises(InvalidTxnState):
        produce(log, batch(1, pid=1, seq=2, producer_epoch=3))
    with pytest.raises(OutOfOrderSequence):
        produce(log, batch(1, pid=1, seq=2, producer_epoch=4, txn=True))
    with pytest.raises(InvalidProducerEpoch):
        coordinate(log, marker(2))
    coordinate(log, marker(3, coordinator=7))
    with pytest.raises(TransactionCoordinatorFenced):
        coordinate(log, marker(3, coordinator=6))
    assert log.log_end_offset == 3 and log.producers.entries[1].coordinator_epoch == 7


def test_transactions_v2_markers_need_a_greater_epoch() -> None:
    log = open_log(MemoryFileSystem())
    produce(log, batch(1, pid=1, seq=0, producer_epoch=3, txn=True))
    with pytest.raises(InvalidProducerEpoch):
        coordinate(log, marker(3), transaction_version=2)
    coordinate(log, marker(4), transaction_version=2)
    assert log.first_undecided_offset is None
    coordinate(log, marker(4), transaction_version=2)  # a repeated one, its transaction is over (KAFKA-19999)
    with pytest.raises(InvalidProducerEpoch):
        coordinate(log, marker(3), transaction_version=2)


def test_known_bug_b046() -> None:
    """Without state any sequence is taken, except from a client of transactions v2, which can begin anew."""
    log = open_log(MemoryFileSystem())
    produce(log, batch(7, pid=1, seq=0, timestamp_ms=-1))
    assert log.producers.remove_expired(NOW_MS + 4_999, 5_000) == 0
    log.advance_log_start(7)
    assert 1 in log.producers.entries  # deleting records does not delete what is known of their producer
    assert log.producers.remove_expired(NOW_MS + 5_000, 5_000) == 1
    assert produce(log, batch(8, pid=1, seq=7)).base_offset == 7
    with pytest.raises(OutOfOrderSequence):
        produce(log, batch(1, pid=2, seq=7, txn=True), epoch_bumps=True)
    produce(log, batch(1, pid=3, seq=7, txn=True))
    assert log.producers.remove_expired(NOW_MS + 10**9, 5_000) == 1  # an open transaction does not expire


def test_a_damaged_snapshot_is_refused_whole() -> None:
    log = open_log(MemoryFileSystem())
    produce(log, batch(2, pid=1, seq=2**31 - 1, txn=True))
    data = log.producers.encode_snapshot()
    state = ProducerState()
    state.load_snapshot(data, 2, NOW_MS)
    assert state.ongoing() == log.producers.ongoing()
    assert state.entries[1].batches == log.producers.entries[1].batches
    for at in range(len(data)):
        bad = bytearray(data)
        bad[at] ^= 1
        with pytest.raises(CorruptData):
            state.load_snapshot(bytes(bad), 2, NOW_MS)
    with pytest.raises(CorruptData):
        state.load_snapshot(data[:-1], 2, NOW_MS)
    assert state.ongoing() == log.producers.ongoing()


def test_retention_by_time_size_and_log_start() -> None:
    config = LogConfig(segment_bytes=150, retention_ms=1_000, retention_bytes=-1, file_delete_delay_ms=500)
    fs = MemoryFileSystem()
    log = open_log(fs, config=config)
    for number in range(6):
        produce(log, batch(1, size=50, timestamp_ms=NOW_MS + 100 * number))
    log.flush()
    assert [segment.base_offset for segment in log.segments] == list(range(6))
    assert log.apply_retention(NOW_MS + 1_150, high_watermark=6) == 2
    assert log.log_start_offset == 2 and offsets(log)[0] == (2, 2)
    log.config = LogConfig(segment_bytes=150, retention_ms=-1, retention_bytes=2 * log.active.size_bytes)
    assert log.apply_retention(NOW_MS, high_watermark=3) == 1  # nothing above the high watermark goes
    assert log.apply_retention(NOW_MS, high_watermark=6) == 1
    log.config = LogConfig(segment_bytes=150, cleanup_policy="compact", retention_ms=0)
    log.advance_log_start(5)
    assert log.apply_retention(NOW_MS + 10**9, high_watermark=6) == 1  # B037: the log start counts for any policy
    assert [segment.base_offset for segment in log.segments] == [5] and log.log_start_offset == 5
    names = fs.list_dir(DIRECTORY)
    assert sum(name.endswith(".log.deleted") for name in names) == 5
    assert log.delete_doomed(NOW_MS) == NOW_MS + 1_650
    assert log.delete_doomed(NOW_MS + 10**10) is None
    assert not any(name.endswith(".deleted") for name in fs.list_dir(DIRECTORY))


def test_an_expired_active_segment_is_rolled_and_goes() -> None:
    log = open_log(MemoryFileSystem(), config=LogConfig(retention_ms=1_000))
    produce(log, batch(3))
    held = log.read(0, max_bytes=1000, limit_offset=3, at_least_one=True).slices[0]
    data = held.read()
    assert log.apply_retention(NOW_MS + 1_001, high_watermark=3) == 1
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (3, 3, 0)
    log.delete_doomed(NOW_MS + 10**9)
    assert held.still_valid() and held.read() == data
    again = open_log(log.fs, clean=False, recovery_point=3, log_start_offset=3)
    assert (again.log_start_offset, again.log_end_offset) == (3, 3)


def test_what_is_cut_can_be_saved_first() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs, config=LogConfig(segment_bytes=300))
    for _ in range(7):
        produce(log, batch(3, size=20))
    before = content(log)
    saved = log.save_cut(10, "/data/cut/t-0")
    assert (saved.first_offset, saved.end_offset, saved.batch_count) == (9, 21, 4)
    assert log.truncate_to(10) == 9
    assert content(log) + b"".join(fs.read_file(path) for path in saved.paths) == before
    assert saved.size_bytes == len(before) - len(content(log))
    after_power_cut = fs.crash(keep_nothing=True)
    again = open_log(after_power_cut, recovery_point=9)
    assert again.log_end_offset == 9
    assert b"".join(after_power_cut.read_file(path) for path in saved.paths) == before[len(content(again)) :]
    opened = open_log(after_power_cut, directory="/data/cut/t-0", recovery_point=21)
    assert (opened.log_start_offset, opened.log_end_offset) == (9, 21)


def test_a_cut_makes_a_ticket_stale() -> None:
    log = open_log(MemoryFileSystem())
    produce(log, batch(5))
    log.flush()
    produce(log, batch(5))
    ticket = log.begin_flush()
    assert ticket is not None
    log.truncate_to(5)
    produce(log, batch(9))
    ticket.sync()
    log.finish_flush(ticket)
    assert log.flushed_offset == 5
    log.flush()
    assert log.flushed_offset == 14 and log.begin_flush() is None


def test_an_old_ticket_does_not_bring_back_old_side_files() -> None:
    """It is in a thread while the loop cuts: its content of `leader-epoch-checkpoint` is older."""
    fs = MemoryFileSystem()
    log = open_log(fs)
    produce(log, batch(1), epoch=1)
    produce(log, batch(1), epoch=2)
    ticket = log.begin_flush()
    assert ticket is not None
    log.truncate_to(1)
    ticket.sync()
    assert fs.read_file(f"{DIRECTORY}/leader-epoch-checkpoint") == b"0\n1\n1 0\n"


def test_a_log_that_starts_above_zero_and_inside_a_batch() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    produce(log, batch(3, pid=5, seq=0, txn=True))
    log.truncate_fully_and_start_at(500)
    assert (log.log_start_offset, log.log_end_offset, log.epochs.entries) == (500, 500, ())
    assert log.max_producer_id == 5 and not log.producers.entries
    replicate(log, batch(5, base=498, epoch=2))
    assert (log.log_start_offset, log.log_end_offset) == (500, 503)
    with pytest.raises(OffsetOutOfRange):
        log.read(499, max_bytes=1, limit_offset=503, at_least_one=True)
    assert read_bytes(log, 501) == batch(5, base=498, epoch=2)
    log.flush()
    for again in (
        open_log(fs.crash(keep_nothing=True), recovery_point=503, log_start_offset=500),
        open_log(MemoryFileSystem(), log_start_offset=500),
    ):
        assert again.log_start_offset == 500
    assert again.log_end_offset == 500


def test_after_an_io_error_nothing_more_is_appended() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    produce(log, batch(1))
    log.flush()
    fs.fail("write", ".log")
    for _ in range(2):
        with pytest.raises(DiskFailure):
            produce(log, batch(1, pid=9, seq=0))
    again = open_log(fs, recovery_point=1)
    assert again.log_end_offset == 1 and 9 not in again.producers.entries
    assert produce(again, batch(1, pid=9, seq=0)).duplicate is False


def test_what_was_refused_has_to_come_first() -> None:
    """Two batches in flight, the first not admitted: the second must not be stored before it (KAFKA-14884)."""
    log = open_log(MemoryFileSystem())
    first, second = batch(pid=7, seq=0, txn=True), batch(pid=7, seq=1, txn=True)
    for data in (second, first, second):
        log.producers.note_refused(parse_header(data), NOW_MS)
    with pytest.raises(OutOfOrderSequence, match="0 was refused"):
        produce(log, second)
    produce(log, batch(pid=7, producer_epoch=1, seq=0, txn=True))  # of another epoch it says nothing
    log = open_log(MemoryFileSystem(seed=2))
    log.producers.note_refused(parse_header(first), NOW_MS)
    produce(log, first)
    produce(log, second)
    log = open_log(MemoryFileSystem(seed=3))
    log.producers.note_refused(parse_header(first), NOW_MS)
    log.producers.remove_expired(NOW_MS + 5_000, 5_000)
    produce(log, second)


def test_an_old_epoch_is_told_from_one_that_cannot_be_rebuilt() -> None:
    """A negative epoch is taken as it comes, save where the topic's codec asks for another batch; an old one never."""
    log = open_log(MemoryFileSystem(), config=LogConfig(compression_type="gzip"))
    with pytest.raises(InvalidRecord):
        produce(log, batch(pid=7, producer_epoch=-2, seq=0))
    produce(log, batch(pid=7, producer_epoch=0, seq=0))
    with pytest.raises(InvalidProducerEpoch):
        produce(log, batch(pid=7, producer_epoch=-2, seq=0))
