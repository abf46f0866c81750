"""An unmodified Apache Kafka starts on a whole directory of ours: from the snapshot, the log has lost its beginning.

Only mirroring must be off: Kafka refuses to start with a feature that it does not know (mirror.version).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.peers.fixtures import kafka_installation  # noqa: F401 (a fixture)
from conformance.peers.kafka import KafkaBroker, KafkaInstallation
from kmirror.broker.config import BrokerConfig
from kmirror.broker.durability import InlineFlush
from kmirror.broker.topic_admin import CreateTopicSpec
from kmirror.broker.world import World
from kmirror.clock import SystemClock
from kmirror.effects import Promise
from kmirror.protocol import uuids
from kmirror.storage.filesystem import OsFileSystem
from tests.broker.harness import QuietMirrors, make_batch

pytestmark = pytest.mark.kafka
VERSION = "4.4.0"
DESCRIBED = re.compile(r"Topic: (\S+)\s+TopicId: (\S+)\s+PartitionCount: (\d+).*Configs: (\S*)")


def lived(directory: Path) -> dict[str, tuple[str, int, str]]:
    """A directory whose metadata log has lost its beginning; (topic id, partitions, configs) by topic."""
    flush = InlineFlush(at_once=True)
    config = BrokerConfig.from_properties({"metadata.max.retention.bytes": "1"})
    world = World.open(OsFileSystem(), str(directory), config, SystemClock(), flush, mirrors=QuietMirrors)
    log = world._metadata.log
    log.apply_config(replace(log.config, segment_bytes=1000))

    def settle(promise: Promise[Any]) -> Any:
        flush.run()
        return promise.result()

    settle(world.set_feature("mirror.version", 0))
    for round_number in range(3):
        for number in range(8):
            settle(world.create_topic(CreateTopicSpec(f"t{round_number}{number}", 2, configs={"retention.ms": "-1"})))
        settle(world.delete_topic(f"t{round_number}0"))
        world.snapshots.write()
    settle(world.create_topic(CreateTopicSpec("behind", 1)))
    assert log.segments[0].base_offset > 0
    partition = world.partition("t01", 1)
    settle(world.bump_leader_epoch(partition, 7))
    for number in range(3):
        now_ms = world.clock.time_ms()
        partition.produce(make_batch(b"%d" % number, timestamp_ms=now_ms), now_ms=now_ms, acks=-1)
    world.close()
    return {
        topic.name: (
            uuids.to_text(topic.topic_id),
            len(topic.partitions),
            ",".join(f"{name}={value}" for name, value in topic.configs.items()),
        )
        for topic in world.image.topics_by_name.values()
    }


def test_a_kafka_starts_on_our_directory(
    kafka_installation: Callable[[str], KafkaInstallation],  # noqa: F811
    tmp_path: Path,
) -> None:
    expected = lived(tmp_path / "kafka" / "data")
    kafka = KafkaBroker(kafka_installation(VERSION), tmp_path / "kafka")
    kafka.overrides["controller.quorum.voters"] = f"1@127.0.0.1:{kafka._ports.control}"
    kafka.overrides["controller.quorum.bootstrap.servers"] = ""
    with kafka:
        described = kafka.tool("topics", "--bootstrap-server", kafka.bootstrap, "--describe").stdout
        found = {
            name: (topic_id, int(count), configs) for name, topic_id, count, configs in DESCRIBED.findall(described)
        }
        assert found == expected
        offsets = kafka.tool("get-offsets", "--bootstrap-server", kafka.bootstrap, "--topic", "t01").stdout
        assert offsets.split() == ["t01:0:0", "t01:1:3"]
        arguments = ["--topic", "t01", "--partition", "1", "--offset", "0", "--max-messages", "3"]
        read = kafka.tool("console-consumer", "--bootstrap-server", kafka.bootstrap, *arguments)
        assert read.stdout.split() == ["0", "1", "2"]
