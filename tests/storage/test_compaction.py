"""Compaction against an independent statement of what it must leave, on random histories with transactions.

The model knows nothing of segments, maps or rounds: it is the list of all records ever written, with the fate of their
transactions. What a read_committed reader sees of the newest value of every key must not change, nothing may appear
that was not written, old values must go, and the log must keep its end, its producers and its resets.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kmirror.clock import ManualClock
from kmirror.errors import CorruptData
from kmirror.protocol.compression import Compression
from kmirror.protocol.records import (
    CONTROL_ABORT,
    Record,
    build_batch,
    control_type,
    end_txn_marker,
    mirror_pid_reset,
    parse_header,
    read_records,
)
from kmirror.storage import cleaning
from kmirror.storage.filesystem import FileSystem
from kmirror.storage.log import AppendOrigin, Log, LogConfig
from kmirror.storage.memory import MemoryFileSystem
from tests.power_cut import powered_until

DIRECTORY = "/data/t-0"
DAY_MS = 24 * 60 * 60 * 1000
MEMORY_BYTES = 1 << 27


@dataclass(frozen=True)
class Written:
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass
class History:
    """A log under random producers, and everything that was ever written to it."""

    seed: int
    log: Log
    fs: MemoryFileSystem
    clock: ManualClock
    rng: random.Random
    written: dict[int, Written] = field(default_factory=dict)
    transactional: dict[int, int] = field(default_factory=dict)
    """Offset of a transactional record: producer id."""
    open: dict[int, list[int]] = field(default_factory=dict)
    """Producer id: offsets of its open transaction."""
    aborted: set[int] = field(default_factory=set)
    undecided: set[int] = field(default_factory=set)
    resets: list[int] = field(default_factory=list)
    sequences: dict[int, int] = field(default_factory=dict)

    @classmethod
    def begin(cls, seed: int) -> History:
        rng = random.Random(seed)
        clock = ManualClock()
        fs = MemoryFileSystem(seed=seed, clock=clock)
        config = LogConfig(
            cleanup_policy="compact",
            segment_bytes=rng.choice([700, 2000, 6000]),
            index_interval_bytes=rng.choice([1, 500]),
            delete_retention_ms=DAY_MS,
            min_cleanable_dirty_ratio=0.0,
        )
        return cls(seed, open_log(fs, clock, config), fs, clock, rng)

    # -- writing --

    def step(self) -> None:
        kind = self.rng.random()
        if kind < 0.45:
            self._append(-1)
        elif kind < 0.6:
            self._append(self.rng.choice([100, 101]))
        elif kind < 0.85:
            self._append(self.rng.choice([200, 201, 202]), transactional=True)
        elif kind < 0.97:
            self._end()
        elif not self.open:
            self._reset()
        self.clock.advance(self.rng.choice([0, 1, 1000]))

    def _append(self, producer_id: int, *, transactional: bool = False) -> None:
        records = [
            Record(
                key=b"%s%d" % (self.rng.choice([b"k", b"a longer key than sixteen bytes "]), self.rng.randrange(6)),
                value=None if self.rng.random() < 0.2 else b"v%d" % self.rng.randrange(10**6),
                headers=[("h", None)] if self.rng.random() < 0.1 else [],
                timestamp=self.clock.time_ms() + self.rng.randrange(-5, 5),
            )
            for _ in range(self.rng.randint(1, 4))
        ]
        data = build_batch(
            records,
            compression=self.rng.choice([Compression.NONE, Compression.NONE, Compression.GZIP, Compression.ZSTD]),
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=self.sequences.get(producer_id, 0) if producer_id >= 0 else -1,
            transactional=transactional,
            timestamp_ms=self.clock.time_ms(),
        )
        base = self.log.append(
            data, origin=AppendOrigin.CLIENT, leader_epoch=0, now_ms=self.clock.time_ms()
        ).base_offset
        if producer_id >= 0:
            self.sequences[producer_id] = self.sequences.get(producer_id, 0) + len(records)
        for index, record in enumerate(records):
            self.written[base + index] = Written(
                base + index, record.key, record.value, record.timestamp, tuple(record.headers)
            )
            if transactional:
                self.transactional[base + index] = producer_id
                self.open.setdefault(producer_id, []).append(base + index)
                self.undecided.add(base + index)

    def _end(self) -> None:
        if not self.open:
            return
        producer_id = self.rng.choice(sorted(self.open))
        commit = self.rng.random() < 0.5
        self._coordinate(
            end_txn_marker(
                commit=commit,
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp_ms=self.clock.time_ms(),
            )
        )
        offsets = self.open.pop(producer_id)
        self.undecided.difference_update(offsets)
        if not commit:
            self.aborted.update(offsets)

    def _reset(self) -> None:
        self.resets.append(self.log.log_end_offset)
        self._coordinate(mirror_pid_reset(timestamp_ms=self.clock.time_ms()))
        self.sequences.clear()

    def _coordinate(self, data: bytes) -> None:
        self.log.append(data, origin=AppendOrigin.COORDINATOR, leader_epoch=0, now_ms=self.clock.time_ms())

    # -- cleaning --

    @property
    def stable(self) -> int:
        first = self.log.first_undecided_offset
        return self.log.log_end_offset if first is None else first

    def clean(self, cleaned_up_to: int) -> int:
        """One round as the broker does it; the new `cleaned_up_to`."""
        self.log.flush()
        now_ms = self.clock.time_ms()
        found = cleaning.dirt(self.log, cleaned_up_to=cleaned_up_to, last_stable_offset=self.stable, now_ms=now_ms)
        job = cleaning.plan(self.log, found, now_ms=now_ms, memory_bytes=MEMORY_BYTES)
        if job is None:
            return cleaned_up_to
        job = cleaning.CleanJob.from_plain(job.to_plain())
        for step in cleaning.clean(self.fs, job):
            if isinstance(step, int):
                cleaned_up_to = step
            else:
                assert cleaning.swap(self.log, step, now_ms)
        return cleaned_up_to

    def reopen(self) -> None:
        self.log.close(clean=self.rng.random() < 0.5)
        self.log = open_log(self.fs, self.clock, self.log.config, recovery_point=self.log.flushed_offset)

    # -- what the model expects --

    def newest_committed(self) -> dict[bytes, Written]:
        newest: dict[bytes, Written] = {}
        for offset in sorted(self.written):
            record = self.written[offset]
            if offset not in self.aborted and offset < self.stable and record.key is not None:
                newest[record.key] = record
        return newest


def open_log(fs: FileSystem, clock: ManualClock, config: LogConfig, *, recovery_point: int = 0) -> Log:
    return Log.open(fs, DIRECTORY, config=config, clock=clock, clean=False, recovery_point=recovery_point)


def stored(log: Log) -> dict[int, Written]:
    """Every data record in the log."""
    found: dict[int, Written] = {}
    for header, data in log.batches(log.log_start_offset, log.log_end_offset):
        if not header.is_control:
            for record in read_records(data):
                found[record.offset] = Written(
                    record.offset, record.key, record.value, record.timestamp, tuple(record.headers)
                )
    return found


def read_committed(log: Log, stable: int) -> dict[int, Written]:
    """As a consumer does it: the broker's list of aborted transactions, and markers that end them."""
    start = log.log_start_offset
    aborted = sorted(log.aborted_transactions(start, stable), key=lambda entry: entry.first_offset)
    active: set[int] = set()
    found: dict[int, Written] = {}
    for header, data in log.batches(start, stable):
        while aborted and aborted[0].first_offset <= header.last_offset:
            active.add(aborted.pop(0).producer_id)
        if header.is_control:
            if header.record_count and control_type(data) == CONTROL_ABORT:
                active.discard(header.producer_id)
            continue
        if header.is_transactional and header.producer_id in active:
            continue
        for record in read_records(data):
            found[record.offset] = Written(
                record.offset, record.key, record.value, record.timestamp, tuple(record.headers)
            )
    return found


def newest_of(records: dict[int, Written]) -> dict[bytes, Written]:
    return {record.key: record for _, record in sorted(records.items()) if record.key is not None}


def described_producers(log: Log) -> dict[int, tuple[int, int, int]]:
    return {
        entry.producer_id: (entry.producer_epoch, entry.last_sequence, entry.txn_first_offset)
        for entry in log.producers.entries.values()
    }


def check(history: History, cleaned_up_to: int, *, tombstones_expired: bool) -> None:
    log, expected = history.log, history.newest_committed()
    present = stored(log)
    for offset, record in present.items():
        assert record == history.written[offset], "a record that nobody wrote"
    for offset in history.undecided:
        assert offset in present, "a record of an open transaction is gone"
    seen = read_committed(log, history.stable)
    assert not history.aborted & seen.keys(), "aborted and visible"
    newest = newest_of(seen)
    for key, record in expected.items():
        if record.value is not None or not tombstones_expired:
            assert newest.get(key) == record, f"the newest value of {key!r} is lost"
        else:
            assert newest.get(key) in (record, None), "an older value came back"
    assert newest.keys() <= expected.keys()
    below = [record for record in seen.values() if record.offset < cleaned_up_to]
    assert len({record.key for record in below}) == len(below), "an old value stayed below the cleaned point"
    assert not any(offset < cleaned_up_to for offset in history.aborted & present.keys()), "aborted data stayed"
    resets = [
        header.base_offset
        for header, data in log.batches(0, log.log_end_offset)
        if header.is_control and header.record_count and control_type(data) == 7
    ]
    assert resets == history.resets == log.pid_reset_offsets


@pytest.mark.parametrize("seed", range(60))
def test_random_histories(seed: int) -> None:
    history = History.begin(seed)
    cleaned_up_to = -1
    cleanings = 0
    for _ in range(history.rng.randint(1, 5)):
        for _ in range(history.rng.randint(10, 60)):
            history.step()
        history.log.roll()
        history.step()
        end, producers = history.log.log_end_offset, described_producers(history.log)
        before = cleaned_up_to
        cleaned_up_to = history.clean(cleaned_up_to)
        cleanings += cleaned_up_to != before
        assert (history.log.log_end_offset, described_producers(history.log)) == (end, producers)
        check(history, cleaned_up_to, tombstones_expired=True)
        history.reopen()
        assert history.log.log_end_offset == end
        assert described_producers(history.log) == producers
        check(history, cleaned_up_to, tombstones_expired=True)
        history.clock.advance(history.rng.choice([1000, DAY_MS + 1]))
    assert cleanings or history.open, f"seed {seed} cleaned nothing"


def write(history: History, *records: Record, **batch: object) -> None:
    data = build_batch(records, timestamp_ms=history.clock.time_ms(), **batch)  # type: ignore[arg-type]
    history.log.append(data, origin=AppendOrigin.CLIENT, leader_epoch=0, now_ms=history.clock.time_ms())


def quiet(seed: int = 1) -> History:
    history = History.begin(seed)
    history.log.config.segment_bytes = 1 << 20
    return history


def test_a_tombstone_goes_when_its_horizon_is_over_and_not_before() -> None:
    history = quiet()
    write(history, Record(b"k", b"old"))
    write(history, Record(b"k", None))
    write(history, Record(b"other", b"x"))
    history.log.roll()
    write(history, Record(b"active", b"x"))
    done = history.clean(-1)
    assert [(r.key, r.value) for r in stored(history.log).values()][:2] == [(b"k", None), (b"other", b"x")]
    horizons = [header.delete_horizon_ms for header, _ in history.log.batches(0, 3)]
    assert horizons == [history.clock.time_ms() + DAY_MS, None]
    for wait_ms, left in ((DAY_MS - 1, True), (1, False)):
        history.clock.advance(wait_ms)
        history.log.roll()
        write(history, Record(b"again", b"%d" % wait_ms))
        done = history.clean(done)
        assert (1 in stored(history.log)) is left
    assert history.log.log_start_offset == 0


def test_a_key_of_an_aborted_transaction_hides_nothing() -> None:
    history = quiet()
    write(history, Record(b"k", b"good"))
    write(history, Record(b"k", b"bad"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    history.open[5] = [1]
    history._coordinate(
        end_txn_marker(commit=False, producer_id=5, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1)
    )
    history.log.roll()
    write(history, Record(b"active", b"x"))
    history.clean(-1)
    assert [record.value for record in read_committed(history.log, 4).values()] == [b"good", b"x"]
    kinds = [(header.base_offset, header.record_count) for header, _ in history.log.batches(0, 3)]
    assert kinds == [(0, 1), (1, 0), (2, 1)], "the producer's last batch stays, empty, and so does the marker"


def test_what_must_not_be_cleaned_yet() -> None:
    history = quiet()
    history.log.config.min_compaction_lag_ms = 10_000
    write(history, Record(b"k", b"1"))
    history.log.roll()
    history.clock.advance(9_000)
    write(history, Record(b"k", b"2"))
    history.log.roll()
    history.clock.advance(1_001)
    write(history, Record(b"k", b"3"))
    history.log.flush()
    now_ms = history.clock.time_ms()
    found = cleaning.dirt(history.log, cleaned_up_to=-1, last_stable_offset=3, now_ms=now_ms)
    assert (found.first_uncleanable_offset, found.overdue, found.ratio) == (1, False, 1.0)
    assert cleaning.dirt(history.log, cleaned_up_to=-1, last_stable_offset=0, now_ms=now_ms).cleanable_bytes == 0
    history.log.config.max_compaction_lag_ms = 10_000
    assert cleaning.dirt(history.log, cleaned_up_to=-1, last_stable_offset=3, now_ms=now_ms).overdue


def test_a_map_that_is_full_leaves_the_rest_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "CLEANER_MIN_KEYS", 3)
    history = quiet()
    for round_number in range(2):
        for key in range(5):
            write(history, Record(b"%d" % key, b"%d" % round_number))
        history.log.roll()
    write(history, Record(b"active", b"x"))
    history.log.flush()
    found = cleaning.dirt(history.log, cleaned_up_to=-1, last_stable_offset=11, now_ms=history.clock.time_ms())
    job = cleaning.plan(history.log, found, now_ms=history.clock.time_ms(), memory_bytes=0)
    assert job is not None
    done = -1
    for _ in range(6):
        steps = list(cleaning.clean(history.fs, job))
        for step in steps:
            if isinstance(step, int):
                done = step
            else:
                cleaning.swap(history.log, step, history.clock.time_ms())
        found = cleaning.dirt(history.log, cleaned_up_to=done, last_stable_offset=11, now_ms=history.clock.time_ms())
        again = cleaning.plan(history.log, found, now_ms=history.clock.time_ms(), memory_bytes=0)
        if again is None:
            break
        assert again.first_dirty_offset > job.first_dirty_offset, "no progress"
        job = again
    assert done == 10
    assert [record.value for record in stored(history.log).values()] == [b"1"] * 5 + [b"x"]


def three_values_of_one_key() -> History:
    """On disk: two of them in a segment that is done with, the third in the active one."""
    history = quiet()
    write(history, Record(b"k", b"1"))
    write(history, Record(b"k", b"2"))
    history.log.roll()
    write(history, Record(b"k", b"3"))
    history.log.flush()
    return history


def test_a_log_that_was_cut_meanwhile_is_left_alone() -> None:
    history = three_values_of_one_key()
    found = cleaning.dirt(history.log, cleaned_up_to=-1, last_stable_offset=3, now_ms=history.clock.time_ms())
    job = cleaning.plan(history.log, found, now_ms=history.clock.time_ms(), memory_bytes=MEMORY_BYTES)
    assert job is not None
    group = next(cleaning.clean(history.fs, job))
    assert not isinstance(group, int)
    history.log.truncate_to(1)
    assert not cleaning.swap(history.log, group, history.clock.time_ms())
    assert [record.value for record in stored(history.log).values()] == [b"1"]
    assert not [name for name in history.fs.list_dir(DIRECTORY) if "cleaned" in name or "swap" in name]


def test_slices_handed_out_before_the_swap_can_still_be_read() -> None:
    history = three_values_of_one_key()
    read = history.log.read(0, max_bytes=1 << 20, limit_offset=3, at_least_one=True)
    history.clean(-1)
    piece = read.slices[0]
    header = parse_header(piece.file.pread(piece.size_bytes, piece.position))  # type: ignore[attr-defined]
    assert (header.base_offset, header.record_count) == (0, 1)


def prepared(seed: int) -> History:
    history = History.begin(seed)
    for _ in range(40):
        history.step()
    history.log.roll()
    history.step()
    history.log.flush()
    return history


def cut_everywhere(skip_sync: Callable[[str], bool] | None = None) -> int:
    """The power goes before and after each disk operation of a round's swaps; how many points there were."""
    points = 0
    for seed in (3, 4):
        operation = 0
        while True:
            operation += 1
            for keep_nothing in (True, False):
                history = prepared(seed)
                end, producers = history.log.log_end_offset, described_producers(history.log)
                if skip_sync is not None:
                    history.fs.skip_sync = skip_sync
                history.fs.seed += operation
                with powered_until(history.fs, operation) as power:
                    history.clean(-1)
                points += 1
                config = history.log.config
                history.fs = history.fs.crash(keep_nothing=keep_nothing)
                history.log = open_log(history.fs, history.clock, config)
                assert (history.log.log_end_offset, described_producers(history.log)) == (end, producers)
                check(history, 0, tombstones_expired=False)
                history.clean(-1)
                check(history, 0, tombstones_expired=False)
                names = history.fs.list_dir(DIRECTORY)
                assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
            if power.lasted:
                break
    return points


def test_power_cuts_while_segments_are_put_in_place() -> None:
    points = cut_everywhere()
    print(f"{points} points")
    assert points > 100


def test_a_planted_skipped_sync_is_found() -> None:
    with pytest.raises((AssertionError, CorruptData)):
        cut_everywhere(lambda path: path.endswith(".log.cleaned"))
