"""How long a fresh group waits for its first message: what everybody meets who starts a consumer in a test.

From a new librdkafka consumer's first call to the first record of a topic that already has one, under a group id that
nobody has used: bootstrap, coordinator, join, sync, offsets, fetch. All contestants run with
group.initial.rebalance.delay.ms=0; as it is delivered Kafka waits 3 s more.
"""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, Producer

from conformance.bench.throughput import BenchFailed, producer_options

_TIMEOUT_S = 60.0


def write_one(bootstrap: str, topic: str) -> None:
    producer = Producer(producer_options(bootstrap))
    producer.produce(topic, b"first")
    if producer.flush(_TIMEOUT_S):
        raise BenchFailed("the record was not delivered")


def first_message_ms(bootstrap: str, topic: str) -> float:
    """ms from creating the consumer to its first record."""
    started = time.perf_counter()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": f"bench-{time.monotonic_ns()}", "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "log_level": 0,
        }
    )  # fmt: skip
    try:
        consumer.subscribe([topic])
        while time.perf_counter() - started < _TIMEOUT_S:
            message: Any = consumer.poll(1.0)
            if message is not None and not message.error():
                return (time.perf_counter() - started) * 1000
        raise BenchFailed("no message")
    finally:
        consumer.close()
