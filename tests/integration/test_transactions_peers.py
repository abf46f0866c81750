"""Show 3: other people's transactional producers and Kafka's own tool, the same against kmirror and Apache Kafka.

And consume-transform-produce while kmirror is killed: whatever the moment, each input record appears once for readers
of committed data, and nothing is left open. Five rounds; CI asks for more with KMIRROR_KILL_ROUNDS.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from conformance.peers.fixtures import MakeKafka, MakeKmirror
from conformance.peers.kafka import KafkaInstallation
from conformance.peers.kmirror_process import KmirrorBroker
from conformance.peers.waiting import eventually, pause
from conformance.wire.batches import batch
from conformance.wire.client import Broker, Topic
from conformance.wire.groups import committed
from conformance.wire.transactions import (
    TransactionalProducer,
    last_stable_offset,
    listed,
    wait_for_stable_offset,
)
from tests.integration.java_programs import ToolShell, normalised, run_java_source
from tests.integration.side_by_side import Peers
from tests.integration.source_topics import READ_COMMITTED, READ_UNCOMMITTED, read_with_librdkafka

pytestmark = [pytest.mark.kafka, pytest.mark.peers]
ROUNDS = int(os.environ.get("KMIRROR_KILL_ROUNDS", "5"))
PARTITIONS = 2
PER_ROUND = 200
UNVERIFIED = {"transaction.partition.verification.enable": "false"}
COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"


@pytest.fixture(scope="module")
def installation(kafka_installation: Callable[[str], KafkaInstallation]) -> KafkaInstallation:
    return kafka_installation("4.4.0")


@pytest.fixture(scope="module")
def peers(
    make_kafka: MakeKafka, installation: KafkaInstallation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Peers]:
    kafka = make_kafka()
    with KmirrorBroker(tmp_path_factory.mktemp("peers") / "kmirror") as kmirror:
        yield Peers(Broker(kmirror.bootstrap), Broker(kafka.bootstrap), installation)


def librdkafka(broker: Broker, transactional_id: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": broker.address, "transactional.id": transactional_id, "log_level": 0,
         "transaction.timeout.ms": 60_000, "linger.ms": 1}
    )  # fmt: skip
    producer.init_transactions(30)
    return producer


def values_at_both_levels(broker: Broker, topic: Topic) -> dict[int, list[tuple[int, bytes | None]]]:
    """(offset, value) as read by librdkafka, once every transaction is settled."""
    eventually(lambda: last_stable_offset(broker, topic) == broker.latest(topic), what="settled transactions")
    return {
        level: [(offset, value) for offset, _, value in read_with_librdkafka(broker.address, topic.name, 0, level)]
        for level in (READ_UNCOMMITTED, READ_COMMITTED)
    }


# --- producers


def test_librdkafka(peers: Peers) -> None:
    """Commits, aborts and offsets in turn: the same offsets and values at both levels."""
    seen, offset = peers.both(_produce_with_librdkafka)
    assert [value for _, value in seen[READ_COMMITTED]] == [b"0", b"2", b"4"]
    assert [value for _, value in seen[READ_UNCOMMITTED]] == [b"0", b"1", b"2", b"3", b"4"]
    assert offset == 4


def _produce_with_librdkafka(broker: Broker) -> tuple[dict[int, list[tuple[int, bytes | None]]], int]:
    topic, group = broker.create_topic(), broker.new_name("group")
    producer = librdkafka(broker, broker.new_name("txn"))
    reader = Consumer({"bootstrap.servers": broker.address, "group.id": group, "log_level": 0})
    for number in range(5):
        producer.begin_transaction()
        producer.produce(topic.name, str(number).encode(), partition=0)
        offsets = [TopicPartition(topic.name, 0, number)]
        producer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), 30)
        producer.abort_transaction(30) if number % 2 else producer.commit_transaction(30)
    reader.close()
    return values_at_both_levels(broker, topic), committed(broker, group, topic)


def test_java(peers: Peers) -> None:
    """Every path of a Java producer, and the exception that a fenced one gets in each of them."""
    said, seen, offset = peers.both(partial(_produce_with_java, peers.installation))
    assert said.count("commit: ok") == 2 and "fenced at commit: ProducerFencedException" in said
    assert "fenced at send: InvalidProducerEpochException" in said
    assert [value for _, value in seen[READ_COMMITTED]][:2] == [b"committed", b"committed again"]
    assert not {b"aborted", b"of the old one", b"late"} & {value for _, value in seen[READ_COMMITTED]}
    assert offset == 1


def _produce_with_java(
    installation: KafkaInstallation, broker: Broker
) -> tuple[list[str], dict[int, list[tuple[int, bytes | None]]], int]:
    topic, group = broker.create_topic(), broker.new_name("group")
    done = run_java_source(
        installation, "TransactionalPaths", broker.address, topic.name, group, broker.new_name("txn")
    )
    return done.stdout.splitlines(), values_at_both_levels(broker, topic), committed(broker, group, topic)


def test_librdkafka_fenced(peers: Peers) -> None:
    """The same codes in each path, and the newer producer's transaction is not touched."""
    seen = peers.both(_fence_librdkafka)
    assert all(code for name, code in seen.items() if name.startswith("fenced")), seen


def _fence_librdkafka(broker: Broker) -> dict[str, int]:
    topic = broker.create_topic()
    reader = Consumer({"bootstrap.servers": broker.address, "group.id": broker.new_name("group"), "log_level": 0})
    seen: dict[str, int] = {}

    def code_of(call: Callable[[], Any]) -> int:
        try:
            call()
        except KafkaException as error:
            return int(error.args[0].code())
        return 0

    def send(producer: Producer, value: bytes) -> int:
        """Without a delivery callback: a fatal error is raised by whatever call comes next."""
        producer.produce(topic.name, value, partition=0)
        return code_of(partial(producer.flush, 30))

    for path in ("produce", "offsets", "commit", "abort"):
        name = broker.new_name("txn")
        old = librdkafka(broker, name)
        old.begin_transaction()
        assert send(old, b"of the old one") == 0
        new = librdkafka(broker, name)
        new.begin_transaction()
        assert send(new, b"of the new one") == 0
        offsets = [TopicPartition(topic.name, 0, 1)]
        if path == "produce":
            seen["fenced produce"] = send(old, b"late")
        elif path == "offsets":
            metadata = reader.consumer_group_metadata()
            seen["fenced offsets"] = code_of(partial(old.send_offsets_to_transaction, offsets, metadata, 30))
        elif path == "abort":
            seen["fenced abort"] = code_of(partial(old.abort_transaction, 30))
        seen[f"fenced commit after {path}"] = code_of(partial(old.commit_transaction, 30))
        seen[f"new one after {path}"] = code_of(partial(new.commit_transaction, 30))
    reader.close()
    seen["committed"] = len(values_at_both_levels(broker, topic)[READ_COMMITTED])
    return seen


def test_an_old_librdkafka(peers: Peers, kcat: str) -> None:
    """kcat, whose librdkafka knows only the protocol before KIP-890, produces one transaction."""

    def scenario(broker: Broker) -> dict[int, list[tuple[int, bytes | None]]]:
        topic = broker.create_topic()
        subprocess.run(
            [kcat, "-b", broker.address, "-P", "-t", topic.name, "-p", "0", "-X", f"transactional.id={topic.name}"],
            input=b"one\ntwo\nthree\n", capture_output=True, timeout=60, check=True,
        )  # fmt: skip
        return values_at_both_levels(broker, topic)

    seen = peers.both(scenario)
    assert [value for _, value in seen[READ_COMMITTED]] == [b"one", b"two", b"three"]


# --- kafka-transactions


def test_kafkas_transactions_tool(peers: Peers) -> None:
    """list, describe, describe-producers, find-hanging, abort, forceTerminateTransaction: the same on both."""
    tables = peers.both(partial(_transactions_tool, peers.installation))
    assert [name for name, lines in tables.items() if not lines] == ["terminate"], tables


def _transactions_tool(installation: KafkaInstallation, broker: Broker) -> dict[str, list[str]]:
    topic = broker.create_topic()
    producer = TransactionalProducer(broker, broker.new_name("tool")).init()
    with ToolShell(installation) as shell:

        def tool(*arguments: str) -> list[str]:
            done = shell.run("transactions", ["--bootstrap-server", broker.address, *arguments])
            return _without_times(done.stdout, broker, topic, producer)

        tables = {"describe before": tool("describe", "--transactional-id", producer.transactional_id)}
        producer.add(topic)
        assert producer.produce(topic).error_code == 0
        pattern = ["--transactional-id-pattern", re.escape(producer.transactional_id).replace(r"\-", "-")]
        tables["list"] = tool("list", *pattern)
        tables["list long ones"] = tool("list", *pattern, "--duration-filter", "3600000")
        tables["describe"] = tool("describe", "--transactional-id", producer.transactional_id)
        tables["describe unknown"] = tool("describe", "--transactional-id", "nobody")
        tables["producers"] = tool("describe-producers", "--topic", topic.name, "--partition", "0")
        tables["none hangs"] = tool("find-hanging", "--topic", topic.name)
        tables["abort elsewhere"] = tool("abort", "--topic", topic.name, "--partition", "0", "--start-offset", "5")
        tables["terminate"] = tool("forceTerminateTransaction", "--transactionalId", producer.transactional_id)
        wait_for_stable_offset(broker, topic, 2)
        tables["terminated"] = tool("list", *pattern)
        tables["producers at the end"] = tool("describe-producers", "--topic", topic.name, "--partition", "0")
    tables["fenced"] = [str(producer.end(True))]
    return tables


_VARYING = (
    (r"\b1[6-9]\d{11}\b", "TIME"),
    (r"^TXN \d+ \d+", "TXN NODE PID"),  # list
    (r"^\d+ TXN \d+", "NODE TXN PID"),  # describe
    (r"^TOPIC (\d+) \d+", r"TOPIC \1 PID"),  # find-hanging
    (r"^((NODE TXN|TOPIC) .* TIME) \d+", r"\1 AGO"),
    (r"^\d+ (\d+ -?\d+ -?\d+ TIME)", r"PID \1"),  # describe-producers
)


def _without_times(text: str, broker: Broker, topic: Topic, producer: TransactionalProducer) -> list[str]:
    lines = normalised(text, broker.address, {topic.name: "TOPIC", producer.transactional_id: "TXN"})
    for pattern, stands_for in _VARYING:
        lines = [re.sub(pattern, stands_for, line) for line in lines if "[main] WARN" not in line]
    return lines


def test_a_transaction_that_hangs_is_found_and_aborted(
    make_kafka: MakeKafka, make_kmirror: MakeKmirror, installation: KafkaInstallation
) -> None:
    """Only brokers that do not verify can get one: a batch of a transaction that the coordinator knows nothing of."""
    kmirror, kafka = make_kmirror(settings=UNVERIFIED), make_kafka(overrides=UNVERIFIED)
    pair = Peers(Broker(kmirror.bootstrap), Broker(kafka.bootstrap), installation)
    tables = pair.both(partial(_hang, installation))
    assert any("TOPIC" in line and "PID" in line for line in tables["found"]), tables["found"]
    assert not any("PID" in line for line in tables["found afterwards"])


def _hang(installation: KafkaInstallation, broker: Broker) -> dict[str, list[str]]:
    topic = broker.create_topic()
    assert broker.produce(topic, batch([b"before"])).error_code == 0
    producer = TransactionalProducer(broker).init()
    assert producer.produce(topic, [b"hangs"]).base_offset == 1
    assert broker.produce(topic, batch([b"after"])).error_code == 0
    with ToolShell(installation) as shell:

        def tool(*arguments: str) -> list[str]:
            done = shell.run("transactions", ["--bootstrap-server", broker.address, *arguments])
            return _without_times(done.stdout, broker, topic, producer)

        tables = {"found": tool("find-hanging", "--topic", topic.name)}
        assert last_stable_offset(broker, topic) == 1
        where = ["--topic", topic.name, "--partition", "0"]
        tables["abort"] = tool("abort", *where, "--start-offset", "1")
        wait_for_stable_offset(broker, topic, 4)
        tables["found afterwards"] = tool("find-hanging", "--topic", topic.name)
        tables["abort again"] = tool("abort", *where, "--start-offset", "1")
        tables["producers"] = tool("describe-producers", *where)
    values = [value for _, _, value in read_with_librdkafka(broker.address, topic.name, 0, READ_COMMITTED)]
    assert values == [b"before", b"after"]
    return tables


# --- consume-transform-produce and kill -9


@dataclass
class Copier(threading.Thread):
    """Reads `source`, writes `copy-…` to `target` in transactions with its offsets; starts anew after every error.

    Without librdkafka's re-bootstrap, which is on by default: when the only broker is gone for a moment, 2.16.0 forgets
    it and goes on waiting for the group's coordinator at the forgotten one, for ever and against any broker.
    """

    bootstrap: str
    source: str
    target: str
    group: str
    transactional_id: str
    rng: random.Random
    halt: bool = False
    commits: int = 0
    aborts: int = 0
    lives: int = 0
    failure: str = ""
    errors: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        while not self.halt:
            self.lives += 1
            consumer = Consumer(
                {"bootstrap.servers": self.bootstrap, "group.id": self.group, "isolation.level": "read_committed",
                 "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0,
                 "session.timeout.ms": 6000, "heartbeat.interval.ms": 300, "fetch.wait.max.ms": 50,
                 "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20, "retry.backoff.max.ms": 100,
                 "metadata.recovery.strategy": "none"}
            )  # fmt: skip
            try:
                self._live(consumer)
            except KafkaException as error:
                self.errors[int(error.args[0].code())] += 1
            except Exception as error:
                self.failure = repr(error)
                return
            finally:
                consumer.close()

    def _live(self, consumer: Consumer) -> None:
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "transactional.id": self.transactional_id, "log_level": 0,
             "transaction.timeout.ms": 30_000, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20,
             "retry.backoff.max.ms": 100, "linger.ms": 1, "metadata.recovery.strategy": "none"}
        )  # fmt: skip
        producer.init_transactions(20)
        consumer.subscribe([self.source])
        while not self.halt:
            messages: list[Any] = [
                message for message in consumer.consume(self.rng.randint(1, 20), timeout=0.05) if not message.error()
            ]
            if not messages:
                continue
            producer.begin_transaction()
            for message in messages:
                producer.produce(self.target, b"copy-" + message.value(), partition=message.partition())
            positions = {message.partition(): message.offset() + 1 for message in messages}
            offsets = [TopicPartition(self.source, partition, offset) for partition, offset in positions.items()]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 20)
            if self.rng.random() < 0.1:  # an application that changes its mind: it reads those again
                producer.abort_transaction(20)
                self.aborts += 1
                return
            producer.commit_transaction(20)
            self.commits += 1


def copies(bootstrap: str, topic: Topic) -> Counter[bytes]:
    """How often each value is seen by a reader of committed data."""
    found: Counter[bytes] = Counter()
    for partition in range(topic.partition_count):
        found.update(
            value or b"" for _, _, value in read_with_librdkafka(bootstrap, topic.name, partition, READ_COMMITTED)
        )
    return found


def nothing_is_open(broker: Broker, *topics: Topic) -> None:
    for topic in topics:
        for index in range(topic.partition_count):
            assert last_stable_offset(broker, topic, index) == broker.latest(topic, index), f"{topic.name}-{index}"
    assert listed(broker, state_filters=["Ongoing", "PrepareCommit", "PrepareAbort"]) == {}


def fill(broker: Broker, topic: Topic, tag: str) -> set[bytes]:
    values = set()
    for partition in range(topic.partition_count):
        mine = [f"{tag}-{partition}-{number}".encode() for number in range(PER_ROUND)]
        assert broker.produce_when_ready(topic, batch(mine), partition=partition).error_code == 0
        values |= set(mine)
    return values


def test_exact_counts_over_kills(make_kmirror: MakeKmirror, rng: random.Random) -> None:
    kmirror = make_kmirror()
    broker = Broker(kmirror.bootstrap)
    source, target = (broker.create_topic(partition_count=PARTITIONS) for _ in range(2))
    group = broker.new_name("copier")
    copier = Copier(kmirror.bootstrap, source.name, target.name, group, broker.new_name("txn"), rng)
    copier.start()
    wanted: set[bytes] = set()
    try:
        for number in range(ROUNDS):
            wanted |= fill(broker, source, f"r{number}")
            before = copier.commits
            eventually(lambda: copier.commits > before or copier.failure, what="commits")  # noqa: B023
            pause(rng.uniform(0.0, 0.25))  # the moment of the kill is the test
            kmirror.kill()
            kmirror.start()
            broker = Broker(kmirror.bootstrap)
        wanted |= fill(broker, source, "last")
        ends = [broker.latest(source, index) for index in range(PARTITIONS)]
        eventually(
            lambda: copier.failure or [committed(broker, group, source, index) for index in range(PARTITIONS)] == ends,
            what="copied input", timeout_s=90,
        )  # fmt: skip
    finally:
        copier.halt = True
        copier.join(60)
    assert not copier.is_alive() and not copier.failure, copier.failure
    eventually(
        lambda: sum(copies(kmirror.bootstrap, target).values()) >= len(wanted), what="visible copies", timeout_s=30
    )
    assert copies(kmirror.bootstrap, target) == Counter({b"copy-" + value: 1 for value in wanted})
    eventually(lambda: not listed(broker, state_filters=["Ongoing"]), what="ended transactions", timeout_s=40)
    nothing_is_open(broker, target)
    print(f"{copier.commits} commits, {copier.aborts} aborts, {copier.lives} lives, errors {dict(copier.errors)}")


def run_copier(installation: KafkaInstallation, broker: Broker, source: Topic, target: Topic, group: str) -> list[str]:
    """The command of Kafka's own consume-transform-produce tool, with aborts at random.

    Not in its group mode: there it stops after its first abort, against Kafka 4.4.0 as well.
    """
    return installation.tool_command(
        COPIER,
        ["--broker-list", broker.address, "--input-topic", source.name, "--input-partition", "0", "--output-topic",
         target.name, "--consumer-group", group, "--transactional-id", f"{group}-txn", "--transaction-size", "25",
         "--enable-random-aborts", "--use-group-metadata"],
    )  # fmt: skip


def test_kafkas_message_copier_over_kills(
    make_kmirror: MakeKmirror, installation: KafkaInstallation, tmp_path: Path, rng: random.Random
) -> None:
    """As in Kafka's system tests: the copier aborts at random, kmirror is killed twice, the counts are exact."""
    kmirror = make_kmirror()
    broker = Broker(kmirror.bootstrap)
    source, target = broker.create_topic(), broker.create_topic()
    wanted = set[bytes]().union(*(fill(broker, source, f"r{number}") for number in range(5)))
    command = run_copier(installation, broker, source, target, broker.new_name("copier"))
    kills = 2
    for _ in range(10):
        with (tmp_path / "copier.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            while kills and process.poll() is None:
                end = broker.latest(target)
                eventually(
                    lambda: process.poll() is not None or broker.latest(target) > end,  # noqa: B023
                    what="copies",
                )
                pause(rng.uniform(0.05, 0.3))
                kmirror.kill()
                kmirror.start()
                broker = Broker(kmirror.bootstrap)
                kills -= 1
            status = process.wait(90)
        finally:
            process.kill()
        if status == 0:
            break
    assert status == 0, (tmp_path / "copier.log").read_text(errors="replace")[-3000:]
    assert not kills
    eventually(lambda: last_stable_offset(broker, target) == broker.latest(target), what="ended transactions")
    assert copies(kmirror.bootstrap, target) == Counter(dict.fromkeys(wanted, 1))
    nothing_is_open(broker, target)
