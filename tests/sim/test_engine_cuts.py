"""A whole broker at work, with the power cut before and after each disk operation.

One story: produce with acks=all, compacted keys, consume-transform-produce with transactions, a mirror, rolls,
retention, DeleteRecords, compaction (of the internal topics too), topics that come and go, checkpoints, clean restarts.
It is told once; at each point a copy is taken of what a power cut there would leave, a broker boots from it, and
everything that had been promised by then must be there. Now and then that broker goes on to the end of the story.

KMIRROR_ENGINE_STRIDE=1 looks at every point, the default at every 37th; KMIRROR_ENGINE_ROUNDS tells a longer story.
The same with faults planted shows that the points could find something.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field

import pytest

from kmirror.broker import world
from kmirror.broker.cleaner import Cleaner
from kmirror.clock import ManualClock
from kmirror.protocol import uuids
from kmirror.protocol.records import Record, build_batch, read_records
from kmirror.storage import cleaning, flush
from kmirror.storage.memory import Kind, MemoryFileSystem, Phase
from tests.sim.applications import GROUP, INPUT, OUTPUT, Node, Pipeline
from tests.sim.clusters import PROPERTIES, TOPIC, Cluster, Pump
from tests.sim.test_coordinator_cuts import check_pipeline

STRIDE = int(os.environ.get("KMIRROR_ENGINE_STRIDE", "37"))
ROUNDS = int(os.environ.get("KMIRROR_ENGINE_ROUNDS", "12"))
PLANTED_STRIDE = 11
GOES_ON_EVERY = 60
"""One in so many brokers goes on to the end of the story."""
KEYS = (b"a", b"b", b"c", b"d")
SMALL = {"internal__segment__bytes": "700", "file__delete__delay__ms": "0"}


class Engine(Cluster, Node):
    """A broker that mirrors, and whose applications ask its handlers."""

    properties: Mapping[str, str] = PROPERTIES | {
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "log.cleaner.min.cleanable.ratio": "0",
    }
    settle = Node.settle
    restart = Cluster.restart
    crash = Cluster.crash

    def compact(self) -> None:
        """Rounds until nothing is dirty, as the cleaner's task runs them."""
        cleaner = Cleaner(self.world)
        for _ in range(20):
            chosen = cleaner.choose()
            if chosen is None:
                break
            partition, job = chosen
            for step in cleaning.clean(self.fs, job):
                if isinstance(step, int):
                    cleaner.finished(partition, step)
                else:
                    assert cleaner.swap_in(partition, step)
        self.flush.run()

    def records(self, topic: str, index: int = 0) -> list[Record]:
        log = self.partition(topic, index).log
        found = [
            record
            for header, data in log.batches(log.log_start_offset, log.log_end_offset)
            if not header.is_control
            for record in read_records(data)
        ]
        return [record for record in found if record.offset >= log.log_start_offset]


@dataclass
class Promises:
    """What the outside knows. Sent is what may be there, the rest is what must be."""

    sent: list[bytes] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    """Offset of each number in `plain` whose produce was answered."""
    start_reaches: int = 0
    """Retention may have moved the start of `plain` up to here."""
    keyed: dict[bytes, list[tuple[int, bytes | None]]] = field(default_factory=dict)
    """Key to what was acknowledged, (offset, value)."""
    keyed_sent: set[tuple[bytes, bytes | None]] = field(default_factory=set)
    mirrored: int = 0
    transformed: int = 0
    topics: set[str] = field(default_factory=set)
    topics_gone: set[str] = field(default_factory=set)
    topics_underway: set[str] = field(default_factory=set)


class Story:
    """See the module head."""

    def __init__(self, seed: int, skip_sync: Callable[[str], bool] = lambda path: False) -> None:
        self.chance = random.Random(seed)
        self.source = Cluster("source", seed=seed + 1, at_once=False)
        self.engine = Engine("engine", seed=seed, clock=self.source.clock, at_once=False)
        self.engine.fs.skip_sync = skip_sync
        self.promises = Promises()
        self.pipeline = Pipeline(total=ROUNDS, second=True)
        self.pump: Pump

    def prepare(self) -> None:
        """Topics and the mirror; not observed."""
        self.source.create_topic(TOPIC, **SMALL)
        self.source.produce(b"first of the source")
        engine = self.engine
        engine.create_topic("plain", **SMALL, retention__bytes="2500")
        engine.create_topic("keyed", **SMALL, cleanup__policy="compact", delete__retention__ms="100")
        engine.create_topic(INPUT)
        engine.create_topic(OUTPUT, 2, **SMALL)
        engine.create_mirror(self.source)
        engine.start(self.source)
        self.pump = Pump(engine, self.source)
        self.pump.run(3)
        assert engine.row().state == "MIRRORING"

    async def tell(self) -> None:
        await self.pipeline.start(self.engine)
        for number in range(ROUNDS):
            self.produce(3)
            self.produce_keyed(3)
            await self.transform(number)
            self.mirror()
            self.clean_up(number)
            if number % 5 == 4:
                self.engine.restart()
                self.pump = Pump(self.engine, self.source)

    def produce(self, count: int) -> None:
        """Several batches for one flush."""
        promises, engine = self.promises, self.engine
        offsets = []
        for _ in range(count):
            number = len(promises.sent)
            promises.sent.append(b"%d" % number)
            data = build_batch(
                [Record(value=b"%d" % number + b"." * self.chance.choice([0, 50, 200]))],
                producer_id=77,
                producer_epoch=0,
                base_sequence=number,
                timestamp_ms=engine.clock.time_ms(),
            )
            result = engine.partition("plain").produce(data, now_ms=engine.clock.time_ms(), acks=-1)
            offsets.append(result.base_offset)
        if self.chance.random() < 0.3:
            engine.world.write_checkpoints()
        engine.flush.run()
        promises.acknowledged += offsets

    def produce_keyed(self, count: int) -> None:
        for _ in range(count):
            key = self.chance.choice(KEYS)
            value = None if self.chance.random() < 0.2 else b"%d" % self.chance.randrange(10**9) + b"." * 60
            self.promises.keyed_sent.add((key, value))
            data = build_batch([Record(key, value)], timestamp_ms=self.engine.clock.time_ms())
            result = self.engine.partition("keyed").produce(data, now_ms=self.engine.clock.time_ms(), acks=-1)
            self.engine.flush.run()
            self.promises.keyed.setdefault(key, []).append((result.base_offset, value))

    async def transform(self, number: int) -> None:
        if number % 3 == 1:
            await self.pipeline._transaction(self.engine, number, commit=False)
            self.pipeline.aborted_once.add(number)
        await self.pipeline._transaction(self.engine, number, commit=True)
        self.promises.transformed = self.pipeline.acknowledged = number + 1

    def mirror(self) -> None:
        for _ in range(2):
            self.source.produce(b"%d" % self.chance.randrange(10**9) + b"." * 100)
        for _ in range(3):
            self.pump.round()
        self.promises.mirrored = self.engine.partition().high_watermark

    def clean_up(self, number: int) -> None:
        engine, promises = self.engine, self.promises
        plain = engine.partition("plain")
        for name in ("keyed", "__consumer_offsets", "__transaction_state"):
            engine.partition(name).log.roll()
        engine.clock.advance(150)
        promises.start_reaches = plain.log.active.base_offset
        engine.world.apply_retention()
        if number % 4 == 3:
            engine.world.delete_records("plain", 0, plain.log_start_offset + 1)
        promises.start_reaches = plain.log_start_offset
        engine.compact()
        engine.world.tick()
        if number % 3 == 2:
            engine.world.write_checkpoints()
        name = f"extra-{number}"
        promises.topics_underway = {name}
        engine.create_topic(name)
        promises.topics.add(name)
        if number % 2:
            old = f"extra-{number - 1}"
            promises.topics.discard(old)
            promises.topics_underway = {old}
            engine.settle(engine.world.delete_topic(old))
            promises.topics_gone.add(old)
        promises.topics_underway = set()


# --- what must be there -----------------------------------------------------------------------------------------


def check(engine: Engine, promises: Promises, source_data: bytes) -> None:
    """Raises AssertionError."""
    for _ in range(3):  # decided transactions are ended now
        engine.pass_time(100)
    check_plain(engine, promises)
    check_keyed(engine, promises)
    for index in range(2):
        committed, _aborted, _open = engine.decided(OUTPUT, index)
        expected = [b"%d" % number for number in range(ROUNDS)]
        assert committed == expected[: len(committed)], "committed twice, out of order or with a hole"
        assert len(committed) >= promises.transformed, "an acknowledged transaction is gone"
    both = [len(engine.decided(OUTPUT, index)[0]) for index in range(2)]
    assert max(both) <= promises.transformed + 1
    offsets = engine.world.groups.offsets
    (value,) = engine.settle(offsets.fetch(GROUP, [((INPUT, 0), uuids.ZERO)], require_stable=False))
    assert promises.transformed <= max(0, value.offset) <= promises.transformed + 1
    assert both[0] == both[1] == max(0, value.offset), "half a transaction"
    log = engine.partition().log
    assert source_data.startswith(engine.data()), "the mirror has other bytes than its source"
    assert log.log_end_offset >= promises.mirrored, "a reader saw what is gone now"
    assert engine.row().state in ("MIRRORING", "PREPARING")
    there = set(engine.world.image.topics_by_name)
    assert promises.topics - promises.topics_underway <= there
    assert not (promises.topics_gone - promises.topics_underway) & there, "a deleted topic came back"


def check_plain(engine: Engine, promises: Promises) -> None:
    log = engine.partition("plain").log
    assert log.log_start_offset <= promises.start_reaches
    found = {record.offset: (record.value or b"").rstrip(b".") for record in engine.records("plain")}
    for number, offset in enumerate(promises.acknowledged):
        if offset >= log.log_start_offset:
            assert found.get(offset) == b"%d" % number, f"record {number} was acknowledged"
    numbers = [int(value) for value in found.values()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
    assert not numbers or numbers[-1] < len(promises.sent)


def check_keyed(engine: Engine, promises: Promises) -> None:
    newest: dict[bytes, tuple[int, bytes | None]] = {}
    for record in engine.records("keyed"):
        assert record.key is not None and (record.key, record.value) in promises.keyed_sent
        newest[record.key] = (record.offset, record.value)
    for key, history in promises.keyed.items():
        offset, value = history[-1]
        found = newest.get(key)
        if found is None:
            assert value is None, f"the newest value of {key!r} is lost"
        else:
            assert found[0] > offset or found == (offset, value), f"an older value of {key!r} came back"


# --- all points -------------------------------------------------------------------------------------------------


@dataclass
class Found:
    points: int = 0
    went_on: int = 0
    wrong: list[str] = field(default_factory=list)


def booted(fs: MemoryFileSystem, clock: ManualClock) -> Engine:
    return Engine("engine", fs=fs, clock=clock, at_once=False)


def survivors(fs: MemoryFileSystem, *, keep_nothing: bool) -> MemoryFileSystem:
    """What a power cut now would leave; the story goes on with the original."""
    after = fs.crash(keep_nothing=keep_nothing)
    fs.dead = False
    return after


async def every_point(
    seed: int, *, stride: int, skip_sync: Callable[[str], bool] = lambda path: False, first_only: bool = False
) -> Found:
    story = Story(seed, skip_sync)
    story.prepare()
    found = Found()
    later: list[tuple[MemoryFileSystem, Promises, Pipeline, int]] = []
    seen = 0

    def observe(kind: Kind, path: str, phase: Phase) -> None:
        nonlocal seen
        seen += 1
        if seen % stride or (found.wrong and first_only):
            return
        for keep_nothing in (True, False):
            found.points += 1
            fs = survivors(story.engine.fs, keep_nothing=keep_nothing)
            where = f"point {seen}, keep_nothing={keep_nothing}, {phase} {kind} of {path}"
            if found.points % GOES_ON_EVERY == 0:
                later.append((fs, deepcopy(story.promises), deepcopy(story.pipeline), seen))
                continue
            try:
                check(booted(fs, ManualClock(story.engine.clock.time_ms())), story.promises, story.source.data())
            except (Exception, pytest.fail.Exception) as error:
                found.wrong.append(f"{where}: {error!r}")

    story.engine.fs.observer = observe
    await story.tell()
    story.engine.fs.observer = None
    for fs, promises, pipeline, point in later:
        if found.wrong and first_only:
            break
        try:
            await go_on(fs, promises, pipeline, story)
            found.went_on += 1
        except Exception as error:
            found.wrong.append(f"point {point}, going on: {error!r}")
    return found


async def go_on(fs: MemoryFileSystem, promises: Promises, pipeline: Pipeline, story: Story) -> None:
    """The applications start anew and come to their end; the mirror catches up; and so it is after a restart."""
    engine = booted(fs, ManualClock(story.engine.clock.time_ms()))
    check(engine, promises, story.source.data())
    await pipeline.start(engine)
    assert await pipeline.committed(engine) >= pipeline.acknowledged
    await pipeline.run(engine)
    engine.pass_time(1_000)
    await check_pipeline(engine, pipeline, resumed=True)
    pump = Pump(engine, story.source)
    for _ in range(4):
        pump.run(3)
        engine.tick(10_000)
    for name in ("keyed", "__consumer_offsets", "__transaction_state", OUTPUT):
        engine.partition(name).log.roll()
    engine.compact()
    engine.restart()
    assert engine.data() == story.source.data()
    check_plain(engine, promises)
    check_keyed(engine, promises)
    await check_pipeline(engine, pipeline, resumed=True)


async def test_power_cuts_of_a_broker_at_work() -> None:
    found = await every_point(41, stride=STRIDE)
    print(f"{found.points} points, {found.went_on} went on to the end")
    assert found.wrong == []
    assert found.points * STRIDE > 5_000
    assert found.went_on or STRIDE > 1


# --- planted faults ---------------------------------------------------------------------------------------------


NOTICED = {
    "segments of a data topic": "/plain-0/*.log",
    "segments of a compacted topic": "/keyed-0/*.log",
    "segments of a mirrored topic": f"/{TOPIC}-0/*.log",
    "segments of committed offsets": "/__consumer_offsets-0/*.log",
    "segments of transactions": "/__transaction_state-0/*.log",
    "segments of the metadata": "/__cluster_metadata-0/*.log",
    "what compaction wrote": ".log.cleaned",
    "the list of segments": "/log-facts.tmp",
    "the directory of a data topic": "/plain-0",
    "the directory of a compacted topic": "/keyed-0",
}
"""A file, or a directory's names, whose sync lies."""
MADE_AGAIN = {
    "producers": ".snapshot",  # its checksum shows the damage; an older one and the batches tell the same
    "offset index": ".index",  # made from the batch headers
    "time index": ".timeindex",  # made from the batch headers
    "aborted transactions": ".txnindex",  # made from the batches, with the producers
    "leader epochs": "leader-epoch-checkpoint.tmp",  # made from the batches
    "recovery points": "recovery-point-offset-checkpoint.tmp",  # an older one only means more to go through
    "how far a log is compacted": "cleaner-offset-checkpoint.tmp",  # compacting twice leaves the same
    "high watermarks": "replication-offset-checkpoint.tmp",  # nothing here reads it
}
"""What a lost sync may take, and why nothing is missing then."""


def lying(pattern: str) -> Callable[[str], bool]:
    directory, star, suffix = pattern.partition("*")
    return lambda path: directory in path and path.endswith(suffix) if star else path.endswith(pattern)


@pytest.mark.slow
@pytest.mark.parametrize("what", NOTICED)
async def test_a_sync_that_lies_is_noticed(what: str) -> None:
    found = await every_point(41, stride=PLANTED_STRIDE, skip_sync=lying(NOTICED[what]), first_only=True)
    print(found.points, found.wrong)
    assert found.wrong


@pytest.mark.slow
@pytest.mark.parametrize("what", MADE_AGAIN)
async def test_what_can_be_made_again_may_be_lost(what: str) -> None:
    found = await every_point(41, stride=4 * STRIDE, skip_sync=lying(MADE_AGAIN[what]))
    assert found.wrong == []


def old_segments_gone_before_the_swap(patch: pytest.MonkeyPatch) -> None:
    """The cleaner's renames the other way round: the old files go before the new ones have their lasting name."""
    right = cleaning.swap

    def swap(log: cleaning.Log, group: cleaning.CleanedGroup, now_ms: int) -> bool:
        for source in group.sources:
            for segment in log.segments[:-1]:
                if segment.base_offset == source.base_offset:
                    segment.file  # noqa: B018 (it stays open)
                    segment.keep_file()
                    log.fs.rename(segment.path(), segment.path() + ".deleted")
        log.fs.sync_dir(log.directory)
        return right(log, group, now_ms)

    patch.setattr(cleaning, "swap", swap)


def renamed_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    def write_atomic(self: MemoryFileSystem, path: str, data: bytes) -> None:
        file = self.open(path + ".tmp", create=True)
        file.truncate(0)
        self.rename(path + ".tmp", path)
        self.sync_dir(os.path.dirname(path))
        file.append([data])
        file.sync()

    patch.setattr(MemoryFileSystem, "write_atomic", write_atomic)


def facts_before_the_data(patch: pytest.MonkeyPatch) -> None:
    """The list of segments, an index of what is on disk, is written before the logs it speaks of."""
    right = flush.FlushTicket.sync

    def sync(self: flush.FlushTicket) -> None:
        if self.writes:
            self._side_files.write(self._number, self.writes.items())
        right(self)

    patch.setattr(flush.FlushTicket, "sync", sync)


def recovery_point_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(world, "_flushed", lambda log: log.log_end_offset)


def answered_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flush.FlushTicket, "sync", lambda self: None)


ORDERS = [
    old_segments_gone_before_the_swap,
    renamed_before_it_is_written,
    facts_before_the_data,
    recovery_point_before_the_flush,
    answered_before_the_flush,
]


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ORDERS)
async def test_a_wrong_order_is_noticed(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    found = await every_point(41, stride=PLANTED_STRIDE, first_only=True)
    print(found.points, found.wrong)
    assert found.wrong
