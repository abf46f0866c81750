"""Show 2: other people's clients read a mirror by partition, in both isolation levels, with the source's offsets."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from conformance.peers.fixtures import MakeKafka
from conformance.peers.kafka import KafkaInstallation
from conformance.peers.kmirror_process import KmirrorBroker
from conformance.wire.client import Broker
from tests.integration.source_topics import (
    ISOLATION_NAMES,
    PREFIX,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Source,
    fill_quickly,
    read_with_librdkafka,
)
from tests.integration.watching import topic_of, wait_until_equal_ends

pytestmark = pytest.mark.kafka
Records = list[tuple[int, bytes | None, bytes | None]]
LEVELS = (READ_UNCOMMITTED, READ_COMMITTED)


@dataclass(slots=True)
class Mirrored:
    source: Source
    destination: KmirrorBroker
    expected: dict[tuple[str, int, int], Records]
    """(topic, partition, isolation level) -> what librdkafka reads from the *source*."""

    def some(self, *topics: str) -> list[tuple[str, int, int]]:
        wanted = {f"{PREFIX}-{topic}" for topic in topics}
        return [key for key in sorted(self.expected) if not wanted or key[0] in wanted]


@pytest.fixture(scope="module")
def mirrored(make_kafka: MakeKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
    source = fill_quickly(make_kafka())
    expected = {
        (topic, partition, level): read_with_librdkafka(source.bootstrap, topic, partition, level)
        for topic, partition in source.partitions()
        for level in LEVELS
    }
    destination = KmirrorBroker(tmp_path_factory.mktemp("kmirror") / "destination")
    with destination:
        destination.run("mirror", "create", "m", "--source", source.bootstrap, "--topics", f"{PREFIX}-.*", "--start")
        for topic in source.topics:
            wait_until_equal_ends(source.bootstrap, destination.bootstrap, topic)
        yield Mirrored(source, destination, expected)


def test_the_source_was_read_differently_at_the_two_levels(mirrored: Mirrored) -> None:
    """Guards the guard: the open transaction hides what follows it, the aborted one is hidden alone."""
    topic = f"{PREFIX}-transactions"
    committed = {value for _, _, value in mirrored.expected[topic, 0, READ_COMMITTED]}
    everything = {value for _, _, value in mirrored.expected[topic, 0, READ_UNCOMMITTED]}
    assert {b"aborted 1", b"open 1"} <= everything - committed
    assert {b"committed 1", b"interleaved"} <= committed


def test_confluent_kafka(mirrored: Mirrored) -> None:
    for key in mirrored.some():
        topic, partition, level = key
        found = read_with_librdkafka(mirrored.destination.bootstrap, topic, partition, level)
        assert found == mirrored.expected[key], key


def test_kcat(mirrored: Mirrored, kcat: str) -> None:
    """An older librdkafka, of the distribution."""
    for key in mirrored.some():
        topic, partition, level = key
        done = subprocess.run(
            [kcat, "-b", mirrored.destination.bootstrap, "-C", "-t", topic, "-p", str(partition), "-o", "beginning",
             "-e", "-q", "-f", r"%o %K %S\n", "-X", f"isolation.level={ISOLATION_NAMES[level]}"],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        sizes = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
        assert sizes == [(offset, _size(name), _size(value)) for offset, name, value in mirrored.expected[key]], key


def _size(part: bytes | None) -> int:
    return -1 if part is None else len(part)


def test_aiokafka(mirrored: Mirrored) -> None:
    asyncio.run(_read_with_aiokafka(mirrored))


async def _read_with_aiokafka(mirrored: Mirrored) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    for level in LEVELS:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=mirrored.destination.bootstrap, isolation_level=ISOLATION_NAMES[level],
            enable_auto_commit=False, auto_offset_reset="earliest", fetch_max_wait_ms=50,
        )  # fmt: skip
        await consumer.start()
        try:
            for key in mirrored.some():
                if key[2] != level:
                    continue
                expected = mirrored.expected[key]
                partition = TopicPartition(key[0], key[1])
                consumer.assign([partition])
                await consumer.seek_to_beginning(partition)
                found: Records = []
                while len(found) < len(expected):
                    batches = await asyncio.wait_for(consumer.getmany(partition, timeout_ms=1000), 30)
                    assert batches, f"{key}: only {len(found)} of {len(expected)} records came"
                    found += [(m.offset, m.key, m.value) for records in batches.values() for m in records]
                assert found == expected, key
                assert not await consumer.getmany(partition, timeout_ms=20), "more than there is"
        finally:
            await consumer.stop()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # its own
def test_kafka_python(mirrored: Mirrored) -> None:
    """Without the codecs for which it needs other packages."""
    from kafka import KafkaConsumer, TopicPartition

    topics = ("codec-none", "codec-gzip", "idempotent", "transactions", "trimmed", "log-append-time", "odd-records")
    for level in LEVELS:
        consumer = KafkaConsumer(
            bootstrap_servers=mirrored.destination.bootstrap, isolation_level=ISOLATION_NAMES[level],
            enable_auto_commit=False, auto_offset_reset="earliest", fetch_max_wait_ms=50,
        )  # fmt: skip
        try:
            for key in mirrored.some(*topics):
                if key[2] != level:
                    continue
                expected = mirrored.expected[key]
                partition = TopicPartition(key[0], key[1])
                consumer.assign([partition])
                consumer.seek_to_beginning(partition)
                found: Records = []
                while len(found) < len(expected):
                    batches = consumer.poll(timeout_ms=5000)
                    assert batches, f"{key}: only {len(found)} of {len(expected)} records came"
                    found += [(m.offset, m.key, m.value) for records in batches.values() for m in records]
                assert found == expected, key
        finally:
            consumer.close()


@pytest.mark.parametrize("level", LEVELS, ids=["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("topic", ["transactions", "trimmed", "codec-zstd"])
def test_kafkas_console_consumer(
    mirrored: Mirrored, kafka_installation: Callable[[str], KafkaInstallation], topic: str, level: int
) -> None:
    name = f"{PREFIX}-{topic}"
    expected = mirrored.expected[name, 0, level]
    done = kafka_installation("4.4.0").tool(
        "console-consumer", "--bootstrap-server", mirrored.destination.bootstrap, "--topic", name, "--partition", "0",
        "--offset", "earliest", "--isolation-level", ISOLATION_NAMES[level], "--max-messages", str(len(expected)),
        "--timeout-ms", "20000", "--formatter-property", "print.offset=true",
        "--formatter-property", "print.key=true",
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("Offset:")]
    assert lines == [
        f"Offset:{offset}\t{'null' if key is None else key.decode()}\t{(value or b'').decode()}"
        for offset, key, value in expected
    ]


def test_kafkas_get_offsets(mirrored: Mirrored, kafka_installation: Callable[[str], KafkaInstallation]) -> None:
    installation = kafka_installation("4.4.0")
    for when in ("-1", "-2", "-3"):
        arguments = ["--topic-partitions", f"{PREFIX}-.*", "--time", when, "--bootstrap-server"]
        ours = installation.tool("get-offsets", *arguments, mirrored.destination.bootstrap).stdout
        theirs = installation.tool("get-offsets", *arguments, mirrored.source.bootstrap).stdout
        assert sorted(ours.splitlines()) == sorted(theirs.splitlines())
        assert len(ours.splitlines()) == len(mirrored.source.partitions())


def test_a_client_that_produces_to_the_mirror_is_refused(
    mirrored: Mirrored, kcat: str, kafka_installation: Callable[[str], KafkaInstallation]
) -> None:
    """librdkafka, old and new, and Java: an error, at once or when their patience ends, and nothing appended."""
    from confluent_kafka import Producer

    topic = f"{PREFIX}-idempotent"
    ours = Broker(mirrored.destination.bootstrap)
    end = ours.latest(topic_of(ours, topic))
    errors = []
    producer = Producer({"bootstrap.servers": ours.address, "message.timeout.ms": 10_000, "log_level": 0})
    producer.produce(topic, b"refused", on_delivery=lambda error, _: errors.append(error))
    producer.flush(20)
    assert errors and errors[0] is not None and errors[0].code() == 147
    done = subprocess.run(
        [kcat, "-b", ours.address, "-P", "-t", topic], input=b"refused\n", capture_output=True, timeout=60, check=False
    )
    assert b"147" in done.stderr
    refused = kafka_installation("4.4.0").tool(
        "console-producer", "--bootstrap-server", ours.address, "--topic", topic, "--command-property",
        "delivery.timeout.ms=8000", "--command-property", "request.timeout.ms=4000", stdin="refused\n", check=False,
    )  # fmt: skip
    assert "ERROR" in refused.stderr or "Error" in refused.stderr, refused
    assert ours.latest(topic_of(ours, topic)) == end
