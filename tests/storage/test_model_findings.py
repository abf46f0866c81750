"""What the model test has found, each as the shortest story that shows it."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable

import pytest

from kmirror.clock import ManualClock
from kmirror.errors import DiskFull
from kmirror.protocol.records import end_txn_marker, mirror_pid_reset
from kmirror.storage import cleaning
from kmirror.storage.log import Log, LogConfig
from kmirror.storage.memory import MemoryFileSystem
from tests.power_cut import powered_until
from tests.storage.making import DIRECTORY, NOW_MS, batch, content, coordinate, open_log, produce, replicate
from tests.storage.random_batches import old_message


def clean(log: Log, now_ms: int = NOW_MS, cleaned_up_to: int = -1) -> int:
    """One round over everything that is decided and sealed."""
    first = log.first_undecided_offset
    stable = log.log_end_offset if first is None else first
    found = cleaning.dirt(log, cleaned_up_to=cleaned_up_to, last_stable_offset=stable, now_ms=now_ms)
    job = cleaning.plan(log, found, now_ms=now_ms, memory_bytes=1 << 20)
    assert job is not None
    for step in cleaning.clean(log.fs, job):
        if isinstance(step, int):
            cleaned_up_to = step
        else:
            assert cleaning.swap(log, step, now_ms)
    return cleaned_up_to


def marker(pid: int, *, commit: bool, epoch: int = 0) -> bytes:
    return end_txn_marker(
        commit=commit, producer_id=pid, producer_epoch=epoch, coordinator_epoch=0, timestamp_ms=NOW_MS
    )


def test_an_epoch_whose_first_batch_was_compacted_begins_where_it_did() -> None:
    """OffsetForLeaderEpoch must not answer more of the epoch before, after a start that goes through the segment."""
    fs = MemoryFileSystem()
    log = open_log(fs)
    produce(log, batch(1, key=b"a"), epoch=0)
    produce(log, batch(1, key=b"b"), epoch=2)
    produce(log, batch(1, key=b"c"), epoch=3)
    produce(log, batch(1, key=b"b"), epoch=3)
    produce(log, batch(1, key=b"c"), epoch=3)
    log.roll()
    produce(log, batch(1, key=b"d"), epoch=3)
    log.flush()
    before = log.epochs.entries
    clean(log)
    assert [header.base_offset for header, _ in log.batches(0, 5)] == [0, 3, 4]
    for again in (open_log(fs), open_log(fs.crash())):
        assert again.epochs.entries == before == ((0, 0), (2, 1), (3, 2))


@pytest.mark.parametrize("retained", [False, True], ids=["all kept", "data gone by retention"])
def test_a_transaction_whose_end_was_compacted_is_not_open_after_a_crash(retained: bool) -> None:
    """A snapshot from its middle says that it is open; its end is no longer in the log. Readers would wait for ever."""
    clock = ManualClock(NOW_MS)
    fs = MemoryFileSystem(clock=clock)
    log = open_log(fs, clock=clock, config=LogConfig(delete_retention_ms=0, file_delete_delay_ms=0, segment_bytes=1000))
    produce(log, batch(1, pid=7, seq=0, txn=True))
    produce(log, batch(1, key=b"keeps the segment large", size=600))
    log.roll()
    coordinate(log, marker(7, commit=False))
    produce(log, batch(1, pid=7, seq=1))
    produce(log, batch(1, key=b"keeps the next one apart", size=600))
    log.roll()
    produce(log, batch(1))
    log.flush()
    if retained:
        log.advance_log_start(2)
        assert log.apply_retention(NOW_MS, high_watermark=log.log_end_offset) == 1
    for _ in range(3):  # the marker's horizon is set by the first round, and over in the next
        assert clean(log, clock.time_ms()) == 5
        clock.advance(10)
    assert 2 not in [header.base_offset for header, _ in log.batches(0, 5)]
    assert [segment.base_offset for segment in log.segments] == ([2, 5] if retained else [0, 2, 5])
    log.flush()
    for again in (
        open_log(fs, clock=clock, log_start_offset=log.log_start_offset),
        open_log(fs.crash(), clock=clock, log_start_offset=log.log_start_offset),
    ):
        assert again.first_undecided_offset is None
        assert again.log_end_offset == log.log_end_offset


def test_an_emptied_marker_ends_what_a_snapshot_from_before_has_open() -> None:
    """It stays as the last batch of the producer, whose epoch it raised. Else the next abort begins where the first
    transaction did."""
    clock = ManualClock(NOW_MS)
    fs = MemoryFileSystem(clock=clock)
    log = open_log(fs, clock=clock, config=LogConfig(delete_retention_ms=0, segment_bytes=1000))
    produce(log, batch(1, key=b"k", pid=7, seq=0, txn=True))
    produce(log, batch(1, key=b"keeps the segment large", size=600))
    log.roll()
    coordinate(log, marker(7, commit=False, epoch=1), transaction_version=2)
    produce(log, batch(1, key=b"keeps the next one apart", size=600))
    log.roll()
    produce(log, batch(1, key=b"behind"))
    log.flush()
    for _ in range(3):
        clean(log, clock.time_ms())
        clock.advance(10)
    assert [header.record_count for header, _ in log.batches(0, 9) if header.producer_id == 7] == [0]
    produce(log, batch(1, key=b"k", pid=7, producer_epoch=1, seq=0, txn=True))
    coordinate(log, marker(7, commit=False, epoch=2), transaction_version=2)
    expected = log.aborted_transactions(0, 9)
    assert [(one.first_offset, one.last_offset) for one in expected] == [(5, 6)]
    log.flush()
    for path in [f"{DIRECTORY}/{name}" for name in fs.list_dir(DIRECTORY) if name.endswith(".snapshot")]:
        if not path.endswith("02.snapshot"):
            fs.remove(path)
    assert open_log(fs).aborted_transactions(0, 9) == expected


def test_an_open_transaction_stays_open_behind_what_was_compacted() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    for number in range(3):
        produce(log, batch(1, pid=1, seq=number))
    log.roll()
    produce(log, batch(1, pid=2, seq=0, txn=True))
    log.flush()
    clean(log)
    assert open_log(fs).first_undecided_offset == open_log(fs.crash()).first_undecided_offset == 3


def anew_at_every_point(log_of: Callable[[MemoryFileSystem], Log], offset: int, look: Callable[[Log], None]) -> int:
    """`truncate_fully_and_start_at` with the power cut before and after each operation."""
    for operation in range(1, 200):
        for keep_nothing in (True, False):
            fs = MemoryFileSystem(operation)
            log = log_of(fs)
            start = log.log_start_offset
            with powered_until(fs, operation) as power:
                log.truncate_fully_and_start_at(offset)
            # The broker writes the log start later, so the checkpoint may still have the old one, or none.
            look(open_log(fs.crash(keep_nothing=keep_nothing), recovery_point=log.flushed_offset and 4))
            assert start <= 4
        if power.lasted:
            return operation
    raise AssertionError("it does not end")


def open_transactions(fs: MemoryFileSystem) -> Log:
    log = open_log(fs)
    produce(log, batch(1, key=b"a"))
    produce(log, batch(1, pid=5, seq=0, txn=True), epoch=4)
    log.roll()
    coordinate(log, mirror_pid_reset(timestamp_ms=NOW_MS), epoch=4)
    produce(log, batch(1), epoch=4)
    log.roll()  # a snapshot at the end, where the log may begin anew
    log.flush()
    return log


def test_a_log_that_begins_anew_knows_nothing_of_before() -> None:
    """Wherever a crash falls: it is begun anew without producers and epochs, or what is left is whole."""

    def look(log: Log) -> None:
        if log.size_bytes == 0 and log.log_end_offset == 4:
            assert (log.producers.ongoing(), log.epochs.entries) == ([], ())
            replicate(log, batch(1, base=4, epoch=1))
        elif log.log_end_offset > 1:
            assert [one.producer_id for one in log.producers.ongoing()] == [5]
            assert log.pid_reset_offsets == ([2] if log.log_end_offset > 2 else [])

    assert anew_at_every_point(open_transactions, 4, look) > 20


def test_resets_are_remembered_when_a_cut_finds_no_space() -> None:
    fs = MemoryFileSystem()
    log = open_transactions(fs)
    fs.capacity_bytes = fs.used_bytes()
    with pytest.raises(DiskFull):
        log.truncate_fully_and_start_at(100)
    assert (log.pid_reset_offsets, log.log_end_offset) == ([2], 4)


def test_a_log_start_raised_by_retention_does_not_stop_a_start_amid_a_restart() -> None:
    """No segment is left and the checkpoint has an older log start: nothing is promised, nothing is missing."""

    def raised(fs: MemoryFileSystem) -> Log:
        log = open_log(fs)
        produce(log, batch(2))
        log.roll()
        produce(log, batch(2))
        log.flush()
        log.advance_log_start(2)
        log.apply_retention(NOW_MS, high_watermark=4)
        log.flush()
        return log

    assert anew_at_every_point(raised, 10, lambda log: None) > 10


def test_a_log_that_began_inside_a_batch_may_lose_it() -> None:
    """It was never on disk, and the log's start, which counts as flushed, lies inside it."""
    for operation in range(8):
        fs = MemoryFileSystem(operation)
        log = open_log(fs)
        log.truncate_fully_and_start_at(12)
        log.close(clean=True)
        log = open_log(fs, clean=True, recovery_point=12, log_start_offset=12)
        replicate(log, batch(3, base=10, epoch=0))
        again = open_log(fs.crash(), recovery_point=12, log_start_offset=12)
        assert again.log_start_offset == 12 and again.log_end_offset in (12, 13)


def test_a_tail_that_recovery_cut_does_not_come_back() -> None:
    """In front of what was written and flushed behind it: the next recovery would cut that with it."""
    fs = MemoryFileSystem(page_bytes=512)
    log = open_log(fs)
    produce(log, batch(1, size=300))
    log.flush()
    end = log.size_bytes
    torn = fs.open(f"{DIRECTORY}/{0:020d}.log")
    torn.append([bytes(200)])
    torn.sync()
    again = open_log(fs, recovery_point=1)
    assert again.size_bytes == end
    again.close(clean=False)
    again = open_log(fs, recovery_point=1)  # it finds nothing to cut, and takes the file for synced
    again.roll()
    produce(again, batch(1, size=300))
    again.flush()
    kept = content(again)
    assert content(open_log(fs.crash(keep_nothing=True), recovery_point=1)) == kept


def test_a_wrapper_behind_a_wide_gap_survives_compaction_and_a_crash() -> None:
    """Its header names its last offset only; what compaction makes of it begins lower, never below its segment."""
    fs = MemoryFileSystem()
    log = open_log(fs)
    replicate(log, batch(1, epoch=0))
    inner = b"".join(old_message(1, index, b"k%d" % index, b"v", NOW_MS) for index in range(3))
    last = 2**31 + 50
    wrapper = old_message(1, last, None, gzip.compress(inner, mtime=0), NOW_MS, codec=1)
    assert struct.unpack_from(">q", wrapper)[0] == last
    replicate(log, wrapper)
    log.roll()
    replicate(log, batch(1, base=last + 1, epoch=0))
    log.flush()
    clean(log)
    log.flush()
    kept = content(log)
    assert [header.base_offset for header, _ in log.batches(1, last + 1)] == [last - 2]
    assert content(open_log(fs.crash())) == kept
