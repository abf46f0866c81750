"""Show 1: topics of a real Kafka, byte for byte, with every kind of batch; and what tells when a byte differs."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conformance.peers.fixtures import MakeKafka
from conformance.peers.kafka import KafkaInstallation
from conformance.peers.kmirror_process import KmirrorBroker
from conformance.peers.maven import OLD_VERSIONS, version_key
from conformance.wire.client import Broker
from tests.integration.source_topics import PREFIX, Source, fill, wait_until_quiet
from tests.integration.watching import batches_on_disk, describe, segments, stored, topic_of, wait_until_equal_ends

pytestmark = pytest.mark.kafka
VERSIONS = os.environ.get("KMIRROR_SOURCE_VERSIONS", f"4.4.0,{OLD_VERSIONS[0]}").split(",")
FAST_CLEANER = {"log.cleaner.backoff.ms": "300"}


@dataclass(slots=True)
class Mirrored:
    source: Source
    destination: KmirrorBroker
    version: str


@pytest.fixture(scope="module", params=VERSIONS)
def mirrored(
    request: pytest.FixtureRequest, make_kafka: MakeKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mirrored]:
    """A filled source and a kmirror that has caught up with it."""
    version: str = request.param
    source = fill(make_kafka(version, overrides=FAST_CLEANER))
    wait_until_quiet(source)
    destination = KmirrorBroker(tmp_path_factory.mktemp("kmirror") / "destination")
    with destination:
        destination.run("mirror", "create", "m", "--source", source.bootstrap, "--topics", f"{PREFIX}-.*", "--start")
        for topic in source.topics:
            wait_until_equal_ends(source.bootstrap, destination.bootstrap, topic)
        yield Mirrored(source, destination, version)
    source.kafka.stop()


def test_the_bytes_are_the_sources(mirrored: Mirrored) -> None:
    theirs, ours = mirrored.source.broker, Broker(mirrored.destination.bootstrap)
    compared = 0
    for topic, partition in mirrored.source.partitions():
        log_start = theirs.earliest(topic_of(theirs, topic), partition)
        assert ours.earliest(topic_of(ours, topic), partition) == log_start, (topic, partition)
        source_bytes = stored(mirrored.source.kafka.data_directory, topic, partition, log_start=log_start)
        own_bytes = stored(mirrored.destination.data_directory, topic, partition, log_start=log_start)
        assert own_bytes == source_bytes, f"{topic}-{partition} differs"
        compared += len(own_bytes)
    assert compared > 300_000


def test_what_was_compared_is_what_the_issue_names(mirrored: Mirrored) -> None:
    """Guards the guard: gaps, several epochs, transactions and every codec are really there."""
    directory = mirrored.destination.data_directory
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        seen = {batch.attributes & 7 for batch in batches_on_disk(directory, f"{PREFIX}-codec-{codec}", 0)}
        assert number in seen, (codec, seen)
    compacted = batches_on_disk(directory, f"{PREFIX}-compacted", 0)
    assert sum(batch.record_count for batch in compacted) < compacted[-1].last_offset + 1
    if version_key(mirrored.version) >= (3, 3, 0):  # a lone ZooKeeper broker keeps its epoch over a restart
        assert len({batch.leader_epoch for batch in batches_on_disk(directory, f"{PREFIX}-epochs", 0)}) >= 3
    assert any(batch.attributes & 8 for batch in batches_on_disk(directory, f"{PREFIX}-log-append-time", 0))
    transactions = batches_on_disk(directory, f"{PREFIX}-transactions", 0)
    assert sum(bool(batch.attributes & 0x20) for batch in transactions) == 3
    theirs = mirrored.source.broker
    assert theirs.earliest(topic_of(theirs, f"{PREFIX}-trimmed")) == 23


def test_topic_ids_and_partition_counts(mirrored: Mirrored) -> None:
    theirs, ours = mirrored.source.broker, Broker(mirrored.destination.bootstrap)
    for name in mirrored.source.topics:
        source_topic, own_topic = topic_of(theirs, name), topic_of(ours, name)
        assert own_topic.partition_count == source_topic.partition_count
        if version_key(mirrored.version) >= (2, 8, 0):
            assert own_topic.topic_id == source_topic.topic_id != bytes(16)


def test_lookups_agree_with_the_source(mirrored: Mirrored) -> None:
    """Times, stable offsets and epochs, as consumers ask for them."""
    theirs, ours = mirrored.source.broker, Broker(mirrored.destination.bootstrap)
    for name, partition in mirrored.source.partitions():
        topic = topic_of(theirs, name)
        batches = theirs.scan(topic, partition)
        asked = [-1, -2, 0, *(batch.max_timestamp + extra for batch in batches[::5] for extra in (0, 1))]
        for timestamp in asked:
            for isolation_level in (0, 1):
                options = {"partition": partition, "isolation_level": isolation_level}
                there = theirs.list_offset(topic, timestamp, **options)
                here = ours.list_offset(topic, timestamp, **options)
                assert (here.error_code, here.offset, here.timestamp) == (
                    there.error_code,
                    there.offset,
                    there.timestamp,
                ), (name, partition, timestamp, isolation_level)


def test_kafka_dump_log_reads_our_directory(mirrored: Mirrored, kafka_installation: object, tmp_path: Path) -> None:
    """Every record decodes; indexes agree with the log."""
    installation: KafkaInstallation = kafka_installation("4.4.0")  # type: ignore[operator]
    copy = tmp_path / "copy"  # the tool wants files that nobody writes to
    files: list[str] = []
    expected = 0
    for name, partition in mirrored.source.partitions():
        target = copy / f"{name}-{partition}"
        shutil.copytree(mirrored.destination.data_directory / target.name, target)
        files += [str(path) for path in sorted(target.glob("*.log"))]
        expected += sum(
            batch.record_count for batch in batches_on_disk(mirrored.destination.data_directory, name, partition)
        )
    dumped = installation.tool("dump-log", "--print-data-log", "--deep-iteration", "--files", ",".join(files))
    said = dumped.stdout + dumped.stderr
    assert "Error at" not in said and "mismatch" not in said.lower(), said[-3000:]
    assert len(re.findall(r"^\| offset:", dumped.stdout, re.MULTILINE)) == expected
    indexes = [str(path) for path in sorted(copy.rglob("*index")) if path.suffix in (".index", ".timeindex")]
    checked = installation.tool("dump-log", "--index-sanity-check", "--files", ",".join(indexes))
    assert "mismatch" not in (checked.stdout + checked.stderr).lower()
    snapshots = [str(path) for path in sorted(copy.rglob("*.snapshot"))]
    if snapshots:
        installation.tool("dump-log", "--files", ",".join(snapshots))


def test_verify_finds_nothing_and_then_the_flipped_byte(mirrored: Mirrored, tmp_path: Path) -> None:
    agreed = mirrored.destination.run("verify", "m", "--json")
    assert agreed.returncode == 0
    mirrored.destination.stop()
    copy = KmirrorBroker(tmp_path / "copy")
    shutil.copytree(mirrored.destination.data_directory, copy.data_directory)
    topic = f"{PREFIX}-codec-none"
    path = segments(copy.data_directory, topic, 1)[0]
    data = bytearray(path.read_bytes())
    data[100] ^= 1  # inside the first batch's records
    path.write_bytes(data)
    with copy:
        found = copy.run("verify", "m", check=False)
        assert found.returncode == 1, found
        line = next((line for line in found.stdout.splitlines() if "differ" in line.lower() and topic in line), "")
        assert topic in line and re.search(r"\b0\b", line), found
    mirrored.destination.start()
    assert {row["state"] for row in describe(mirrored.destination)} == {"MIRRORING"}
