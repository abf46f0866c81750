"""Whole brokers without sockets: `Cluster` is a world on a file system in memory, `Pump` a mirror's link in one call.

The pump carries messages between a destination's `Mirrors` and a source's `Partition`s exactly as the link does, but
synchronously, so that a random walk and a crash matrix can own every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

from kmirror.broker import mirror_seam as seam
from kmirror.broker.config import BrokerConfig
from kmirror.broker.durability import InlineFlush
from kmirror.broker.mirror_partition import MirroredPartition
from kmirror.broker.mirroring import Mirrors
from kmirror.broker.partition import Partition
from kmirror.broker.topic_admin import CreateTopicSpec
from kmirror.broker.world import World
from kmirror.clock import ManualClock
from kmirror.effects import Promise
from kmirror.errors import ApiError
from kmirror.mirror import events as ev
from kmirror.mirror.machine import Outcome
from kmirror.protocol.records import Record, build_batch, end_txn_marker
from kmirror.server.handlers import describe_cluster_mirrors
from kmirror.source.questions import lineage_of, lineage_request
from kmirror.storage.memory import MemoryFileSystem

T = TypeVar("T")
DIRECTORY = "/data"
MIRROR = "m"
TOPIC = "t"

PROPERTIES = {
    "mirror.state.topic.num.partitions": "1",
    "mirror.failed.retry.max.attempts": "5",
    "mirror.failed.retry.max.backoff.ms": "5000",
}


class WatchedMirrors(Mirrors):
    """Tells the cluster of every report, those of the boot too."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        super().__init__(world, chance=lambda: 0.5)
        self._cluster = cluster

    def report(self, partition: MirroredPartition, action: ev.Report) -> None:
        self._cluster.on_report(partition, action)
        super().report(partition, action)

    def make_partition(self, mirror: Any, topic: Any, index: int, *, attached: bool) -> MirroredPartition:
        made = super().make_partition(mirror, topic, index, attached=attached)
        step = made.machine.step

        def told(event: ev.Event, facts: Any, now_ms: int) -> Outcome:
            out = step(event, facts, now_ms)
            self._cluster.on_outcome(out)
            return out

        made.machine.step = told  # type: ignore[method-assign]
        return made

    def state_changed(self, partition: MirroredPartition) -> None:
        self._cluster.on_state(partition)
        super().state_changed(partition)


class Cluster:
    """One broker. `flush.at_once` is off: data is durable only when `flush` runs."""

    properties: Mapping[str, str] = PROPERTIES

    def __init__(
        self,
        name: str,
        *,
        seed: int = 1,
        clock: ManualClock | None = None,
        at_once: bool = True,
        fs: MemoryFileSystem | None = None,
    ) -> None:
        self.name = name
        self.clock = clock or ManualClock()
        self.fs = fs or MemoryFileSystem(seed=seed, clock=self.clock)
        self.at_once = at_once
        self.fatal: list[BaseException] = []
        self.reachable = True
        self.lazy = False
        self.lazy_rounds = 0
        """Do not flush after each call: what was asked for stays under way, for a crash to interrupt."""
        self.boots = 0
        self.on_report: Callable[[MirroredPartition, ev.Report], None] = lambda partition, action: None
        self.on_outcome: Callable[[Outcome], None] = lambda out: None
        self.on_state: Callable[[MirroredPartition], None] = lambda partition: None
        self.flush: InlineFlush
        self.world: World
        self.boot()

    def boot(self) -> None:
        self.boots += 1
        self.flush = InlineFlush(at_once=self.at_once)
        config = BrokerConfig.from_properties(self.properties)
        self.world = World.open(
            self.fs,
            DIRECTORY,
            config,
            self.clock,
            self.flush,
            fatal=self.fatal.append,
            mirrors=lambda world: WatchedMirrors(world, self),
        )
        self.flush.run()

    def calm(self) -> None:
        """Let every flush, and what waits for it, happen; a lazy cluster does `lazy_rounds` rounds and no more."""
        if not self.lazy:
            self.flush.run()
            return
        for _ in range(self.lazy_rounds):
            waiting, self.flush._waiting = self.flush._waiting, {}
            self.flush._round(list(waiting.values()))

    def restart(self) -> None:
        self.flush.run()
        self.world.close(clean=True)
        self.boot()

    def crash(self, *, keep_nothing: bool = False) -> None:
        self.fs = self.fs.crash(keep_nothing=keep_nothing)
        self.boot()

    # -- shortcuts ------------------------------------------------------------------------------------------------

    @property
    def mirrors(self) -> Mirrors:
        mirrors: Mirrors = self.world.mirrors
        return mirrors

    def settle(self, promise: Promise[T]) -> T:
        self.flush.run()
        return promise.result()

    def create_topic(self, name: str = TOPIC, count: int = 1, **configs: str) -> None:
        named: dict[str, str | None] = {key.replace("__", "."): value for key, value in configs.items()}
        self.settle(self.world.create_topic(CreateTopicSpec(name, count, configs=named)))

    def partition(self, topic: str = TOPIC, index: int = 0) -> Partition:
        return self.world.partition(topic, index)

    def produce(self, *values: bytes, topic: str = TOPIC, index: int = 0, **batch: Any) -> int:
        """One batch by a client; its base offset. Raises ApiError."""
        data = build_batch([Record(value=value) for value in values], timestamp_ms=self.clock.time_ms(), **batch)
        result = self.partition(topic, index).produce(data, now_ms=self.clock.time_ms(), acks=-1)
        self.flush.run()
        return result.base_offset

    def end_transaction(self, producer_id: int, *, commit: bool, topic: str = TOPIC, index: int = 0) -> None:
        marker = end_txn_marker(
            commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
        )
        self.partition(topic, index).append_coordinator(marker)
        self.flush.run()

    def bump(self, topic: str = TOPIC, index: int = 0) -> int:
        partition = self.partition(topic, index)
        return self.settle(self.world.bump_leader_epoch(partition, partition.leader_epoch))

    def data(self, topic: str = TOPIC, index: int = 0) -> bytes:
        log = self.partition(topic, index).log
        return b"".join(bytes(batch) for _, batch in log.batches(log.log_start_offset, log.log_end_offset))

    # -- operator -------------------------------------------------------------------------------------------------

    def create_mirror(self, source: Cluster, name: str = MIRROR, **configs: str) -> None:
        given: dict[str, str | None] = {"bootstrap.servers": source.name, "source.cluster.id": source.world.cluster_id}
        given.update({key.replace("__", "."): value for key, value in configs.items()})
        self.settle(self.mirrors.create(name, given))

    def start(self, source: Cluster, *topics: str, mirror: str = MIRROR, **options: Any) -> Promise[Any]:
        """StartMirrorTopics as a command line sends it: ids and counts from the source."""
        wanted = []
        for name in topics or (TOPIC,):
            found = source.world.image.topics_by_name.get(name)
            wanted.append(
                seam.StartTopic(name=name)
                if found is None
                else seam.StartTopic(name=name, topic_id=found.topic_id, num_partitions=len(found.partitions))
            )
        promise = self.mirrors.start(mirror, wanted, **options)
        self.calm()
        return promise

    def stop(self, *topics: str, mirror: str = MIRROR) -> Promise[Any]:
        promise = self.mirrors.stop(mirror, topics or (TOPIC,))
        self.calm()
        return promise

    def row(self, topic: str = TOPIC, index: int = 0) -> seam.PartitionRow:
        for description in self.mirrors.describe():
            for row in description.partitions:
                if (row.topic, row.partition) == (topic, index):
                    return row
        raise LookupError(topic)

    def tick(self, duration_ms: int = 0) -> None:
        self.clock.advance(duration_ms)
        self.mirrors.tick(self.clock.monotonic_ms())
        self.calm()


class Pump:
    """The link of one mirror: `round` asks metadata when it is wanted, answers questions, fetches and applies once."""

    def __init__(self, destination: Cluster, source: Cluster, mirror: str = MIRROR, *, broker_id: int = 0) -> None:
        self.destination = destination
        self.source = source
        self.mirror = mirror
        self.broker_id = broker_id
        self.capable = True
        self.max_bytes: int | None = None
        self.hold = False
        """Answers stay in flight until the next fetch."""
        self.in_flight: list[tuple[seam.FetchItem, seam.FetchAnswer]] = []
        self.boots = destination.boots
        self.alter: Callable[[seam.Query], seam.Answer | None] = lambda query: None
        """A test's own answers."""

    def refresh(self) -> None:
        mirrors = self.destination.mirrors
        topics = mirrors.metadata_topics(self.mirror)
        if not self.source.reachable:
            mirrors.source_unreachable(self.mirror, None, "connection refused")
        else:
            mirrors.source_metadata(self.mirror, self.metadata(topics))
        self.destination.calm()

    def metadata(self, topics: Sequence[str] | None) -> seam.SourceMetadata:
        world = self.source.world
        names = list(world.image.topics_by_name) if topics is None else topics
        found: dict[str, seam.SourceTopic] = {}
        for name in names:
            topic = world.image.topics_by_name.get(name)
            if topic is None:
                found[name] = seam.SourceTopic(error_code=3)
                continue
            found[name] = seam.SourceTopic(
                topic_id=topic.topic_id,
                internal=topic.internal,
                partitions={
                    p.index: seam.SourcePartition(leader=self.broker_id, leader_epoch=p.leader_epoch)
                    for p in topic.partitions
                },
            )
        return seam.SourceMetadata(
            cluster_id=world.cluster_id,
            brokers={self.broker_id: ("127.0.0.1", 9092)},
            topics=found,
            capable=self.capable,
            complete=topics is None,
        )

    def sync_configs(self) -> None:
        mirrors, world = self.destination.mirrors, self.source.world
        configs: dict[str, Mapping[str, str | None]] = {}
        for name in mirrors.config_topics(self.mirror):
            topic = world.image.topics_by_name.get(name)
            if topic is not None:
                configs[name] = dict(topic.configs)
        mirrors.source_configs(self.mirror, configs)
        self.destination.calm()

    def round(self) -> int:
        """Returns the number of batches appended."""
        mirrors = self.destination.mirrors
        if mirrors.metadata_requested(self.mirror):
            self.refresh()
        for _ in range(200):
            queries = mirrors.queries(self.mirror)
            if not queries:
                break
            for query in queries:
                mirrors.answered(query, self.answer(query))
                self.destination.calm()
        return self.fetch()

    def fetch(self) -> int:
        mirrors = self.destination.mirrors
        items = mirrors.plan_fetch(self.mirror, self.broker_id)
        count = 0
        if items and not self.source.reachable:
            mirrors.source_unreachable(self.mirror, self.broker_id, "connection reset")
            self.destination.calm()
            return 0
        arriving, self.in_flight = self.in_flight, []
        if self.boots != self.destination.boots:
            arriving, self.boots = [], self.destination.boots
        answers = [(item, self.serve(item)) for item in items]
        if self.hold:
            self.in_flight = answers
        else:
            arriving += answers
        for item, answer in arriving:
            examined = mirrors.examine(self.mirror, item, answer)
            mirrors.apply(examined)
            count += examined.batch_count if examined.accepted else 0
            self.destination.calm()
        return count

    def run(self, rounds: int = 12) -> None:
        for _ in range(rounds):
            self.round()

    # -- the source's side ----------------------------------------------------------------------------------------

    def answer(self, query: seam.Query) -> seam.Answer:
        altered = self.alter(query)
        if altered is not None:
            return altered
        if not self.source.reachable:
            return seam.ErrorAnswer(transport=True, message="connection reset")
        try:
            return self._answer(query)
        except ApiError as error:
            return seam.ErrorAnswer(code=error.code, message=error.message or "")

    def _answer(self, query: seam.Query) -> seam.Answer:
        if isinstance(query, seam.LineageQuery):
            request = lineage_request(query.cluster_id, [(query.topic, query.partition)])
            surroundings: Any = SimpleNamespace(world=self.source.world)
            return lineage_of(describe_cluster_mirrors.handle(surroundings, request), query)
        partition = self.source.world.partition(query.topic, query.partition)
        if partition.topic_id != query.topic_id:
            return seam.ErrorAnswer(code=100)
        fence = query.current_leader_epoch
        if isinstance(query, seam.EpochEndQuery):
            epoch, end = partition.end_offset_for_epoch(query.epoch, fence)
            return seam.EpochEndAnswer(leader_epoch=epoch, end_offset=end)
        if isinstance(query, seam.OffsetQuery):
            offset, timestamp, epoch = partition.list_offset(query.timestamp, 0, fence)
            return seam.OffsetAnswer(offset=offset, timestamp=timestamp, leader_epoch=epoch)
        assert isinstance(query, seam.BatchQuery)
        read = partition.read(query.offset, max_bytes=query.max_bytes, current_leader_epoch=fence)
        return seam.BatchAnswer(records=b"".join(piece.read() for piece in read.slices))

    def serve(self, item: seam.FetchItem) -> seam.FetchAnswer:
        try:
            partition = self.source.world.partition(item.topic, item.partition)
            if partition.topic_id != item.topic_id:
                return seam.FetchAnswer(error_code=100)
            read = partition.read(
                item.fetch_offset,
                max_bytes=self.max_bytes or item.max_bytes,
                current_leader_epoch=item.source_leader_epoch,
            )
        except ApiError as error:
            return seam.FetchAnswer(error_code=error.code)
        return seam.FetchAnswer(
            high_watermark=read.high_watermark,
            log_start_offset=read.log_start_offset,
            records=b"".join(piece.read() for piece in read.slices),
        )
