"""Fills a real Kafka with everything that a mirror has to carry: codecs, producers, transactions, gaps, epochs.

Records are written by librdkafka (another implementation than ours, and than the broker's own client). All values are
text, so that every reader can print them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from conformance.peers.kafka import KafkaBroker
from conformance.peers.waiting import eventually
from conformance.wire.client import Broker, Topic
from tests.integration.watching import topic_of

PREFIX = "it"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
ISOLATION_NAMES = {READ_UNCOMMITTED: "read_uncommitted", READ_COMMITTED: "read_committed"}
QUIET = {"log_level": 0}


@dataclass(slots=True)
class Source:
    """A filled source cluster."""

    kafka: KafkaBroker
    topics: dict[str, int] = field(default_factory=dict)  # name -> partition count
    open_transactions: list[Any] = field(default_factory=list)  # kept alive, or they would be aborted

    @property
    def bootstrap(self) -> str:
        return self.kafka.bootstrap

    @property
    def broker(self) -> Broker:
        return Broker(self.bootstrap)

    def partitions(self) -> list[tuple[str, int]]:
        return [(name, index) for name, count in sorted(self.topics.items()) for index in range(count)]

    def create(self, name: str, *, partition_count: int = 1, configs: dict[str, str] | None = None) -> str:
        topic = f"{PREFIX}-{name}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        created: dict[str, Any] = admin.create_topics([NewTopic(topic, partition_count, 1, config=configs or {})])
        created[topic].result(30)
        self.topics[topic] = partition_count
        return topic

    def producer(self, **options: object) -> Producer:
        names = {key.replace("_", "."): value for key, value in options.items()}
        config: dict[str, Any] = {"bootstrap.servers": self.bootstrap, "linger.ms": 20, **QUIET, **names}
        return Producer(config)

    def write(self, topic: str, count: int, *, partition: int = 0, tag: str = "v", **options: object) -> None:
        """`count` records in several batches."""
        producer = self.producer(**options)
        for index in range(count):
            producer.produce(topic, f"{tag}-{index} {'=' * 40}", key=f"k{index % 7}", partition=partition)
            if index % 10 == 9:
                producer.flush(30)
        assert producer.flush(30) == 0

    def end(self, topic: str, partition: int = 0) -> int:
        broker = self.broker
        return broker.latest(topic_of(broker, topic), partition)


def fill_quickly(kafka: KafkaBroker) -> Source:
    """All that needs neither a cleaner nor a restart."""
    source = Source(kafka)
    for codec in CODECS:
        topic = source.create(f"codec-{codec}", partition_count=2)
        for partition in (0, 1):
            source.write(topic, 40, partition=partition, compression_type=codec, tag=codec)
    idempotent = source.create("idempotent")
    source.write(idempotent, 60, enable_idempotence=True)
    _fill_transactions(source)
    _fill_odd_records(source)
    appended = source.create("log-append-time", configs={"message.timestamp.type": "LogAppendTime"})
    for codec in ("none", "gzip"):
        source.write(appended, 20, compression_type=codec)
    _fill_trimmed(source)
    return source


def fill(kafka: KafkaBroker) -> Source:
    """The same, and a compacted topic with gaps and a topic with several leader epochs."""
    source = fill_quickly(kafka)
    _fill_compacted(source)
    _fill_epochs(source)
    return source


def _fill_transactions(source: Source) -> None:
    topic = source.create("transactions", partition_count=2)

    def begin(name: str, values: list[str], *, partition: int = 0) -> Producer:
        # an open transaction must stay open for as long as the module takes
        producer = source.producer(transactional_id=f"{PREFIX}-{name}", transaction_timeout_ms=900_000)
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=partition)
        producer.flush(30)
        return producer

    for partition in (0, 1):
        source.write(topic, 5, partition=partition, tag="plain")
        begin(f"committed-{partition}", ["committed 1", "committed 2"], partition=partition).commit_transaction(30)
        begin(f"aborted-{partition}", ["aborted 1", "aborted 2"], partition=partition).abort_transaction(30)
        interleaved = begin(f"interleaved-{partition}", ["interleaved"], partition=partition)
        source.write(topic, 5, partition=partition, tag="between")
        interleaved.commit_transaction(30)
    source.open_transactions.append(begin("open", ["open 1", "open 2"], partition=0))
    source.write(topic, 5, partition=0, tag="after the open one")


def _fill_odd_records(source: Source) -> None:
    topic = source.create("odd-records")
    producer = source.producer()
    headers: Any = [("h", b"x"), ("h", b"again"), ("null", None), ("", b"no name")]
    producer.produce(topic, "with headers", key="k", headers=headers)
    producer.produce(topic, None, key="tombstone")
    producer.produce(topic, "no key", key=None)
    producer.produce(topic, None, key=None)
    producer.produce(topic, "", key="")
    producer.produce(topic, "x" * 300_000, key="large")
    producer.produce(topic, "old", timestamp=1)
    assert producer.flush(30) == 0


def _fill_compacted(source: Source) -> None:
    """Until the cleaner has made gaps: fewer records than offsets."""
    configs = {
        "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "200",
        "min.compaction.lag.ms": "0", "delete.retention.ms": "0",
    }  # fmt: skip
    topic = source.create("compacted", configs=configs)
    source.write(topic, 100, tag="old")
    rounds = 0

    def has_gaps() -> bool:
        nonlocal rounds
        if rounds % 20 == 0:  # a new segment, so that the one before may be cleaned
            source.write(topic, 10, tag=f"new {rounds}")
        rounds += 1
        broker = source.broker
        found = broker.scan(topic_of(broker, topic))
        return sum(entry.record_count for entry in found) < found[-1].last_offset + 1 - 50

    eventually(has_gaps, what="compacted source topic", timeout_s=60)


def _fill_trimmed(source: Source) -> None:
    """A log start in the middle of a batch."""
    topic = source.create("trimmed")
    source.write(topic, 50)
    admin = AdminClient({"bootstrap.servers": source.bootstrap, **QUIET})
    trimmed: dict[Any, Any] = admin.delete_records([TopicPartition(topic, 0, 23)])
    for future in trimmed.values():
        future.result(30)


def _fill_epochs(source: Source) -> None:
    topic = source.create("epochs")
    for number in range(3):
        source.write(topic, 10, tag=f"life {number}")
        source.kafka.restart()
    source.write(topic, 10, tag="last life")


def wait_until_quiet(source: Source) -> None:
    """Until the cleaner has nothing left to do, two looks in a row: identity is promised for a quiet source."""
    broker = source.broker
    compacted = topic_of(broker, f"{PREFIX}-compacted")
    before: list[Any] = []
    last_change = time.time()

    def quiet() -> bool:
        nonlocal before, last_change
        now = [(entry.base_offset, entry.size_bytes) for entry in broker.scan(compacted)]
        if now != before:
            before, last_change = now, time.time()
        return time.time() - last_change > 3

    eventually(quiet, what="quiet source", timeout_s=60)


def _stuck(bootstrap: str, topic: str, partition: int, count: int) -> str:
    """What the broker says of its end while a reader of it waits."""
    broker = Broker(bootstrap)
    described = broker.describe_topic(topic)
    asked = Topic(topic, described.topic_id, len(described.partitions))
    ends = [broker.list_offset(asked, -1, partition=partition, isolation_level=level) for level in (0, 1)]
    return (
        f"{topic}-{partition} at {bootstrap}: neither a record nor the end within 30 s after {count} records; "
        f"high watermark and last stable offset: {[(row.error_code, row.offset) for row in ends]}; {described}"
    )


def read_with_librdkafka(
    bootstrap: str, topic: str, partition: int, isolation_level: int
) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) from the beginning to the end of what this isolation level may see."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, **QUIET,
            "isolation.level": ISOLATION_NAMES[isolation_level], "auto.offset.reset": "earliest",
            "enable.partition.eof": True, "fetch.wait.max.ms": 50,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, -2)])
    found: list[tuple[int, bytes | None, bytes | None]] = []
    try:
        while True:
            message: Any = consumer.poll(30)
            assert message is not None, _stuck(bootstrap, topic, partition, len(found))
            if message.error():
                assert message.error().code() == -191, message.error()  # the end of the partition
                return found
            found.append((message.offset(), message.key(), message.value()))
    finally:
        consumer.close()
