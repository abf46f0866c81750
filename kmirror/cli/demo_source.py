"""The demo's source: a kmirror in this process, and everything worth mirroring written to it by ordinary clients.

Plain, compressed, idempotent and transactional records all come through Produce. Only the second leader epoch is made
from inside: a broker alone elects nobody else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kmirror.app import App
from kmirror.cli.session import check
from kmirror.cli.transactional_producer import TransactionalProducer
from kmirror.clock import SystemClock
from kmirror.protocol.api.create_topics import CreatableTopic, CreateTopicsRequest
from kmirror.protocol.compression import Compression
from kmirror.protocol.records import Record, build_batch
from kmirror.server.waiting import settled
from kmirror.source.cluster import Cluster

ORDERS, PAYMENTS = "orders", "payments"
ORDERS_PARTITIONS = 3
RECORDS_IN_BATCH = 20
BULK = 40
"""Makes the bulk of the records some hundred bytes long, so that it shows what a failback does not move. The last batch
of each partition stays small: it is fetched again and compared."""
IDEMPOTENT_PRODUCER = 4711
OFTEN = {"mirror.metadata.refresh.interval.ms": "1000"}
"""Set on both brokers: a minute, the default, is long for somebody who watches group offsets arrive."""
TRANSACTION_TIMEOUT_MS = 600_000
"""Longer than the demo: the open transaction must not be ended by its own timeout."""


@dataclass(slots=True)
class Written:
    """What the source holds, for the checks that follow."""

    records: int = 0
    order_records: int = 0
    batches: int = 0
    leader_epochs: set[int] = field(default_factory=set)
    codecs: list[str] = field(default_factory=list)


async def create_topics(cluster: Cluster) -> None:
    topics = [
        CreatableTopic(name=name, num_partitions=count, replication_factor=1)
        for name, count in ((ORDERS, ORDERS_PARTITIONS), (PAYMENTS, 1))
    ]
    for result in (await cluster.request(CreateTopicsRequest(topics=topics))).topics:
        check(result.error_code, result.error_message, f"topic {result.name} was not created")


def _records(count: int, text: str, *, repeated: int = 1) -> list[Record]:
    return [
        Record(f"{text}-{number}".encode(), f"{text} number {number} ".encode() * repeated) for number in range(count)
    ]


class Writer:
    """Sends one batch at a time and counts."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.clock = SystemClock()
        self.written = Written()

    async def write(
        self, partition: int, text: str, *, compression: int = Compression.NONE, sequence: int | None = None
    ) -> None:
        """One batch to `orders`. `sequence` makes it the idempotent producer's. Raises Failure."""
        idempotent = sequence is not None
        data = build_batch(
            _records(RECORDS_IN_BATCH, text, repeated=1 if idempotent else BULK),
            compression=compression,
            producer_id=IDEMPOTENT_PRODUCER if idempotent else -1,
            producer_epoch=0 if idempotent else -1,
            base_sequence=sequence if sequence is not None else -1,
            timestamp_ms=self.clock.time_ms(),
        )
        answer = await self.cluster.produce(ORDERS, partition, data)
        check(answer.error_code, answer.error_message, "the source refused a batch")
        self._count(RECORDS_IN_BATCH)
        self.written.order_records += RECORDS_IN_BATCH

    def transactional(self, transactional_id: str) -> TransactionalProducer:
        return TransactionalProducer(self.cluster, transactional_id, timeout_ms=TRANSACTION_TIMEOUT_MS)

    async def write_payments(self, producer: TransactionalProducer) -> None:
        """One batch of the producer's transaction. Raises Failure."""
        records = _records(RECORDS_IN_BATCH, f"payment of {producer.coordinator.key}")
        answer = await producer.send(PAYMENTS, 0, records, compression=Compression.LZ4)
        check(answer.error_code, answer.error_message, "the source refused a batch")
        self._count(RECORDS_IN_BATCH)

    def _count(self, records: int) -> None:
        self.written.records += records
        self.written.batches += 1


async def fill(app: App, cluster: Cluster) -> Written:
    """Everything: two leader epochs on every partition, all codecs, an idempotent producer, transactions."""
    writer = Writer(cluster)
    await _write_orders(writer, sequence=0)
    await _write_transactions(writer)
    for topic, count in ((ORDERS, ORDERS_PARTITIONS), (PAYMENTS, 1)):
        for index in range(count):
            partition = app.world.partition(topic, index)
            writer.written.leader_epochs.add(partition.leader_epoch)
            await settled(app.world.bump_leader_epoch(partition, partition.leader_epoch + 1))
            writer.written.leader_epochs.add(partition.leader_epoch)
    await _write_orders(writer, sequence=RECORDS_IN_BATCH)
    await _leave_a_transaction_open(writer)
    writer.written.codecs = [codec.name.lower() for codec in Compression]
    return writer.written


async def _write_orders(writer: Writer, *, sequence: int) -> None:
    for index in range(ORDERS_PARTITIONS):
        for codec in Compression:
            await writer.write(index, f"order {codec.name.lower()}", compression=codec)
        await writer.write(index, "order idempotent", sequence=sequence)


async def _write_transactions(writer: Writer) -> None:
    """One committed and one aborted transaction, interleaved, each with its marker."""
    kept, dropped = writer.transactional("shop-1"), writer.transactional("shop-2")
    for producer in (kept, dropped):
        await producer.start()
        await writer.write_payments(producer)
    for producer, commit in ((dropped, False), (kept, True)):
        await producer.end(commit=commit)
        writer.written.batches += 1  # the marker
        writer.written.records += 1


async def _leave_a_transaction_open(writer: Writer) -> None:
    """On purpose: the failover has to abort it."""
    producer = writer.transactional("shop-3")
    await producer.start()
    await writer.write_payments(producer)
