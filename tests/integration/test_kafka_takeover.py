"""Directories change hands while nobody runs: Apache Kafka's to a kmirror with `kmirror import`, and a kmirror's back.

First way: everything that readers can ask has the same answer, and producing goes on. Second way: the topics are made
by Kafka, come here by `kmirror import` (so that they have the same ids on both sides), kmirror writes and compacts
them, and the files go back as they are, under the Kafka's own metadata.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from conformance.peers.fixtures import MakeKafka
from conformance.peers.kafka import KafkaBroker, KafkaInstallation
from conformance.peers.kmirror_process import CommandResult, KmirrorBroker, run_kmirror
from conformance.peers.maven import OLD_VERSIONS, version_key
from conformance.peers.waiting import eventually
from conformance.wire.client import Broker
from kmirror.protocol.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kmirror.protocol.api.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.integration.source_topics import PREFIX, QUIET, Source, fill, read_with_librdkafka, wait_until_quiet
from tests.integration.watching import batches_on_disk, segments, stored, topic_of

pytestmark = pytest.mark.kafka
VERSION = "4.4.0"
VERSIONS = os.environ.get("KMIRROR_SOURCE_VERSIONS", f"{VERSION},{OLD_VERSIONS[0]}").split(",")
FIRST_WITH_TOPIC_IDS, FIRST_WITH_MAX_TIMESTAMP = (2, 8, 0), (3, 0, 0)
KEPT_FOR_EVER = {"retention.ms": "-1", "retention.bytes": "-1"}
FAST_CLEANER = {"log.cleaner.backoff.ms": "300"}
GROUP = f"{PREFIX}-group"
CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
OF_OTHER_THINGS = ("main ERROR Reconfiguration failed", "kafka.server.ControllerApis")
"""A logger that has no file, and a controller that is asked before it is ready: on a directory of its own as well."""
DUMPED = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
TOPIC_SOURCE = 1
"""ConfigSource of a topic's own setting."""


@dataclass(slots=True)
class Answers:
    """What a broker says of one partition."""

    offsets: list[tuple[Any, ...]] = field(default_factory=list)
    epochs: list[tuple[Any, ...]] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)


def ask(bootstrap: str, name: str, partition: int, *, max_timestamp: bool = True) -> Answers:
    """ListOffsets by everything, OffsetForLeaderEpoch for every epoch that the log has, records at both levels."""
    broker = Broker(bootstrap)
    topic = topic_of(broker, name)
    batches = broker.scan(topic, partition)
    answers = Answers()
    questions = [-1, -2, *([-3] if max_timestamp else [])]
    for timestamp in (*questions, 0, *(batch.max_timestamp + extra for batch in batches[::5] for extra in (0, 1))):
        for level in (0, 1):
            row = broker.list_offset(topic, timestamp, partition=partition, isolation_level=level)
            answers.offsets.append((timestamp, level, row.error_code, row.offset, row.timestamp))
    for epoch in range(max((batch.leader_epoch for batch in batches), default=-1) + 1):
        asked = [OffsetForLeaderPartition(partition=partition, leader_epoch=epoch)]
        request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=name, partitions=asked)])
        row = broker.request(request).topics[0].partitions[0]
        answers.epochs.append((epoch, row.error_code, row.leader_epoch, row.end_offset))
    answers.records = [read_with_librdkafka(bootstrap, name, partition, level) for level in (0, 1)]
    return answers


def own_settings(bootstrap: str, name: str) -> dict[str, str]:
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)]
    )
    rows = Broker(bootstrap).request(request).results[0].configs
    return {row.name: row.value for row in rows if row.config_source == TOPIC_SOURCE}


def commit(bootstrap: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False, **QUIET})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def committed(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, **QUIET})
    try:
        return int(consumer.committed([TopicPartition(topic, 0)], timeout=30)[0].offset)
    finally:
        consumer.close()


def write_rolled(source: Source) -> str:
    """Some segments, by size."""
    topic = source.create("rolled", configs={"segment.bytes": "1048576"})
    producer = source.producer(compression_type="none")
    for number in range(60):
        producer.produce(topic, f"{number} " + "r" * 60_000, key=f"k{number}")
        producer.flush(30)
    return topic


def import_into(kmirror: KmirrorBroker, *arguments: str, check: bool = True) -> CommandResult:
    return run_kmirror("import", *arguments, "--data-dir", str(kmirror.data_directory), check=check)


def digests(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


# --- from Kafka to kmirror --------------------------------------------------------------------------------------


@dataclass(slots=True)
class TakenOver:
    source: Source
    kmirror: KmirrorBroker
    version: tuple[int, ...]
    result: dict[str, Any]
    expected: dict[tuple[str, int], Answers]
    settings: dict[str, dict[str, str]]
    topic_ids: dict[str, bytes]
    while_running: CommandResult
    touched: set[str]
    """Files of the source that are not what they were before the import."""


@pytest.fixture(scope="module", params=VERSIONS)
def taken_over(
    request: pytest.FixtureRequest, make_kafka: MakeKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TakenOver]:
    version = version_key(request.param)
    source = fill(make_kafka(request.param, overrides=FAST_CLEANER))
    write_rolled(source)
    commit(source.bootstrap, f"{PREFIX}-idempotent", 17)
    wait_until_quiet(source)
    with_max = version >= FIRST_WITH_MAX_TIMESTAMP
    expected = {key: ask(source.bootstrap, *key, max_timestamp=with_max) for key in source.partitions()}
    settings = {name: own_settings(source.bootstrap, name) for name in source.topics}
    topic_ids = {name: topic_of(source.broker, name).topic_id for name in source.topics}
    kmirror = KmirrorBroker(tmp_path_factory.mktemp("kmirror") / "destination")
    directory = source.kafka.data_directory
    while_running = import_into(kmirror, str(directory), check=False)
    source.kafka.stop()
    before = digests(directory)
    result = import_into(kmirror, str(directory), "--json").json()
    after = digests(directory)
    with kmirror:
        yield TakenOver(
            source,
            kmirror,
            version,
            result,
            expected,
            settings,
            topic_ids,
            while_running,
            {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)},
        )


def test_a_running_kafka_is_left_alone(taken_over: TakenOver) -> None:
    assert taken_over.while_running.returncode == 2
    assert "running broker" in taken_over.while_running.stderr
    assert taken_over.touched == set()


def test_everything_is_imported(taken_over: TakenOver) -> None:
    status = {row["topic"]: row["status"] for row in taken_over.result["topics"]}
    internal = {"__consumer_offsets", "__transaction_state"}
    assert status == dict.fromkeys([*taken_over.source.topics, *internal], "imported")
    passed_over = [Path(row["path"]).name for row in taken_over.result["not_imported"]]
    if taken_over.source.kafka.installation.kraft:
        assert passed_over == ["__cluster_metadata-0"]
        assert taken_over.result["notes"] == []
    else:
        assert passed_over == []
        assert "no __cluster_metadata-0" in " ".join(taken_over.result["notes"])


def test_ids_settings_and_bytes_are_kafkas(taken_over: TakenOver) -> None:
    ours = Broker(taken_over.kmirror.bootstrap)
    for name in taken_over.source.topics:
        if taken_over.version >= FIRST_WITH_TOPIC_IDS:
            assert topic_of(ours, name).topic_id == taken_over.topic_ids[name] != bytes(16)
        known = taken_over.settings[name] if taken_over.source.kafka.installation.kraft else KEPT_FOR_EVER
        assert own_settings(taken_over.kmirror.bootstrap, name) == known
    theirs, here = taken_over.source.kafka.data_directory, taken_over.kmirror.data_directory
    compared = 0
    for name, partition in taken_over.source.partitions():
        source_bytes = stored(theirs, name, partition, log_start=0)
        assert stored(here, name, partition, log_start=0) == source_bytes, (name, partition)
        compared += len(source_bytes)
    assert compared > 3_000_000


def test_what_was_imported_is_what_the_test_is_about(taken_over: TakenOver) -> None:
    here = taken_over.kmirror.data_directory
    assert len(segments(here, f"{PREFIX}-rolled", 0)) > 2
    compacted = batches_on_disk(here, f"{PREFIX}-compacted", 0)
    assert sum(batch.record_count for batch in compacted) < compacted[-1].last_offset + 1
    if taken_over.source.kafka.installation.kraft:  # a lone ZooKeeper broker keeps its epoch over a restart
        assert len({batch.leader_epoch for batch in batches_on_disk(here, f"{PREFIX}-epochs", 0)}) >= 3
    transactions = taken_over.expected[f"{PREFIX}-transactions", 0].records
    assert 0 < len(transactions[1]) < len(transactions[0])
    assert (-2, 0, 0, 23, -1) in taken_over.expected[f"{PREFIX}-trimmed", 0].offsets


def test_readers_get_the_same_answers(taken_over: TakenOver) -> None:
    with_max = taken_over.version >= FIRST_WITH_MAX_TIMESTAMP
    for (name, partition), expected in taken_over.expected.items():
        found = ask(taken_over.kmirror.bootstrap, name, partition, max_timestamp=with_max)
        assert found.epochs == expected.epochs, (name, partition)
        assert found.offsets == expected.offsets, (name, partition)
        assert found.records == expected.records, (name, partition)


def test_committed_offsets_came_along(taken_over: TakenOver) -> None:
    assert committed(taken_over.kmirror.bootstrap, f"{PREFIX}-idempotent") == 17
    commit(taken_over.kmirror.bootstrap, f"{PREFIX}-idempotent", 18)
    assert committed(taken_over.kmirror.bootstrap, f"{PREFIX}-idempotent") == 18


def test_a_second_import_changes_nothing(taken_over: TakenOver, tmp_path: Path) -> None:
    kmirror = KmirrorBroker(tmp_path / "copy")
    taken_over.kmirror.stop()
    shutil.copytree(taken_over.kmirror.data_directory, kmirror.data_directory)
    taken_over.kmirror.start()
    again = import_into(kmirror, str(taken_over.source.kafka.data_directory), "--json", check=False)
    assert again.returncode == 1
    assert {row["status"] for row in again.json()["topics"]} == {"refused"}
    name = f"{PREFIX}-rolled"
    assert stored(kmirror.data_directory, name, 0, log_start=0) == stored(
        taken_over.kmirror.data_directory, name, 0, log_start=0
    )


def test_kafkas_own_tool_finds_nothing_wrong(taken_over: TakenOver, kafka_installation: Any, tmp_path: Path) -> None:
    """Indexes and producer snapshots are ours; they must be as its own."""
    installation: KafkaInstallation = kafka_installation(VERSION)
    taken_over.kmirror.stop()
    copy = tmp_path / "copy"
    shutil.copytree(taken_over.kmirror.data_directory, copy)
    taken_over.kmirror.start()
    places = [copy / f"{name}-{index}" for name, index in taken_over.source.partitions()]
    files = [str(path) for place in places for path in sorted(place.iterdir()) if path.suffix in DUMPED]
    assert len(files) > 60
    checked = installation.tool("dump-log", "--index-sanity-check", "--files", ",".join(files))
    said = checked.stdout + checked.stderr
    assert not [line for line in said.splitlines() if re.search(r"\bError\b|ismatch|xception", line)]
    assert checked.stdout.count("passed sanity check") >= len(places)
    whole = run_kmirror("dump", "--verify", "--batches", str(copy), check=False)
    assert whole.returncode == 0, whole.stdout[-2000:] + whole.stderr[-2000:]


def test_producing_goes_on(taken_over: TakenOver) -> None:
    """Last: behind the old records, under a higher leader epoch; a transactional id of before ends its transaction."""
    bootstrap = taken_over.kmirror.bootstrap
    for name, partition in taken_over.source.partitions():
        old = batches_on_disk(taken_over.kmirror.data_directory, name, partition)
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET})
        producer.produce(name, "afterwards", key="new", partition=partition)
        assert producer.flush(30) == 0
        new = batches_on_disk(taken_over.kmirror.data_directory, name, partition)
        assert new[: len(old)] == old
        assert new[-1].base_offset == old[-1].last_offset + 1
        assert new[-1].leader_epoch > old[-1].leader_epoch
    topic = f"{PREFIX}-transactions"
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{PREFIX}-open", **QUIET})
    producer.init_transactions(30)  # aborts the one that was open when Kafka was stopped
    values = [value for _offset, _key, value in read_with_librdkafka(bootstrap, topic, 0, 1)]
    assert b"afterwards" in values and b"open 1" not in values


def test_a_kafka_that_was_killed(make_kafka: MakeKafka, tmp_path: Path) -> None:
    """No clean mark, old checkpoints, indexes at their full size: all that was acknowledged comes over."""
    kafka = make_kafka(VERSION)
    source = Source(kafka)
    written = source.create("written")
    source.write(written, 500)
    commit(kafka.bootstrap, written, 123)
    end = source.end(written)
    kafka.kill()
    index = next((kafka.data_directory / f"{written}-0").glob("*.index"))
    assert index.stat().st_size == 10 * 1024 * 1024
    log = next((kafka.data_directory / f"{written}-0").glob("*.log"))
    whole = log.read_bytes()
    log.write_bytes(whole + whole[:50])  # a write that the kill cut short
    kmirror = KmirrorBroker(tmp_path / "kmirror")
    result = import_into(kmirror, str(kafka.data_directory), "--json").json()
    row = next(row for row in result["topics"] if row["topic"] == written)
    assert row["status"] == "imported" and "50 bytes cut" in " ".join(row["notes"])
    with kmirror:
        broker = Broker(kmirror.bootstrap)
        assert broker.latest(topic_of(broker, written)) == end == 500
        assert stored(kmirror.data_directory, written, 0, log_start=0) == whole
        assert committed(kmirror.bootstrap, written) == 123


# --- and back ---------------------------------------------------------------------------------------------------

COMPACTED = {
    "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "200",
    "min.compaction.lag.ms": "0", "delete.retention.ms": "0",
}  # fmt: skip
FILES: dict[str, dict[str, str]] = {
    "plain": {},
    "gzip": {},
    "zstd": {},
    "transactions": {},
    "compacted": COMPACTED,
    "trimmed": {},
    "rolled": {"segment.bytes": "1048576"},
}


def make_topics(kafka: KafkaBroker) -> Source:
    """All empty; and both internal topics are there."""
    source = Source(kafka)
    for name, configs in FILES.items():
        source.create(name, configs=configs)
    commit(kafka.bootstrap, f"{PREFIX}-plain", 0)
    producer = source.producer(transactional_id=f"{PREFIX}-first")
    producer.init_transactions(30)
    return source


def write_here(source: Source, bootstrap: str) -> None:
    """The same kinds, written to a kmirror; compacted by its own cleaner."""

    def producer(**options: Any) -> Producer:
        return Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, **QUIET, **options})

    def write(name: str, count: int, tag: str, size: int = 40, options: dict[str, Any] | None = None) -> None:
        writer = producer(**(options or {}))
        for index in range(count):
            writer.produce(f"{PREFIX}-{name}", f"{tag}-{index} {'=' * size}", key=f"k{index % 7}")
            if index % 10 == 9:
                writer.flush(30)
        assert writer.flush(30) == 0

    write("plain", 60, "plain", options={"enable.idempotence": True})
    write("gzip", 40, "gzip", options={"compression.type": "gzip"})
    write("zstd", 40, "zstd", options={"compression.type": "zstd"})
    write("rolled", 60, "rolled", size=60_000)
    for number in range(4):
        name = f"{PREFIX}-t{number}"
        writer = producer(**{"transactional.id": name})
        writer.init_transactions(30)
        writer.begin_transaction()
        for index in range(3):
            writer.produce(f"{PREFIX}-transactions", f"{name} {index}")
        writer.flush(30)
        if number % 2:
            writer.abort_transaction(30)
        else:
            writer.commit_transaction(30)
        write("transactions", 5, f"between {number}")
    write("trimmed", 50, "trimmed")
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    trimmed: dict[Any, Any] = admin.delete_records([TopicPartition(f"{PREFIX}-trimmed", 0, 23)])
    for future in trimmed.values():
        future.result(30)
    commit(bootstrap, f"{PREFIX}-plain", 33)
    write_until_compacted(bootstrap, write)


def write_until_compacted(bootstrap: str, write: Any) -> None:
    write("compacted", 100, "old")
    rounds = 0

    def has_gaps() -> bool:
        nonlocal rounds
        if rounds % 20 == 0:
            write("compacted", 10, f"new {rounds}")
        rounds += 1
        return gaps(bootstrap) > 50

    eventually(has_gaps, what="gaps that kmirror's cleaner made")


def gaps(bootstrap: str) -> int:
    """Offsets of the compacted topic that have no record."""
    broker = Broker(bootstrap)
    found = broker.scan(topic_of(broker, f"{PREFIX}-compacted"))
    return found[-1].last_offset + 1 - sum(batch.record_count for batch in found)


def give_back(kmirror: Path, kafka: Path) -> list[str]:
    """Every partition directory of kmirror in the place of Kafka's, and what its checkpoints say of them."""
    moved = []
    for place in sorted(kmirror.iterdir()):
        if place.is_dir() and re.search(r"-\d+\Z", place.name) and place.name != "__cluster_metadata-0":
            theirs = kafka / place.name
            assert (theirs / "partition.metadata").read_bytes() == (place / "partition.metadata").read_bytes()
            shutil.rmtree(theirs)
            shutil.copytree(place, theirs)
            moved.append(place.name)
    for name in CHECKPOINTS:
        lines = {}
        for directory in (kafka, kmirror):
            path = directory / name
            for line in path.read_text().splitlines()[2:] if path.exists() else ():
                topic, index, _offset = line.split()
                if directory == kafka or f"{topic}-{index}" in moved:
                    lines[f"{topic}-{index}"] = line
        (kafka / name).write_text("".join(f"{line}\n" for line in ("0", str(len(lines)), *lines.values())))
    return moved


def complaints(kafka: KafkaBroker) -> list[str]:
    text = (kafka.directory / "server.log").read_text(errors="replace")
    bad = re.compile(r"\bERROR\b|orrupt|\bFATAL\b|nconsistent|\bstray\b")
    return [
        line for line in text.splitlines() if bad.search(line) and not any(said in line for said in OF_OTHER_THINGS)
    ]


def test_kafka_goes_on_with_what_kmirror_wrote(make_kafka: MakeKafka, tmp_path: Path) -> None:
    kafka = make_kafka(VERSION, overrides=FAST_CLEANER)
    source = make_topics(kafka)
    kafka.stop()
    kmirror = KmirrorBroker(tmp_path / "kmirror", settings=FAST_CLEANER)
    import_into(kmirror, str(kafka.data_directory))
    with kmirror:
        write_here(source, kmirror.bootstrap)
        expected = {key: ask(kmirror.bootstrap, *key) for key in source.partitions() if "compacted" not in key[0]}
    expected_bytes = {key: stored(kmirror.data_directory, *key, log_start=0) for key in source.partitions()}
    moved = give_back(kmirror.data_directory, kafka.data_directory)
    assert {f"{name}-{index}" for name, index in source.partitions()} <= set(moved)
    assert any(name.startswith("__consumer_offsets-") for name in moved)
    with kafka:
        wait_for_leaders(source)
        for key, answers in expected.items():
            found = ask(kafka.bootstrap, *key)
            assert found == answers, key
        for key, data in expected_bytes.items():
            if "compacted" not in key[0]:
                assert stored(kafka.data_directory, *key, log_start=0) == data, key
        assert committed(kafka.bootstrap, f"{PREFIX}-plain") == 33
        for name, partition in source.partitions():
            end = source.end(name, partition)
            source.write(name, 10, partition=partition, tag="afterwards")
            assert source.end(name, partition) >= end + 10
        compacted_again(source)
        producer = source.producer(transactional_id=f"{PREFIX}-t1")  # its last one was aborted here
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(f"{PREFIX}-transactions", "committed by Kafka")
        producer.commit_transaction(30)
        read = read_with_librdkafka(kafka.bootstrap, f"{PREFIX}-transactions", 0, 1)
        values = [value for _offset, _key, value in read if value is not None]
        assert b"committed by Kafka" in values and not any(value.startswith(b"it-t1 ") for value in values)
    said = complaints(kafka)
    assert not said, "\n".join(said)
    there_and_back = KmirrorBroker(tmp_path / "again")
    import_into(there_and_back, str(kafka.data_directory))  # with files that only a kmirror writes, from its first turn
    for key in source.partitions():
        theirs = stored(kafka.data_directory, *key, log_start=0)
        assert stored(there_and_back.data_directory, *key, log_start=0) == theirs, key


def wait_for_leaders(source: Source) -> None:
    """A Kafka says that it has started before its partitions have."""

    def led() -> bool:
        broker = source.broker
        rows = [broker.list_offset(topic_of(broker, name), -1, partition=index) for name, index in source.partitions()]
        return all(row.error_code == 0 for row in rows)

    eventually(led, what="leaders of all partitions")


def compacted_again(source: Source) -> None:
    """By Kafka's cleaner, over what ours left."""
    before = gaps(source.bootstrap)
    rounds = 0

    def more_gaps() -> bool:
        nonlocal rounds
        if rounds % 20 == 0:
            source.write(f"{PREFIX}-compacted", 10, tag=f"kafka {rounds}")
        rounds += 1
        return gaps(source.bootstrap) > before + 20

    eventually(more_gaps, what="gaps that Kafka's cleaner made")
