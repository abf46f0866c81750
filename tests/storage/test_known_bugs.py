"""Bugs that other brokers had in their logs, each as a kind and not as the one input that was reported (B019 to B043).

What a client sees of them is in `conformance/wire` and `tests/server`; here is what needs gaps, compaction, a cut, a
full disk or a damaged file.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest

from kmirror.clock import ManualClock
from kmirror.errors import DiskFull, OffsetOutOfRange
from kmirror.protocol.records import Record, build_batch, end_txn_marker, walk
from kmirror.storage import cleaning
from kmirror.storage.errors import RecordTooLarge
from kmirror.storage.filesystem import FileSystem, OsFileSystem
from kmirror.storage.log import Log, LogConfig
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
MEMORY_BYTES = 1 << 27


def first_read(log: Log, offset: int) -> tuple[int, int]:
    """(base, last) of the first batch that a read at `offset` gives."""
    _, header = next(walk(read_bytes(log, offset, max_bytes=1)))
    return header.base_offset, header.last_offset


def restarted(log: Log, *, clean: bool, without: tuple[str, ...] = ()) -> Log:
    """Stopped and opened again, with some side files removed in between."""
    log.flush()
    log.close(clean=clean)
    for name in log.fs.list_dir(log.directory):
        if without and name.endswith(without):
            log.fs.remove(f"{log.directory}/{name}")
    again = open_log(
        log.fs,
        directory=log.directory,
        config=log.config,
        clean=clean,
        recovery_point=log.flushed_offset,
        log_start_offset=log.log_start_offset,
        mode=log.mode,
    )
    assert again.log_end_offset == log.log_end_offset
    return again


def every_way(log: Log) -> Iterable[Log]:
    """The log itself; after a clean stop; after none; after one with its indexes lost."""
    yield log
    for clean, without in ((True, ()), (False, ()), (True, (".index", ".timeindex")), (False, (".snapshot",))):
        log = restarted(log, clean=clean, without=without)
        yield log


def compacted(log: Log, *, now_ms: int, cleaned_up_to: int = -1, memory_bytes: int = MEMORY_BYTES) -> int:
    """One round, as the broker does it; up to where the log is clean now."""
    log.flush()
    first = log.first_undecided_offset
    stable = log.log_end_offset if first is None else first
    found = cleaning.dirt(log, cleaned_up_to=cleaned_up_to, last_stable_offset=stable, now_ms=now_ms)
    job = cleaning.plan(log, found, now_ms=now_ms, memory_bytes=memory_bytes)
    if job is None:
        return cleaned_up_to
    for step in cleaning.clean(log.fs, cleaning.CleanJob.from_plain(job.to_plain())):
        if isinstance(step, int):
            cleaned_up_to = step
        else:
            assert cleaning.swap(log, step, now_ms)
    return cleaned_up_to


def marker(producer_id: int, *, commit: bool, producer_epoch: int = 0) -> bytes:
    return end_txn_marker(
        commit=commit,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=0,
        timestamp_ms=NOW_MS,
    )


def committed(log: Log) -> dict[bytes, bytes | None]:
    """The newest value of each key, as a consumer at read_committed makes it out of batches and the aborted list."""
    from tests.storage.test_compaction import newest_of, read_committed

    end = log.log_end_offset
    return {key: record.value for key, record in newest_of(read_committed(log, end)).items()}


# --- reading ----------------------------------------------------------------------------------------------------


def test_known_bug_b019() -> None:
    """Gaps, also at a segment's end, batches without records, and the edges after records were deleted in a gap."""
    log = open_log(MemoryFileSystem(1), config=SPARSE)
    replicate(log, batch(10, base=0, epoch=0))
    log.roll()
    replicate(log, batch(3, base=100, epoch=0, last_delta=9))
    replicate(log, build_batch([], base_offset=110, leader_epoch=0, last_offset_delta=9))
    replicate(log, batch(1, base=120, epoch=0))
    found = {0: (0, 9), 5: (0, 9), 9: (0, 9), 120: (120, 120)}
    found |= dict.fromkeys((10, 50, 99, 100, 107, 109), (100, 109)) | dict.fromkeys((110, 115, 119), (110, 119))
    for current in every_way(log):
        assert {offset: first_read(current, offset) for offset in found} == found
        assert len(read_bytes(current, 110, max_bytes=1)) == 61
        assert read_bytes(current, 121) == b""
    current.advance_log_start(50)
    for trimmed in every_way(current):
        assert (trimmed.log_start_offset, first_read(trimmed, 50)) == (50, (100, 109))
        for outside in (-1, 0, 49, 122):
            with pytest.raises(OffsetOutOfRange):
                trimmed.read(outside, max_bytes=1, limit_offset=121, at_least_one=True)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("codec", range(5))
def test_known_bug_b026(codec: int, mirrored: bool) -> None:
    """Time lookups inside batches, out of order, across a segment boundary: own and mirrored, before and after."""
    log = open_log(MemoryFileSystem(1), config=SPARSE)
    batches = [[2, 4, 6, 8], [100, 10, 50], [20, 200], [200], [300]]
    next_base = 0
    for number, times in enumerate(batches):
        if number in (2, 4):
            log.roll()
        if mirrored:
            replicate(log, batch(timestamps=times, codec=codec, base=next_base, epoch=3))
        else:
            produce(log, batch(timestamps=times, codec=codec), epoch=3)
        next_base += len(times)
    times_in_order = [time for times in batches for time in times]
    for current in every_way(log):
        for asked in (*range(-1, 12), 20, 50, 51, 99, 100, 101, 199, 200, 201, 300, 301, 2**62):
            expected = next(((n, time, 3) for n, time in enumerate(times_in_order) if time >= asked), None)
            assert current.offset_for_timestamp(asked, next_base) == expected, asked
        assert current.max_timestamp_offset(next_base) == (10, 300, 3)


# --- epochs -----------------------------------------------------------------------------------------------------

EPOCHS_0_1 = {0: (0, 10), 1: (1, 15)}


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"0\n2\n0 ",
        b"0\n7\n0 0\n1 10\n",
        b"0\n3\n0 0\n1 10\n99 12\n",
        b"0\n1\n1 10\n",
        b"0\n0\n",
        b"0\n2\n0 0\n1 9\n",
        None,
    ],
    ids=["empty", "half a line", "wrong count", "future epoch", "without 0", "none", "wrong start", "missing"],
)
def test_known_bug_b032(tmp_path: Path, damage: bytes | None) -> None:
    """Two lives in epochs 0 and 1, each ended by kill -9; then the checkpoint is damaged. Real files."""
    directory = str(tmp_path / "t-0")
    log = open_log(OsFileSystem(), directory=directory)
    for epoch, count in ((0, 10), (1, 5)):
        for _ in range(count):
            produce(log, batch(1), epoch=epoch)
        log.flush()
        log.close(clean=False)
        log = open_log(OsFileSystem(), directory=directory, recovery_point=log.flushed_offset)
    log.close(clean=False)
    path = tmp_path / "t-0" / "leader-epoch-checkpoint"
    assert path.read_bytes() == b"0\n2\n0 0\n1 10\n"
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    for clean in (False, True):
        log = open_log(OsFileSystem(), directory=directory, clean=clean, recovery_point=15)
        assert log.log_end_offset == 15, "nothing is cut because an epoch's entry is missing"
        assert {epoch: log.epochs.end_offset_for(epoch, 15) for epoch in (0, 1)} == EPOCHS_0_1
        assert log.epochs.end_offset_for(2, 15) == (-1, -1)
        log.close(clean=True)
    assert path.read_bytes() == b"0\n2\n0 0\n1 10\n"


# --- compaction and the log start -------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["data", "tombstones", "aborted"])
def test_known_bug_b024(last: str) -> None:
    """The last batch of a cleaned range stays, if only as a header: positions reach the end, and the end stays."""
    config = LogConfig(cleanup_policy="compact", segment_bytes=400, delete_retention_ms=0, index_interval_bytes=1)
    log = open_log(MemoryFileSystem(1), config=config)
    for number in range(12):
        value = None if last == "tombstones" and number > 8 else b"v%d" % number
        record = Record(b"k%d" % number, value, timestamp=NOW_MS)
        produce(log, build_batch([record], producer_id=9, producer_epoch=0, base_sequence=number, transactional=True))
        if number % 3 == 2:
            coordinate(log, marker(9, commit=last != "aborted"))
    log.roll()
    end, now_ms, cleaned_up_to = log.log_end_offset, NOW_MS, -1
    expected = committed(log)
    for _ in range(3):
        now_ms += 10
        cleaned_up_to = compacted(log, now_ms=now_ms, cleaned_up_to=cleaned_up_to)
        for current in every_way(log):
            assert current.log_end_offset == end
            position = current.log_start_offset
            while position < end:
                read = current.read(position, max_bytes=200, limit_offset=end, at_least_one=True)
                assert read.next_offset > position, "a consumer would ask for ever"
                position = read.next_offset
            assert position == end
            assert first_read(current, end - 1)[1] == end - 1, "the offset before the end is in a batch"
            assert {k: v for k, v in committed(current).items() if v} == {k: v for k, v in expected.items() if v}
        log = current


@pytest.mark.parametrize("start", [700, 735], ids=["past six segments", "past the active segment's base"])
def test_known_bug_b037(start: int) -> None:
    """A compacted mirror whose source raised its log start: segments below it go, and the cleaner goes on."""
    config = LogConfig(cleanup_policy="compact", segment_bytes=1_000, min_cleanable_dirty_ratio=0.0, retention_ms=-1)
    log = open_log(MemoryFileSystem(1), config=config)
    next_base = 0
    while next_base < 740:
        replicate(log, batch(5, base=next_base, epoch=0, key=b"k%d" % (next_base % 3)))
        next_base += 5
        if next_base % 100 == 0:
            log.roll()
    cleaned_up_to = compacted(log, now_ms=NOW_MS)
    assert cleaned_up_to >= 700
    log.advance_log_start(start)
    for clean in (True, False):
        log.apply_retention(NOW_MS, log.log_end_offset)
        assert log.segments[0].base_offset <= start
        assert len(log.segments) == 1 or log.segments[1].base_offset > start
        with pytest.raises(OffsetOutOfRange):
            log.read(start - 1, max_bytes=1, limit_offset=next_base, at_least_one=True)
        for _ in range(30):
            replicate(log, batch(5, base=next_base, epoch=0, key=b"k1"))
            next_base += 5
        cleaned_up_to = compacted(log, now_ms=NOW_MS, cleaned_up_to=min(cleaned_up_to, 10))
        assert cleaned_up_to > start
        log = restarted(log, clean=clean)
        assert log.log_start_offset == start and log.log_end_offset == next_base


# --- side writes that fail ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".txnindex", ".index", ".timeindex", ".snapshot", ".log"])
def test_known_bug_b038(suffix: str) -> None:
    """A side file cannot be written when the log rolls over an abort: no offset is used twice, nothing acknowledged is
    lost, and no reader passes an abort that it is not told of. The disk heals, or the power goes."""
    config = LogConfig(segment_bytes=600, index_interval_bytes=1)
    for cut in (False, True):
        fs = MemoryFileSystem(3)
        log = open_log(fs, config=config)
        acknowledged: list[tuple[int, int]] = []
        aborted: list[int] = []
        refused = 0
        for number in range(40):
            if number == 10:
                fs.fail("write", suffix, error=errno.ENOSPC, times=5)
            transactional = number % 2 == 0
            try:
                result = produce(log, batch(2, pid=number, seq=0, txn=transactional, size=50))
                acknowledged.append((result.base_offset, result.last_offset))
                while transactional:
                    try:
                        coordinate(log, marker(number, commit=False))
                        break
                    except DiskFull:
                        refused += 1
                if transactional:
                    aborted.append(result.base_offset)
                log.flush()
            except DiskFull:
                refused += 1
        assert refused and len(acknowledged) > 30
        if cut:
            log = open_log(fs.crash(keep_nothing=True), config=config, recovery_point=log.flushed_offset)
        else:
            log = restarted(log, clean=True)
        found = offsets(log)
        assert all(first[1] + 1 == second[0] for first, second in pairwise(found))
        assert set(acknowledged) <= set(found)
        assert [entry.first_offset for entry in log.aborted_transactions(0, log.log_end_offset)] == aborted
        assert log.first_undecided_offset is None


@pytest.mark.parametrize("failing", [".log", ".snapshot", ".index", "too large"])
def test_known_bug_b039_a_failed_append_leaves_no_state(failing: str) -> None:
    """(a) The append that would roll the segment fails, the process is killed, the batch comes again."""
    fs = MemoryFileSystem(3)
    config = LogConfig(segment_bytes=700, max_message_bytes=600, index_interval_bytes=1)
    log = open_log(fs, config=config)
    for seq in range(10):
        produce(log, batch(1, pid=3, seq=seq, size=1))
    log.flush()
    rolling = batch(2, pid=3, seq=10, size=200)
    if failing == "too large":
        with pytest.raises(RecordTooLarge):
            produce(log, batch(2, pid=3, seq=10, size=400))
    else:
        fs.fail("write", failing, error=errno.ENOSPC, times=1)
        while len(log.segments) == 1:
            try:
                result = produce(log, rolling)
            except DiskFull:
                break
            assert not result.duplicate
            rolling = batch(2, pid=3, seq=log.producers.entries[3].last_sequence + 1, size=200)
        else:
            pytest.fail("nothing failed")
    expected = log.producers.entries[3].last_sequence + 1
    end = log.log_end_offset
    log.flush()
    log = open_log(fs.crash(), config=config, recovery_point=0)
    assert (log.log_end_offset, log.producers.entries[3].last_sequence) == (end, expected - 1)
    again = batch(2, pid=3, seq=expected, size=200)
    assert not produce(log, again).duplicate
    assert produce(log, again).duplicate
    assert not produce(log, batch(1, pid=3, seq=expected + 2)).duplicate
    assert log.log_end_offset == end + 3


def source_batches(first: int, count: int, *, life: int) -> list[bytes]:
    """What a source has: two idempotent producers and a transaction in three that aborts; another life, other ids."""
    found = []
    for number in range(first, first + count):
        base = 4 * number
        found.append(
            batch(2, base=base, epoch=life, pid=10 * life + number % 2, seq=2 * (number // 2), size=40)
            + batch(1, base=base + 2, epoch=life, pid=100 * life + number, seq=0, txn=True)
            + _at(marker(100 * life + number, commit=number % 3 != 0), base + 3, life)
        )
    return found


def _at(data: bytes, base: int, epoch: int) -> bytes:
    """The batch as its leader stored it."""
    return base.to_bytes(8) + data[8:12] + epoch.to_bytes(4) + data[16:]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["cut", "cut inside a segment", "emptied", "retention, then emptied"])
def test_known_bug_b039_b_snapshots_of_cut_and_made_again_segments(how: str, clean: bool) -> None:
    """(b) A truncated mirror gets segments with the same bases within `file.delete.delay.ms`: the delayed deletion
    takes the old files only, and the producers are those of the source's new batches."""
    clock = ManualClock(NOW_MS)
    config = LogConfig(segment_bytes=700, retention_ms=-1)
    log = open_log(MemoryFileSystem(4), config=config, clock=clock)
    kept = source_batches(0, 6, life=1)
    for data in kept + source_batches(6, 12, life=1):
        replicate(log, data)
    log.flush()
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 4
    start = 0
    if how.startswith("cut"):
        log.truncate_to(24)
    else:
        if how.startswith("retention"):
            log.config = LogConfig(segment_bytes=700, retention_bytes=1_000)
            assert log.apply_retention(clock.time_ms(), log.log_end_offset)
            log.config = config
        start = 24
        log.truncate_fully_and_start_at(start)
        kept = []
    fresh = source_batches(6, 12, life=2)
    if how == "cut inside a segment":
        log.roll()
    for data in fresh:
        replicate(log, data)
    log.flush()
    clock.advance(config.file_delete_delay_ms + 1)
    log.delete_doomed(clock.time_ms())
    log = restarted(log, clean=clean)
    source = open_log(MemoryFileSystem(5), config=LogConfig(), clock=clock, log_start_offset=start)
    for data in kept + fresh:
        replicate(source, data)
    assert content(log) == content(source)
    assert log.first_undecided_offset == source.first_undecided_offset
    for first in range(start, log.log_end_offset, 3):
        assert log.aborted_transactions(first, first + 9) == source.aborted_transactions(first, first + 9)

    def described(of: Log) -> dict[int, tuple[int, ...]]:
        return {
            pid: (entry.producer_epoch, entry.last_sequence, entry.coordinator_epoch, entry.txn_first_offset)
            for pid, entry in of.producers.entries.items()
        }

    assert described(log) == described(source)
    replicate(log, source_batches(18, 1, life=2)[0])


# --- offsets far apart -------------------------------------------------------------------------------------------

FAR = [0, 2**31 - 1, 2**31 + 5, 2**32 + 7, 2**40]


@pytest.fixture(params=["os", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    return (OsFileSystem(), str(tmp_path / "t-0")) if request.param == "os" else (MemoryFileSystem(1), DIRECTORY)


def test_known_bug_b041(place: tuple[FileSystem, str]) -> None:
    """Batches that fit into one segment by size and not by offset: each found from everywhere, never merged."""
    fs, directory = place
    log = open_log(fs, directory=directory, config=LogConfig(index_interval_bytes=1, cleanup_policy="compact"))
    for at, base in enumerate(FAR):
        replicate(log, batch(1, base=base, epoch=0, key=b"k%d" % at, timestamp_ms=NOW_MS + at))
    replicate(log, batch(1, base=2**40 + 2**31, epoch=0, key=b"last", timestamp_ms=NOW_MS + 9))
    everything = [*FAR, 2**40 + 2**31]

    def is_right(current: Log) -> None:
        assert offsets(current) == [(base, base) for base in everything]
        for segment in current.segments:
            held = [base for base in everything if segment.base_offset <= base < segment.next_offset]
            assert all(base - segment.base_offset <= 2**31 - 1 for base in held)
        for before, base in zip([-1, *everything], everything, strict=False):
            for offset in {before + 1, (before + base) // 2 + 1, base - 1, base}:
                if offset > before:
                    assert first_read(current, offset) == (base, base)
        for at in range(len(FAR)):
            found = current.offset_for_timestamp(NOW_MS + at, current.log_end_offset)
            assert found is not None and found.offset == FAR[at]

    for current in every_way(log):
        is_right(current)
    compacted(current, now_ms=NOW_MS)
    for cleaned in every_way(current):
        is_right(cleaned)


def test_known_bug_b041_tiny_segments_at_the_very_edge() -> None:
    """Two that are 2^31 - 1 apart may become one segment, two that are 2^31 apart may not."""
    for apart, expected in ((2**31 - 1, 1), (2**31, 2)):
        config = LogConfig(index_interval_bytes=1, cleanup_policy="compact")
        log = open_log(MemoryFileSystem(1), config=config)
        replicate(log, batch(1, base=0, epoch=0, key=b"a"))
        log.roll()
        replicate(log, batch(1, base=apart, epoch=0, key=b"b"))
        replicate(log, batch(1, base=apart + 1, epoch=0, key=b"c")) if apart == 2**31 else None
        log.roll()
        replicate(log, batch(1, base=apart + 2, epoch=0, key=b"d"))
        compacted(log, now_ms=NOW_MS)
        for current in every_way(log):
            assert first_read(current, 1) == (apart, apart)
            assert first_read(current, apart) == (apart, apart)
            assert sum(segment.base_offset <= apart for segment in current.segments) == expected
            for segment in current.segments:
                assert all(header.last_offset - segment.base_offset <= 2**31 - 1 for _, header in segment.headers())


# --- transactions and the cleaner --------------------------------------------------------------------------------


TRANSACTIONS = 50
TAIL_FROM = 44
"""From here on all abort."""


@pytest.mark.parametrize("keys_in_map", [1, 3, 1000], ids=["a key a round", "part of a segment", "everything"])
def test_known_bug_b043(monkeypatch: pytest.MonkeyPatch, keys_in_map: int) -> None:
    """Fifty transactions, every odd one aborted, each with its data in one segment and its marker two segments later;
    a producer that begins at sequence 0 with each epoch; a tail of aborted data only. Cleaned after every roll with a
    map that ends a round in the middle of a segment; started anew without indexes; the committed values are those of
    the model each time, and at the end nothing aborted is left."""
    monkeypatch.setattr(cleaning, "CLEANER_MIN_KEYS", keys_in_map)
    config = LogConfig(
        cleanup_policy="compact", segment_bytes=1_000, delete_retention_ms=100, index_interval_bytes=1, retention_ms=-1
    )
    log = open_log(MemoryFileSystem(6), config=config)
    model: dict[bytes, bytes | None] = {}
    waiting: list[tuple[int, dict[bytes, bytes | None]]] = []
    now_ms, cleaned_up_to = NOW_MS, -1

    def end_oldest() -> None:
        number, written = waiting.pop(0)
        commit = number % 2 == 0 and number < TAIL_FROM
        coordinate(log, marker(500 + number % 7, commit=commit, producer_epoch=number // 7))
        if commit:
            model.update(written)

    for number in range(TRANSACTIONS):
        written = {b"k%d" % (key % 9): b"v%d" % number for key in (number, number + 1, 2 * number)}
        records = [Record(key, value, timestamp=now_ms) for key, value in written.items()]
        # Each of seven producers begins anew, with sequence 0 and a higher epoch, every time.
        data = build_batch(
            records,
            producer_id=500 + number % 7,
            producer_epoch=number // 7,
            base_sequence=0,
            transactional=True,
            timestamp_ms=now_ms,
        )
        produce(log, data)
        waiting.append((number, written))
        log.roll()
        if len(waiting) == 3:
            end_oldest()
        now_ms += 60
        cleaned_up_to = compacted(log, now_ms=now_ms, cleaned_up_to=cleaned_up_to, memory_bytes=0)
        assert committed_below_open(log) == model
        if number % 10 == 9:
            log = restarted(log, clean=bool(number % 20 == 9), without=(".index", ".timeindex", ".txnindex"))
            assert committed_below_open(log) == model
    while waiting:
        end_oldest()
    log.roll()
    produce(log, batch(1, key=b"end"))
    producers = {pid: (entry.producer_epoch, entry.last_sequence) for pid, entry in log.producers.entries.items()}
    end = log.log_end_offset
    for _ in range(500):
        if cleaned_up_to >= log.active.base_offset:
            break
        now_ms += 200
        cleaned_up_to = compacted(log, now_ms=now_ms, cleaned_up_to=cleaned_up_to, memory_bytes=0)
    model[b"end"] = b"v" * 20
    for current in every_way(log):
        assert committed(current) == model
        assert current.log_end_offset == end
        assert {
            pid: (entry.producer_epoch, entry.last_sequence) for pid, entry in current.producers.entries.items()
        } == producers
    kept = sum(header.record_count for header, _ in current.batches(0, end) if not header.is_control)
    assert kept == len(model)


def committed_below_open(log: Log) -> dict[bytes, bytes | None]:
    from tests.storage.test_compaction import newest_of, read_committed

    stable = log.first_undecided_offset
    found = read_committed(log, log.log_end_offset if stable is None else stable)
    return {key: record.value for key, record in newest_of(found).items()}
