"""The demo's source: a kmirror in this process, and everything worth mirroring written to it.

Plain, compressed and idempotent records come through Produce, like anybody's. The transactional partition is appended
to the embedded broker's log the way a transaction coordinator appends: this broker has no coordinator yet, and
Produce is not loosened for a demo.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kmirror.app import App
from kmirror.cli.failure import Failure
from kmirror.cli.session import check, refusal
from kmirror.clock import SystemClock
from kmirror.protocol.api.create_topics import CreatableTopic, CreateTopicsRequest
from kmirror.protocol.compression import Compression
from kmirror.protocol.records import Record, build_batch, end_txn_marker
from kmirror.server.waiting import settled
from kmirror.source.cluster import Cluster

ORDERS, PAYMENTS = "orders", "payments"
ORDERS_PARTITIONS = 3
RECORDS_IN_BATCH = 20
IDEMPOTENT_PRODUCER = 4711
COMMITTED_PRODUCER, ABORTED_PRODUCER, OPEN_PRODUCER = 9001, 9002, 9003


@dataclass(slots=True)
class Written:
    """What the source holds, for the checks that follow."""

    records: int = 0
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


def _records(count: int, text: str) -> list[Record]:
    return [Record(f"{text}-{number}".encode(), f"{text} number {number} ".encode() * 4) for number in range(count)]


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
            _records(RECORDS_IN_BATCH, text),
            compression=compression,
            producer_id=IDEMPOTENT_PRODUCER if idempotent else -1,
            producer_epoch=0 if idempotent else -1,
            base_sequence=sequence if sequence is not None else -1,
            timestamp_ms=self.clock.time_ms(),
        )
        answer = await self.cluster.produce(ORDERS, partition, data)
        if answer.error_code:
            raise Failure(f"the source refused a batch: {refusal(answer.error_code, answer.error_message)}")
        self.written.records += RECORDS_IN_BATCH
        self.written.batches += 1


async def fill(app: App, cluster: Cluster) -> Written:
    """Everything: two leader epochs on every partition, all codecs, an idempotent producer, transactions."""
    writer = Writer(cluster)
    await _write_orders(writer, sequence=0)
    for topic, count in ((ORDERS, ORDERS_PARTITIONS), (PAYMENTS, 1)):
        for index in range(count):
            partition = app.world.partition(topic, index)
            writer.written.leader_epochs.add(partition.leader_epoch)
            if topic == PAYMENTS:
                _append_transactions(app, writer.written)
            await settled(app.world.bump_leader_epoch(partition, partition.leader_epoch + 1))
            writer.written.leader_epochs.add(partition.leader_epoch)
    await _write_orders(writer, sequence=RECORDS_IN_BATCH)
    _append_open_transaction(app, writer.written)
    payments = app.world.partition(PAYMENTS, 0)
    await settled(payments.when_committed(payments.log_end_offset))
    writer.written.codecs = [codec.name.lower() for codec in Compression]
    return writer.written


async def _write_orders(writer: Writer, *, sequence: int) -> None:
    for index in range(ORDERS_PARTITIONS):
        for codec in Compression:
            await writer.write(index, f"order {codec.name.lower()}", compression=codec)
        await writer.write(index, "order idempotent", sequence=sequence)


def _append_transactions(app: App, written: Written) -> None:
    """One committed and one aborted transaction, interleaved, each with its marker."""
    now_ms = app.world.clock.time_ms()
    for producer_id in (COMMITTED_PRODUCER, ABORTED_PRODUCER):
        _append(app, _transactional(producer_id, f"payment of {producer_id}", now_ms), RECORDS_IN_BATCH, written)
    for producer_id, commit in ((ABORTED_PRODUCER, False), (COMMITTED_PRODUCER, True)):
        marker = end_txn_marker(
            commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=now_ms
        )
        _append(app, marker, 1, written)


def _append_open_transaction(app: App, written: Written) -> None:
    """Left open on purpose: the failover has to abort it."""
    data = _transactional(OPEN_PRODUCER, f"payment of {OPEN_PRODUCER}", app.world.clock.time_ms())
    _append(app, data, RECORDS_IN_BATCH, written)


def _transactional(producer_id: int, text: str, now_ms: int) -> bytes:
    return build_batch(
        _records(RECORDS_IN_BATCH, text),
        compression=Compression.LZ4,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
        timestamp_ms=now_ms,
    )


def _append(app: App, data: bytes, record_count: int, written: Written) -> None:
    app.world.partition(PAYMENTS, 0).append_coordinator(data)
    written.records += record_count
    written.batches += 1
