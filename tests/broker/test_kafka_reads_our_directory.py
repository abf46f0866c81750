"""Apache Kafka's own tool reads what the world writes: the metadata log with its decoder, and a data log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.peers.fixtures import kafka_installation  # noqa: F401 (a fixture)
from conformance.peers.kafka import KafkaInstallation
from kmirror.broker.config import BrokerConfig
from kmirror.broker.config_admin import ConfigOp, ConfigOperation
from kmirror.broker.durability import InlineFlush
from kmirror.broker.metadata import BROKER_RESOURCE, MIRROR_RESOURCE, SUPPORTED_FEATURES
from kmirror.broker.topic_admin import CreateTopicSpec
from kmirror.broker.world import World
from kmirror.clock import ManualClock
from kmirror.effects import Promise
from kmirror.protocol.records import end_txn_marker
from kmirror.storage.filesystem import OsFileSystem
from tests.broker.harness import QuietMirrors, make_batch

pytestmark = pytest.mark.kafka
VERSION = "4.4.0"


def written(directory: Path) -> list[str]:
    """A directory with every record type the world writes; the types in order."""
    flush = InlineFlush(at_once=True)
    world = World.open(
        OsFileSystem(), str(directory), BrokerConfig.from_properties({}), ManualClock(), flush, mirrors=QuietMirrors
    )

    def settle(promise: Promise[Any]) -> None:
        flush.run()
        promise.result()

    settle(world.create_topic(CreateTopicSpec("t", 2, configs={"retention.ms": "100000"})))
    settle(world.create_topic(CreateTopicSpec("gone", 1)))
    settle(world.delete_topic("gone"))
    settle(world.alter_configs(BROKER_RESOURCE, "", [ConfigOp("message.max.bytes", ConfigOperation.SET, "9")]))
    settle(world.alter_configs(BROKER_RESOURCE, "", [ConfigOp("message.max.bytes", ConfigOperation.DELETE)]))
    settle(world.configs.write(MIRROR_RESOURCE, "m", {"bootstrap.servers": "h:1"}))
    partition = world.partition("t", 0)
    settle(world.bump_leader_epoch(partition, 12))
    settle(world.producer_ids.next())
    settle(world.set_feature("mirror.version", 0))
    now_ms = world.clock.time_ms()
    partition.produce(make_batch(b"plain", timestamp_ms=now_ms), now_ms=now_ms, acks=-1)
    batch = make_batch(
        b"txn", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True, timestamp_ms=now_ms
    )
    partition.produce(batch, now_ms=now_ms, acks=-1)
    marker = end_txn_marker(commit=False, producer_id=5, producer_epoch=0, coordinator_epoch=0, timestamp_ms=now_ms)
    partition.append_coordinator(marker)
    world.snapshots.write()
    flush.run()
    world.close()
    features = ["FEATURE_LEVEL_RECORD"] * len(SUPPORTED_FEATURES) + ["REGISTER_BROKER_RECORD"]
    topics = ["TOPIC_RECORD", "CONFIG_RECORD", "PARTITION_RECORD", "PARTITION_RECORD", "TOPIC_RECORD"]
    changes = ["PARTITION_RECORD", "REMOVE_TOPIC_RECORD", "CONFIG_RECORD", "CONFIG_RECORD", "CONFIG_RECORD"]
    return [*features, *topics, *changes, "PARTITION_RECORD", "PRODUCER_IDS_RECORD", "FEATURE_LEVEL_RECORD"]


def test_the_dump_tool_decodes_every_record(
    kafka_installation: Callable[[str], KafkaInstallation],  # noqa: F811
    tmp_path: Path,
) -> None:
    expected = written(tmp_path)
    kafka = kafka_installation(VERSION)
    log = tmp_path / "__cluster_metadata-0" / "00000000000000000000.log"
    output = kafka.tool("dump-log", "--cluster-metadata-decoder", "--files", str(log)).stdout
    payloads = [json.loads(line.partition("payload: ")[2]) for line in output.splitlines() if "payload: " in line]
    assert [payload["type"] for payload in payloads] == expected
    assert payloads[-3]["data"]["leaderEpoch"] == 13
    assert payloads[-4]["data"]["resourceType"] == MIRROR_RESOURCE

    data = tmp_path / "t-0" / "00000000000000000000.log"
    output = kafka.tool("dump-log", "--print-data-log", "--files", str(data)).stdout
    assert output.count("isvalid: true") == 3
    assert "partitionLeaderEpoch: 13" in output
    assert "endTxnMarker: ABORT" in output


def test_the_dump_tool_decodes_the_snapshot(
    kafka_installation: Callable[[str], KafkaInstallation],  # noqa: F811
    tmp_path: Path,
) -> None:
    """As one that Kafka wrote: header, every record, footer. A removed topic is in it as its life and its end."""
    written(tmp_path)
    (snapshot,) = (tmp_path / "__cluster_metadata-0").glob("*.checkpoint")
    output = kafka_installation(VERSION).tool("dump-log", "--cluster-metadata-decoder", "--files", str(snapshot)).stdout
    assert f"Dumping {snapshot}" in output
    assert "Snapshot end offset: " in output
    lines = [line for line in output.splitlines() if line.startswith("|")]
    assert "SnapshotHeader" in lines[0]
    assert "SnapshotFooter" in lines[-1]
    assert output.count("isvalid: true") == 3
    payloads = [json.loads(line.partition("payload: ")[2]) for line in lines[1:-1]]
    features = [payload["data"]["name"] for payload in payloads if payload["type"] == "FEATURE_LEVEL_RECORD"]
    assert features[0] == "metadata.version"
    rest = [payload["type"] for payload in payloads if payload["type"] != "FEATURE_LEVEL_RECORD"]
    removed = ["TOPIC_RECORD", "PARTITION_RECORD", "REMOVE_TOPIC_RECORD"]
    topic = ["TOPIC_RECORD", "PARTITION_RECORD", "PARTITION_RECORD", "CONFIG_RECORD"]
    assert rest == ["REGISTER_BROKER_RECORD", *removed, *topic, "CONFIG_RECORD", "PRODUCER_IDS_RECORD"]
    assert [payload["data"]["leaderEpoch"] for payload in payloads if payload["type"] == "PARTITION_RECORD"][1] == 13
