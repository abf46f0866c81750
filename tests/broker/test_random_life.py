"""A broker that lives through random operations, restarts and power cuts, against a model of what was acknowledged.

A failure prints the seed; `Life(seed).run(STEPS)` repeats it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from kmirror.broker.durability import InlineFlush
from kmirror.broker.metadata import TopicState
from kmirror.broker.topic_admin import CreateTopicSpec
from kmirror.effects import Promise
from kmirror.errors import ApiError
from kmirror.protocol.records import read_records, walk
from tests.broker.harness import Broker, OverlappingFlush, make_batch

STEPS = 120
SEEDS = range(40)


@dataclass
class Known:
    """What a client was told about a topic."""

    topic_id: bytes
    values: dict[int, bytes] = field(default_factory=dict)
    """Acknowledged records by offset."""
    log_start: int = 0
    leader_epoch: int = 0
    retention_ms: str | None = None


class Life:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.broker = Broker(seed=seed, flush=OverlappingFlush if seed % 2 else InlineFlush)
        self.topics: dict[str, Known] = {}
        self.dead_ids: set[bytes] = set()
        self.producer_ids: set[int] = set()
        self.unsure: set[str] = set()
        """Topics whose deletion or creation was asked for and not answered before a crash."""
        self.pending: list[tuple[str, Promise[TopicState] | Promise[None]]] = []

    def run(self, steps: int) -> None:
        actions = [
            (self.produce, 30),
            (self.create, 6),
            (self.delete, 3),
            (self.trim, 4),
            (self.bump, 4),
            (self.configure, 3),
            (self.allocate, 4),
            (self.flush, 12),
            (self.restart, 2),
            (self.crash, 4),
        ]
        weights = [weight for _action, weight in actions]
        for _ in range(steps):
            (action,) = self.chance.choices([action for action, _weight in actions], weights)
            action()
            self.check()
        self.crash()
        self.check()

    # -- actions -------------------------------------------------------------------------------------------------

    def some_topic(self) -> str | None:
        present = [name for name in self.topics if name in self.broker.world.image.topics_by_name]
        return self.chance.choice(present) if present else None

    def produce(self) -> None:
        name = self.some_topic()
        if name is None:
            return
        partition = self.broker.world.partition(name, 0)
        values = [b"%d" % self.chance.getrandbits(60) for _ in range(self.chance.randint(1, 3))]
        result = partition.produce(
            make_batch(*values, timestamp_ms=self.broker.clock.time_ms()), now_ms=self.broker.clock.time_ms(), acks=-1
        )
        known = self.topics[name]

        def acknowledged(done: Promise[None]) -> None:
            try:
                done.result()
            except ApiError:
                return
            known.values.update({result.base_offset + at: value for at, value in enumerate(values)})

        partition.when_committed(result.last_offset + 1).then(acknowledged)

    def create(self) -> None:
        name = f"t{self.chance.randint(0, 4)}"
        if name in self.topics or name in self.unsure:
            return
        self.unsure.add(name)

        def created(done: Promise[TopicState]) -> None:
            topic = done.result()
            assert topic.topic_id not in self.dead_ids
            self.unsure.discard(name)
            self.topics[name] = Known(topic.topic_id)

        configs: dict[str, str | None] = {"internal.segment.bytes": "400"}
        self.broker.world.create_topic(CreateTopicSpec(name, 1, configs=configs)).then(created)

    def delete(self) -> None:
        name = self.some_topic()
        if name is None:
            return
        known = self.topics.pop(name)
        self.unsure.add(name)

        def deleted(done: Promise[None]) -> None:
            done.result()
            self.dead_ids.add(known.topic_id)
            self.unsure.discard(name)

        self.broker.world.delete_topic(name).then(deleted)

    def trim(self) -> None:
        name = self.some_topic()
        if name is not None:
            partition = self.broker.world.partition(name, 0)
            offset = self.chance.randint(partition.log_start_offset, partition.high_watermark)
            known = self.topics[name]
            known.log_start = self.broker.world.delete_records(name, 0, offset)
            known.values = {at: value for at, value in known.values.items() if at >= known.log_start}

    def bump(self) -> None:
        name = self.some_topic()
        if name is not None:
            partition = self.broker.world.partition(name, 0)
            self.broker.world.bump_leader_epoch(partition, partition.leader_epoch)

    def configure(self) -> None:
        name = self.some_topic()
        if name is None:
            return
        known, text = self.topics[name], str(self.chance.randint(10**9, 10**12))
        known.retention_ms = None

        def altered(done: Promise[None]) -> None:
            done.result()
            known.retention_ms = text

        self.broker.world.configs.write(2, name, {"retention.ms": text}).then(altered)

    def allocate(self) -> None:
        def allocated(done: Promise[int]) -> None:
            assert done.result() not in self.producer_ids
            self.producer_ids.add(done.result())

        self.broker.world.producer_ids.next().then(allocated)

    def flush(self) -> None:
        self.broker.flush.run()

    def restart(self) -> None:
        self.broker.restart()

    def crash(self) -> None:
        self.broker.crash()
        self.broker.clock.advance(self.chance.randint(0, 5000))
        for name in list(self.unsure):
            topic = self.broker.world.image.topics_by_name.get(name)
            self.unsure.discard(name)
            if topic is not None:
                self.topics[name] = Known(topic.topic_id)  # created after all, or not deleted: nothing is promised
        self.broker.world.tick()

    # -- what must hold ------------------------------------------------------------------------------------------

    def check(self) -> None:
        assert not self.broker.fatal
        image = self.broker.world.image
        assert self.dead_ids.isdisjoint(image.topics_by_id)
        for name, known in self.topics.items():
            topic = image.topics_by_name[name]
            assert topic.topic_id == known.topic_id
            partition = topic.partitions[0]
            assert partition.leader_epoch >= known.leader_epoch
            known.leader_epoch = partition.leader_epoch
            assert partition.log_start_offset >= known.log_start
            assert partition.log_start_offset <= partition.last_stable_offset <= partition.high_watermark
            assert partition.high_watermark <= partition.log.flushed_offset
            if known.retention_ms is not None:
                assert topic.configs["retention.ms"] == known.retention_ms
            self.check_values(partition.high_watermark, known, name)

    def check_values(self, high_watermark: int, known: Known, name: str) -> None:
        partition = self.broker.world.partition(name, 0)
        seen: dict[int, bytes] = {}
        offset = partition.log_start_offset
        while offset < high_watermark:
            read = partition.read(offset, max_bytes=1 << 20)
            data = b"".join(piece.read() for piece in read.slices)
            for position, _header in walk(data):
                seen.update({record.offset: record.value or b"" for record in read_records(data, position)})
            assert read.next_offset > offset
            offset = read.next_offset
        missing = {at: value for at, value in known.values.items() if seen.get(at) != value}
        assert not missing, f"{name}: acknowledged records are gone: {missing}"


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_stays(seed: int) -> None:
    Life(seed).run(STEPS)
