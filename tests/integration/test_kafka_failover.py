"""Show 3: failing over from a real Kafka with transactions open, and what producers and consumers find afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer

from conformance.peers.fixtures import MakeKafka, MakeKmirror
from conformance.peers.kafka import KafkaBroker, KafkaInstallation
from conformance.peers.kmirror_process import KmirrorBroker
from conformance.peers.waiting import eventually
from conformance.wire.batches import batch
from conformance.wire.client import Broker, Topic
from kmirror.protocol.api.init_producer_id import InitProducerIdRequest
from tests.integration.source_topics import QUIET, READ_COMMITTED, READ_UNCOMMITTED, read_with_librdkafka
from tests.integration.watching import (
    batches_on_disk,
    control_types,
    describe,
    states,
    stored,
    topic_of,
    wait_until_equal_ends,
)

pytestmark = pytest.mark.kafka
TOPIC = "orders"
ABORT, COMMIT, PID_RESET = 0, 1, 7
READ_ONLY_TOPIC = 147


@pytest.fixture(scope="module")
def kafka(make_kafka: MakeKafka) -> KafkaBroker:
    """A source that keeps one generation of producer ids; a test may kill it and start it again."""
    return make_kafka()


@dataclass(slots=True)
class Example:
    """The worked example of the specification, seen from outside."""

    kafka: KafkaBroker
    kmirror: KmirrorBroker
    topic: str
    first: Any  # an open transaction with two records
    second: Any  # an open transaction with one record

    @property
    def here(self) -> Broker:
        return Broker(self.kmirror.bootstrap)

    @property
    def known(self) -> Topic:
        return topic_of(self.here, self.topic)

    def run(self, verb: str, *, check: bool = True) -> int:
        return self.kmirror.run("mirror", verb, "m", "--topics", self.topic, check=check).returncode

    def producer_ids(self) -> list[int]:
        batches = batches_on_disk(self.kmirror.data_directory, self.topic, 0)
        return sorted({entry.producer_id for entry in batches if entry.producer_id >= 0})


def _producer(kafka: KafkaBroker, **options: str) -> Producer:
    names: dict[str, Any] = {key.replace("_", "."): value for key, value in options.items()}
    return Producer({"bootstrap.servers": kafka.bootstrap, **QUIET, **names})


def _in_transaction(kafka: KafkaBroker, name: str, topic: str, *values: str) -> Producer:
    producer = _producer(kafka, transactional_id=name)
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(30)
    return producer


@pytest.fixture
def example(kafka: KafkaBroker, make_kmirror: MakeKmirror, request: pytest.FixtureRequest) -> Example:
    """Caught up at offset 3 of the example: A=1, B=2 of one open transaction, X=9 of another."""
    if not kafka.running:
        kafka.start()
    topic = f"{TOPIC}-{request.node.name.replace('[', '-').replace(']', '')}"[:60]
    there = Broker(kafka.bootstrap)
    kafka.tool("topics", "--bootstrap-server", kafka.bootstrap, "--create", "--topic", topic, "--partitions", "1")
    first = _in_transaction(kafka, f"{topic}-1", topic, "A=1", "B=2")
    second = _in_transaction(kafka, f"{topic}-2", topic, "X=9")
    assert there.latest(topic_of(there, topic)) == 3
    kmirror = make_kmirror()
    kmirror.run("mirror", "create", "m", "--source", kafka.bootstrap, "--topics", topic, "--start")
    wait_until_equal_ends(kafka.bootstrap, kmirror.bootstrap, topic)
    return Example(kafka, kmirror, topic, first, second)


def go_on_at_the_source(example: Example) -> None:
    """The rest of the example: the first transaction commits, a third producer and a plain record follow."""
    example.first.commit_transaction(30)
    third = _in_transaction(example.kafka, f"{example.topic}-3", example.topic, "Y=5")
    plain = _producer(example.kafka)
    plain.produce(example.topic, "Z=10", partition=0)
    assert plain.flush(30) == 0
    third.commit_transaction(30)


def check_the_log_after_stop(example: Example) -> None:
    """0 to 2 are the source's, 3 and 4 ABORT in ascending producer id, 5 the reset, all in one epoch above the LME."""
    directory = example.kmirror.data_directory
    pids = example.producer_ids()
    assert len(pids) == 2
    assert control_types(directory, example.topic, 0) == [
        (3, ABORT, pids[0]),
        (4, ABORT, pids[1]),
        (5, PID_RESET, -1),
    ]
    batches = batches_on_disk(directory, example.topic, 0)
    assert batches[-1].last_offset == 5
    (row,) = describe(example.kmirror)
    assert (row["state"], row["last_mirror_offset"]) == ("STOPPED", 3)
    own_epochs = {entry.leader_epoch for entry in batches[-3:]}
    assert len(own_epochs) == 1 and min(own_epochs) > row["last_mirror_epoch"] >= 0
    theirs = stored(example.kafka.data_directory, example.topic, 0, log_start=0)
    ours = stored(directory, example.topic, 0, log_start=0)
    assert theirs.startswith(ours[: sum(entry.size_bytes for entry in batches[:-3])])


def check_consumers_and_producers(example: Example) -> None:
    here, topic = example.here, example.known
    assert here.list_offset(topic, -1, isolation_level=1).offset == 6, "the last stable offset is held back"
    assert read_with_librdkafka(example.kmirror.bootstrap, example.topic, 0, READ_COMMITTED) == []
    everything = read_with_librdkafka(example.kmirror.bootstrap, example.topic, 0, READ_UNCOMMITTED)
    assert [value for _, _, value in everything] == [b"A=1", b"B=2", b"X=9"]
    for number, pid in enumerate(example.producer_ids()):
        row = here.produce(topic, batch([b"mine"], producer_id=pid, producer_epoch=0, base_sequence=0))
        assert (row.error_code, row.base_offset) == (0, 6 + number), "taken for a duplicate of a mirrored batch"
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    fresh = here.request(request).producer_id
    assert fresh > max(example.producer_ids()) and fresh >> 32, "not in kmirror's own range"
    committed = read_with_librdkafka(example.kmirror.bootstrap, example.topic, 0, READ_COMMITTED)
    assert [(offset, value) for offset, _, value in committed] == [(6, b"mine"), (7, b"mine")]


def test_the_worked_example(
    example: Example, kafka_installation: Callable[[str], KafkaInstallation], request: pytest.FixtureRequest
) -> None:
    """Pause at offset 3, let the source go on, stop from PAUSED."""
    example.run("pause")
    go_on_at_the_source(example)
    there = Broker(example.kafka.bootstrap)
    assert there.latest(topic_of(there, example.topic)) == 7
    example.run("stop")
    check_the_log_after_stop(example)
    check_consumers_and_producers(example)
    verified = example.kmirror.run("verify", "m", "--json")
    assert json.loads(verified.stdout)
    files = [str(path) for path in (example.kmirror.data_directory / f"{example.topic}-0").glob("*.log")]
    dumped = kafka_installation("4.4.0").tool("dump-log", "--print-data-log", "--files", ",".join(files))
    assert dumped.stdout.count("endTxnMarker: ABORT") == 2
    assert "Error at" not in dumped.stdout + dumped.stderr


def test_stop_after_the_source_died(example: Example) -> None:
    """MIRRORING → the source dies → start tried again → stop: the same log."""
    example.kafka.kill()
    example.kmirror.run("mirror", "start", "m", "--topics", example.topic, "--timeout", "3", check=False)
    example.run("stop")
    check_the_log_after_stop(example)
    check_consumers_and_producers(example)


def test_failed_then_started_then_stopped_without_a_source(example: Example) -> None:
    """The source's topic is deleted (FAILED, not retried); start finds nothing; stop gives the same log."""
    example.kafka.tool("topics", "--bootstrap-server", example.kafka.bootstrap, "--delete", "--topic", example.topic)
    eventually(lambda: states(example.kmirror) == {"FAILED"}, what="FAILED after the deletion")
    row = example.here.produce(example.known, batch([b"refused"]))
    assert row.error_code == READ_ONLY_TOPIC and "FAILED" in (row.error_message or ""), row
    example.kmirror.run("mirror", "start", "m", "--topics", example.topic, "--timeout", "3", check=False)
    example.run("stop")
    directory, pids = example.kmirror.data_directory, example.producer_ids()
    assert [kind for _, kind, _ in control_types(directory, example.topic, 0)] == [ABORT, ABORT, PID_RESET]
    assert [pid for _, _, pid in control_types(directory, example.topic, 0)] == [*pids, -1]
    check_consumers_and_producers(example)


def test_restart_right_after_stop_changes_nothing(example: Example) -> None:
    example.run("stop")
    before = stored(example.kmirror.data_directory, example.topic, 0, log_start=0)
    example.kmirror.restart(clean=False)
    assert stored(example.kmirror.data_directory, example.topic, 0, log_start=0) == before
    check_the_log_after_stop(example)
    check_consumers_and_producers(example)


def test_writes_are_refused_in_every_state_but_stopped(example: Example) -> None:
    """READ_ONLY_TOPIC with a message that names mirror and state; nothing appended."""

    def refused(state: str) -> None:
        end = example.here.latest(example.known)
        row = example.here.produce(example.known, batch([b"refused"]))
        assert row.error_code == READ_ONLY_TOPIC and state in (row.error_message or ""), row
        assert example.here.latest(example.known) == end

    refused("MIRRORING")
    example.run("pause")
    refused("PAUSED")
    example.kmirror.restart()
    refused("PAUSED")
    example.run("resume")
    example.kafka.kill()
    example.kmirror.restart(clean=False)
    refused("")  # PREPARING or MIRRORING without a source
    example.run("stop")
    assert example.here.produce(example.known, batch([b"mine"])).error_code == 0
