"""Produce and consume throughput, and the latency of one acknowledgement, all through librdkafka."""

from __future__ import annotations

import statistics
import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

RECORD_BYTES = 1024
_CALL_RECORDS = 2000
_CONSUME_RECORDS = 10_000
_TIMEOUT_S = 120.0


class BenchFailed(RuntimeError):
    """A measure could not be taken: the broker refused, lost, or never delivered something."""


def create_topic(bootstrap: str, topic: str, partition_count: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    created: dict[str, Any] = admin.create_topics([NewTopic(topic, partition_count, 1)])
    created[topic].result(30)


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deleted: dict[str, Any] = admin.delete_topics([topic])
    deleted[topic].result(30)


def producer_options(bootstrap: str, **options: object) -> dict[str, Any]:
    base: dict[str, Any] = {
        "bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "batch.size": 1_000_000, "log_level": 0,
        "queue.buffering.max.messages": 2_000_000, "queue.buffering.max.kbytes": 2_000_000,
        "delivery.report.only.error": True,
    }  # fmt: skip
    return base | {name.replace("_", "."): value for name, value in options.items()}


def produce(bootstrap: str, topic: str, *, partition_count: int, record_count: int, **options: object) -> float:
    """MB/s (10^6 bytes of record values) from the first record handed over to the last acknowledgement."""
    failures: list[Any] = []
    producer = Producer(producer_options(bootstrap, **options))
    producer.list_topics(topic, timeout=30)  # connected before the clock starts

    def refused(error: Any, _message: Any) -> None:  # called for errors only
        failures.append(error)

    value = b"v" * RECORD_BYTES
    calls = [
        [{"value": value, "partition": partition} for _ in range(_CALL_RECORDS)] for partition in range(partition_count)
    ]
    started = time.perf_counter()
    sent = 0
    while sent < record_count:
        producer.produce_batch(topic, calls[(sent // _CALL_RECORDS) % partition_count], on_delivery=refused)
        sent += _CALL_RECORDS
        producer.poll(0)
    remaining = producer.flush(_TIMEOUT_S)
    seconds = time.perf_counter() - started
    if remaining or failures:
        raise BenchFailed(f"{remaining} records not delivered, {len(failures)} refused ({failures[:1]})")
    return sent * RECORD_BYTES / 1e6 / seconds


def consume(bootstrap: str, topic: str, *, partition_count: int, record_count: int) -> float:
    """MB/s from assignment at the beginning to the last record."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, "log_level": 0,
            "auto.offset.reset": "earliest", "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 1_000_000, "fetch.message.max.bytes": 8 << 20, "check.crcs": False,
        }
    )  # fmt: skip
    consumer.list_topics(topic, timeout=30)
    started = time.perf_counter()
    deadline = started + _TIMEOUT_S
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partition_count)])
    received = 0
    while received < record_count:
        messages = consumer.consume(_CONSUME_RECORDS, timeout=1)
        received += len(messages)
        if time.perf_counter() > deadline:
            raise BenchFailed(f"only {received} of {record_count} records arrived")
    seconds = time.perf_counter() - started
    consumer.close()
    return received * RECORD_BYTES / 1e6 / seconds


def acknowledgement_ms(bootstrap: str, topic: str, *, record_count: int) -> tuple[float, float]:
    """p50 and p99 in ms of produce-to-delivery-report, one record in flight."""
    producer = Producer(producer_options(bootstrap, linger_ms=0) | {"delivery.report.only.error": False})
    producer.list_topics(topic, timeout=30)
    delivered: list[Any] = []

    def on_delivery(error: Any, _message: Any) -> None:
        delivered.append(error)

    value, samples = b"v" * RECORD_BYTES, []
    for index in range(record_count + record_count // 10):
        started = time.perf_counter()
        producer.produce(topic, value, partition=0, on_delivery=on_delivery)
        while not delivered:
            producer.poll(1)
            if time.perf_counter() - started > _TIMEOUT_S:
                raise BenchFailed("no acknowledgement")
        if delivered.pop() is not None:
            raise BenchFailed("a record was refused")
        if index >= record_count // 10:  # the first tenth warms up
            samples.append((time.perf_counter() - started) * 1000)
    cuts = statistics.quantiles(samples, n=100)
    return cuts[49], cuts[98]
