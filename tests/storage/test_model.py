"""Random operations on a log and on the plain list of `model.py`, with restarts, power cuts and failing disks.

An operation is a name and a seed of its own, so a failing run can be shrunk: operations are left out one by one as long
as it still fails, and what remains is printed. `KMIRROR_STORAGE_RUNS` asks for more runs than the hermetic default.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable

import pytest

from kmirror.clock import ManualClock
from kmirror.errors import DiskFailure, DiskFull
from kmirror.protocol.records import end_txn_marker, mirror_pid_reset
from kmirror.storage.flush import FlushTicket
from kmirror.storage.log import Log, LogConfig, LogMode
from kmirror.storage.memory import MemoryFileSystem
from tests.storage.making import DIRECTORY, NOW_MS, batch, coordinate, produce, replicate
from tests.storage.model import Batch, ModelLog, Producer

Operation = tuple[str, int]
RUNS = int(os.environ.get("KMIRROR_STORAGE_RUNS", "24"))
OPERATIONS_PER_RUN = 250
WEIGHTS = {
    "produce": 20,
    "produce_idempotent": 14,
    "marker": 6,
    "reset": 1,
    "replicate": 20,
    "read": 16,
    "flush": 10,
    "begin_flush": 4,
    "finish_flush": 6,
    "cut": 4,
    "cut_all": 1,
    "advance_start": 2,
    "retention": 2,
    "roll": 2,
    "lookup": 4,
    "clean_restart": 3,
    "kill": 2,
    "power_cut": 4,
    "disk_full": 3,
    "broken_disk": 1,
}


class Run:
    """One log, one model, one memory file system."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.clock = ManualClock(NOW_MS)
        self.fs = MemoryFileSystem(
            seed, page_bytes=chance.choice([512, 4096]), clock=self.clock, open_files_limit=seed % 3 + 1
        )
        self.config = LogConfig(
            segment_bytes=chance.choice([600, 3000, 100_000]),
            index_interval_bytes=chance.choice([1, 300, 4096]),
            segment_index_bytes=chance.choice([64, 1 << 20]),
            retention_ms=-1,
            file_delete_delay_ms=100,
        )
        self.log = Log.open(self.fs, DIRECTORY, config=self.config, clock=self.clock, clean=False)
        self.model = ModelLog()
        self.recovery_point = 0
        self.log_start_checkpoint = 0
        self.ticket: FlushTicket | None = None
        self.pids_seen = -1

    def step(self, operation: Operation) -> None:
        name, seed = operation
        getattr(self, name)(random.Random(seed))
        self.check()

    # --- appends ---

    def take(self, data: bytes) -> None:
        """The log has appended `data`, with offsets as the log gave them: read it back, it must be there."""
        found = [Batch(bytes(view)) for _, view in self.log.batches(self.model.end, 2**62)]
        assert b"".join(one.data[61:] for one in found) == b"".join(one.data[61:] for one in split(data))
        self.model.kept += found
        self.model.end = self.log.log_end_offset
        assert found[-1].last + 1 == self.model.end
        self.pids_seen = max([self.pids_seen, *(one.header.producer_id for one in found)])

    def next_epoch(self, chance: random.Random) -> int:
        return max(0, self.model.epoch) + (chance.random() < 0.1)

    def produce(self, chance: random.Random) -> None:
        self.log.mode = LogMode.WRITABLE
        data = batch(chance.randint(1, 4), size=chance.randint(0, 120), codec=chance.choice([0, 0, 1]))
        result = produce(self.log, data, epoch=self.next_epoch(chance))
        assert result.base_offset == self.model.end
        self.take(data)

    def produce_idempotent(self, chance: random.Random) -> None:
        self.log.mode = LogMode.WRITABLE
        pid = chance.randint(0, 3)
        known = self.model.derive().producers.get(pid, Producer())
        count = chance.randint(1, 3)
        if known.ranges and chance.random() < 0.2:
            first, last, first_offset, last_offset = known.ranges[-1]
            again = batch(last - first + 1, pid=pid, seq=first, producer_epoch=known.epoch, txn=known.txn_first >= 0)
            result = produce(self.log, again)
            assert result.duplicate and (result.base_offset, result.last_offset) == (first_offset, last_offset)
            return
        seq = known.ranges[-1][1] + 1 if known.ranges else 0
        data = batch(
            count,
            pid=pid,
            producer_epoch=max(0, known.epoch),
            seq=seq,
            txn=known.txn_first >= 0 or chance.random() < 0.5,
        )
        produce(self.log, data, epoch=self.next_epoch(chance))
        self.take(data)

    def marker(self, chance: random.Random) -> None:
        self.log.mode = LogMode.WRITABLE
        ongoing = self.log.producers.ongoing()
        if not ongoing:
            return
        one = chance.choice(ongoing)
        data = end_txn_marker(
            commit=chance.random() < 0.4,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            coordinator_epoch=max(0, one.coordinator_epoch),
            timestamp_ms=NOW_MS,
        )
        coordinate(self.log, data, epoch=self.next_epoch(chance))
        self.take(data)

    def reset(self, chance: random.Random) -> None:
        self.log.mode = LogMode.WRITABLE
        data = mirror_pid_reset(timestamp_ms=NOW_MS)
        coordinate(self.log, data, epoch=self.next_epoch(chance))
        self.take(data)

    def replicate(self, chance: random.Random) -> None:
        data = self.replicated(chance)
        result = replicate(self.log, data)
        assert result.last_offset + 1 == self.log.log_end_offset
        self.take(data)
        assert b"".join(one.data for one in self.model.kept[-result.batch_count :]) == data

    def replicated(self, chance: random.Random) -> bytes:
        base, epoch = self.model.end, max(0, self.model.epoch)
        parts = []
        for _ in range(chance.randint(1, 6)):
            if chance.random() < 0.2:
                base += chance.choice([1, 7, 3000]) if chance.random() < 0.9 else 2**31 + 5
            if chance.random() < 0.1:
                epoch += chance.randint(1, 3)
            pid = chance.choice([-1, -1, 10, 11, 12])
            if pid >= 0 and chance.random() < 0.25:
                marker = end_txn_marker(
                    commit=chance.random() < 0.5,
                    producer_id=pid,
                    producer_epoch=chance.randint(0, 2),
                    coordinator_epoch=1,
                    timestamp_ms=NOW_MS,
                )
                data = base.to_bytes(8, "big") + marker[8:12] + epoch.to_bytes(4, "big") + marker[16:]
            elif chance.random() < 0.03:
                plain = mirror_pid_reset(timestamp_ms=NOW_MS)
                data = base.to_bytes(8, "big") + plain[8:12] + epoch.to_bytes(4, "big") + plain[16:]
            else:
                count = chance.randint(1, 3)
                data = batch(
                    count,
                    base=base,
                    epoch=epoch,
                    size=chance.randint(0, 100),
                    timestamp_ms=NOW_MS + chance.randint(-50, 50),
                    pid=pid,
                    producer_epoch=chance.randint(0, 2),
                    seq=chance.randint(0, 9) if pid >= 0 else -1,
                    txn=pid >= 0 and chance.random() < 0.6,
                    last_delta=count - 1 + (chance.randint(1, 5) if chance.random() < 0.1 else 0),
                )
            parts.append(data)
            base = Batch(data).last + 1
        return b"".join(parts)

    # --- flushing ---

    def flush(self, chance: random.Random) -> None:
        self.log.flush()
        self.model.durable = self.model.end
        assert self.log.flushed_offset == self.model.end
        if chance.random() < 0.5:
            self.recovery_point = self.log.flushed_offset

    def begin_flush(self, chance: random.Random) -> None:
        if self.ticket is None:
            self.ticket = self.log.begin_flush()

    def finish_flush(self, chance: random.Random) -> None:
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            ticket.sync()
            self.log.finish_flush(ticket)
            assert self.log.flushed_offset <= self.model.end
            self.model.durable = max(self.model.durable, self.log.flushed_offset)

    # --- cuts ---

    def cut(self, chance: random.Random) -> None:
        if self.model.end == self.model.start:
            return
        reach = chance.choice([1, 5, 50, 5000])
        offset = max(self.model.start, self.model.end - chance.randint(1, reach))
        before = [one for one in self.model.kept if one.last < offset]
        generation = self.log.generation
        end = self.log.truncate_to(offset)
        assert end == self.log.log_end_offset <= offset and self.log.generation > generation
        # Batches that lie below the log start altogether go too when nothing is left above, unless they reach up to it.
        begun_anew = self.log.size_bytes == 0 and len(self.log.segments) == 1
        assert end == self.model.start if begun_anew else all(one.last < end for one in before)
        self.model.kept = [] if begun_anew else before
        self.model.gone = [] if begun_anew else self.model.gone
        self.model.end = self.model.durable = end
        self.recovery_point = min(self.recovery_point, end)

    def cut_all(self, chance: random.Random) -> None:
        offset = self.model.end + chance.choice([0, 10, 10_000])
        self.log.truncate_fully_and_start_at(offset)
        self.model = ModelLog(start=offset, end=offset, durable=offset)
        self.log_start_checkpoint = offset
        self.recovery_point = offset

    def advance_start(self, chance: random.Random) -> None:
        if self.model.durable > self.model.start:
            offset = chance.randint(self.model.start, self.model.durable)
            self.log.advance_log_start(offset)
            self.model.start = max(self.model.start, offset)
            self.log_start_checkpoint = self.model.start

    def retention(self, chance: random.Random) -> None:
        self.log.apply_retention(self.clock.time_ms(), self.model.durable)
        self.clock.advance(200)
        self.log.delete_doomed(self.clock.time_ms())
        first = self.log.segments[0].base_offset
        gone = [one for one in self.model.kept if one.last < first]
        assert all(one.last < self.model.start for one in gone)
        self.model.gone += gone
        self.model.kept = self.model.kept[len(gone) :]

    def roll(self, chance: random.Random) -> None:
        self.log.roll()

    # --- looking ---

    def read(self, chance: random.Random) -> None:
        model = self.model
        places = [model.start, model.end, *(one.base for one in model.kept), *(one.last for one in model.kept)]
        offset = min(max(chance.choice(places) + chance.choice([0, 0, 1, -1]), model.start), model.end)
        limit = chance.choice([model.end, model.end, chance.choice(places)])
        max_bytes = chance.choice([1, 200, 1000, 1 << 30])
        one = chance.random() < 0.7
        result = self.log.read(offset, max_bytes=max_bytes, limit_offset=limit, at_least_one=one)
        data = b"".join(piece.read() for piece in result.slices)
        # A batch that reaches the limit hides what is behind it, so the expectation is a prefix.
        expected = model.expected_read(offset, limit) if offset < limit else []
        everything = b"".join(each.data for each in expected)
        assert everything.startswith(data)
        assert len(data) == result.size_bytes
        assert len(data) <= max_bytes or (one and len(data) == len(expected[0].data))
        whole = {0}
        for each in expected:
            whole.add(max(whole) + len(each.data))
        assert len(data) in whole
        if expected and (one or len(expected[0].data) <= max_bytes):
            assert data
        if len(everything) <= max_bytes and len(result.slices) < 8:
            assert data == everything
        following = [each for each in expected if each.last >= result.next_offset]
        assert everything[len(data) :] == b"".join(each.data for each in following)

    def lookup(self, chance: random.Random) -> None:
        timestamp = NOW_MS + chance.randint(-60, 60)
        found = self.log.offset_for_timestamp(timestamp, self.model.end)
        expected = self.model.first_at(timestamp)
        assert (None if found is None else (found.offset, found.timestamp_ms)) == expected
        newest = self.log.max_timestamp_offset(self.model.end)
        assert (newest is None) == (not self.model.kept)

    # --- ends and beginnings ---

    def open(self, *, clean: bool) -> None:
        self.ticket = None
        self.log = Log.open(
            self.fs,
            DIRECTORY,
            config=self.config,
            clock=self.clock,
            clean=clean,
            recovery_point=self.recovery_point,
            log_start_offset=self.log_start_checkpoint,
        )

    def clean_restart(self, chance: random.Random) -> None:
        self.log.close(clean=True)
        self.model.durable = self.model.end
        self.recovery_point = self.model.end
        self.open(clean=True)
        assert self.log.log_end_offset == self.model.end
        assert not self.log.report.notes

    def kill(self, chance: random.Random) -> None:
        """The process dies, the machine does not: nothing that was written is lost."""
        self.log.close(clean=False)
        self.open(clean=False)
        self.recovered()

    def power_cut(self, chance: random.Random) -> None:
        self.fs = self.fs.crash(keep_nothing=chance.random() < 0.2)
        self.open(clean=False)
        self.recovered()

    def recovered(self) -> None:
        """What is there now must be a prefix of what was there, at least as long as promised."""
        end = self.log.log_end_offset
        assert self.model.durable <= end <= self.model.end, (self.model.durable, end, self.model.end)
        found = [bytes(view) for _, view in self.log.batches(0, 2**62)]
        first = self.log.segments[0].base_offset
        for one in [one for one in self.model.kept if one.last < first]:
            assert one.last < self.model.start
            self.model.kept.remove(one)
            self.model.gone.append(one)
        back = [one for one in self.model.gone if one.base >= first]
        self.model.gone = self.model.gone[: len(self.model.gone) - len(back)]
        self.model.kept = back + self.model.kept
        assert found == [one.data for one in self.model.kept[: len(found)]]
        self.model.kept = self.model.kept[: len(found)]
        self.model.end = self.model.durable = end
        assert self.log.flushed_offset == end

    def disk_full(self, chance: random.Random) -> None:
        before = self.log.log_end_offset
        self.fs.capacity_bytes = self.fs.used_bytes() + chance.choice([0, 10, 300])
        data = self.replicated(chance)
        try:
            replicate(self.log, data)
        except DiskFull:
            kept = self.log.log_end_offset
            if kept > before:  # whole runs before the one that failed
                whole = [one for one in split(data) if one.last < kept]
                self.take(b"".join(one.data for one in whole))
        else:
            self.take(data)
        self.fs.capacity_bytes = None

    def broken_disk(self, chance: random.Random) -> None:
        self.log.mode = LogMode.WRITABLE
        self.fs.fail("write", ".log", error=errno.EIO)
        with pytest.raises(DiskFailure):
            produce(self.log, batch(2), epoch=self.next_epoch(chance))
        with pytest.raises(DiskFailure):
            produce(self.log, batch(2), epoch=self.next_epoch(chance))
        self.fs.heal()
        self.kill(chance)

    def check(self) -> None:
        log, model = self.log, self.model
        assert (log.log_start_offset, log.log_end_offset) == (model.start, model.end)
        assert log.flushed_offset <= log.log_end_offset
        derived = model.derive()
        assert {txn.producer_id: txn.first_offset for txn in log.producers.ongoing()} == {
            pid: one.txn_first for pid, one in derived.producers.items() if one.txn_first >= 0
        }
        assert set(log.producers.entries) == set(derived.producers)
        for pid, expected in derived.producers.items():
            entry = log.producers.entries[pid]
            ranges = [tuple(one[:4]) for one in entry.batches]
            assert (entry.producer_epoch, entry.coordinator_epoch) == (expected.epoch, expected.coordinator_epoch)
            assert ranges == expected.ranges[len(expected.ranges) - len(ranges) :]
            assert bool(ranges) == bool(expected.ranges)
        first = log.segments[0].base_offset
        aborted = [tuple(one[:3]) for one in log.aborted_transactions(0, 2**62)]
        assert aborted == [one for one in derived.aborted if one[2] >= first]
        for one in model.kept:
            if one.base >= model.start:
                assert log.epochs.epoch_at(one.base) == one.header.leader_epoch
        resets = [offset for offset in derived.resets if offset >= first]
        assert [offset for offset in log.pid_reset_offsets if offset >= first] == resets
        assert derived.max_pid <= log.max_producer_id <= self.pids_seen


def split(data: bytes) -> list[Batch]:
    found = []
    while data:
        size = int.from_bytes(data[8:12], "big") + 12
        found.append(Batch(data[:size]))
        data = data[size:]
    return found


def operations(seed: int) -> list[Operation]:
    chance = random.Random(seed)
    names = chance.choices(list(WEIGHTS), weights=list(WEIGHTS.values()), k=OPERATIONS_PER_RUN)
    return [(name, chance.getrandbits(32)) for name in names]


def failure_of(seed: int, plan: list[Operation]) -> tuple[int, BaseException] | None:
    run = Run(seed)
    for index, operation in enumerate(plan):
        try:
            run.step(operation)
        except Exception as error:
            return index, error
    return None


def shrink(seed: int, plan: list[Operation], fails: Callable[[int, list[Operation]], object | None]) -> list[Operation]:
    """Leave out operations, larger pieces first, as long as the rest still fails."""
    size = max(1, len(plan) // 2)
    while size:
        at = 0
        while at < len(plan):
            shorter = plan[:at] + plan[at + size :]
            if fails(seed, shorter) is not None:
                plan = shorter
            else:
                at += size
        size //= 2
    return plan


@pytest.mark.slow
@pytest.mark.parametrize("number", range(RUNS))
def test_log_against_a_list(number: int, seed: int) -> None:
    plan = operations(seed)
    failed = failure_of(seed, plan)
    if failed is not None:
        index, _ = failed
        short = shrink(seed, plan[: index + 1], failure_of)
        again = failure_of(seed, short)
        raise AssertionError(f"seed {seed}, shrunk to {short}") from (again or failed)[1]


def test_shrinking_keeps_what_matters() -> None:
    plan = [(name, number) for number, name in enumerate("abcdefgh")]

    def fails(seed: int, plan: list[Operation]) -> bool | None:
        names = [name for name, _ in plan]
        return True if "c" in names and "g" in names else None

    assert [name for name, _ in shrink(0, plan, fails)] == ["c", "g"]
