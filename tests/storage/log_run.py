"""One log under random operations, next to the plain list of `model.py`; what a broker may do to a log, and what may
befall it: restarts, kills and power cuts in the middle of anything, disks that fail or are full.

A Run does one operation after the other, each with a seed of its own, and compares after each. An AssertionError, or
any other exception, is a finding.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kmirror.clock import ManualClock
from kmirror.errors import DiskFailure, DiskFull
from kmirror.protocol.records import mirror_pid_reset
from kmirror.storage import cleaning
from kmirror.storage.flush import FlushTicket
from kmirror.storage.log import AppendOrigin, AppendResult, Log, LogConfig, LogMode
from kmirror.storage.memory import Kind, MemoryFileSystem
from kmirror.storage.producer_state import ProducerEntry
from tests.power_cut import powered_until
from tests.storage.making import DIRECTORY, NOW_MS, batch
from tests.storage.model import (
    RESET,
    Batch,
    Derived,
    Left,
    ModelLog,
    Producer,
    Round,
    check_round,
    compacted,
    derive,
    shown,
    split,
)
from tests.storage.random_batches import data_batch, marker, of_source, stamped

Operation = tuple[str, int]
WEIGHTS = {
    "produce": 20,
    "produce_idempotent": 14,
    "marker": 8,
    "reset": 1,
    "replicate": 20,
    "read": 16,
    "read_committed": 3,
    "lookup": 4,
    "epoch_end": 3,
    "flush": 10,
    "begin_flush": 4,
    "finish_flush": 6,
    "roll": 3,
    "compact": 6,
    "cut": 4,
    "cut_all": 1,
    "advance_start": 2,
    "retention": 4,
    "expire": 1,
    "wait": 2,
    "clean_restart": 3,
    "kill": 2,
    "power_cut": 4,
    "killed_amid": 5,
    "power_cut_amid": 5,
    "full_disk_amid": 5,
    "broken_disk_amid": 3,
}
CHANGES = (
    "produce",
    "produce_idempotent",
    "marker",
    "replicate",
    "flush",
    "roll",
    "compact",
    "cut",
    "cut_all",
    "retention",
)
"""What a fault may fall in the middle of."""
EVERYTHING = 2**62


@dataclass
class Underway:
    """What an operation may have done by half when a fault ends it."""

    tail: list[Batch] = field(default_factory=list)
    """Batches that may have been appended, a prefix of them."""
    lowest: int | None = None
    """The log may have been cut down to here."""
    anew: int | None = None
    """The log may have been emptied and begin here."""
    start: int = 0
    """The log start may have been raised to here."""
    cleaned: tuple[int, int, list[Left]] | None = None
    """Base and next offset of segments that may have been replaced by what compaction leaves of them."""


def consumed(log: Log, found: list[Batch], start: int, end: int) -> list[tuple[object, ...]]:
    """What a consumer at read_committed makes of batches that were fetched from [start, end)."""
    aborted = sorted(log.aborted_transactions(start, end), key=lambda entry: entry.first_offset)
    active: set[int] = set()
    seen = []
    for one in found:
        while aborted and aborted[0].first_offset <= one.last:
            active.add(aborted.pop(0).producer_id)
        if one.kind == 0:
            active.discard(one.header.producer_id)
        if one.is_data and not (one.header.is_transactional and one.header.producer_id in active):
            seen += [shown(record) for record in one.records]
    return seen


class Run:
    """One log, one model, one memory file system."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.clock = ManualClock(NOW_MS)
        self.fs = MemoryFileSystem(
            seed, page_bytes=chance.choice([512, 4096]), clock=self.clock, open_files_limit=seed % 3 + 1
        )
        self.config = LogConfig(
            segment_bytes=chance.choice([900, 3000, 100_000]),
            index_interval_bytes=chance.choice([1, 300, 4096]),
            segment_index_bytes=chance.choice([64, 1 << 20]),
            retention_ms=-1,
            file_delete_delay_ms=100,
            delete_retention_ms=chance.choice([0, 300, 100_000]),
        )
        self.log = Log.open(self.fs, DIRECTORY, config=self.config, clock=self.clock, clean=False)
        self.model = ModelLog()
        self.derived = Derived()
        self.underway = Underway()
        self.recovery_point = 0
        self.log_start_checkpoint = 0
        self.cleaned_up_to = -1
        self.ticket: FlushTicket | None = None
        self.pids_seen = -1
        self.seen_ms: dict[int, int] = {}

    def step(self, operation: Operation) -> None:
        name, seed = operation
        getattr(self, name)(random.Random(seed))
        self.check()

    @property
    def now_ms(self) -> int:
        return self.clock.time_ms()

    @property
    def stable(self) -> int:
        """The last stable offset, were everything on disk."""
        return max(self.model.start, min([self.model.end, *self.derived.open.values()]))

    def stable_on_disk(self) -> int:
        """The broker's: a transaction counts as open until its marker is on disk."""
        flushed = self.log.flushed_offset
        decided = derive(one for one in self.model.history if one.last < flushed)
        return max(self.model.start, min([flushed, *decided.open.values()]))

    # --- appends ---

    def append(self, expected: bytes, call: Callable[[], AppendResult], *, whole: bool = True) -> None:
        """`call` must append exactly `expected`; without space nothing of it, or whole batches unless `whole`."""
        end, tail = self.model.end, split(expected)
        self.underway.tail = tail
        try:
            result = call()
        except DiskFull:
            taken = [one for one in tail if one.last < self.log.log_end_offset]
            assert not (whole and taken)
            self.take(taken, end)
            raise
        assert (result.base_offset, result.last_offset) == (tail[0].base, tail[-1].last)
        self.take(tail, end)

    def writing(self, origin: AppendOrigin, data: bytes, epoch: int) -> Callable[[], AppendResult]:
        log = self.log
        log.mode = LogMode.READ_ONLY if origin is AppendOrigin.REPLICATION else LogMode.WRITABLE
        return lambda: log.append(data, origin=origin, leader_epoch=epoch, now_ms=self.now_ms)

    def take(self, taken: list[Batch], end: int) -> None:
        """The log has these at its end now: read them back."""
        found = [bytes(view) for _, view in self.log.batches(end, EVERYTHING)]
        assert found == [one.data for one in taken]
        self.underway.tail = []
        if taken:
            self.model.append(taken)
            self.pids_seen = max(self.pids_seen, *(one.header.producer_id for one in taken))
            self.seen_now(one.header.producer_id for one in taken if one.is_data or one.kind in (0, 1))

    def seen_now(self, pids: Iterable[int]) -> None:
        self.seen_ms |= dict.fromkeys(pids, self.now_ms)

    @property
    def newest_epoch(self) -> int:
        return max(0, self.model.epoch, self.log.epochs.latest if self.model.blurred else -1)

    def next_epoch(self, chance: random.Random) -> int:
        return self.newest_epoch + (chance.random() < 0.1)

    def produce(self, chance: random.Random) -> None:
        epoch = self.next_epoch(chance)
        data = data_batch(chance, chance.randint(1, 4), self.now_ms)
        self.append(stamped(data, self.model.end, epoch), self.writing(AppendOrigin.CLIENT, data, epoch))

    def produce_idempotent(self, chance: random.Random) -> None:
        pid = chance.randint(0, 3)
        known = self.derived.producers.get(pid, Producer())
        if self.model.blurred or pid in self.model.uncertain:
            known = known_of(self.log.producers.entries.get(pid))
        if known.ranges and chance.random() < 0.2:
            first, last, first_offset, last_offset = known.ranges[-1]
            again = batch(last - first + 1, pid=pid, seq=first, producer_epoch=known.epoch, txn=known.txn_first >= 0)
            result = self.writing(AppendOrigin.CLIENT, again, 0)()
            assert result.duplicate and (result.base_offset, result.last_offset) == (first_offset, last_offset)
            return
        bump = known.txn_first < 0 and chance.random() < 0.1
        epoch, count = self.next_epoch(chance), chance.randint(1, 3)
        data = data_batch(
            chance,
            count,
            self.now_ms,
            pid=pid,
            producer_epoch=max(0, known.epoch) + bump,
            seq=known.ranges[-1][1] + 1 if known.ranges and not bump else 0,
            txn=known.txn_first >= 0 or chance.random() < 0.5,
        )
        self.append(stamped(data, self.model.end, epoch), self.writing(AppendOrigin.CLIENT, data, epoch))

    def marker(self, chance: random.Random) -> None:
        ongoing = self.log.producers.ongoing()
        if not ongoing:
            return
        one = chance.choice(ongoing)
        data = marker(chance, one.producer_id, one.producer_epoch, max(0, one.coordinator_epoch), self.now_ms)
        epoch = self.next_epoch(chance)
        self.append(stamped(data, self.model.end, epoch), self.writing(AppendOrigin.COORDINATOR, data, epoch))

    def reset(self, chance: random.Random) -> None:
        data, epoch = mirror_pid_reset(timestamp_ms=self.now_ms), self.next_epoch(chance)
        self.append(stamped(data, self.model.end, epoch), self.writing(AppendOrigin.COORDINATOR, data, epoch))

    def replicate(self, chance: random.Random) -> None:
        base = self.model.end
        epochs = {pid: one.epoch for pid, one in derive(self.model.history).producers.items()}
        data = of_source(chance, base, self.newest_epoch, self.now_ms, epochs)
        if self.log.size_bytes == 0 and not self.model.history and base > 5 and data[16] == 2 and chance.random() < 0.5:
            first = split(data)[0]
            if first.base == base and first.header.last_offset_delta > 0:  # the log begins inside this batch
                data = stamped(
                    data[: len(first.data)], base - first.header.last_offset_delta, first.header.leader_epoch
                )
        self.append(data, self.writing(AppendOrigin.REPLICATION, data, -1), whole=False)

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
        """Seldom below what compaction relied on: see `ModelLog.blurred`."""
        model = self.model
        low = model.start if chance.random() < 0.05 else max(model.start, model.decided)
        if low >= model.end:
            return
        offset = max(low, model.end - chance.randint(1, chance.choice([1, 5, 50, 5000])))
        before = [one.last for one in model.kept if one.last < offset]
        generation = self.log.generation
        self.underway.lowest = max(model.start, before[-1] + 1) if before else model.start
        self.underway.anew = None if before and before[-1] >= model.start else model.start
        try:
            end = self.log.truncate_to(offset)
        except DiskFull:
            end = self.log.log_end_offset
            if end < model.end:
                self.has_been_cut(end)
            raise
        assert end == self.log.log_end_offset <= offset and self.log.generation > generation
        emptied = self.has_been_cut(end)
        # Batches that lie below the log start altogether go too when nothing is left above, unless they reach up to it.
        assert end == model.start if emptied else not before or before[-1] < end

    def has_been_cut(self, end: int) -> bool:
        """True when nothing is left of the log."""
        emptied = self.log.size_bytes == 0 and len(self.log.segments) == 1
        self.model.cut(end, emptied=emptied)
        self.cleaned_up_to = min(self.cleaned_up_to, end)
        self.underway = Underway()
        self.state_was_rebuilt()
        return emptied

    def cut_all(self, chance: random.Random) -> None:
        offset = self.model.end + chance.choice([0, 10, 10_000])
        self.underway.lowest, self.underway.anew = self.model.start, offset
        self.log.truncate_fully_and_start_at(offset)
        self.begin_anew(offset)

    def begin_anew(self, offset: int) -> None:
        self.model = ModelLog.anew(offset)
        self.log_start_checkpoint = offset
        self.cleaned_up_to = min(self.cleaned_up_to, offset)
        self.underway = Underway()

    def advance_start(self, chance: random.Random) -> None:
        if self.model.durable > self.model.start:
            offset = chance.randint(self.model.start, self.model.durable)
            self.log.advance_log_start(offset)
            self.raise_start(offset)
            self.log_start_checkpoint = self.model.start

    def raise_start(self, offset: int) -> None:
        self.model.start = max(self.model.start, offset)
        self.model.highest_start = max(self.model.highest_start, self.model.start)

    def retention(self, chance: random.Random) -> None:
        """By the log start alone, by time or by size."""
        how = chance.choice(["start", "start", "time", "size"])
        self.config.retention_ms = chance.choice([100, 1000]) if how == "time" else -1
        self.config.retention_bytes = chance.choice([500, 5000]) if how == "size" else -1
        first, count = self.expected_first()
        self.underway.start = max(self.model.start, first)
        try:
            assert self.log.apply_retention(self.now_ms, self.model.durable) == count
        finally:
            self.config.retention_ms = self.config.retention_bytes = -1
        assert self.log.segments[0].base_offset == first
        self.raise_start(first)
        self.front_is_gone(first)
        self.clock.advance(200)
        self.log.delete_doomed(self.now_ms)
        self.underway = Underway()

    def expected_first(self) -> tuple[int, int]:
        """The base offset that the log begins with after retention, and how many segments go."""
        segments = self.log.segments
        ends = [segment.base_offset for segment in segments[1:]] + [self.model.end]
        excess = sum(segment.size_bytes for segment in segments) - self.config.retention_bytes
        for count, (segment, end) in enumerate(zip(segments, ends, strict=True)):
            inside = [one for one in self.model.kept if segment.base_offset <= one.base < end]
            newest = max((one.header.max_timestamp for one in inside), default=-1)
            if newest < 0:
                newest = self.fs.modified_ms(segment.path())
            last = segment is segments[-1]
            old = 0 <= self.config.retention_ms < self.now_ms - newest
            much = self.config.retention_bytes >= 0 and excess >= segment.size_bytes
            below = end <= self.model.start and not last
            if end > self.model.durable or (last and not segment.size_bytes) or not (old or much or below):
                return segment.base_offset, count
            excess -= segment.size_bytes
        return self.model.end, len(segments)

    def front_is_gone(self, first: int) -> None:
        """The first segment begins at `first`. After a power cut that may be lower than before."""
        model = self.model
        everything = model.gone + model.kept
        model.gone = [one for one in everything if one.last < first]
        model.kept = [one for one in everything if one.last >= first]
        assert all(one.last < max(model.start, self.underway.start) for one in model.gone)

    def roll(self, chance: random.Random) -> None:
        self.log.roll()

    # --- compaction ---

    def compact(self, chance: random.Random) -> None:
        """A round as the broker does it; now and then the log is changed between the work and putting it in place."""
        log, model = self.log, self.model
        if model.blurred:
            return
        if chance.random() < 0.7:
            self.flush(chance)
            log.roll()
        stable = self.stable_on_disk()
        found = cleaning.dirt(log, cleaned_up_to=self.cleaned_up_to, last_stable_offset=stable, now_ms=self.now_ms)
        job = cleaning.plan(log, found, now_ms=self.now_ms, memory_bytes=1 << 20)
        work = self.expected_round(stable)
        assert (job is None) == (work is None)
        if job is None or work is None:
            return
        job = cleaning.CleanJob.from_plain(job.to_plain())
        job.max_keys = work.max_keys = chance.choice([2, 4, 1000, 1000])
        assert [(one.base_offset, one.next_offset) for one in job.sources] == work.segments
        generation, (left, end) = log.generation, compacted(model, work, self.derived_for_log())
        model.decided = max(model.decided, log.flushed_offset)
        steps: Iterable[cleaning.CleanedGroup | int] = cleaning.clean(self.fs, job)
        try:
            if chance.random() < 0.2:
                steps = list(steps)
                getattr(self, chance.choice(["cut", "retention", "replicate", "advance_start"]))(chance)
            for step in steps:
                if isinstance(step, int):
                    assert step == end
                    self.cleaned_up_to = min(step, self.model.end)
                elif not self.swap(step, left, generation):
                    break
        except DiskFull:
            self.underway = Underway()
            raise
        finally:
            if not self.fs.dead and self.fs.observer is None and log.failed is None:
                cleaning.drop_all(log)

    def derived_for_log(self) -> Derived:
        """With what the log says of the producers that nothing else can be said of."""
        derived = self.model.derive()
        for pid in self.model.uncertain:
            derived.producers.pop(pid, None)
            if pid in self.log.producers.entries:
                derived.producers[pid] = known_of(self.log.producers.entries[pid])
        return derived

    def expected_round(self, stable: int) -> Round | None:
        start, end = self.model.start, self.model.end
        dirty_from = self.cleaned_up_to if start <= self.cleaned_up_to <= end else start
        bases = [segment.base_offset for segment in self.log.segments]
        sealed = [one for one in itertools.pairwise(bases) if one[1] <= max(stable, dirty_from)]
        if not sealed or sealed[-1][1] <= dirty_from:
            return None
        return Round(sealed, dirty_from, self.now_ms, self.config.delete_retention_ms, 0)

    def swap(self, group: cleaning.CleanedGroup, left: list[Left], generation: int) -> bool:
        model, first, following = self.model, group.sources[0].base_offset, group.next_offset
        mine = [one for one in left if first <= one.batch.base < following]
        self.underway.cleaned = (first, following, mine)
        swapped = cleaning.swap(self.log, group, self.now_ms)
        if swapped:
            found = [Batch(bytes(view)) for _, view in self.log.batches(first, following)]
            self.has_been_cleaned([one for one in found if first <= one.base < following])
            if self.log.generation != generation:
                model.note_uncertain()
        self.underway = Underway()
        return swapped

    def has_been_cleaned(self, found: list[Batch]) -> None:
        assert self.underway.cleaned is not None
        first, following, left = self.underway.cleaned
        check_round(left, found)
        kept = self.model.kept
        before = [one for one in kept if one.base < first]
        self.model.kept = before + found + [one for one in kept if one.base >= following]
        self.model.cleaned = max(self.model.cleaned, following)

    # --- looking ---

    def read(self, chance: random.Random) -> None:
        model = self.model
        places = [model.start, model.end, *(one.base for one in model.kept), *(one.last for one in model.kept)]
        offset = min(max(chance.choice(places) + chance.choice([0, 0, 1, -1]), model.start), model.end)
        limit = chance.choice([model.end, self.stable, chance.choice(places)])
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
        found = split(data)
        if expected and (one or len(expected[0].data) <= max_bytes):
            assert data
        if len(everything) <= max_bytes and len(result.slices) < 8:
            assert data == everything
        following = [each for each in expected if each.last >= result.next_offset]
        assert everything[len(data) :] == b"".join(each.data for each in following)
        if limit <= self.stable and found and not model.blurred:
            wanted = [each for each in found if each.is_data and each.base not in self.derived.aborted_data]
            seen = consumed(self.log, found, offset, found[-1].last + 1)
            assert seen == [shown(record) for each in wanted for record in each.records]

    def read_committed(self, chance: random.Random) -> None:
        """All of it: nothing of aborted transactions, everything else."""
        if not self.model.blurred:
            start = self.model.start
            found = [Batch(bytes(view)) for _, view in self.log.batches(start, self.stable)]
            found = [one for one in found if one.last < self.stable]
            seen = consumed(self.log, found, start, self.stable)
            assert seen == [shown(record) for record in self.model.visible(self.stable)]

    def lookup(self, chance: random.Random) -> None:
        timestamp = self.now_ms + chance.randint(-600, 60)
        found = self.log.offset_for_timestamp(timestamp, self.model.end)
        expected = self.model.first_at(timestamp)
        assert (None if found is None else (found.offset, found.timestamp_ms)) == expected
        newest = self.log.max_timestamp_offset(self.model.end)
        assert (newest is None) == (not self.model.kept)

    def epoch_end(self, chance: random.Random) -> None:
        """OffsetForLeaderEpoch, for epochs that begin behind the log start."""
        known = [epoch for epoch, start in self.derived.epochs if start > self.model.highest_start]
        if known and not self.model.blurred:
            epoch = chance.randint(known[0], known[-1] + 1)
            expected = self.model.end_of_epoch(epoch) if epoch <= known[-1] else (-1, -1)
            assert self.log.epochs.end_offset_for(epoch, self.model.end) == expected

    def expire(self, chance: random.Random) -> None:
        idle_ms = chance.choice([300, 1000])
        before, now_ms = set(self.log.producers.entries), self.now_ms
        expected = {
            pid
            for pid in before
            if self.log.producers.entries[pid].txn_first_offset < 0 and now_ms - self.seen_ms[pid] >= idle_ms
        }
        assert self.log.producers.remove_expired(now_ms, idle_ms) == len(expected)
        assert before - set(self.log.producers.entries) == expected
        self.model.forgotten |= dict.fromkeys(expected, self.model.end)

    def wait(self, chance: random.Random) -> None:
        self.clock.advance(chance.choice([1, 100, 500]))

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
        self.model.durable = self.recovery_point = self.model.end
        self.log_start_checkpoint = self.model.start
        self.open(clean=True)
        assert self.log.log_end_offset == self.model.end
        assert not self.log.report.notes
        self.state_was_rebuilt()

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
        model, log, underway = self.model, self.log, self.underway
        end = log.log_end_offset
        emptied = log.size_bytes == 0 and log.log_start_offset == end and (model.kept or end != model.end)
        if emptied and underway.anew is not None:
            assert end in (underway.anew, self.log_start_checkpoint, model.start)
            self.begin_anew(end)
            self.model.blurred = bool(log.producers.entries or log.epochs.entries)  # of files that were not gone yet
            self.state_was_rebuilt()
            return
        lowest = model.durable if underway.lowest is None else min(model.durable, underway.lowest)
        if model.durable == model.start and model.kept and model.kept[0].base < model.start:
            lowest = min(lowest, model.kept[0].base)  # the log began inside a batch, which is not there any more
        highest = underway.tail[-1].last + 1 if underway.tail else model.end
        assert lowest <= end <= highest, (lowest, end, highest)
        self.front_is_gone(log.segments[0].base_offset)
        model.kept += underway.tail
        model.history += underway.tail
        assert self.log_start_checkpoint <= log.log_start_offset <= max(model.start, underway.start)
        model.start = log.log_start_offset
        model.highest_start = max(model.highest_start, model.start, underway.start)
        found = [Batch(bytes(view)) for _, view in log.batches(0, EVERYTHING)]
        if underway.cleaned is not None:
            first, following, _ = underway.cleaned
            inside = [one for one in found if first <= one.base < following]
            if [one.data for one in inside] != [one.data for one in model.kept if first <= one.base < following]:
                self.has_been_cleaned(inside)
        assert [one.data for one in found] == [one.data for one in model.kept[: len(found)]]
        model.end = max(model.end, end)
        self.pids_seen = max(self.pids_seen, *(one.header.producer_id for one in underway.tail), -1)
        model.cut(end, emptied=False)
        if underway.anew is not None:  # the snapshots may be gone already, and with them what is older than the batches
            model.blurred = True
        assert [one.data for one in found] == [one.data for one in model.kept]
        self.cleaned_up_to = min(self.cleaned_up_to, end)
        assert log.flushed_offset == end
        self.underway = Underway()
        self.state_was_rebuilt()

    def state_was_rebuilt(self) -> None:
        """From a snapshot and the batches behind it: producers that had expired may be known again."""
        model, entries = self.model, self.log.producers.entries
        self.seen_now(entries)
        model.forgotten = {pid: min(end, model.end) for pid, end in model.forgotten.items()}
        for pid in [pid for pid in model.forgotten if pid in entries]:
            without = derive(model.history, model.forgotten).producers.get(pid)
            found = known_of(entries[pid])
            same = without is not None and found.coordinator_epoch == without.coordinator_epoch
            if without is None or not same or not agrees(found, without, model.cleaned):
                del model.forgotten[pid]

    # --- faults in the middle of something ---

    def amid(self, chance: random.Random) -> Callable[[], None]:
        name = chance.choice(CHANGES)
        return lambda: getattr(self, name)(chance)

    def killed_amid(self, chance: random.Random) -> None:
        change = self.amid(chance)
        with powered_until(self.fs, chance.choice([1, 2, 3, 5, 8, 13, 21, 34])):
            change()
        self.kill(chance)

    def power_cut_amid(self, chance: random.Random) -> None:
        change = self.amid(chance)
        with powered_until(self.fs, chance.choice([1, 2, 3, 5, 8, 13, 21, 34])):
            change()
        self.power_cut(chance)

    def full_disk_amid(self, chance: random.Random) -> None:
        """Refused and nothing half done; as soon as there is space everything works again."""
        change = self.amid(chance)
        self.fs.capacity_bytes = self.fs.used_bytes() + chance.choice([0, 10, 100, 300, 1000])
        try:
            change()
        except DiskFull:
            pass
        finally:
            self.fs.capacity_bytes = None
        self.underway = Underway()

    def broken_disk_amid(self, chance: random.Random) -> None:
        """The process ends, as after every I/O error; the next start, perhaps after a power cut, recovers."""
        change = self.amid(chance)
        kinds: list[Kind] = ["open", "read", "write", "truncate", "sync", "rename", "remove", "sync_dir"]
        self.fs.fail(chance.choice(kinds), error=errno.EIO, times=chance.choice([1, 2]))
        try:
            change()
        except DiskFailure:
            if self.log.failed is not None:
                try:
                    self.writing(AppendOrigin.CLIENT, batch(2), 0)()
                except DiskFailure:
                    pass
                else:
                    raise AssertionError("a failed log took a batch")
        self.fs.heal()
        (self.power_cut if chance.random() < 0.5 else self.kill)(chance)

    # --- comparing ---

    def check(self) -> None:
        log, model = self.log, self.model
        assert (log.log_start_offset, log.log_end_offset) == (model.start, model.end)
        assert log.flushed_offset <= log.log_end_offset
        derived = self.derived = model.derive()
        assert derived.max_pid <= log.max_producer_id <= self.pids_seen
        first = log.segments[0].base_offset
        resets = [offset for offset in derived.resets if offset >= first]
        assert [offset for offset in log.pid_reset_offsets if offset >= first] == resets
        assert all(one.kind == RESET for one in model.kept if one.base in resets)
        for one in model.kept:
            if one.base >= model.start and one.header.leader_epoch >= 0:
                assert log.epochs.epoch_at(one.base) == one.header.leader_epoch
        if not model.blurred:
            self.check_producers(derived)
            self.check_aborted(derived, first)
            self.check_epochs(derived.epochs)

    def check_epochs(self, expected: list[tuple[int, int]]) -> None:
        """Behind the log start. One that began before it may seem to begin with its first batch behind it."""
        floor = self.model.highest_start
        behind = [one for one in expected if one[1] > floor]
        before = [epoch for epoch, start in expected if start <= floor]
        found = [one for one in self.log.epochs.entries if one[1] > floor]
        if len(found) > len(behind) and before and found[0][0] == before[-1]:
            del found[0]
        assert found == behind

    def check_producers(self, derived: Derived) -> None:
        producers = self.log.producers
        ongoing = {txn.producer_id: txn.first_offset for txn in producers.ongoing()}
        assert ongoing.items() <= derived.open.items()
        for pid in derived.open.keys() - ongoing:  # after a restart, one of which nothing is left
            own = [one for one in self.model.kept if one.header.producer_id == pid and one.is_data]
            assert not own or own[-1].last < derived.open[pid]
        known, model = derived.producers, self.model
        uncertain = {pid for pid, base in model.uncertain.items() if derived.newest.get(pid) in (base, None)}
        assert set(producers.entries) - uncertain == set(known) - uncertain
        for pid in set(known) - uncertain:
            expected, found = known[pid], known_of(producers.entries[pid])
            assert found.ranges[-1:] == expected.ranges[-1:]
            if model.faded.get(pid, -1) != derived.markers.get(pid):
                assert found.coordinator_epoch == expected.coordinator_epoch
            if pid not in model.uncertain:
                assert agrees(found, expected, model.cleaned), (pid, expected, found)

    def hidden(self, pid: int, start: int, end: int) -> set[int]:
        """Base offsets of what readers of committed records leave out when that transaction is called aborted."""
        own = (one for one in self.model.kept if one.is_data and one.header.producer_id == pid)
        return {one.base for one in own if start <= one.base < end and one.header.is_transactional}

    def check_aborted(self, derived: Derived, first: int) -> None:
        """Exact where compaction has not been; of the others those of which something is left."""
        cleaned = self.model.cleaned
        found = {
            (one.producer_id, one.last_offset): one.first_offset for one in self.log.aborted_transactions(0, EVERYTHING)
        }
        expected = {(pid, end): start for pid, start, end in derived.aborted if end >= first}
        for pid, end in found.keys() - expected.keys():
            # Its marker was compacted; replayed from a snapshot it lasts until the next abort, and may hide nothing.
            start = found[pid, end]
            assert start < cleaned
            assert not self.hidden(pid, start, end) - derived.aborted_data
        for (pid, end), start in expected.items():
            if start >= cleaned:
                assert found[pid, end] == start
                continue
            left = [
                one.base
                for one in self.model.kept
                if start <= one.base < end and one.header.producer_id == pid and one.base in derived.aborted_data
            ]
            assert not left or found[pid, end] <= left[0]


def known_of(entry: ProducerEntry | None) -> Producer:
    if entry is None:
        return Producer()
    ranges = [(one[0], one[1], one[2], one[3]) for one in entry.batches]
    return Producer(entry.producer_epoch, entry.txn_first_offset, entry.coordinator_epoch, ranges)


def agrees(found: Producer, expected: Producer, cleaned: int) -> bool:
    """The newest batch is known, up to four before it too; a snapshot keeps none of these, compaction not all."""
    if found.epoch != expected.epoch or found.ranges[-1:] != expected.ranges[-1:] or len(found.ranges) > 5:
        return False
    oldest = found.ranges[0][2] if found.ranges else 0
    return found.ranges == [
        one for one in expected.ranges if one[2] >= oldest and (one in found.ranges or one[2] >= cleaned)
    ]
